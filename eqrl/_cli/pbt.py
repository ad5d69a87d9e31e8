import dataclasses
from pathlib import Path

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._population import PBT, PopulationSolution, member, train_population
from .._population.evaluation import check_scalar
from .._population.history import scores_of, winner_of
from .._population.mesh import check_mesh
from .._reporting.progress import PopulationProgressBar
from .._run import Population, Run, write_population
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from .commands import Pbt
from .evaluate import NUM_EPISODES
from .training import Policies


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
        eqx.filter_eval_shape(self.trainer.init, self.agent, self.env, key=jr.key(0))

    def train(self, folder: Path, *, key: PRNGKeyArray) -> PopulationSolution:
        del folder
        schedule = self.run.schedule
        with PopulationProgressBar(
            schedule.num_generations, schedule.steps_per_generation
        ) as progress:
            return train_population(
                self.agent,
                self.env,
                self.trainer,
                self.pbt,
                size=schedule.size,
                num_generations=schedule.num_generations,
                steps_per_generation=schedule.steps_per_generation,
                num_episodes=schedule.num_episodes,
                key=key,
                mesh=self.mesh,
                members=schedule.members,
                callback=progress,
            )

    def failed(self, reached: PopulationSolution) -> Bool[np.ndarray, " population"]:
        return np.isnan(scores_of(reached, None)[-1])

    def write(self, folder: Path, reached: PopulationSolution) -> Policies:
        write_population(folder, self.run, reached)
        schedule = self.run.schedule
        return Policies(
            [
                (member(reached.agents, index), member(reached.states, index))
                for index in range(schedule.size)
            ],
            step=len(reached.returns) * schedule.steps_per_generation,
            # Chosen by other episodes than those by which it is judged in the end.
            best=winner_of(scores_of(reached, None)),
        )

    def report(
        self,
        folder: Path,
        reached: PopulationSolution,
        policies: Policies,
        mean_returns: Float[np.ndarray, " population"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        del folder, key
        histories = self.run.by_given_names(reached.hyperparameters)
        values = ", ".join(
            f"{name} {history[-1, policies.best]:.3g}"
            for name, history in histories.items()
        )
        print(f"mean return of {NUM_EPISODES} greedy episodes:")
        print(f"all members: {mean_returns.mean():.1f}")
        best_return = mean_returns[policies.best]
        print(f"best member, {policies.best}: {best_return:.1f} with {values}")


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
        mesh=_make_mesh(run.schedule.devices),
    )


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
