import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._agents.wrappers.base import parts
from .._agents.wrappers.fixed_skill import FixedSkill
from .._interaction.actors import Actors, start
from .._interaction.evaluate import record_steps
from .._pytree.fields import reusable_key
from .._types.custom_types import EnvState, Extras, Memory, PyTree, State
from .._types.data import Transition
from .._types.installed import check_installed
from ..envs import AbstractEnv, AbstractEnvWrapper, Drawable, Point
from ..envs._base import AnyEnv, adapter_of, each_state
from .figure import FIGURE_SUFFIXES, new_figure, one_of, save_figure


# What else may be written in place of the suffix that is the default.
_ALTERNATIVES = {".html": (".html", ".gif"), ".png": FIGURE_SUFFIXES}


def render(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    path: str | os.PathLike[str],
    *,
    key: PRNGKeyArray,
    title: str = "",
) -> None:
    """Plays one greedy episode and writes a picture of it.

    **Arguments:**

    - `agent`, `state`: the agent that acts, and its state.
    - `env`: an environment of brax, one of gymnax that gymnax can draw, such as
        `Pendulum-v1`, `eqrl/Point`, or one that is an [`eqrl.envs.Drawable`][], inside
        any `eqrl.envs.AbstractEnvWrapper`s.
    - `path`: the file to write: `.html` for brax, an interactive page which loads its
        player from the web, or `.gif`, for which MuJoCo needs OpenGL: without a screen,
        set `MUJOCO_GL=egl` before Python starts; `.gif` for gymnax and what draws
        itself; `.png`, `.pdf` or `.svg` for `eqrl/Point`.
    - `key`: for the environment and the agent.
    - `title`: above what gymnax and `eqrl/Point` show; by default the skill, if the
        agent has a fixed one.
    """
    key = reusable_key(key)
    path = Path(path)
    suffix = render_suffix(env)
    allowed = _ALTERNATIVES.get(suffix, (suffix,))
    if path.suffix.lower() not in allowed:
        raise ValueError(
            f"`path={str(path)!r}` must end in {one_of(allowed)} for this environment."
        )
    max_steps = env.spec.max_steps
    if max_steps is None:
        raise ValueError(
            "This environment has no time limit (`spec.max_steps` is None), so an "
            "episode might never end; put it into an `eqrl.envs.TimeLimit`."
        )
    drawn: Any = _drawn(env)
    title = title or _name_of_skill(agent)
    states, rewards, length = _play(agent, state, env, max_steps, key=key)
    length = int(length)
    returns = np.concatenate([[0.0], np.cumsum(np.asarray(rewards)[:length])])
    while isinstance(env, AbstractEnvWrapper) and not isinstance(env, Drawable):
        env, states = env.inner, env.inner_state(states)
    states = jax.tree.map(lambda leaf: leaf[: length + 1], states)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(drawn, Drawable):
        _write_images(drawn, states, path)
    elif isinstance(drawn, Point):
        _draw_point(drawn, np.asarray(states.position), float(returns[-1]), path, title)
    else:
        adapter_of(drawn).draw(drawn, states, returns, path, title)


def render_suffix(env: AnyEnv) -> str:
    """The default suffix of the file that `render` writes."""
    inner = _drawn(env)
    if isinstance(inner, Drawable):
        check_installed("PIL", f"`render` of a `{type(inner).__name__}`", extra="plots")
        return ".gif"
    if isinstance(inner, Point):
        # Before an episode is played whose picture could not be drawn.
        check_installed("matplotlib", "`render` of `eqrl/Point`", extra="plots")
        return ".png"
    adapter = adapter_of(inner)
    if adapter is not None:
        return adapter.picture_suffix(inner)
    raise ValueError(
        f"There is no way to draw a `{type(inner).__name__}`: environments of brax and "
        "gymnax and `eqrl.envs.Point` can be drawn, and those with a method `draw` "
        "from a state to an image, see `eqrl.envs.Drawable`."
    )


def innermost(env: AnyEnv) -> AnyEnv:
    """The environment inside all wrappers."""
    while isinstance(env, AbstractEnvWrapper):
        env = env.inner
    return env


def _drawn(env: AnyEnv) -> AnyEnv:
    """The outermost environment that draws itself, or else the innermost."""
    while isinstance(env, AbstractEnvWrapper) and not isinstance(env, Drawable):
        env = env.inner
    return env


def _name_of_skill(agent: AnyAgent) -> str:
    """Name of the skill of an agent with a fixed one; empty if it has none."""
    fixed = parts(agent, FixedSkill)
    if not fixed:
        return ""
    skill = np.asarray(fixed[0].skill)
    is_one_hot = np.array_equal(np.sort(skill), np.eye(len(skill))[-1])
    if is_one_hot:
        return f"skill {np.argmax(skill)}"
    return f"skill ({', '.join(f'{each:.2f}' for each in skill)})"


@eqx.filter_jit
def _play(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    max_steps: int,
    *,
    key: PRNGKeyArray,
) -> tuple[PyTree, Float[Array, " steps"], Int[Array, ""]]:
    """The environment's states, including the first, the rewards and the length."""
    start_key, step_key = jr.split(key)
    actors = start(agent, state, env, num_envs=1, key=start_key)

    def record(
        actors: Actors[EnvState, Memory], transitions: Transition[Extras]
    ) -> tuple[EnvState, Float[Array, "..."]]:
        return actors.env_state, transitions.reward

    (states, rewards), alive = record_steps(
        agent,
        state,
        env,
        actors,
        max_steps=max_steps,
        mode="greedy",
        key=step_key,
        record=record,
    )
    states = jax.tree.map(
        lambda first, later: jnp.concatenate([first, later[:, 0]]),
        actors.env_state,
        states,
    )
    return states, rewards[:, 0], jnp.sum(alive)


def _write_images(env: Any, states: PyTree, path: Path) -> None:
    from PIL import Image

    images = [np.asarray(env.draw(state)) for state in each_state(states)]
    for image in images:
        is_image = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
        if not is_image or image.shape != images[0].shape:
            raise ValueError(
                f"`draw` of `{type(env).__name__}` gives an array of type "
                f"{image.dtype} and shape {image.shape}; it must be an image of type "
                "uint8 and shape (height, width, 3), of one size in all states."
            )
    first, *others = (Image.fromarray(image) for image in images)
    first.save(path, save_all=True, append_images=others, duration=50, loop=0)


def _draw_point(
    env: Point,
    positions: Float[np.ndarray, "states 2"],
    total: float,
    path: Path,
    title: str,
) -> None:
    figure = new_figure("`render` of `eqrl/Point`", 5.0, 5.0)
    axes = figure.add_subplot()
    for start_, end in env.walls[int(env.num_open) :]:
        axes.plot(*zip(start_, end, strict=True), color="black", linewidth=3)
    axes.plot(*positions.T, marker=".", markersize=4, label="trajectory")
    axes.plot(*positions[0], marker="o", linestyle="none", label="start")
    axes.plot(*positions[-1], marker="s", linestyle="none", label="end")
    if env.goal is not None:
        axes.plot(*env.goal, marker="*", markersize=12, linestyle="none", label="goal")
    outcome = f"{len(positions) - 1} steps, return {total:.2f}"
    axes.set_title(f"{title}\n{outcome}" if title else f"Point: {outcome}")
    axes.set_xlabel("x")
    axes.set_ylabel("y")
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    save_figure(figure, path)
