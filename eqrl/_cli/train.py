import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._interaction.evaluate_skills import evaluate_skills
from .._pytree.fields import check_integer
from .._reporting.progress import ProgressBar
from .._reporting.tensorboard import TensorBoard
from .._run import Run, Training, states_of_seeds, write_skills, write_solution
from .._training.solution import AnySolution
from .._training.train import Callback, train, train_seeds
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from .commands import Train
from .evaluate import NUM_EPISODES
from .training import NUM_SKILL_EPISODES, Policies, print_skills


@dataclasses.dataclass(frozen=True)
class SeedsJob:
    """Training of one agent from one seed or several."""

    run: Run[Training]
    agent: AnyAgent
    env: AnyEnv
    trainer: Trainer
    tensorboard: bool

    def check(self) -> None:
        self.trainer.check_num_steps(self.run.schedule.num_steps)
        check_integer("log_every", self.run.schedule.log_every, least=1)
        eqx.filter_eval_shape(self.trainer.init, self.agent, self.env, key=jr.key(0))

    def train(self, folder: Path, *, key: PRNGKeyArray) -> AnySolution:
        schedule = self.run.schedule
        with ExitStack() as stack:
            callbacks: list[Callback] = [
                stack.enter_context(ProgressBar(schedule.num_steps))
            ]
            if self.tensorboard:
                writer = TensorBoard(folder / "tensorboard", schedule.seeds)
                callbacks.append(stack.enter_context(writer))

            def callback(
                step: int, metrics: Mapping[str, np.ndarray | Array], state: Any
            ) -> None:
                for each in callbacks:
                    each(step, dict(metrics), state)

            # A single seed trains without `vmap`, which is faster.
            if schedule.seeds == 1:
                return train(
                    self.agent,
                    self.env,
                    self.trainer,
                    num_steps=schedule.num_steps,
                    key=key,
                    log_every=schedule.log_every,
                    callback=callback,
                )
            return train_seeds(
                self.agent,
                self.env,
                self.trainer,
                num_seeds=schedule.seeds,
                num_steps=schedule.num_steps,
                key=key,
                log_every=schedule.log_every,
                callback=callback,
            )

    def failed(self, reached: AnySolution) -> Bool[np.ndarray, " seeds"]:
        nonfinite = reached.metrics["nonfinite"]
        return np.any(nonfinite.reshape(len(nonfinite), -1) > 0, axis=0)

    def has_learned(self, reached: AnySolution) -> bool:
        return int(reached.counts.updates) > 0

    def write(self, folder: Path, reached: AnySolution) -> Policies:
        write_solution(folder, self.run, reached)
        states = states_of_seeds(reached, self.run.schedule.seeds)
        pairs = [(self.agent, state) for state in states]
        return Policies(pairs, step=int(reached.metrics["step"][-1]))

    def report(
        self,
        folder: Path,
        reached: AnySolution,
        policies: Policies,
        mean_returns: Float[np.ndarray, " seeds"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        del reached
        means = ", ".join(f"{mean:.1f}" for mean in mean_returns)
        print(f"mean return of {NUM_EPISODES} greedy episodes: {means}")
        if self.run.skills is not None:
            # The keys before this one are those of the seeds' evaluations.
            skill_key = jr.fold_in(key, self.run.schedule.seeds)
            self._report_skills(folder, policies, key=skill_key)

    def _report_skills(
        self, folder: Path, policies: Policies, *, key: PRNGKeyArray
    ) -> None:
        """Writes and prints how well the skills of each seed can be told apart."""
        evaluations = [
            evaluate_skills(
                agent,
                state,
                self.env,
                num_episodes=NUM_SKILL_EPISODES,
                key=jr.fold_in(key, seed),
            )
            for seed, (agent, state) in enumerate(policies.pairs)
        ]
        write_skills(folder, self.run, evaluations)
        print_skills(evaluations)


def seeds_job(command: Train) -> SeedsJob:
    """The training that a command asks for."""
    run = command.run
    return SeedsJob(
        run=run,
        agent=run.make_agent(),
        env=run.make_env(),
        trainer=run.make_trainer(),
        tensorboard=command.tensorboard,
    )
