import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._interaction.evaluate import Evaluation
from .._interaction.evaluate_skills import Score, diversity_return, evaluate_skills
from .._population.pbt import PBT
from .._population.solution import PopulationSolution, member, scores_of, winner_of
from .._population.train import check_scalar, train_population
from .._reporting.progress import PopulationProgressBar
from .._run.config import Population, Run
from .._run.files import checkpoints_folder
from .._run.solutions import load_solution, step_of
from .._run.write import (
    draw_population,
    named_and_dated,
    write_generations,
    write_members,
    write_skills_of_member,
)
from .._storage.checkpoint import saved_steps
from .._training.mesh import check_mesh
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from .commands import Pbt
from .devices import make_mesh
from .training import (
    NUM_SKILL_EPISODES,
    Policies,
    Reporter,
    check_training,
    open_checkpoints,
    print_skills,
)


@dataclasses.dataclass(frozen=True)
class PopulationJob:
    """Population based training."""

    run: Run[Population]
    agent: AnyAgent
    env: AnyEnv
    trainer: Trainer
    pbt: PBT
    mesh: Mesh | None

    def check(self) -> None:
        size = self.run.schedule.size
        self.trainer.check_num_steps(self.run.schedule.steps_per_generation)
        check_mesh(self.mesh, size)
        check_scalar(self.env)
        eqx.filter_eval_shape(self.pbt.init, self.agent, size, key=jr.key(0))
        check_training(self.trainer, self.agent, self.env)

    @property
    def command(self) -> str:
        return "pbt"

    def load(self, folder: Path) -> PopulationSolution | None:
        checkpoints = checkpoints_folder(folder)
        if not saved_steps(checkpoints):
            return None
        return load_solution(
            checkpoints, self.agent, self.env, self.trainer, mesh=self.mesh
        )

    def train(
        self,
        folder: Path,
        *,
        initial: PopulationSolution | None,
        checkpoint_every: int | None,
        key: PRNGKeyArray,
    ) -> PopulationSolution:
        schedule = self.run.schedule
        left = schedule.num_generations
        if initial is not None:
            write_generations(folder, *named_and_dated(self.run, initial))
            left -= len(initial.returns)
            if left == 0:
                return initial
        score = None
        if self.run.skills is not None:
            key, score_key = jr.split(key)
            score = _diversity_score(self.env, schedule.num_episodes, key=score_key)
        progress = PopulationProgressBar(
            schedule.num_generations, schedule.steps_per_generation
        )

        def write_metrics(
            step: int, metrics: object, solution: PopulationSolution
        ) -> None:
            del step, metrics
            write_generations(folder, *named_and_dated(self.run, solution))

        with (
            Reporter("The progress", progress) as show,
            Reporter("metrics.csv", write_metrics) as write,
            open_checkpoints(folder, every_steps=checkpoint_every) as checkpoint,
        ):
            return train_population(
                self.agent,
                self.env,
                self.trainer,
                self.pbt,
                size=schedule.size,
                num_generations=left,
                steps_per_generation=schedule.steps_per_generation,
                num_episodes=schedule.num_episodes,
                key=key,
                initial=initial,
                score=score,
                mesh=self.mesh,
                members=schedule.members,
                callback=[show, write, checkpoint],
            )

    def keep(self, folder: Path, reached: PopulationSolution) -> None:
        with open_checkpoints(folder) as checkpoints:
            checkpoints.save(reached)

    def failed(self, reached: PopulationSolution) -> Bool[np.ndarray, " population"]:
        if len(reached.scores) == 0:
            return np.zeros(self.run.schedule.size, bool)
        return np.isnan(scores_of(reached, None)[-1])

    def has_learned(self, reached: PopulationSolution) -> bool:
        return int(reached.counts.updates) > 0

    def write(self, folder: Path, reached: PopulationSolution) -> Policies:
        write_members(folder, *named_and_dated(self.run, reached))
        schedule, scores = self.run.schedule, scores_of(reached, None)
        return Policies(
            [
                (member(reached.agents, index), member(reached.states, index))
                for index in range(schedule.size)
            ],
            step=step_of(reached),
            # Chosen by other episodes than those by which it is judged in the end.
            best=winner_of(scores) if len(scores) > 0 else None,
        )

    def draw(self, folder: Path, reached: PopulationSolution) -> None:
        if len(reached.scores) > 0:
            draw_population(folder, self.run, reached)

    def report(
        self,
        folder: Path,
        reached: PopulationSolution,
        policies: Policies,
        returns: Float[np.ndarray, "population episodes"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        best = policies.best
        print(f"mean return of {returns.shape[1]} greedy episodes:")
        print(f"all members: {returns.mean():.1f}")
        if best is None:
            # No generation has come to its end.
            return
        histories = self.run.by_given_names(reached.hyperparameters)
        values = ", ".join(
            f"{name} {history[-1, best]:.3g}" for name, history in histories.items()
        )
        print(f"best member, {best}: {returns[best].mean():.1f} with {values}")
        if self.run.skills is not None:
            agent, state = policies.pairs[best]
            # The evaluations of the members use the indices before this one.
            evaluation = evaluate_skills(
                agent,
                state,
                self.env,
                num_episodes=NUM_SKILL_EPISODES,
                key=jr.fold_in(key, self.run.schedule.size),
            )
            write_skills_of_member(folder, self.run, best, evaluation)
            print_skills([evaluation])


def _diversity_score(env: AnyEnv, num_episodes: int, *, key: PRNGKeyArray) -> Score:
    """Ranks by skills, all members and generations by the same key."""

    def score(agent: AnyAgent, state: Any, evaluation: Evaluation) -> Float[Array, ""]:
        del evaluation
        return diversity_return(agent, state, env, num_episodes=num_episodes, key=key)

    return score


def population_job(command: Pbt) -> PopulationJob:
    """The training that a command asks for."""
    run = command.run
    agent = run.make_agent()
    return PopulationJob(
        run=run,
        agent=agent,
        env=run.make_env(),
        trainer=run.make_trainer(),
        pbt=run.schedule.make_pbt(agent, run.priors),
        mesh=make_mesh(run.schedule.devices),
    )
