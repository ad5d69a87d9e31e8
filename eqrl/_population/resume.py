"""Whether a population can go on from an earlier solution."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.random as jr

from .._agents.base import AnyAgent
from .._interaction.evaluate import Evaluation
from .._pytree.tree import check_same_shapes
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from .history import PopulationSolution
from .run import init_members


def check_initial(
    initial: PopulationSolution,
    agents: AnyAgent,
    trainer: Trainer,
    env: AnyEnv,
    *,
    size: int,
) -> None:
    """Raises a `ValueError` unless the members are such as this call would begin with.

    `agents` are the shapes of the stack that it would make.
    """
    given = initial.parents.shape[1]
    if given != size:
        raise ValueError(
            f"`initial` holds {given} members, but `size={size}`; a population goes on "
            "with as many members as it has."
        )
    states, counts = eqx.filter_eval_shape(
        init_members, trainer, agents, env, jr.split(jr.key(0), size), "in_turn", None
    )
    check_same_shapes(
        "initial",
        (agents, states, counts),
        (initial.agents, initial.trainer_states, initial.counts),
    )


def check_history(
    initial: PopulationSolution, evaluation: Evaluation, names: Sequence[str]
) -> None:
    """Raises a `ValueError` unless further generations fit those of `initial`.

    `evaluation` holds the shapes of the next one, and `names` are those of the tuned
    hyperparameters.
    """
    tuned = list(initial.hyperparameters)
    if set(tuned) != set(names):
        raise ValueError(
            f"`initial` was trained with a `pbt` that tunes {tuned or 'nothing'}, but "
            f"this one tunes {list(names) or 'nothing'}; go on with the same."
        )
    expected = jax.tree.map(
        lambda x: x.shape, (evaluation.returns, evaluation.descriptors)
    )
    given = jax.tree.map(lambda x: x.shape[1:], (initial.returns, initial.descriptors))
    if given != expected:
        raise ValueError(
            f"The returns and descriptors of each generation of `initial` have the "
            f"shapes {given}, but those of this call have {expected}; go on with the "
            "same `num_episodes`, `descriptor` and `evaluation_env`."
        )
