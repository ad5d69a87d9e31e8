"""What the updates of SAC and TD3 share, restated in NumPy for linear networks.

All in double precision, with gradient descent. Critics are dictionaries of the arrays
of a stack of `LinearCritic`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from eqrl import SAC, TD3, EnvSpec, Transition

from .toy import GetKey, random_transitions


SPEC = EnvSpec(observation_size=3, action_size=2)
BATCH_SIZE = 5

Arrays = dict[str, np.ndarray]


@eqx.filter_jit
def init(agent: SAC | TD3, *, key: PRNGKeyArray) -> Any:
    return agent.init(SPEC, key=key)


def random_batch(getkey: GetKey) -> Transition[None]:
    return random_transitions(getkey(), BATCH_SIZE, observation_size=3, action_size=2)


def standstill(learning_rate: object) -> optax.GradientTransformation:
    """An optimizer that changes nothing."""
    del learning_rate
    return optax.set_to_zero()


class Batch(NamedTuple):
    """The arrays of a batch."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    alive: np.ndarray


def restated_batch(batch: Transition[None]) -> Batch:
    arrays = (batch.observation, batch.action, batch.reward, batch.next_observation)
    return Batch(
        *(np.asarray(x, np.float64) for x in arrays),
        alive=~np.asarray(batch.terminated),
    )


def fields(module: Any) -> Arrays:
    return {name: np.asarray(x, np.float64) for name, x in vars(module).items()}


def values(critics: Arrays, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    """One row for each critic."""
    return (
        critics["observation_weight"] @ observation.T
        + critics["action_weight"] @ action.T
        + critics["bias"][:, None]
    )


def critic_step(
    agent: SAC | TD3, critics: Arrays, batch: Batch, next_value: np.ndarray
) -> tuple[Arrays, float]:
    """The critics after a step, and their loss before it."""
    target = float(agent.reward_scale) * batch.reward
    target += float(agent.discount) * batch.alive * next_value
    error = values(critics, batch.observation, batch.action) - target
    rate = float(agent.critic_lr) / error.size
    critics = {
        "observation_weight": critics["observation_weight"]
        - rate * error @ batch.observation,
        "action_weight": critics["action_weight"] - rate * error @ batch.action,
        "bias": critics["bias"] - rate * error.sum(axis=1),
    }
    return critics, float(0.5 * np.mean(error**2))


def target_step(agent: SAC | TD3, new: Arrays, old: Arrays) -> Arrays:
    step_size = float(agent.target_step_size)
    return {name: step_size * new[name] + (1 - step_size) * old[name] for name in old}


def check_networks(state: Any, expected: dict[str, Arrays]) -> None:
    """Compares the networks of a state with restated ones."""
    for part, arrays in expected.items():
        for field, array in arrays.items():
            np.testing.assert_allclose(
                getattr(getattr(state, part), field),
                array,
                rtol=1e-4,
                atol=1e-4,
                err_msg=f"{part}.{field}",
            )


def check_metrics(metrics: Any, expected: dict[str, float]) -> None:
    """Compares metrics with restated ones, of the same names."""
    assert set(metrics) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )
