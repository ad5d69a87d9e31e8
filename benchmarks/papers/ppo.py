"""PPO on MuJoCo's tasks."""

from typing import Any

import eqrl

from .paper import Experiment, Paper, Published
from .training import Training


NUM_STEPS = 488 * 2048


def _agent() -> Any:
    agent = eqrl.PPO(
        lr=3e-4,
        value_clip=0.2,
        entropy_weight=0.0,
        num_epochs=10,
        num_minibatches=32,
        anneal_steps=float(NUM_STEPS),
        # The deviation of a sum of independent rewards, discounted by 0.99.
        reward_scale=0.141,
    )
    return eqrl.Normalized(eqrl.NormalizedReward(agent), clip=10.0)


_CONTENDER = Training(
    make_agent=_agent,
    make_trainer=lambda: eqrl.Trainer.on_policy(num_envs=1, num_steps=2048),
    num_steps=NUM_STEPS,
    evaluate_every=10 * 2048,
    log_every=2048,
)


def _experiment(env: str, value: float, spread: float) -> Experiment:
    published = Published("CleanRL, training, 3 runs", value, spread)
    return Experiment(
        env=env, contenders={"PPO": _CONTENDER}, published={"PPO": (published,)}
    )


PAPER = Paper(
    title="PPO on MuJoCo",
    text="""\
[Schulman et al.](https://arxiv.org/abs/1707.06347), with the settings of CleanRL's
`ppo_continuous_action`: one environment, rollouts of 2,048 steps, 10 epochs of 32
minibatches, two hidden layers of 64 with tanh, a rate from 3e-4 to 0, discount 0.99,
decay 0.95, both clips 0.2, gradients of norm 0.5, no entropy bonus, observations
normalized and clipped at 10.

Three things differ. CleanRL divides rewards by the running deviation of the discounted
return; we divide them by their own root mean square, and then by the deviation that
discounted sums of independent rewards have, 7.1. Ours are clipped at 10 between these
divisions, so at 1.41 times that deviation, where CleanRL's are clipped at 10 times. And
CleanRL treats time limits as terminations; we do not.

CleanRL's numbers are training returns, with sampled actions; they are compared with
those of our last 100 episodes. Greedy returns are of 10 episodes every 20,480 steps.
""",
    experiments=(
        _experiment("envpool/HalfCheetah-v4", 1443, 46),
        _experiment("envpool/Hopper-v4", 2383, 272),
        _experiment("envpool/Walker2d-v4", 2288, 572),
    ),
)
