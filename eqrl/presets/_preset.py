import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

from .._agents.base import AnyAgent
from .._run import Run, Settings, Training
from .._training.trainer import Trainer
from ..envs._base import AnyEnv


@dataclasses.dataclass(frozen=True)
class Preset:
    """What an agent learns an environment with, and the return that it then reached.

    `options` are arguments of the agent and `trainer` those of `eqrl.Trainer`; of an
    agent that learns on-policy they are `num_envs` and `steps_per_iteration`, the
    `num_steps` of `eqrl.Trainer.on_policy`. All are options of the command line.

    `returns` holds the mean return of each of `num_seeds` seeds after `num_steps`
    environment steps, over 1,024 greedy episodes, or 64 of brax, the same for all
    presets of an environment: those with which `eqrl train` ends. `nox -s presets`
    measures them.
    """

    agent: str
    env: str
    options: Mapping[str, float | int | bool]
    trainer: Mapping[str, int]
    num_steps: int
    returns: tuple[float, ...]
    hidden_sizes: tuple[int, ...] = (64, 64)
    normalize: bool = False
    backend: str | None = None

    @property
    def num_seeds(self) -> int:
        """The number of seeds that were trained."""
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        """The mean over the seeds."""
        return sum(self.returns) / len(self.returns)

    @property
    def std_return(self) -> float:
        """The standard deviation over the seeds."""
        return statistics.stdev(self.returns)

    @property
    def reached(self) -> str:
        """What was reached, in words."""
        return (
            f"{self.mean_return:.1f} over {self.num_seeds} seeds, standard deviation "
            f"{self.std_return:.1f}, after {self.num_steps} steps"
        )

    @property
    def settings(self) -> Settings:
        """The environment and the networks."""
        return Settings(
            env=self.env,
            backend=self.backend,
            hidden_sizes=self.hidden_sizes,
            normalize=self.normalize,
        )

    def make_agent(self) -> AnyAgent:
        """The agent, with networks of these sizes."""
        return self._run().make_agent()

    def make_env(self) -> AnyEnv:
        """The environment."""
        return self._run().make_env()

    def make_trainer(self) -> Trainer:
        """The trainer."""
        return self._run().make_trainer()

    def _run(self) -> Run[Training]:
        return Run(
            agent=self.agent,
            agent_options=dict(self.options),
            trainer_options=dict(self.trainer),
            settings=self.settings,
            schedule=Training(num_steps=self.num_steps),
        )

    def __str__(self) -> str:
        numbers: dict[str, Any] = {
            **self.options,
            **self.trainer,
            "hidden_sizes": self.hidden_sizes,
            "normalize": self.normalize,
        }
        if self.backend is not None:
            numbers["backend"] = self.backend
        listed = ", ".join(f"{name}={value}" for name, value in numbers.items())
        return (
            f"{self.agent} on {self.env}: {listed}; it reached a mean return of "
            f"{self.reached}"
        )
