"""The same work in each library, in a process that `workers.py` drives.

It runs with the Python of the library: `python -m benchmarks.peer_workers LIBRARY
WORK`. It imports only the packages that this library needs.

All have one environment and one update a step, hidden layers of 256 and 256, batches of
256, a replay of 100,000 and brax's `fast`, except DIAYN, whose settings are in
`skill_speed.py`. SBX steps an environment of Gymnasium from Python: here a copy of
`fast` in NumPy. It makes one update a step like the others or, as `sbx-64`, 64 updates
after each 64 steps, in one compiled call. rejax donates no buffers, and resets at every
step; all others are set up like their own training.
"""

import sys
from collections.abc import Callable
from typing import Any

from .workers import make_hold, serve


CAPACITY = 100_000
WARMUP_STEPS = 1_000
MAX_STEPS = 1_000
NUM_MEMBERS = 8
NUM_SKILLS = 8
HIDDEN = (256, 256)
# Updates of one measurement, of each member.
UPDATES = {"sac": 320, "td3": 320, "diayn": 320, "sac-8": 40, "td3-8": 40}

Run = Callable[[], Any]


def updates_of(work: str) -> int:
    """Updates of one measurement, of all members together."""
    return UPDATES[work] * (NUM_MEMBERS if work.endswith("-8") else 1)


def make_ours(work: str, precision: Any = "float32") -> Run:
    """The work in this library."""
    import eqrl

    from . import population_speed, skill_speed, speed
    from .precision import in_precision

    eqrl.use_all_cores()
    num_updates = UPDATES[work]
    agent: Any = eqrl.TD3() if work.startswith("td3") else eqrl.SAC()
    agent = in_precision(agent, precision)
    if work == "diayn":
        network = eqrl.nn.CategoricalDiscriminator(precision=precision)
        skills = eqrl.EvenOneHotSkills(NUM_SKILLS)
        skilled = eqrl.diayn(agent, skills, make_network=network)
        return skill_speed.make_run(skilled, eqrl.envs.Point(), num_updates=num_updates)
    if work.endswith("-8"):
        run = population_speed.make_run(
            agent, "fast", size=NUM_MEMBERS, capacity=CAPACITY
        )
    else:
        run = speed.make_run(agent, capacity=CAPACITY)
    return lambda: run(num_updates)


def make_seeds(work: str) -> Run:
    """The work in this library, by `eqrl.train_seeds` with its defaults."""
    import jax.random as jr

    import eqrl

    eqrl.use_all_cores()
    env = eqrl.envs.make("brax/fast", max_steps=MAX_STEPS)
    agent: Any = eqrl.TD3() if work.startswith("td3") else eqrl.SAC()
    trainer = eqrl.Trainer(capacity=CAPACITY, warmup_steps=WARMUP_STEPS)
    solution: Any = None

    def run(num_steps: int = UPDATES[work]) -> Any:
        nonlocal solution
        solution = eqrl.train_seeds(
            agent,
            env,
            trainer,
            num_seeds=NUM_MEMBERS,
            num_steps=num_steps,
            key=jr.key(0),
            initial=solution,
        )
        return solution.metrics

    run(WARMUP_STEPS)
    return run


def make_qdax(work: str) -> Run:
    """The work in QDax."""
    if work == "diayn":
        from . import qdax_skills

        return qdax_skills.make_run(
            num_skills=NUM_SKILLS,
            num_envs=16,
            capacity=CAPACITY,
            warmup_steps=1_600,
            num_updates=UPDATES[work],
        )
    from . import qdax_peers

    algorithm = work.removesuffix("-8")
    sizes = {"capacity": CAPACITY, "num_updates": UPDATES[work]}
    if work.endswith("-8"):
        return qdax_peers.make_population_run(
            algorithm, "fast", size=NUM_MEMBERS, **sizes
        )
    return qdax_peers.make_run(algorithm, "fast", warmup_steps=WARMUP_STEPS, **sizes)


def make_rejax(work: str) -> Run:
    """The work in rejax, without its evaluations."""
    import jax
    import rejax  # pyright: ignore[reportMissingImports]
    from flax import linen as nn  # pyright: ignore[reportMissingImports]
    from rejax import networks  # pyright: ignore[reportMissingImports]

    num_updates = UPDATES[work]
    options: dict[str, Any] = {}
    if work == "sac":
        options = {"hidden_layer_sizes": HIDDEN}
    agent = rejax.get_algo(work).create(
        env="brax/fast",
        num_envs=1,
        batch_size=256,
        buffer_size=CAPACITY,
        fill_buffer=WARMUP_STEPS,
        total_timesteps=num_updates,
        eval_freq=num_updates,
        skip_initial_evaluation=True,
        **options,
    )
    agent = agent.replace(eval_callback=lambda algorithm, state, key: 0.0)
    if work == "td3":
        # Its own options do not change the sizes.
        agent = agent.replace(
            actor=networks.DeterministicPolicy(1, (-1, 1), HIDDEN, nn.relu),
            critic=networks.QNetwork(HIDDEN, nn.relu),
        )
    train = jax.jit(lambda state: agent.train(train_state=state)[0])
    state = jax.jit(agent.init_state)(jax.random.PRNGKey(0))
    for _ in range(-(-WARMUP_STEPS // num_updates)):
        state = train(state)

    def run() -> Any:
        nonlocal state
        state = train(state)
        return state

    return run


def make_sbx(work: str, updates_at_once: int) -> Run:
    """The work in SBX, in an environment like brax's `fast`."""
    import gymnasium  # pyright: ignore[reportMissingImports]
    import numpy as np
    import sbx  # pyright: ignore[reportMissingImports]

    class Fast(gymnasium.Env):
        """Brax's `fast`."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.position = self.velocity = 0.0
            self.steps = 0
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.velocity += 0.02 * float(action[0] > 0)
            self.position += 0.02 * self.velocity
            self.steps += 1
            observation = np.array([self.position, self.velocity], np.float32)
            truncated = self.steps >= MAX_STEPS
            return observation, self.position, False, truncated, {}

    model = {"sac": sbx.SAC, "td3": sbx.TD3}[work](
        "MlpPolicy",
        Fast(),
        batch_size=256,
        buffer_size=CAPACITY,
        learning_starts=WARMUP_STEPS,
        train_freq=updates_at_once,
        gradient_steps=updates_at_once,
        policy_kwargs={"net_arch": list(HIDDEN)},
    )
    model.learn(WARMUP_STEPS)

    def run() -> Any:
        model.learn(UPDATES[work], reset_num_timesteps=False)
        return model.policy.qf_state.params

    return run


def serve_brax(work: str) -> None:
    """The work in brax, whose single call of training is paused at its evaluations."""
    from brax import envs
    from brax.training import acting
    from brax.training.agents.sac import train as sac

    from .ppo_workers import mend_brax

    mend_brax()
    hold = make_hold()

    class Holding:
        """Replaces brax's evaluator."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def run_evaluation(self, *_: Any, **__: Any) -> dict[str, Any]:
            hold()
            return {}

    setattr(acting, "Evaluator", Holding)  # noqa: B010
    epochs = 1_000
    sac.train(
        envs.get_environment("fast"),
        num_timesteps=WARMUP_STEPS + epochs * UPDATES[work],
        episode_length=MAX_STEPS,
        num_envs=1,
        batch_size=256,
        min_replay_size=WARMUP_STEPS,
        max_replay_size=CAPACITY,
        num_evals=epochs + 1,
    )


def main() -> None:
    library, work = sys.argv[1:]
    if library == "brax":
        serve_brax(work)
        return
    makers: dict[str, Callable[[str], Run]] = {
        "eqrl": make_ours,
        "bfloat16": lambda work: make_ours(work, "bfloat16"),
        "train_seeds": make_seeds,
        "qdax": make_qdax,
        "rejax": make_rejax,
        "sbx": lambda work: make_sbx(work, 1),
        "sbx-64": lambda work: make_sbx(work, 64),
    }
    serve(makers[library](work))


if __name__ == "__main__":
    main()
