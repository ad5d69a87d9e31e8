import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float

from eqrl import Evaluation, Mode, Transition, evaluate, rollout
from eqrl.envs import AbstractEnv
from tests.toy import Clock, Drift, GetKey, Scribe


pytestmark = pytest.mark.checks_keys

_NUM_EPISODES = 16
_LONGEST = 4


def _evaluate(env: AbstractEnv, getkey: GetKey, **options: Any) -> Evaluation:
    agent = Scribe()
    state = agent.init(env.spec, key=getkey())
    return evaluate(
        agent,
        state,
        env,
        num_episodes=_NUM_EPISODES,
        key=getkey(),
        **options,
    )


def _first_length(
    transitions: Transition, mask: Bool[Array, " time"]
) -> Float[Array, ""]:
    """What the first observation of an episode says of its length."""
    del mask
    return transitions.observation[0, 1]


def _num_steps_in_mask(
    transitions: Transition, mask: Bool[Array, " time"]
) -> dict[str, Array]:
    return {
        "steps": jnp.sum(mask),
        "of_this_episode": jnp.all(
            mask == (transitions.observation[:, 0] < transitions.observation[0, 1])
        ),
    }


_MODES: tuple[dict[str, Any], ...] = (
    {},
    {"mode": "sample"},
    {"mode": "sample", "descriptor": _first_length},
)


class TestEvaluate:
    @pytest.mark.parametrize("terminates", [True, False])
    def test_an_episode_counts_once_and_to_its_end(
        self, terminates: bool, getkey: GetKey
    ) -> None:
        # An episode of n steps is worth 1 + 2 + ... + n, what comes after it 1000 each.
        evaluation = _evaluate(Clock(terminates=terminates), getkey)
        worth = {1: 1.0, 2: 3.0, 3: 6.0, 4: 10.0}
        lengths = np.asarray(evaluation.lengths).tolist()
        assert set(lengths) == {1, 2, 3, 4}
        expected = [worth[length] for length in lengths]
        np.testing.assert_array_equal(evaluation.returns, expected)

    def test_lengths_are_those_of_the_environment(self, getkey: GetKey) -> None:
        evaluation = _evaluate(Clock(), getkey, descriptor=_first_length)
        np.testing.assert_array_equal(evaluation.lengths, evaluation.descriptors)

    def test_max_steps_cuts_the_episodes(self, getkey: GetKey) -> None:
        evaluation = _evaluate(Clock(), getkey, max_steps=2)
        lengths = np.asarray(evaluation.lengths)
        assert set(lengths.tolist()) == {1, 2}
        np.testing.assert_array_equal(evaluation.returns, np.where(lengths == 1, 1, 3))

    def test_without_a_limit_max_steps_must_be_given(self, getkey: GetKey) -> None:
        env = Clock(has_limit=False)
        with pytest.raises(ValueError, match=r"no time limit.*give `max_steps`"):
            _evaluate(env, getkey)
        evaluation = _evaluate(env, getkey, max_steps=50)
        assert set(np.asarray(evaluation.lengths).tolist()) == {1, 2, 3, 4}

    @pytest.mark.parametrize("descriptor", [None, _first_length])
    def test_vector_rewards_give_a_row_of_returns_an_episode(
        self, descriptor: object, getkey: GetKey
    ) -> None:
        evaluation = _evaluate(Clock(reward_size=2), getkey, descriptor=descriptor)
        lengths = np.asarray(evaluation.lengths)
        expected = np.stack([lengths * (lengths + 1) / 2, -2.0 * lengths], axis=1)
        np.testing.assert_array_equal(evaluation.returns, expected)

    def test_descriptor_gets_the_mask_of_its_own_episode(self, getkey: GetKey) -> None:
        evaluation = _evaluate(Clock(), getkey, descriptor=_num_steps_in_mask)
        np.testing.assert_array_equal(
            evaluation.descriptors["steps"], evaluation.lengths
        )
        assert np.all(evaluation.descriptors["of_this_episode"])

    def test_returns_are_those_of_the_mode_with_and_without_a_descriptor(
        self, getkey: GetKey
    ) -> None:
        agent, env, key = Scribe(), Drift(), getkey()
        state = agent.init(env.spec, key=getkey())
        greedy, without, given = (
            evaluate(
                agent,
                state,
                env,
                num_episodes=_NUM_EPISODES,
                key=key,
                **options,
            )
            for options in _MODES
        )
        np.testing.assert_array_equal(without.lengths, given.lengths)
        np.testing.assert_allclose(without.returns, given.returns, rtol=1e-5)
        assert np.all(without.returns != greedy.returns)

    @pytest.mark.parametrize("record", [False, True])
    def test_episodes_begin_and_go_on_with_keys_of_their_own(
        self, record: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = importlib.import_module(evaluate.__module__)
        keys: list[Any] = []

        def recording(name: str) -> None:
            function = getattr(module, name)

            def call(*args: Any, key: Any, **options: Any) -> Any:
                keys.append(key)
                return function(*args, key=key, **options)

            monkeypatch.setattr(module, name, call)

        recording("start")
        recording("record_steps" if record else "play_until_over")
        agent, env = Scribe(), Clock()
        play = rollout if record else evaluate
        eqx.filter_eval_shape(
            lambda key: play(
                agent, agent.init(env.spec, key=key), env, num_episodes=7, key=key
            ),
            jr.key(0),
        )
        first, second = keys
        assert first is not second

    def test_without_a_descriptor_there_are_no_descriptors(
        self, getkey: GetKey
    ) -> None:
        assert _evaluate(Clock(), getkey).descriptors is None

    @pytest.mark.parametrize("name", ["num_episodes", "max_steps"])
    def test_less_than_one_is_refused(self, name: str, getkey: GetKey) -> None:
        agent, env = Scribe(), Clock()
        state = agent.init(env.spec, key=getkey())
        options: dict[str, Any] = {"num_episodes": 2, name: 0}
        with pytest.raises(ValueError, match=rf"`{name}=0` must be .*at least 1"):
            evaluate(agent, state, env, key=getkey(), **options)

    def test_a_population_is_evaluated_under_vmap(self, getkey: GetKey) -> None:
        agent, env = Scribe(), Clock()
        states = eqx.filter_vmap(lambda key: agent.init(env.spec, key=key))(
            jr.split(getkey(), 3)
        )

        def of_member(state: object, key: Array) -> Evaluation:
            return evaluate(agent, state, env, num_episodes=5, key=key)  # pyright: ignore[reportArgumentType]

        evaluation = eqx.filter_vmap(of_member)(states, jr.split(getkey(), 3))
        lengths = np.asarray(evaluation.lengths)
        assert lengths.shape == (3, 5)
        np.testing.assert_array_equal(evaluation.returns, lengths * (lengths + 1) / 2)


class TestRollout:
    @staticmethod
    def _rollout(
        env: AbstractEnv, getkey: GetKey, mode: Mode = "greedy"
    ) -> tuple[Transition, np.ndarray]:
        agent = Scribe()
        state = agent.init(env.spec, key=getkey())
        # The key of a whole rollout may have been used before.
        jr.bits(key := getkey())
        transitions, mask = rollout(
            agent, state, env, num_episodes=_NUM_EPISODES, key=key, mode=mode
        )
        return transitions, np.asarray(mask)

    def test_mask_is_true_from_the_beginning_to_the_end(self, getkey: GetKey) -> None:
        transitions, mask = self._rollout(Clock(), getkey)
        lengths = np.asarray(transitions.observation)[:, 0, 1]
        assert len(set(lengths)) > 1
        np.testing.assert_array_equal(mask, np.arange(_LONGEST) < lengths[:, None])
        # The end is the last step within the mask.
        within = np.asarray(transitions.terminated) & mask
        np.testing.assert_array_equal(within.argmax(axis=1), mask.sum(axis=1) - 1)
        np.testing.assert_array_equal(within.sum(axis=1), 1)

    def test_transitions_have_the_axes_episodes_and_time(self, getkey: GetKey) -> None:
        transitions, mask = self._rollout(Clock(), getkey)
        assert mask.shape == (_NUM_EPISODES, _LONGEST)
        for leaf in jax.tree.leaves(transitions):
            assert leaf.shape[:2] == mask.shape
        # An episode is not begun again.
        expected = np.broadcast_to(np.arange(_LONGEST), mask.shape)
        np.testing.assert_array_equal(transitions.timestep, expected)

    def test_agents_with_memory_play_with_it(self, getkey: GetKey) -> None:
        # `Scribe` acts greedily with what it drew when the episode began.
        extras = (transitions := self._rollout(Clock(), getkey)[0]).extras
        np.testing.assert_array_equal(transitions.action[..., 0], extras.skill)
        np.testing.assert_array_equal(extras.age, transitions.timestep)
        np.testing.assert_array_equal(extras.index[:, 0], np.arange(_NUM_EPISODES))
        skills = np.asarray(extras.skill)
        assert np.all(skills == skills[:, :1])
        assert len(np.unique(skills)) == _NUM_EPISODES

    def test_actions_are_picked_in_the_mode_asked_for(self, getkey: GetKey) -> None:
        transitions, _ = self._rollout(Drift(), getkey, mode="sample")
        assert np.all(transitions.action == 0.5)

    def test_without_any_limit_it_says_to_give_max_steps(self, getkey: GetKey) -> None:
        with pytest.raises(ValueError, match=r"no time limit.*give `max_steps`"):
            self._rollout(Clock(has_limit=False), getkey)
