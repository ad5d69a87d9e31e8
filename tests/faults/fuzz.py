"""Calls the public constructors with right and wrong values.

Run as `python -m tests.faults.fuzz --number 5000`. Each call must either build
something, or raise a `ValueError` or `TypeError` of one line that names one of the
arguments in its message. Prints how often each was so, and exits with 1 after anything
else.
"""

import argparse
import collections
import inspect
import random
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import eqrl
from eqrl import envs, nn


BUILT, NAMED = "built", "named in one line"
UNNAMED, LONG, FOREIGN = "NO ARGUMENT NAMED", "MORE THAN ONE LINE", "OTHER ERROR"

# What is built of parts and numbers, rather than of results.
_KINDS = (
    eqrl.AbstractAgent,
    eqrl.AbstractReward,
    eqrl.AbstractSkillPrior,
    eqrl.AbstractPrior,
    eqrl.AbstractTrajectory,
    eqrl.AbstractReplay,
    envs.AbstractEnv,
    nn.NetworkFactory,
)
CONSTRUCTORS: tuple[Callable[..., Any], ...] = (
    *(
        each
        for module in (eqrl, envs, nn)
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, _KINDS)
        and not inspect.isabstract(each)
    ),
    eqrl.LSD,
    eqrl.diayn,
    eqrl.PBT,
    eqrl.Truncation,
    eqrl.Tournament,
    eqrl.Trainer,
    eqrl.Trainer.on_policy,
    eqrl.Checkpoints,
    eqrl.Evaluations,
    eqrl.EnvSpec,
    eqrl.ProgressBar,
    eqrl.PopulationProgressBar,
    envs.make,
    nn.MLP,
    nn.Convolution,
)

# Values of all kinds, of which most are wrong for most arguments.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 8, -1, 10**30, 0.0, 0.5, -0.5, 2.5, 1e-3, 1j),
    float("nan"),
    float("inf"),
    "",
    "no",
    "eqrl/Point",
    "observation",
    b"bytes",
    *((), (8,), (8, 0), (0.5, 0.5), ("a", "b"), [8], {}, {"a": 1}, {1, 2}),
    object(),
    len,
    jax.nn.relu,
    optax.adam,
    np.int64(2),
    np.float32(0.5),
    np.ones(2),
    jnp.ones(()),
    jnp.ones(2),
    jnp.zeros(2, bool),
    jr.key(0),
    jr.split(jr.key(0)),
    eqrl.SAC,
    eqrl.SAC(),
    eqrl.TD3(),
    eqrl.Incremental(),
    eqrl.Discriminator(2),
    eqrl.OneHotSkills(2),
    eqrl.Uniform(0, 1),
    (eqrl.Uniform(0, 1),),
    (eqrl.Incremental(),),
    envs.Point,
    envs.Point(),
    nn.Gaussian((8,)),
    nn.Critic((8,)),
)

# Right values for the arguments without a default.
RIGHT: dict[str, tuple[Any, ...]] = {
    "agent": (eqrl.SAC(), eqrl.TD3()),
    "env": (envs.Point(),),
    "key": (jr.key(0),),
    "reward": (eqrl.Incremental(),),
    "skills": (eqrl.OneHotSkills(2),),
    "skill": (jnp.ones(2),),
    "rewards": ((eqrl.Incremental(),),),
    "prior": (eqrl.Uniform(0, 1),),
    "priors": ((eqrl.Uniform(0, 1),),),
    "where": (len,),
    "low": (0.1,),
    "high": (0.5,),
    "name": ("eqrl/Point", "gymnax/Pendulum-v1"),
    "disabled": ((0,),),
    "hidden_sizes": ((8,),),
}


def arguments(make: Callable[..., Any], draw: random.Random) -> dict[str, Any]:
    """Arguments of a call, each right, left out or drawn from all values."""
    chosen: dict[str, Any] = {}
    for name, parameter in inspect.signature(make).parameters.items():
        required = parameter.default is inspect.Parameter.empty
        if draw.random() < 0.25:
            chosen[name] = draw.choice(VALUES)
        elif required:
            chosen[name] = draw.choice(RIGHT.get(name, (2,)))
    return chosen


def outcome(make: Callable[..., Any], chosen: dict[str, Any]) -> tuple[str, str]:
    """What a call came to, and the message of its error."""
    try:
        make(**chosen)
    except (ValueError, TypeError) as error:
        message = str(error)
        if "\n" in message:
            return LONG, message
        names = "|".join(map(re.escape, inspect.signature(make).parameters))
        if not re.search(rf"`[^`]*\b({names})\b", message):
            return UNNAMED, f"{type(error).__name__}: {message}"
        return NAMED, message
    except Exception as error:
        return FOREIGN, f"{type(error).__name__}: {error}"
    return BUILT, ""


def main() -> int:
    """Makes the calls and prints what they came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    draw = random.Random(options.seed)
    counts: collections.Counter[str] = collections.Counter()
    shown: set[tuple[str, str]] = set()
    for _ in range(options.number):
        make = draw.choice(CONSTRUCTORS)
        chosen = arguments(make, draw)
        what, message = outcome(make, chosen)
        counts[what] += 1
        if what in (BUILT, NAMED) or (make.__name__, message[:40]) in shown:
            continue
        shown.add((make.__name__, message[:40]))
        given = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        print(f"{what}: {make.__name__}({' '.join(given.split())[:200]})")
        print(f"    {' '.join(message.split())[:200]}")
    for what, number in counts.items():
        print(f"{number:6} {what}")
    return 0 if set(counts) <= {BUILT, NAMED} else 1


if __name__ == "__main__":
    sys.exit(main())
