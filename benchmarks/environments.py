"""Steps per second of many environments, and where the time goes.

1 to 4,096 environments of brax `fast`, gymnax's Pendulum and brax's Ant (backend
`spring`), without learning. Timed side by side for each number of environments:

- `step`: only `env.step` of each environment, so no episode begins;
- `interact`: random actions, steps, and the resets of episodes;
- `own`: the same by the environment's own library, with its own resets;
- `collect`: a training without updates: a policy acts, and the replay is written.

Ant compiles slowly, so with 1 and 4,096 only `interact` and `own` are measured. Run it
as `nox -s benchmarks -- environments`, or with `--only environments/fast`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._interaction.actors import interact, start
from eqrl._pytree.control_flow import filter_fori_loop

from .agent_rows import make_training
from .beside_limit import Repeated, measure_beside
from .command import MakeRows, run_command
from .measure import Effort
from .report import Row


SIZES = (1, 64, 1_024, 4_096)
SIZES_OF_ANT = (1, 1_024, 4_096)
MAX_STEPS = 1_000

Env = eqrl.envs.AbstractEnv[Any]


def _make_env(name: str) -> Env:
    if name == "pendulum":
        return eqrl.envs.make("gymnax/Pendulum-v1")
    options: dict[str, Any] = {"backend": "spring"} if name == "ant" else {}
    return eqrl.envs.make(f"brax/{name}", max_steps=MAX_STEPS, **options)


@eqx.filter_jit(donate="all-except-first")
def _step(kept: tuple[Env, Int[Array, ""], PRNGKeyArray], states: PyTree) -> PyTree:
    env, num_steps, key = kept

    def step_all(index: Int[Array, ""], states: PyTree) -> PyTree:
        num_envs = jax.tree.leaves(states)[0].shape[0]
        keys = jr.split(jr.fold_in(key, index), num_envs)

        def step(state: PyTree, key: PRNGKeyArray) -> PyTree:
            action_key, step_key = jr.split(key)
            action = env.spec.action.sample(key=action_key)
            return env.step(state, action, key=step_key)[0]

        return eqx.filter_vmap(step)(states, keys)

    return filter_fori_loop(0, num_steps, step_all, states)


def _make_step(name: str, num_envs: int) -> Repeated:
    env = _make_env(name)
    reset = eqx.filter_jit(eqx.filter_vmap(lambda key: env.reset(key=key)[0]))
    states = reset(jr.split(jr.key(0), num_envs))

    def run(num_steps: int) -> PyTree:
        nonlocal states
        states = _step((env, jnp.asarray(num_steps), jr.key(1)), states)
        return states

    return run


@eqx.filter_jit(donate="all-except-first")
def _interact(
    kept: tuple[Any, Any, Env, Int[Array, ""], PRNGKeyArray], actors: PyTree
) -> PyTree:
    agent, state, env, num_steps, key = kept

    def step(index: Int[Array, ""], actors: PyTree) -> PyTree:
        step_key = jr.fold_in(key, index)
        return interact(agent, state, env, actors, mode="random", key=step_key)[0]

    return filter_fori_loop(0, num_steps, step, actors)


def _make_interact(name: str, num_envs: int) -> Repeated:
    env, agent = _make_env(name), eqrl.SAC()
    state = eqx.filter_jit(agent.init)(env.spec, key=jr.key(0))
    actors = eqx.filter_jit(start)(agent, state, env, num_envs=num_envs, key=jr.key(1))

    def run(num_steps: int) -> PyTree:
        nonlocal actors
        kept = (agent, state, env, jnp.asarray(num_steps), jr.key(2))
        actors = _interact(kept, actors)
        return eqx.filter(actors, eqx.is_array)

    return run


def _make_collect(name: str, num_envs: int) -> Repeated:
    trainer = eqrl.Trainer(
        num_envs=num_envs,
        capacity=max(16 * num_envs, 256),
        warmup_steps=num_envs,
        updates_per_iteration=0,
    )
    run = make_training(eqrl.SAC(), _make_env(name), trainer)
    return lambda num_steps: run(num_steps * num_envs)


def _make_own(name: str, num_envs: int) -> Repeated:
    """The loop of brax or of gymnax themselves."""
    if name == "pendulum":
        return _make_own_gymnax(num_envs)
    import brax.envs

    options: dict[str, Any] = {"backend": "spring"} if name == "ant" else {}
    env = brax.envs.create(
        name, episode_length=MAX_STEPS, batch_size=num_envs, **options
    )
    states: Any = jax.jit(env.reset)(jax.random.PRNGKey(0))
    # Copied, because equal initial arrays share a buffer, which forbids donation.
    states = jax.tree.map(jnp.array, states)

    def step(key: PRNGKeyArray, states: Any) -> Any:
        shape = (num_envs, env.action_size)
        return env.step(states, jr.uniform(key, shape, minval=-1))

    return _make_loop(step, states)


def _make_own_gymnax(num_envs: int) -> Repeated:
    import gymnax

    env, parameters = gymnax.make("Pendulum-v1")
    reset = jax.jit(jax.vmap(lambda key: env.reset(key, parameters)[1]))
    states = reset(jr.split(jr.key(0), num_envs))

    def step(key: PRNGKeyArray, states: Any) -> Any:
        def step_one(key: PRNGKeyArray, state: Any) -> Any:
            action_key, step_key = jr.split(key)
            action = env.action_space(parameters).sample(action_key)
            return env.step(step_key, state, action, parameters)[1]

        return jax.vmap(step_one)(jr.split(key, num_envs), states)

    return _make_loop(step, states)


def _make_loop(step: Callable[[PRNGKeyArray, Any], Any], states: Any) -> Repeated:
    @eqx.filter_jit(donate="all-except-first")
    def loop(kept: tuple[Int[Array, ""], PRNGKeyArray], states: Any) -> Any:
        num_steps, key = kept

        def body(index: Int[Array, ""], states: Any) -> Any:
            return step(jr.fold_in(key, index), states)

        return lax.fori_loop(0, num_steps, body, states)

    def run(num_steps: int) -> PyTree:
        nonlocal states
        states = loop((jnp.asarray(num_steps), jr.key(1)), states)
        return states

    return run


MAKE: dict[str, Callable[[str, int], Repeated]] = {
    "step": _make_step,
    "interact": _make_interact,
    "own": _make_own,
    "collect": _make_collect,
}


def _rows_of(name: str, num_envs: int) -> MakeRows:
    def make(effort: Effort) -> list[Row]:
        few = name == "ant" and num_envs != 1_024
        parts = ("interact", "own") if few else tuple(MAKE)
        works = {part: MAKE[part](name, num_envs) for part in parts}
        rates, limits = measure_beside(works, effort=effort)
        prefix = f"environments/{name}/{num_envs}"
        rows = [
            Row(
                f"{prefix}/{part}",
                "steps/s",
                tuple(rate * num_envs for rate in rates[part]),
                limits=limits,
                is_checked=part != "own",
            )
            for part in parts
        ]
        pairs = zip(rates["interact"], rates["own"], strict=True)
        ratios = tuple(interact / own for interact, own in pairs)
        return [*rows, Row(f"{prefix}/interact beside own", "times", ratios)]

    return make


ENVIRONMENTS: dict[str, MakeRows] = {
    f"environments/{name}/{num_envs}": _rows_of(name, num_envs)
    for name in ("fast", "pendulum", "ant")
    for num_envs in (SIZES_OF_ANT if name == "ant" else SIZES)
}


def main() -> None:
    run_command(ENVIRONMENTS, description=__doc__)


if __name__ == "__main__":
    main()
