"""Every method that learns without a reward, side by side on a point, with pictures.

The point moves by at most 0.1 in all directions, 50 steps an episode. SAC, or `CSF`,
learns from each method alone for 20,000 steps and as many updates, with batches of 128,
hidden layers of 64 and 64, rates of 1e-3 and an initial temperature of 0.1. `SMERL`,
which needs a task, has to get around a wall with one-hot skills.

The table has, for each seed, the cells of 0.5 by 0.5 that 16 greedy skills visit
together, and one alone on the mean; the mean distance from eight goals, 4 away from the
start, of the nearest end of a skill; the cells of all states in training; and the rank
correlation between distances in the learned space and the steps between two states of
an episode, for methods with such a space. Run it as
`nox -s benchmarks -- skill_methods --folder docs/images/methods`.
"""

import argparse
import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from scipy.stats import rankdata

import eqrl
from eqrl.envs import Point

from .disk import HIDDEN_SIZES, make_sac
from .point_skills import CELL, NUM_SKILLS, OnDisc, shown_skills
from .skill_choices import GOAL, WALLS, Reaching


NUM_STEPS, EDGE = 20_000, 5.5
CIRCLE = eqrl.SphereSkills()
CUBE = eqrl.UniformSkills(16, low=0.0, high=1.0)
FEATURES = eqrl.nn.Features(HIDDEN_SIZES)
# Each learns at the same rate, with networks of one size.
COMMON: dict[str, Any] = {"lr": 1e-3, "make_network": FEATURES}
WITH_SKILLS: dict[str, tuple[eqrl.AbstractSkillPrior, Any]] = {
    "DIAYN": (
        CIRCLE,
        eqrl.Discriminator(
            CIRCLE,
            lr=1e-3,
            make_network=eqrl.nn.VonMisesFisherDiscriminator(HIDDEN_SIZES),
        ),
    ),
    "METRA": (CIRCLE, eqrl.METRA(CIRCLE, multiplier_lr=1e-3, **COMMON)),
    "LSD": (CIRCLE, eqrl.LSD(CIRCLE, **COMMON)),
    "CSF": (CIRCLE, None),
    "DADS": (CIRCLE, eqrl.DADS(CIRCLE, dynamics_input="descriptor", **COMMON)),
    "CIC": (CUBE, eqrl.CIC(CUBE, **COMMON)),
}
OF_NOVELTY: dict[str, Any] = {
    "RND": eqrl.RND(**COMMON),
    "APT": eqrl.ParticleEntropy(**COMMON),
    "ICM": eqrl.ICM(**COMMON),
    "Disagreement": eqrl.Disagreement(**COMMON),
}


def make_agent(name: str) -> Any:
    if name in OF_NOVELTY:
        return eqrl.Intrinsic(make_sac(), OF_NOVELTY[name])
    prior, reward = WITH_SKILLS[name]
    if reward is not None:
        return eqrl.Intrinsic(eqrl.SkillConditioned(make_sac(), prior), reward)
    csf = eqrl.CSF(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        phi_lr=1e-3,
        initial_temperature=0.1,
        make_actor=eqrl.nn.Gaussian(HIDDEN_SIZES),
        make_critic=FEATURES,
        make_phi=FEATURES,
    )
    return eqrl.SkillConditioned(csf, prior)


def representation(name: str, agent: Any, state: Any) -> Any:
    """A function from observations to the learned space, if there is one."""
    if name in ("METRA", "LSD"):
        return lambda seen: agent.reward.represent(state.reward, seen)
    phi_of = lambda seen: jax.vmap(state.phi)(seen.reshape(-1, seen.shape[-1]))
    if name == "CSF":
        return lambda seen: phi_of(seen).reshape(*seen.shape[:-1], -1)
    return None


def cells(positions: Float[np.ndarray, "*places 2"]) -> int:
    found = np.floor(positions.reshape(-1, 2) / CELL)
    return len(np.unique(found, axis=0))


def draw_paths(axes: Any, paths: Float[np.ndarray, "skills time 2"]) -> None:
    for index, path in enumerate(paths):
        color = colormaps["hsv"](index / len(paths))
        axes.plot(*path.T, color=color, linewidth=1.2)
        axes.plot(*path[-1], "o", color=color, markersize=3)


def draw_occupancy(axes: Any, positions: Float[np.ndarray, "rows 2"]) -> None:
    """How often training was in each cell, on a logarithmic scale."""
    edges = np.arange(-EDGE, EDGE + CELL, CELL)
    counts, _, _ = np.histogram2d(*positions.T, bins=[edges, edges])
    axes.pcolormesh(
        edges, edges, np.ma.masked_equal(counts.T, 0), norm=LogNorm(1, 5_000)
    )


def prepare(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[], yticks=[])
    axes.set_aspect("equal")


def save(figure: Figure, folder: Path, name: str) -> None:
    figure.savefig(folder / f"{name}.png", dpi=72)


def train(agent: Any, env: Any, num_seeds: int, **options: Any) -> Any:
    trainer = eqrl.Trainer(batch_size=128, capacity=NUM_STEPS, **options)
    return eqrl.train_seeds(
        agent,
        env,
        trainer,
        num_seeds=num_seeds,
        num_steps=NUM_STEPS,
        key=jr.key(0),
    )


def seed_of(tree: Any, seed: int) -> Any:
    return jax.tree.map(lambda x: x[seed] if eqx.is_array(x) else x, tree)


def measure(name: str, num_seeds: int, folder: Path, panels: dict[str, Any]) -> None:
    """Trains a method, prints its lines of the table and draws its pictures."""
    env, agent = OnDisc(Point()), make_agent(name)
    solution = train(agent, env, num_seeds)
    angles = 2 * np.pi * np.arange(8) / 8
    goals = 4 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for seed in range(num_seeds):
        state, replay = seed_of((solution.state, solution.trainer_state.replay), seed)
        training = np.asarray(replay.data.next_observation).reshape(-1, 4)[:, :2]
        line, paths = [name, f"{seed}", "", "", "", f"{cells(training)}", ""], None
        if name in WITH_SKILLS:
            skills = NUM_SKILLS if name == "CIC" else shown_skills("on the circle")
            played = eqrl.evaluate_skills(
                agent,
                state,
                env,
                num_episodes=1,
                key=jr.key(1),
                skills=skills,
                descriptor="observation",
            )
            if name == "METRA" and seed == 0:
                eqrl.draw_skills(folder / "metra.gif", played, names=("x", "y"))
            paths = np.asarray(played.descriptors[:, 0, :, :2])
            away = np.linalg.norm(paths[:, -1, None] - goals[None], axis=-1).min(axis=0)
            alone = np.mean([cells(path) for path in paths])
            line[2:5] = f"{cells(paths)}", f"{alone:.1f}", f"{away.mean():.2f}"
            represent = representation(name, agent, state)
            if represent is not None:
                points = np.asarray(represent(played.descriptors))[:, 0]
                line[6] = f"{rank_correlation(points):.2f}"
        print(",".join(line), flush=True)
        if seed == 0:
            figure = Figure(figsize=(5.6, 2.9), layout="constrained")
            left, right = figure.subplots(1, 2)
            if paths is None:
                half = len(training) // 2
                shown = {"first half of training": training[:half]}
                shown["second half"] = training[half:]
                for axes, (title, part) in zip(
                    (left, right), shown.items(), strict=True
                ):
                    prepare(axes, title)
                    draw_occupancy(axes, part)
            else:
                prepare(left, f"{NUM_SKILLS} skills")
                draw_paths(left, paths)
                prepare(right, "states in training")
                draw_occupancy(right, training)
            save(figure, folder, name.lower())
            panels[name] = training if paths is None else paths


def rank_correlation(points: Float[np.ndarray, "skills time size"]) -> float:
    """Spearman's, of distances with the numbers of steps between, over all episodes."""
    first, second = np.triu_indices(points.shape[1], k=1)
    distances = np.linalg.norm(points[:, second] - points[:, first], axis=-1)
    steps = np.broadcast_to(second - first, distances.shape)
    ranks = rankdata(distances), rankdata(steps)
    return float(np.corrcoef(*(each.ravel() for each in ranks))[0, 1])


def solve_in_several_ways(folder: Path) -> None:
    """Trains SAC alone, then with `SMERL`, and draws the ways around a wall."""
    task = Reaching(OnDisc(Point(max_steps=100, walls=WALLS)), False)
    alone = train(make_sac(), task, 1)
    best = eqrl.evaluate(
        make_sac(), seed_of(alone.state, 0), task, num_episodes=1, key=jr.key(1)
    )
    target = float(best.returns.mean())
    agent = eqrl.Intrinsic(
        eqrl.SkillConditioned(make_sac(), 5),
        eqrl.SMERL(
            eqrl.Discriminator(
                5,
                lr=1e-3,
                make_network=eqrl.nn.CategoricalDiscriminator(HIDDEN_SIZES),
            ),
            target=target,
            margin=0.3 * target,
            scale=0.5,
        ),
        environment_weight=1.0,
    )
    replay = functools.partial(eqrl.ReplayBuffer, episode_returns=True)
    solution = train(agent, task, 1, make_replay=replay)
    state = seed_of(solution.state, 0)
    played = eqrl.evaluate_skills(agent, state, task, num_episodes=1, key=jr.key(1))
    print(f"SMERL: target {target:.1f}, returns {np.asarray(played.returns)[:, 0]}")
    figure = Figure(figsize=(3.6, 2.9), layout="constrained")
    axes = figure.subplots()
    draw_paths(axes, np.asarray(played.descriptors[:, 0]))
    for wall in WALLS:
        axes.plot(*np.array(wall).T, color="black", linewidth=2)
    axes.plot(*GOAL, "*", color="black")
    axes.set_aspect("equal")
    axes.set(xticks=[], yticks=[], title="5 skills around a wall")
    save(figure, folder, "smerl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("methods"))
    names = [*WITH_SKILLS, *OF_NOVELTY]
    parser.add_argument("--methods", nargs="+", default=names, choices=names)
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    panels: dict[str, Any] = {}
    print("method,seed,cells,cells_alone,distance,training_cells,rank_correlation")
    for name in arguments.methods:
        measure(name, arguments.num_seeds, folder, panels)
    if len(panels) < len(names):
        # The rest is about all of them.
        return
    env, agent, key = OnDisc(Point()), make_sac(), jr.key(0)
    played, _ = eqrl.rollout(
        agent,
        agent.init(env.spec, key=key),
        env,
        num_episodes=NUM_STEPS // 50,
        key=key,
        mode="random",
    )
    uniform = np.asarray(played.next_observation[..., :2])
    print(f"uniform actions,0,,,,{cells(uniform)},", flush=True)
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    for axes, (name, shown) in zip(
        figure.subplots(2, 5).ravel(), panels.items(), strict=False
    ):
        prepare(axes, name)
        draw = draw_paths if name in WITH_SKILLS else draw_occupancy
        draw(axes, shown)
    save(figure, folder, "all")
    solve_in_several_ways(folder)


if __name__ == "__main__":
    main()
