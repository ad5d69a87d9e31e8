"""Rows of agents: updates a second, and steps a second with and without learning.

Updates are made in a loop, always from the same batch, with the sizes of brax's Ant:
observations of 27, actions of 8, or a choice among 8. Hidden layers have 256 and 256
elements, batches 256 transitions. Steps are those of whole trainings.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._agents.base import AnyAgent
from eqrl._pytree.control_flow import filter_fori_loop
from eqrl._training.mesh import Members

from .beside_limit import Alone, Repeated, measure_row
from .command import MakeRows
from .matmuls import count_matmuls, make_matmul_run
from .measure import Effort
from .report import Row


NUM_TRANSITIONS = 256
OBSERVATION_SIZE, ACTION_SIZE = 27, 8
HIDDEN = (256, 256)


class Still(eqrl.envs.AbstractEnv[Float[Array, ""]]):
    """An environment of given sizes without dynamics."""

    sizes: eqrl.EnvSpec

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.sizes

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Float[Array, " obs"]]:
        del key
        return jnp.zeros(()), jnp.zeros(self.sizes.observation_size)

    def step(
        self, state: Float[Array, ""], action: Array, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], eqrl.envs.Outcome]:
        del action, key
        outcome = eqrl.envs.Outcome(
            observation=jnp.zeros(self.sizes.observation_size),
            reward=jnp.zeros(()),
            terminated=jnp.array(False),
            truncated=jnp.array(False),
        )
        return state, outcome

    def state_descriptor(self, state: Float[Array, ""]) -> None:
        del state


def make_batch(agent: AnyAgent, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> Any:
    """A batch of random numbers for an update of the agent."""
    sequence_length = agent.sequence_length
    assert sequence_length is not None
    trainer = eqrl.Trainer(batch_size=NUM_TRANSITIONS // sequence_length)
    state, counts = eqx.filter_eval_shape(trainer.init, agent, Still(spec), key=key)
    replay = trainer.replay(sequence_length)
    shapes = eqx.filter_eval_shape(replay.sample, state.replay, counts, key=key)
    leaves, structure = jax.tree.flatten(shapes)

    def fill(leaf: Any, key: PRNGKeyArray) -> Array:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jr.uniform(key, leaf.shape, leaf.dtype, minval=-1)
        return jnp.zeros(leaf.shape, leaf.dtype)

    filled = [fill(leaf, jr.fold_in(key, i)) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, filled)


@eqx.filter_jit(donate="all-except-first")
def _update(
    kept: tuple[AnyAgent, Any, Int[Array, ""], PRNGKeyArray], state: PyTree
) -> PyTree:
    agent, batch, num_updates, key = kept

    def update(step: Int[Array, ""], state: PyTree) -> PyTree:
        return agent.update(state, batch, step=step, key=jr.fold_in(key, step))[0]

    # As in training, XLA does not know the length of the loop.
    return filter_fori_loop(0, num_updates, update, state)


def make_updates(agent: AnyAgent, spec: eqrl.EnvSpec, batch: Any) -> Repeated:
    """A function that makes a number of updates from one batch, resuming each time."""
    state = eqx.filter_jit(agent.init)(spec, key=jr.key(0))

    def run(num_updates: int) -> PyTree:
        nonlocal state
        state = _update((agent, batch, jnp.asarray(num_updates), jr.key(1)), state)
        return eqx.filter(state, eqx.is_array)

    return run


def make_alone(
    agent: AnyAgent,
    spec: eqrl.EnvSpec,
    batch: Any,
    *,
    size: int = 1,
    members: Members = "in_turn",
    mesh: Mesh | None = None,
) -> Alone:
    """The matmuls of the updates of `size` members; see `make_matmul_run`."""
    # TD3 updates its actor in every second update.
    period = agent.policy_delay if isinstance(agent, eqrl.TD3) else 1
    counts = count_matmuls(agent, spec, batch, Fraction(1, period))
    in_round = [(matmul, int(count * period)) for matmul, count in counts]
    run = make_matmul_run(in_round, size=size, members=members, mesh=mesh)
    return Alone(run, size * period)


def _rows_of_updates(name: str, make_agent: Callable[[], AnyAgent]) -> MakeRows:
    def make(effort: Effort) -> list[Row]:
        agent = make_agent()
        if name in ("DQN", "DiscreteSAC"):
            action = eqrl.spaces.Discrete(ACTION_SIZE)
            spec = eqrl.EnvSpec(OBSERVATION_SIZE, action=action)
        else:
            spec = eqrl.EnvSpec(OBSERVATION_SIZE, ACTION_SIZE)
        batch = make_batch(agent, spec, key=jr.key(2))
        row = measure_row(
            f"updates/{name}",
            "updates/s",
            make_updates(agent, spec, batch),
            effort=effort,
            alone=make_alone(agent, spec, batch),
        )
        return [row]

    return make


def make_training(
    agent: AnyAgent, env: eqrl.envs.AbstractEnv[Any], trainer: eqrl.Trainer
) -> Repeated:
    """A function that trains for a number of steps, resuming each time; warmed up."""
    state, counts = eqrl.jit_init(trainer, agent, env, key=jr.key(0))

    def run(num_steps: int) -> PyTree:
        nonlocal state, counts
        state, counts, metrics = eqrl.jit_run(
            trainer, agent, env, state, counts, num_steps=num_steps, key=jr.key(1)
        )
        return metrics

    if trainer.warmup_steps:
        run(trainer.warmup_steps)
    return run


def _rows_of_steps(
    name: str,
    make_agent: Callable[[], AnyAgent],
    env_name: str,
    make_trainer: Callable[[], eqrl.Trainer],
) -> MakeRows:
    def make(effort: Effort) -> list[Row]:
        options: dict[str, Any] = {"max_steps": 1000}
        if env_name != "brax/fast":
            options = {}  # These rows have their own limit.
        trainer = make_trainer()
        run = make_training(make_agent(), eqrl.envs.make(env_name, **options), trainer)
        row = measure_row(
            f"steps/{name}",
            "steps/s",
            run,
            effort=effort,
            least=trainer.steps_of_iteration,
            note=f"{env_name}, environments: {trainer.num_envs}",
        )
        return [row]

    return make


UPDATES = {
    f"updates/{name}": _rows_of_updates(name, make_agent)
    for name, make_agent in {
        "SAC": eqrl.SAC,
        "TD3": eqrl.TD3,
        "TAAC": eqrl.TAAC,
        "DQN": lambda: eqrl.DQN(make_network=eqrl.nn.ActionValues(HIDDEN)),
        "DiscreteSAC": eqrl.DiscreteSAC,
    }.items()
}

STEPS = {
    f"steps/{name}": _rows_of_steps(name, *setting)
    for name, setting in {
        "SAC, learning": (
            eqrl.SAC,
            "brax/fast",
            lambda: eqrl.Trainer(warmup_steps=1_000),
        ),
        "SAC, not learning": (
            eqrl.SAC,
            "brax/fast",
            lambda: eqrl.Trainer(warmup_steps=256, updates_per_iteration=0),
        ),
        "PPO": (
            eqrl.PPO,
            "gymnax/CartPole-v1",
            lambda: eqrl.Trainer.on_policy(num_envs=4, num_steps=128),
        ),
        "PQN": (
            eqrl.PQN,
            "gymnax/CartPole-v1",
            lambda: eqrl.Trainer.on_policy(num_envs=32, num_steps=64),
        ),
    }.items()
}
