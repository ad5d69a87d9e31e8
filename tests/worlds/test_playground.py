"""Tasks of MuJoCo Playground against the library, stepped by hand."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array

import eqrl
from eqrl.envs import AbstractEnv, PlaygroundEnv, TimeLimit, make
from eqrl.envs._base import innermost, lenient_promotion, strongly_typed
from eqrl.envs._make import name_of

from ..simulators import check_rows, interacted
from .test_jax_worlds import ByHand, Seeded


pytestmark = pytest.mark.worlds

NUM_ENVS, NUM_STEPS, LIMIT = 4, 500, 20


def keyed_cartpole() -> Any:
    """A task that terminates, with another observation for critics."""
    from mujoco_playground import registry  # pyright: ignore[reportMissingImports]

    config = registry.get_default_config("CartpoleBalance")
    config.impl = "jax"
    bare: Any = registry.load("CartpoleBalance", config=config)
    kind: Any = type(bare)

    class Keyed(kind):
        def reset(self, rng: Any) -> Any:
            return self._keyed(super().reset(rng))

        def step(self, state: Any, action: Any) -> Any:
            inner = state.replace(obs=state.obs["state"])
            return self._keyed(super().step(inner, action))

        def _keyed(self, state: Any) -> Any:
            velocity = state.data.qvel
            seen = {"state": state.obs, "privileged_state": velocity}
            fast = jnp.abs(velocity[0]) > 0.3
            return state.replace(obs=seen, done=fast.astype(float))

    return Keyed(swing_up=False, sparse=False, config=config)


def test_rows_are_those_of_a_task_stepped_by_hand() -> None:
    task = keyed_cartpole()
    env: AbstractEnv[Any] = TimeLimit(PlaygroundEnv(task), LIMIT)
    assert (env.spec.observation_size, env.spec.critic_observation_size) == (5, 2)
    play = lambda env: interacted(
        env, num_envs=NUM_ENVS, num_steps=NUM_STEPS, key=jr.key(3)
    )
    rows: Any = jax.tree.map(np.asarray, play(Seeded(env)))

    def begin(key: Array) -> tuple[Any, Any]:
        state = task.reset(key)
        return state, state.obs["state"]

    def step(state: Any, action: Any, key: Array) -> tuple[Any, ...]:
        del key
        state = task.step(state, action)
        return state, state.obs["state"], state.reward, state.done > 0, None

    begin, step = jax.jit(begin), jax.jit(step)

    def by_hand(index: int) -> ByHand:
        seeds = rows.state_descriptor[index, rows.timestep[index] == 0, 0]
        # A fresh one for each episode.
        assert len(set(seeds)) == len(seeds) > 2
        return ByHand(begin, step, seeds, LIMIT)

    with lenient_promotion():
        # XLA compiles the reward of one and of several in another order.
        check_rows(rows, [*range(NUM_ENVS)], by_hand, reward_error=1e-6)
    at_limit = rows.timestep == LIMIT - 1
    assert np.any(rows.truncated & at_limit) and not np.any(rows.truncated & ~at_limit)
    assert np.any(rows.terminated) and not np.any(rows.terminated & rows.truncated)
    # The velocities, which the observation ends with.
    pairs = (
        (rows.observation, rows.critic_observation),
        (rows.next_observation, rows.next_critic_observation),
    )
    for observation, critic_observation in pairs:
        np.testing.assert_array_equal(observation[..., 3:], critic_observation)


def test_each_episode_has_a_model_of_its_own_and_keeps_what_differs() -> None:
    def heavier(model: Any, key: Array) -> Any:
        mass = model.body_mass * jr.uniform(key, minval=1.0, maxval=5.0)
        return model.tree_replace({"body_mass": mass})

    from mujoco_playground import registry  # pyright: ignore[reportMissingImports]

    options = {"impl": "jax"}
    task: Any = registry.load("CartpoleBalance", config_overrides=options)
    env: Any = PlaygroundEnv(task, randomize=heavier)

    @eqx.filter_jit
    @jax.vmap
    def play(key: Array) -> tuple[Any, Array]:
        state, _ = env.reset(key=key)
        after, outcome = env.step(state, jnp.ones(1), key=key)
        return after, outcome.observation

    state, observation = play(jr.split(jr.key(0), 2))
    (mass,) = jax.tree.leaves(state.model)
    assert mass.shape == (2, len(task.mj_model.body_mass))
    ratio = mass / np.asarray(task.mj_model.body_mass, np.float32)[None]
    assert np.all(ratio[:, 1:] >= 1) and abs(ratio[0, 1] - ratio[1, 1]) > 0.1
    # A push moves what is heavier by less; it began with about the same velocity.
    heaviest, lightest = np.argmax(mass[:, 1]), np.argmin(mass[:, 1])
    assert observation[heaviest, 3] < observation[lightest, 3]


def test_a_robot_is_found_in_the_packages_of_envpool() -> None:
    env = make("playground/Go1JoystickFlatTerrain", action_repeat=2)
    assert name_of(env) == "playground/Go1JoystickFlatTerrain"
    spec = env.spec
    assert (spec.observation_size, spec.critic_observation_size) == (48, 123)
    assert spec.max_steps == 500
    other = make(
        "playground/Go1JoystickFlatTerrain",
        observation=("privileged_state", "state"),
        critic_observation="state",
        options={"episode_length": 300},
    )
    spec = other.spec
    assert (spec.observation_size, spec.critic_observation_size) == (171, 48)
    assert spec.max_steps == 300
    robot: Any = innermost(env)
    key = jr.key(3)
    action = jnp.linspace(-0.5, 0.5, spec.action_size)

    def play(
        reset: Callable[[], Any], step: Callable[[Any], Any], seen: Callable[[Any], Any]
    ) -> Any:
        """What is seen of four states, in one program."""

        def move(state: Any, _: None) -> Any:
            after = step(state)
            return after, seen(after)

        return jax.jit(lambda: jax.lax.scan(move, reset(), None, length=3)[1])()

    theirs = robot.environment
    with lenient_promotion():
        expected = play(
            lambda: strongly_typed(theirs.reset(key)),
            lambda state: strongly_typed(
                theirs.step(jax.tree.map(lambda x: x, state), action)
            ),
            lambda state: (state.obs["state"], state.obs["privileged_state"]),
        )
    found = play(
        lambda: robot.reset(key=key)[0],
        lambda state: robot.step(state, action, key=key)[0],
        lambda state: (
            robot._observation(state.state),
            robot.critic_observation(state),
        ),
    )
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, other, rtol=1e-4, atol=1e-4)
    assert found[0].shape == (3, 48) and found[1].shape == (3, 123)
    # It moves.
    assert np.ptp(found[0], axis=0).max() > 0.1


@pytest.mark.parametrize(
    "make_env, message",
    [
        (lambda: make("playground/Cartpole"), "no environment `playground/Cartpole`"),
        (
            lambda: make("playground/CartpoleBalance", observation="state"),
            "has none, since it is one array",
        ),
        (
            lambda: make("playground/Go1Getup", critic_observation="sky"),
            r"'sky'` is not a key .*'privileged_state'",
        ),
        (
            lambda: make("playground/CartpoleBalance", options={"gravity": 1}),
            "no option 'gravity'; it has 'action_repeat', ",
        ),
        (
            lambda: make("playground/CartpoleBalance", options={"sim": {"dt": 1}}),
            r"`options\['sim'\]={'dt': 1}` must have a hash.* by its path",
        ),
        (
            lambda: make("playground/AeroCubeRotateZAxis", impl="jax"),
            "has no choice of physics",
        ),
        (
            lambda: eqrl.envs.check(keyed_cartpole(), key=jr.key(0)),
            r"a Keyed of playground, .*`eqrl.envs.PlaygroundEnv\(env\)`",
        ),
        (
            lambda: PlaygroundEnv(3),
            "is not an environment of playground; give what .*registry.load",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    make_env: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_env()


def test_a_robot_that_is_nowhere_is_named_with_where_it_belongs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mujoco_playground._src import (  # pyright: ignore[reportMissingImports]
        mjx_env,
    )

    nowhere = type(mjx_env.MENAGERIE_PATH)("/nowhere")
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", nowhere)
    monkeypatch.setattr("eqrl.envs._playground._ASSETS", ())
    with pytest.raises(ValueError, match=r"`/nowhere`\. Install EnvPool"):
        make("playground/SpotGetup")
