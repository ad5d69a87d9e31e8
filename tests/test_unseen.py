"""Small claims that no other test would miss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import eqrl
from eqrl._interaction.evaluate import Evaluation
from eqrl._interaction.evaluate_skills import mean_return
from eqrl._training.evaluations import evaluate_members
from eqrl._training.iteration import all_finite
from eqrl._training.mesh import naming_lost_processes

from .toy import Drift, GetKey, Learner, random_transitions


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
    env = Drift(max_steps=2)
    state = Learner().init(env.spec, key=getkey())
    agents, states = jax.tree.map(lambda x: np.stack([x, x]), (Learner(), state))
    evaluation, scores = evaluate_members(
        agents,
        states,
        jnp.array([False, True]),
        env,
        getkey(),
        1,
        None,
        lambda agent, state, evaluation: jnp.mean(evaluation.returns),
        "together",
        None,
    )
    assert np.all(np.isfinite(evaluation.returns))
    assert np.isnan(scores).tolist() == [False, True]
    # Equal members, who play episodes of their own.
    assert evaluation.returns[0] != evaluation.returns[1]


def test_the_default_score_is_the_mean() -> None:
    returns = jnp.array([0.0, 1.0, 11.0])
    evaluation = Evaluation(returns=returns, lengths=jnp.ones(3, int), descriptors=None)
    assert mean_return(None, None, evaluation) == 4.0


def test_the_best_is_that_of_the_highest_mean_without_a_bad_episode() -> None:
    returns = np.array([[9.0, 0, 0], [2, 2, 2], [1, 1, 1], [0, 0, np.inf]])
    assert eqrl.best(jnp.arange(4), returns) == 0
    assert eqrl.best(jnp.arange(4), returns[:, 1:]) == 1


def test_a_process_that_is_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    device = np.array(jax.devices()[:1])
    # JAX keeps one mesh of each kind, and what it said of itself.
    alone, mesh = Mesh(device, ("alone",)), Mesh(device, ("one of several",))
    lost = jax.errors.JaxRuntimeError("UNAVAILABLE: connection closed\nmore")
    # On its own, it is another error.
    with pytest.raises(jax.errors.JaxRuntimeError), naming_lost_processes(alone):
        raise lost
    monkeypatch.setattr(Mesh, "is_multi_process", True)
    message = r"Process 0 of 1 cannot continue.*connection closed Start all"
    with pytest.raises(RuntimeError, match=message), naming_lost_processes(mesh):
        raise lost
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
    with pytest.raises(jax.errors.JaxRuntimeError), naming_lost_processes(mesh):
        raise full
