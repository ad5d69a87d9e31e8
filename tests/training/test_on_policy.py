"""Training on rollouts: each step once, in order, without a copy."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Int, PRNGKeyArray

import eqrl
from eqrl._training.schedule import Counts
from eqrl.envs import Outcome

from ..agents_under_test import ppo, sac
from ..toy import Drift, DriftState, Idle, World
from .test_trainer import temporary_share


NUM_ENVS, NUM_STEPS = 3, 4
TRAINER = eqrl.Trainer.on_policy(num_envs=NUM_ENVS, num_steps=NUM_STEPS)


class RecorderState(eqx.Module):
    """The batch of the last update, and how many steps were observed."""

    batch: Any
    num_steps: Int[Array, ""]


class Recorder(Idle):
    """Stores the number of each step, and looks at what it is given to learn from."""

    shape: tuple[int, int] = eqx.field(default=(NUM_ENVS, NUM_STEPS), static=True)

    @property
    def sequence_length(self) -> None:
        return None

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> RecorderState:
        del spec, key
        empty = jnp.zeros(self.shape, int)
        return RecorderState(
            batch={"number": empty, "time": empty + 0},
            num_steps=jnp.zeros((), int),
        )

    def act(
        self, state: RecorderState, memory: None, observation: Array, **_: Any
    ) -> tuple[Array, None, Int[Array, ""]]:
        del memory, observation
        return jnp.zeros(1), None, state.num_steps

    def observe(self, state: RecorderState, transitions: Any) -> RecorderState:
        del transitions
        return RecorderState(batch=state.batch, num_steps=state.num_steps + 1)

    def update(
        self, state: RecorderState, batch: Any, *, step: Any, key: PRNGKeyArray
    ) -> tuple[RecorderState, eqrl.Metrics]:
        del step, key
        seen = {"number": batch.extras, "time": batch.timestep}
        metrics = {"mean": jnp.mean(batch.observation + batch.next_observation)}
        return RecorderState(batch=seen, num_steps=state.num_steps), metrics


class Wide(Drift):
    """`Drift`, which is observed many times over."""

    repeats: int = eqx.field(default=512, static=True)

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(observation_size=2 * self.repeats, action_size=1)

    def reset(self, *, key: PRNGKeyArray) -> tuple[DriftState, Array]:
        state, observation = Drift.reset(self, key=key)
        return state, jnp.tile(observation, self.repeats)

    def step(
        self, state: DriftState, action: Array, *, key: PRNGKeyArray
    ) -> tuple[DriftState, Outcome]:
        state, outcome = Drift.step(self, state, action, key=key)
        wide = jnp.tile(outcome.observation, self.repeats)
        return state, eqx.tree_at(lambda x: x.observation, outcome, wide)


def test_there_is_no_second_rollout() -> None:
    trainer = eqrl.Trainer.on_policy(num_envs=2, num_steps=1_000)
    agent, env = Recorder(shape=(2, 1_000)), Wide()
    state, counts = eqx.filter_eval_shape(trainer.init, agent, env, key=jr.key(0))
    lowered = jax.jit(
        lambda key, state, counts: trainer.run(
            agent, env, state, counts, num_steps=4_000, key=key
        ),
        donate_argnums=(1, 2),
    ).lower(jr.key(1), state, counts)
    assert temporary_share(lowered, state) < 0.05


def test_a_batch_is_the_iteration_in_the_order_of_time() -> None:
    env = Drift(max_steps=7)
    size = NUM_ENVS * NUM_STEPS
    options: Any = {"key": jr.key(0), "log_every": size}
    batches = []

    def callback(step: int, metrics: Any, solution: Any) -> None:
        del step, metrics
        batches.append(jax.device_get(solution.state.batch))

    first = eqrl.train(
        Recorder(), env, TRAINER, num_steps=2 * size, callback=callback, **options
    )
    # Also where it goes on from what was saved.
    eqrl.train(
        Recorder(),
        env,
        TRAINER,
        num_steps=size,
        initial=first,
        callback=callback,
        **options,
    )
    for iteration, batch in enumerate(batches):
        expected = iteration * NUM_STEPS + np.arange(NUM_STEPS)
        np.testing.assert_array_equal(batch["number"], np.tile(expected, (NUM_ENVS, 1)))
    # Episodes of at most seven steps went on across rollouts, or began anew.
    times = np.concatenate([batch["time"] for batch in batches], axis=1)
    assert np.all((np.diff(times) == 1) | (times[:, 1:] == 0)) and times.max() > 3


def test_after_what_was_not_finite_a_rollout_begins_anew() -> None:
    size = NUM_ENVS * NUM_STEPS
    options: Any = {"key": jr.key(0), "log_every": size, "num_steps": 2 * size}
    # In the middle of the second rollout.
    with pytest.raises(eqrl.NonFiniteError) as error:
        eqrl.train(
            Recorder(), World(at=NUM_STEPS + 2, reward=np.nan), TRAINER, **options
        )
    reached = error.value.solution
    assert int(reached.counts.rows_written) == NUM_STEPS
    again = eqrl.train(Recorder(), World(), TRAINER, initial=reached, **options)
    # Two steps were taken, of which nothing was learned.
    expected = 2 * NUM_STEPS + 2 + np.arange(NUM_STEPS)
    batch = again.state.batch
    np.testing.assert_array_equal(batch["time"], np.tile(expected, (NUM_ENVS, 1)))


def test_the_rows_of_an_iteration_begin_at_the_first_place() -> None:
    replay: Any = TRAINER.replay(None)
    state = replay.init({"x": jnp.zeros(())}, NUM_ENVS)
    zero = jnp.zeros((), int)
    # Whatever was kept when the replay was reset, and after many iterations.
    counts = Counts(updates=zero, rows_written=zero + 40, rows_kept=zero + 3)
    for row in range(NUM_STEPS):
        items = {"x": jnp.full(NUM_ENVS, float(row))}
        state = replay.add(state, items, counts.after_rows(row))
    ignored = {"x": jnp.full(NUM_ENVS, -1.0)}
    state = replay.add(state, ignored, counts, keep=jnp.asarray(False))
    batch = replay.sample(state, counts, key=jr.key(0))
    np.testing.assert_array_equal(
        batch["x"], np.tile(np.arange(float(NUM_STEPS)), (NUM_ENVS, 1))
    )
    # The arrays themselves.
    assert batch["x"] is state.data["x"]


def test_the_first_action_is_the_policys_own_and_each_iteration_updates() -> None:
    schedule = TRAINER.schedule
    assert schedule.warmup_iterations == 0
    assert schedule.updates_in(3, rows_written=0) == 3


@pytest.mark.parametrize(
    "trainer",
    [
        eqrl.Trainer(),
        eqrl.Trainer(num_envs=2, batch_size=2, capacity=8, warmup_steps=0),
        eqrl.Trainer(
            num_envs=2,
            batch_size=2,
            capacity=8,
            warmup_steps=0,
            steps_per_iteration=4,
            updates_per_iteration=2,
            make_replay=eqrl.LatestRows,
        ),
        eqrl.Trainer.on_policy(num_envs=2, num_steps=4, make_replay=eqrl.ReplayBuffer),
    ],
    ids=["default", "one step", "two updates", "a replay"],
)
def test_another_trainer_is_refused_by_name(trainer: eqrl.Trainer) -> None:
    with pytest.raises(ValueError, match=r"on-policy.*`eqrl\.Trainer\.on_policy\(num_"):
        trainer.init(ppo(), Drift(), key=jr.key(0))


def test_sizes_of_a_rollout_are_named() -> None:
    with pytest.raises(ValueError, match="`num_steps=0` must be an integer"):
        eqrl.Trainer.on_policy(num_envs=4, num_steps=0)


def test_an_agent_with_a_replay_refuses_a_rollout() -> None:
    with pytest.raises(
        ValueError, match=r"from a replay.*`eqrl\.Trainer\(num_envs=\d+\)`"
    ):
        TRAINER.init(sac(), Drift(), key=jr.key(0))
    with pytest.raises(ValueError, match="`LatestRows` holds a rollout"):
        TRAINER.replay(1)


def test_skills_one_after_another_need_a_replay() -> None:
    with pytest.raises(ValueError, match=r"learns on-policy.*`eqrl\.SAC`"):
        eqrl.learn_skills(
            eqrl.Intrinsic(ppo(), eqrl.Incremental(descriptor="observation")),
            Drift(),
            TRAINER,
            num_skills=2,
            num_steps=NUM_ENVS * NUM_STEPS,
            key=jr.key(0),
        )
