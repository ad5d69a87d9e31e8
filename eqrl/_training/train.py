import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, cast

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, Key, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._interaction.fit import check_numbers, check_rate
from .._pytree.control_flow import filter_cond
from .._pytree.fields import PositiveInt, checked, reusable_key
from .._pytree.tree import (
    Flat,
    check_same_shapes,
    flatten,
    repeated,
    stack_size,
    take_element,
    to_donate,
    tree_copy,
)
from .._types.custom_types import EnvState, Extras, Memory, Metrics, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._check import prepare
from ..envs._host import SimulatorError
from .ahead import Lowered, are_unbound, compile_side_by_side, lower
from .evaluations import Evaluations
from .host_loop import Callback, Callbacks, Reached, drive
from .iteration import UnfinishedRow, check_finite_agent
from .mesh import (
    Members,
    automatic,
    check_mesh,
    choose_members,
    default_mesh,
    gather,
    map_members,
    on_each_device,
    replicate,
    shard,
)
from .rows import AnySolution, Runner, Solution, append_row, steps_taken
from .schedule import Counts
from .trainer import (
    AnyTrainerState,
    Piece,
    Ran,
    Trainer,
    TrainerState,
    begin_row,
    fitting,
    run_piece,
)


@checked
def train(
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    trainer: Trainer,
    *,
    num_steps: int,
    key: PRNGKeyArray,
    initial: Solution[State, EnvState, Memory, Extras] | None = None,
    agent_state: State | None = None,
    log_every: PositiveInt = 1_000,
    evaluations: Evaluations[State] | None = None,
    callback: Callbacks[Solution[State, EnvState, Memory, Extras]] | None = None,
    checkpoint: Callback[Solution[State, EnvState, Memory, Extras]] | None = None,
) -> Solution[State, EnvState, Memory, Extras]:
    """Trains one agent.

    All counts are of environment steps, summed over the environments.

    **Arguments:**

    - `agent`, `env`, `trainer`: the agent, its environment, and the trainer.
    - `num_steps`: how many steps to take in this call, warm-up included; a whole number
        of iterations.
    - `key`: the key of the whole training. To resume exactly as if there had been one
        call, pass the same key again.
    - `initial`: the solution of an earlier call, to resume from. It stays usable.
    - `agent_state`: an initial state of the agent, learned elsewhere, such as a skill
        that `eqrl.fix_skill` extracted; environments and replay start afresh. It stays
        usable. Its counters continue: if a rate was annealed to 0, give the agent more
        `anneal_steps`. It cannot be combined with `initial`.
    - `log_every`: steps in a row of the metrics, rounded up to whole iterations. It
        also determines how often `callback` is called. It does not affect the result.
    - `evaluations`: evaluates the agent during training and adds the results to the
        metrics. Training ends if it asks for that.
    - `callback`: called as `callback(step, metrics, solution)` after each row, with the
        solution so far. Several of them in a list or a tuple are called in turn.
        Training ends with this row if one returns true. Copy what you keep of the
        solution (`eqrl.tree_copy`): its arrays are donated to the next row. An error
        raised by a callback ends training, and its progress is lost.
    - `checkpoint`: called in the same way, after all callbacks, such as an
        `eqrl.Checkpoints`.

    **Returns:**

    A `Solution`.

    Raises a `ValueError` if the arguments do not fit each other, a `NonFiniteError` if
    an observation, a descriptor, an action, a reward, or the result of an update is not
    finite, a `SimulatorError` if a simulator outside JAX fails, and
    `TrainingInterrupted` within seconds of Ctrl-C, SIGTERM or SIGHUP, unless a single
    iteration takes longer. The last three hold the solution so far.
    """
    key = reusable_key(key)
    trainer.check_num_steps(num_steps)
    prepare(env)
    if initial is not None and agent_state is not None:
        raise ValueError(
            "`initial` and `agent_state` both give the agent's state; give one. "
            "`initial` resumes environments and replay as well."
        )
    check_numbers(agent, env.spec)
    if agent_state is not None:
        check_rate(agent, agent_state, num_steps)
    init_key, run_key = _init_key(key), _run_key(key)
    given = (agent, env, init_key, agent_state)
    if initial is None and num_steps > 0 and are_unbound(given):
        compile_side_by_side(
            lower(jit_init, trainer, agent, env, key=init_key, agent_state=agent_state),
            lambda init: lower_piece(trainer, agent, env, *init, key=run_key),
        )
    like = trainer if initial is None else fitting(trainer, initial.trainer_state)
    solution = _begin(
        lambda: jit_init(like, agent, env, key=init_key, agent_state=agent_state),
        initial,
    )
    state, counts = solution.trainer_state, solution.counts
    runner = runner_of_one(trainer, agent, env, state, counts, key=run_key)
    rows = _rows(runner, solution, num_steps, log_every, evaluations)
    return drive(rows, callback=callback, checkpoint=checkpoint)


@checked
def train_seeds(
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    trainer: Trainer,
    *,
    num_seeds: PositiveInt,
    num_steps: int,
    key: PRNGKeyArray,
    initial: Solution[State, EnvState, Memory, Extras] | None = None,
    log_every: PositiveInt = 1_000,
    evaluations: Evaluations[State] | None = None,
    callback: Callbacks[Solution[State, EnvState, Memory, Extras]] | None = None,
    checkpoint: Callback[Solution[State, EnvState, Memory, Extras]] | None = None,
    mesh: Mesh | None = None,
    members: Members | None = None,
) -> Solution[State, EnvState, Memory, Extras]:
    """Trains the same agent from several seeds.

    **Arguments:**

    - `num_seeds`: at least 1.
    - `initial`: the solution of an earlier call, with the axis `num_seeds`, to resume
        from; with the same key, the two calls equal one. It stays usable.
    - `mesh`: devices of this process among which to divide the seeds, with the one axis
        `population`; `num_seeds` must be a multiple of their number. `None` takes one
        device or, if seeds run in turn on a CPU, as many of its devices as divide
        `num_seeds`, such as those that `use_all_cores` makes.
    - `members`: on each device, `"together"` maps over seeds and `"in_turn"` runs one
        after another, which gives each the same result as alone, bit for bit on one
        device. `None` is `"in_turn"` on a CPU and `"together"` on other devices.
    - The others are those of `train`; `num_steps` is per seed.

    **Returns:**

    A stack of solutions. Member i is the result of `train` for
    `jax.random.split(key, num_seeds)[i]`, bit for bit if seeds run in turn and
    otherwise up to rounding. Arrays have one more leading axis, `num_seeds`, except
    `counts`, which all seeds share; the metrics have the axes `(logs, seeds)`. With a
    `mesh`, the returned states stay sharded over it; without one they are returned on
    one device, although callbacks get them as they are sharded in training. A seed in
    which a value became `nan` or infinite keeps its earlier state, as its `nonfinite`
    shows; the error is raised once this has happened to all seeds.
    """
    key = reusable_key(key)
    check_mesh(mesh, num_seeds, name="num_seeds")
    if mesh is not None and mesh.is_multi_process:
        raise ValueError(
            "The devices of `mesh` belong to several processes, but seeds train in "
            "one; `train_population` with `pbt=None` trains over several."
        )
    shape = (num_seeds,) if initial is None else initial.trainer_state.failed.shape
    if shape != (num_seeds,):
        held = f"{shape[0]} seeds" if len(shape) == 1 else "a single training"
        raise ValueError(
            f"`initial` holds {held}, but `num_seeds={num_seeds}`; resume with as many "
            "as there are."
        )
    trainer.check_num_steps(num_steps)
    prepare(env)
    check_numbers(agent, env.spec)
    return train_members(
        trainer,
        agent,
        env,
        jr.split(key, num_seeds),
        are_stacked=False,
        num_steps=num_steps,
        initial=initial,
        log_every=log_every,
        evaluations=evaluations,
        callback=callback,
        checkpoint=checkpoint,
        mesh=mesh,
        members=choose_members(members, mesh),
    )


def train_members(
    trainer: Trainer,
    agents: AnyAgent,
    env: AnyEnv,
    keys: Key[Array, " members"],
    *,
    are_stacked: bool,
    num_steps: int,
    initial: AnySolution | None,
    log_every: int,
    evaluations: Evaluations | None = None,
    callback: Callbacks[Any] | None,
    checkpoint: Callback[Any] | None,
    mesh: Mesh | None = None,
    members: Members,
) -> AnySolution:
    """Trains one agent from the key of each member, or a separate agent for each.

    The first four and `are_stacked` are those of `Crew`, the others of `train_seeds`.
    """
    number = keys.shape[0]
    devices = default_mesh(members, number) if mesh is None else automatic(mesh)
    agents = shard(agents, devices) if are_stacked else replicate(agents, devices)
    env = replicate(env, devices)
    init_keys = shard(jax.vmap(_init_key)(keys), devices)
    crew = Crew(
        trainer=trainer,
        agents=agents,
        env=env,
        keys=shard(jax.vmap(_run_key)(keys), devices),
        are_stacked=are_stacked,
        members=members,
        mesh=devices,
    )
    if initial is None and num_steps > 0:
        compile_members(crew, init_keys)
    like = trainer if initial is None else fitting(trainer, initial.trainer_state)
    begun = dataclasses.replace(crew, trainer=like)
    solution = _begin(lambda: init_members(begun, init_keys), initial, devices)
    empty = begin_rows(crew, solution.trainer_state, solution.counts)
    runner = crew.runner(shard(empty, devices))
    rows = _rows(runner, solution, num_steps, log_every, evaluations, members)
    return drive(rows, callback=callback, checkpoint=checkpoint, given_mesh=mesh)


def _begin(
    init: Callable[[], tuple[AnyTrainerState, Counts]],
    initial: AnySolution | None,
    mesh: Mesh | None = None,
) -> AnySolution:
    """A solution to donate: the one of `init`, or a copy of `initial` on the devices.

    `initial` must have the shapes of the result of `init`, or a `ValueError` is raised.
    """
    if initial is None:
        state, counts = init()
        return Solution(trainer_state=state, counts=counts, metrics={})
    expected, _ = eqx.filter_eval_shape(init)
    check_same_shapes("initial", expected, initial.trainer_state)
    # The devices of the earlier call need not be those of this one.
    initial = gather(initial) if mesh is None else initial
    return Solution(
        trainer_state=shard(to_donate(initial.trainer_state), mesh),
        counts=replicate(to_donate(initial.counts), mesh),
        metrics=initial.metrics,
        unfinished=shard(initial.unfinished, mesh),
    )


def _rows(
    runner: Runner,
    solution: AnySolution,
    num_steps: int,
    log_every: int,
    evaluations: Evaluations | None,
    members: Members = "in_turn",
) -> Iterator[Reached]:
    """Resumes from `solution`, which is donated."""
    trainer = runner.trainer
    trainer.schedule.check_counters("num_steps", num_steps, solution.counts)
    check_finite_agent(solution.state)
    metrics = solution.metrics
    # An interrupt before the first row still has a solution to return.
    yield Reached(steps_taken(trainer, solution.counts), None, solution)
    start = runner.start(solution.trainer_state, solution.counts, solution.unfinished)
    for position in runner.run_rows(start, num_steps=num_steps, log_every=log_every):
        step, row = steps_taken(trainer, position.counts), position.row
        state, failed = position.reached.tree, position.failed
        if row is not None:
            if evaluations is not None:
                try:
                    row = row | evaluations.measure(
                        step,
                        metrics,
                        state.agent,
                        state.failed,
                        members=members,
                        mesh=runner.mesh,
                    )
                except SimulatorError as error:
                    failed = failed or error.failure
            metrics = append_row(metrics, step, row)
        solution = Solution(
            trainer_state=state,
            counts=position.counts,
            metrics=metrics,
            unfinished=position.unfinished,
        )
        yield Reached(step, row, solution, failed)
        if row is not None and evaluations is not None and evaluations.ends_training:
            return


def _init_key(key: PRNGKeyArray) -> PRNGKeyArray:
    return jr.fold_in(key, 0)


def _run_key(key: PRNGKeyArray) -> PRNGKeyArray:
    return jr.fold_in(key, 1)


def _run_in_turn(
    run: Callable[..., tuple[AnyTrainerState, Counts, Ran]],
    states: AnyTrainerState,
    *stacked: PyTree,
) -> tuple[AnyTrainerState, Counts, Ran]:
    """Trains one member after another, and writes each back to its place.

    The states are the carry of the loop, so that they are updated in place: as its
    inputs and outputs, they would be in memory twice, replays included.
    """
    arrays, static = eqx.partition(states, eqx.is_array)
    stacked_arrays, stacked_static = eqx.partition(stacked, eqx.is_array)

    def body(arrays: PyTree, index: Int[Array, ""]) -> tuple[PyTree, PyTree]:
        state_of, rest_of = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False),
            (arrays, stacked_arrays),
        )
        state, counts, ran = run(
            eqx.combine(state_of, static), *eqx.combine(rest_of, stacked_static)
        )
        arrays = jax.tree.map(
            lambda x, y: lax.dynamic_update_index_in_dim(x, y, index, axis=0),
            arrays,
            eqx.filter(state, eqx.is_array),
        )
        return arrays, (counts, ran)

    arrays, (counts, ran) = lax.scan(body, arrays, jnp.arange(stack_size(states)))
    # The counters of all members are the same.
    counts = jax.tree.map(lambda x: x[0], counts)
    return eqx.combine(arrays, static), counts, ran


class Crew(eqx.Module):
    """The members of a population, or the seeds of one agent, and how they train.

    - `agents`: a stack, or one agent that all share.
    - `keys`: the key of each member.
    - `are_stacked`: whether `agents` is a stack.
    - `members`, `mesh`: whether they run together or in turn, and the devices.
    """

    trainer: Trainer
    agents: AnyAgent
    env: AnyEnv
    keys: Key[Array, " members"]
    are_stacked: bool = eqx.field(static=True)
    members: Members = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)

    @property
    def own_and_common(self) -> tuple[AnyAgent | None, AnyAgent | None]:
        """The agents to map over, and the one that all share; one of them is `None`."""
        return (self.agents, None) if self.are_stacked else (None, self.agents)

    def runner(self, empty: UnfinishedRow) -> Runner:
        """Makes a runner, with `empty` as the beginning of each row."""

        crew: Flat[Crew] = flatten(self)

        def run(
            states: Flat[AnyTrainerState],
            counts: Counts,
            first: Flat[PyTree],
            piece: Piece,
        ) -> tuple[Flat[AnyTrainerState], Counts, Ran]:
            return run_members((crew, first, piece), states, counts)

        def restart(
            states: AnyTrainerState, counts: Counts, lost: Bool[Array, " members"]
        ) -> AnyTrainerState:
            return restart_members((self, counts, lost), states)

        return Runner(run, restart, self.trainer, self.env, empty, self.mesh)


@eqx.filter_jit
def init_members(
    crew: Crew, keys: Key[Array, " members"]
) -> tuple[AnyTrainerState, Counts]:
    """The initial state of each member, made on the device that will train it.

    `keys` are other keys than the crew's own, with which it trains.
    """
    own, common = crew.own_and_common

    def init_share(
        stacked: tuple[AnyAgent | None, Key[Array, " share"]],
        shared: tuple[AnyAgent | None, AnyEnv],
    ) -> tuple[AnyTrainerState, Counts]:
        common, env = shared

        def init(
            own: AnyAgent | None, key: PRNGKeyArray
        ) -> tuple[AnyTrainerState, Counts]:
            agent = cast(AnyAgent, own if common is None else common)
            return crew.trainer.init(agent, env, key=key)

        states, counts = map_members(init, crew.members, *stacked)
        # The counters of all members are the same.
        return states, jax.tree.map(lambda x: x[0], counts)

    return on_each_device(init_share, crew.mesh, (own, keys), (common, crew.env))


@eqx.filter_jit
def begin_rows(crew: Crew, states: AnyTrainerState, counts: Counts) -> UnfinishedRow:
    """The beginning of a row of metrics for each member."""
    agent = take_element(crew.agents, 0) if crew.are_stacked else crew.agents
    state = take_element(states, 0)
    row = begin_row(crew.trainer, agent, crew.env, state, counts)
    return repeated(row, stack_size(states))


@eqx.filter_jit(donate="all-except-first")
def run_members(
    kept: tuple[Flat[Crew], Flat[PyTree], Piece],
    given: Flat[AnyTrainerState],
    counts: Counts,
) -> tuple[Flat[AnyTrainerState], Counts, Ran]:
    """Trains each member for a part of a row."""
    crew, first, piece = kept[0].tree, kept[1].tree, kept[2]
    own, common = crew.own_and_common

    def run_share(
        stacked: tuple[
            AnyTrainerState,
            AnyAgent | None,
            PyTree,
            UnfinishedRow,
            Key[Array, " share"],
        ],
        shared: tuple[AnyAgent | None, AnyEnv, Counts, Int[Array, ""], Array],
    ) -> tuple[tuple[AnyTrainerState, Ran], Counts]:
        common, env, counts, num_steps, ends_row = shared

        def run(
            state: AnyTrainerState,
            own: AnyAgent | None,
            first: PyTree,
            row: UnfinishedRow,
            key: PRNGKeyArray,
        ) -> tuple[AnyTrainerState, Counts, Ran]:
            return run_piece(
                crew.trainer,
                cast(AnyAgent, own if common is None else common),
                env,
                state,
                counts,
                first,
                Piece(num_steps=num_steps, row=row, ends_row=ends_row),
                key=key,
                mapped=crew.members == "together",
            )

        if crew.members == "in_turn":
            states, counts_after, ran = _run_in_turn(run, *stacked)
        else:
            # The counters of all members are the same.
            out_axes = (eqx.if_array(0), None, eqx.if_array(0))
            states, counts_after, ran = eqx.filter_vmap(run, out_axes=out_axes)(
                *stacked
            )
        return (states, ran), counts_after

    (states, ran), counts = on_each_device(
        run_share,
        crew.mesh,
        (given.tree, own, first, piece.row, crew.keys),
        (common, crew.env, counts, piece.num_steps, piece.ends_row),
    )
    return flatten(states), counts, ran


def compile_members(crew: Crew, init_keys: Key[Array, " members"]) -> None:
    """Compiles `init_members` and `run_members` for new members, in one process."""
    mesh = crew.mesh
    if mesh is not None and mesh.is_multi_process:
        return
    if mesh is None and not are_unbound((crew, init_keys)):
        return

    def lower_run(made: tuple[AnyTrainerState, Counts]) -> Lowered:
        # On several devices, placeholders are arrays that carry their placement.
        states, counts = shard(made[0], mesh), replicate(made[1], mesh)
        piece = Piece(
            num_steps=made[1].updates,
            row=shard(begin_rows(crew, states, counts), mesh),
            ends_row=cast(Array, np.asarray(True)),
        )
        kept = flatten(crew), flatten(states.agent), piece
        return lower(run_members, kept, flatten(states), counts)

    compile_side_by_side(lower(init_members, crew, init_keys), lower_run)


@eqx.filter_jit(donate="all-except-first")
def restart_members(
    kept: tuple[Crew, Counts, Bool[Array, " members"]], states: AnyTrainerState
) -> AnyTrainerState:
    """Begins new episodes in the environments of the members that have lost theirs."""
    crew, counts, lost = kept
    own, common = crew.own_and_common

    def restart_share(stacked: PyTree, shared: PyTree) -> tuple[PyTree, None]:
        common, env, counts = shared

        def restart_one(
            own: AnyAgent | None,
            state: AnyTrainerState,
            lost: Bool[Array, ""],
            key: PRNGKeyArray,
        ) -> AnyTrainerState:
            agent = cast(AnyAgent, own if common is None else common)
            return filter_cond(
                lost,
                lambda: crew.trainer.restart(agent, env, state, counts, key=key),
                lambda: state,
            )

        # Together, simulators would be made for the other members, too.
        return map_members(restart_one, "in_turn", *stacked), None

    stacked = (own, states, lost, crew.keys)
    shared = (common, crew.env, counts)
    return on_each_device(restart_share, crew.mesh, stacked, shared)[0]


@eqx.filter_jit(donate="all-except-first")
def jit_restart(
    kept: tuple[Trainer, AnyAgent, AnyEnv, Counts, PRNGKeyArray], state: AnyTrainerState
) -> AnyTrainerState:
    """`Trainer.restart`, compiled once for all calls of the same shapes."""
    trainer, agent, env, counts, key = kept
    return trainer.restart(agent, env, state, counts, key=key)


@eqx.filter_jit
def jit_init(
    trainer: Trainer,
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    *,
    key: PRNGKeyArray,
    agent_state: State | None = None,
) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts]:
    """`Trainer.init`, compiled once for all calls of the same shapes."""
    return trainer.init(agent, env, key=key, agent_state=agent_state)


def check_training(trainer: Trainer, agent: AnyAgent, env: AnyEnv) -> None:
    """Traces the first update, so that errors appear before any training."""
    # The trace is cached, so the training does not pay for it again.
    state, counts = eqx.filter_eval_shape(jit_init, trainer, agent, env, key=jr.key(0))
    # Only an update checks that a batch fits the minibatches or the neighbors.
    eqx.filter_eval_shape(jit_begin_row, trainer, agent, env, state, counts)


@eqx.filter_jit
def jit_begin_row(
    trainer: Trainer,
    agent: AnyAgent,
    env: AnyEnv,
    state: AnyTrainerState,
    counts: Counts,
) -> UnfinishedRow:
    """`begin_row`, traced once for all calls of the same shapes."""
    return begin_row(trainer, agent, env, state, counts)


@eqx.filter_jit(donate="all-except-first")
def jit_run_piece(
    kept: tuple[
        Flat[tuple[Trainer, AnyAgent, AnyEnv, PRNGKeyArray]], Flat[PyTree], Piece
    ],
    given: Flat[AnyTrainerState],
    counts: Counts,
) -> tuple[Flat[AnyTrainerState], Counts, Ran]:
    """`run_piece`, compiled once for all pieces and all hyperparameters."""
    (trainer, agent, env, key), first, piece = kept[0].tree, kept[1].tree, kept[2]
    state, counts, ran = run_piece(
        trainer, agent, env, given.tree, counts, first, piece, key=key, mapped=False
    )
    return flatten(state), counts, ran


def lower_piece(
    trainer: Trainer,
    agent: AnyAgent,
    env: AnyEnv,
    state: AnyTrainerState,
    counts: Counts,
    *,
    key: PRNGKeyArray,
) -> Lowered:
    """Lowers the program of `runner_of_one` for the shapes of a state."""
    piece = Piece(
        num_steps=counts.updates,
        row=jit_begin_row(trainer, agent, env, state, counts),
        ends_row=state.failed,
    )
    kept = flatten((trainer, agent, env, key)), flatten(state.agent), piece
    return lower(jit_run_piece, kept, flatten(state), counts)


def jit_run(
    trainer: Trainer,
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    state: TrainerState[State, EnvState, Memory, Extras],
    counts: Counts,
    *,
    num_steps: int,
    key: PRNGKeyArray,
) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts, Metrics]:
    """`Trainer.run`, compiled once for all `num_steps` and all hyperparameters.

    `state` and `counts` are donated: do not use them again.

    The state must be one that `Trainer.init` returns for these arguments; otherwise a
    `ValueError` is raised.
    """
    trainer.check_num_steps(num_steps)
    trainer.schedule.check_call("num_steps", num_steps)
    piece = Piece(
        num_steps=jnp.asarray(num_steps, int),
        row=jit_begin_row(trainer, agent, env, state, counts),
        ends_row=jnp.array(True),
    )
    kept = flatten((trainer, agent, env, key)), flatten(tree_copy(state.agent)), piece
    after, counts, ran = jit_run_piece(kept, flatten(state), counts)
    return after.tree, counts, ran.metrics


def runner_of_one(
    trainer: Trainer,
    agent: AnyAgent,
    env: AnyEnv,
    state: AnyTrainerState,
    counts: Counts,
    *,
    key: PRNGKeyArray,
) -> Runner:
    """Makes the runner of one agent; `state` and `counts` give the shapes."""

    common = flatten((trainer, agent, env, key))

    def run(
        state: Flat[AnyTrainerState], counts: Counts, first: Flat[PyTree], piece: Piece
    ) -> tuple[Flat[AnyTrainerState], Counts, Ran]:
        return jit_run_piece((common, first, piece), state, counts)

    def restart(
        state: AnyTrainerState, counts: Counts, lost: Bool[Array, ""]
    ) -> AnyTrainerState:
        del lost
        return jit_restart((trainer, agent, env, counts, key), state)

    empty = jit_begin_row(trainer, agent, env, state, counts)
    return Runner(run, restart, trainer, env, empty)
