import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from .._agents import AbstractAgent, Normalized
from .._population import PBT
from .._storage.checkpoint import Directory
from .._training.trainer import Trainer
from ..envs import AbstractEnv, make
from .agents import Skills, check_agent, make_agent
from .files import write_json
from .priors import Prior, make_pbt, path_of


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides a run besides the options of its agent and its trainer."""

    env: str = "gymnax/Pendulum-v1"
    """Environment: brax/..., gymnax/... or eqrl/..., then the name there."""

    backend: str | None = None
    """Physics of brax: generalized, mjx, positional or spring, the default."""

    max_steps: int | None = None
    """Time limit of an episode; by default 1000 for brax, else the environment's."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Width of each hidden layer of actor and critics."""

    normalize: bool = False
    """Shift and scale observations to mean zero and deviation one."""

    seed: int = 0
    """Number from which all randomness of the run is drawn."""


@dataclasses.dataclass(frozen=True)
class Training:
    """How long agents train that have nothing to do with each other."""

    num_steps: int = 20_000
    """Environment steps of each seed, warm-up included."""

    seeds: int = 1
    """How many agents to train at once, each from a seed of its own."""

    log_every: int = 1_000
    """Environment steps in a row of the metrics."""

    def check(self) -> None:
        """Raises a `ValueError` where a number is too small."""
        for name in ("num_steps", "seeds"):
            _check_positive(name, getattr(self, name))

    @property
    def kind(self) -> str:
        """What the policies of the run are called."""
        return "seed"

    @property
    def count(self) -> int:
        """How many there are."""
        return self.seeds


@dataclasses.dataclass(frozen=True)
class Population:
    """How a population trains and who is replaced."""

    size: int = 8
    """Members."""

    num_generations: int = 10
    """How often all members train and are evaluated."""

    steps_per_generation: int = 2_000
    """Environment steps of each member in a generation."""

    num_episodes: int = 16
    """Greedy episodes by which each member of a generation is judged."""

    num_replaced: int = 2
    """Members to replace after each generation, at least 0."""

    num_elite: int = 2
    """Members to copy from, at least 1, under truncation."""

    resample_probability: float = 0.25
    """Of drawing a hyperparameter afresh rather than perturbing the parent's."""

    selection: Literal["truncation", "tournament"] = "truncation"
    """The worst copy the best, or each member meets another."""

    copy_replay: bool = True
    """A child gets its parent's replay and environments as well."""

    members: Literal["together", "in_turn"] | None = None
    """How the members of a device train; by default in turn on processors."""

    devices: int | None = None
    """Lay the population over so many devices; by default all is on one."""

    def check(self) -> None:
        """Raises a `ValueError` where a number is too small."""
        for name in ("size", "num_generations", "steps_per_generation", "num_episodes"):
            _check_positive(name, getattr(self, name))

    @property
    def kind(self) -> str:
        """What the policies of the run are called."""
        return "member"

    @property
    def count(self) -> int:
        """How many there are."""
        return self.size

    def make_pbt(
        self, agent: AbstractAgent[Any, Any, Any], priors: tuple[Prior, ...]
    ) -> PBT:
        return make_pbt(
            agent,
            priors,
            num_replaced=self.num_replaced,
            num_elite=self.num_elite,
            resample_probability=self.resample_probability,
            selection=self.selection,
            copy_replay=self.copy_replay,
        )


Schedule = TypeVar("Schedule", bound=Training | Population)
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Run(Generic[Schedule]):
    """All that decides a run: `config.json` holds it."""

    agent: str
    agent_options: dict[str, float | int | bool | None]
    trainer_options: dict[str, int]
    settings: Settings
    schedule: Schedule
    skills: Skills | None = None
    priors: tuple[Prior, ...] = ()

    def __post_init__(self) -> None:
        check_agent(self.agent, self.skills)
        self.schedule.check()

    @property
    def title(self) -> str:
        """Of pictures."""
        inner = "" if self.skills is None else f" with {self.skills.agent.upper()}"
        return f"{self.agent.upper()}{inner} on {self.settings.env}"

    def make_agent(self) -> AbstractAgent[Any, Any, Any]:
        agent = make_agent(
            self.agent, self.agent_options, self.skills, self.settings.hidden_sizes
        )
        return Normalized(agent) if self.settings.normalize else agent

    def by_given_names(self, hyperparameters: Mapping[str, Value]) -> dict[str, Value]:
        """Hyperparameters of a `PopulationSolution`, by the names of the priors."""
        agent = self.make_agent()
        return {name: hyperparameters[path_of(agent, name)] for name, *_ in self.priors}

    def make_env(self) -> AbstractEnv[Any]:
        settings = self.settings
        return make(
            settings.env, backend=settings.backend, max_steps=settings.max_steps
        )

    def make_trainer(self) -> Trainer:
        return Trainer(**self.trainer_options)


def write_config(folder: Directory, run: Run[Any]) -> None:
    """Writes `config.json`, from which a run can be repeated."""
    content = dataclasses.asdict(run)
    name = "population" if isinstance(run.schedule, Population) else "training"
    content[name] = content.pop("schedule")
    version = importlib.metadata.version("eqrl")
    write_json(folder, "config.json", {"eqrl": version, **content})


def read_config(folder: Directory) -> Run[Any]:
    """What `write_config` wrote."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"`{folder}` is not the folder of a run: there is no `config.json` in it."
        )
    try:
        return _read_run(json.loads(path.read_text()))
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"`{path}` is not as this version of eqrl writes it ({error!r})."
        ) from error


def _read_run(content: dict[str, Any]) -> Run[Any]:
    content.pop("eqrl")
    settings, skills, priors = (
        content.pop(name) for name in ("settings", "skills", "priors")
    )
    settings["hidden_sizes"] = tuple(settings["hidden_sizes"])
    if "population" in content:
        schedule = Population(**content.pop("population"))
    else:
        schedule = Training(**content.pop("training"))
    return Run(
        settings=Settings(**settings),
        schedule=schedule,
        skills=None if skills is None else Skills(**skills),
        priors=tuple((name, kind, low, high) for name, kind, low, high in priors),
        **content,
    )


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"`{name}={value}` must be at least 1.")
