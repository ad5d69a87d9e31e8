import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._pytree.tree import tree_copy
from .._types.custom_types import EnvState, Extras, Memory, Metrics, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from .iteration import UnfinishedRow
from .rows import Runner
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
