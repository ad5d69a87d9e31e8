"""How different skills are that DISk learns one after another on a point in the plane.

Hidden layers of 64 and 64, batches of 128, learning rates of 1e-3, one environment, 5
collected episodes a skill; except where walls open, initial temperatures of 0.1 and 60
random steps a skill. Skills are evaluated greedily. Run it as `nox -s benchmarks --
disk`; `--pictures FOLDER` draws their paths.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax.random as jr

import eqrl
from eqrl.envs import Point, sector_of, sectors


HIDDEN_SIZES = (64, 64)
NUM_SKILLS = 5
ENV = Point(max_steps=20)
# A step or two leave this room. In a larger one, a walk to and fro would long be as
# good as a walk straight out of it.
RADIUS = 0.14
WALLS = sectors(4, radius=RADIUS)


def make_sac(initial_temperature: float = 0.1) -> eqrl.SAC:
    return eqrl.SAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        initial_temperature=initial_temperature,
        make_actor=eqrl.nn.Gaussian(HIDDEN_SIZES),
        make_critic=eqrl.nn.Critic(HIDDEN_SIZES),
    )


def learn(
    world: Any,
    sac: eqrl.SAC,
    *,
    steps: int,
    seed: int,
    warmup_steps: int = 60,
    replay: Literal["keep", "half", "clear", "random_half"] | None = None,
    **options: Any,
) -> tuple[eqrl.Intrinsic[Any, Any, Any, Any], eqrl.Skills[Any]]:
    """Skills one after another; the last options are those of the reward."""
    agent = eqrl.Intrinsic(sac, eqrl.Incremental(**options))
    skills = eqrl.learn_skills(
        agent,
        world,
        eqrl.Trainer(batch_size=128, warmup_steps=warmup_steps),
        num_skills=NUM_SKILLS,
        num_steps=steps,
        num_collected_episodes=5,
        replay=replay,
        key=jr.key(seed),
    )
    return agent, skills


def ends_of(trajectories: Any) -> Any:
    return eqrl.terminal_descriptors(trajectories.descriptors, trajectories.mask)


def disk(seed: int, steps: int = 600, **options: Any) -> Any:
    """The paths of skills in a world that does not change."""
    agent, skills = learn(ENV, make_sac(), steps=steps, seed=seed, **options)
    return eqrl.play_skills(agent, skills, ENV, num_episodes=1, key=jr.key(0))


def diayn(seed: int, steps: int) -> Any:
    """The paths of as many skills that are learned together."""
    agent = eqrl.diayn(
        make_sac(),
        NUM_SKILLS,
        lr=1e-3,
        make_network=eqrl.nn.CategoricalDiscriminator(HIDDEN_SIZES),
    )
    solution = eqrl.train(
        agent,
        ENV,
        eqrl.Trainer(batch_size=128, warmup_steps=60),
        num_steps=steps,
        key=jr.key(seed),
    )
    return eqrl.evaluate_skills(
        agent, solution.state, ENV, num_episodes=1, key=jr.key(0)
    )


def corners(seeds: list[int], pictures: Path | None) -> None:
    """Distances between the ends of five skills, by options."""
    variants: dict[str, dict[str, Any]] = {
        "defaults": {},
        "batch_mean, replay cleared": {
            "normalization": "batch_mean",
            "replay": "clear",
        },
        "replay kept": {"replay": "keep"},
        "replay cleared": {"replay": "clear"},
        "next_state": {"feature": "next_state"},
        "no normalization": {"normalization": "none"},
        "released": {"mode": "released"},
        "pseudocode": {"mode": "pseudocode"},
    }
    print("| variant | mean distance of pairs | to the nearest | minutes |")
    print("|---|---|---|---|")
    for name, options in variants.items():
        begin = time.perf_counter()
        results = [disk(seed, **options) for seed in seeds]
        pairs = [float(eqrl.pairwise_hausdorff(ends_of(each))) for each in results]
        nearest = [float(eqrl.nearest_distance(ends_of(each))) for each in results]
        minutes = (time.perf_counter() - begin) / 60
        print(
            f"| {name} | {listed(pairs)} | {listed(nearest)} | {minutes:.1f} |",
            flush=True,
        )
        if pictures is not None and name == "defaults":
            eqrl.draw_skills(pictures / "disk.png", results[0])


def against_diayn(seeds: list[int], pictures: Path | None) -> None:
    """The distance of each skill from the union of the others, for equal steps."""
    del pictures
    print("| steps | DISk | mean | DIAYN | mean |")
    print("|---|---|---|---|---|")
    for steps in (3_000, 40_000):
        rows = []
        for results in (
            [disk(seed, steps // NUM_SKILLS) for seed in seeds],
            [diayn(seed, steps) for seed in seeds],
        ):
            apart = [float(eqrl.union_hausdorff(ends_of(each))) for each in results]
            rows.append(f"{listed(apart)} | {statistics.mean(apart):.2f}")
        print(f"| {steps:,} | {rows[0]} | {rows[1]} |", flush=True)


def opening_world(skill: int) -> Point:
    return Point(max_steps=20, walls=WALLS, num_open=skill)


def opening(seeds: list[int], pictures: Path | None) -> None:
    """The final sector of each skill in a world that opens to one more before each."""
    print("| seed | sectors in which skills 0 to 4 end (-1: the room) |")
    print("|---|---|")
    for seed in seeds:
        agent, skills = learn(
            opening_world,
            make_sac(initial_temperature=0.3),
            steps=2_000,
            seed=seed,
            warmup_steps=200,
            replay="clear",
            feature="next_state",
            alpha=0.1,
        )
        played = eqrl.play_skills(
            agent, skills, opening_world(4), num_episodes=1, key=jr.key(0)
        )
        where = sector_of(ends_of(played)[:, 0], radius=RADIUS)
        print(f"| {seed} | {', '.join(str(int(each)) for each in where)} |", flush=True)
        if pictures is not None and seed == seeds[0]:
            eqrl.draw_skills(
                pictures / "opening.png",
                played,
                names=("x", "y"),
                env=opening_world(4),
            )


TASKS: dict[str, Callable[[list[int], Path | None], None]] = {
    "corners": corners,
    "against-diayn": against_diayn,
    "opening": opening,
}


def listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--num-seeds", type=int, default=5)
    parser.add_argument("--pictures", type=Path)
    arguments = parser.parse_args()
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    for name in arguments.tasks:
        print(f"\n{name}")
        TASKS[name](list(range(arguments.num_seeds)), arguments.pictures)


if __name__ == "__main__":
    main()
