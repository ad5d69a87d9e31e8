import sys
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jax.sharding import Mesh

from .._agents import AbstractAgent
from .._population import PBT, PopulationSolution, member, train_population
from .._population.evaluation import check_scalar
from .._population.lineage import scores_of, winner_of
from .._population.mesh import check_mesh
from .._reporting.progress import PopulationProgressBar
from .._run import (
    Population,
    Run,
    claim_folder,
    write_config,
    write_evaluation,
    write_population,
)
from .._training.solution import TrainingInterrupted
from .._training.trainer import Trainer
from ..envs import AbstractEnv
from .commands import Pbt
from .evaluate import NUM_EPISODES, returns_of_policies
from .folder import new_folder


def run_pbt(command: Pbt) -> int:
    """Trains a population, writes the folder of the run, and gives the exit code."""
    run, schedule = command.run, command.run.schedule
    agent, env, trainer = run.make_agent(), run.make_env(), run.make_trainer()
    train_key, evaluation_key = jr.split(jr.key(run.settings.seed))
    pbt = schedule.make_pbt(agent, run.priors)
    mesh = _make_mesh(schedule.devices)
    _check(run, agent, env, trainer, pbt, mesh)
    folder = command.folder or new_folder(run)
    claim_folder(folder)
    write_config(folder, run)
    exit_code = 0
    with PopulationProgressBar(
        schedule.num_generations, schedule.steps_per_generation
    ) as progress:
        try:
            solution = train_population(
                agent,
                env,
                trainer,
                pbt,
                size=schedule.size,
                num_generations=schedule.num_generations,
                steps_per_generation=schedule.steps_per_generation,
                num_episodes=schedule.num_episodes,
                key=train_key,
                mesh=mesh,
                members=schedule.members,
                callback=progress,
            )
        except TrainingInterrupted as error:
            solution, exit_code = error.solution, 130
    if exit_code == 130:
        print(
            "eqrl: Training was interrupted; what was reached is kept.", file=sys.stderr
        )
    scores = scores_of(solution, None)
    if np.any(np.isnan(scores[-1])):
        failed = ", ".join(str(index) for index in np.flatnonzero(np.isnan(scores[-1])))
        print(
            "eqrl: An observation, an action or a reward became nan or infinite in the "
            f"members {failed}.",
            file=sys.stderr,
        )
    num_generations = len(solution.returns)
    if num_generations * schedule.steps_per_generation <= trainer.warmup_steps:
        print(
            f"eqrl: No update was made: the first {trainer.warmup_steps} steps act at "
            "random (--warmup-steps).",
            file=sys.stderr,
        )
    write_population(folder, run, solution)
    returns = returns_of_policies(
        [
            (member(solution.agents, index), member(solution.states, index))
            for index in range(schedule.size)
        ],
        env,
        num_episodes=NUM_EPISODES,
        mode="greedy",
        key=evaluation_key,
    )
    # Chosen by other episodes than those by which it is judged here.
    best = winner_of(scores)
    step = num_generations * schedule.steps_per_generation
    write_evaluation(folder, returns, step=step, mode="greedy", best=best)
    _report(run, solution, returns.mean(axis=1), best)
    print(f"folder: {folder}")
    return exit_code


def _make_mesh(num_devices: int | None) -> Mesh | None:
    if num_devices is None:
        return None
    devices = jax.devices()
    if not 1 <= num_devices <= len(devices):
        raise ValueError(
            f"`devices={num_devices}` must be from 1 to {len(devices)}, which is how "
            "many JAX has here. Of a processor it makes more where "
            "`XLA_FLAGS=--xla_force_host_platform_device_count=N` is set."
        )
    return Mesh(np.array(devices[:num_devices]), ("population",))


def _check(
    run: Run[Population],
    agent: AbstractAgent[Any, Any, Any],
    env: AbstractEnv[Any],
    trainer: Trainer,
    pbt: PBT,
    mesh: Mesh | None,
) -> None:
    """Raises what `train_population` would raise, before anything is written."""
    trainer.check_num_steps(run.schedule.steps_per_generation)
    check_mesh(mesh, run.schedule.size)
    check_scalar(env)
    eqx.filter_eval_shape(pbt.init, agent, run.schedule.size, key=jr.key(0))
    eqx.filter_eval_shape(trainer.init, agent, env, key=jr.key(0))


def _report(
    run: Run[Population],
    solution: PopulationSolution,
    means: np.ndarray,
    best: int,
) -> None:
    histories = run.by_given_names(solution.hyperparameters)
    values = ", ".join(
        f"{name} {history[-1, best]:.3g}" for name, history in histories.items()
    )
    print(f"mean return of {NUM_EPISODES} greedy episodes:")
    print(f"all members: {means.mean():.1f}")
    print(f"best member, {best}: {means[best]:.1f} with {values}")
