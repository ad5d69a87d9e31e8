import base64
import dataclasses
import json
import os
import re
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import brax.envs
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import mujoco
import numpy as np
import pytest
from brax import base
from brax.envs.inverted_pendulum import InvertedPendulum
from jaxtyping import Array, Float, Int, PRNGKeyArray
from matplotlib.axes import Axes
from PIL import Image

import eqrl
import eqrl.envs._gymnax
from eqrl._reporting.episodes import _name_of_skill, _play
from eqrl.envs import (
    AbstractEnv,
    AbstractEnvWrapper,
    BraxEnv,
    DisabledActions,
    Outcome,
    Point,
    PooledReset,
    TimeLimit,
    _brax as adapter,
)
from eqrl.envs._wrappers import TimeLimitState
from eqrl.nn import Critic, Deterministic
from eqrl.spaces import Box
from tests.agents_under_test import dqn, sac
from tests.toy import Clock, ClockState, FixedDensity, GetKey, Scribe


class Constant(eqrl.AbstractMarkovAgent[Float[Array, " act"]]):
    """Always acts with its state: at first 1 and 0.5, or 1 alone."""

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        del key
        return jnp.asarray(np.array([1.0, 0.5], np.float32)[: spec.action_size])

    def policy(self, state: Float[Array, " act"]) -> Any:
        return lambda _: FixedDensity(action=state, log_prob=jnp.zeros(()))

    def update(
        self,
        state: Float[Array, " act"],
        batch: eqrl.Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], eqrl.Metrics]:
        raise NotImplementedError


def _render(env: AbstractEnv[Any], path: Path, key: PRNGKeyArray) -> None:
    agent = Constant()
    init_key, render_key = jr.split(key)
    state = agent.init(env.spec, key=init_key)
    eqrl.render(agent, state, env, path, key=render_key)


def _states_in(page: str) -> list[Any]:
    data = max(re.findall(r"[A-Za-z0-9+/=]{200,}", page), key=len)
    return json.loads(zlib.decompress(base64.b64decode(data)))["states"]["x"]


def test_point_is_a_png(tmp_path: Path, getkey: GetKey) -> None:
    walls = (((0.25, -1.0), (0.25, 1.0)),)
    env = Point(max_steps=5, goal=(1.0, 1.0), walls=walls)
    _render(env, tmp_path / "x.png", getkey())
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_open_walls_are_not_drawn(
    tmp_path: Path, getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    black: list[Any] = []
    plot = Axes.plot

    def record(self: Axes, *args: Any, **options: Any) -> Any:
        if options.get("color") == "black":
            black.append(args)
        return plot(self, *args, **options)

    monkeypatch.setattr(Axes, "plot", record)
    walls = (((0.25, -1.0), (0.25, 1.0)), ((-0.25, -1.0), (-0.25, 1.0)))
    env = Point(max_steps=2, walls=walls, num_open=1)
    _render(env, tmp_path / "x.png", getkey())
    assert black == [((-0.25, -0.25), (-1.0, 1.0))]


@pytest.mark.checks_keys
def test_a_pdf_is_one_and_folders_above_it_are_made(
    tmp_path: Path, getkey: GetKey
) -> None:
    # The key may have been used before.
    jr.bits(key := getkey())
    path = tmp_path / "a" / "b" / "x.pdf"
    eqrl.render(Constant(), jnp.array([1.0, 0.5]), Point(max_steps=2), path, key=key)
    assert (tmp_path / "a" / "b" / "x.pdf").read_bytes().startswith(b"%PDF")


class DelayedState(eqx.Module):
    """The state of an environment, and the action that comes next."""

    within: Any
    next_action: Float[Array, " act"]


class Delayed(AbstractEnvWrapper[DelayedState]):
    """A user's own wrapper: an action takes effect one step later."""

    world: AbstractEnv[Any]

    @property
    def inner(self) -> AbstractEnv[Any]:
        return self.world

    def inner_state(self, state: DelayedState) -> Any:
        return state.within

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.world.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[DelayedState, Float[Array, " obs"]]:
        within, observation = self.world.reset(key=key)
        nothing = jnp.zeros(self.spec.action_size)
        return DelayedState(within=within, next_action=nothing), observation

    def step(
        self, state: DelayedState, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[DelayedState, Outcome]:
        within, outcome = self.world.step(state.within, state.next_action, key=key)
        return DelayedState(within=within, next_action=action), outcome

    def state_descriptor(
        self, state: DelayedState
    ) -> Float[Array, " descriptor"] | None:
        return self.world.state_descriptor(state.within)


def test_the_environment_inside_all_wrappers_is_drawn(
    tmp_path: Path, getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    plot = Axes.plot

    def record(self: Axes, *args: Any, **options: Any) -> Any:
        if options.get("label") == "trajectory":
            drawn.append(np.stack(args, axis=1))
        return plot(self, *args, **options)

    monkeypatch.setattr(Axes, "plot", record)
    env = PooledReset(TimeLimit(Point(step_size=1.0), 3), 2, key=getkey())
    env = DisabledActions(Delayed(env), [0])
    agent = Constant()
    state = agent.init(env.spec, key=getkey())
    eqrl.render(agent, state, env, tmp_path / "x.png", key=getkey())
    # Only the second element of the action, 0.5, acts, and one step later.
    np.testing.assert_allclose(drawn, [[[0, 0], [0, 0], [0, 0.5], [0, 1]]])
    assert (tmp_path / "x.png").is_file()


class Painted(AbstractEnvWrapper[Any]):
    """A user's own environment that draws itself: it gets brighter."""

    world: AbstractEnv[Any]
    kind: type = eqx.field(default=np.uint8, static=True)

    @property
    def inner(self) -> AbstractEnv[Any]:
        return self.world

    def inner_state(self, state: Any) -> Any:
        return state

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.world.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[Any, Float[Array, " obs"]]:
        return self.world.reset(key=key)

    def step(
        self, state: Any, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[Any, Outcome]:
        return self.world.step(state, action, key=key)

    def state_descriptor(self, state: Any) -> Float[Array, " descriptor"] | None:
        return self.world.state_descriptor(state)

    def draw(self, state: Any) -> np.ndarray:
        return np.full((8, 12, 3), 60 * state.time, self.kind)


@pytest.fixture
def three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode of three steps, for which nothing is compiled."""
    zero = jnp.zeros((), int)
    first = TimeLimitState(ClockState(time=zero, length=zero), zero)
    states = jax.tree.map(lambda _: jnp.arange(6), first)
    played = (states, np.ones(5), 3)
    monkeypatch.setattr("eqrl._reporting.episodes._play", lambda *_, key: played)


@pytest.mark.usefixtures("three_steps")
def test_an_environment_with_a_method_draw_is_a_gif_of_its_images(
    tmp_path: Path,
) -> None:
    env = TimeLimit(Painted(Clock()), 5)
    assert isinstance(env.env, eqrl.envs.Drawable)
    eqrl.render(Constant(), jnp.ones(1), env, tmp_path / "x.gif", key=jr.key(0))
    levels = []
    with Image.open(tmp_path / "x.gif") as image:
        assert image.size == (12, 8)
        for frame in range(getattr(image, "n_frames", 1)):
            image.seek(frame)
            levels.append(np.unique(np.asarray(image.convert("RGB"))).tolist())
    assert levels == [[0], [60], [120], [180]]


@pytest.mark.usefixtures("three_steps")
def test_what_is_drawn_must_be_an_image(tmp_path: Path) -> None:
    env = TimeLimit(Painted(Clock(), float), 5)
    with pytest.raises(ValueError, match=r"`Painted` gives an array of type float64"):
        eqrl.render(Constant(), jnp.ones(1), env, tmp_path / "x.gif", key=jr.key(0))


def test_a_fixed_skill_is_named() -> None:
    for skill, name in (
        ([0, 0, 1, 0], "skill 2"),
        ([1, 0], "skill (1.00, 0.00)"),
        ([0.6, 0.8], "skill (0.60, 0.80)"),
        ([1, 1], "skill (1.00, 1.00)"),
    ):
        fixed = eqrl.FixedSkill(Constant(), jnp.array(skill, float))
        assert _name_of_skill(eqrl.Normalized(fixed)) == name
    assert _name_of_skill(Constant()) == ""


def test_choices_among_skills_are_drawn_in_their_environment(
    tmp_path: Path, getkey: GetKey
) -> None:
    agent = Constant()
    states = jnp.array([[1.0, 0.5], [0.5, 1.0]])
    env = eqrl.SkillChoice(Point(max_steps=6), agent, states, 2, num_steps=3)
    eqrl.render(agent, states[0], env, tmp_path / "x.png", key=getkey())
    assert (tmp_path / "x.png").is_file()


@pytest.fixture(scope="module")
def gif(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of the pendulum."""
    path = tmp_path_factory.mktemp("gif") / "x.gif"
    _render(_pendulum(), path, jr.key(0))
    return path


def _pendulum() -> AbstractEnv[Any]:
    return eqrl.envs.make("gymnax/Pendulum-v1", max_steps=3)


def test_gymnax_is_a_gif_with_a_frame_for_each_state(gif: Path) -> None:
    with Image.open(gif) as image:
        assert getattr(image, "n_frames", 1) == 4


def test_frames_of_a_gif_show_that_something_moves(gif: Path) -> None:
    with Image.open(gif) as image:
        first = np.asarray(image.convert("RGB"))
        image.seek(3)
        last = np.asarray(image.convert("RGB"))
    # Below the title, which counts the steps.
    assert np.any(first[60:] != last[60:])


def test_of_a_long_episode_gymnax_draws_some_states_and_the_last_one(
    gif: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eqrl.envs._gymnax, "_MOST_PICTURES", 2)
    _render(_pendulum(), tmp_path / "x.gif", jr.key(0))
    with Image.open(tmp_path / "x.gif") as some, Image.open(gif) as each:
        assert getattr(some, "n_frames", 1) == 2
        some.seek(1)
        each.seek(3)
        last, expected = (np.asarray(x.convert("RGB")) for x in (some, each))
    np.testing.assert_array_equal(last, expected)


@pytest.mark.parametrize("before", [None, "x11"])
def test_the_video_driver_is_left_as_it_was(
    before: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    getkey: GetKey,
) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    if before is not None:
        monkeypatch.setenv("SDL_VIDEODRIVER", before)
    _render(_pendulum(), tmp_path / "x.gif", getkey())
    assert os.environ.get("SDL_VIDEODRIVER") == before


@pytest.mark.long
@pytest.mark.parametrize("name", eqrl.envs._gymnax.DRAWN)
def test_gymnax_draws_what_is_listed(name: str, tmp_path: Path, getkey: GetKey) -> None:
    env = eqrl.envs.make(f"gymnax/{name}", max_steps=2)
    agent: Any = sac() if isinstance(env.spec.action, Box) else dqn()
    state = agent.init(env.spec, key=getkey())
    eqrl.render(agent, state, env, tmp_path / "x.gif", key=getkey())
    with Image.open(tmp_path / "x.gif") as image:
        assert getattr(image, "n_frames", 1) == 3


def test_what_gymnax_does_not_draw_is_refused(tmp_path: Path, getkey: GetKey) -> None:
    env = eqrl.envs.make("gymnax/Reacher-misc")
    with pytest.raises(ValueError, match="gymnax does not draw `Reacher-misc`"):
        _render(env, tmp_path / "x.gif", getkey())


class Pulled(InvertedPendulum):
    """A step moves all bodies by one along x, and takes no time to compile."""

    def reset(self, rng: PRNGKeyArray) -> brax.envs.State:
        del rng
        links = base.Transform.zero((self.sys.num_links(),))
        motion = base.Motion.zero((self.sys.num_links(),))
        q, qd = jnp.zeros(self.sys.q_size()), jnp.zeros(self.sys.qd_size())
        return brax.envs.State(
            pipeline_state=base.State(q, qd, links, motion, None),
            obs=jnp.concatenate([q, qd]),
            reward=jnp.zeros(()),
            done=jnp.zeros(()),
        )

    def step(self, state: brax.envs.State, action: Array) -> brax.envs.State:
        del action
        bodies: Any = state.pipeline_state
        assert bodies is not None
        links = bodies.x.replace(pos=bodies.x.pos + jnp.array([[1.0, 0.0, 0.0]]))
        return dataclasses.replace(state, pipeline_state=bodies.replace(x=links))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three steps of bodies of brax."""
    path = tmp_path_factory.mktemp("page") / "x.html"
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        pendulum = Pulled(backend="spring")
    _render(TimeLimit(BraxEnv(pendulum), 3), path, jr.key(0))
    return path.read_text()


def test_brax_is_a_page_with_each_state(page: str) -> None:
    along_x = np.array([bodies["pos"] for bodies in _states_in(page)])[..., 0]
    assert along_x.shape[0] == 4
    np.testing.assert_allclose(np.diff(along_x, axis=0), 1, atol=1e-5)


def test_brax_is_a_gif_where_mujoco_can_draw_and_else_an_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def render(system: Any, states: list[Any], **options: Any) -> bytes:
        if given:
            raise AttributeError("no display")
        lamp = system.mj_model.vis.headlight
        given.extend([system.replaced, np.stack(states), options, lamp.ambient])
        return b"GIF89a"

    monkeypatch.setattr("brax.io.image.render", render)
    library: Any = mujoco
    model = library.MjModel.from_xml_string(
        "<mujoco><worldbody><camera name='camera 0'/></worldbody></mujoco>"
    )
    dark = model.vis.headlight.ambient.copy()

    def replace(values: Any) -> SimpleNamespace:
        with_model = lambda mj_model: SimpleNamespace(
            replaced=values, mj_model=mj_model
        )
        return SimpleNamespace(mj_model=model, replace=with_model)

    bodies = SimpleNamespace(sys=SimpleNamespace(tree_replace=replace), dt=0.05)
    env = object.__new__(BraxEnv)
    object.__setattr__(env, "environment", bodies)
    states: Any = SimpleNamespace(pipeline_state=np.arange(4))
    path = tmp_path / "x.gif"
    adapter.draw(env, states, np.zeros(4), path, "")
    assert path.read_bytes() == b"GIF89a"
    assert given[0] == {"opt.timestep": 0.05}
    np.testing.assert_array_equal(given[1], np.arange(4))
    assert (given[2]["camera"], given[2]["fmt"]) == ("camera 0", "gif")
    # There is more light, in this picture alone.
    assert np.all(given[3] > dark)
    np.testing.assert_array_equal(model.vis.headlight.ambient, dark)
    with pytest.raises(ValueError, match=r"no display\. .*`MUJOCO_GL=egl`.*html"):
        adapter.draw(env, states, np.zeros(4), path, "")


def test_what_has_no_bodies_is_refused(tmp_path: Path, getkey: GetKey) -> None:
    with pytest.raises(ValueError, match="brax's `Fast` has no bodies"):
        _render(eqrl.envs.make("brax/fast"), tmp_path / "x.html", getkey())


def test_a_path_that_does_not_fit_is_refused(tmp_path: Path, getkey: GetKey) -> None:
    with pytest.raises(ValueError, match=r"must end in `\.png`, `\.pdf` or `\.svg`"):
        _render(Point(), tmp_path / "x.gif", getkey())


def test_an_environment_of_ones_own_is_refused(tmp_path: Path, getkey: GetKey) -> None:
    with pytest.raises(ValueError, match="no way to draw a `Clock`"):
        _render(Clock(), tmp_path / "x.png", getkey())


def test_an_environment_without_a_limit_is_refused(
    tmp_path: Path, getkey: GetKey
) -> None:
    env = eqrl.envs.make("brax/inverted_pendulum", backend="spring")
    assert isinstance(env, TimeLimit)
    with pytest.raises(ValueError, match=r"must end in `\.html` or `\.gif`"):
        _render(env.env, tmp_path / "x.png", getkey())
    with pytest.raises(ValueError, match=r"no time limit.*`eqrl\.envs\.TimeLimit`"):
        _render(env.env, tmp_path / "x.html", getkey())


def test_nothing_is_shown_after_the_end_of_the_episode(getkey: GetKey) -> None:
    env, agent = Clock(longest=9), Scribe()
    state = agent.init(env.spec, key=getkey())
    states, rewards, length = _play(agent, state, env, 9, key=getkey())
    assert length == states.length[0]
    np.testing.assert_array_equal(states.time, np.arange(10))
    np.testing.assert_array_equal(rewards[:length], np.arange(1, int(length) + 1))


def test_the_episode_is_greedy(getkey: GetKey) -> None:
    env, agent = (
        Point(max_steps=3),
        eqrl.TD3(make_actor=Deterministic((8,)), make_critic=Critic((8,))),
    )
    state = agent.init(env.spec, key=getkey())
    # Nothing else is random here.
    first, second = (_play(agent, state, env, 3, key=getkey())[0] for _ in range(2))
    np.testing.assert_array_equal(first.position, second.position)
