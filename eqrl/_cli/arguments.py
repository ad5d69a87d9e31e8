"""The types from which `tyro` builds the command line, a field for each option."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from .._agents import diayn
from .._run import AGENTS, Population, Prior, Settings, SkillOptions, Training
from .._training.trainer import Trainer
from .options import options_of


# The library's defaults are those of the papers, for larger networks and problems.
_DEFAULTS = {
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "temperature_lr": 1e-3,
    "batch_size": 64,
}
# With skills the entropy competes with a reward of a few nats.
_DIAYN_DEFAULTS = {**_DEFAULTS, "batch_size": 128, "initial_temperature": 0.1}

_PRIOR_HELP = (
    "A hyperparameter to vary, and in which range: its name, then uniform, loguniform, "
    "oneminus-uniform or oneminus-loguniform, then two bounds. The last two kinds are "
    "of one minus the hyperparameter, such as a discount near one. By default the "
    "learning rates of actor and critic, and the discount."
)


@dataclasses.dataclass(frozen=True)
class Output:
    """Output of a run."""

    folder: Path | None = None
    """Folder to write; by default runs/<agent>-<env>-<time>."""

    tensorboard: bool = False
    """Write files for TensorBoard as well."""

    overwrite: bool = False
    """Delete what an earlier run wrote into the folder, and begin anew."""


@dataclasses.dataclass(frozen=True)
class PopulationOutput:
    """Output of a run."""

    folder: Path | None = None
    """Folder to write; by default runs/pbt-<agent>-<env>-<time>."""

    overwrite: bool = False
    """Delete what an earlier run wrote into the folder, and begin anew."""


@dataclasses.dataclass(frozen=True)
class Priors:
    """Priors of the hyperparameters that vary."""

    prior: Annotated[
        tuple[Prior, ...],
        tyro.conf.arg(metavar="NAME KIND LOW HIGH", help=_PRIOR_HELP),
    ] = ()


_Fields = list[Any]
"""As `dataclasses.make_dataclass` takes them."""


def command_type(inner_agent: str, rerun: type, evaluate: type, render: type) -> Any:
    """The union of all commands.

    **Arguments:**

    - `inner_agent`: name of the agent within diayn.
    - `rerun`, `evaluate`, `render`: the types of these commands.
    """
    training = [_agent_type("Train", name, _train_fields(name)) for name in AGENTS]
    training.append(
        _agent_type("Train", "diayn", _diayn_fields(inner_agent), made_by=diayn)
    )
    populations = [
        _agent_type("Pbt", name, _population_fields(name)) for name in AGENTS
    ]
    return (
        _command("train", "Train an agent; without a name, that is sac.", training)
        | _command(
            "pbt",
            "Train a population, whose worst members copy the best and vary their "
            "hyperparameters; without a name, of sac.",
            populations,
        )
        | _named("rerun", rerun)
        | _named("evaluate", evaluate)
        | _named("render", render)
    )


def _train_fields(name: str) -> _Fields:
    return [
        ("settings", Settings),
        ("schedule", Training),
        ("output", Output),
        ("agent", options_of(AGENTS[name].agent_type, _DEFAULTS)),
        ("trainer", options_of(Trainer, _trainer_defaults(name, _DEFAULTS))),
    ]


def _diayn_fields(inner_agent: str) -> _Fields:
    return [
        ("settings", Settings, _default(Settings(env="eqrl/Point"))),
        ("schedule", Training, _default(Training(num_steps=40_000))),
        ("skills", SkillOptions),
        ("output", Output),
        ("agent", options_of(AGENTS[inner_agent].agent_type, _DIAYN_DEFAULTS)),
        (
            "trainer",
            options_of(Trainer, _trainer_defaults(inner_agent, _DIAYN_DEFAULTS)),
        ),
    ]


def _population_fields(name: str) -> _Fields:
    return [
        ("settings", Settings),
        ("schedule", Population),
        ("priors", tyro.conf.UseAppendAction[Priors]),
        ("output", PopulationOutput),
        ("agent", options_of(AGENTS[name].agent_type, _DEFAULTS)),
        ("trainer", options_of(Trainer, _trainer_defaults(name, _DEFAULTS))),
    ]


def _trainer_defaults(name: str, defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    num_windows = AGENTS[name].num_windows
    return defaults if num_windows is None else {**defaults, "batch_size": num_windows}


def _default(value: Any) -> Any:
    return dataclasses.field(default=value)


def _agent_type(
    command: str, name: str, fields: _Fields, *, made_by: Callable | None = None
) -> Any:
    documented = AGENTS[name].agent_type if made_by is None else made_by
    options = dataclasses.make_dataclass(
        f"{command}{name.replace('-', '').capitalize()}",
        sorted(fields, key=len),
        namespace={"name": name},
    )
    options.__doc__ = (documented.__doc__ or "").partition("\n")[0]
    return _named(name, options)


def _command(name: str, text: str, agents: list[Any]) -> Any:
    union = agents[0]
    for agent in agents[1:]:
        union = union | agent
    command = dataclasses.make_dataclass(
        f"{name.capitalize()}Command", [("options", union)]
    )
    command.__doc__ = text
    return _named(name, command)


def _named(name: str, command: type) -> Any:
    return Annotated[command, tyro.conf.subcommand(name)]
