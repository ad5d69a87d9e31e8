"""TD3 on MuJoCo's tasks."""

from typing import Any

import eqrl

from .paper import Experiment, Paper, Published
from .training import Training


def _agent() -> Any:
    return eqrl.TD3(
        actor_lr=1e-3,
        critic_lr=1e-3,
        make_actor=eqrl.nn.Deterministic((400, 300)),
        make_critic=eqrl.nn.Critic((400, 300)),
    )


_CONTENDERS = {
    "TD3": Training(
        make_agent=_agent,
        make_trainer=lambda: eqrl.Trainer(
            batch_size=100, capacity=1_000_000, warmup_steps=10_000
        ),
        num_steps=300_000,
        evaluate_every=5_000,
    )
}


def _published(value: float, spread: float, spinning_up: float) -> Any:
    return {
        "TD3": (
            Published("the paper's data, greedy, 10 runs", value, spread, "v1"),
            Published("Spinning Up, greedy, 10 runs", spinning_up, note="v3"),
        )
    }


PAPER = Paper(
    title="TD3 on MuJoCo",
    text="""\
[Fujimoto et al.](https://arxiv.org/abs/1802.09477), with the settings of their first
release: one environment, hidden layers of 400 and 300, batches of 100 from a replay of
1,000,000, rates of 1e-3, noise of 0.1, target noise of 0.2 clipped at 0.5, an actor
that learns at every second update, targets that move by 0.005. The first 10,000 steps
are random, as by default in that code.

Three things differ: we make an update after each step, where the release makes as many
after each episode as it had steps; the target critics move at every update, where the
release's move at every second; and the tasks are v4, where the paper's are v1. The
numbers beside ours are means at 300,000 steps, as `last evaluation` is.

We evaluate as the paper does, in 10 greedy episodes every 5,000 steps.
""",
    experiments=(
        Experiment(
            env="envpool/Hopper-v4",
            contenders=_CONTENDERS,
            published=_published(2410, 900, 2402),
        ),
        Experiment(
            env="envpool/Walker2d-v4",
            contenders=_CONTENDERS,
            published=_published(3335, 957, 1557),
        ),
        Experiment(
            env="envpool/Ant-v4",
            contenders=_CONTENDERS,
            published=_published(1953, 1014, 1408),
        ),
    ),
)
