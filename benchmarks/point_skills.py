"""How far and in how many directions skills of METRA and DIAYN lead on a point.

An episode has 50 steps. On the box a step is at most 0.1 along each axis, on the disc
at most 0.1 long. Batches of 128, hidden layers of 64 and 64, all rates 1e-3, an initial
temperature of 0.1, one environment and an update a step. For each seed the ends of 16
greedy skills: the least, the mean and the greatest distance from the start; the mean
and the greatest angle, in degrees, between a skill on the circle and where it ends,
after the orthogonal map that fits best; and the cells of 0.5 by 0.5 that all skills
visit together. Run it as `nox -s benchmarks -- point_skills`.
"""

import argparse
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl.envs import AbstractEnv, AbstractStatelessWrapper, Outcome, Point


HIDDEN_SIZES = (64, 64)
NUM_SKILLS = 16
CELL = 0.5


class OnDisc(AbstractStatelessWrapper[Any]):
    """A point whose steps are as long in all directions."""

    env: AbstractEnv[Any]

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[Any, Float[Array, " obs"]]:
        return self.env.reset(key=key)

    def step(
        self, state: Any, action: Float[Array, "2"], *, key: PRNGKeyArray
    ) -> tuple[Any, Outcome]:
        length = jnp.linalg.norm(action)
        return self.env.step(state, action / jnp.maximum(length, 1), key=key)


def make_agent(name: str) -> Any:
    """An agent with 16 one-hot skills, or with skills on the circle."""
    prior = eqrl.OneHotSkills(NUM_SKILLS) if "one-hot" in name else eqrl.SphereSkills()
    sac = eqrl.SAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        initial_temperature=0.1,
        make_actor=eqrl.nn.Gaussian(HIDDEN_SIZES),
        make_critic=eqrl.nn.Critic(HIDDEN_SIZES),
    )
    if name.startswith("DIAYN"):
        kind = eqrl.nn.CategoricalDiscriminator
        if "circle" in name:
            kind = eqrl.nn.VonMisesFisherDiscriminator
        return eqrl.diayn(sac, prior, lr=1e-3, make_network=kind(HIDDEN_SIZES))
    reward = eqrl.METRA(
        prior,
        lr=1e-3,
        multiplier_lr=1e-3,
        descriptor="state_descriptor" if "positions" in name else "observation",
        make_network=eqrl.nn.Features(HIDDEN_SIZES),
    )
    return eqrl.Intrinsic(eqrl.SkillConditioned(sac, prior), reward)


def shown_skills(name: str) -> Float[Array, "skills skill"]:
    if "one-hot" in name:
        return jnp.eye(NUM_SKILLS)
    angle = 2 * jnp.pi * jnp.arange(NUM_SKILLS) / NUM_SKILLS
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)


def aligned_angles(
    skills: Float[np.ndarray, "skills 2"], ends: Float[np.ndarray, "skills 2"]
) -> Float[np.ndarray, " skills"]:
    """Angles in degrees after the best orthogonal map of skills to ends."""
    left, _, right = np.linalg.svd(skills.T @ ends)
    mapped = skills @ left @ right
    cosine = np.sum(mapped * ends, axis=1) / np.linalg.norm(ends, axis=1)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-steps", type=int, default=20_000)
    parser.add_argument("--num-seeds", type=int, default=5)
    parser.add_argument("--worlds", nargs="+", default=["disc", "box"])
    arguments = parser.parse_args()
    print("world,agent,seed,least,mean,greatest,angle,greatest_angle,cells,seconds")
    names = {
        "disc": ["METRA on the circle", "METRA of positions on the circle"],
        "box": ["METRA on the circle", "DIAYN on the circle", "METRA one-hot",
                "DIAYN one-hot"],
    }  # fmt: skip
    trainer = eqrl.Trainer(batch_size=128, capacity=arguments.num_steps)
    for world in arguments.worlds:
        env = OnDisc(Point()) if world == "disc" else Point()
        for name in names[world]:
            agent, skills = make_agent(name), shown_skills(name)
            start = time.perf_counter()
            solution = eqrl.train_seeds(
                agent,
                env,
                trainer,
                num_seeds=arguments.num_seeds,
                num_steps=arguments.num_steps,
                key=jr.key(0),
            )
            seconds = (time.perf_counter() - start) / arguments.num_seeds
            for seed in range(arguments.num_seeds):
                state = jax.tree.map(
                    lambda x, seed=seed: x[seed] if eqx.is_array(x) else x,
                    solution.state,
                )
                evaluation = eqrl.evaluate_skills(
                    agent, state, env, num_episodes=1, key=jr.key(1), skills=skills
                )
                paths = np.asarray(evaluation.descriptors[:, 0])
                ends = paths[:, -1]
                far = np.linalg.norm(ends, axis=1)
                angles = np.full(NUM_SKILLS, np.nan)
                if "circle" in name:
                    angles = aligned_angles(np.asarray(skills), ends)
                cells = np.floor(paths.reshape(-1, 2) / CELL)
                print(
                    f"{world},{name},{seed},{far.min():.2f},{far.mean():.2f},"
                    f"{far.max():.2f},{angles.mean():.1f},{angles.max():.1f},"
                    f"{len(np.unique(cells, axis=0))},{seconds:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
