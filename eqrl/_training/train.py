import dataclasses
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Key, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._interaction.fit import check_numbers, check_rate
from .._pytree.arguments import checked
from .._pytree.fields import PositiveInt, reusable_key
from .._pytree.tree import check_same_shapes, tree_copy
from .._types.custom_types import EnvState, Extras, Memory, Metrics, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._check import play_if_asked
from .host_loop import Callback, Callbacks, Reached, drive
from .iteration import UnfinishedRow, check_finite_agent
from .members import (
    Crew,
    Members,
    begin_rows,
    choose_members,
    default_mesh,
    map_members,
)
from .mesh import (
    automatic,
    check_mesh,
    gather,
    on_each_device,
    replicate,
    shard,
)
from .rows import (
    AnySolution,
    Runner,
    Solution,
    append_row,
    steps_taken,
)
from .schedule import Counts
from .trainer import (
    AnyTrainerState,
    Piece,
    Ran,
    Trainer,
    TrainerState,
    begin_row,
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
    callback: Callbacks[Solution[State, EnvState, Memory, Extras]] | None = None,
    checkpoint: Callback[Solution[State, EnvState, Memory, Extras]] | None = None,
) -> Solution[State, EnvState, Memory, Extras]:
    """Trains one agent.

    All counts are of environment steps, summed over the environments.

    **Arguments:**

    - `agent`, `env`, `trainer`: the agent, its environment, and the trainer.
    - `num_steps`: how many steps to take in this call, warm-up included; a whole number
        of iterations.
    - `key`: of the whole training. To resume exactly as if there had been one call,
        pass the same key again.
    - `initial`: the solution of an earlier call, from which to resume. It stays usable.
    - `agent_state`: the agent's state to begin with, learned elsewhere, such as a skill
        that `eqrl.fix_skill` took out of an agent; environments and replay begin
        afresh. It stays usable. What it counts continues: where a rate was annealed to
        0, give the agent more `anneal_steps`. Not together with `initial`.
    - `log_every`: steps in a row of the metrics, rounded up to whole iterations. It is
        also how often `callback` is called. It does not affect the result.
    - `callback`: called as `callback(step, metrics, solution)` after each row, with the
        solution so far. Several of them in a list or a tuple are called in turn.
        Training ends with this row if one returns true. Copy what you keep of the
        solution's `trainer_state` (`eqrl.tree_copy`): it is donated to the next row.
        What a callback raises ends the training, and what was reached is lost.
    - `checkpoint`: called in the same way, after all callbacks, such as an
        `eqrl.Checkpoints`.

    **Returns:**

    A `Solution`.

    Raises a `ValueError` unless the arguments fit each other, a `NonFiniteError` if an
    observation, an action, a reward, or what an update makes is not finite, and
    `TrainingInterrupted` within seconds of Ctrl-C, SIGTERM or SIGHUP, unless a single
    iteration takes longer. The last two hold the solution so far.
    """
    key = reusable_key(key)
    trainer.check_num_steps(num_steps)
    play_if_asked(env)
    if initial is not None and agent_state is not None:
        raise ValueError(
            "`initial` and `agent_state` both give the agent's state; give one. "
            "`initial` resumes environments and replay as well."
        )
    check_numbers(agent, env.spec)
    if agent_state is not None:
        check_rate(agent, agent_state, num_steps)
    if initial is None:
        state, counts = jit_init(
            trainer, agent, env, key=_init_key(key), agent_state=agent_state
        )
        solution = Solution(trainer_state=state, counts=counts, metrics={})
    else:
        expected, _ = eqx.filter_eval_shape(trainer.init, agent, env, key=key)
        check_same_shapes("initial", expected, initial.trainer_state)
        state, counts = tree_copy((initial.trainer_state, initial.counts))
        solution = dataclasses.replace(initial, trainer_state=state, counts=counts)
    trainer.schedule.check_counters("num_steps", num_steps, counts)
    rows = _rows(
        runner_of_one(trainer, agent, env, state, counts, key=_run_key(key)),
        solution,
        num_steps=num_steps,
        log_every=log_every,
    )
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
    callback: Callbacks[Solution[State, EnvState, Memory, Extras]] | None = None,
    checkpoint: Callback[Solution[State, EnvState, Memory, Extras]] | None = None,
    mesh: Mesh | None = None,
    members: Members | None = None,
) -> Solution[State, EnvState, Memory, Extras]:
    """Trains the same agent from several seeds.

    **Arguments:**

    - `num_seeds`: at least 1.
    - `initial`: what an earlier call returned, with the axis `num_seeds`, from which to
        resume; with the same key the two equal one call. It stays usable.
    - `mesh`: devices of this process among which to divide the seeds, with the one axis
        `population`; `num_seeds` must be a multiple of their number. `None`, where
        seeds run in turn on a CPU, is as many of its devices as divide `num_seeds`,
        such as those that `use_all_cores` makes; else it is one.
    - `members`: on each device, `"together"` maps over seeds and `"in_turn"` runs one
        after another, which gives each the result that it has alone, bit for bit,
        whatever the devices. `None` is `"in_turn"` on a CPU and `"together"` on other
        devices.
    - The others are those of `train`; `num_steps` is per seed.

    **Returns:**

    A stack of solutions. Member i is what `train` gives for `jax.random.split(key,
    num_seeds)[i]`, bit for bit if seeds run in turn and else up to rounding. Arrays
    have one more leading axis, `num_seeds`, except `counts`, which all seeds share; the
    metrics have the axes `(logs, seeds)`. With a `mesh`, the states stay sharded over
    it, as they are in the callback on any devices; without one they are returned on one
    device. A seed in which something became `nan` or infinite stays as it was before,
    and its `nonfinite` says so; the error is raised if that has happened to all seeds.
    """
    key = reusable_key(key)
    check_mesh(mesh, num_seeds, name="num_seeds")
    if mesh is not None and mesh.is_multi_process:
        raise ValueError(
            "The devices of `mesh` belong to several processes, but seeds train in "
            "one; `train_population` with `pbt=None` trains over several."
        )
    trainer.check_num_steps(num_steps)
    play_if_asked(env)
    check_numbers(agent, env.spec)
    how = choose_members(members, mesh)
    devices = default_mesh(how, num_seeds) if mesh is None else automatic(mesh)
    keys = jr.split(key, num_seeds)
    agent, env = replicate((agent, env), devices)
    init_keys = shard(jax.vmap(_init_key)(keys), devices)
    if initial is None:
        state, counts = _init_seeds(trainer, agent, env, init_keys, how, devices)
        solution = Solution(trainer_state=state, counts=counts, metrics={})
    else:
        _check_num_seeds(initial, num_seeds)
        expected, _ = eqx.filter_eval_shape(
            _init_seeds, trainer, agent, env, init_keys, how, None
        )
        check_same_shapes("initial", expected, initial.trainer_state)
        initial = gather(initial) if devices is None else initial
        state = shard(tree_copy(initial.trainer_state), devices)
        counts = replicate(tree_copy(initial.counts), devices)
        solution = Solution(
            trainer_state=state,
            counts=counts,
            metrics=initial.metrics,
            unfinished=shard(initial.unfinished, devices),
        )
    trainer.schedule.check_counters("num_steps", num_steps, counts)
    run_keys = shard(jax.vmap(_run_key)(keys), devices)

    crew = Crew(
        trainer=trainer,
        agents=agent,
        env=env,
        keys=run_keys,
        are_stacked=False,
        members=how,
        mesh=devices,
    )
    empty = shard(begin_rows(crew, state, counts), devices)
    rows = _rows(
        crew.runner(empty),
        solution,
        num_steps=num_steps,
        log_every=log_every,
    )
    return drive(rows, callback=callback, checkpoint=checkpoint, given_mesh=mesh)


def _rows(
    runner: Runner, solution: AnySolution, *, num_steps: int, log_every: int
) -> Iterator[Reached]:
    """Resumes from `solution`, which is donated."""
    check_finite_agent(solution.state)
    metrics = solution.metrics
    yield Reached(steps_taken(runner.trainer, solution.counts), None, solution)
    start = runner.start(solution.trainer_state, solution.counts, solution.unfinished)
    for position in runner.run_rows(start, num_steps=num_steps, log_every=log_every):
        step = steps_taken(runner.trainer, position.counts)
        if position.row is not None:
            metrics = append_row(metrics, step, position.row)
        solution = Solution(
            trainer_state=position.state,
            counts=position.counts,
            metrics=metrics,
            unfinished=position.unfinished,
        )
        yield Reached(step, position.row, solution, position.failed)


def _init_key(key: PRNGKeyArray) -> PRNGKeyArray:
    return jr.fold_in(key, 0)


def _run_key(key: PRNGKeyArray) -> PRNGKeyArray:
    return jr.fold_in(key, 1)


@eqx.filter_jit
def _init_seeds(
    trainer: Trainer,
    agent: AnyAgent,
    env: AnyEnv,
    keys: Key[Array, " seeds"],
    members: Members,
    mesh: Mesh | None,
) -> tuple[AnyTrainerState, Counts]:
    def init_share(
        keys: Key[Array, " share"], shared: tuple[AnyAgent, AnyEnv]
    ) -> tuple[AnyTrainerState, Counts]:
        states, counts = map_members(
            lambda key: trainer.init(*shared, key=key), members, keys
        )
        # The counters of all seeds are the same.
        return states, jax.tree.map(lambda x: x[0], counts)

    return on_each_device(init_share, mesh, keys, (agent, env))


def _check_num_seeds(initial: AnySolution, num_seeds: int) -> None:
    shape = initial.trainer_state.failed.shape
    if shape != (num_seeds,):
        held = f"{shape[0]} seeds" if len(shape) == 1 else "a single training"
        raise ValueError(
            f"`initial` holds {held}, but `num_seeds={num_seeds}`; resume with as many "
            "as there are."
        )


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
    kept: tuple[Trainer, AnyAgent, AnyEnv, PyTree, Piece, PRNGKeyArray],
    state: AnyTrainerState,
    counts: Counts,
) -> tuple[AnyTrainerState, Counts, Ran]:
    """`run_piece`, compiled once for all pieces and all hyperparameters."""
    trainer, agent, env, first, piece, key = kept
    return run_piece(
        trainer, agent, env, state, counts, first, piece, key=key, mapped=False
    )


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

    Raises a `ValueError` unless the state is one that `Trainer.init` gives for these
    arguments.
    """
    trainer.check_num_steps(num_steps)
    trainer.schedule.check_call("num_steps", num_steps)
    piece = Piece(
        num_steps=jnp.asarray(num_steps, int),
        row=jit_begin_row(trainer, agent, env, state, counts),
        ends_row=jnp.array(True),
    )
    kept = (trainer, agent, env, tree_copy(state.agent), piece, key)
    state, counts, ran = jit_run_piece(kept, state, counts)
    return state, counts, ran.metrics


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

    def run(
        state: AnyTrainerState, counts: Counts, first: PyTree, piece: Piece
    ) -> tuple[AnyTrainerState, Counts, Ran]:
        kept = (trainer, agent, env, first, piece, key)
        return jit_run_piece(kept, state, counts)

    return Runner(run, trainer, jit_begin_row(trainer, agent, env, state, counts))
