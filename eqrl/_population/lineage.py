import numpy as np
from jaxtyping import Float, Int

from .history import PopulationSolution


def scores_of(
    population: PopulationSolution, scores: Float[np.ndarray, "_ _"] | None
) -> Float[np.ndarray, "generations population"]:
    """What to tell better members by: the given scores, or the mean returns.

    `nan` where a member of a generation has none that is finite, and, of mean returns,
    where it has met an observation, an action or a reward that was not finite.
    """
    shape = population.parents.shape
    if scores is None and population.returns.ndim != 3:
        raise ValueError(
            "The returns of `population` are vectors, so `scores` is needed: one "
            f"number for each generation and member, of shape {shape}."
        )
    if scores is None:
        # Returns of which some are infinite have no mean.
        finite = np.all(np.isfinite(population.returns), axis=2)
        means = np.where(finite[..., None], population.returns, np.nan).mean(axis=2)
        failed = population.metrics.get("nonfinite", np.zeros(shape)) > 0
        given = np.where(failed, np.nan, means)
    else:
        given = scores
    if given.shape != shape:
        raise ValueError(
            f"`scores` has shape {given.shape}, but `population` has {shape[0]} "
            f"generations of {shape[1]} members."
        )
    return np.where(np.isfinite(given), given, np.nan)


def winner_of(scores: Float[np.ndarray, "generations population"]) -> int:
    """The best of the last generation; the first where all failed."""
    return int(np.argmax(np.where(np.isnan(scores[-1]), -np.inf, scores[-1])))


def ancestors_of(
    member: int, parents: Int[np.ndarray, "generations population"]
) -> Int[np.ndarray, " generations"]:
    """Which member of each generation a member of the last one goes back to."""
    line = [member]
    for row in parents[:0:-1]:
        line.append(int(row[line[-1]]))
    return np.array(line[::-1])
