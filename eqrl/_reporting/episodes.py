"""Pictures of single episodes, of skills, and of where TAAC repeats."""

import os
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._agents.taac.policy import TAACExtras
from .._agents.wrappers.fixed_skill import FixedSkill
from .._interaction.actors import Actors, start
from .._interaction.evaluate import record_steps
from .._interaction.evaluate_skills import SkillEvaluation
from .._pytree.fields import reusable_key
from .._pytree.tree import parts
from .._skills.distances import SkillTrajectories
from .._types.custom_types import EnvState, Extras, Memory, PyTree, State
from .._types.data import Transition
from .._types.installed import NotInstalledError, check_installed, is_installed
from ..envs import AbstractEnv, AbstractEnvWrapper, Drawable, Point
from ..envs._base import AnyEnv, adapter_of, each_state, innermost
from ..envs._host import AbstractHostEnv, checked_result, photographed, pictures_of
from .figure import (
    FIGURE_SUFFIXES,
    as_rgb,
    images_of_paths,
    new_figure,
    numbered_colors,
    one_of,
    save_figure,
)


# Allowed suffixes, by the default one.
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
        `Pendulum-v1`, one of MuJoCo Playground, `eqrl/Point`, one whose simulator draws
        itself, such as those of Gymnasium, or one that is an `eqrl.envs.Drawable`,
        inside any `eqrl.envs.AbstractEnvWrapper`s.
    - `path`: the file to write: `.html` for brax, an interactive page which loads its
        player from the web, or `.gif`; `.gif` for MuJoCo Playground and gymnax, which
        draws at most 500 states of an episode, evenly spaced up to its end; `.gif`, or
        `.mp4` if imageio-ffmpeg is installed, for simulators and environments that draw
        themselves; `.png`, `.pdf` or `.svg` for `eqrl/Point`. MuJoCo, which draws
        a `.gif` of brax and Gymnasium's robots, needs OpenGL: without a screen, set
        `MUJOCO_GL=egl` or `MUJOCO_GL=osmesa` before Python starts.
    - `key`: for the environment and the agent.
    - `title`: title above the pictures of gymnax and `eqrl/Point`; by default the
        skill, if the agent has a fixed one.
    """
    key = reusable_key(key)
    path = Path(path)
    suffix, drawn = render_suffix(env), _drawn(env)
    allowed = _ALTERNATIVES.get(suffix, (suffix,))
    if isinstance(drawn, (Drawable, AbstractHostEnv)):
        allowed = (".gif", ".mp4")
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
    if path.suffix.lower() == ".mp4":
        _check_video()
    title = title or _name_of_skill(agent)

    def play() -> PyTree:
        played = _play(agent, state, env, max_steps, key=key)
        # Taking them also discards them, even if the simulator has failed.
        is_host = isinstance(drawn, AbstractHostEnv)
        return played, pictures_of(played[0]) if is_host else []

    (states, rewards, length), images = checked_result(env, play)
    length = int(length)
    returns = np.concatenate([[0.0], np.cumsum(np.asarray(rewards)[:length])])
    while isinstance(env, AbstractEnvWrapper) and not isinstance(env, Drawable):
        env, states = env.inner, env.inner_state(states)
    states = jax.tree.map(lambda leaf: leaf[: length + 1], states)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(drawn, Drawable):
        images = [np.asarray(drawn.draw(state)) for state in each_state(states)]
        _write_images(images, path, f"`draw` of `{type(drawn).__name__}`")
    elif isinstance(drawn, AbstractHostEnv):
        what = f"The simulator of `{type(drawn).__name__}`"
        _write_images(images, path, what)
    elif isinstance(drawn, Point):
        _draw_point(drawn, np.asarray(states.position), float(returns[-1]), path, title)
    else:
        adapter_of(drawn).draw(drawn, states, returns, path, title)


def render_suffix(env: AnyEnv) -> str:
    """The default suffix of the file that `render` writes."""
    inner = _drawn(env)
    if isinstance(inner, (Drawable, AbstractHostEnv)):
        check_installed("PIL", f"`render` of a `{type(inner).__name__}`", extra="plots")
    if isinstance(inner, Drawable):
        return ".gif"
    if isinstance(inner, Point):
        # Checked before an episode is played whose picture could not be drawn.
        check_installed("matplotlib", "`render` of `eqrl/Point`", extra="plots")
        return ".png"
    adapter = adapter_of(inner)
    if adapter is not None:
        return adapter.picture_suffix(inner)
    raise ValueError(
        f"There is no way to draw a `{type(inner).__name__}`: environments of brax, "
        "gymnax, Gymnasium, EnvPool and MuJoCo Playground and `eqrl.envs.Point` can be "
        "drawn, and those with a method `draw` from a state to an image, see "
        "`eqrl.envs.Drawable`."
    )


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
    # In two or three dimensions it may also be a direction.
    if is_one_hot and len(skill) > 3:
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
    # A simulator has left each state by the time that all of them are recorded.
    draws_present = isinstance(_drawn(env), AbstractHostEnv)
    if draws_present:
        actors = photographed(actors)

    def record(
        actors: Actors[EnvState, Memory], transitions: Transition[Extras]
    ) -> tuple[EnvState, Float[Array, "..."]]:
        states = actors.env_state
        states = photographed(states) if draws_present else states
        return states, transitions.reward

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


def _check_video() -> None:
    for package, name in (("imageio", "imageio"), ("imageio_ffmpeg", "imageio-ffmpeg")):
        if not is_installed(package):
            raise NotInstalledError(
                f"`render` to `.mp4` needs {name}, which is not installed: "
                '`pip install "imageio[ffmpeg]"`.',
                name=package,
            )


def _write_images(images: list[np.ndarray], path: Path, what: str) -> None:
    for image in images:
        is_image = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
        if not is_image or image.shape != images[0].shape:
            raise ValueError(
                f"{what} gives an array of type {image.dtype} and shape {image.shape}; "
                "it must be an image of type uint8 and shape (height, width, 3), of "
                "one size in all states."
            )
    if path.suffix.lower() == ".mp4":
        import imageio

        with warnings.catch_warnings():
            # JAX warns about a fork, but here it only runs another program.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            # As many images a second as in a GIF; codecs take even sizes only.
            imageio.mimwrite(path, [*images], fps=20, macro_block_size=2)
        return
    from PIL import Image

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


def draw_skills(
    path: str | os.PathLike[str],
    evaluation: SkillEvaluation | SkillTrajectories,
    *,
    dimensions: tuple[int, ...] = (0, 1),
    title: str = "",
    names: tuple[str, ...] | None = None,
    env: AbstractEnv[EnvState] | None = None,
) -> None:
    """Plots the trajectories of each skill in descriptor space.

    Every episode is a line from its first state to its last, which is marked by a dot;
    every skill has a color. Skills in the plane are colored by their direction, all
    others by their number. A GIF shows all episodes as they proceed.

    **Arguments:**

    - `path`: file to write; its suffix decides the format: `.png`, `.pdf`, `.svg`, or
        `.gif`, with at most 100 images of 50 milliseconds.
    - `evaluation`: from `evaluate_skills`; or trajectories alone, which are colored by
        number.
    - `dimensions`: which two elements of the descriptor to draw, or the one to draw
        over the steps. Descriptors of one element are drawn over the steps.
    - `title`: above the axes.
    - `names`: names of the elements that are drawn, such as `("x", "y")`, instead of
        their numbers.
    - `env`: an `eqrl.envs.Point`, inside any wrappers, whose closed walls are drawn, as
        far as the trajectories reach. The descriptor is then the position, and both of
        its elements are drawn.

    Raises a `ValueError` if descriptors do not have these elements, if there are not as
    many `names`, or if `env` has no walls to draw.
    """
    is_animation = Path(path).suffix.lower() == ".gif"
    figure = new_figure("`draw_skills`", 6.4, 5.4)
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    descriptors = np.asarray(evaluation.descriptors)
    mask = np.asarray(evaluation.mask)
    size = descriptors.shape[-1]
    if size == 1:
        dimensions = (0,)
    names = _checked_names(dimensions, names, size)
    walls = None if env is None else _walls(env, dimensions)
    first = evaluation.first_descriptors
    first = None if first is None else np.asarray(first)
    colors = _colors(evaluation)
    axes = figure.add_subplot()
    if walls is not None:
        # They do not affect the limits of the axes, since some are almost endless.
        drawn = LineCollection(list(walls), colors="black", linewidths=2)
        axes.add_collection(drawn, autolim=False)
    for skill, color in enumerate(colors):
        for episode in range(descriptors.shape[1]):
            visited = descriptors[skill, episode][mask[skill, episode]]
            steps = np.arange(1, len(visited) + 1)
            if first is not None:
                visited = np.concatenate([first[skill, episode][None], visited])
                steps = np.arange(len(visited))
            elements = visited[:, list(dimensions)].T
            x, y = elements if len(elements) == 2 else (steps, elements[0])
            axes.plot(x, y, color=color, alpha=0.8, linewidth=1.2)
            # Slices, since there may not be any steps.
            axes.plot(x[-1:], y[-1:], ".", color=color, markersize=7)
    if len(dimensions) == 2:
        axes.set_xlabel(names[0])
        # Skills differ in distances and directions.
        axes.set_aspect("equal", adjustable="datalim")
    else:
        axes.set_xlabel("step")
    axes.set_ylabel(names[-1])
    # More colors than that cannot be told apart.
    if len(colors) <= _MOST_IN_LEGEND:
        handles = [Line2D([], [], color=color) for color in colors]
        labels = [f"{skill}" for skill in range(len(colors))]
        figure.legend(
            handles, labels, title="skill", loc="outside right upper", frameon=False
        )
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if is_animation:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        _write_images(images_of_paths(figure), Path(path), "`draw_skills`")
    else:
        save_figure(figure, path)


_MOST_IN_LEGEND = 20


def _checked_names(
    dimensions: tuple[int, ...], names: tuple[str, ...] | None, size: int
) -> tuple[str, ...]:
    """The names of the elements that are drawn, of a descriptor of `size`."""
    if len(dimensions) not in (1, 2) or not all(
        0 <= each < size for each in dimensions
    ):
        raise ValueError(
            f"`dimensions={dimensions}` must be one or two of the {size} elements of a "
            f"descriptor, 0 to {size - 1}."
        )
    if names is None:
        return tuple(f"descriptor {each}" for each in dimensions)
    # A string has a length, too, and would name each element by a letter.
    if isinstance(names, str) or len(names) != len(dimensions):
        raise ValueError(
            f"`names={names!r}` must be {len(dimensions)}: one for each of "
            f"`dimensions={dimensions}`."
        )
    return names


def _walls(
    env: AnyEnv, dimensions: tuple[int, ...]
) -> Float[np.ndarray, "walls ends xy"]:
    inner = innermost(env)
    if not isinstance(inner, Point):
        raise ValueError(
            f"`env` has no walls: it is a `{type(inner).__name__}`, not an "
            "`eqrl.envs.Point`. Leave it out."
        )
    if set(dimensions) != {0, 1}:
        raise ValueError(
            f"`env` gives the walls in the plane, but `dimensions={dimensions}`; draw "
            "(0, 1), or leave `env` out."
        )
    closed = np.array(inner.walls[int(inner.num_open) :]).reshape(-1, 2, 2)
    return closed[..., list(dimensions)]


def _colors(
    evaluation: SkillEvaluation | SkillTrajectories,
) -> list[tuple[float, float, float]]:
    from matplotlib.colors import hsv_to_rgb

    if isinstance(evaluation, SkillEvaluation):
        skills = np.asarray(evaluation.skills)
        # Two one-hot skills are in the plane as well, but do not have a direction.
        if skills.shape[1] == 2 and not set(np.unique(skills)) <= {0.0, 1.0}:
            angles = np.arctan2(skills[:, 1], skills[:, 0])
            hues = (angles / (2 * np.pi)) % 1
            return [as_rgb(hsv_to_rgb((hue, 0.9, 0.8))) for hue in hues]
    return numbered_colors(evaluation.mask.shape[0])


def draw_repeats(
    path: str | os.PathLike[str],
    transitions: Transition[Extras],
    mask: Bool[Array, "episodes time"],
    *,
    title: str = "When the policy repeats",
) -> None:
    """Plots at which steps of an episode a policy of TAAC repeats.

    The upper panel has a row for each episode, dark where it repeats and light where it
    switches; the lower one shows the share of repeats at each step, among the episodes
    that last that long.

    **Arguments:**

    - `path`: file to write; its suffix decides the format: `.png`, `.pdf` or `.svg`.
    - `transitions`, `mask`: from `eqrl.rollout` of `TAAC`. If a wrapper stores its own
        extras, replace them by those of `TAAC`, with `dataclasses.replace`.
    - `title`: above the axes.
    """
    figure = new_figure("`draw_repeats`")
    extras = transitions.extras
    if not isinstance(extras, TAACExtras):
        raise ValueError(
            f"`transitions.extras` is a {type(extras).__name__}; it must be the "
            "`eqrl.TAACExtras` that `TAAC` stores."
        )
    within = np.asarray(mask)
    repeats = np.where(within, np.asarray(extras.repeats) > 1, np.nan)
    rows, share = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    num_episodes, time = repeats.shape
    # Below 0, so that a switch is not as white as the part after the end.
    rows.imshow(
        repeats,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=-0.25,
        vmax=1,
        extent=(0, time, num_episodes, 0),
    )
    rows.set_title(title)
    rows.set_ylabel("episode")
    playing = np.any(within, axis=0)
    steps = np.flatnonzero(playing)
    # The upper panel draws a step from its number to the next.
    share.step(steps + 0.5, np.nanmean(repeats[:, playing], axis=0), where="mid")
    share.set_ylim(0, 1)
    share.set_ylabel("share repeating")
    share.set_xlabel("step of the episode")
    share.grid(alpha=0.3)
    save_figure(figure, path)
