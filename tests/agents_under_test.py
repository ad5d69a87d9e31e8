"""All agents, small; a new one is added here to meet the tests of all agents."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

import eqrl
from docs.examples.a2c import A2C
from docs.examples.awac import AWAC
from docs.examples.behavior_cloning import BC
from docs.examples.redq import REDQ
from eqrl._agents.base import AnyAgent
from eqrl._pytree.tree import parts
from eqrl.envs import Point
from eqrl.envs._base import AnyEnv
from eqrl.spaces import AbstractActionSpace, Box, Discrete

from .toy import Directions


HIDDEN = (16,)
FEATURES = eqrl.nn.Features(HIDDEN)


def sac(hidden_sizes: tuple[int, ...] = HIDDEN, **options: Any) -> eqrl.SAC:
    """A small `SAC`."""
    return eqrl.SAC(
        make_actor=eqrl.nn.Gaussian(hidden_sizes),
        make_critic=eqrl.nn.Critic(hidden_sizes),
        **options,
    )


def td3(hidden_sizes: tuple[int, ...] = HIDDEN, **options: Any) -> eqrl.TD3:
    """A small `TD3`."""
    return eqrl.TD3(
        make_actor=eqrl.nn.Deterministic(hidden_sizes),
        make_critic=eqrl.nn.Critic(hidden_sizes),
        **options,
    )


def taac(hidden_sizes: tuple[int, ...] = HIDDEN, **options: Any) -> eqrl.TAAC:
    """A small `TAAC`."""
    return eqrl.TAAC(
        make_actor=eqrl.nn.Gaussian(hidden_sizes),
        make_critic=eqrl.nn.Critic(hidden_sizes),
        **options,
    )


def dqn(hidden_sizes: tuple[int, ...] = HIDDEN, **options: Any) -> eqrl.DQN:
    """A small `DQN`."""
    return eqrl.DQN(make_network=eqrl.nn.ActionValues(hidden_sizes), **options)


def discrete_sac(
    hidden_sizes: tuple[int, ...] = HIDDEN, **options: Any
) -> eqrl.DiscreteSAC:
    """A small `DiscreteSAC`."""
    return eqrl.DiscreteSAC(
        make_actor=eqrl.nn.Choice(hidden_sizes, jax.nn.relu),
        make_critic=eqrl.nn.ActionValues(hidden_sizes),
        **options,
    )


def ppo(
    hidden_sizes: tuple[int, ...] = HIDDEN, *, discrete: bool = False, **options: Any
) -> eqrl.PPO:
    """A small `PPO`, for one kind of actions."""
    make_actor = eqrl.nn.Choice if discrete else eqrl.nn.Normal
    return eqrl.PPO(
        make_actor=make_actor(hidden_sizes),
        make_critic=eqrl.nn.Value(hidden_sizes),
        **{"num_epochs": 2, "num_minibatches": 2, **options},
    )


def pqn(hidden_sizes: tuple[int, ...] = HIDDEN, **options: Any) -> eqrl.PQN:
    """A small `PQN`."""
    return eqrl.PQN(
        make_network=eqrl.nn.ActionValues(hidden_sizes, layer_norm=True),
        **{"num_minibatches": 2, **options},
    )


def diayn(
    agent: AnyAgent,
    skills: int | eqrl.AbstractSkillPrior = 3,
    hidden_sizes: tuple[int, ...] = HIDDEN,
    **options: Any,
) -> eqrl.Intrinsic[Any, Any, Any, Any]:
    """`eqrl.diayn` with a small discriminator of one-hot skills."""
    options.setdefault("make_network", eqrl.nn.CategoricalDiscriminator(hidden_sizes))
    return eqrl.diayn(agent, skills, **options)


def with_rates(agent: AnyAgent, rate: float) -> AnyAgent:
    """The agent with another learning rate, of everything that it learns."""

    def change(path: Any, leaf: Any) -> Any:
        is_rate = jax.tree_util.keystr(path).endswith(("lr", "rate"))
        return jnp.full_like(leaf, rate) if is_rate else leaf

    return jax.tree_util.tree_map_with_path(change, agent)


def all_finite(tree: PyTree) -> bool:
    """Whether all numbers are."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return all(bool(np.all(np.isfinite(leaf))) for leaf in leaves)


ALL_AGENTS: dict[str, AnyAgent] = {
    "SAC": sac(),
    "SAC-fixed-temperature": sac(learn_temperature=False, num_critics=3),
    "TD3": td3(),
    "TD3-AdamW": td3(make_optimizer=(optax.adam, optax.adamw)),
    "TAAC": taac(window_length=3),
    "TAAC-L": taac(trajectory=eqrl.LinearTrajectory(), window_length=2),
    "TAAC-Q": taac(trajectory=eqrl.QuadraticTrajectory(inverse=False), debug=True),
    "TAAC-options": taac(
        window_length=1,
        num_critics=3,
        target_period=2,
        advantage_clip=(-1.0, 2.0),
        max_repeat_steps=3,
        randomize_first_trajectory=True,
        bootstrap="sampled",
        td_loss=optax.huber_loss,
    ),
    "Normalized(TAAC)": eqrl.Normalized(taac(window_length=2, faithful=True)),
    "Normalized(SAC)": eqrl.Normalized(sac()),
    "DIAYN(TD3)-environment": diayn(
        td3(), descriptor="observation", environment_weight=0.5
    ),
    "Normalized(DIAYN(SAC))-sphere": eqrl.Normalized(
        diayn(
            sac(),
            eqrl.SphereSkills(),
            descriptor="observation",
            make_network=eqrl.nn.VonMisesFisherDiscriminator(HIDDEN),
        )
    ),
    "DIAYN(TAAC)": diayn(taac(window_length=2), descriptor="observation"),
    "DISk(SAC)": eqrl.Intrinsic(
        sac(), eqrl.Incremental(descriptor="observation", recent_capacity=8)
    ),
    "METRA-LSD(SAC)": eqrl.Intrinsic(
        eqrl.SkillConditioned(sac(), eqrl.SphereSkills()),
        eqrl.Sum(
            (
                eqrl.METRA(eqrl.SphereSkills(), make_network=FEATURES),
                eqrl.LSD(eqrl.SphereSkills(), make_network=FEATURES),
            )
        ),
        score_after_update=True,
    ),
    "CSF": eqrl.SkillConditioned(
        eqrl.CSF(
            2,
            num_negatives=8,
            make_actor=eqrl.nn.Gaussian(HIDDEN),
            make_critic=FEATURES,
            make_phi=FEATURES,
        ),
        eqrl.SphereSkills(),
        resample_every=3,
    ),
    "Novelty(DQN)": eqrl.Intrinsic(
        dqn(),
        eqrl.Sum(
            (
                eqrl.RND(num_features=4, make_network=FEATURES),
                eqrl.Scaled(
                    eqrl.ICM(
                        num_features=4, make_network=FEATURES, make_encoder=FEATURES
                    )
                ),
                eqrl.Disagreement(num_models=2, make_network=FEATURES),
                eqrl.ParticleEntropy(num_neighbors=1),
            )
        ),
    ),
    "CIC(SAC)": eqrl.Intrinsic(
        eqrl.SkillConditioned(sac(), eqrl.UniformSkills(3), resample_every=2),
        eqrl.CIC(
            eqrl.UniformSkills(3),
            num_neighbors=1,
            num_features=4,
            contrastive_weight=1.0,
            make_network=FEATURES,
        ),
        environment_weight=0.5,
    ),
    "DADS(SAC)": eqrl.Intrinsic(
        eqrl.SkillConditioned(sac(), 3),
        eqrl.DADS(3, descriptor="observation", make_network=FEATURES),
    ),
    "REDQ": REDQ(hidden_sizes=HIDDEN, num_critics=4),
    "A2C": A2C(hidden_sizes=HIDDEN),
    "AWAC": AWAC(hidden_sizes=HIDDEN),
    "BC": BC(hidden_sizes=HIDDEN),
    "DiscreteSAC": discrete_sac(),
    "DQN": dqn(),
    "DQN-three-steps": dqn(return_steps=3, huber=True, target_period=2),
    "PPO": ppo(value_clip=0.2, anneal_steps=1_000.0),
    "PPO-discrete": ppo(
        discrete=True,
        num_epochs=3,
        normalize_advantage=False,
        recompute_advantages=True,
    ),
    "PQN": pqn(),
    "Normalized(DIAYN(PPO))": eqrl.Normalized(
        diayn(ppo(discrete=True), descriptor="observation")
    ),
    "Normalized(DIAYN(DQN))": eqrl.Normalized(diayn(dqn(), descriptor="observation")),
}

# Among them they have memory, extras, sequences, wrappers, rollouts, and a branch that
# is not taken at each update.
THOROUGHLY_TESTED = (
    "TD3",
    "TAAC-options",
    "Normalized(DIAYN(SAC))-sphere",
    "DQN-three-steps",
    "PPO",
)


def space_of(agent: AnyAgent) -> AbstractActionSpace:
    """A small space, out of which the agent picks actions."""
    for discrete in (A2C, eqrl.DQN, eqrl.DiscreteSAC, eqrl.PQN):
        if parts(agent, discrete):
            return Discrete(4)
    actors = [ppo.make_actor for ppo in parts(agent, eqrl.PPO)]
    picks = [isinstance(make_actor, eqrl.nn.Choice) for make_actor in actors]
    return Discrete(4) if any(picks) else Box(2)


def env_of(agent: AnyAgent) -> AnyEnv:
    """A point in the plane that takes the agent's actions."""
    point = Point(max_steps=7, goal=(0.3, 0.1))
    return Directions(point) if space_of(agent) == Discrete(4) else point


def trainer_of(agent: AnyAgent, trainer: eqrl.Trainer) -> eqrl.Trainer:
    """The trainer; on-policy one with iterations of 20 steps of two environments."""
    if agent.sequence_length is not None:
        return trainer
    return eqrl.Trainer.on_policy(num_envs=2, num_steps=10)
