from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._types.custom_types import EnvState, Extras, Memory, Metrics, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from .iteration import FailureReport
from .schedule import Counts
from .trainer import AnyTrainerState, Trainer, TrainerState, run_trainer


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


@eqx.filter_jit(donate="all-except-first")
def _donated_run(
    kept: tuple[Trainer, Any, Any, Int[Array, ""], PRNGKeyArray],
    state: AnyTrainerState,
    counts: Counts,
) -> tuple[AnyTrainerState, Counts, Metrics, FailureReport]:
    trainer, agent, env, num_steps, key = kept
    return run_trainer(
        trainer,
        agent,
        env,
        state,
        counts,
        num_steps=num_steps,
        key=key,
        mapped=False,
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
    state, counts, metrics, _ = jit_run_reported(
        trainer, agent, env, state, counts, num_steps=num_steps, key=key
    )
    return state, counts, metrics


def jit_run_reported(
    trainer: Trainer,
    agent: AnyAgent,
    env: AnyEnv,
    state: AnyTrainerState,
    counts: Counts,
    *,
    num_steps: int,
    key: PRNGKeyArray,
) -> tuple[AnyTrainerState, Counts, Metrics, FailureReport]:
    """`jit_run`, and what failed."""
    trainer.check_num_steps(num_steps)
    trainer.schedule.check_call("num_steps", num_steps)
    kept = (trainer, agent, env, jnp.asarray(num_steps, int), key)
    return _donated_run(kept, state, counts)
