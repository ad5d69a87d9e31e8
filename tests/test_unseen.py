"""Small claims that no other test would miss."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from eqrl._training.metrics import all_finite

from .toy import GetKey, random_transitions


@pytest.mark.parametrize(
    "field", ["observation", "action", "reward", "next_observation"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_wherever_it_is(
    getkey: GetKey, field: str, value: float
) -> None:
    batch = random_transitions(getkey(), 3, observation_size=2, action_size=2)
    assert all_finite(batch)
    array = getattr(batch, field)
    spoiled = array.reshape(-1).at[-1].set(jnp.asarray(value)).reshape(array.shape)
    assert not all_finite(dataclasses.replace(batch, **{field: spoiled}))
