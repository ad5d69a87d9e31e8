"""Time of an update of SAC with each intrinsic reward, beside SAC's own.

Updates from one batch of 256, with the sizes of brax's Ant, hidden layers of 256 and
256 in agent and reward; rewards with skills have 8 one-hot ones, or 2 dimensions. A
reward with skills is compared with SAC that has the same skills and no reward, others
with SAC alone. Ratios are medians of rounds. Run it as `nox -s benchmarks --
reward_cost`.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.random as jr

import eqrl

from .agent_rows import ACTION_SIZE, OBSERVATION_SIZE, make_batch, make_updates
from .measure import median_ratio, side_by_side


SPEC = eqrl.EnvSpec(OBSERVATION_SIZE, ACTION_SIZE)
ONE_HOT, SPHERE, CUBE = eqrl.OneHotSkills(8), eqrl.SphereSkills(), eqrl.UniformSkills(2)
SEEN: Any = {"descriptor": "observation"}

REWARDS: dict[str, tuple[Callable[[Any], Any], eqrl.AbstractSkillPrior | None]] = {
    "Discriminator (DIAYN)": (lambda z: eqrl.Discriminator(z, **SEEN), ONE_HOT),
    "METRA": (eqrl.METRA, SPHERE),
    "LSD": (eqrl.LSD, SPHERE),
    "CIC": (eqrl.CIC, CUBE),
    "DADS, one-hot": (lambda z: eqrl.DADS(z, **SEEN), ONE_HOT),
    "DADS, 16 draws": (lambda z: eqrl.DADS(z, **SEEN), CUBE),
    "DADS of positions, 16 draws": (
        lambda z: eqrl.DADS(z, descriptor=lambda observation: observation[:2]),
        CUBE,
    ),
    "SMERL": (lambda z: eqrl.SMERL(eqrl.Discriminator(z, **SEEN)), ONE_HOT),
    "ParticleEntropy (APT)": (lambda _: eqrl.ParticleEntropy(), None),
    "RND": (lambda _: eqrl.RND(), None),
    "ICM": (lambda _: eqrl.ICM(), None),
    "Disagreement": (lambda _: eqrl.Disagreement(), None),
}


def make_run(agent: Any, num_updates: int) -> Callable[[], Any]:
    batch = make_batch(agent, SPEC, key=jr.key(2))
    returns = jnp.linspace(-200, 200, batch.reward.size).reshape(batch.reward.shape)
    batch = dataclasses.replace(batch, episode_return=returns)
    run = make_updates(agent, SPEC, batch)
    return lambda: run(num_updates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    runs = {"SAC": make_run(eqrl.SAC(), arguments.updates)}
    own: dict[str, str] = {"SAC": "SAC"}
    for prior in (ONE_HOT, SPHERE):
        name = f"SAC with {prior.size} elements of skill"
        agent = eqrl.SkillConditioned(eqrl.SAC(), prior)
        runs[name], own[name] = make_run(agent, arguments.updates), "SAC"
    for name, (make, prior) in REWARDS.items():
        inner: Any = eqrl.SAC()
        if prior is not None:
            inner = eqrl.SkillConditioned(inner, prior)
        agent = eqrl.Intrinsic(inner, make(prior))
        runs[name] = make_run(agent, arguments.updates)
        size = None if prior is None else prior.size
        own[name] = "SAC" if size is None else f"SAC with {size} elements of skill"
    times = side_by_side(runs, repeats=arguments.repeats)
    print("| reward | updates/s | time / that of SAC with the same skills |")
    print("|---|---|---|")
    for name, taken in times.items():
        speed = arguments.updates / statistics.median(taken)
        ratio = median_ratio(taken, times[own[name]])
        print(f"| {name} | {speed:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
