import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import keystr, tree_leaves_with_path, tree_map_with_path
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents.base import AgentOfKind, AnyAgent
from .._interaction.evaluate import Descriptor, Evaluation
from .._interaction.evaluate_skills import Score, mean_return
from .._interaction.fit import check_numbers
from .._pytree.fields import PositiveInt, Takes, checked, reusable_key
from .._pytree.tree import (
    check_same_shapes,
    repeated,
    stack_size,
    take_element,
    to_donate,
)
from .._training.evaluations import evaluate_members
from .._training.host_loop import Callbacks, Reached, drive
from .._training.iteration import UnfinishedRow, check_finite_agent
from .._training.mesh import (
    Members,
    automatic,
    check_mesh,
    choose_members,
    default_mesh,
    gather,
    naming_lost_processes,
    replicate,
    shard,
    to_host,
)
from .._training.rows import Pace, Position, steps_taken
from .._training.schedule import Counts
from .._training.train import Crew, begin_rows, compile_members, init_members
from .._training.trainer import AnyTrainerState, Trainer, fitting
from .._types.custom_types import Agents, EnvState, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._check import prepare
from ..envs._host import SimulatorFailure, failure_of
from .pbt import PBT
from .solution import (
    PopulationHistory,
    PopulationSolution,
    UnfinishedGeneration,
    append_generation,
    history_of,
)


def check_scalar(env: AnyEnv) -> None:
    """Checks that the reward is a scalar: vectors of returns cannot be ranked."""
    if env.spec.reward_size is not None:
        raise ValueError(
            "The reward is a vector, so `score` is needed: from an agent, its state "
            "and its `Evaluation` to one number to rank by, such as "
            "`eqrl.weighted_return`."
        )


def check_initial(
    initial: PopulationSolution,
    agents: AnyAgent,
    trainer: Trainer,
    env: AnyEnv,
    *,
    size: int,
) -> None:
    """Checks that the members are like those that this call would begin with.

    `agents` are the shapes of the stack that it would make.
    """
    given = initial.parents.shape[1]
    if given != size:
        raise ValueError(
            f"`initial` holds {given} members, but `size={size}`; a population resumes "
            "with as many members as it has."
        )
    like, keys = fitting(trainer, initial.trainer_states), jr.split(jr.key(0), size)
    crew = Crew(like, agents, env, keys, True, "in_turn", None)
    states, counts = eqx.filter_eval_shape(init_members, crew, keys)
    check_same_shapes(
        "initial",
        (agents, states, counts),
        (initial.agents, initial.trainer_states, initial.counts),
    )


def check_history(
    initial: PopulationSolution,
    evaluation: Evaluation,
    names: Sequence[str],
    num_steps: int,
) -> None:
    """Checks that further generations fit those of `initial`.

    `evaluation` holds the shapes of the next one, `names` are those of its recorded
    hyperparameters, and `num_steps` are its steps.
    """
    taken = 0 if initial.unfinished is None else int(initial.unfinished.num_steps)
    if taken > num_steps:
        raise ValueError(
            f"`initial` was interrupted {taken} steps into a generation, which "
            f"`steps_per_generation={num_steps}` cannot finish; give more, such as "
            "before."
        )
    recorded = list(initial.hyperparameters)
    if set(recorded) != set(names):
        raise ValueError(
            f"The history of `initial` records {recorded or 'no'} hyperparameters, but "
            f"this `pbt` tunes {list(names) or 'nothing'}; tune the same, or none."
        )
    expected = jax.tree.map(
        lambda x: x.shape, (evaluation.returns, evaluation.descriptors)
    )
    given = jax.tree.map(lambda x: x.shape[1:], (initial.returns, initial.descriptors))
    if given != expected:
        raise ValueError(
            f"The returns and descriptors of each generation of `initial` have the "
            f"shapes {given}, but those of this call have {expected}; resume with the "
            "same `num_episodes`, `descriptor` and `evaluation_env`."
        )


@checked
def train_population(
    # The annotation keeps `checked` from refusing a stack.
    agent: Annotated[AgentOfKind[State, Agents], "single or a stack"],
    env: AbstractEnv[EnvState],
    trainer: Trainer,
    pbt: PBT | None,
    *,
    size: PositiveInt,
    num_generations: PositiveInt,
    steps_per_generation: int,
    num_episodes: PositiveInt,
    key: PRNGKeyArray,
    initial: PopulationSolution[State, Agents] | None = None,
    score: Annotated[Score[Agents, State], Takes(("agent", "state", "evaluation"))]
    | None = None,
    evaluation_env: AnyEnv | None = None,
    descriptor: Descriptor[object] | None = None,
    mesh: Mesh | None = None,
    members: Members | None = None,
    callback: Callbacks[PopulationSolution[State, Agents]] | None = None,
) -> PopulationSolution[State, Agents]:
    """Trains a population of agents, with population based training or independently.

    In each generation all members train and are evaluated. After all but the last, the
    worst members are replaced.

    **Arguments:**

    - `agent`: a single agent, or a stack of `size` agents, which is used as it is.
    - `env`, `trainer`: environment and trainer of each member.
    - `pbt`: replaces members, varies their hyperparameters, and samples those of a
        single agent; `None` replaces no member.
    - `size`: number of members, at least 1.
    - `num_generations`: how many in this call, at least 1.
    - `steps_per_generation`: environment steps of each member, a whole number of
        iterations; the first generation includes the warm-up.
    - `num_episodes`: greedy episodes in each evaluation of a member.
    - `key`: each member, generation and purpose derives its own key from it. To resume
        exactly as if there had been one call, pass the same key again.
    - `initial`: the solution of an earlier call, to resume from: its members continue,
        the worst of its last generation are replaced first, and the count of
        generations continues. Only the kind of `agent` matters then. It stays usable.
    - `score`: maps an agent, its state and its `Evaluation` to the number that ranks
        members; by default the mean return. Required if the reward is a vector.
    - `evaluation_env`: environment of the evaluation; `env` by default.
    - `descriptor`: as in `evaluate`.
    - `mesh`: devices among which to divide the population, with the one axis
        `population`; `size` must be a multiple of their number. `pbt` still compares
        and copies members across the whole population. The devices may belong to
        several processes (`jax.distributed`), each of which makes this call with the
        same arguments. `None` takes one device or, if members run in turn on a CPU, as
        many of its devices as divide `size`, such as those that `use_all_cores` makes.
    - `members`: on each device, `"together"` maps over members and `"in_turn"` runs one
        after another, which gives each the same result as alone, bit for bit on one
        device. `None` is `"in_turn"` on a CPU and `"together"` on other devices.
        On two cores, one device for each core, with members in turn, was
        fastest. On a single device, which of the two is faster depends on the machine
        and on `size`.
    - `callback`: called as `callback(step, metrics, solution)` after each evaluation,
        on every process, with the steps so far of each member, and the generation's
        recorded hyperparameters, metrics and scores, `"score"`, of all members; or
        several of them, such as `Logger`. Training ends with this generation if one
        returns true, on any process. `agents` and the history can be kept. Copy what
        you keep of `trainer_states` and `counts`: they are donated to the next
        generation.

    **Returns:**

    A `PopulationSolution`, whose history begins with that of `initial`. With a `mesh`,
    `agents` and `trainer_states` stay sharded over it, and every process has the whole
    history; without one they are returned on one device, although callbacks get them as
    they are sharded in training.

    Raises a `ValueError` before the first step if the arguments, or the shape of the
    score, do not fit each other. A member in which a value became `nan` or infinite
    keeps its earlier state, has the score `nan`, and is the first to be replaced; once
    this has happened to all members, a `NonFiniteError` is raised. A simulator outside
    JAX that fails raises a `SimulatorError`. Ctrl-C, SIGTERM or SIGHUP on any process
    raises `TrainingInterrupted`, even within a generation; the call that resumes from
    it finishes that generation as the first of its `num_generations`. The last three
    hold the solution so far.
    """
    evaluation_env = env if evaluation_env is None else evaluation_env
    key = reusable_key(key)
    check_mesh(mesh, size)
    trainer.schedule.check_num_steps(steps_per_generation, "steps_per_generation")
    trainer.schedule.check_call("steps_per_generation", steps_per_generation)
    prepare(env, evaluation_env)
    if score is None:
        check_scalar(evaluation_env)
        score = mean_return
    members = choose_members(members, mesh)
    given_mesh = mesh
    mesh = default_mesh(members, size) if mesh is None else automatic(mesh)
    with naming_lost_processes(mesh):
        crew, states, counts = _begin(
            cast(AnyAgent, agent), env, trainer, pbt, size, initial, members, mesh, key
        )
    trainer.schedule.check_counters(
        "num_generations * steps_per_generation",
        num_generations * steps_per_generation,
        counts,
    )
    # After the check of the selection by `where`.
    names = _names(crew.agents, pbt, initial, mesh)
    pbt, evaluation_env, key = replicate((pbt, evaluation_env, key), mesh)
    evaluation_key, exploit_key = (jr.fold_in(key, i) for i in (3, 4))
    evaluate = functools.partial(
        evaluate_members,
        env=evaluation_env,
        num_episodes=num_episodes,
        descriptor=descriptor,
        score=score,
        members=members,
        mesh=mesh,
    )
    # Errors in the evaluation and the score are raised before any step; the trace is
    # reused by the first evaluation.
    evaluation, scores = eqx.filter_eval_shape(
        evaluate, crew.agents, states.agent, states.failed, key=evaluation_key
    )
    empty = shard(begin_rows(crew, states, counts), mesh)
    if initial is None:
        history = _empty_history(evaluation, scores, names, empty)
    else:
        check_history(initial, evaluation, names, steps_per_generation)
        history = history_of(initial)
    generations = _Generations(
        crew=crew,
        pbt=pbt,
        names=names,
        evaluate=evaluate,
        evaluation_key=evaluation_key,
        exploit_key=exploit_key,
        num_steps=steps_per_generation,
        empty=empty,
        evaluation_failure=lambda: failure_of(evaluation_env),
    )
    begun = None if initial is None else initial.unfinished
    rows = generations.run(states, counts, history, begun, num_generations)
    with naming_lost_processes(mesh):
        return drive(rows, callback=callback, mesh=mesh, given_mesh=given_mesh)


@dataclasses.dataclass(frozen=True)
class _Generations:
    """The loop of `train_population` over generations.

    - `names`: names of the recorded hyperparameters.
    - `evaluate`: `evaluate_members` with all but members and key filled in.
    - `num_steps`: environment steps of each member in a generation.
    - `empty`: the beginning of a row of metrics.
    - `evaluation_failure`: what failed in a simulator of the last evaluation, if any.
    """

    crew: Crew
    pbt: PBT | None
    names: list[str]
    evaluate: Callable[..., tuple[Evaluation, Float[Array, " population"]]]
    evaluation_key: PRNGKeyArray
    exploit_key: PRNGKeyArray
    num_steps: int
    empty: UnfinishedRow
    evaluation_failure: Callable[[], SimulatorFailure | None]

    def run(
        self,
        states: AnyTrainerState,
        counts: Counts,
        history: PopulationHistory,
        begun: UnfinishedGeneration | None,
        num_generations: int,
    ) -> Iterator[Reached]:
        """Trains, evaluates and replaces; yields after each piece of a generation."""
        trainer, agents, mesh = self.crew.trainer, self.crew.agents, self.crew.mesh
        pace = Pace(mesh)
        first = len(history["scores"])
        for generation in range(first, first + num_generations):
            if begun is None:
                agents, states, parents = self._replace(agents, states, history)
                num_left, unfinished = self.num_steps, None
            else:
                # Its members were replaced before the interruption.
                parents = np.asarray(begun.parents)
                unfinished = (
                    gather(begun.row) if mesh is None else shard(begun.row, mesh)
                )
                num_left, begun = self.num_steps - int(begun.num_steps), None
            end = steps_taken(trainer, counts) + num_left
            runner = dataclasses.replace(self.crew, agents=agents).runner(self.empty)
            position = runner.start(states, counts, unfinished)
            pieces = runner.run_row(position, num_steps=num_left, pace=pace)
            for position in pieces:
                step = steps_taken(trainer, position.counts)
                row = position.unfinished
                if step < end and row is None:
                    # The failure of a simulator ended it.
                    row = position.ended
                if row is not None:
                    within = UnfinishedGeneration(
                        row=row,
                        parents=parents,
                        num_steps=np.asarray(self.num_steps - (end - step)),
                    )
                    solution = _solution(agents, position, history, within)
                    yield Reached(step, None, solution, position.failed)
            states, counts = position.reached.tree, position.counts
            row = self._row(generation, agents, position, parents, end)
            failed = self.evaluation_failure()
            within = None
            if failed is None:
                history = append_generation(history, row)
            else:
                # It has trained, and is evaluated again.
                assert position.ended is not None
                within = UnfinishedGeneration(
                    row=position.ended,
                    parents=parents,
                    num_steps=np.asarray(self.num_steps),
                )
            metrics = row["hyperparameters"] | row["metrics"]
            metrics |= {"score": row["scores"]}
            del metrics["step"]
            solution = _solution(agents, position, history, within)
            yield Reached(end, metrics, solution, position.failed or failed)

    def _replace(
        self, agents: AnyAgent, states: AnyTrainerState, history: PopulationHistory
    ) -> tuple[AnyAgent, AnyTrainerState, Int[np.ndarray, " population"]]:
        """The members of the next generation, and the parent of each."""
        mesh, generation = self.crew.mesh, len(history["scores"])
        if self.pbt is None or generation == 0:
            return agents, states, np.arange(stack_size(states))
        scores = shard(jnp.asarray(history["scores"][-1]), mesh)
        key = jr.fold_in(self.exploit_key, generation)
        agents, states, parents = _exploit(
            (self.pbt, scores, key, agents), states, mesh
        )
        return agents, states, to_host(parents, mesh)

    def _row(
        self,
        generation: int,
        agents: AnyAgent,
        position: Position,
        parents: Int[np.ndarray, " population"],
        step: int,
    ) -> PopulationHistory:
        """The history of a generation that has trained."""
        evaluation, scores = self.evaluate(
            agents,
            position.reached.tree.agent,
            position.reached.tree.failed,
            key=jr.fold_in(self.evaluation_key, generation),
        )
        values = _hyperparameters(agents)
        assert position.row is not None
        row = {
            "returns": evaluation.returns,
            "descriptors": evaluation.descriptors,
            "hyperparameters": {name: values[name] for name in self.names},
            "parents": parents,
            "metrics": {**position.row, **_evaluated(evaluation)},
            "scores": scores,
        }
        row = to_host(row, self.crew.mesh)
        row["metrics"]["step"] = step
        return row


def _evaluated(evaluation: Evaluation) -> dict[str, Float[Array, " population"]]:
    """The metrics of each member's evaluation."""
    means = jnp.mean(evaluation.returns, axis=1)
    # A vector of rewards has one mean for each element.
    returns = (
        {"evaluation_return": means}
        if means.ndim == 1
        else {f"evaluation_return_{i}": mean for i, mean in enumerate(means.T)}
    )
    return {**returns, "evaluation_length": jnp.mean(evaluation.lengths, axis=1)}


def _solution(
    agents: AnyAgent,
    position: Position,
    history: PopulationHistory,
    unfinished: UnfinishedGeneration | None,
) -> PopulationSolution:
    return PopulationSolution(
        agents=agents,
        trainer_states=position.reached.tree,
        counts=position.counts,
        unfinished=unfinished,
        **history,
    )


def _empty_history(
    evaluation: Evaluation, scores: PyTree, names: list[str], empty: UnfinishedRow
) -> PopulationHistory:
    """A history without generations, from the shapes of one of them."""
    evaluated = eqx.filter_eval_shape(_evaluated, evaluation)
    row = {
        "returns": evaluation.returns,
        "descriptors": evaluation.descriptors,
        "hyperparameters": dict.fromkeys(names, scores),
        "parents": jax.ShapeDtypeStruct(scores.shape, jnp.result_type(int)),
        "metrics": {
            **dict.fromkeys(empty.names, scores),
            **evaluated,
            "step": np.zeros((), int),
        },
        "scores": scores,
    }
    return jax.tree.map(lambda x: np.zeros((0, *x.shape), x.dtype), row)


def _begin(
    agent: AnyAgent,
    env: AnyEnv,
    trainer: Trainer,
    pbt: PBT | None,
    size: int,
    initial: PopulationSolution | None,
    members: Members,
    mesh: Mesh | None,
    key: PRNGKeyArray,
) -> tuple[Crew, AnyTrainerState, Counts]:
    """The members that train first: new ones, or copies of those of `initial`."""
    # One key for each purpose; evaluation and exploitation have 3 and 4, and fold in
    # the generation. Training uses the same key in every generation, as `train` does in
    # every row: the trainer folds in its counters, so it makes no difference where a
    # generation ends.
    agents_key, init_key, run_key = (jr.fold_in(key, i) for i in (0, 1, 2))
    if initial is None:
        agents = make_agents(agent, pbt, size, key=agents_key)
        # A prior may reach further than its first draws.
        check_numbers(agents if pbt is None else pbt.with_greatest(agents), env.spec)
        agents = shard(agents, mesh)
    else:
        check_initial(
            initial,
            # The priors' bounds are checked, so they must not be traced.
            eqx.filter_eval_shape(
                lambda agent: make_agents(agent, pbt, size, key=agents_key), agent
            ),
            trainer,
            env,
            size=size,
        )
        initial = gather(initial) if mesh is None else initial
        agents = shard(initial.agents, mesh)
    # Folded, not split: member i has the same key whatever the size.
    keys = jax.vmap(lambda index: jr.fold_in(run_key, index))(jnp.arange(size))
    crew = Crew(
        trainer=trainer,
        agents=agents,
        env=replicate(env, mesh),
        keys=shard(keys, mesh),
        are_stacked=True,
        members=members,
        mesh=mesh,
    )
    if initial is None:
        init_keys = shard(jr.split(replicate(init_key, mesh), size), mesh)
        compile_members(crew, init_keys)
        states, counts = init_members(crew, init_keys)
    else:
        states = shard(to_donate(initial.trainer_states), mesh)
        counts = replicate(to_donate(initial.counts), mesh)
    check_finite_agent(states.agent)
    return crew, states, counts


def make_agents(
    agent: AnyAgent, pbt: PBT | None, size: int, *, key: PRNGKeyArray
) -> AnyAgent:
    leaves = jax.tree.leaves(eqx.filter(agent, eqx.is_inexact_array))
    shapes = {jnp.shape(leaf) for leaf in leaves}
    if () not in shapes and {shape[0] for shape in shapes} == {size}:
        if pbt is not None:
            # As `PBT.init` checks a single agent.
            eqx.filter_eval_shape(
                lambda stack: pbt.check(take_element(stack, 0), size), agent
            )
        return agent
    # A single agent has some hyperparameter that is a scalar.
    if len(shapes) > 0 and () not in shapes:
        raise ValueError(
            f"The hyperparameters of `agent` have the shapes {sorted(shapes)}; give a "
            f"single agent, or a stack of `size={size}`."
        )
    if pbt is not None:
        return pbt.init(agent, size, key=key)
    return repeated(agent, size)


def _names(
    agents: AnyAgent,
    pbt: PBT | None,
    initial: PopulationSolution | None,
    mesh: Mesh | None,
) -> list[str]:
    """The hyperparameters to record: those that are tuned, or else that differ."""
    if pbt is not None:
        paths = tree_map_with_path(
            lambda path, leaf: keystr(path).removeprefix("."), agents
        )
        return list(map(str, pbt.selected(paths)))
    if initial is not None:
        # Without selection nothing changes, so the history keeps its names.
        return list(initial.hyperparameters)
    values = to_host(_hyperparameters(agents), mesh)
    return [name for name, each in values.items() if np.any(each != each[0])]


def _hyperparameters(agents: AnyAgent) -> dict[str, Float[Array, " population"]]:
    """The hyperparameters that are one number for each member, by their paths."""
    leaves = tree_leaves_with_path(eqx.filter(agents, eqx.is_inexact_array))
    return {
        keystr(path).removeprefix("."): leaf for path, leaf in leaves if leaf.ndim == 1
    }


@eqx.filter_jit(donate="all-except-first")
def _exploit(
    kept: tuple[PBT, Float[Array, " population"], PRNGKeyArray, AnyAgent],
    states: AnyTrainerState,
    mesh: Mesh | None,
) -> tuple[AnyAgent, AnyTrainerState, Int[Array, " population"]]:
    # The agents are those of the solution that the callback received.
    pbt, scores, key, agents = kept
    return pbt.exploit_over(mesh, agents, states, scores, key=key)
