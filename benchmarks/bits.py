"""Digests of short trainings, to show that a change of the code changes no result.

Every agent of `tests/agents_under_test.py` is trained for a few hundred steps, and so
are SMERL, an agent whose replay shares the frames of stacked images, seeds, populations
and skills learned one after another. Each line is a name and a digest of every number
of the result: states, replay and metrics. The order of the fields and their names do
not enter, so code may move. The same code gives the same bits on the same machine only.

Run it as `nox -s benchmarks -- bits --output before.json` before a change, and as
`nox -s benchmarks -- bits --check before.json` after it.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl
from tests.agents_under_test import ALL_AGENTS, diayn, env_of, sac, td3, trainer_of
from tests.training import test_frames


ENV = eqrl.envs.Point(max_steps=10, goal=(0.3, 0.1))
TRAINER = eqrl.Trainer(
    num_envs=2, batch_size=16, capacity=200, warmup_steps=40, steps_per_iteration=1
)


def train(agent: Any) -> Any:
    """One agent, with rows of metrics that are averages."""
    env, trainer = env_of(agent), trainer_of(agent, TRAINER)
    return eqrl.train(agent, env, trainer, num_steps=300, key=jr.key(0), log_every=100)


def train_smerl() -> Any:
    """SMERL, whose replay knows the returns of episodes."""
    make_replay = functools.partial(eqrl.ReplayBuffer, episode_returns=True)
    return eqrl.train(
        eqrl.Intrinsic(
            eqrl.SkillConditioned(sac(), 2),
            eqrl.SMERL(eqrl.Discriminator(2, descriptor="observation")),
            environment_weight=1.0,
        ),
        ENV,
        dataclasses.replace(TRAINER, make_replay=make_replay),
        num_steps=300,
        key=jr.key(7),
        log_every=100,
    )


def train_on_images() -> Any:
    """DQN on stacked images, whose frames the replay shares."""
    return eqrl.train(
        test_frames.DQN,
        test_frames.ENV,
        test_frames.REPLAY,
        num_steps=300,
        key=jr.key(8),
        log_every=100,
    )


def train_seeds(members: Any) -> Any:
    """Three seeds of SAC."""
    return eqrl.train_seeds(
        sac(),
        ENV,
        TRAINER,
        num_seeds=3,
        num_steps=200,
        key=jr.key(1),
        log_every=100,
        members=members,
    )


def train_population(agent: Any, members: Any) -> Any:
    """Four members that replace each other over three generations."""
    solution = eqrl.train_population(
        agent,
        ENV,
        TRAINER,
        eqrl.PBT(
            where=lambda agent: (agent.actor_lr, agent.discount),
            priors=(
                eqrl.LogUniform(1e-4, 1e-2),
                eqrl.OneMinus(eqrl.LogUniform(1e-3, 1e-1)),
            ),
            num_replaced=2,
            num_elite=2,
        ),
        size=4,
        num_generations=3,
        steps_per_generation=100,
        num_episodes=2,
        key=jr.key(2),
        members=members,
    )
    winner = eqrl.best(solution.states, solution.returns[-1])
    evaluation = eqrl.evaluate(agent, winner, ENV, num_episodes=3, key=jr.key(3))
    return solution, evaluation


def learn_skills() -> Any:
    """Two skills of DISk and their episodes."""
    agent = eqrl.Intrinsic(
        sac(), eqrl.Incremental(descriptor="observation", recent_capacity=8)
    )
    skills = eqrl.learn_skills(
        agent,
        ENV,
        TRAINER,
        num_skills=2,
        num_steps=120,
        num_collected_episodes=2,
        key=jr.key(4),
        log_every=40,
    )
    played = eqrl.play_skills(agent, skills, ENV, num_episodes=2, key=jr.key(5))
    return skills, played


def evaluate_skills() -> Any:
    """The skills of DIAYN, one of them fine-tuned, and a choice among them."""
    agent = diayn(sac(), descriptor="observation")
    solution = train(agent)
    return eqrl.evaluate_skills(
        agent, solution.state, ENV, num_episodes=2, key=jr.key(6)
    )


def make_runs() -> dict[str, Callable[[], Any]]:
    """All trainings, by name."""
    runs: dict[str, Callable[[], Any]] = {
        name: lambda agent=agent: train(agent) for name, agent in ALL_AGENTS.items()
    }
    runs["SMERL(SAC)"] = train_smerl
    runs["shared frames"] = train_on_images
    runs["seeds(SAC)"] = lambda: train_seeds("together")
    runs["seeds(SAC)-in_turn"] = lambda: train_seeds("in_turn")
    for members in ("in_turn", "together"):
        runs[f"population(SAC)-{members}"] = lambda members=members: train_population(
            sac(), members
        )
    runs["population(TD3)-in_turn"] = lambda: train_population(td3(), "in_turn")
    runs["learn_skills"] = learn_skills
    runs["evaluate_skills"] = evaluate_skills
    return runs


def digest(tree: Any) -> str:
    """A digest of all arrays and numbers of a tree, in any order."""
    leaves = [
        hashlib.sha256(_content(leaf)).hexdigest()
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float)
    ]
    return hashlib.sha256("".join(sorted(leaves)).encode()).hexdigest()


def _content(leaf: Any) -> bytes:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jr.key_data(leaf)
    array = np.ascontiguousarray(leaf)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="names to run")
    parser.add_argument("--output", type=Path, help="where to write the digests")
    parser.add_argument("--check", type=Path, help="digests of an earlier run")
    arguments = parser.parse_args()

    runs = make_runs()
    unknown = sorted({*arguments.only} - {*runs})
    if unknown:
        raise SystemExit(f"Nothing is called {unknown}; there are {', '.join(runs)}.")
    expected = json.loads(arguments.check.read_text()) if arguments.check else {}
    digests: dict[str, str] = {}
    differing: list[str] = []
    for name, run in runs.items():
        if arguments.only and name not in arguments.only:
            continue
        digests[name] = digest(run())
        note = ""
        if arguments.check and digests[name] != expected.get(name):
            differing.append(name)
            note = f"  differs from {expected.get(name, 'nothing')[:16]}"
        print(f"{name:<32}{digests[name][:16]}{note}", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(digests, indent=2) + "\n")
    gone = sorted({*expected} - {*runs})
    if gone:
        print(f"Only in {arguments.check}: {', '.join(gone)}.")
    if differing or gone:
        sys.exit(f"{len(differing)} of {len(digests)} differ: {', '.join(differing)}.")


if __name__ == "__main__":
    main()
