"""What a paper's experiment is: tasks, contenders and published returns."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

import eqrl


Trajectories: TypeAlias = eqrl.SkillEvaluation | eqrl.SkillTrajectories


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run measures.

    - `columns`: of its CSV by name, `nan` where a row has no value.
    - `facts`: figures of the whole run by name.
    - `versions`: of packages that differ from those of this process.
    - `skills`: played at the end, for a picture.
    - `minutes`: of the processor, of processes beside this one that were stopped.
    """

    columns: Mapping[str, Sequence[float] | Float[np.ndarray, " rows"]]
    facts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skills: Trajectories | None = None
    minutes: float = 0.0


class AbstractContender(abc.ABC):
    """What runs on a task with a paper's settings."""

    @abc.abstractmethod
    def run(
        self, experiment: "Experiment", seed: int, folder: Path, label: str
    ) -> Outcome:
        """Runs to the end, from the newest checkpoint in `folder` if there is one.

        **Arguments:**

        - `experiment`: whose task it is.
        - `seed`: of all randomness.
        - `folder`: of this run alone.
        - `label`: begins the lines that are printed.
        """


@dataclasses.dataclass(frozen=True)
class Published:
    """A published return, and where it stands.

    - `step`: the environment steps after which it was reached; `None` is the end.
    """

    source: str
    value: float
    spread: float | None = None
    note: str = ""
    step: int | None = None


@dataclasses.dataclass(frozen=True)
class Record:
    """What the CSV of a run says.

    - `facts`: those of the comments.
    - `columns`: of the rows by name, `nan` where there is no value.
    """

    facts: Mapping[str, str]
    columns: Mapping[str, Float[np.ndarray, " rows"]]

    @property
    def evaluations(self) -> Float[np.ndarray, " evaluations"]:
        """The mean return of each greedy evaluation."""
        returns = self.columns["evaluation_return"]
        return returns[np.isfinite(returns)]


Found = Mapping[str, Sequence[Record]]
"""The runs of a task that have ended, by contender and in the order of the seeds."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One task of a paper, with all that is compared on it.

    **Attributes:**

    - `env`: as in `eqrl.envs.make`, with `options` as its other arguments.
    - `contenders`: by a name, which is also that of its files.
    - `published`: by the contender with the same settings, "" if none has them.
    - `by_default`: whether the task runs without being named.
    - `named_only`: contenders that do not run unless they, or such a task, are named.
    - `seeds`: how many runs of each by default.
    - `report`: the lines of its section, in place of the table of returns.
    - `curves`: columns that are drawn over the steps, where all contenders have them.
    - `make`: makes the environment, as `eqrl.envs.make` does.
    """

    env: str
    contenders: Mapping[str, AbstractContender]
    published: Mapping[str, tuple[Published, ...]] = dataclasses.field(
        default_factory=dict
    )
    by_default: bool = True
    named_only: tuple[str, ...] = ()
    seeds: int = 3
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    report: Callable[[Found], list[str]] | None = None
    curves: tuple[str, ...] = ("evaluation_return",)
    make: Callable[..., Any] = eqrl.envs.make

    def is_asked(
        self, contender: str, envs: Sequence[str] | None, names: Sequence[str] | None
    ) -> bool:
        """Whether a contender runs, given the tasks and contenders that are named."""
        if not (self.by_default if envs is None else self.env in envs):
            return False
        if names is None:
            return not self.by_default or contender not in self.named_only
        return contender in names

    def make_env(self, **changes: Any) -> Any:
        """The environment, for training or for evaluation."""
        return self.make(self.env, **{**self.options, **changes})


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper's experiments, and how ours differ from them.

    **Attributes:**

    - `title`: of its page.
    - `text`: the page's first part, in Markdown: the source, settings and differences.
    - `experiments`: tasks, in the order in which they are shown.
    """

    title: str
    text: str
    experiments: tuple[Experiment, ...]
