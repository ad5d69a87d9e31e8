"""What is reported on."""

import jax.numpy as jnp
import numpy as np

import eqrl


def population(
    returns: np.ndarray,
    parents: np.ndarray,
    *,
    scores: np.ndarray,
    **hyperparameters: np.ndarray,
) -> eqrl.PopulationSolution:
    """A population as far as reports look at it: without its members."""
    zero = jnp.zeros((), int)
    return eqrl.PopulationSolution(
        agents=None,
        trainer_states=None,  # pyright: ignore[reportArgumentType]
        counts=eqrl.Counts(zero, zero, zero),
        returns=returns,
        descriptors=None,
        hyperparameters=hyperparameters,
        parents=parents,
        metrics={},
        scores=scores,
    )
