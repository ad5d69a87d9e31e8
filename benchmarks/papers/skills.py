"""Paths of skills: their files and their pictures."""

import csv
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import eqrl

from .paper import Trajectories


POINTS_OF_EPISODE = 25


def write_skills(path: Path, played: Trajectories) -> None:
    """Writes about 25 positions of each episode, the last one among them."""
    descriptors, mask = np.asarray(played.descriptors), np.asarray(played.mask)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        axes = ("x", "y")[: descriptors.shape[-1]]
        writer.writerow(["skill", "episode", "step", *axes])
        spacing = -(-mask.shape[2] // POINTS_OF_EPISODE)
        for skill, episode in np.ndindex(mask.shape[:2]):
            length = int(mask[skill, episode].sum())
            for step in sorted({*range(1, length + 1, spacing), length}):
                point = descriptors[skill, episode, step - 1]
                shown = [f"{x:.4g}" for x in point]
                writer.writerow([skill, episode, step, *shown])


def read_skills(path: Path) -> eqrl.SkillTrajectories:
    """Reads what `write_skills` wrote; steps between its points are interpolated."""
    rows = np.genfromtxt(path, delimiter=",", skip_header=1, ndmin=2)
    skill, episode, step = rows[:, :3].T.astype(int)
    sizes = skill.max() + 1, episode.max() + 1, step.max()
    descriptors = np.zeros((*sizes, rows.shape[1] - 3))
    mask = np.zeros(sizes, bool)
    steps = np.arange(1, sizes[2] + 1)
    for index in np.ndindex(sizes[:2]):
        own = (skill == index[0]) & (episode == index[1])
        mask[index] = steps <= step[own].max()
        for axis, values in enumerate(rows[own, 3:].T):
            descriptors[index][:, axis] = np.interp(steps, step[own], values)
    return eqrl.SkillTrajectories(
        descriptors=jnp.asarray(descriptors, jnp.float32), mask=jnp.asarray(mask)
    )
