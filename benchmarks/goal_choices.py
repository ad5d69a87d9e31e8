"""Skills of METRA on an ant and a cheetah put to use: SAC chooses among them.

The skills are those that a run of `nox -s papers -- metra` saves at its end. SAC learns
which of them to run for 25 steps, so that goals are reached or hurdles passed; the
skills do not see what for, and learn no more. Returns are means of 50 greedy episodes,
beside skills that are chosen at random. Run it as
`nox -s benchmarks -- goal_choices --task AntMultiGoals --skills FOLDER`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl
from eqrl._storage.checkpoint import saved_steps

from .goals import Goals, WithoutLast
from .hurdles import HalfCheetahHurdle
from .papers.metra import PAPER, Unrewarded
from .papers.standardized import FILE, Standardized


NUM_HELD, NUM_ENVS, NUM_EPISODES = 25, 8, 50
CHOICES = 200 // NUM_HELD
# Experiments of the paper.
ANT, CHEETAH = range(2)
TASKS = {"AntMultiGoals": ANT, "HalfCheetahGoal": CHEETAH, "HalfCheetahHurdle": CHEETAH}


def make_task(name: str, world: Any) -> Any:
    """A task of METRA's paper in a world of standardized observations."""
    if name == "AntMultiGoals":
        return Goals(world, 7.5, 3.0, 2.5, 50)
    if name == "HalfCheetahGoal":
        return Goals(world, 100.0, 3.0, 10.0, None)
    hurdles = eqrl.envs.GymnasiumEnv(
        HalfCheetahHurdle, max_steps=200, state_descriptor="x"
    )
    constants = json.loads(FILE.read_text())["envpool/HalfCheetah-v4"]
    # The next hurdle and the way to it, in some tens of meters.
    mean, deviation = constants["mean"] + [0.0] * 2, constants["deviation"] + [10.0] * 2
    return Standardized(hurdles, jnp.asarray(mean), jnp.asarray(deviation))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--skills", type=Path, required=True)
    parser.add_argument("--num-choices", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    # Those of METRA's release.
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--discount", type=float, default=0.99)
    arguments = parser.parse_args()
    experiment = PAPER.experiments[TASKS[arguments.task]]
    contender = experiment.contenders["METRA"]
    assert isinstance(contender, Unrewarded)
    world = experiment.make_env()
    skilled = contender.make_agent(world)
    like = eqx.filter_eval_shape(skilled.init, world.spec, key=jr.key(0))
    learned = eqrl.restore(arguments.skills, like)
    task = make_task(arguments.task, world)
    num_hidden = task.spec.observation_size - world.spec.observation_size
    choice = eqrl.SkillChoice(
        task,
        WithoutLast(skilled, num_hidden),
        learned,
        None,
        num_steps=NUM_HELD,
    )
    agent = eqrl.SAC(
        actor_lr=arguments.lr,
        critic_lr=arguments.lr,
        temperature_lr=arguments.lr,
        initial_temperature=0.1,
        discount=arguments.discount,
    )
    # 50 updates after 8 episodes, as in METRA's release.
    trainer = eqrl.Trainer(
        num_envs=NUM_ENVS,
        steps_per_iteration=CHOICES,
        updates_per_iteration=50,
        warmup_steps=10 * NUM_ENVS * CHOICES,
    )
    print(f"{arguments.task}: skills after {saved_steps(arguments.skills)[-1]} steps")
    print("choices,return,random,seconds", flush=True)
    key = jr.key(arguments.seed)

    def played(state: Any, mode: Any) -> float:
        rows, mask = eqrl.rollout(
            agent, state, choice, num_episodes=NUM_EPISODES, key=key, mode=mode
        )
        returns = np.sum(np.asarray(rows.reward * mask), axis=1)
        return float(returns.mean())

    random = played(agent.init(choice.spec, key=key), "random")
    every = arguments.num_choices // 10 // (NUM_ENVS * CHOICES) * NUM_ENVS * CHOICES

    start = time.perf_counter()

    def report(step: int, metrics: dict[str, Any], solution: Any) -> None:
        del metrics
        seconds = time.perf_counter() - start
        shown = f"{played(solution.state, 'greedy'):.2f},{random:.2f},{seconds:.0f}"
        print(f"{step},{shown}", flush=True)

    eqrl.train(
        agent,
        choice,
        trainer,
        num_steps=10 * every,
        key=key,
        log_every=every,
        callback=report,
    )


if __name__ == "__main__":
    main()
