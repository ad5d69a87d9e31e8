"""The types from which `tyro` builds the command line, a field for each option."""

import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import equinox as eqx
import tyro

from .._agents.wrappers.intrinsic import diayn
from .._pytree.fields import Range, range_of
from .._rewards.incremental import Incremental
from .._run.agents import AGENTS, NamedAgent, SkillOptions
from .._run.config import Population, Prior, Settings, SkillSchedule, Training
from .._training.trainer import Trainer
from ..presets import Preset


# The agents and `Trainer` occur in several commands, and dataclasses are slow to make.
@functools.cache
def options_of(
    module: type[eqx.Module], /, *, without: tuple[str, ...] = (), **defaults: object
) -> type:
    """A dataclass of those arguments of a module that the command line can express.

    **Arguments:**

    - `module`: a class with an `**Arguments:**` list, from which the help texts come.
    - `without`: names of arguments that are no options.
    - `defaults`: replace those of the module.

    Raises a `ValueError` if an annotation names what is not there.
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
        fields.append((name, annotation, dataclasses.field(default=default)))
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
        # A command line has no arrays, so a `FloatLike` is a float on it.
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


# The library's defaults are those of the papers, for larger networks and problems.
_DEFAULTS = {
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "temperature_lr": 1e-3,
    "batch_size": 64,
}
# The entropy of the policy competes with an intrinsic reward of a few nats.
_DIAYN_DEFAULTS = {**_DEFAULTS, "batch_size": 128, "initial_temperature": 0.1}

# `Trainer.on_policy` takes these two, and derives the others from them.
_ROLLOUT = {"num_envs": 8, "steps_per_iteration": 125}
_NO_ROLLOUT = ("batch_size", "capacity", "warmup_steps", "updates_per_iteration")

# It has two dimensions, in which skills can be seen and learned within a minute.
_POINT = Settings(env="eqrl/Point")

OWN = "own"
"""Stands for the name of an agent that is given by its path."""

_PRIOR_HELP = (
    "A hyperparameter to vary, and in which range: its name, then uniform, loguniform, "
    "oneminus-uniform or oneminus-loguniform, then two bounds. The last two kinds are "
    "of one minus the hyperparameter, such as a discount near one. By default the "
    "learning rates, of actor and critic or of all, and the discount, where the agent "
    "has them."
)


_Fields = list[Any]
"""As `dataclasses.make_dataclass` takes them."""


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
            "checkpoint; all other options but --checkpoint-every come from it.",
        ),
    ]
    fields: _Fields = [
        (
            name,
            Annotated[option, tyro.conf.arg(help=text)],
            dataclasses.field(default=default),
        )
        for name, option, default, text in options
        # `TensorBoard` writes rows of seeds and skills, not generations.
        if tensorboard or name != "tensorboard"
    ]
    output = dataclasses.make_dataclass("Output", fields, frozen=True)
    output.__doc__ = "Output of a run."
    return output


_OUTPUT = _output_of("", "a seed")
_POPULATION_OUTPUT = _output_of("pbt-", "a member", tensorboard=False)

_LEARNER_HELP = (
    ", ".join(name for name, named in AGENTS.items() if not named.is_on_policy)
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
class Own:
    """The agent, if it is one of your own."""

    agent: str
    """Class of the agent, as package.module:Class, from which its options come."""


def command_type(
    given: Mapping[str, NamedAgent], preset: Preset | None, **others: type
) -> Any:
    """The union of all commands.

    **Arguments:**

    - `given`: the agent that follows `--agent`, by the words of the command: `train
        own`, `train diayn`, likewise of `pbt`, and `disk`.
    - `preset`: from which the defaults of its agent come.
    - `others`: the types of the other commands, by name.
    """
    of_your_own = "with --agent package.module:Class, one of your own"
    texts = {
        "train": f"Train an agent; without a name, that is sac or, {of_your_own}. ",
        "pbt": "Train a population, whose worst members copy the best and vary their "
        f"hyperparameters; without a name, of sac or, {of_your_own}. ",
        "disk": "Learn skills one after another, each unlike all before it. ",
    }
    commands: dict[str, type] = {}
    for command in ("train", "pbt"):
        agents = {**AGENTS, OWN: given.get(f"{command} {OWN}")}
        agents["diayn"] = given.get(f"{command} diayn", AGENTS[SkillOptions.agent])
        types = [
            _named(name, _agent_type(command, name, named, preset))
            for name, named in agents.items()
            if named is not None
        ]
        commands[command] = dataclasses.make_dataclass(
            f"{command.capitalize()}Command",
            [("options", functools.reduce(operator.or_, types))],
        )
    fields: _Fields = [
        ("settings", Settings, dataclasses.field(default=_POINT)),
        ("schedule", SkillSchedule),
        ("learner", Learner),
        ("reward", options_of(Incremental, without=("past_capacity",))),
        ("output", _output_of("disk-", "all skills")),
        *_agent_fields(
            given.get("disk", AGENTS[Learner.agent]),
            {**_DIAYN_DEFAULTS, "warmup_steps": 200},
        ),
    ]
    commands["disk"] = _options_type("DiskOptions", fields)
    for command, text in texts.items():
        commands[command].__doc__ = (
            f"{text}`eqrl {command} --resume FOLDER` resumes a run that was stopped or "
            "killed."
        )
    named_types = [_named(*each) for each in (commands | others).items()]
    return functools.reduce(operator.or_, named_types)


def _agent_type(
    command: str, name: str, named: NamedAgent, preset: Preset | None
) -> type:
    """The options of `eqrl train` or `eqrl pbt` with one agent."""
    is_training, is_skilled = command == "train", name == "diayn"
    settings, schedule, defaults = None, None, _DEFAULTS
    if is_skilled:
        settings, defaults = _POINT, _DIAYN_DEFAULTS
        schedule = (
            Training(num_steps=40_000)
            if is_training
            else Population(steps_per_generation=4_000, num_episodes=4)
        )
    elif is_training and preset is not None and preset.agent == name:
        settings, schedule = preset.settings, Training(num_steps=preset.num_steps)
        defaults = {**_DEFAULTS, **preset.options, **preset.trainer}
    default = lambda x: [] if x is None else [dataclasses.field(default=x)]
    fields: _Fields = [
        ("settings", Settings, *default(settings)),
        ("schedule", Training if is_training else Population, *default(schedule)),
    ]
    if name == OWN:
        fields.insert(0, ("own", Own))
    if not is_training:
        fields.append(("priors", tyro.conf.UseAppendAction[Priors]))
    if is_skilled:
        fields.append(("skills", SkillOptions))
    fields.append(("output", _OUTPUT if is_training else _POPULATION_OUTPUT))
    options = _options_type(
        f"{command.capitalize()}{name.replace('-', '').capitalize()}",
        [*fields, *_agent_fields(named, defaults)],
        name=name,
    )
    documented = diayn if is_skilled else named.agent_type
    text = (documented.__doc__ or "").partition("\n")[0]
    # Without a text of its own a dataclass documents itself by its signature.
    is_signature = text.startswith(f"{documented.__name__}(")
    options.__doc__ = f"{documented.__name__}." if is_signature else text
    return options


def _agent_fields(named: NamedAgent, defaults: Mapping[str, object]) -> _Fields:
    """The options of an agent and of its trainer."""
    # Those of an agent that is not of eqrl's own are its author's.
    own_defaults = (
        {} if named not in AGENTS.values() else {**named.defaults, **defaults}
    )
    trainer_defaults = defaults
    if named.num_windows is not None:
        trainer_defaults = {**defaults, "batch_size": named.num_windows}
    without: tuple[str, ...] = ()
    if named.is_on_policy:
        trainer_defaults, without = {**_ROLLOUT, **trainer_defaults}, _NO_ROLLOUT
    return [
        ("agent", options_of(named.agent_type, **own_defaults)),
        ("trainer", options_of(Trainer, without=without, **trainer_defaults)),
    ]


def _options_type(title: str, fields: _Fields, **constants: str) -> type:
    """A dataclass of groups of options, if those of the agent are in no other."""
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
    # Fields with a default must follow those without; sorting keeps the order else.
    return dataclasses.make_dataclass(
        title, sorted(fields, key=len), namespace=constants
    )


def _named(name: str, command: type) -> Any:
    return Annotated[command, tyro.conf.subcommand(name)]
