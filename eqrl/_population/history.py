from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree, Shaped

from .._training.replay import Counts


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


class Row(eqx.Module):
    """What is kept of one generation; each array has a leading axis `population`."""

    returns: Any
    descriptors: Any
    hyperparameters: dict[str, Any]
    parents: Any
    metrics: dict[str, Any]


def make_solution(
    rows: list[Row], agents: Any, states: Any, counts: Counts
) -> PopulationSolution:
    """Puts together what was reached and the rows of all generations so far."""
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
