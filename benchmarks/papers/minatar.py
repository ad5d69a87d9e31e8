"""PPO and PQN on MinAtar, with gymnax's settings, PQN's, and a convolution."""

import functools
from typing import Any

import jax

import eqrl

from .paper import Experiment, Paper, Published
from .training import Training


README, CURVES = "gymnax's README, one run", "gymnax's curves, the best of three rates"
PGX, DQN = (
    "pgx's PPO, 20,000,000 steps",
    "MinAtar's DQN, 5,000,000 steps, sticky actions",
)

# Channels of the image, and published returns.
GAMES: dict[str, tuple[int, dict[str, float]]] = {
    "Asterix": (4, {README: 15, CURVES: 18, PGX: 22, DQN: 17}),
    "Breakout": (4, {README: 28, CURVES: 43, PGX: 50, DQN: 10}),
    "Freeway": (7, {README: 58, CURVES: 59, PGX: 63.5, DQN: 50}),
    "SpaceInvaders": (6, {README: 131, CURVES: 132, PGX: 144, DQN: 44}),
    "Seaquest": (10, {PGX: 54, DQN: 20}),
}
NUM_STEPS, EVERY = 10_000_000, 100_000


def _whole(num_envs: int, num_steps: int) -> int:
    """As many steps as there are in whole rows of the metrics."""
    size = num_envs * num_steps
    row = -(-EVERY // size) * size
    return round(NUM_STEPS / row) * row


def _gymnax() -> Any:
    return eqrl.PPO(
        lr=5e-4,
        discount=0.999,
        num_minibatches=8,
        value_clip=0.2,
        make_actor=eqrl.nn.Choice((256, 256), jax.nn.relu),
        make_critic=eqrl.nn.Value((256, 256), jax.nn.relu),
    )


def _ppo(channels: int) -> Any:
    network: dict[str, Any] = {
        "hidden_sizes": (128,),
        "activation": jax.nn.relu,
        "encoder": eqrl.nn.Convolution((10, 10, channels)),
    }
    return eqrl.PPO(
        lr=1e-3,
        num_minibatches=8,
        anneal_steps=float(_whole(64, 128)),
        make_actor=eqrl.nn.Choice(**network),
        make_critic=eqrl.nn.Value(**network),
    )


def _pqn(channels: int) -> Any:
    return eqrl.PQN(
        epsilon_steps=NUM_STEPS / 10,
        anneal_steps=float(_whole(128, 32)),
        make_network=eqrl.nn.ActionValues(
            (128,), layer_norm=True, encoder=eqrl.nn.Convolution((10, 10, channels))
        ),
    )


def _training(make_agent: Any, num_envs: int, num_steps: int) -> Training:
    rollouts = functools.partial(
        eqrl.Trainer.on_policy, num_envs=num_envs, num_steps=num_steps
    )
    return Training(
        make_agent=make_agent,
        make_trainer=rollouts,
        num_steps=_whole(num_envs, num_steps),
        evaluate_every=EVERY,
        num_episodes=16,
        log_every=EVERY,
    )


def _experiment(game: str) -> Experiment:
    channels, known = GAMES[game]
    of_gymnax = tuple(Published(x, known[x]) for x in (README, CURVES) if x in known)
    of_others = tuple(Published(x, known[x]) for x in (PGX, DQN))
    return Experiment(
        env=f"gymnax/{game}-MinAtar",
        contenders={
            "PPO": _training(functools.partial(_ppo, channels), 64, 128),
            "PQN": _training(functools.partial(_pqn, channels), 128, 32),
            "PPO-gymnax": _training(_gymnax, 64, 128),
        },
        published={"PPO-gymnax": of_gymnax, "": of_others},
        seeds=5,
    )


PAPER = Paper(
    title="MinAtar",
    text="""\
The games of [Young and Tian](https://arxiv.org/abs/1903.03176) as gymnax has them:
episodes end after 1,000 steps (Freeway 2,500), actions are those that have an effect,
and none is repeated at random. About 10,000,000 steps each, in whole rows of the
metrics. Values bootstrap at time limits here; in gymnax's and PQN's runs a time limit
terminates, as it does every episode of Freeway.

`PPO-gymnax` has the settings of gymnax's own runs: 64 environments, rollouts of 128
steps, 4 epochs of 8 minibatches, a constant rate of 5e-4, discount 0.999, decay 0.95,
ratios and values clipped by 0.2, entropy bonus 0.01, gradients of norm 0.5, two layers
of 256 on the flattened image. Weights are orthogonal at first, theirs are flax's.

`PQN` has those of [Gallici et al.](https://arxiv.org/abs/2407.04811): 128 environments,
rollouts of 32 steps, 2 epochs of 32 minibatches, a rate from 5e-4 to 0, discount 0.99,
decay 0.65, random actions that decrease from all to 0.05 within a tenth of the steps,
and a convolution with 16 filters below a layer of 128 that is normalized. Their
convolution is normalized, too.

`PPO` has the same network without normalization, and a rate from 1e-3 to 0.

gymnax's README and curves are of PPO after 10,000,000 steps; those of pgx and of
MinAtar's paper have random repeats of actions, and all curves are read off figures.
Returns of gymnax and pgx are of sampled actions, as those of `training` are.

Greedy returns are of 16 episodes after about every 100,000 steps, in whole rollouts:
106,496 for PPO, 102,400 for PQN.
""",
    experiments=tuple(map(_experiment, GAMES)),
)
