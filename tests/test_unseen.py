"""Small claims that no other test would miss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqrl._population.evaluation import evaluate_members
from eqrl._training.metrics import all_finite
from eqrl.envs import Point

from .toy import Compass, GetKey, random_transitions


finite = jax.jit(all_finite)


@pytest.mark.parametrize("field", ["observation", "reward"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_wherever_it_is(
    getkey: GetKey, field: str, value: float
) -> None:
    batch = random_transitions(getkey(), 3, observation_size=2, action_size=2)
    arrays = [batch.reward, getattr(batch, field)]
    assert finite(*arrays)
    spoiled = np.array(arrays[1])
    spoiled.reshape(-1)[-1] = value
    assert not finite(arrays[0], jnp.asarray(spoiled))


def test_a_member_that_failed_has_no_score(getkey: GetKey) -> None:
    evaluation, scores = evaluate_members(
        Compass(),
        jnp.zeros(2),
        jnp.array([False, True]),
        Point(max_steps=2, goal=(0.3, 0.1)),
        getkey(),
        1,
        None,
        lambda agent, state, evaluation: jnp.mean(evaluation.returns),
        "together",
        None,
    )
    assert np.all(np.isfinite(evaluation.returns))
    assert np.isnan(scores).tolist() == [False, True]
