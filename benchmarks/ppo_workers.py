"""PPO of this library and of others, each in a process that `workers.py` drives.

It runs with the Python of the library: `python -m benchmarks.ppo_workers LIBRARY
SETTING`. It imports only the packages that this library needs.
"""

import sys
from collections.abc import Callable
from typing import Any

from .workers import make_hold, serve


# Environment steps of one measurement.
CARTPOLE = {"envs": 4, "steps": 128, "minibatches": 4, "iterations": 390}
BREAKOUT = {"envs": 64, "steps": 128, "minibatches": 8, "iterations": 12}
FAST = {"envs": 64, "steps": 40, "minibatches": 8, "iterations": 80}
SETTINGS = {
    "cartpole": CARTPOLE,
    "breakout": BREAKOUT,
    "fast": FAST,
    "fast-normalized": FAST,
}
GYMNAX_NAMES = {"cartpole": "CartPole-v1", "breakout": "Breakout-MinAtar"}
ROWS = 20


def steps_of(setting: str) -> int:
    """Environment steps of one measurement."""
    sizes = SETTINGS[setting]
    return sizes["envs"] * sizes["steps"] * sizes["iterations"]


def make_ours(setting: str, *, through_train: bool) -> Callable[[], Any]:
    """Trains from the beginning: one compiled call, or `eqrl.train` with its rows."""
    import jax
    import jax.random as jr

    import eqrl

    sizes, num_steps = SETTINGS[setting], steps_of(setting)
    options: dict[str, Any] = {"num_minibatches": sizes["minibatches"]}
    if setting in GYMNAX_NAMES:
        env = eqrl.envs.make(f"gymnax/{GYMNAX_NAMES[setting]}")
        activation = jax.nn.tanh if setting == "cartpole" else jax.nn.relu
        options |= {
            "lr": 2.5e-4 if setting == "cartpole" else 5e-3,
            "anneal_steps": num_steps,
            "value_clip": 0.2,
            "make_actor": eqrl.nn.Choice((64, 64), activation),
            "make_critic": eqrl.nn.Value((64, 64), activation),
        }
    else:
        env = eqrl.envs.make("brax/fast", max_steps=128)
        options |= {
            "lr": 3e-4,
            "discount": 0.95,
            "clip": 0.3,
            "reward_scale": 10.0,
            "normalize_advantage": False,
            "make_actor": eqrl.nn.Normal((32,) * 4, jax.nn.swish, squash=True),
            "make_critic": eqrl.nn.Value((256,) * 5, jax.nn.swish),
        }
    agent: Any = eqrl.PPO(**options)
    if setting == "fast-normalized":
        agent = eqrl.Normalized(agent)
    trainer = eqrl.Trainer.on_policy(num_envs=sizes["envs"], num_steps=sizes["steps"])

    def alone() -> Any:
        state, counts = eqrl.jit_init(trainer, agent, env, key=jr.key(0))
        return eqrl.jit_run(
            trainer, agent, env, state, counts, num_steps=num_steps, key=jr.key(1)
        )

    def train() -> Any:
        return eqrl.train(
            agent,
            env,
            trainer,
            num_steps=num_steps,
            log_every=num_steps // ROWS,
            key=jr.key(0),
        )

    return train if through_train else alone


def make_purejaxrl(setting: str, path: str) -> Callable[[], Any]:
    """PureJaxRL's unchanged `ppo.py`, from the folder `path`."""
    import types

    # Its wrappers import these for environments that are not used here.
    for name in ("brax", "brax.envs", "brax.envs.wrappers.training", "navix"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["brax"].envs = sys.modules["brax.envs"]  # type: ignore[attr-defined]
    training: Any = sys.modules["brax.envs.wrappers.training"]
    training.EpisodeWrapper = training.AutoResetWrapper = object
    sys.path.insert(0, path)

    import jax
    import ppo  # pyright: ignore[reportMissingImports]

    sizes = SETTINGS[setting]
    config = {
        "LR": 2.5e-4 if setting == "cartpole" else 5e-3,
        "NUM_ENVS": sizes["envs"],
        "NUM_STEPS": sizes["steps"],
        "TOTAL_TIMESTEPS": steps_of(setting),
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": sizes["minibatches"],
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh" if setting == "cartpole" else "relu",
        "ENV_NAME": GYMNAX_NAMES[setting],
        "ANNEAL_LR": True,
    }
    train = jax.jit(ppo.make_train(config))
    return lambda: train(jax.random.PRNGKey(0))


def make_rejax(setting: str) -> Callable[[], Any]:
    """rejax's PPO, without its evaluations."""
    import jax
    import rejax  # pyright: ignore[reportMissingImports]

    sizes, num_steps = SETTINGS[setting], steps_of(setting)
    agent = rejax.get_algo("ppo").create(
        env=GYMNAX_NAMES[setting],
        num_envs=sizes["envs"],
        num_steps=sizes["steps"],
        num_epochs=4,
        num_minibatches=sizes["minibatches"],
        learning_rate=2.5e-4 if setting == "cartpole" else 5e-3,
        max_grad_norm=0.5,
        total_timesteps=num_steps,
        eval_freq=num_steps,
        skip_initial_evaluation=True,
        agent_kwargs={
            "activation": "tanh" if setting == "cartpole" else "relu",
            "hidden_layer_sizes": (64, 64),
        },
    )
    agent = agent.replace(eval_callback=lambda algorithm, state, key: 0.0)
    train = jax.jit(lambda key: agent.train(key))
    return lambda: train(jax.random.PRNGKey(0))


def mend_brax() -> None:
    """Gives JAX a function that brax's PPO calls and that JAX has removed."""
    import jax
    import jax.numpy as jnp

    name = "device_put_replicated"
    setattr(
        jax,
        name,
        lambda tree, devices: jax.tree.map(
            lambda x: jnp.stack([x] * len(devices)), tree
        ),
    )


def serve_brax(setting: str) -> None:
    """brax's PPO, whose single call of training is paused after each epoch."""
    from brax import envs
    from brax.training.agents.ppo import train as ppo

    mend_brax()
    hold = make_hold()
    hold()
    epochs = 1_000
    sizes = SETTINGS[setting]
    ppo.train(
        envs.get_environment("fast"),
        num_timesteps=epochs * steps_of(setting),
        episode_length=128,
        num_envs=sizes["envs"],
        learning_rate=3e-4,
        entropy_cost=1e-2,
        discounting=0.95,
        unroll_length=5,
        batch_size=64,
        num_minibatches=sizes["minibatches"],
        num_updates_per_batch=4,
        max_grad_norm=0.5,
        normalize_observations=setting == "fast-normalized",
        reward_scaling=10,
        normalize_advantage=False,
        num_evals=epochs + 1,
        run_evals=False,
        progress_fn=hold,
    )


def main() -> None:
    library, setting, *rest = sys.argv[1:]
    if library == "brax":
        serve_brax(setting)
    elif library == "purejaxrl":
        serve(make_purejaxrl(setting, *rest))
    elif library == "rejax":
        serve(make_rejax(setting))
    else:
        serve(make_ours(setting, through_train=library == "train"))


if __name__ == "__main__":
    main()
