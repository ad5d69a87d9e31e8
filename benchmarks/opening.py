"""Whether rewards of novelty lead to the newest sector of a world that opens.

A point begins in a room with one open sector, then two, three and four, and learns for
3,000 steps in each. Its reward is one of novelty in place of the environment's. In
each world SAC begins anew, with the replay and the reward's state of the world before:
only they know which sectors are old. The table has the share of 256 episodes, with
sampled actions, that ends in the newest sector, beside that of uniform actions. Rates
are 1e-3, hidden layers have 64 and 64 units, batches 128 rows, the temperature begins
at 0.1. Run it as `nox -s benchmarks -- opening`.
"""

import argparse
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr

import eqrl
from eqrl.envs import sector_of

from .disk import HIDDEN_SIZES, RADIUS, WALLS, make_sac, opening_world


NUM_STEPS, NUM_EPISODES = 3_000, 256
TRAINER = eqrl.Trainer(batch_size=128, warmup_steps=200)
REWARDS: dict[str, Any] = {
    "RND": eqrl.RND,
    "APT": eqrl.ParticleEntropy,
    "ICM": eqrl.ICM,
    "Disagreement": eqrl.Disagreement,
}


def make_agent(name: str) -> Any:
    reward = REWARDS[name](
        lr=1e-3,
        descriptor="state_descriptor",
        make_network=eqrl.nn.Features(HIDDEN_SIZES),
    )
    return eqrl.Intrinsic(make_sac(), reward)


def share_in(sector: int, agent: Any, state: Any, env: Any, mode: Any) -> float:
    """The share of episodes that end in a sector."""
    played, _ = eqrl.rollout(
        agent, state, env, num_episodes=NUM_EPISODES, key=jr.key(0), mode=mode
    )
    assert played.next_state_descriptor is not None
    ends = sector_of(played.next_state_descriptor[:, -1], radius=RADIUS)
    return float(jnp.mean(ends == sector))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("reward,seed,sector,share,share_of_random")
    for name in REWARDS:
        agent = make_agent(name)
        for seed in range(arguments.num_seeds):
            key, solution = jr.key(seed), None
            for sector in range(len(WALLS) // 2):
                env = opening_world(sector + 1)
                if solution is not None:
                    anew = agent.init(env.spec, key=jr.fold_in(key, sector))
                    solution = eqx.tree_at(
                        lambda solution: solution.state,
                        solution,
                        eqx.tree_at(
                            lambda state: state.reward, anew, solution.state.reward
                        ),
                    )
                solution = eqrl.train(
                    agent, env, TRAINER, num_steps=NUM_STEPS, key=key, initial=solution
                )
                share, random = (
                    share_in(sector, agent, solution.state, env, mode)
                    for mode in ("sample", "random")
                )
                print(f"{name},{seed},{sector},{share:.2f},{random:.2f}", flush=True)


if __name__ == "__main__":
    main()
