"""Members of a population, and the history of its generations."""

import dataclasses
import operator
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, overload

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Real, Shaped

from .._pytree.fields import converted
from .._pytree.tree import check_stack, parts, stack_size, take_element
from .._training.iteration import UnfinishedRow
from .._training.mesh import (
    from_owner,
    gather,
    mesh_of_processes,
    on_each_device,
    place_in_share,
    replicate,
)
from .._training.replay import ReplayState, first_held, transitions_at
from .._training.rows import Solution
from .._training.schedule import Counts, rows_so_far
from .._training.trainer import TrainerState
from .._types.custom_types import (
    Agents,
    EnvState,
    Extras,
    Memory,
    PyTree,
    State,
    Tree,
)
from .._types.data import Transition
from .._types.stacked import Stacked


if TYPE_CHECKING:
    # Only a value of unknown type can be passed for it.
    from typing import Never as _Unknown

    _TrainerStates: TypeAlias = TrainerState[State, Any, Any, Any]
else:
    _Unknown = object
    # Drawing a history does not need the states.
    _TrainerStates = Annotated[State, "of its trainer"]


class UnfinishedGeneration(eqx.Module):
    """A generation in progress, where an interrupted training resumes."""

    row: UnfinishedRow
    parents: Int[np.ndarray | Array, " population"]
    num_steps: Int[np.ndarray | Array, ""]


UnfinishedGeneration.__init__.__doc__ = """**Arguments:**

- `row`: a stack of the members' rows.
- `parents`: as in `PopulationSolution`, for this generation.
- `num_steps`: environment steps of each member in it.
"""


class PopulationSolution(eqx.Module, Generic[State, Agents]):
    """The members of a population after training, and its history."""

    agents: Agents
    trainer_states: _TrainerStates[State]
    counts: Counts
    returns: Shaped[np.ndarray, "generations population episodes ..."]
    descriptors: PyTree
    hyperparameters: dict[str, Shaped[np.ndarray, "_ _"]]
    parents: Shaped[np.ndarray, "generations population"]
    metrics: dict[str, Shaped[np.ndarray, "_ ..."]]
    scores: Float[np.ndarray, "generations population"]
    unfinished: UnfinishedGeneration | None = None

    @property
    def states(self) -> State:
        """The stack of the agents' states."""
        return self.trainer_states.agent


PopulationSolution.__init__.__doc__ = """**Arguments:**

- `agents`: a stack, with the hyperparameters of the last generation.
- `trainer_states`: a stack of agents' states, environments and replays.
- `counts`: progress counters, the same for all members.
- `returns`: the return of each generation, member and episode.
- `descriptors`: likewise, if `descriptor` was given, else `None`.
- `hyperparameters`: by name, the value with which each member of each generation
    trained, for those that `pbt` tunes, or without it for those that differ.
- `parents`: the index of the member that each member was copied from before each
    generation; its own index if it was kept, as all are in the first.
- `metrics`: by name, for each generation and member: those of the agent, and
    `evaluation_return` and `evaluation_length`, means over the greedy episodes; a
    vector of rewards has `evaluation_return_0` and so on. `step` has one number for
    each generation, the environment steps of each member at its end.
- `scores`: the scores that ranked the members in each generation; `nan` if a member met
    a value that was not finite.
- `unfinished`: if training was interrupted within a generation, that generation so far;
    `None` between two generations.
"""


PopulationHistory = dict[str, PyTree]
"""The fields of a `PopulationSolution` that grow by a row in each generation."""

_HISTORY = (
    "returns",
    "descriptors",
    "hyperparameters",
    "parents",
    "metrics",
    "scores",
)


def history_of(solution: PopulationSolution) -> PopulationHistory:
    """The history of a solution, by the names of its fields."""
    return {name: getattr(solution, name) for name in _HISTORY}


def append_generation(
    history: PopulationHistory, row: PopulationHistory
) -> PopulationHistory:
    """A copy of `history` with one more generation."""
    return jax.tree.map(
        lambda earlier, new: np.concatenate(
            [earlier, np.asarray(new, earlier.dtype)[None]]
        ),
        history,
        row,
    )


def scores_of(
    population: PopulationSolution, scores: Float[np.ndarray, "_ _"] | None
) -> Float[np.ndarray, "generations population"]:
    """The given scores, or else those that ranked the members.

    A score that is not finite is `nan`.
    """
    shape = population.parents.shape
    given = population.scores if scores is None else scores
    if given.shape != shape:
        raise ValueError(
            f"`scores` has shape {given.shape}, but `population` has {shape[0]} "
            f"generations of {shape[1]} members."
        )
    return np.where(np.isfinite(given), given, np.nan)


def are_mean_returns(
    population: PopulationSolution,
    scores: Float[np.ndarray, "generations population"],
) -> bool:
    """Whether the scores are the mean returns."""
    if population.returns.ndim != 3:
        # Vectors of rewards have no single mean.
        return False
    known = ~np.isnan(scores)
    means = population.returns[known].mean(axis=-1)
    return bool(np.allclose(means, scores[known]))


def winner_of(scores: Float[np.ndarray, "generations population"]) -> int:
    """The best member of the last generation; the first if all failed.

    Raises a `ValueError` if no generation has been evaluated.
    """
    if len(scores) == 0:
        raise ValueError(
            "The population has not been evaluated yet, so no member is the best; "
            "resume it with `initial`, or take one by `eqrl.member(solution, 0)`."
        )
    return int(np.argmax(np.where(np.isnan(scores[-1]), -np.inf, scores[-1])))


def ancestors_of(
    member: int, parents: Int[np.ndarray, "generations population"]
) -> Int[np.ndarray, " generations"]:
    """The ancestor, in each generation, of a member of the last one."""
    line = [member]
    for row in parents[:0:-1]:
        line.append(int(row[line[-1]]))
    return np.array(line[::-1])


# If the type of a stack is unknown, so is the type of a member.
@overload
def member(stack: _Unknown, index: int | np.integer | Int[Array, ""]) -> Any: ...


@overload
def member(
    stack: PopulationSolution[State, Agents], index: int | np.integer | Int[Array, ""]
) -> tuple[Agents, State]: ...


@overload
def member(
    stack: Stacked[Tree, "population"], index: int | np.integer | Int[Array, ""]
) -> Tree: ...


def member(stack: Any, index: int | np.integer | Int[Array, ""]) -> Any:
    """Takes one member out of a population or of any stack.

    **Arguments:**

    - `stack`: a `PopulationSolution`; or a stack, every array of which has a leading
        axis `population`.
    - `index`: the member, from 0.

    **Returns:**

    For a `PopulationSolution`, the agent and the agent's state; for a stack, that
    member, without the axis, on one device. If the stack is sharded over several
    processes, all of them must take the same member, and each gets its own copy.

    Raises a `ValueError` if `stack` is not a stack, or has no such member.
    """
    if isinstance(stack, PopulationSolution):
        stack = (stack.agents, stack.states)
    if isinstance(stack, Solution):
        raise ValueError(
            "`stack` is a `Solution`, whose counts are not stacked; take the state of "
            f"a seed, `eqrl.member(solution.state, {index})`."
        )
    check_stack("stack", stack)
    size, mesh = stack_size(stack), mesh_of_processes(stack)
    # A compiled program cannot check its indices.
    if not isinstance(index, jax.core.Tracer):
        index = converted("index", operator.index, index, "must be an integer.")
        if not -size <= index < size:
            raise ValueError(
                f"`index={index}` must be from -{size} to {size - 1}: there are {size} "
                "members."
            )
    if mesh is None:
        return gather(take_element(stack, index))
    place = replicate(jnp.asarray(index % size, int), mesh)
    return jax.tree.map(
        lambda x: x.addressable_data(0) if eqx.is_array(x) else x,
        _replicated_member(stack, place, mesh),
    )


def stored_transitions(
    solution: Solution[State, EnvState, Memory, Extras] | PopulationSolution,
) -> Transition[Extras]:
    """All transitions that the replay of a solution holds.

    To learn from them, concatenate the rows of all environments:

    ```python
    stored = eqrl.stored_transitions(solution)
    data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stored)
    learned = eqrl.train_offline(agent, data, env.spec, num_updates=1_000, key=key)
    ```

    An agent that learns from several steps in a row also needs the rows of each
    environment to end: set `truncated` in the last one unless it terminates.

    **Arguments:**

    - `solution`: from `train`, `train_seeds` or `train_population`. Its replay must be
        an `eqrl.ReplayBuffer`, or another with the same kind of state.

    **Returns:**

    Transitions with the axes `(envs, rows)`, the oldest row first, each with its true
    successor. If observations are large, these are only the rows whose successor every
    environment, seed and member still has (see `eqrl.ReplayBuffer`). For several seeds
    or members they are a stack: `eqrl.member(transitions, index)` takes those of one.

    Raises a `ValueError` if there is no such replay, as for `eqrl.PPO`, or if a seed or
    member diverged.
    """
    is_population = isinstance(solution, PopulationSolution)
    state = solution.trainer_states if is_population else solution.trainer_state
    rings = parts(state.replay, ReplayState)
    if len(rings) != 1 or rings[0].is_rollout:
        raise ValueError(
            f"The replay of `solution`, a {type(state.replay).__name__}, holds no past "
            "transitions (agents such as `eqrl.PPO` keep none); what a replay of your "
            "own holds is in `solution.trainer_state.replay`."
        )
    ring, counts = rings[0], solution.counts
    # Before the axes of environments and rows there may be one of seeds or members.
    axes = ring.data.timestep.shape[:-2]
    written = jnp.broadcast_to(rows_so_far(counts), axes)
    if ring.frames is not None:
        written = ring.frames.written
    elif axes and np.any(state.failed):
        raise ValueError(
            f"Seeds or members {np.flatnonzero(state.failed).tolist()} diverged, so "
            "their replays hold fewer transitions than were counted; train without "
            "them."
        )

    def number_held(
        ring: ReplayState[Transition[Extras]], written: Int[Array, ""]
    ) -> Int[Array, ""]:
        after = dataclasses.replace(counts, rows_written=written, rows_kept=0 * written)
        return jnp.min(written - first_held(ring, after))

    def take(
        ring: ReplayState[Transition[Extras]], written: Int[Array, ""]
    ) -> Transition[Extras]:
        env = jnp.arange(ring.data.timestep.shape[0])[:, None]
        return transitions_at(ring, env, written + ages[None])

    for _ in axes:
        number_held, take = jax.vmap(number_held), jax.vmap(take)
    ages = jnp.arange(-int(np.min(number_held(ring, written))), 0)
    return take(ring, written)


@overload
def best(
    stack: _Unknown, returns: Real[Array | np.ndarray, "population ..."]
) -> Any: ...


@overload
def best(
    stack: PopulationSolution[State, Agents],
    returns: Real[Array | np.ndarray, "population ..."] | None = None,
) -> tuple[Agents, State]: ...


@overload
def best(
    stack: Stacked[Tree, "population"],
    returns: Real[Array | np.ndarray, "population ..."],
) -> Tree: ...


def best(
    stack: Any, returns: Real[Array | np.ndarray, "population ..."] | None = None
) -> Any:
    """Takes the member with the highest score, or the highest mean return.

    **Arguments:**

    - `stack`: a `PopulationSolution`; or a stack, every array of which has a leading
        axis `population`.
    - `returns`: one or several scores or returns of each member, which are averaged;
        of a `PopulationSolution` by default its scores. A member with a value that is
        not finite is chosen only if all members have one.

    **Returns:**

    For a `PopulationSolution`, an agent and its state, by default those that were
    ranked best in the last generation; for a stack, that member, without the axis.

    Raises a `ValueError` unless `returns` has one row for each member, or the
    `PopulationSolution` has a generation that was evaluated.
    """
    if isinstance(stack, PopulationSolution):
        members = (stack.agents, stack.states)
        if returns is None:
            return member(members, winner_of(scores_of(stack, None)))
        stack = members
    if returns is None:
        raise ValueError(
            "`returns` is needed to choose from a stack; only a `PopulationSolution` "
            "holds its scores."
        )
    check_stack("stack", stack)
    size = stack_size(stack)
    if jnp.shape(returns)[:1] != (size,):
        raise ValueError(
            f"`returns` has the shape {jnp.shape(returns)}, but `stack` has {size} "
            "members: the first axis must be theirs. Of the history of a "
            "`PopulationSolution`, take one generation, as `solution.returns[-1]`."
        )
    means = jnp.mean(jnp.asarray(returns, float).reshape(size, -1), axis=1)
    return member(stack, jnp.argmax(jnp.where(jnp.isfinite(means), means, -jnp.inf)))


@eqx.filter_jit
def _replicated_member(
    stack: Stacked[Tree, "population"], index: Int[Array, ""], mesh: Mesh
) -> Tree:
    def take_share(share: PyTree, index: Int[Array, ""]) -> tuple[None, PyTree]:
        place, owned = place_in_share(index, stack_size(share), mesh)
        return None, jax.tree.map(
            lambda x: from_owner(x[place], owned, mesh) if eqx.is_array(x) else x, share
        )

    _, taken = on_each_device(take_share, mesh, stack, index)
    return taken
