"""TAAC beside SAC on the paper's tasks of simple control."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import eqrl

from .page import final, returns_of
from .paper import Experiment, Found, Paper, Record
from .training import Training


RATES: dict[str, Any] = {"actor_lr": 1e-4, "critic_lr": 1e-4, "temperature_lr": 1e-4}
ADAM = functools.partial(optax.adam, eps=1e-7)
NUM_EPISODES = 100


def _normalized(agent: Any) -> Any:
    return eqrl.NormalizedReward(agent, clip=5.0, subtract_mean=True)


def _taac(**windows: Any) -> Any:
    # The target entropy of actions is TAAC's default.
    agent = eqrl.TAAC(
        **windows, switch_target_entropy=0.1985, make_optimizer=ADAM, **RATES
    )
    return _normalized(agent)


def _sac(num_actions: int) -> Any:
    entropy = -1.609 * num_actions
    return _normalized(eqrl.SAC(target_entropy=entropy, make_optimizer=ADAM, **RATES))


def _shares(agent: Any, state: Any, env: Any, key: jax.Array) -> dict[str, float]:
    """Shares of steps in which the action is repeated."""
    shares = {}
    for mode in ("greedy", "sample"):
        transitions, mask = eqrl.rollout(
            agent, state, env, num_episodes=NUM_EPISODES, key=key, mode=mode
        )
        repeated = jnp.sum(~transitions.extras.switch & mask) / jnp.sum(mask)
        shares[f"repeated actions, {mode}"] = float(repeated)
    return shares


def _area(record: Record) -> float:
    """The area under the curve of evaluations, divided by its length."""
    return float(record.evaluations.mean())


def report(found: Found) -> list[str]:
    """The table of returns, and by how much TAAC is ahead, paired by seed."""
    lines = returns_of(found)
    ours = {record.facts["seed"]: record for record in found.get("TAAC", ())}
    measures = {"the last ten evaluations": final, "all evaluations": _area}
    for contender, records in found.items():
        pairs = [(ours[x.facts["seed"]], x) for x in records if x.facts["seed"] in ours]
        if contender == "TAAC" or len(pairs) < 2:
            continue
        for what, measure in measures.items():
            ahead = np.asarray([[measure(taac) - measure(sac) for taac, sac in pairs]])
            low, high = eqrl.bootstrap_interval(ahead)
            lines.append(
                f"\nTAAC less {contender}, mean of {what}, over {len(pairs)} seeds: "
                f"{ahead.mean():.5g} ({low[0]:.5g} to {high[0]:.5g})."
            )
    return lines


def _experiment(env: str, num_actions: int, *, by_default: bool = True) -> Experiment:
    trainer = functools.partial(eqrl.Trainer, capacity=100_000, warmup_steps=10_000)
    contender = functools.partial(
        Training, num_steps=100_000, evaluate_every=2_500, log_every=2_500
    )
    sac = functools.partial(_sac, num_actions)
    # Their windows of 4 and 2 are states, so 3 transitions and 1.
    taac = functools.partial(_taac, window_length=3)
    one_step = functools.partial(_taac, window_length=1, target="one_step")
    contenders = {
        "TAAC": contender(make_agent=taac, make_trainer=trainer, measure_end=_shares),
        "SAC": contender(make_agent=sac, make_trainer=trainer),
        "SAC-sampled": contender(
            make_agent=sac,
            make_trainer=functools.partial(trainer, warmup_mode="sample"),
        ),
        "TAAC-1td": contender(
            make_agent=one_step, make_trainer=trainer, measure_end=_shares
        ),
    }
    return Experiment(
        env=env,
        seeds=5,
        report=report,
        contenders=contenders,
        by_default=by_default,
        named_only=("TAAC-1td",),
    )


PAPER = Paper(
    title="TAAC on simple control",
    text="""\
[Yu et al.](https://arxiv.org/abs/2104.06521), with the settings of the runs in their
repository: one environment and one update a step, 100,000 steps of which 10,000 are the
warm-up, 256 windows of 4 states, 3 transitions, in a batch (SAC: 256 transitions),
rates of 1e-4, hidden layers of 256 and 256, rewards less their mean, divided by their
deviation and clipped at 5, a replay of 100,000, targets that move by 0.005, target
entropies of -1.609 for each action and of 0.1985 for the switch, 10 greedy episodes
every 2,500 steps.

TAAC's critic loss is a mean over the transitions of a window, where theirs is a sum
divided by one more; and their actor also learns from a window's last state, ours does
not.

TAAC's warm-up takes uniform actions. SAC's samples the policy that has learned nothing
in the paper's runs, which is `SAC-sampled` here; `SAC` has the same warm-up as TAAC.

We found no raw returns of these tasks in the paper. It prints the share of steps in
which the trained policy repeats its action: 0.89 in MountainCarContinuous and 0.74 in
LunarLanderContinuous (read off a figure).

The mean and the deviation of rewards are those of all rewards so far; theirs are moving
averages over replayed batches. LunarLanderContinuous is version 2, as theirs;
InvertedDoublePendulum, which runs only if it is named, is version 4, theirs is 2.
`TAAC-1td`, which runs there or if it is named, has windows of 2 states and targets of
one step.
""",
    experiments=(
        _experiment("envpool/MountainCarContinuous-v0", 1),
        _experiment("envpool/LunarLanderContinuous-v2", 2),
        _experiment("envpool/InvertedDoublePendulum-v4", 1, by_default=False),
    ),
)
