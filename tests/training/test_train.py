"""The entry point: resuming, cutting short, failing, and compiling once."""

import dataclasses
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl._pytree.tree import giving_away
from eqrl._run.solutions import step_of
from eqrl._training import rows
from eqrl._training.host_loop import asks_to_stop
from eqrl._training.rows import append_row
from eqrl.envs import Point

from ..agents_under_test import (
    ALL_AGENTS,
    THOROUGHLY_TESTED,
    all_finite,
    env_of,
    sac,
    trainer_of,
    with_rates,
)
from ..toy import (
    Clock,
    Drift,
    GetKey,
    Learner,
    Scribe,
    World,
    WorldState,
    interrupt_in_piece,
    same,
)


pytestmark = pytest.mark.checks_keys

TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=60)
# As those of the populations' tests, so that one compilation serves both.
ENV = Point(max_steps=7, goal=(0.3, 0.1))
AGENT = eqrl.Normalized(sac())


def train(num_steps: int, **options: Any) -> eqrl.Solution[Any, Any, Any, Any]:
    options = {"key": jr.key(0), "log_every": 20} | options
    return eqrl.train(AGENT, ENV, TRAINER, num_steps=num_steps, **options)


@pytest.fixture(scope="module")
def whole() -> eqrl.Solution[Any, Any, Any, Any]:
    return train(120)


# The suite of the protocol updates the first ones; of the kinds of TAAC, updates are
# restated in NumPy, and one is trained here with a reward of its own. The last ones are
# made of parts that are trained in others.
TESTED_ELSEWHERE = {
    *THOROUGHLY_TESTED,
    "CIC(SAC)",
    "DADS(SAC)",
    "SAC",
    "Normalized(SAC)",
    "TAAC",
    "TAAC-L",
    "TAAC-Q",
    "Normalized(TAAC)",
    "SAC-fixed-temperature",
    "TD3-AdamW",
    "DIAYN(TD3)-environment",
    "DIAYN(TAAC)",
    "REDQ",
    "DiscreteSAC",
    "DQN",
    "Normalized(DIAYN(DQN))",
    "A2C",
    "AWAC",
    "BC",
    "PPO-discrete",
    "PQN",
    "Normalized(DIAYN(PPO))",
    "DISk(SAC)",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name in TESTED_ELSEWHERE else name
        for name in ALL_AGENTS
    ],
)
def test_every_agent_trains_and_is_saved(
    name: str, getkey: GetKey, tmp_path: Path
) -> None:
    agent = ALL_AGENTS[name]
    env, trainer = env_of(agent), trainer_of(agent, TRAINER)
    solution = eqrl.train(agent, env, trainer, num_steps=60, key=getkey())
    assert int(solution.counts.updates) == (20 if trainer is TRAINER else 3)
    loss = "actor_loss" if name == "BC" else "critic_loss"
    assert np.isfinite(solution.metrics[loss][-1])
    # The same programs, in which the agent diverges.
    diverging = with_rates(agent, 1e30)
    with pytest.raises(
        eqrl.NonFiniteError, match=r"_loss`|agent's|intrinsic_reward`"
    ) as error:
        # The one step that `A2C` makes in 20 leaves weights that are finite, of 1e30.
        log_every = 60 if name == "A2C" else 20
        eqrl.train(
            diverging, env, trainer, num_steps=60, key=getkey(), log_every=log_every
        )
    reached = error.value.solution
    assert all_finite(reached.state)
    again = eqrl.train(agent, env, trainer, num_steps=20, key=getkey(), initial=reached)
    assert all_finite(again.state)
    eqrl.save_solution(tmp_path, again)
    assert same(eqrl.load_solution(tmp_path, agent, env, trainer), again)


def test_two_halves_equal_the_whole_bit_for_bit(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    half = train(60)
    assert same(train(60, initial=half), whole)


def test_halves_may_be_cut_within_the_warm_up(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    first = train(10)
    second = train(110, initial=first)
    assert same(second.trainer_state, whole.trainer_state)
    assert second.metrics["step"].tolist() == [10, 20, 40, 60, 80, 100, 120]


def test_initialization_and_run_have_keys_of_their_own(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    init_key, run_key = (jr.fold_in(jr.key(0), index) for index in (0, 1))
    state, counts = eqrl.jit_init(TRAINER, AGENT, ENV, key=init_key)
    state, _, _ = eqrl.jit_run(
        TRAINER, AGENT, ENV, state, counts, num_steps=120, key=run_key
    )
    assert same(state, whole.trainer_state)


def test_how_often_is_logged_makes_no_difference(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    assert same(train(120, log_every=34).trainer_state, whole.trainer_state)
    assert train(120, log_every=33).metrics["step"].tolist() == [34, 68, 102, 120]


def test_an_initial_solution_stays_usable() -> None:
    half = train(60)
    expected = train(60, initial=half)
    arrays = jax.tree.leaves(eqx.filter(half, eqx.is_array))
    deleted = lambda: [x.is_deleted() for x in arrays if isinstance(x, jax.Array)]
    assert not any(deleted())
    # Unless it is given away: a copy would hold a second replay in memory.
    with giving_away():
        assert same(train(60, initial=half), expected)
    assert half.trainer_state.replay.data.reward.is_deleted()


def test_the_metrics_have_a_row_every_log_every_steps(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    assert whole.metrics["step"].tolist() == [20, 40, 60, 80, 100, 120]
    assert {value.shape for value in whole.metrics.values()} == {(6,)}


def test_no_loss_is_reported_for_the_warm_up(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    assert np.isnan(whole.metrics["critic_loss"]).tolist() == [True] + [False] * 5


def test_episode_lengths_are_reported(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    assert np.all(whole.metrics["episode_length"] == 7)


def test_the_callback_gets_steps_metrics_and_the_solution() -> None:
    steps, losses, rows = [], [], []

    def callback(step: int, metrics: dict[str, Any], solution: Any) -> None:
        steps.append(step)
        losses.append(float(metrics["critic_loss"]))
        data = solution.trainer_state.replay.data
        rows.append(jax.tree.leaves(data)[0].shape)

    solution = train(60, callback=callback)
    assert steps == [20, 40, 60]
    assert np.array_equal(losses, solution.metrics["critic_loss"], equal_nan=True)
    assert rows == [(2, 30, 4)] * 3


def test_a_callback_that_returns_true_ends_training_with_this_row(
    whole: eqrl.Solution[Any, Any, Any, Any], tmp_path: Path
) -> None:
    seen: list[tuple[int, list[int]]] = []

    def keep(
        step: int,
        metrics: dict[str, Any],
        solution: eqrl.Solution[Any, Any, Any, Any],
    ) -> int:
        assert metrics["critic_loss"] is not None
        seen.append((step, solution.metrics["step"].tolist()))
        return 1

    with eqrl.Checkpoints(tmp_path, every_steps=20) as checkpoints:
        stopped = train(
            120,
            callback=[lambda step, metrics, solution: step == 40, keep],
            checkpoint=checkpoints,
        )
    assert seen == [(20, [20]), (40, [20, 40])]
    assert stopped.metrics["step"].tolist() == [20, 40]
    assert same(eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER), stopped)
    assert same(train(80, initial=stopped), whole)


def test_only_a_single_truth_value_asks_to_stop() -> None:
    true = (True, np.bool_(True), jnp.asarray(1.0) > 0, np.asarray(True))
    others = (None, False, 1, 1.0, "stop", [True], np.asarray([1]), jnp.asarray(1))
    assert all(map(asks_to_stop, true))
    assert not any(map(asks_to_stop, others))
    with pytest.raises(ValueError, match=r"shape \(2,\); return one"):
        asks_to_stop(jnp.zeros(2) < 1)


# Evaluations.


def test_evaluations_keep_the_best_policy_and_end_training_out_of_patience() -> None:
    scores = {20: 1.0, 40: 3.0, 60: 3.0, 80: math.nan, 100: 9.0}
    logged: list[tuple[int, dict[str, float]]] = []
    given = iter(scores.values())
    evaluations = eqrl.Evaluations(
        AGENT,
        ENV,
        every=20,
        num_episodes=2,
        key=jr.key(5),
        mode="sample",
        score=lambda agent, state, evaluation: jnp.asarray(next(given)),
        patience=2,
        log=lambda metrics, step: logged.append((step, metrics)),
    )
    solution = train(120, callback=evaluations)
    assert solution.metrics["step"].tolist() == evaluations.steps == [20, 40, 60, 80]
    np.testing.assert_array_equal(evaluations.scores, [1.0, 3.0, 3.0, math.nan])
    best = evaluations.best
    assert best is not None and (best.step, best.score) == (40, 3.0)
    assert same(best.state, train(40).state)
    returns = evaluations.returns[1]
    key = jr.fold_in(jr.key(5), 40)
    options: dict[str, Any] = {"num_episodes": 2, "key": key, "mode": "sample"}
    expected = eqrl.evaluate(AGENT, best.state, ENV, **options)
    assert np.array_equal(returns, expected.returns)
    assert logged[1] == (
        40,
        {
            "evaluation_length": 7.0,
            "evaluation_return": pytest.approx(returns.mean()),
            "evaluation_score": 3.0,
        },
    )


def test_evaluations_end_training_at_their_target_and_resume_with_it() -> None:
    def evaluations(target: float | None) -> eqrl.Evaluations[Any]:
        return eqrl.Evaluations(
            AGENT, ENV, every=50, num_episodes=2, key=jr.key(5), target=target
        )

    whole, first, second = (evaluations(None) for _ in range(3))
    train(120, callback=whole)
    # The first rows that reach 50 and 100.
    assert whole.steps == [60, 100]
    train(60, initial=train(60, callback=first), callback=second)
    assert (first.steps, second.steps) == ([60], [100])
    assert first.scores + second.scores == whole.scores
    # Steps, summed over environments, may exceed 32 bits.
    whole.measure(5 * 10**9, {"step": np.array([4 * 10**9])}, train(60).state)
    assert whole.steps == [60, 100, 5 * 10**9]
    assert train(120, callback=evaluations(whole.scores[0])).metrics["step"][-1] == 60
    above = evaluations(max(whole.scores) + 1)
    assert train(120, callback=above).metrics["step"][-1] == 120


def test_evaluations_are_metrics_and_leave_the_training_as_it_is(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    evaluations, callback = (
        eqrl.Evaluations(AGENT, ENV, every=50, num_episodes=2, key=jr.key(5))
        for _ in range(2)
    )
    given: list[float] = []
    solution = train(
        60,
        initial=train(60, evaluations=evaluations),
        evaluations=evaluations,
        callback=lambda step, row, _: given.append(float(row["evaluation_return"])),
    )
    train(120, callback=callback)
    assert same(solution.trainer_state, whole.trainer_state)
    # Rows end at 20, 40 and so on; those at 60 and 100 reach a multiple of 50.
    returns, nan = [float(x.mean()) for x in callback.returns], math.nan
    expected = [nan, nan, returns[0], nan, returns[1], nan]
    column = solution.metrics["evaluation_return"]
    np.testing.assert_allclose(column, expected)
    np.testing.assert_array_equal(given, column[3:])
    np.testing.assert_array_equal(solution.metrics["evaluation_length"][2], 7)
    assert (evaluations.steps, evaluations.scores) == (callback.steps, callback.scores)
    best, other = evaluations.best, callback.best
    assert best is not None and other is not None and same(best.state, other.state)
    ending = eqrl.Evaluations(
        AGENT, ENV, every=50, num_episodes=2, key=jr.key(5), target=-1e9
    )
    assert train(120, evaluations=ending).metrics["step"].tolist() == [20, 40, 60]


def test_evaluations_of_vector_rewards_ask_for_a_score() -> None:
    with pytest.raises(ValueError, match="give a `score`"):
        eqrl.Evaluations(Learner(), Clock(reward_size=2), every=20, key=jr.key(0))


def test_evaluations_without_a_time_limit_are_refused() -> None:
    endless = Clock(has_limit=False)
    with pytest.raises(ValueError, match=r"no time limit .*put an `eqrl.envs.TimeLim"):
        eqrl.Evaluations(Learner(), endless, every=20, key=jr.key(0))


def test_steps_that_are_no_whole_number_of_iterations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`num_steps=61`.*60 and 62"):
        train(61)


def test_a_log_every_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="`log_every=0`"):
        train(60, log_every=0)


# Checkpoints.


def test_training_goes_on_from_the_newest_checkpoint(
    whole: eqrl.Solution[Any, Any, Any, Any], tmp_path: Path
) -> None:
    with eqrl.Checkpoints(tmp_path, every_steps=40) as checkpoints:
        train(100, checkpoint=checkpoints)
    assert sorted(int(item.name) for item in tmp_path.iterdir()) == [40, 80]
    newest = eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER)
    assert newest.metrics["step"].tolist() == [20, 40, 60, 80]
    assert same(train(40, initial=newest), whole)


def test_checkpoints_of_a_resumed_training_keep_to_their_steps(
    whole: eqrl.Solution[Any, Any, Any, Any], tmp_path: Path
) -> None:
    def steps() -> list[int]:
        return sorted(int(item.name) for item in tmp_path.iterdir())

    def resume(num_steps: int, **options: Any) -> None:
        solution = eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER)
        options = {"every_steps": 40, "max_to_keep": 3} | options
        with eqrl.Checkpoints(tmp_path, **options) as checkpoints:
            train(num_steps, initial=solution, checkpoint=checkpoints)

    with eqrl.Checkpoints(tmp_path, every_steps=20, max_to_keep=1) as checkpoints:
        train(60, checkpoint=checkpoints)
    assert steps() == [60]
    # A process was killed while it wrote this.
    unfinished = tmp_path / "80.orbax-checkpoint-tmp"
    unfinished.mkdir()
    # From 60 on, not from 0.
    resume(20)
    assert steps() == [60]
    assert not unfinished.exists()
    resume(60)
    assert steps() == [60, 100]
    resume(20, every_steps=20)
    assert steps() == [60, 100, 120]
    newest = eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER)
    assert same(newest, whole)
    resume(20, every_steps=20)
    assert steps() == [100, 120, 140]
    # A complete training is resumed, and what is there is saved again.
    with eqrl.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER))
    assert steps() == [100, 120, 140]
    with eqrl.Checkpoints(tmp_path / "other") as checkpoints:
        checkpoints.save(newest)
        # What is saved is there at once.
        assert (tmp_path / "other" / "120").exists()


def test_checkpoints_of_another_training_are_refused_at_its_first_row(
    whole: eqrl.Solution[Any, Any, Any, Any], tmp_path: Path
) -> None:
    def kept() -> dict[str, bytes]:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    with eqrl.Checkpoints(tmp_path, every_steps=40) as checkpoints:
        checkpoints.save(train(40))
        # One object cannot serve two trainings either.
        with pytest.raises(ValueError, match="holds step 40 of another training"):
            train(20, checkpoint=checkpoints)
    before = kept()
    rows: list[int] = []
    count = lambda step, metrics, state: rows.append(step)
    # By steps and by the clock, before and beyond the step that is there.
    given: tuple[tuple[dict[str, Any], int], ...] = (
        ({"every_steps": 40}, 20),
        ({"every_seconds": 0}, 20),
        ({"every_seconds": 60}, 20),
        ({"every_steps": 40}, 120),
    )
    for options, log_every in given:
        with (
            eqrl.Checkpoints(tmp_path, **options) as checkpoints,
            pytest.raises(ValueError, match=r"holds step 40 .* this one, which is at"),
        ):
            train(
                120,
                key=jr.key(7),
                log_every=log_every,
                callback=count,
                checkpoint=checkpoints,
            )
    assert rows == [20, 20, 20, 120]
    with eqrl.Checkpoints(tmp_path) as checkpoints:
        for other in (train(40, key=jr.key(7)), train(20)):
            with pytest.raises(ValueError, match="each needs a folder of its own"):
                checkpoints.save(other)
    assert kept() == before
    # What is saved by hand is no training.
    eqrl.save(tmp_path, 50, jnp.zeros(1))
    with eqrl.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match="holds step 50 of another training"):
            checkpoints.save(whole)


def test_a_checkpoint_that_cannot_be_written_is_one_warning(
    whole: eqrl.Solution[Any, Any, Any, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eqrl._run.solutions.begin_save", fail)
    with eqrl.Checkpoints(tmp_path, every_seconds=0) as checkpoints:
        with pytest.warns(UserWarning, match="training continues: .*No space left"):
            checkpoints(120, {}, whole)
        checkpoints(120, {}, whole)
        with pytest.raises(OSError, match="No space left"):
            checkpoints.save(whole)
    errors: list[Exception] = []
    with eqrl.Checkpoints(
        tmp_path, every_seconds=0, on_error=errors.append
    ) as checkpoints:
        checkpoints(120, {}, whole)
        checkpoints(120, {}, whole)
    assert [type(error) for error in errors] == [OSError]
    monkeypatch.undo()
    # The error of a checkpoint does not prevent the next one.
    with eqrl.Checkpoints(
        tmp_path, every_seconds=0, on_error=errors.append
    ) as checkpoints:
        monkeypatch.setattr(checkpoints._manager, "wait_until_finished", fail)
        checkpoints(120, {}, whole)
    assert len(errors) == 2
    eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER, step=120)


# Ctrl-C.


def interrupt_at(step: int) -> Callable[..., None]:
    def callback(now: int, metrics: dict[str, Any], solution: Any) -> None:
        del metrics, solution
        if now == step:
            signal.raise_signal(signal.SIGINT)

    return callback


def test_ctrl_c_hands_over_what_was_reached() -> None:
    with pytest.raises(eqrl.TrainingInterrupted) as error:
        train(120, callback=interrupt_at(60))
    assert same(error.value.solution, train(60))


def test_training_goes_on_after_ctrl_c_as_if_nothing_had_been(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    with pytest.raises(eqrl.TrainingInterrupted) as error:
        train(120, callback=interrupt_at(40))
    assert same(train(80, initial=error.value.solution), whole)


def test_ctrl_c_at_the_last_row_hands_over_the_whole(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    with pytest.raises(eqrl.TrainingInterrupted) as error:
        train(120, callback=interrupt_at(120))
    assert same(error.value.solution, whole)


# The first row, whose steps are random; a row of updates; and the last step.
@pytest.mark.parametrize("number", [3, 13, 58])
def test_ctrl_c_within_a_row_loses_nothing(
    whole: eqrl.Solution[Any, Any, Any, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    with (
        monkeypatch.context() as patched,
        pytest.raises(eqrl.TrainingInterrupted) as error,
    ):
        interrupt_in_piece(patched, number)
        train(120)
    reached = error.value.solution
    assert reached.unfinished is not None
    assert step_of(reached) == 2 * (number + 1)
    eqrl.save_solution(tmp_path, reached)
    loaded = eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER)
    assert same(loaded, reached)
    assert same(train(120 - step_of(loaded), initial=loaded), whole)


def test_pieces_take_a_second_and_grow_by_and_by() -> None:
    pace = rows.Pace(None)
    sizes = []
    # A millisecond an iteration, then a hundred.
    for seconds in (1e-3, 1e-3, 1e-3, 0.1, 0.1):
        sizes.append(pace.next(5_000, 0))
        pace.add(sizes[-1], 0, sizes[-1] * seconds)
    assert sizes == [1, 16, 256, 1_000, 10]
    # Random steps have a length of their own, and the row and they end.
    assert pace.next(5_000, 300) == 1
    pace.add(1, 300, 0.0)
    pace.add(16, 299, 0.0)
    pace.add(256, 283, 0.0)
    assert (pace.next(5_000, 40), pace.next(20, 40)) == (40, 20)
    assert (pace.next(5_000, 0), pace.next(3, 0)) == (10, 3)


def test_what_a_piece_costs_at_any_length_is_a_fifth_of_it_at_most() -> None:
    # Two seconds, as copies of large replays, and a tenth for each iteration.
    pace = rows.Pace(None)
    sizes = []
    for _ in range(16):
        sizes.append(pace.next(5_000, 0))
        pace.add(sizes[-1], 0, 2 + 0.1 * sizes[-1])
    assert all(70 <= size <= 80 for size in sizes[5:])
    # An iteration of many seconds is a piece of its own.
    pace = rows.Pace(None)
    for _ in range(10):
        number = pace.next(5_000, 0)
        pace.add(number, 0, 20.0 * number)
        assert number == 1
    # Rows end anywhere, and times are noisy.
    random, pace = np.random.default_rng(0), rows.Pace(None)
    for _ in range(1_000):
        number = pace.next(int(random.integers(1, 30)), 0)
        pace.add(number, 0, (2 + 0.1 * number) * random.uniform(0.5, 2))
        sizes.append(number)
    assert np.mean(sizes[-500:]) > 5


def test_a_row_of_another_training_is_not_finished(
    whole: eqrl.Solution[Any, Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        monkeypatch.context() as patched,
        pytest.raises(eqrl.TrainingInterrupted) as error,
    ):
        interrupt_in_piece(patched, 1)
        train_breaking(20)
    row = error.value.solution.unfinished
    with pytest.raises(ValueError, match=r"`initial\.unfinished` "):
        train(20, initial=dataclasses.replace(whole, unfinished=row))


# What is not finite.


def train_breaking(
    num_steps: int, agent: Learner | None = None, initial: Any = None, **options: Any
) -> Any:
    return eqrl.train(
        agent or Learner(),
        World(**options),
        TRAINER,
        num_steps=num_steps,
        key=jr.key(0),
        log_every=20,
        initial=initial,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"reward": np.nan},
        {"reward": np.inf},
        {"observation": -np.inf},
        {"descriptor": np.nan},
    ],
    ids=["nan reward", "infinite reward", "infinite observation", "nan descriptor"],
)
def test_the_step_at_which_something_is_not_finite_is_reported(
    options: dict[str, Any],
) -> None:
    # Two environments: row 33 begins behind 66 environment steps.
    with pytest.raises(eqrl.NonFiniteError, match="environment step 66") as error:
        train_breaking(120, at=33, **options)
    assert error.value.step == 66


class Blinding(World):
    """What critics see is not finite behind the step `at`."""

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(
            observation_size=2,
            action_size=1,
            state_descriptor_size=1,
            critic_observation_size=1,
        )

    def critic_observation(self, state: WorldState) -> Float[Array, "1"]:
        return jnp.where(state.num_steps == self.at + 1, jnp.nan, 0.0)[None]


def test_what_critics_see_is_reported_at_its_step() -> None:
    with pytest.raises(eqrl.NonFiniteError, match="environment step 66"):
        eqrl.train(
            Learner(),
            Blinding(at=33),
            TRAINER,
            num_steps=120,
            key=jr.key(0),
            log_every=20,
        )


def test_nothing_reached_before_something_was_not_finite_is_lost() -> None:
    with pytest.raises(eqrl.NonFiniteError) as error:
        train_breaking(120, at=33, reward=np.nan)
    reached, expected = error.value.solution, train_breaking(66)
    assert same(reached.trainer_state.agent, expected.trainer_state.agent)
    assert same(reached.trainer_state.replay, expected.trainer_state.replay)
    assert same(reached.counts, expected.counts)


def test_training_goes_on_from_where_something_was_not_finite(
    compilations: list[str],
) -> None:
    trainer = eqrl.Trainer(
        num_envs=2, batch_size=4, warmup_steps=20, capacity=60, steps_per_iteration=4
    )
    options: dict[str, Any] = {"key": jr.key(0), "log_every": 24}
    with pytest.raises(eqrl.NonFiniteError) as error:
        # Row 33 is in the middle of an iteration.
        eqrl.train(
            Learner(),
            World(at=33, reward=np.nan),
            trainer,
            num_steps=120,
            **options,
        )
    # What compiles is seen to: no other test has this trainer.
    assert compilations
    solution = eqrl.train(
        Learner(),
        World(),
        trainer,
        num_steps=40,
        initial=error.value.solution,
        **options,
    )
    assert int(solution.counts.rows_written) == 33 + 20


@pytest.mark.parametrize(
    ("rate", "what", "step"),
    [
        # The second update, in the twelfth row, has an infinite loss.
        (1e30, "`loss`", 24),
        # The first one leaves nan to the policy, whose next action it is.
        (np.nan, "the agent's state or action", 22),
    ],
)
def test_an_agent_that_diverged_goes_back_to_the_beginning_of_the_row(
    rate: float, what: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However short the pieces are in which the row runs.
    monkeypatch.setattr(rows, "_SECONDS_OF_PIECE", 0.0)
    before = train_breaking(20)
    with pytest.raises(eqrl.NonFiniteError, match=f"step {step} {what}") as error:
        train_breaking(120, Learner(actor_lr=rate))
    reached = error.value.solution
    assert (error.value.step, error.value.what) == (step, what)
    assert same(reached.state, before.state)
    assert int(reached.counts.rows_written) == step // 2
    assert int(reached.counts.updates) == 0
    assert reached.metrics["nonfinite"].tolist() == [0, 18]
    again = train_breaking(40 - step, initial=reached)
    assert int(again.counts.updates) == 20 - step // 2
    assert np.isfinite(again.metrics["loss"][-1])


def test_what_the_last_update_spoiled_is_not_returned() -> None:
    with pytest.raises(eqrl.NonFiniteError, match="step 22 the agent's state"):
        train_breaking(22, Learner(actor_lr=np.nan))


def test_training_does_not_begin_with_a_state_that_is_not_finite() -> None:
    solution = train_breaking(20)
    spoiled = eqx.tree_at(
        lambda solution: solution.trainer_state.agent.weight,
        solution,
        solution.state.weight * np.nan,
    )
    with pytest.raises(ValueError, match=r"begins with nan or infinity in `.weight`"):
        train_breaking(20, initial=spoiled)


class BreakingForSome(World):
    """Its reward is not finite at the fifth step, in the half of all episodes."""

    def reset(self, *, key: PRNGKeyArray) -> tuple[WorldState, Float[Array, "2"]]:
        state, observation = World.reset(self, key=key)
        begin = 10 * jr.randint(jr.fold_in(key, 1), (), 0, 2)
        return WorldState(drift=state.drift, num_steps=begin), observation


def test_a_failed_seed_stays_as_it_was_while_others_go_on(
    getkey: GetKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, env = Scribe(), BreakingForSome(at=5, reward=np.nan)
    trainer = eqrl.Trainer(num_envs=1, batch_size=4, warmup_steps=4, capacity=100)
    key = getkey()

    def run(num_steps: int, initial: Any = None) -> eqrl.Solution[Any, Any, Any, Any]:
        return eqrl.train_seeds(
            agent,
            env,
            trainer,
            num_seeds=6,
            num_steps=num_steps,
            key=key,
            initial=initial,
            log_every=10,
            members="together",
        )

    solution = run(60)
    rewards = np.asarray(solution.trainer_state.replay.data.reward)[:, 0, :60]
    failed = np.asarray(solution.trainer_state.failed)
    assert 0 < failed.sum() < 6
    # Rewards of this environment are below 0, and what was never stored is 0.
    assert np.all(rewards[~failed] < 0)
    assert np.all(rewards[failed, :5] < 0) and np.all(rewards[failed, 5:] == 0)
    # The first of the updates came before the failure.
    assert np.array_equal(solution.state.num_updates, np.where(failed, 1, 56))
    lost = solution.metrics["nonfinite"].sum(axis=0)
    assert np.array_equal(lost, np.where(failed, 55, 0))
    # The row in which they failed is interrupted behind that.
    with (
        monkeypatch.context() as patched,
        pytest.raises(eqrl.TrainingInterrupted) as error,
    ):
        interrupt_in_piece(patched, 7)
        run(60)
    eqrl.save_solution(tmp_path, error.value.solution)
    loaded = eqrl.load_solution(tmp_path, agent, env, trainer)
    assert np.array_equal(loaded.trainer_state.failed, failed)
    assert same(run(52, loaded), solution)


# What does not fit.


def test_a_solution_of_another_agent_is_refused(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    with pytest.raises(ValueError, match="`initial` is of another kind"):
        eqrl.train(sac(), ENV, TRAINER, num_steps=60, key=jr.key(0), initial=whole)


def test_a_solution_of_another_number_of_environments_is_refused(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    trainer = eqrl.Trainer(num_envs=4, batch_size=4, warmup_steps=20, capacity=120)
    with pytest.raises(ValueError, match=r"`initial` does not fit.*not of shape"):
        eqrl.train(AGENT, ENV, trainer, num_steps=60, key=jr.key(0), initial=whole)


# Seeds.


def test_a_seed_equals_its_training_alone_bit_for_bit_and_metrics_have_an_axis(
    getkey: GetKey,
) -> None:
    key = getkey()
    seeds = eqrl.train_seeds(
        Learner(),
        World(),
        TRAINER,
        num_seeds=3,
        num_steps=60,
        key=key,
        log_every=20,
    )
    alone = eqrl.train(
        Learner(), World(), TRAINER, num_steps=60, key=jr.split(key, 3)[1]
    )
    member = jax.tree.map(lambda x: x[1], seeds.trainer_state)
    assert same(member, alone.trainer_state)
    assert seeds.metrics["step"].shape == (3,)
    assert seeds.metrics["episode_return"].shape == (3, 3)


def test_seeds_go_on_from_an_earlier_call_and_from_disk_bit_for_bit(
    tmp_path: Path,
) -> None:
    def seeds(num_steps: int, **options: Any) -> Any:
        given: dict[str, Any] = {"num_seeds": 3, "log_every": 20} | options
        return eqrl.train_seeds(
            Learner(),
            World(),
            TRAINER,
            num_steps=num_steps,
            key=jr.key(0),
            **given,
        )

    whole, first = seeds(60), seeds(20)
    assert same(seeds(40, initial=first), whole)
    # What it went on from stays usable; from disk it comes without their number.
    eqrl.save_solution(tmp_path, first)
    loaded = eqrl.load_solution(tmp_path, Learner(), World(), TRAINER)
    assert same(loaded, first)
    eqrl.save(tmp_path, 100, jnp.zeros(1))
    with pytest.raises(ValueError, match=r"Step 100 of .* holds no solution"):
        eqrl.load_solution(tmp_path, Learner(), World(), TRAINER)
    assert whole.metrics["episode_return"].shape == (3, 3)
    with pytest.raises(ValueError, match=r"holds 3 seeds, but `num_seeds=2`"):
        seeds(40, initial=first, num_seeds=2)
    alone = jax.tree.map(lambda x: x[0], first.trainer_state)
    single = eqrl.Solution(alone, first.counts, {})
    with pytest.raises(ValueError, match=r"holds a single training, but"):
        seeds(40, initial=single)
    wide = eqx.tree_at(lambda s: s.trainer_state.agent.weight, first, jnp.zeros((3, 9)))
    with pytest.raises(ValueError, match=r"`initial` does not fit this agent"):
        seeds(40, initial=wide)


def test_seeds_are_evaluated_apart_and_end_together() -> None:
    options: dict[str, Any] = {"num_seeds": 3, "log_every": 20, "key": jr.key(0)}

    def seeds(num_steps: int, **others: Any) -> Any:
        return eqrl.train_seeds(
            Learner(), World(), TRAINER, num_steps=num_steps, **options, **others
        )

    def evaluations(**others: Any) -> eqrl.Evaluations[Any]:
        given: dict[str, Any] = {"every": 20, "num_episodes": 2, "mode": "sample"}
        given |= others
        return eqrl.Evaluations(Learner(), Drift(), key=jr.key(5), **given)

    logged: list[dict[str, float]] = []
    # A score that differs from the mean return.
    score = lambda agent, state, evaluation: state.weight.sum()
    by_weight = evaluations(score=score, log=lambda row, step: logged.append(row))
    whole = seeds(60)
    resumed = seeds(40, initial=seeds(20, evaluations=by_weight), evaluations=by_weight)
    assert same(resumed.trainer_state, whole.trainer_state)
    scores = resumed.metrics["evaluation_score"]
    weights = np.asarray(whole.state.weight.sum(axis=1))
    np.testing.assert_allclose(scores[-1], weights, rtol=1e-6)
    assert logged[-1]["evaluation_score"] == pytest.approx(weights.mean())
    for seed, best in enumerate(by_weight.best_of_seeds):
        assert best is not None and best.score == scores[:, seed].max()
        assert best.step == 20 * (scores[:, seed].argmax() + 1)
        assert float(best.state.weight.sum()) == pytest.approx(best.score)
    # The best of all is that of the highest score, whenever it was.
    any_seed = evaluations()
    earlier, later = eqrl.BestPolicy(20, 5.0, None), eqrl.BestPolicy(40, 1.0, None)
    any_seed.best_of_seeds = [earlier, later]
    assert any_seed.best is earlier
    # Each has episodes of its own, which the member alone plays likewise.
    keys = jr.split(jr.fold_in(jr.key(5), 60), 3)
    column = resumed.metrics["evaluation_return"]
    assert len(set(column[-1].tolist())) == 3
    for seed, returns in enumerate(by_weight.returns[-1]):
        state = eqrl.member(whole.state, seed)
        alone = eqrl.evaluate(
            Learner(), state, Drift(), num_episodes=2, key=keys[seed], mode="sample"
        )
        np.testing.assert_allclose(returns, alone.returns, rtol=1e-6)
        assert column[-1, seed] == pytest.approx(float(alone.returns.mean()))
    # A target that all have reached ends training, and that of a single seed does not.
    worst, first_score = scores.max(axis=0).min(), scores[0].max()
    reached = (np.maximum.accumulate(scores, axis=0) >= worst).all(axis=1)
    ended = seeds(60, evaluations=evaluations(score=score, target=float(worst)))
    assert ended.metrics["step"][-1] == 20 * (reached.argmax() + 1)
    # Scores have 32 bits.
    tenths = evaluations(score=lambda *_: jnp.float32(0.9), target=0.9)
    tenths.measure(20, {}, eqrl.member(whole.state, 0))
    assert tenths.ends_training
    with pytest.raises(ValueError, match="`score` must be one number"):
        evaluations(score=lambda agent, state, evaluation: evaluation.returns).measure(
            20, {}, eqrl.member(whole.state, 0)
        )
    single = evaluations(score=score, target=float(first_score))
    assert seeds(60, evaluations=single).metrics["step"][-1] == 60
    told = eqx.filter_vmap(lambda x, n: eqrl.Evaluation(x, n, None))(
        jnp.array([[1.0, 3.0], [5.0, 7.0], [0.0, 2.0]]),
        jnp.array([[1, 2], [3, 4], [5, 6]]),
    )
    stub: Any = lambda *_: (told, told.returns.mean(axis=1))
    single._evaluate = stub
    row = single.measure(20, {}, whole.state, jnp.zeros(3, bool))
    assert row["evaluation_return"].tolist() == [2, 6, 1]
    assert row["evaluation_length"].tolist() == [1.5, 3.5, 5.5]
    # Nor do the others wait for one that diverged, which has no score.
    others = evaluations(score=score, target=-1_000_000_000)
    failed = jnp.array([True, False, False])
    row = others.measure(20, {}, whole.state, failed)
    assert np.isnan(row["evaluation_return"]).tolist() == [True, False, False]
    assert others.ends_training and others.best_of_seeds[0] is None
    with pytest.raises(ValueError, match="argument `evaluations`"):
        seeds(20, callback=evaluations())


def test_callbacks_of_other_trainings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    evaluations = eqrl.Evaluations(AGENT, ENV, every=1, num_episodes=1, key=jr.key(0))
    wrong: dict[str, Any] = {
        "each generation by itself": evaluations,
        "`eqrl.save_skills` saves": eqrl.Checkpoints(tmp_path),
        "instance of `PopulationSolution`": eqrl.PopulationProgressBar(2, 10),
    }
    for message, callback in wrong.items():
        with pytest.raises(ValueError, match=message):
            callback(20, {}, object())


def test_no_seeds_are_refused(getkey: GetKey) -> None:
    with pytest.raises(ValueError, match="`num_seeds=0`"):
        eqrl.train_seeds(AGENT, ENV, TRAINER, num_seeds=0, num_steps=60, key=getkey())


# On disk.


def test_a_solution_goes_on_from_disk_bit_for_bit(
    whole: eqrl.Solution[Any, Any, Any, Any], tmp_path: Path
) -> None:
    half = train(60)
    eqrl.save_solution(tmp_path, half)
    with pytest.raises(ValueError, match="already"):
        eqrl.save_solution(tmp_path, half)
    eqrl.save_solution(tmp_path, half, overwrite=True)
    loaded = eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER, 60)
    assert same(loaded, half)
    assert same(train(60, initial=loaded), whole)
    with pytest.raises(ValueError, match=rf"in `{tmp_path}/\d+` does not fit `like`"):
        eqrl.load_solution(tmp_path, sac(), ENV, TRAINER)


def test_steps_are_told_without_metrics(
    whole: eqrl.Solution[Any, Any, Any, Any],
) -> None:
    assert step_of(eqrl.Solution(whole.trainer_state, whole.counts, {})) == 120


def test_only_solutions_are_saved_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where types are checked at run time, that finds it first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"`solution` is a int.*`eqrl.save_skills`"):
        eqrl.save_solution(tmp_path, 3)  # pyright: ignore[reportArgumentType]


# Compilation.


def test_a_second_training_of_the_same_shapes_compiles_nothing(
    compilations: list[str],
) -> None:
    def run(seed: int) -> None:
        agent = eqrl.Normalized(sac(actor_lr=1e-3 * (seed + 1)))
        env = Point(max_steps=7, goal=(0.3, 0.1), step_size=0.1 * (seed + 1))
        trainer = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=60)
        eqrl.train(agent, env, trainer, num_steps=60 + 20 * seed, key=jr.key(seed))

    run(0)
    compilations.clear()
    run(1)
    assert compilations == []


def test_a_second_evaluation_of_the_same_shapes_compiles_nothing(
    compilations: list[str], getkey: GetKey
) -> None:
    agent, env = Learner(), Drift()
    states = [agent.init(env.spec, key=getkey()) for _ in range(2)]
    keys = [getkey() for _ in range(2)]
    eqrl.evaluate(agent, states[0], env, num_episodes=2, key=keys[0])
    compilations.clear()
    eqrl.evaluate(agent, states[1], env, num_episodes=2, key=keys[1])
    assert compilations == []


def test_a_metric_that_earlier_rows_lack_is_nan_in_them() -> None:
    history = append_row({}, 10, {"loss": np.array([1.0, 2.0])})
    row = {"loss": np.array([3.0, 4.0]), "accuracy": np.array([0.5, 1.0])}
    history = append_row(history, 20, row)
    np.testing.assert_array_equal(history["step"], [10, 20])
    np.testing.assert_array_equal(history["loss"], [[1, 2], [3, 4]])
    nan = math.nan
    np.testing.assert_array_equal(history["accuracy"], [[nan, nan], [0.5, 1]])
    # One that is gone is kept.
    history = append_row(history, 30, {"accuracy": np.array([0.1, 0.2])})
    np.testing.assert_array_equal(history["loss"], [[1, 2], [3, 4], [nan, nan]])
    np.testing.assert_array_equal(history["accuracy"][2], [0.1, 0.2])
