"""Settings of a run, as `config.json` holds them."""

import dataclasses
import inspect
import operator
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import equinox as eqx
import jax
from jax.tree_util import GetAttrKey

from .._agents.base import AnyAgent
from .._agents.wrappers.intrinsic import Intrinsic
from .._agents.wrappers.normalized import Normalized, NormalizedReward
from .._population.pbt import PBT, Selection, Tournament, Truncation
from .._population.prior import (
    AbstractPrior,
    LogUniform,
    OneMinus,
    Uniform,
    check_prior,
    name_of_option,
    only_match,
)
from .._pytree.fields import Range, check_choice, check_integer, range_of
from .._rewards.incremental import Incremental
from .._rewards.scale import Replay
from .._storage.checkpoint import Directory
from .._storage.files import Content, read_json
from .._training.mesh import Members
from .._training.replay import ReplayBuffer
from .._training.trainer import Trainer
from .._types.installed import NotInstalledError
from ..envs import make
from ..envs._base import LIBRARIES, AnyEnv, check_is_env
from ..nn import Convolution, Precision
from ..nn._product import products_of_bfloat16
from .agents import (
    NamedAgent,
    check_agent,
    check_given,
    find_agent,
    is_path,
    make_agent,
    name_of,
    option_of,
    with_options,
)
from .files import CONFIG, check_type, config_of, make_typed, versions, write_json
from .rewards import (
    REWARDS,
    SUBTRACTED,
    LearnerOptions,
    SkillOptions,
    check_is_rewarded,
    check_reward,
    make_intrinsic,
)


ConvolutionName = Literal["minatar", "atari"]

Prior = tuple[str, str, float, float]
"""The name of a hyperparameter, the kind of its prior, and the bounds."""

_KINDS: dict[str, Callable[[float, float], AbstractPrior]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "oneminus-uniform": lambda low, high: OneMinus(Uniform(low, high)),
    "oneminus-loguniform": lambda low, high: OneMinus(LogUniform(low, high)),
}


# How libraries call the time limit, if not `max_steps`.
_LIMITS = {
    "craftax": "max_timesteps",
    "gymnax": "max_steps_in_episode",
    "jumanji": "time_limit",
    "playground": "episode_length",
}


def select_tuned(
    agent: AnyAgent, priors: Sequence[Prior]
) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[AbstractPrior, ...]]:
    """`where` and `priors` of a `PBT`, for hyperparameters at any depth of the agent.

    The names must be unique, and each prior must lie in the range of its
    hyperparameter; otherwise a `ValueError` is raised.
    """
    paths = [path_of(agent, name) for name, *_ in priors]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise ValueError(f"There are two priors of `{priors[index][0]}`; give one.")
    made = []
    for path, (name, kind, low, high) in zip(paths, priors, strict=True):
        owner_path, _, field = path.rpartition(".")
        owner = operator.attrgetter(owner_path)(agent) if owner_path else agent
        try:
            check_choice("kind", kind, _KINDS)
            prior = _KINDS[kind](low, high)
            check_prior(field, prior, range_of(owner, field))
        except ValueError as error:
            raise ValueError(f"The prior of `{name}` is wrong: {error}") from error
        made.append(prior)
    selectors = tuple(operator.attrgetter(path) for path in paths)
    return lambda agent: tuple(select(agent) for select in selectors), tuple(made)


def path_of(agent: AnyAgent, name: str) -> str:
    """The path of the one hyperparameter whose path ends in `name`.

    If there are several, it is the option of that name, of the innermost agent.
    """
    # A prior draws one number, and the elements of a list have no names of their own.
    paths = [
        ".".join(key.name for key in path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(agent)
        if eqx.is_inexact_array(leaf)
        and leaf.shape == ()
        and all(isinstance(key, GetAttrKey) for key in path)
    ]
    path = only_match(paths, name_of_option(agent, name))
    if path is None:
        names = ", ".join(path.rpartition(".")[2] for path in paths)
        raise ValueError(
            f"There is no hyperparameter `{name}` to vary; those of this agent are "
            f"{names}."
        )
    return path


def check_seed(seed: int) -> None:
    """Checks that JAX, which keeps 32 bits of a seed, keeps all of this one."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed={seed}` must be from 0 to {2**32 - 1}.")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Environment, networks and randomness of a run."""

    env: str = "gymnax/Pendulum-v1"
    """Environment, as LIBRARY/NAME (`eqrl envs` lists them), or your own, as
    package.module:make."""

    backend: str | None = None
    """Physics of brax: generalized (brax's default), mjx, positional or spring."""

    max_steps: int | None = None
    """Time limit of an episode; by default the environment's own, or 1000 if it has
    none, except in Gymnasium and EnvPool."""

    hidden_sizes: tuple[int, ...] | None = None
    """Width of each hidden layer of all networks; None is each network's own."""

    convolution: ConvolutionName | None = None
    """Convolution that reads images: minatar's layer or the three of atari; by default
    they are flattened."""

    precision: Precision = "float32"
    """Precision of the products of networks; bfloat16 rounds their factors."""

    normalize: bool = False
    """Normalize observations to mean zero and standard deviation one."""

    normalize_clip: float | None = None
    """With --normalize: bound of the absolute value of each normalized element."""

    normalize_reward: bool = False
    """Divide the environment's rewards by their running root mean square."""

    seed: int = 0
    """Seed of all randomness of the run."""


@dataclasses.dataclass(frozen=True)
class Training:
    """Length of training, and the number of independent seeds."""

    command: ClassVar[str] = "train"
    kind: ClassVar[str] = "seed"
    length: ClassVar[str] = "num_steps"
    at_least_one: ClassVar[tuple[str, ...]] = (
        "num_steps",
        "seeds",
        "log_every",
        "evaluate_every",
        "evaluation_episodes",
    )

    num_steps: int = 20_000
    """Environment steps of each seed, warm-up included."""

    seeds: int = 1
    """Agents to train, each from a seed of its own."""

    log_every: int = 1_000
    """Environment steps between two rows of metrics, where checkpoints can be."""

    evaluate_every: int | None = None
    """Environment steps between evaluations; by default there is one, at the end."""

    evaluation_episodes: int = 16
    """With --evaluate-every: greedy episodes of each evaluation."""

    members: Members | None = None
    """How the seeds on one device train; by default in turn on a CPU."""

    devices: int | None = None
    """Devices to divide the seeds among; by default all cores that divide them."""

    @property
    def count(self) -> int:
        """The number of policies."""
        return self.seeds


@dataclasses.dataclass(frozen=True)
class Population:
    """Schedule of population based training."""

    command: ClassVar[str] = "pbt"
    kind: ClassVar[str] = "member"
    length: ClassVar[str] = "num_generations"
    at_least_one: ClassVar[tuple[str, ...]] = (
        "size",
        "num_generations",
        "steps_per_generation",
        "num_episodes",
    )

    size: int = 8
    """Members."""

    num_generations: int = 10
    """Generations, in each of which all members train and are evaluated."""

    steps_per_generation: int = 2_000
    """Environment steps of each member in a generation."""

    num_episodes: int = 16
    """Greedy episodes by which each member is ranked; with skills, of each."""

    num_replaced: int | None = None
    """Members to replace after each generation: 2; in a tournament every loser."""

    num_elite: int = 2
    """Best members, from which truncation copies, at least 1; not of a tournament."""

    resample_probability: float = 0.25
    """Probability of sampling a hyperparameter anew rather than perturbing it."""

    selection: Selection = "truncation"
    """The worst copy the best, or each member plays against another."""

    copy_replay: bool = True
    """Copy the replay and the environments of the parent as well."""

    members: Members | None = None
    """How the members on one device train; by default in turn on a CPU."""

    devices: int | None = None
    """Devices to divide the population among; by default all cores that divide it."""

    @property
    def count(self) -> int:
        """The number of policies."""
        return self.size

    def make_pbt(self, agent: AnyAgent, priors: tuple[Prior, ...]) -> PBT:
        where, made = select_tuned(agent, priors)
        if self.selection == "tournament":
            selection = Tournament(self.num_replaced)
        else:
            num_replaced = 2 if self.num_replaced is None else self.num_replaced
            selection = Truncation(num_replaced, self.num_elite)
        return PBT(
            where=where,
            priors=made,
            resample_probability=self.resample_probability,
            selection=selection,
            copy_replay=self.copy_replay,
        )


@dataclasses.dataclass(frozen=True)
class SkillSchedule:
    """Length of the training of skills that are learned one after another."""

    command: ClassVar[str] = "disk"
    kind: ClassVar[str] = "skill"
    length: ClassVar[str] = "num_skills"
    at_least_one: ClassVar[tuple[str, ...]] = (
        "num_skills",
        "num_steps",
        "num_collected_episodes",
        "log_every",
        "evaluate_every",
        "evaluation_episodes",
    )

    num_skills: int = 5
    """Skills, each of which is an agent of its own."""

    num_steps: int = 2_000
    """Environment steps of each skill, which continues to the end of an episode."""

    num_collected_episodes: int = 100
    """Episodes in which each skill is rolled out before a new one begins."""

    replay: Replay | None = None
    """Part of the replay that the next skill inherits; by default that of the mode."""

    log_every: int = 1_000
    """Environment steps between two rows of metrics."""

    evaluate_every: int | None = None
    """Environment steps between evaluations; by default there is one, at the end."""

    evaluation_episodes: int = 16
    """With --evaluate-every: greedy episodes of each evaluation."""

    @property
    def count(self) -> int:
        """The number of policies."""
        return self.num_skills


Schedule = TypeVar("Schedule", bound=Training | Population | SkillSchedule)
Value = TypeVar("Value")

_SCHEDULES: dict[str, type[Training | Population | SkillSchedule]] = {
    "training": Training,
    "population": Population,
    "disk": SkillSchedule,
}


@dataclasses.dataclass(frozen=True)
class Run(Generic[Schedule]):
    """Everything that determines a run.

    If `agent` is the name of an intrinsic reward, `learner` has the agent that learns
    from it, `skills` the skills, if it teaches any, and `reward_options` its options;
    with a `SkillSchedule`, those of `Incremental`. `agent_type` is the class of a
    custom agent; its path is in `config.json`, but is never imported from there.
    `earlier_lengths` are the lengths at which the run ended before it was resumed to
    train longer. `env_options` are parameters of the environment, each as `name=value`;
    likewise, `make_own_env` makes a custom environment. `episodes_resumed` is whether
    simulators outside JAX continued their episodes each time the run was resumed;
    `None` if it never was or has none.
    """

    agent: str
    agent_options: dict[str, float | int | bool | None]
    trainer_options: dict[str, Any]
    settings: Settings
    schedule: Schedule
    learner: LearnerOptions | None = None
    skills: SkillOptions | None = None
    priors: tuple[Prior, ...] = ()
    reward_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    earlier_lengths: tuple[int, ...] = ()
    env_options: tuple[str, ...] = ()
    episodes_resumed: bool | None = None
    agent_type: type[AnyAgent] | None = None
    make_own_env: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        check_reward(self.agent, self.learner, self.skills)
        if self.settings.normalize_reward:
            check_is_rewarded(self.agent, self.learner, self.schedule.command)
        check_agent(self.learning_agent, self.agent_type)
        check_given("env", self.settings.env, "make_env", self.make_own_env)
        check_seed(self.settings.seed)
        for name in self.schedule.at_least_one:
            value = getattr(self.schedule, name)
            if value is not None:
                check_integer(name, value, least=1)
        clip = self.settings.normalize_clip
        Range(low=0, low_open=True, optional=True).check("normalize_clip", clip)
        if clip is not None and not self.settings.normalize:
            raise ValueError(
                f"`normalize_clip={clip}` bounds normalized observations, but "
                "`normalize` is false: normalize them, too, or leave it out."
            )

    @property
    def learning_agent(self) -> str:
        """The name of the agent within an intrinsic reward, if there is one."""
        return self.agent if self.learner is None else self.learner.agent

    @property
    def title(self) -> str:
        """Title of the plots."""
        inner = None if self.learner is None else self.learner.agent
        return _title(self.agent, inner, self.settings.env, self.schedule)

    @property
    def name(self) -> str:
        """The beginning of the default folder's name."""
        agent = _shown(self.agent) if is_path(self.agent) else self.agent
        words = [self.schedule.command, agent, self.settings.env.replace("/", "-")]
        return "-".join(words).replace(":", "-").removeprefix("train-")

    @property
    def options(self) -> list[tuple[str, Any]]:
        """The names and values of all options but priors and the environment's own."""
        groups = [
            vars(self.settings),
            vars(self.schedule),
            self.agent_options,
            self.trainer_options,
            {} if self.learner is None else vars(self.learner),
            {} if self.skills is None else vars(self.skills),
            self.reward_options,
        ]
        return [item for group in groups for item in group.items()]

    def __str__(self) -> str:
        shown = [f"{name}={x}" for name, x in self.options if x is not None]
        priors = "".join(f", prior={' '.join(map(str, each))}" for each in self.priors)
        priors += "".join(f", env_option={each}" for each in self.env_options)
        return f"{self.title}: {', '.join(shown)}{priors}"

    def resuming(self, folder: Directory, *, command: str | None = None) -> str:
        """The command line that resumes it, by default with its own command."""
        words = ["eqrl", command or self.schedule.command, "--resume", str(folder)]
        # A folder never causes an import from outside eqrl.
        for name, given in (("agent", self.agent_type), ("env", self.make_own_env)):
            words += [] if given is None else [f"--{name}", name_of(given)]
        return shlex.join(words)

    def lengthened(self, length: int, *, has_ended: bool) -> "Run[Schedule]":
        """The same run with a greater length, whether or not it has ended.

        Raises a `ValueError` if that is less, or if a learning rate is 0 before it.
        """
        schedule, name = self.schedule, self.schedule.length
        earlier = getattr(schedule, name)
        if length < earlier:
            raise ValueError(
                f"`{name}={length}` is less than the {earlier} of this run; give more."
            )
        num_steps, duration = length, self.agent_options.get("anneal_steps")
        if isinstance(schedule, Population):
            num_steps = length * schedule.steps_per_generation
        if length > earlier and duration is not None and num_steps > duration:
            raise ValueError(
                f"`{name}={length}` is more than this run can learn from: its learning "
                f"rate goes down to 0 over `anneal_steps={duration:.0f}` environment "
                f"steps. Begin a new run with `--{name.replace('_', '-')} {length} "
                f"--anneal-steps {num_steps}`; anneal over the final length."
            )
        lengths = self.earlier_lengths
        if has_ended and length > earlier:
            lengths = (*lengths, earlier)
        longer = dataclasses.replace(schedule, **{name: length})
        return dataclasses.replace(self, schedule=longer, earlier_lengths=lengths)

    def make_agent(self) -> AnyAgent:
        networks: dict[str, Any] = {}
        for name in ("hidden_sizes", "precision"):
            if (value := getattr(self.settings, name)) not in (None, "float32"):
                networks[name] = value
        if self.settings.convolution is not None:
            networks["encoder"] = self._encoder(self.settings.convolution)
        must_change = {"encoder"}
        # Otherwise the networks of the reward have it, and the sizes, too.
        if self.learner is None or self.agent in SUBTRACTED:
            must_change.add("precision")
        # Training of skills has its own default sizes.
        if self.learner is None and not isinstance(self.schedule, SkillSchedule):
            must_change.add("hidden_sizes")
        agent = make_agent(
            self._named_agent,
            self.agent_options,
            networks,
            lambda: self.make_env().spec.action,
            must_change=must_change,
        )
        if self.learner is not None:
            # The input of a reward is not an image.
            networks.pop("encoder", None)
            agent = make_intrinsic(
                self.agent,
                agent,
                self.learner,
                self.skills,
                self.reward_options,
                networks,
            )
        if self.settings.normalize_reward:
            agent = NormalizedReward(agent)
        if self.settings.normalize:
            agent = Normalized(agent, clip=self.settings.normalize_clip)
        if isinstance(self.schedule, SkillSchedule):
            # Outermost, since each skill is the agent inside.
            agent = Intrinsic(agent, Incremental(**self.reward_options))
        return agent

    def _encoder(self, name: ConvolutionName) -> Convolution:
        shape = self.make_env().spec.observation_shape
        if shape is None or len(shape) != 3:
            raise ValueError(
                f"`convolution={name!r}` reads images, and `{self.settings.env}` has "
                "none; leave it out."
            )
        if name == "minatar":
            return Convolution(shape)
        return Convolution(shape, (32, 64, 64), (8, 4, 3), strides=(4, 2, 1))

    def by_given_names(self, hyperparameters: Mapping[str, Value]) -> dict[str, Value]:
        """Renames hyperparameters from their paths to the names of the priors."""
        agent = self.make_agent()
        return {name: hyperparameters[path_of(agent, name)] for name, *_ in self.priors}

    def make_env(self) -> AnyEnv:
        pairs = [*map(option_of, self.env_options)]
        options = dict(pairs)
        if len(options) < len(pairs):
            raise ValueError(
                f"`env_option` is given twice for one name: {[*self.env_options]}."
            )
        name = _LIMITS.get(self.settings.env.partition("/")[0], "max_steps")
        limits = options.keys() & {"max_steps", name}
        if limits and self.settings.max_steps is not None:
            raise ValueError(
                f"`max_steps={self.settings.max_steps}` and `env_option` {[*limits]} "
                "are both the time limit; give one."
            )
        given = {"backend": self.settings.backend, "max_steps": self.settings.max_steps}
        if self.make_own_env is None:
            library = LIBRARIES.get(self.settings.env.partition("/")[0])
            if library is not None and "options" in library.options:
                own = options.keys() & {*library.options} - {"options"}
                given |= {x: options.pop(x) for x in own}
                return _make_outside(self.settings.env, {**given, "options": options})
            env = make(self.settings.env, **given)
            return with_options(env, self.settings.env, options) if options else env
        given = {name: value for name, value in given.items() if value is not None}
        try:
            inspect.signature(self.make_own_env).bind(**given, **options)
        except TypeError as error:
            raise ValueError(
                f"`{self.settings.env}` does not take the options "
                f"{sorted({**given, **options})}: {error}."
            ) from error
        env = self.make_own_env(**given, **options)
        check_is_env("env", env)
        return env

    def make_trainer(self) -> Trainer:
        if not self._named_agent.is_on_policy:
            named = REWARDS.get(self.agent)
            replay = ReplayBuffer if named is None else named.make_replay
            return Trainer(**self.trainer_options, make_replay=replay)
        options = dict(self.trainer_options)
        num_steps = options.pop("steps_per_iteration")
        return Trainer.on_policy(**options, num_steps=num_steps)

    @property
    def _named_agent(self) -> NamedAgent:
        """The agent within all wrappers."""
        return find_agent(self.learning_agent, self.agent_type)


def _make_outside(name: str, options: Mapping[str, Any]) -> AnyEnv:
    """Makes an environment whose simulator may raise any error when it starts."""
    try:
        return make(name, **options)
    except (ValueError, NotInstalledError):
        raise
    except Exception as error:
        raise ValueError(
            f"`{name}` cannot start: {type(error).__name__}: {error}"
        ) from error


def _shown(agent: str) -> str:
    """The name of an agent in titles; for a custom one, that of its class."""
    return agent.rpartition(":")[2] if is_path(agent) else agent.upper()


def _title(
    agent: str,
    inner: str | None,
    env: str,
    schedule: Training | Population | SkillSchedule,
) -> str:
    within = "" if inner is None else f" with {_shown(inner)}"
    outer = "DISk with " if isinstance(schedule, SkillSchedule) else ""
    return f"{outer}{_shown(agent)}{within} on {env}"


def write_config(folder: Directory, run: Run) -> None:
    """Writes `config.json`, from which a run can be repeated."""
    content = dataclasses.asdict(run)
    del content["agent_type"], content["make_own_env"]
    if run.episodes_resumed is None:
        del content["episodes_resumed"]
    if run.settings.precision == "bfloat16":
        content["products"] = products_of_bfloat16()
    (name,) = [name for name, each in _SCHEDULES.items() if each is type(run.schedule)]
    content[name] = content.pop("schedule")
    write_json(folder, CONFIG, {**versions(), **content})


def read_config(
    folder: Directory,
    agent_type: type[AnyAgent] | None = None,
    make_env: Callable[..., Any] | None = None,
) -> Run:
    """Reads the run that `write_config` wrote.

    The file must define an agent and a trainer, and `agent_type` must be the class that
    it names, or `None` if the agent is eqrl's own; likewise `make_env`. Otherwise a
    `ValueError` that names the file is raised.
    """

    def parse(content: Content) -> Run:
        content = dict(content)
        content.pop("eqrl")
        content.pop("jax")
        content.pop("products", None)
        settings, skills, priors = (
            content.pop(name) for name in ("settings", "skills", "priors")
        )
        if settings["hidden_sizes"] is not None:
            settings = {**settings, "hidden_sizes": tuple(settings["hidden_sizes"])}
        schedule = _pop_schedule(content)
        learner = content.pop("learner", None)
        lengths = content.pop("earlier_lengths", ())
        env_options = content.pop("env_options", ())
        resumed = content.pop("episodes_resumed", None)
        run = Run(
            settings=make_typed(Settings, settings),
            schedule=schedule,
            learner=None if learner is None else make_typed(LearnerOptions, learner),
            skills=None if skills is None else make_typed(SkillOptions, skills),
            priors=tuple(check_type("a prior", tuple(each), Prior) for each in priors),
            agent_type=agent_type,
            make_own_env=make_env,
            env_options=check_type("options", tuple(env_options), tuple[str, ...]),
            earlier_lengths=check_type("lengths", tuple(lengths), tuple[int, ...]),
            episodes_resumed=check_type("`episodes_resumed`", resumed, bool | None),
            **content,
        )
        # The constructors check that the options exist and are in range.
        run.make_agent()
        run.make_trainer()
        return run

    # A missing class or function is not a fault of the file.
    agent, env = _read(folder, _pop_names)
    check_given("agent", agent, "agent_type", agent_type)
    check_given("env", env, "make_env", make_env)
    return _read(folder, parse)


def _pop_names(content: Content) -> tuple[str, str]:
    """The names of the agent, within others, and of the environment."""
    # All runs have these; in any other file, the first missing one is reported.
    for name in ("eqrl", "jax", "settings", "skills"):
        content[name]
    agent = (content.get("learner") or content)["agent"]
    env = content["settings"]["env"]
    return check_type("`agent`", agent, str), check_type("`env`", env, str)


def read_schedule(folder: Directory) -> Training | Population | SkillSchedule:
    """Reads only the schedule of a run, without using JAX.

    Raises a `ValueError` where `read_config` does, which gives details.
    """
    return _read(folder, _pop_schedule)


def read_title(folder: Directory) -> str:
    """Reads only the title of a run, without importing an agent.

    Raises a `ValueError` where `read_config` does, which gives details.
    """

    def parse(content: Content) -> str:
        learner = content.get("learner")
        inner = (
            None if learner is None else check_type("`agent`", learner["agent"], str)
        )
        agent = check_type("`agent`", content["agent"], str)
        env = check_type("`env`", content["settings"]["env"], str)
        return _title(agent, inner, env, _pop_schedule(content))

    return _read(folder, parse)


def _read(folder: Directory, parse: Callable[[Content], Value]) -> Value:
    found = read_json(
        config_of(folder),
        lambda content: None if "saved" in content else parse(content),
        advice="mend it, or train again",
    )
    if found is None:
        raise ValueError(
            f"`{folder}` was written by `eqrl.save_run`. Its agent and environment are "
            "in that program, where `eqrl.load_run(folder, agent=agent, env=env)` "
            "loads it; `eqrl plot` draws it."
        )
    return found


def _pop_schedule(content: Content) -> Training | Population | SkillSchedule:
    name = next((name for name in _SCHEDULES if name in content), "training")
    return make_typed(_SCHEDULES[name], content.pop(name))
