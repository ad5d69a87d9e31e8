"""The steps in which `eqrl train`, `eqrl pbt` and `eqrl disk` differ."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from .._agents.base import AnyAgent
from .._agents.csf import CSF
from .._agents.wrappers.intrinsic import Intrinsic
from .._agents.wrappers.skills import prior_of
from .._disk.learn import check_replay, enlarge_past, learn_skills
from .._disk.library import (
    Skills,
    find_learner,
    init_training,
    load_skills,
    pick_skill,
    play_skills,
    save_skills,
    steps_of_skills,
)
from .._interaction.evaluate_skills import SkillEvaluation, evaluate_skills
from .._population.pbt import PBT
from .._population.solution import PopulationSolution, member, scores_of, winner_of
from .._population.train import train_population
from .._pytree.tree import parts
from .._reporting.progress import (
    PopulationProgressBar,
    ProgressBar,
    SkillProgressBar,
    TensorBoard,
    check_tensorboard,
)
from .._reporting.statistics import rounded
from .._run.config import Population, Run, SkillSchedule, Training
from .._run.files import checkpoints_folder, library_folder
from .._run.solutions import Interval, load_solution, step_of
from .._run.write import (
    GrowingMetrics,
    by_given_names,
    draw_population,
    draw_solution,
    states_of_seeds,
    write_generations,
    write_members,
    write_policies,
    write_rows,
    write_skills,
    write_skills_of_member,
    write_trajectories,
)
from .._storage.checkpoint import saved_steps
from .._training.evaluations import Evaluations
from .._training.mesh import POPULATION, check_mesh, most_shares
from .._training.rows import AnySolution
from .._training.train import check_training, jit_init, train, train_seeds
from .._training.trainer import AnyTrainerState, Trainer
from .._types.data import Discrete
from ..envs._base import AnyEnv
from ..presets import PRESETS, Preset
from .commands import Train, tell
from .finished import evaluation_env
from .training import (
    AbstractJob,
    Policies,
    open_checkpoints,
    reporting,
    without_ending,
)


NUM_SKILL_EPISODES = 8
"""Episodes of each skill by which skills are judged at the end of training."""


def print_skills(evaluations: Sequence[SkillEvaluation]) -> None:
    """Prints how well the skills of each seed or member can be told apart."""
    accuracies = ", ".join(f"{float(each.accuracy):.3f}" for each in evaluations)
    returns = ", ".join(
        rounded(np.mean(each.diversity_returns)) for each in evaluations
    )
    # Not every reward can tell skills apart.
    if not any(np.isnan(each.accuracy) for each in evaluations):
        print(f"accuracy of the discriminator: {accuracies}")
    print(
        f"mean diversity return of {NUM_SKILL_EPISODES} episodes of each skill: "
        f"{returns}"
    )


def make_evaluations(
    job: AbstractJob[Training, Any] | AbstractJob[SkillSchedule, Any],
) -> Evaluations[Any] | None:
    """The evaluations while a job trains, if its schedule has any."""
    schedule = job.run.schedule
    if schedule.evaluate_every is None:
        return None
    return Evaluations(
        job.agent,
        evaluation_env(job.env),
        every=schedule.evaluate_every,
        num_episodes=schedule.evaluation_episodes,
        # Neither the key of the training nor that of the evaluation after it.
        key=jr.fold_in(jr.key(job.run.settings.seed), 2),
    )


def _shapes(trainer: Trainer, agent: AnyAgent, env: AnyEnv) -> AnyTrainerState:
    """Shapes of a training state, from the trace of the checks."""
    return eqx.filter_eval_shape(jit_init, trainer, agent, env, key=jr.key(0))[0]


@dataclasses.dataclass(frozen=True)
class SeedsJob(AbstractJob[Training, AnySolution]):
    """Training of one agent from one seed or several."""

    tensorboard: bool
    mesh: Mesh | None
    preset: Preset | None

    def check(self) -> None:
        if self.tensorboard:
            check_tensorboard("`--tensorboard`")
        self.trainer.check_num_steps(self.run.schedule.num_steps)
        check_mesh(self.mesh, self.run.schedule.seeds, name="seeds")
        make_evaluations(self)
        check_training(self.trainer, self.agent, self.env)

    def shapes(self) -> tuple[AnyTrainerState, int]:
        return _shapes(self.trainer, self.agent, self.env), self.run.schedule.seeds

    def load(self, folder: Path) -> AnySolution | None:
        checkpoints = checkpoints_folder(folder)
        if not saved_steps(checkpoints):
            return None
        return load_solution(checkpoints, self.agent, self.env, self.trainer)

    def train(
        self, folder: Path, initial: AnySolution | None, every_steps: int | None
    ) -> AnySolution:
        schedule = self.run.schedule
        reports: dict[str, Callable[..., object]] = {
            "The progress": ProgressBar(schedule.num_steps),
            "metrics.csv": GrowingMetrics(folder, initial.metrics if initial else {}),
        }
        if self.tensorboard:
            reports["TensorBoard"] = TensorBoard(folder / "tensorboard")
        with (
            reporting(reports) as callbacks,
            open_checkpoints(folder, every_steps=every_steps) as checkpoint,
        ):
            options: dict[str, Any] = {
                "key": self.key,
                "log_every": schedule.log_every,
                "evaluations": make_evaluations(self),
                "callback": callbacks,
                "checkpoint": checkpoint,
            }
            learn: Callable[..., AnySolution] = train
            if schedule.seeds > 1:
                options["num_seeds"] = schedule.seeds
                options |= {"mesh": self.mesh, "members": schedule.members}
                learn = train_seeds
            size, reached = self.trainer.steps_of_iteration, initial
            # Each length ends with a row of the metrics, even if the run is repeated.
            for length in (*self.run.earlier_lengths, schedule.num_steps):
                left = length - (0 if reached is None else step_of(reached))
                # A failed iteration leaves it between two multiples of the size.
                num_steps = max(0, math.ceil(left / size) * size)
                if num_steps == 0 and reached is not None:
                    continue
                options |= {"num_steps": num_steps, "initial": reached}
                reached = learn(self.agent, self.env, self.trainer, **options)
            assert reached is not None
            return reached

    def failed(self, reached: AnySolution) -> Bool[np.ndarray, " seeds"]:
        # Not from the metrics, whose `nonfinite` also counts steps that a simulator's
        # error cost before the run was resumed.
        return np.atleast_1d(np.asarray(reached.trainer_state.failed))

    def has_learned(self, reached: AnySolution) -> bool:
        return int(reached.counts.updates) > 0

    def write(self, folder: Path, reached: AnySolution) -> Policies:
        write_policies(folder, reached)
        states = states_of_seeds(reached)
        pairs = [(self.agent, state) for state in states]
        return Policies(pairs, step=step_of(reached))

    def draw(self, folder: Path, reached: AnySolution) -> None:
        if reached.metrics:
            draw_solution(folder, self.run.title, reached)

    def report(
        self,
        folder: Path,
        reached: AnySolution,
        policies: Policies,
        returns: Float[np.ndarray, "seeds episodes"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        del reached
        num_episodes = returns.shape[1]
        means = returns.mean(axis=1)
        errors = returns.std(axis=1, ddof=1) / np.sqrt(num_episodes)
        listed = ", ".join(
            f"{rounded(mean)} ± {rounded(error)}"
            for mean, error in zip(means, errors, strict=True)
        )
        # Skills are learned without a return; there may be one beside them.
        has_return = self.run.skills is None or np.any(returns)
        if has_return:
            print(
                f"mean return of {num_episodes} greedy episodes, ± its standard error "
                f"over their starting states: {listed}"
            )
        if has_return and len(means) > 1:
            print(
                f"over {len(means)} seeds: {rounded(means.mean())}, standard deviation "
                f"{rounded(means.std(ddof=1))}"
            )
        if self.preset is not None:
            print(f"the preset reached: {self.preset.reached}")
        if self.run.skills is not None:
            # The evaluations of the seeds use the indices before this one.
            skill_key = jr.fold_in(key, self.run.schedule.seeds)
            evaluations = [
                evaluate_skills(
                    agent,
                    state,
                    evaluation_env(self.env),
                    num_episodes=NUM_SKILL_EPISODES,
                    key=jr.fold_in(skill_key, seed),
                )
                for seed, (agent, state) in enumerate(policies.pairs)
            ]
            write_skills(folder, self.run, self.env, evaluations)
            print_skills(evaluations)


@dataclasses.dataclass(frozen=True)
class PopulationJob(AbstractJob[Population, PopulationSolution]):
    """Population based training."""

    pbt: PBT
    mesh: Mesh | None

    def check(self) -> None:
        size = self.run.schedule.size
        if parts(self.agent, CSF):
            raise ValueError(
                "`csf` learns skills without a reward, so that returns cannot rank the "
                "members; train them by `eqrl.train_population` with a `score`."
            )
        self.trainer.schedule.check_num_steps(
            self.run.schedule.steps_per_generation, "steps_per_generation"
        )
        check_mesh(self.mesh, size)
        eqx.filter_eval_shape(self.pbt.init, self.agent, size, key=jr.key(0))
        check_training(self.trainer, self.agent, self.env)

    def shapes(self) -> tuple[AnyTrainerState, int]:
        return _shapes(self.trainer, self.agent, self.env), self.run.schedule.size

    def load(self, folder: Path) -> PopulationSolution | None:
        checkpoints = checkpoints_folder(folder)
        if not saved_steps(checkpoints):
            return None
        return load_solution(
            checkpoints, self.agent, self.env, self.trainer, mesh=self.mesh
        )

    def train(
        self, folder: Path, initial: PopulationSolution | None, every_steps: int | None
    ) -> PopulationSolution:
        schedule = self.run.schedule
        left = schedule.num_generations
        if initial is not None:
            write_generations(folder, by_given_names(self.run, initial))
            left -= len(initial.returns)
            if left == 0:
                return initial
        key, score = self.key, None
        if self.run.skills is not None:
            key, score_key = jr.split(key)
            # All members and generations share a key, so their scores are comparable.
            weight = self.run.learner and self.run.learner.environment_weight

            def worth(agent: AnyAgent, state: PyTree, _: object) -> Float[Array, ""]:
                played = evaluate_skills(
                    agent,
                    state,
                    evaluation_env(self.env),
                    num_episodes=schedule.num_episodes,
                    key=score_key,
                )
                task = 0.0 if weight is None else weight * played.returns
                return jnp.mean(played.diversity_returns + task)

            score = worth

        def write_metrics(
            step: int, metrics: object, solution: PopulationSolution
        ) -> None:
            del step, metrics
            write_generations(folder, by_given_names(self.run, solution))

        reports: dict[str, Callable[..., object]] = {
            "The progress": PopulationProgressBar(
                schedule.num_generations, schedule.steps_per_generation
            ),
            "metrics.csv": write_metrics,
        }
        with (
            reporting(reports) as callbacks,
            open_checkpoints(folder, every_steps=every_steps) as checkpoint,
        ):
            return train_population(
                self.agent,
                self.env,
                self.trainer,
                self.pbt,
                size=schedule.size,
                num_generations=left,
                steps_per_generation=schedule.steps_per_generation,
                num_episodes=schedule.num_episodes,
                key=key,
                initial=initial,
                score=score,
                evaluation_env=evaluation_env(self.env),
                mesh=self.mesh,
                members=schedule.members,
                callback=[*callbacks, checkpoint],
            )

    def failed(self, reached: PopulationSolution) -> Bool[np.ndarray, " population"]:
        if len(reached.scores) == 0:
            return np.zeros(self.run.schedule.size, bool)
        return np.isnan(scores_of(reached, None)[-1])

    def has_learned(self, reached: PopulationSolution) -> bool:
        return int(reached.counts.updates) > 0

    def write(self, folder: Path, reached: PopulationSolution) -> Policies:
        write_members(folder, by_given_names(self.run, reached))
        schedule, scores = self.run.schedule, scores_of(reached, None)
        return Policies(
            [member(reached, index) for index in range(schedule.size)],
            step=step_of(reached),
            # The episodes of the final evaluation are different, so it has no bias.
            best=winner_of(scores) if len(scores) > 0 else None,
        )

    def draw(self, folder: Path, reached: PopulationSolution) -> None:
        if len(reached.scores) > 0:
            draw_population(folder, self.run, reached)

    def report(
        self,
        folder: Path,
        reached: PopulationSolution,
        policies: Policies,
        returns: Float[np.ndarray, "population episodes"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        best = policies.best
        # Skills are learned without a return; there may be one beside them.
        has_return = self.run.skills is None or np.any(returns)
        if has_return:
            print(f"mean return of {returns.shape[1]} greedy episodes:")
            print(f"all members: {rounded(returns.mean())}")
        if best is None:
            # No generation is complete.
            return
        histories = self.run.by_given_names(reached.hyperparameters)
        values = ", ".join(
            f"{name} {history[-1, best]:.5g}" for name, history in histories.items()
        )
        mean = f": {rounded(returns[best].mean())}" if has_return else ""
        print(f"best member, {best}{mean} with {values}")
        if self.run.skills is not None:
            agent, state = policies.pairs[best]
            # The evaluations of the members use the indices before this one.
            evaluation = evaluate_skills(
                agent,
                state,
                evaluation_env(self.env),
                num_episodes=NUM_SKILL_EPISODES,
                key=jr.fold_in(key, self.run.schedule.size),
            )
            write_skills_of_member(folder, self.run, self.env, best, evaluation)
            print_skills([evaluation])


@dataclasses.dataclass(frozen=True)
class LibraryJob(AbstractJob[SkillSchedule, Skills[PyTree]]):
    """Learning skills one after another."""

    tensorboard: bool

    def check(self) -> None:
        if self.tensorboard:
            check_tensorboard("`--tensorboard`")
        schedule = self.run.schedule
        self.trainer.check_num_steps(schedule.num_steps)
        make_evaluations(self)
        _, reward = find_learner(self.agent)
        check_replay(schedule.replay or reward.preset.replay, self.agent)
        enlarge_past(self.agent, self.env, num_episodes=1)
        self.shapes()

    def shapes(self) -> tuple[AnyTrainerState, int]:
        training = eqx.filter_eval_shape(
            init_training, self.agent, self.env, self.trainer, key=jr.key(0)
        )
        return training.trainer_state, 1

    def load(self, folder: Path) -> Skills[PyTree] | None:
        library = library_folder(folder)
        if not saved_steps(library / "training"):
            return None
        return load_skills(library, self.agent, self.env, self.trainer)

    def train(
        self, folder: Path, initial: Skills[PyTree] | None, every_steps: int | None
    ) -> Skills[PyTree]:
        schedule = self.run.schedule
        interval = Interval(every_steps=every_steps)
        if initial is not None:
            if initial.metrics:
                write_rows(folder, initial.metrics)
            interval.begin_at(self._step_of(initial))

        def write(step: int, metrics: object, skills: Skills[PyTree]) -> None:
            del metrics
            if interval.is_over(step):
                interval.begin_at(step)
                # The next one is tried even if this one fails.
                with without_ending("A checkpoint"):
                    save_skills(library_folder(folder), skills)
            # Nor is the next checkpoint lost with a line of metrics.
            with without_ending("metrics.csv"):
                write_rows(folder, skills.metrics)

        reports: dict[str, Callable[..., object]] = {
            "The progress": SkillProgressBar(schedule.num_skills, schedule.num_steps),
            "metrics.csv": write,
        }
        if self.tensorboard:
            reports["TensorBoard"] = TensorBoard(folder / "tensorboard")
        with reporting(reports) as callbacks:
            return learn_skills(
                self.agent,
                self.env,
                self.trainer,
                num_skills=schedule.num_skills,
                num_steps=schedule.num_steps,
                key=self.key,
                num_collected_episodes=schedule.num_collected_episodes,
                replay=schedule.replay,
                initial=initial,
                log_every=schedule.log_every,
                evaluations=make_evaluations(self),
                callback=callbacks,
            )

    def failed(self, reached: Skills[PyTree]) -> Bool[np.ndarray, " skills"]:
        # A skill that meets a nonfinite value ends the training and is not learned.
        return np.zeros(int(reached.count), bool)

    def has_learned(self, reached: Skills[PyTree]) -> bool:
        training = reached.training
        assert training is not None
        # The current skill may still act at random; earlier ones are complete.
        is_later = 0 < int(reached.count) <= int(training.skill)
        return is_later or int(training.counts.updates) > 0

    def write(self, folder: Path, reached: Skills[PyTree]) -> Policies:
        if reached.metrics:
            write_rows(folder, reached.metrics)
        save_skills(library_folder(folder), reached)
        count = int(reached.count)
        return Policies(
            [pick_skill(self.agent, reached, index) for index in range(count)],
            step=self._step_of(reached),
        )

    def _step_of(self, reached: Skills[PyTree]) -> int:
        assert reached.training is not None
        return steps_of_skills(self.trainer, reached.training)

    def draw(self, folder: Path, reached: Skills[PyTree]) -> None:
        # `report` plays the episodes that `skills.png` shows, and draws it.
        if reached.metrics:
            draw_solution(folder, self.run.title, reached)

    def report(
        self,
        folder: Path,
        reached: Skills[PyTree],
        policies: Policies,
        returns: Float[np.ndarray, "skills episodes"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        count = len(policies.pairs)
        mean_returns = returns.mean(axis=1)
        trajectories = play_skills(
            self.agent,
            reached,
            evaluation_env(self.env),
            num_episodes=NUM_SKILL_EPISODES,
            # The evaluations of the skills use the indices before this one.
            key=jr.fold_in(key, self.run.schedule.num_skills),
        )
        distances = write_trajectories(
            folder, self.run, self.env, trajectories, mean_returns
        )
        means = ", ".join(map(rounded, mean_returns))
        print(f"skills learned: {count}")
        if np.any(returns):
            print(f"mean return of {returns.shape[1]} greedy episodes of each: {means}")
        if distances:
            pairs, nearest = (
                distances[name] for name in ("pairwise_hausdorff", "nearest_distance")
            )
            print(
                f"distance between the ends of {NUM_SKILL_EPISODES} episodes of each: "
                f"{pairs:.2f} over pairs, {nearest:.2f} to the nearest"
            )


def make_mesh(schedule: Training | Population, *, has_begun: bool) -> Mesh | None:
    """A mesh of as many devices as a run takes; `None` if it gives no number."""
    num_devices, devices = schedule.devices, jax.devices()
    if num_devices is None:
        return None
    if has_begun and num_devices > len(devices):
        fewer = most_shares(schedule.count, len(devices))
        tell(f"This run began on {num_devices} devices; here it uses {fewer}")
        num_devices = fewer
    if not 1 <= num_devices <= len(devices):
        raise ValueError(
            f"`devices={num_devices}` must be from 1 to {len(devices)}, which is how "
            "many JAX has here. Of a processor `eqrl` makes them, unless "
            "`JAX_NUM_CPU_DEVICES` or `XLA_FLAGS` gives another number."
        )
    return Mesh(np.array(devices[:num_devices]), (POPULATION,))


def nearest_preset(run: Run[Any], env: AnyEnv) -> Preset | None:
    """The preset of the same agent for the task most like this one, if any."""
    library, _, name = run.settings.env.partition("/")
    task = re.sub(r"-v\d+$", "", name)
    is_discrete = isinstance(env.spec.action, Discrete)
    return max(
        (
            preset
            for preset in PRESETS.values()
            if preset.agent == run.agent and preset.has_discrete_actions == is_discrete
        ),
        # Its backend or its time limit may be all that keeps it from being the default.
        key=lambda preset: (
            preset.env == run.settings.env,
            task == re.sub(r"-v\d+$", "", preset.env.partition("/")[2]),
            preset.env.startswith(f"{library}/"),
        ),
        default=None,
    )


def make_job(command: Train) -> AbstractJob[Any, Any]:
    """The training that a command describes."""
    run, tensorboard = command.run, command.tensorboard
    agent, env, trainer = run.make_agent(), run.make_env(), run.make_trainer()
    if env.spec.reward_size is not None:
        raise ValueError(
            f"The reward of `{run.settings.env}` is a vector, of `spec.reward_size="
            f"{env.spec.reward_size}`, and `eqrl {run.schedule.command}` reports "
            "returns that are scalars; train in Python, with `eqrl.train`, or make it "
            "a scalar in the environment."
        )
    if parts(agent, Intrinsic) and parts(agent, CSF):
        raise ValueError(
            "`csf` learns from no reward but its own, so another one would change "
            "nothing; take another `--agent`, or `eqrl train csf`."
        )
    if run.skills is not None and run.skills.skills == "even":
        number = prior_of(agent).size
        if trainer.num_envs < number:
            raise ValueError(
                f"`num_envs={trainer.num_envs}` leaves some of {number} skills "
                "untrained, since `skills='even'` gives each environment one of them; "
                "give at least as many environments, or `--skills one-hot`."
            )
    if command.lacks_preset:
        near = nearest_preset(run, env)
        named = "" if near is None else f"; the nearest is that of {near}"
        tell(f"No preset fits; these are the library's defaults{named}")
    if isinstance(run.schedule, SkillSchedule):
        return LibraryJob(run, agent, env, trainer, tensorboard)
    mesh = make_mesh(run.schedule, has_begun=command.has_begun)
    if isinstance(run.schedule, Population):
        pbt = run.schedule.make_pbt(agent, run.priors)
        return PopulationJob(run, agent, env, trainer, pbt, mesh)
    return SeedsJob(run, agent, env, trainer, tensorboard, mesh, command.preset)
