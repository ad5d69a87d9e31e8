from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from typing_extensions import TypeVar

from .._training.iteration import UnfinishedRow
from .._training.schedule import Counts
from .._training.trainer import TrainerState
from .._types.custom_types import PyTree, State


Agents = TypeVar("Agents", default=Any)

if TYPE_CHECKING:
    _TrainerStates: TypeAlias = TrainerState[State, Any, Any, Any]
else:
    # A history is drawn without a look at the states.
    _TrainerStates = Annotated[State, "of its trainer"]


class UnfinishedGeneration(eqx.Module):
    """A generation in progress, from which an interrupted training resumes."""

    row: UnfinishedRow
    parents: Int[np.ndarray | Array, " population"]
    num_steps: Int[np.ndarray | Array, ""]


UnfinishedGeneration.__init__.__doc__ = """**Arguments:**

- `row`: a stack of those of the members.
- `parents`: as in `PopulationSolution`, of this generation.
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
    metrics: dict[str, Shaped[np.ndarray, "_ _"]]
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
- `returns`: of each generation, member and episode.
- `descriptors`: likewise, if `descriptor` was given, else `None`.
- `hyperparameters`: by name, the value with which each member of each generation
    trained.
- `parents`: the index of the member from which each member was copied before each
    generation; its own index if it was kept, as all are in the first.
- `metrics`: by name, of each generation and member.
- `scores`: by which members were ranked in each generation; `nan` if a member met
    something that was not finite.
- `unfinished`: where training was interrupted within a generation, what that consists
    of so far; `None` between two.
"""


class Row(eqx.Module):
    """The history of one generation; each array has a leading axis `population`."""

    returns: PyTree
    descriptors: PyTree
    hyperparameters: PyTree
    parents: PyTree
    metrics: PyTree
    scores: PyTree


def make_solution(
    rows: list[Row],
    shapes: Row,
    agents: PyTree,
    states: PyTree,
    counts: Counts,
    unfinished: UnfinishedGeneration | None,
) -> PopulationSolution:
    """Assembles a solution from the rows of all generations so far.

    `shapes` are those of one row, since there may be none yet.
    """
    history = jax.tree.map(
        lambda like, *leaves: np.array(leaves, like.dtype).reshape(
            len(leaves), *like.shape
        ),
        shapes,
        *rows,
    )
    return PopulationSolution(
        agents=agents,
        trainer_states=states,
        counts=counts,
        returns=history.returns,
        descriptors=history.descriptors,
        hyperparameters=history.hyperparameters,
        parents=history.parents,
        metrics=history.metrics,
        scores=history.scores,
        unfinished=unfinished,
    )


def rows_of(solution: PopulationSolution) -> list[Row]:
    """The rows of all generations of a solution, which `make_solution` assembles."""
    history = Row(
        returns=solution.returns,
        descriptors=solution.descriptors,
        hyperparameters=solution.hyperparameters,
        parents=solution.parents,
        metrics=solution.metrics,
        scores=solution.scores,
    )
    return [
        jax.tree.map(lambda x, index=index: x[index], history)
        for index in range(solution.parents.shape[0])
    ]


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
    """The best member of the last generation; the first if all failed."""
    return int(np.argmax(np.where(np.isnan(scores[-1]), -np.inf, scores[-1])))


def ancestors_of(
    member: int, parents: Int[np.ndarray, "generations population"]
) -> Int[np.ndarray, " generations"]:
    """The ancestor, in each generation, of a member of the last one."""
    line = [member]
    for row in parents[:0:-1]:
        line.append(int(row[line[-1]]))
    return np.array(line[::-1])
