"""Spaces of actions, and what an environment says of them."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl import EnvSpec
from eqrl.nn import ClippedNormal, EpsilonGreedy, Softmax, TanhNormal
from eqrl.spaces import AbstractActionSpace, Box, Discrete

from ..agents_under_test import diayn, discrete_sac, dqn, pqn, sac, taac, td3
from ..probe import Probe
from ..toy import Idle


def test_actions_are_drawn_uniformly_from_all() -> None:
    keys = jr.split(jr.key(0), 3000)
    box, discrete = Box(2), Discrete(np.int64(3))
    vectors = np.asarray(jax.vmap(lambda key: box.sample(key=key))(keys))
    choices = np.asarray(jax.vmap(lambda key: discrete.sample(key=key))(keys))
    assert (vectors.shape[1:], vectors.dtype) == (box.struct.shape, box.struct.dtype)
    # Deciles, each of which a tenth of the numbers lies in.
    counts, _ = np.histogram(vectors, bins=10, range=(-1, 1))
    assert counts.sum() == 6000 and np.all(np.abs(counts - 600) < 100)
    assert (choices.shape[1:], choices.dtype) == ((), discrete.struct.dtype)
    assert np.all(np.abs(np.bincount(choices, minlength=3) - 1000) < 130)
    assert (box.num_outputs, discrete.num_outputs) == (2, 3)


def test_a_spec_is_given_a_size_or_a_space() -> None:
    spec = EnvSpec(np.int64(4), np.int64(2))
    assert type(spec.observation_size) is type(spec.action_size) is int
    assert spec == EnvSpec(observation_size=4, action=Box(2))
    assert spec.action_size == 2
    assert hash(spec) == hash(EnvSpec(4, action=Box(2)))
    assert dataclasses.replace(spec, max_steps=7) == EnvSpec(4, 2, max_steps=7)
    choices = EnvSpec(12, action=Discrete(3), observation_shape=(2, 2, 3))
    listed = EnvSpec(12, action=Discrete(3), observation_shape=[2, 2, 3])
    assert listed == choices and hash(listed) == hash(choices)
    assert choices.action == Discrete(3) != Discrete(2)
    with pytest.raises(ValueError, match=r"`spec.action=Discrete.*no `action_size`"):
        _ = choices.action_size


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "Neither of `action_size` and `action`"),
        ({"action_size": 2, "action": Box(2)}, "Both of `action_size` and `action`"),
        ({"action_size": 0}, "`action_size=0` must be at least 1"),
        ({"action_size": True}, "`action_size` is a bool"),
        ({"action_size": 2, "observation_shape": (2, 2, 2)}, "has 8 elements"),
        ({"action_size": 2, "observation_shape": (-2, -2)}, "`observation_shape=-2`"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_spec_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EnvSpec(observation_size=4, **arguments)


@pytest.mark.parametrize("make", [Box, Discrete])
@pytest.mark.parametrize("size", [0, -1, True])
def test_an_empty_space_is_refused(make: Any, size: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make(size)


def test_an_agent_that_does_not_fit_says_which_do() -> None:
    choices, vectors = EnvSpec(4, action=Discrete(2)), EnvSpec(4, 2)
    for agent, name in ((sac(), "SAC"), (td3(), "TD3"), (taac(), "TAAC")):
        message = rf"`{name}` picks.*`Box`.*Discrete\(num_actions=2\)`; use `eqrl.DQN`"
        with pytest.raises(ValueError, match=message):
            agent.init(choices, key=jr.key(0))
    discrete = ((dqn(), "DQN"), (discrete_sac(), "DiscreteSAC"), (pqn(), "PQN"))
    for agent, name in discrete:
        message = rf"`{name}` picks.*`Discrete`.*use `eqrl.SAC`"
        with pytest.raises(ValueError, match=message):
            agent.init(vectors, key=jr.key(0))


def test_an_agent_of_no_library_may_have_a_space_of_its_own() -> None:
    class Both(AbstractActionSpace):
        @property
        def struct(self) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((2,), jnp.result_type(int))

        @property
        def num_outputs(self) -> int:
            return 4

        def sample(self, *, key: Any) -> Any:
            return jr.randint(key, (2,), 0, 2)

    with pytest.raises(ValueError, match="write an agent of your own"):
        sac().init(EnvSpec(4, action=Both()), key=jr.key(0))


def test_a_distribution_knows_its_space() -> None:
    zeros = jnp.zeros(3)
    for distribution, space in (
        (TanhNormal(zeros, zeros), Box(3)),
        (ClippedNormal(zeros, jnp.ones(())), Box(3)),
        (Softmax(zeros), Discrete(3)),
        (EpsilonGreedy(zeros, jnp.ones(())), Discrete(3)),
    ):
        assert distribution.space == space
        for action in (distribution.mode(), distribution.sample(key=jr.key(0))):
            assert (action.shape, action.dtype) == (
                space.struct.shape,
                space.struct.dtype,
            )


def test_choices_are_drawn_with_their_probabilities() -> None:
    keys = jr.split(jr.key(0), 4000)
    softmax = Softmax(jnp.log(jnp.array([0.5, 0.2, 0.3])))
    np.testing.assert_allclose(jnp.exp(softmax.log_probs()), [0.5, 0.2, 0.3], rtol=1e-6)
    # The best keeps its share of the random ones: 1 - 0.3 + 0.1.
    greedy = EpsilonGreedy(jnp.array([1.0, 3.0, 3.0]), jnp.asarray(0.3))
    assert (int(softmax.mode()), int(greedy.mode())) == (0, 1)
    for distribution, expected in (
        (softmax, [0.5, 0.2, 0.3]),
        (greedy, [0.1, 0.8, 0.1]),
    ):
        drawn = jax.vmap(lambda key, of=distribution: of.sample(key=key))(keys)
        found = np.bincount(np.asarray(drawn), minlength=3) / 4000
        np.testing.assert_allclose(found, expected, atol=0.03)


def test_an_action_of_another_type_is_refused() -> None:
    class Floating(Idle):
        """Gives a float where an integer is asked for."""

        def act(self, *args: Any, **options: Any) -> tuple[Any, None, None]:
            return jnp.zeros(()), None, None

    with pytest.raises(ValueError, match=r"type float32.*Discrete.*type int32"):
        eqrl.Trainer(batch_size=2, warmup_steps=2, capacity=4).init(
            Floating(), Probe(num_choices=2), key=jr.key(0)
        )


def test_a_skill_behind_an_image_makes_a_vector() -> None:
    spec = EnvSpec(12, action=Discrete(3), observation_shape=(2, 2, 3))
    agent = diayn(dqn(), descriptor="observation")
    state = eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))
    # Three one-hot skills are behind the twelve numbers.
    assert state.agent.network.layers[0].weight.shape[0] == 15


def test_choices_have_no_elements_to_disable() -> None:
    with pytest.raises(ValueError, match="`DisabledActions` needs"):
        eqrl.envs.DisabledActions(Probe(num_choices=2), [0])


def test_a_choice_is_exported_as_an_integer(tmp_path: Path) -> None:
    agent, spec = dqn(hidden_sizes=(4,)), EnvSpec(2, action=Discrete(3))
    state = agent.init(spec, key=jr.key(0))
    eqrl.export_policy(tmp_path / "choice.policy", agent, state, spec)
    policy = eqrl.load_policy(tmp_path / "choice.policy")
    observation = np.array([0.3, -2.0], np.float32)
    action = policy.act(observation)
    assert (action.shape, action.dtype.kind) == ((), "i")
    assert action == np.argmax(state.network(jnp.asarray(observation)))
    # As many choices as the agent has.
    fewer = EnvSpec(2, action=Discrete(2))
    with pytest.raises(ValueError, match=r"not that of a DQN.*num_actions=2"):
        eqrl.export_policy(tmp_path / "x", agent, state, fewer)
