"""TAAC once more, in NumPy, in double precision, slowly: a loop for every sum."""

import math
from typing import Any

import jax
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from eqrl import (
    TAAC,
    LinearTrajectory,
    QuadraticTrajectory,
    TAACExtras,
    TAACState,
    Trajectory,
    Transition,
)


Parts = tuple[np.ndarray, ...]


def parts_of(trajectory: Trajectory) -> Parts:
    return tuple(np.asarray(part, np.float64) for part in jax.tree.leaves(trajectory))


def keep(family: Any, parts: Parts) -> Parts:
    if isinstance(family, LinearTrajectory):
        action, velocity = parts
        return np.clip(action + 2 * velocity, -1, 1), velocity
    if isinstance(family, QuadraticTrajectory):
        action, velocity, acceleration = parts
        velocity = np.clip(velocity + 2 * acceleration, -1, 1)
        return np.clip(action + 2 * velocity, -1, 1), velocity, acceleration
    return parts


def new(family: Any, x: np.ndarray, parts: Parts) -> Parts:
    action = parts[0]
    if isinstance(family, LinearTrajectory):
        if family.inverse:
            return x, (x - action) / 2
        return np.clip(action + 2 * x, -1, 1), x
    if isinstance(family, QuadraticTrajectory):
        if family.inverse:
            return x, (x - action) / 2, (x - action) / 4
        velocity = np.clip(2 * x, -1, 1)
        return np.clip(action + 2 * velocity, -1, 1), velocity, x
    return (x,)


def chain(family: Any, x: np.ndarray, parts: Parts) -> Parts:
    """The derivative of each part of `new` by the output, which is elementwise."""
    action, one = parts[0], np.ones_like(x)
    if isinstance(family, LinearTrajectory):
        if family.inverse:
            return one, one / 2
        return 2.0 * (np.abs(action + 2 * x) <= 1), one
    if isinstance(family, QuadraticTrajectory):
        if family.inverse:
            return one, one / 2, one / 4
        inside = np.abs(2 * x) <= 1
        velocity = np.clip(2 * x, -1, 1)
        return (
            4.0 * inside * (np.abs(action + 2 * velocity) <= 1),
            2.0 * inside,
            one,
        )
    return (one,)


def probabilities(
    keep_value: float, new_value: float, temperature: float, clip: Any = None
) -> np.ndarray:
    values = np.array([keep_value, new_value], np.float64)
    if clip is not None:
        low, high = (float(bound) for bound in clip)
        values = np.array([0.0, min(max(new_value - keep_value, low), high)])
    logits = values / max(temperature, 1e-10)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def compare_through(
    reward: np.ndarray, discount: np.ndarray, stop: np.ndarray, value: np.ndarray
) -> np.ndarray:
    """The sums written out, without the recursion; all but `stop` may be vectors."""
    length = len(reward)
    targets = []
    for begin in range(length):
        end = next(n for n in range(begin, length) if stop[n] or n == length - 1)
        target = np.zeros_like(value[0])
        for step in range(begin, end + 1):
            target = target + np.prod(discount[begin:step], axis=0) * reward[step]
        target = target + np.prod(discount[begin : end + 1], axis=0) * value[end]
        targets.append(target)
    return np.stack(targets)


class Critics:
    """`scale * tanh(observation_weight o + trajectory_weight tau + bias)`, a stack.

    Arrays are `(critics, reward, ...)`.
    """

    def __init__(self, critics: Any) -> None:
        self.observation_weight = np.asarray(critics.observation_weight, np.float64)
        self.trajectory_weight = np.asarray(critics.trajectory_weight, np.float64)
        self.bias = np.asarray(critics.bias, np.float64)
        if self.bias.ndim == 1:
            self.observation_weight = self.observation_weight[:, None]
            self.trajectory_weight = self.trajectory_weight[:, None]
            self.bias = self.bias[:, None]

    def values(self, observation: np.ndarray, parts: Parts) -> np.ndarray:
        """Of one observation: (critics, reward)."""
        return 2 * np.tanh(
            self.observation_weight @ observation
            + self.trajectory_weight @ np.concatenate(parts)
            + self.bias
        )


def least(values: np.ndarray, weights: np.ndarray, faithful: bool) -> np.ndarray:
    result = []
    for index, weight in enumerate(weights):
        column = values[:, index]
        number = column.max() if weight < 0 else column.min()
        result.append(0.0 if weight == 0 and faithful else number)
    return np.array(result)


def critic_loss(td_loss: Any, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each error, and its derivative."""
    if td_loss is optax.squared_error:
        return error**2, 2 * error
    assert td_loss is optax.huber_loss
    size = np.abs(error)
    loss = np.where(size <= 1, error**2 / 2, size - 1 / 2)
    return loss, np.clip(error, -1, 1)


def total(values: np.ndarray, weights: np.ndarray) -> float:
    return float(weights @ least(values, weights, False))


class Actor:
    """A linear tanh-normal of the observation and the embedded trajectory."""

    def __init__(self, actor: Any) -> None:
        self.embeddings = [
            (np.asarray(x.weight, np.float64), np.asarray(x.bias, np.float64))
            for x in actor.embeddings
        ]
        self.weight = np.asarray(actor.policy.weight, np.float64)
        self.log_scale = np.asarray(actor.policy.log_scale, np.float64)

    def inputs(self, observation: np.ndarray, parts: Parts) -> np.ndarray:
        embedded = [
            part @ weight + bias
            for part, (weight, bias) in zip(parts, self.embeddings, strict=True)
        ]
        return np.concatenate([observation, *embedded])

    def sample(
        self, observation: np.ndarray, parts: Parts, noise: np.ndarray
    ) -> tuple[np.ndarray, float]:
        before = self.weight @ self.inputs(observation, parts)
        before = before + np.exp(self.log_scale) * noise
        log_normal = -0.5 * noise**2 - 0.5 * math.log(2 * math.pi) - self.log_scale
        x = np.tanh(before)
        return x, float(np.sum(log_normal - np.log(1 - x**2)))


def _noise(key: PRNGKeyArray, size: int, action_size: int) -> Array:
    return jax.vmap(lambda key: jr.normal(key, (action_size,)))(jr.split(key, size))


def draws(key: PRNGKeyArray, size: int, action_size: int) -> tuple[Array, Array, Array]:
    """What an update draws: noise and switches at states reached, noise at those left.

    A switch is taken where the second is below its probability.
    """
    next_key, actor_key = jr.split(key)
    output_key, switch_key = jr.split(next_key)
    return (
        _noise(output_key, size, action_size),
        jr.uniform(switch_key, (size,)),
        _noise(actor_key, size, action_size),
    )


def update(
    agent: TAAC, state: TAACState, batch: Transition[TAACExtras], drawn: Any
) -> dict[str, Any]:
    """The state after one update with gradient descent, and the metrics."""
    next_noise, uniform, noise = (np.asarray(x, np.float64) for x in drawn)
    actor, critics = Actor(state.actor), Critics(state.critics)
    targets = Critics(state.target_critics)
    temperature = math.exp(float(state.log_temperatures.action))
    switch_temperature = math.exp(float(state.log_temperatures.switch))
    num_windows, time = batch.terminated.shape
    num_critics, num_rewards = critics.bias.shape
    weights = np.ones(num_rewards)
    if agent.reward_weights is not None:
        weights = np.array([float(weight) for weight in agent.reward_weights])
    discount = np.broadcast_to(
        np.array(agent.discount, np.float64), (num_rewards,)
    ).astype(np.float64)
    reward = np.asarray(batch.reward, np.float64).reshape(num_windows, time, -1)
    observation, next_observation = (
        np.asarray(x, np.float64) for x in (batch.observation, batch.next_observation)
    )
    previous, reached = (
        parts_of(x) for x in (batch.extras.previous, batch.extras.trajectory)
    )
    terminated, done = (
        np.asarray(x) for x in (batch.terminated, batch.terminated | batch.truncated)
    )
    stored = np.asarray(batch.extras.switch)

    result: dict[str, Any] = {"target": np.zeros((num_windows, time, num_rewards))}
    for window in range(num_windows):
        value = np.zeros((time, num_rewards))
        stop = np.zeros(time, bool)
        for row in range(time):
            index = window * time + row
            parts = tuple(part[window, row] for part in reached)
            seen = next_observation[window, row]
            x, _ = actor.sample(seen, parts, next_noise[index])
            kept, begun = keep(agent.trajectory, parts), new(agent.trajectory, x, parts)
            chances = probabilities(
                total(critics.values(seen, kept), weights),
                total(critics.values(seen, begun), weights),
                switch_temperature,
                agent.advantage_clip,
            )
            switch = uniform[index] < chances[1]
            if agent.bootstrap == "sampled":
                chances = np.array([not switch, switch], np.float64)
            value[row] = chances[0] * least(
                targets.values(seen, kept), weights, agent.faithful
            ) + chances[1] * least(targets.values(seen, begun), weights, agent.faithful)
            stop[row] = done[window, row]
            if agent.target == "one_step":
                stop[row] = True
            elif agent.target == "compare_through" and row + 1 < time:
                stop[row] |= bool(stored[window, row + 1]) or bool(switch)
        alive = ~terminated[window][:, None]
        result["target"][window] = compare_through(
            reward[window], alive * discount, stop, value
        )

    size = num_windows * time
    gradient = {
        "observation_weight": np.zeros_like(critics.observation_weight),
        "trajectory_weight": np.zeros_like(critics.trajectory_weight),
        "bias": np.zeros_like(critics.bias),
        "weight": np.zeros_like(actor.weight),
        "log_scale": np.zeros_like(actor.log_scale),
        "embeddings": [
            (np.zeros_like(weight), np.zeros_like(bias))
            for weight, bias in actor.embeddings
        ],
    }
    critics_loss = actor_loss = 0.0
    entropies, switch_entropies, keeps, advantages = [], [], [], []
    scale = time / (time + 1) if agent.faithful else 1.0
    for window in range(num_windows):
        for row in range(time):
            seen = observation[window, row]
            parts = tuple(part[window, row] for part in reached)
            value = critics.values(seen, parts)
            loss, slope = critic_loss(
                agent.td_loss, value - result["target"][window, row]
            )
            critics_loss += scale * np.sum(loss) / num_rewards / size
            slope = scale * slope / num_rewards / size * 2 * (1 - (value / 2) ** 2)
            gradient["observation_weight"] += slope[:, :, None] * seen
            gradient["trajectory_weight"] += slope[:, :, None] * np.concatenate(parts)
            gradient["bias"] += slope

            parts = tuple(part[window, row] for part in previous)
            index = window * time + row
            x, log_prob = actor.sample(seen, parts, noise[index])
            begun = new(agent.trajectory, x, parts)
            value = critics.values(seen, begun)
            keep_value = total(
                critics.values(seen, keep(agent.trajectory, parts)), weights
            )
            new_value = total(value, weights)
            chances = probabilities(
                keep_value, new_value, switch_temperature, agent.advantage_clip
            )
            by_trajectory = np.zeros(critics.trajectory_weight.shape[-1])
            for j, weight in enumerate(weights):
                column = value[:, j]
                r = column.argmax() if weight < 0 else column.argmin()
                by_trajectory += (
                    weight
                    * 2
                    * (1 - (column[r] / 2) ** 2)
                    * critics.trajectory_weight[r, j]
                )
            by_part = by_trajectory.reshape(len(parts), -1)
            slope = chances[1] * sum(
                factor * derivative
                for factor, derivative in zip(
                    chain(agent.trajectory, x, parts), by_part, strict=True
                )
            )
            actor_loss += (0.5 * np.sum(slope**2) + temperature * log_prob) / size
            by_before = (2 * temperature * x - slope * (1 - x**2)) / size
            scaled_noise = np.exp(actor.log_scale) * noise[index]
            inputs = actor.inputs(seen, parts)
            gradient["weight"] += np.outer(by_before, inputs)
            gradient["log_scale"] += by_before * scaled_noise - temperature / size
            by_inputs = (actor.weight.T @ by_before).reshape(len(parts) + 1, -1)
            for k, part in enumerate(parts):
                gradient["embeddings"][k][0][...] += np.outer(part, by_inputs[k + 1])
                gradient["embeddings"][k][1][...] += by_inputs[k + 1]
            entropies.append(-log_prob)
            switch_entropies.append(-np.sum(chances * np.log(chances)))
            keeps.append(chances[0])
            advantages.append(new_value - keep_value)

    action_size = actor.log_scale.size
    target_entropy = action_size * math.log(0.2)
    if agent.target_entropy is not None:
        target_entropy = float(agent.target_entropy)
    switch_target_entropy = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    if agent.switch_target_entropy is not None:
        switch_target_entropy = float(agent.switch_target_entropy)
    excess = np.mean(entropies) - target_entropy
    switch_excess = np.mean(switch_entropies) - switch_target_entropy
    repeats = np.asarray(batch.extras.repeats)
    result["gradient"] = gradient
    result["excess"], result["switch_excess"] = excess, switch_excess
    result["metrics"] = {
        "critic_loss": critics_loss,
        "actor_loss": actor_loss,
        "temperature_loss": math.log(temperature) * excess
        + math.log(switch_temperature) * switch_excess,
        "temperature": temperature,
        "switch_temperature": switch_temperature,
        "entropy": np.mean(entropies),
        "switch_entropy": np.mean(switch_entropies),
        "switch_advantage": np.mean(advantages),
        "keep_probability": np.mean(keeps),
        "keep_probability_std": np.std(keeps),
        "repeat_fraction": np.mean(repeats > 1),
        "repeat_length_replayed": repeats.size / max(np.sum(repeats == 1), 1),
        "repeat_length_collected": 0.0,
    }
    flat_target = result["target"].reshape(size, num_rewards)
    values = np.stack(
        [
            critics.values(
                observation[window, row], tuple(part[window, row] for part in reached)
            )
            for window in range(num_windows)
            for row in range(time)
        ],
        axis=1,
    )
    for j in range(num_rewards):
        suffix = f"_{j}" if batch.reward.ndim == 3 else ""
        target = flat_target[:, j]
        result["metrics"][f"target{suffix}"] = target.mean()
        for r in range(num_critics):
            error = target - values[r, :, j]
            explained = 1 - error.var() / target.var()
            result["metrics"] |= {
                f"value_{r}{suffix}": values[r, :, j].mean(),
                f"td_error_{r}{suffix}": error.mean(),
                f"explained_variance_{r}{suffix}": explained,
            }
    return result
