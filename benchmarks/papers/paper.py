"""What a paper's experiment is: tasks, agents, their settings and published returns."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import eqrl
from eqrl._agents.base import AnyAgent


@dataclasses.dataclass(frozen=True)
class Contender:
    """An agent on a task with a paper's settings.

    **Attributes:**

    - `make_agent`, `make_trainer`: called in the process that trains.
    - `num_steps`: environment steps of a run.
    - `evaluate_every`, `num_episodes`: greedy evaluations during training.
    - `log_every`: environment steps in a row of the training returns.
    - `measure_end`: more figures of what was trained, by name; called as
        `measure_end(agent, state, env, key)`.
    """

    make_agent: Callable[[], AnyAgent]
    make_trainer: Callable[[], eqrl.Trainer]
    num_steps: int
    evaluate_every: int
    num_episodes: int = 10
    log_every: int = 5_000
    measure_end: Callable[[Any, Any, Any, Any], Mapping[str, float]] | None = None


@dataclasses.dataclass(frozen=True)
class Published:
    """A published return, and where it stands."""

    source: str
    value: float
    spread: float | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One task of a paper, with all agents that are compared on it.

    **Attributes:**

    - `env`: as in `eqrl.envs.make`, with `options` as its other arguments.
    - `contenders`: by a name, which is also that of its files.
    - `published`: by the name of a contender.
    - `seeds`: how many runs of each by default.
    """

    env: str
    contenders: Mapping[str, Contender]
    published: Mapping[str, tuple[Published, ...]] = dataclasses.field(
        default_factory=dict
    )
    seeds: int = 3
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def make_env(self) -> Any:
        """The environment, for training or for evaluation."""
        return eqrl.envs.make(self.env, **self.options)


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
