"""Whether TAAC learns a task that requires a new action at nearly every step.

Each observation is 0 or 1, drawn afresh; the best action is 1 for 1 and -1 for 0, and
the reward falls by half the distance from it, so a random action is worth 0.5. Episodes
have 12 steps. Keeping an action never pays: this tests learning, not abstraction. Four
environments, four updates an iteration, 500 steps of warm-up, 64 windows a batch,
hidden layers of 10 and 10, learning rates of 1e-2; the reward of the last step of 100
greedy episodes, over the last five iterations of 700. Run it as `nox -s benchmarks --
recall`.
"""

import argparse
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl.envs import AbstractEnv, Outcome


NUM_ENVS = 4
NUM_ITERATIONS = 700
TRAJECTORIES: dict[str, eqrl.AbstractTrajectory] = {
    "TAAC": eqrl.ConstantTrajectory(),
    "TAAC-L": eqrl.LinearTrajectory(),
    "TAAC-Q": eqrl.QuadraticTrajectory(),
}


class RecallState(eqx.Module):
    """The observed bit, and the steps so far."""

    bit: Float[Array, "1"]
    num_steps: Int[Array, ""]


class Recall(AbstractEnv[RecallState]):
    """Rewards naming the observed bit."""

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(observation_size=1, action_size=1, max_steps=12)

    def reset(self, *, key: PRNGKeyArray) -> tuple[RecallState, Float[Array, "1"]]:
        bit = jr.bernoulli(key, 0.5, (1,)).astype(float)
        return RecallState(bit=bit, num_steps=jnp.zeros((), int)), bit

    def step(
        self, state: RecallState, action: Float[Array, "1"], *, key: PRNGKeyArray
    ) -> tuple[RecallState, Outcome]:
        bit = jr.bernoulli(key, 0.5, (1,)).astype(float)
        after = RecallState(bit=bit, num_steps=state.num_steps + 1)
        outcome = Outcome(
            observation=bit,
            reward=1 - jnp.abs(state.bit - (action + 1) / 2)[0],
            terminated=after.num_steps >= 12,
            truncated=jnp.array(False),
        )
        return after, outcome

    def state_descriptor(self, state: RecallState) -> None:
        del state


def make_agent(name: str, window_length: int) -> eqrl.TAAC:
    return eqrl.TAAC(
        trajectory=TRAJECTORIES[name],
        window_length=window_length,
        actor_lr=1e-2,
        critic_lr=1e-2,
        temperature_lr=1e-2,
        target_step_size=0.05,
        epsilon=0.1,
        make_actor=eqrl.nn.Gaussian((10, 10)),
        make_critic=eqrl.nn.Critic((10, 10)),
    )


def last_rewards(name: str, window_length: int, *, seed: int) -> list[float]:
    """The mean reward of the last step, after each of the last five iterations."""
    agent, env = make_agent(name, window_length), Recall()
    trainer = eqrl.Trainer(
        num_envs=NUM_ENVS, batch_size=64, warmup_steps=500, updates_per_iteration=4
    )
    rewards: list[float] = []

    def judge(step: int, metrics: Any, solution: Any) -> None:
        del metrics
        if step > NUM_ENVS * (NUM_ITERATIONS - 5):
            transitions, _ = eqrl.rollout(
                agent, solution.state, env, num_episodes=100, key=jr.key(step)
            )
            rewards.append(float(transitions.reward[:, -1].mean()))

    eqrl.train(
        agent,
        env,
        trainer,
        num_steps=NUM_ENVS * NUM_ITERATIONS,
        key=jr.key(seed),
        log_every=NUM_ENVS,
        callback=judge,
    )
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    print("| agent | window | mean of the last five, each seed | at the end |")
    print("|---|---|---|---|")
    for name in TRAJECTORIES:
        for window_length in arguments.windows:
            runs = [
                last_rewards(name, window_length, seed=seed) for seed in arguments.seeds
            ]
            means = ", ".join(f"{sum(run) / len(run):.3f}" for run in runs)
            ends = ", ".join(f"{run[-1]:.3f}" for run in runs)
            print(f"| {name} | {window_length} | {means} | {ends} |", flush=True)


if __name__ == "__main__":
    main()
