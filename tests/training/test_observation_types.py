"""Observations keep the type that they have, and networks see floats of them."""

import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import eqrl
from eqrl import Observation
from eqrl._agents.wrappers.skills import SkillExtras
from eqrl._rewards.base import describe
from eqrl.envs import AbstractEnv, ActionRepeat, FrameStack, Outcome, TimeLimit
from eqrl.envs._check import check_env
from eqrl.nn import as_floats
from eqrl.spaces import Action

from ..agents_under_test import diayn, ppo, sac, taac
from ..toy import transitions_of


SHAPE = (3, 3, 2)
SIZE = 18


class Pixels(AbstractEnv[Array]):
    """Random images, the same for each type; floats are what networks see of them.

    The reward is the first pixel, so that it depends on what is observed.
    """

    pixels: eqrl.ObservationDtype = eqx.field(static=True)
    given: eqrl.ObservationDtype = eqx.field(static=True)
    action: eqrl.spaces.AbstractActionSpace = eqx.field(default=eqrl.spaces.Box(1))

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(
            SIZE,
            action=self.action,
            observation_shape=SHAPE,
            observation_dtype=self.given,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[Array, Observation[Array, " obs"]]:
        drawn = jr.randint(key, (SIZE,), 0, 256)
        image = drawn > 127 if self.pixels == "bool" else drawn.astype(self.pixels)
        return image, as_floats(image) if self.given == "float32" else image

    def step(
        self, state: Array, action: Action, *, key: PRNGKeyArray
    ) -> tuple[Array, Outcome]:
        del action
        image, observation = self.reset(key=key)
        reward = as_floats(state)[0]
        over = jnp.array(False)
        return image, Outcome(observation, reward, terminated=over, truncated=over)

    def state_descriptor(self, state: Array) -> None:
        del state


TRAINER = eqrl.Trainer(num_envs=2, batch_size=8, capacity=40, warmup_steps=10)
ENCODER = eqrl.nn.Convolution(SHAPE, channels=3)
DQN = eqrl.DQN(make_network=eqrl.nn.ActionValues((8,), encoder=ENCODER))


def trained(agent: Any, env: AbstractEnv[Any]) -> Any:
    return eqrl.train(agent, env, TRAINER, num_steps=30, key=jr.key(0), log_every=30)


def test_networks_see_floats_of_what_is_stored_as_it_is(tmp_path: Path) -> None:
    """An agent of images learns, to the last bit, as one that is given floats."""
    kind = "uint8"
    choice = eqrl.spaces.Discrete(2)
    images, floats = Pixels(kind, kind, choice), Pixels(kind, "float32", choice)
    # Images are not normalized, so the wrapper changes nothing.
    normalized = eqrl.Normalized(DQN)
    solution, expected = trained(normalized, images), trained(DQN, floats)
    assert eqx.tree_equal(solution.state.agent, expected.state)
    np.testing.assert_array_equal(
        solution.metrics["episode_return"], expected.metrics["episode_return"]
    )
    stored = solution.trainer_state.replay.data
    assert stored.observation.dtype == stored.next_observation.dtype == kind
    wanted = expected.trainer_state.replay.data.observation
    assert 4 * stored.observation.nbytes == wanted.nbytes
    np.testing.assert_array_equal(as_floats(stored.observation), wanted)

    eqrl.save_solution(tmp_path / "saved", solution)
    loaded = eqrl.load_solution(tmp_path / "saved", normalized, images, TRAINER)
    assert eqx.tree_equal(loaded.trainer_state.replay, solution.trainer_state.replay)

    played, _ = eqrl.rollout(
        normalized, solution.state, images, num_episodes=2, max_steps=3, key=jr.key(1)
    )
    assert played.observation.dtype == kind
    path = tmp_path / "policy"
    eqrl.export_policy(path, normalized, solution.state, images)
    for load in (eqrl.load_policy, eqrl.numpy_policy.load_policy):
        policy = load(path)
        chosen = [policy.act(x) for x in np.asarray(played.observation[0])]
        np.testing.assert_array_equal(chosen, played.action[0])
        with pytest.raises(ValueError, match=f"18 numbers, of the type {kind}"):
            policy.act(np.zeros(SIZE))


def test_skills_and_rewards_see_floats_as_well() -> None:
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 5), np.uint8))
    skills = jnp.eye(2)
    transitions = transitions_of(
        images,
        action=skills,
        next_observation=images[::-1],
        extras=SkillExtras(skills, agent=None),
    )
    conditioned: Any = eqrl.SkillConditioned(sac(), 2)
    seen = conditioned.inner_transitions((), transitions)
    joined = jnp.concatenate([as_floats(images), skills], axis=1)
    np.testing.assert_array_equal(seen.observation, joined)
    np.testing.assert_array_equal(
        describe("observation", transitions), as_floats(images)[::-1]
    )
    np.testing.assert_array_equal(
        describe(lambda x: x[:2], transitions), as_floats(images)[::-1, :2]
    )


def test_agents_train_where_an_integer_that_meets_a_float_is_an_error() -> None:
    def run(
        agent: Any, env: Pixels, trainer: eqrl.Trainer, key: PRNGKeyArray
    ) -> tuple[Any, Any]:
        state, counts = trainer.init(agent, env, key=key)
        after = trainer.run(agent, env, state, counts, num_steps=16, key=key)
        return state, after[0]

    described = diayn(taac(window_length=2), descriptor="observation")
    choices = Pixels("bool", "bool", eqrl.spaces.Discrete(2))
    rollout = eqrl.Trainer.on_policy(num_envs=2, num_steps=4)
    for agent, world, trainer in (
        (described, Pixels("uint8", "uint8"), TRAINER),
        (eqrl.Normalized(ppo(discrete=True)), choices, rollout),
    ):
        before, after = eqx.filter_eval_shape(run, agent, world, trainer, jr.key(0))
        assert eqx.tree_equal(before, after)


def test_data_sets_keep_the_type_that_the_spec_names() -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (9, *SHAPE), np.uint8)
    transitions = eqrl.transitions_from_arrays(
        observation=images[:-1],
        next_observation=images[1:],
        action=np.arange(8) % 2,
        reward=np.ones(8),
        terminated=np.zeros(8),
    )
    assert transitions.observation.dtype == np.uint8
    np.testing.assert_array_equal(np.flatnonzero(transitions.truncated), [7])
    spec = Pixels("uint8", "uint8", eqrl.spaces.Discrete(2)).spec
    eqrl.train_offline(DQN, transitions, spec, num_updates=1, key=jr.key(0))
    floats = Pixels("uint8", "float32", eqrl.spaces.Discrete(2)).spec
    with pytest.raises(ValueError, match=r"type uint8, but .* and float32 are needed"):
        eqrl.train_offline(DQN, transitions, floats, num_updates=1, key=jr.key(0))


def test_environments_give_the_type_that_their_spec_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = Pixels("uint8", "bool")
    asked = "`reset` gives an observation of shape (18,) and type uint8, but `spec.obse"
    with pytest.raises(ValueError, match=re.escape(asked)) as raised:
        check_env(wrong)
    assert "an array of bool of shape (18,)" in str(raised.value)
    env = FrameStack(ActionRepeat(TimeLimit(Pixels("uint8", "uint8"), 5), 2), 3)
    check_env(env)
    assert env.spec.observation_struct == jax.ShapeDtypeStruct((3 * SIZE,), np.uint8)
    # Where types are checked at run time, that finds it first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(
        ValueError, match="`observation_dtype='int8'` must be one of 'f"
    ):
        eqrl.EnvSpec(2, 1, observation_dtype="int8")  # pyright: ignore[reportArgumentType]


def test_every_pixel_becomes_its_share_of_255() -> None:
    pixels = np.arange(256, dtype=np.uint8)
    floats = np.asarray(as_floats(jnp.asarray(pixels)))
    assert floats.dtype == np.float32 and floats[-1] == 1
    np.testing.assert_allclose(floats, pixels / 255, rtol=1e-6)
