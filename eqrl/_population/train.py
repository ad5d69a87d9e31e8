from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree, Shaped

from .._agents import AbstractAgent
from .._custom_types import Metrics
from .._evaluate import Descriptor, Evaluation, evaluate
from .._interrupt import deferred_interrupt
from .._ranges import check_integer
from .._replay import Counts
from .._train import TrainingInterrupted
from .._trainer import Trainer, TrainerState
from .._tree import tree_copy
from ..envs import AbstractEnv
from .mesh import automatic, check_mesh, on_each_device, replicate, shard
from .pbt import PBT
from .stack import size_of


Score = Callable[[Any, Any, Evaluation], Float[Array, ""]]
Members = Literal["together", "in_turn"]
Callback = Callable[[int, Any], None]


class PopulationSolution(eqx.Module):
    """What a population reached, and how."""

    agents: Any
    trainer_states: Any
    counts: Counts
    returns: Shaped[np.ndarray, "generations population episodes ..."]
    descriptors: PyTree
    hyperparameters: dict[str, Shaped[np.ndarray, "_ _"]]
    parents: Shaped[np.ndarray, "generations population"]
    metrics: dict[str, Shaped[np.ndarray, "_ _"]]

    @property
    def states(self) -> Any:
        """What the agents have learnt: a stack."""
        return self.trainer_states.agent


PopulationSolution.__init__.__doc__ = """**Arguments:**

- `agents`: a stack, with the hyperparameters of the last generation.
- `trainer_states`: a stack: agents' states, environments and replays.
- `counts`: how far training is, the same for all.
- `returns`: of each generation, member and episode.
- `descriptors`: likewise, where they were asked for, else `None`.
- `hyperparameters`: by name, what each member of each generation trained with.
- `parents`: whom each member was copied from before each generation, itself where it
    was kept, as in the first.
- `metrics`: by name, of each generation and member.
"""


def train_population(
    agent: AbstractAgent[Any, Any, Any],
    env: AbstractEnv[Any],
    trainer: Trainer,
    pbt: PBT | None,
    *,
    size: int,
    num_generations: int,
    steps_per_generation: int,
    num_episodes: int,
    key: PRNGKeyArray,
    score: Score | None = None,
    evaluation_env: AbstractEnv[Any] | None = None,
    descriptor: Descriptor | None = None,
    mesh: Mesh | None = None,
    members: Members = "together",
    callback: Callback | None = None,
) -> PopulationSolution:
    """Trains a population of agents, by population based training or each for itself.

    A generation trains, is evaluated, and then, except for the last, has its worst
    members replaced.

    **Arguments:**

    - `agent`: a single one, or a stack of `size`, which is taken as it is.
    - `env`, `trainer`: where and how each member learns.
    - `pbt`: how members are replaced and varied, and where a single agent's
        hyperparameters are drawn from; `None` replaces nobody.
    - `size`: members, at least 1.
    - `num_generations`: at least 1.
    - `steps_per_generation`: environment steps of each member, a whole number of
        iterations; those of the first include the warm-up.
    - `num_episodes`: to evaluate each member by, greedily.
    - `key`: of everything; each member, generation and purpose has its own.
    - `score`: from an agent, its state and its `Evaluation` to what members are ranked
        by; the mean return by default. Needed where the reward is a vector.
    - `evaluation_env`: where to evaluate; `env` by default.
    - `descriptor`: as in `evaluate`.
    - `mesh`: devices to lay the population over, with the one axis `population`; `size`
        must be a multiple of their number. `num_replaced` and `num_elite` count the
        whole population all the same.
    - `members`: on each device, `"together"` maps over members, `"in_turn"` runs one
        after another.
    - `callback`: called as `callback(generation, solution)` after each evaluation. Copy
        what you keep of the states: they are donated to the next generation.

    **Returns:**

    A `PopulationSolution`.

    Raises a `ValueError` where the arguments do not fit each other, and
    `TrainingInterrupted`, which holds what was reached, after Ctrl-C, which is looked
    for between generations.
    """
    check_integer("num_generations", num_generations, least=1)
    check_mesh(mesh, size)
    mesh = automatic(mesh)
    trainer.check_num_steps(steps_per_generation)
    evaluation_env = env if evaluation_env is None else evaluation_env
    if score is None:
        _check_scalar(evaluation_env)
        score = mean_return
    agents = _make_agents(agent, pbt, size, key=jr.fold_in(key, 0))
    states, counts = _init(trainer, agents, env, jr.split(jr.fold_in(key, 1), size))
    agents, states = shard((agents, states), mesh)
    counts = replicate(counts, mesh)
    run_key, evaluation_key, exploit_key = (jr.fold_in(key, i) for i in (2, 3, 4))
    names = _names(agent, pbt)
    parents = jnp.arange(size)
    scores = jnp.zeros(size)
    rows: list[_Row] = []
    solution: PopulationSolution | None = None
    with deferred_interrupt() as interrupted:
        for generation in range(num_generations):
            if solution is not None and pbt is not None:
                agents, states, parents = _exploit(
                    (pbt, scores, jr.fold_in(exploit_key, generation)), agents, states
                )
            states, counts, metrics = _run(
                (trainer, agents, env, jnp.asarray(steps_per_generation, int), run_key),
                states,
                counts,
                members,
                mesh,
            )
            evaluation, scores = _evaluate(
                agents,
                states,
                evaluation_env,
                jr.fold_in(evaluation_key, generation),
                num_episodes,
                descriptor,
                score,
                mesh,
            )
            values = () if pbt is None else pbt.where(agents)
            row = _Row(
                returns=evaluation.returns,
                descriptors=evaluation.descriptors,
                hyperparameters=dict(zip(names, values, strict=True)),
                parents=parents,
                metrics=metrics,
            )
            # To the host, and copied: agents are donated to the next generation.
            rows.append(jax.tree.map(np.array, row))
            solution = _solution(rows, agents, states, counts)
            if callback is not None:
                callback(generation, solution)
            if interrupted():
                raise TrainingInterrupted(solution)
    assert solution is not None
    return solution


class _Row(eqx.Module):
    """What is kept of one generation; each array has a leading axis `population`."""

    returns: Any
    descriptors: Any
    hyperparameters: dict[str, Any]
    parents: Any
    metrics: dict[str, Any]


def _solution(
    rows: list[_Row], agents: Any, states: Any, counts: Counts
) -> PopulationSolution:
    history = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    return PopulationSolution(
        agents=agents,
        trainer_states=states,
        counts=counts,
        returns=history.returns,
        descriptors=history.descriptors,
        hyperparameters=history.hyperparameters,
        parents=history.parents,
        metrics=history.metrics,
    )


def _check_scalar(env: AbstractEnv[Any]) -> None:
    if env.spec.reward_size is not None:
        raise ValueError(
            "The reward is a vector, so `score` is needed: from an agent, its state "
            "and its `Evaluation` to one number to rank by."
        )


def mean_return(agent: Any, state: Any, evaluation: Evaluation) -> Float[Array, ""]:
    """What members are ranked by unless something else is given."""
    del agent, state
    return jnp.mean(evaluation.returns)


def _make_agents(
    agent: AbstractAgent[Any, Any, Any],
    pbt: PBT | None,
    size: int,
    *,
    key: PRNGKeyArray,
) -> Any:
    shapes = {jnp.shape(leaf) for leaf in jax.tree.leaves(eqx.filter(agent, _is_float))}
    if shapes == {(size,)}:
        # Copied, for exploiting donates it.
        return tree_copy(agent)
    if any(shape != () for shape in shapes):
        raise ValueError(
            f"The hyperparameters of `agent` have the shapes {sorted(shapes)}; give a "
            f"single agent, or a stack of `size={size}`."
        )
    if pbt is not None:
        return pbt.init(agent, size, key=key)
    return jax.tree.map(
        lambda x: jnp.broadcast_to(x, (size, *x.shape)) if eqx.is_array(x) else x, agent
    )


def _is_float(leaf: Any) -> bool:
    return eqx.is_inexact_array(leaf)


def _names(agent: AbstractAgent[Any, Any, Any], pbt: PBT | None) -> list[str]:
    """Of the hyperparameters that are tuned, by where they stand in the agent."""
    if pbt is None:
        return []
    paths = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.tree_util.keystr(path).removeprefix("."), agent
    )
    return list(pbt.where(paths))


@eqx.filter_jit
def _init(
    trainer: Trainer,
    agents: Any,
    env: AbstractEnv[Any],
    keys: Key[Array, " population"],
) -> tuple[Any, Counts]:
    def init(agent: Any, key: PRNGKeyArray) -> tuple[Any, Counts]:
        return trainer.init(agent, env, key=key)

    return eqx.filter_vmap(init, out_axes=(eqx.if_array(0), None))(agents, keys)


@eqx.filter_jit(donate="all-except-first")
def _run(
    kept: tuple[Trainer, Any, AbstractEnv[Any], Int[Array, ""], PRNGKeyArray],
    states: Any,
    counts: Counts,
    members: Members,
    mesh: Mesh | None,
) -> tuple[Any, Counts, dict[str, Array]]:
    trainer, agents, env, num_steps, key = kept
    # Folded rather than split: the same key is used at every generation.
    keys = jax.vmap(lambda index: jr.fold_in(key, index))(jnp.arange(size_of(states)))

    def run_share(stacked: Any, shared: Any) -> tuple[Any, Counts]:
        env, counts, num_steps = shared

        def run(
            agent: Any, state: Any, key: PRNGKeyArray
        ) -> tuple[Any, Counts, Metrics]:
            return trainer.run(
                agent,
                env,
                state,
                counts,
                num_steps=num_steps,
                key=key,
                alone=members == "in_turn",
            )

        run_all = _run_together if members == "together" else _run_in_turn
        states, counts, metrics = run_all(run, *stacked)
        return (states, metrics), counts

    (states, metrics), counts = on_each_device(
        run_share, mesh, (agents, states, keys), (env, counts, num_steps)
    )
    return states, counts, metrics


_RunOne = Callable[[Any, Any, PRNGKeyArray], tuple[Any, Counts, Metrics]]


def _run_together(
    run: _RunOne, agents: Any, states: Any, keys: Key[Array, " population"]
) -> tuple[Any, Counts, dict[str, Array]]:
    out_axes = (eqx.if_array(0), None, eqx.if_array(0))
    return eqx.filter_vmap(run, out_axes=out_axes)(agents, states, keys)


def _run_in_turn(
    run: _RunOne, agents: Any, states: Any, keys: Key[Array, " population"]
) -> tuple[Any, Counts, dict[str, Array]]:
    """One member after another, each written back to where it was taken from."""
    arrays, static = eqx.partition(states, eqx.is_array)
    agent_arrays, agent_static = eqx.partition(agents, eqx.is_array)

    def one(index: Int[Array, ""], arrays: PyTree) -> tuple[Any, Counts, Metrics]:
        agent_of, state_of = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False),
            (agent_arrays, arrays),
        )
        return run(
            eqx.combine(agent_of, agent_static),
            eqx.combine(state_of, static),
            keys[index],
        )

    def body(arrays: PyTree, index: Int[Array, ""]) -> tuple[PyTree, Any]:
        state, counts, metrics = one(index, arrays)
        arrays = jax.tree.map(
            lambda x, y: lax.dynamic_update_index_in_dim(x, y, index, axis=0),
            arrays,
            eqx.filter(state, eqx.is_array),
        )
        return arrays, (counts, metrics)

    arrays, (counts, metrics) = lax.scan(body, arrays, jnp.arange(size_of(states)))
    counts = jax.tree.map(lambda x: x[0], counts)
    return eqx.combine(arrays, static), counts, metrics


@eqx.filter_jit
def _evaluate(
    agents: Any,
    states: Any,
    env: AbstractEnv[Any],
    key: PRNGKeyArray,
    num_episodes: int,
    descriptor: Descriptor | None,
    score: Score,
    mesh: Mesh | None,
) -> tuple[Evaluation, Float[Array, " population"]]:
    def evaluate_share(stacked: Any, env: AbstractEnv[Any]) -> tuple[Any, None]:
        def evaluate_one(
            agent: Any, state: TrainerState[Any, Any, Any, Any], key: PRNGKeyArray
        ) -> tuple[Evaluation, Float[Array, ""]]:
            evaluation = evaluate(
                agent,
                state.agent,
                env,
                num_episodes=num_episodes,
                key=key,
                descriptor=descriptor,
            )
            value = score(agent, state.agent, evaluation)
            return evaluation, jnp.where(state.failed, jnp.nan, value)

        return eqx.filter_vmap(evaluate_one)(*stacked), None

    keys = jr.split(key, size_of(states))
    result, _ = on_each_device(evaluate_share, mesh, (agents, states, keys), env)
    return result


@eqx.filter_jit(donate="all-except-first")
def _exploit(
    kept: tuple[PBT, Float[Array, " population"], PRNGKeyArray],
    agents: Any,
    states: Any,
) -> tuple[Any, Any, Int[Array, " population"]]:
    pbt, scores, key = kept
    return pbt.exploit(agents, states, scores, key=key)
