"""The types from which `tyro` builds the command line, a field for each option."""

import dataclasses
import functools
import inspect
import math
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import equinox as eqx
import tyro

from .._agents.csf import CSF
from .._pytree.fields import Range, range_of
from .._rewards.incremental import Incremental
from .._run.agents import AGENTS, NamedAgent, name_of
from .._run.config import Population, Prior, Settings, SkillSchedule, Training
from .._run.rewards import (
    PREFIX,
    REWARDS,
    DiscriminatorOptions,
    LearnerOptions,
    SkillOptions,
)
from .._training.trainer import Trainer
from ..nn import CategoricalDiscriminator
from ..presets import Preset


# The agents and `Trainer` occur in several commands, and dataclasses are slow to make.
@functools.cache
def options_of(
    module: type[eqx.Module],
    /,
    *,
    without: tuple[str, ...] = (),
    prefix: str = "",
    **defaults: object,
) -> type:
    """A dataclass of those arguments of a module that the command line can express.

    **Arguments:**

    - `module`: a class with an `**Arguments:**` list, the source of the help texts.
    - `without`: names of arguments that are not options.
    - `prefix`: begins the names of the options.
    - `defaults`: replace those of the module.

    Raises a `ValueError` if an annotation names something undefined.
    """
    texts = argument_texts(module)
    try:
        annotations = get_type_hints(module)
    except NameError as error:
        raise ValueError(
            f"The annotations of `{module.__name__}` make no options: {error}. Import "
            "what they name where the module can see it when it runs."
        ) from error
    fields = []
    for name, parameter in inspect.signature(module).parameters.items():
        # A converter hides the type of a field from the signature.
        option_type = _option_type(
            annotations.get(name, parameter.annotation),
            optional=parameter.default is None,
        )
        if option_type is None or name in without:
            continue
        text, allowed = texts.get(name, ""), range_of(module, name)
        is_bounded = allowed is not None and allowed != Range(optional=allowed.optional)
        # Some texts give the range themselves.
        if is_bounded and str(allowed) not in text:
            text = f"{text} In {allowed}."
        annotation = Annotated[option_type, tyro.conf.arg(help=text)]
        default = defaults.get(name, parameter.default)
        if default is inspect.Parameter.empty:
            default = dataclasses.MISSING
        field = dataclasses.field(default=default)
        fields.append((f"{prefix}{name}", annotation, field))
    return dataclasses.make_dataclass(
        f"{module.__name__}Options", fields, frozen=True, kw_only=True
    )


def _option_type(annotation: object, *, optional: bool) -> Any:
    """The type of an option for an argument; `None` if there can be no option."""
    is_union = get_origin(annotation) in (Union, UnionType)
    alternatives = get_args(annotation) if is_union else (annotation,)
    known: list[Any] = [
        each
        for each in alternatives
        if each in (bool, int, float, str) or get_origin(each) is Literal
    ]
    if not known:
        return None
    if float in known:
        # A command line cannot express arrays, so a `FloatLike` is a float there.
        known = [float]
    if optional or NoneType in alternatives:
        known.append(NoneType)
    return functools.reduce(operator.or_, known)


def argument_texts(module: type) -> dict[str, str]:
    """The text of each argument in the `**Arguments:**` list of a class."""
    document = inspect.cleandoc(module.__init__.__doc__ or "")
    lines = document.partition("**Arguments:**")[2]
    items = re.findall(r"^ *- (`\w+`(?:, `\w+`)*): (.*(?:\n +\S.*)*)", lines, re.M)
    texts = {}
    for names, text in items:
        # Help texts are shown in a terminal, without Markdown and line breaks.
        plain = " ".join(text.split()).replace("`", "")
        for name in re.findall(r"\w+", names):
            texts[name] = plain[:1].upper() + plain[1:]
    return texts


POINT = "eqrl/Point"
"""The default environment for skills, where they can be seen."""

POINT_OPTIONS = {
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "temperature_lr": 1e-3,
    # The entropy of the policy competes with an intrinsic reward of a few nats.
    "initial_temperature": 0.1,
    "discriminator_lr": 1e-3,
    f"{PREFIX}lr": 1e-3,
    f"{PREFIX}multiplier_lr": 1e-3,
    "hidden_sizes": (64, 64),
    "batch_size": 128,
}
"""Defaults with which skills are learned there within a minute."""

DISK_OPTIONS = {
    **POINT_OPTIONS,
    "warmup_steps": 200,
    "num_collected_episodes": 5,
    "log_every": 500,
}
"""Defaults for skills that are learned one after another."""

# `Trainer.on_policy` takes these two, and derives the others from them.
_ROLLOUT = {"num_envs": 8, "steps_per_iteration": 128}
_NO_ROLLOUT = (
    "batch_size",
    "capacity",
    "warmup_steps",
    "updates_per_iteration",
    "warmup_mode",
)

OWN = "own"
"""A placeholder for the name of an agent that is given by its path."""

_PRIOR_HELP = (
    "A hyperparameter to vary, and in which range: its name, then uniform, loguniform, "
    "oneminus-uniform or oneminus-loguniform, then two bounds. The last two kinds are "
    "of one minus the hyperparameter, such as a discount near one. By default the "
    "learning rates, of actor and critic or of all, and the discount, where the agent "
    "has them."
)


_Fields = list[Any]
"""Fields in the form that `dataclasses.make_dataclass` takes."""


def _output_of(kind: str, steps_of: str, *, tensorboard: bool = True) -> type:
    """The options for the output of a run, named by its kind, as in `pbt-`."""
    options: list[tuple[str, object, Path | bool | None, str]] = [
        (
            "folder",
            Path | None,
            None,
            f"Folder to write; by default runs/{kind}<agent>-<env>-<time>.",
        ),
        ("tensorboard", bool, False, "Write files for TensorBoard as well."),
        (
            "overwrite",
            bool,
            False,
            "Delete what an earlier run wrote into the folder, and begin anew.",
        ),
        (
            "checkpoint_every",
            int | None,
            None,
            f"Environment steps of {steps_of} between checkpoints; by default a "
            "minute.",
        ),
        # `parse` looks for it before tyro does; here it only has its help text.
        (
            "resume",
            Path | None,
            None,
            "Folder of a run that was stopped or killed, to resume from its last "
            "checkpoint, with the options that it had, except --checkpoint-every and "
            "--tensorboard; a greater length trains longer.",
        ),
    ]
    fields: _Fields = [
        (
            name,
            Annotated[option, tyro.conf.arg(help=text)],
            dataclasses.field(default=default),
        )
        for name, option, default, text in options
        # `eqrl pbt` has no option for it.
        if tensorboard or name != "tensorboard"
    ]
    output = dataclasses.make_dataclass("Output", fields, frozen=True)
    output.__doc__ = "Output of a run."
    return output


_OUTPUT = _output_of("", "a seed")
_POPULATION_OUTPUT = _output_of("pbt-", "a member", tensorboard=False)

_LEARNER_HELP = (
    ", ".join(
        name
        for name, named in AGENTS.items()
        if not named.is_on_policy and named.agent_type is not CSF
    )
    + ", or one of your own: package.module:Class."
)


@dataclasses.dataclass(frozen=True)
class Learner:
    """The agent that learns the skills."""

    agent: Annotated[str, tyro.conf.arg(help=_LEARNER_HELP)] = "sac"


@dataclasses.dataclass(frozen=True)
class Priors:
    """Priors of the hyperparameters that vary."""

    prior: Annotated[
        tuple[Prior, ...],
        tyro.conf.arg(metavar="NAME KIND LOW HIGH", help=_PRIOR_HELP),
    ] = ()


@dataclasses.dataclass(frozen=True)
class EnvOptions:
    """Parameters of the environment."""

    env_option: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            metavar="NAME=VALUE",
            help="A parameter of the environment, such as memory_length=30 of "
            "gymnax/MemoryChain-bsuite or goal=(1,2) of eqrl/Point; may be repeated.",
        ),
    ] = ()


@dataclasses.dataclass(frozen=True)
class Own:
    """The agent, if it is one of your own."""

    agent: str
    """Class of the agent, as package.module:Class, from which its options come."""


_OF_YOUR_OWN = "with --agent package.module:Class, one of your own"

TRAINING = {
    "train": "Train an agent; without a name, that of the best preset for `--env`, "
    f"sac if there is none, or, {_OF_YOUR_OWN}. "
    "`eqrl train --resume FOLDER` resumes a run that was stopped or killed.",
    "pbt": "Train a population, whose worst members copy the best and vary their "
    f"hyperparameters; without a name, of sac or, {_OF_YOUR_OWN}. "
    "`eqrl pbt --resume FOLDER` resumes a run that was stopped or killed.",
    "disk": "Learn skills one after another, each unlike all before it. "
    "`eqrl disk --resume FOLDER` resumes a run that was stopped or killed.",
}
"""The help texts of the commands that train."""


def command_type(
    command: str, name: str, named: NamedAgent, preset: Preset | None, env: str | None
) -> type:
    """The options of one command that trains.

    **Arguments:**

    - `command`: one of `TRAINING`.
    - `name`, `named`: the word after `train` or `pbt`, and the agent that learns.
    - `preset`: the source of the agent's defaults, instead of the library.
    - `env`: the value of `--env`, which determines the defaults of skills.
    """
    if command != "disk":
        return _agent_type(command, name, named, preset, env)
    settings, defaults = _skill_defaults(named, env, DISK_OPTIONS)
    fields: _Fields = [
        ("settings", Settings, dataclasses.field(default=settings)),
        ("env_options", tyro.conf.UseAppendAction[EnvOptions]),
        ("schedule", SkillSchedule, _default(SkillSchedule(), defaults)),
        ("learner", Learner),
        ("reward", options_of(Incremental, without=("past_capacity",))),
        ("output", _output_of("disk-", "all skills")),
        *_agent_fields(named, defaults),
    ]
    options = _options_type("DiskOptions", fields)
    options.__doc__ = TRAINING[command]
    return options


def all_commands(others: Mapping[str, type]) -> Any:
    """The union of all commands, whose help names them.

    **Arguments:**

    - `others`: the types of those that do not train, by name.
    """
    agents = AGENTS | dict.fromkeys(REWARDS, AGENTS[LearnerOptions.agent])
    learner = AGENTS[Learner.agent]
    commands: dict[str, type] = {}
    for command, text in TRAINING.items():
        if command == "disk":
            commands[command] = command_type(command, "", learner, None, None)
            continue
        types = {
            name: command_type(command, name, named, None, None)
            for name, named in agents.items()
        }
        union = functools.reduce(operator.or_, map(_named, types, types.values()))
        sac = types["sac"]
        groups: dict[str, Any] = {
            field.name: field.type
            for field in dataclasses.fields(sac)
            if field.default is dataclasses.MISSING
        }
        # A group may be annotated.
        groups = {x: (get_args(group) or (group,))[0]() for x, group in groups.items()}
        # With a default, help does not call the name of an agent required.
        default = dataclasses.field(default=sac(**groups))
        fields: _Fields = [("options", union, default)]
        commands[command] = dataclasses.make_dataclass("Command", fields)
        commands[command].__doc__ = text
    named_types = [_named(*each) for each in (commands | dict(others)).items()]
    return functools.reduce(operator.or_, named_types)


def _agent_type(
    command: str, name: str, named: NamedAgent, preset: Preset | None, env: str | None
) -> type:
    """The options of `eqrl train` or `eqrl pbt` with one agent."""
    is_training, reward = command == "train", REWARDS.get(name)
    settings = Settings(env=named.env, hidden_sizes=named.hidden_sizes)
    defaults: Mapping[str, Any] = {}
    if reward is not None:
        settings, defaults = _skill_defaults(named, env, POINT_OPTIONS)
        if settings.hidden_sizes != CategoricalDiscriminator().hidden_sizes:
            # The reward has its own sizes, as in Python.
            sizes = defaults.get("hidden_sizes")
            settings = dataclasses.replace(settings, hidden_sizes=sizes)
    elif preset is not None and preset.agent == name:
        settings, defaults = preset.settings, {**preset.options, **preset.trainer}
    # Only whole iterations can run.
    unit = math.prod(_ROLLOUT.values()) if named.is_on_policy else 1
    whole = lambda num_steps: math.ceil(num_steps / unit) * unit
    schedule: Training | Population
    if not is_training:
        schedule = Population(steps_per_generation=whole(2_000))
        if reward is not None:
            schedule = Population(steps_per_generation=whole(4_000), num_episodes=4)
    elif preset is not None and preset.agent == name:
        schedule = Training(num_steps=preset.num_steps)
    else:
        schedule = Training(num_steps=whole(20_000 if reward is None else 40_000))
    fields: _Fields = [
        ("settings", Settings, dataclasses.field(default=settings)),
        ("env_options", tyro.conf.UseAppendAction[EnvOptions]),
        ("schedule", type(schedule), dataclasses.field(default=schedule)),
    ]
    if name == OWN:
        own = Own(name_of(named.agent_type))
        fields.insert(0, ("own", Own, dataclasses.field(default=own)))
    if not is_training:
        fields.append(("priors", tyro.conf.UseAppendAction[Priors]))
    if reward is not None:
        fields.append(("learner", LearnerOptions, _default(reward.learner, {})))
        without = ("skills", *reward.fixed)
        made = DiscriminatorOptions
        if name != "diayn":
            # The options of the last base come first.
            parts = (*reward.parts, reward.reward_type)
            make = lambda part: options_of(part, without=without, prefix=PREFIX)
            bases = (*map(make, parts),)
            made = dataclasses.make_dataclass("Reward", [], bases=bases, frozen=True)
        fields.append(("reward", made, _default(made(), defaults)))
        if reward.skills is not None:
            fields.append(("skills", SkillOptions, _default(reward.skills, {})))
    fields.append(("output", _OUTPUT if is_training else _POPULATION_OUTPUT))
    options = _options_type(
        f"{command.capitalize()}{name.replace('-', '').capitalize()}",
        [*fields, *_agent_fields(named, defaults)],
        name=name,
    )
    documented = named.agent_type if reward is None else reward.documented
    text = (documented.__doc__ or "").partition("\n")[0]
    # Without a docstring, a dataclass documents itself by its signature.
    is_signature = text.startswith(f"{documented.__name__}(")
    options.__doc__ = f"{documented.__name__}." if is_signature else text
    return options


def _skill_defaults(
    named: NamedAgent, env: str | None, options: Mapping[str, Any]
) -> tuple[Settings, Mapping[str, Any]]:
    """The settings of an agent that learns skills, and its other defaults by name."""
    # An agent that takes other actions has another default environment.
    if env in (None, POINT) and named.env == NamedAgent.env:
        return Settings(env=POINT, hidden_sizes=options["hidden_sizes"]), options
    return Settings(env=named.env, hidden_sizes=named.hidden_sizes), {}


def _default(options: Any, defaults: Mapping[str, Any]) -> Any:
    """A field with these options for its default, some of them replaced by name."""
    names = {field.name for field in dataclasses.fields(options)} & defaults.keys()
    replaced = {name: defaults[name] for name in names}
    return dataclasses.field(default=dataclasses.replace(options, **replaced))


def _agent_fields(named: NamedAgent, defaults: Mapping[str, Any]) -> _Fields:
    """The options of an agent and of its trainer."""
    # The defaults of a custom agent are left to its author.
    own_defaults = defaults if named in AGENTS.values() else {}
    rollout: Mapping[str, Any] = {}
    without: tuple[str, ...] = ()
    if named.is_on_policy:
        rollout, without = _ROLLOUT, _NO_ROLLOUT
    return [
        ("agent", options_of(named.agent_type, **own_defaults)),
        ("trainer", options_of(Trainer, without=without, **{**rollout, **defaults})),
    ]


def _options_type(title: str, fields: _Fields, **constants: str) -> type:
    """A dataclass of groups of options, where none repeats an option of the agent."""
    # A group may be annotated.
    groups = {name: (get_args(group) or (group,))[0] for name, group, *_ in fields}
    agent = groups.pop("agent")
    names = {field.name for field in dataclasses.fields(agent)}
    others = {
        field.name for group in groups.values() for field in dataclasses.fields(group)
    }
    if names & others:
        raise ValueError(
            f"`{agent.__name__.removesuffix('Options')}` has the arguments "
            f"{sorted(names & others)}, which are options of the command already; "
            "rename them."
        )
    # Fields with a default must follow those without; otherwise the order is kept.
    return dataclasses.make_dataclass(
        title, sorted(fields, key=len), namespace=constants, frozen=True
    )


def _named(name: str, command: type) -> Any:
    return Annotated[command, tyro.conf.subcommand(name)]
