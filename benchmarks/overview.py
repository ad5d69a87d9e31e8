"""Draws the picture of the README.

Three presets with five seeds each, evaluated while they train, and the eight skills of
a point that DIAYN learns. The time includes compilation. Run it as
`nox -s benchmarks -- overview`.
"""

import time
from pathlib import Path
from typing import Any

import eqrl


# Before JAX does anything else.
eqrl.use_all_cores()

import jax.random as jr  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from PIL import Image  # noqa: E402

from eqrl.presets import PRESETS  # noqa: E402


IMAGES = Path(__file__).parents[1] / "docs" / "images"
NUM_SEEDS = 5
NUM_EPISODES = 16
SHOWN = (
    ("sac", "gymnax/Pendulum-v1", "SAC on Pendulum"),
    ("ppo", "gymnax/CartPole-v1", "PPO on CartPole"),
    ("ppo", "brax/inverted_pendulum", "PPO on brax's inverted pendulum"),
)


def draw_preset(axes: Any, agent_name: str, env_name: str, title: str) -> None:
    """Trains a preset and draws its curve."""
    preset = PRESETS[agent_name, env_name]
    agent, env = preset.make_agent(), preset.make_env()
    every = preset.num_steps // 20
    begin = time.perf_counter()
    solution = eqrl.train_seeds(
        agent,
        env,
        preset.make_trainer(),
        num_seeds=NUM_SEEDS,
        num_steps=preset.num_steps,
        log_every=every,
        key=jr.key(0),
        evaluations=eqrl.Evaluations(
            agent, env, every=every, num_episodes=NUM_EPISODES, key=jr.key(1)
        ),
    )
    returns = solution.metrics["evaluation_return"]
    minutes = (time.perf_counter() - begin) / 60
    measured = ~np.isnan(returns).any(axis=1)
    steps, returns = solution.metrics["step"][measured], returns[measured]
    low, high = eqrl.bootstrap_interval(returns)
    axes.plot(steps, returns.mean(axis=1))
    axes.fill_between(steps, low, high, alpha=0.25, linewidth=0)
    axes.set_title(f"{title}\n{NUM_SEEDS} seeds in {minutes:.1f} minutes", fontsize=10)
    axes.set_xlabel("environment steps")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    figure = Figure(figsize=(13, 3.1), layout="constrained")
    panels = figure.subplots(1, 4)
    for axes, shown in zip(panels, SHOWN, strict=False):
        draw_preset(axes, *shown)
    panels[0].set_ylabel("return of greedy episodes")
    # The picture that the page on skills makes.
    panels[3].imshow(Image.open(IMAGES / "point.png"), aspect="equal")
    panels[3].set_title("Eight skills by DIAYN, without a reward", fontsize=10)
    panels[3].axis("off")
    figure.savefig(IMAGES / "overview.png", dpi=110)


if __name__ == "__main__":
    main()
