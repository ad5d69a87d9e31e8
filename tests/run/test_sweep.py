"""Sweeps: as `train_seeds`, whatever trains side by side, and resumed bit for bit."""

import contextlib
import csv
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
from jaxtyping import Array

import eqrl
from eqrl._population.prior import find_path, make_settings
from eqrl._run import write
from eqrl._run.sweep import _Plan
from eqrl._storage.files import locked

from ..toy import Drift, Learner


pytestmark = pytest.mark.checks_keys

NAN = np.nan
ENV = Drift()
TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=60)
GRID = {"actor_lr": [1e-3, NAN, 1e-2], "batch_size": [4, 8]}
Solution = eqrl.SweepSolution[Any, Any]


def sweep(agent: Any = None, **options: Any) -> Solution:
    defaults = {"grid": GRID, "num_seeds": 2, "members_at_once": 2, "num_steps": 100}
    return eqrl.sweep(
        Learner() if agent is None else agent,
        ENV,
        TRAINER,
        key=jr.key(0),
        log_every=19,
        num_episodes=3,
        **(defaults | options),
    )


@pytest.fixture(scope="module")
def whole() -> Solution:
    return sweep()


def assert_same(one: Solution, other: Solution) -> None:
    """Compares all that is in both, to the last bit."""
    np.testing.assert_array_equal(one.scores, other.scores)
    np.testing.assert_array_equal(one.fresh_scores, other.fresh_scores)
    assert str(one) == str(other)
    for name in ("states", "metrics"):
        leaves = [jax.tree.leaves(getattr(each, name)) for each in (one, other)]
        for x, y in zip(*leaves, strict=True):
            np.testing.assert_array_equal(x, y)


def test_each_setting_is_trained_as_by_train_seeds(whole: Solution) -> None:
    alone = eqrl.train_seeds(
        Learner(actor_lr=1e-2),
        ENV,
        TRAINER,
        num_seeds=2,
        num_steps=100,
        key=jr.key(0),
        log_every=19,
    )
    # It is scored by the mean return of as many greedy episodes as asked for.
    evaluation_key = jr.split(jr.fold_in(jr.key(0), 2**31 - 1), 4)[1]
    for seed, key in enumerate(jr.split(evaluation_key, 2)):
        state = eqrl.member(alone.state, seed)
        played = eqrl.evaluate(Learner(), state, ENV, num_episodes=3, key=key)
        np.testing.assert_allclose(
            whole.scores[4, seed], played.returns.mean(), rtol=1e-5
        )
    assert whole.settings[4] == {"actor_lr": 1e-2, "batch_size": 4}
    assert eqx.tree_equal(alone.state, whole.states[4])
    assert alone.metrics.keys() == whole.metrics[4].keys()
    for name, values in alone.metrics.items():
        np.testing.assert_array_equal(values, whole.metrics[4][name])
    # Other batches, with the same seeds.
    assert not eqx.tree_equal(alone.state, whole.states[5])
    np.testing.assert_array_equal(
        whole.metrics[4]["episode_return"][0], whole.metrics[5]["episode_return"][0]
    )


def test_a_setting_alone_is_what_it_is_in_the_sweep(whole: Solution) -> None:
    one = sweep(Learner(actor_lr=1e-2), grid=None)
    np.testing.assert_array_equal(one.scores[0], whole.scores[4])
    assert eqx.tree_equal(one.states[0], whole.states[4])
    assert one.labels == ("as given",)


def test_how_many_train_side_by_side_makes_no_difference(whole: Solution) -> None:
    # The six are trained by threes, which parts the seeds of a setting.
    some = sweep(members_at_once=4, grid={"actor_lr": GRID["actor_lr"]})
    np.testing.assert_array_equal(some.scores, whole.scores[::2])
    for index in range(3):
        assert eqx.tree_equal(some.states[index], whole.states[2 * index])
        for name, values in whole.metrics[2 * index].items():
            np.testing.assert_array_equal(some.metrics[index][name], values)


def test_a_setting_that_diverges_is_a_row(whole: Solution) -> None:
    assert np.isnan(whole.scores).tolist() == [[i in (2, 3)] * 2 for i in range(6)]
    assert whole.table["diverged"] == [0, 0, 2, 2, 0, 0]
    assert whole.best is not None and whole.best not in (2, 3)
    # It is as it was before, and its curve ends.
    assert np.all(np.isfinite(whole.states[2].weight))
    nonfinite = whole.metrics[2]["nonfinite"]
    assert np.all(nonfinite[1] > 0) and np.isnan(nonfinite[2:]).all()
    # The second score of the best is of other episodes.
    assert np.all(whole.fresh_scores != whole.scores[whole.best])
    short = sweep(grid={"actor_lr": [1e-3]}, evaluation_env=Drift(max_steps=1))
    assert np.all(short.scores[0] > whole.scores[0])
    only = sweep(grid={"actor_lr": [NAN]})
    assert only.best is None and np.isnan(only.fresh_scores).all()
    np.testing.assert_array_equal(
        only.metrics[0]["nonfinite"], whole.metrics[2]["nonfinite"]
    )


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_after(rows: int) -> Callable[[int, int], None]:
    seen = []

    def progress(done: int, total: int) -> None:
        assert total == 6 * 2 * 100
        seen.append(done)
        if len(seen) == rows:
            raise Killed

    return progress


def test_a_sweep_that_is_killed_again_and_again_resumes_to_the_same_table(
    whole: Solution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "write_picture", lambda *args, **options: None)
    folder = tmp_path / "sweep"
    options: dict[str, Any] = {"folder": folder, "checkpoint_every": 20}
    times: dict[Path, int] = {}
    # In the first part, between two rows of the third, and in the last. A part has five
    # rows, one where all diverge.
    for rows, num_finished in ((1, 0), (8, 2), (11, 5)):
        with pytest.raises(Killed):
            sweep(progress=killed_after(rows), **options)
        finished = {x: x.stat().st_mtime_ns for x in (folder / "trained").glob("*")}
        assert len(finished) == num_finished
        # What was finished is not trained again.
        assert times.items() <= finished.items()
        times = finished
    rows_left: list[int] = []
    last = sweep(progress=lambda done, total: rows_left.append(done), **options)
    assert len(rows_left) <= 22 - 5 - 1 - 5 - 1 - 5
    assert_same(last, whole)
    # Another call only reads, without a lock, and also where seeds run together by
    # default, as on a GPU.
    with monkeypatch.context() as gpu, locked(folder):
        gpu.setattr(
            "eqrl._run.sweep.choose_members",
            lambda members, mesh: members or "together",
        )
        assert_same(sweep(progress=killed_after(1), **options), whole)
    whole.write_csv(tmp_path / "whole.csv")
    table = (folder / "settings.csv").read_bytes()
    assert table == (tmp_path / "whole.csv").read_bytes()
    assert str(write.read_sweep(folder)) == str(whole)
    assert not (folder / "unfinished").exists()


def test_a_resumed_sweep_has_the_same_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "write_picture", lambda *args, **options: None)
    # The ten are trained by threes, the last alone.
    options: dict[str, Any] = {
        "grid": {"actor_lr": [1e-3, 2e-3, 3e-3, 4e-3, 5e-3]},
        "members_at_once": 3,
        "folder": tmp_path / "sweep",
        "checkpoint_every": 20,
    }

    def done_until(last: int) -> list[int]:
        seen = []

        def progress(done: int, total: int) -> None:
            seen.append(done)
            if done == last < total:
                raise Killed

        with contextlib.suppress(Killed):
            sweep(progress=progress, **options)
        return seen

    in_third, in_last = 600 + 3 * 40, 900 + 40
    assert done_until(in_third)[-1] == in_third
    # Each call begins at the checkpoint of the row before.
    resumed = done_until(in_last)
    assert (resumed[0], resumed[-1]) == (in_third, in_last)
    assert done_until(1_000) == [in_last, 960, 980, 1_000]


def test_a_sweep_resumes_on_another_number_of_devices(
    whole: Solution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "write_picture", lambda *args, **options: None)
    train_part = _Plan.train_part

    def train_wider(self: _Plan, pairs: Any, width: int, before: int) -> Any:
        # As where more devices have equal shares.
        return train_part(self, pairs, width + 1, before)

    options: dict[str, Any] = {"folder": tmp_path / "sweep", "checkpoint_every": 20}
    with monkeypatch.context() as wider, pytest.raises(Killed):
        wider.setattr(_Plan, "train_part", train_wider)
        sweep(progress=killed_after(2), **options)
    assert [*(tmp_path / "sweep" / "unfinished").rglob("record*")]
    assert_same(sweep(**options), whole)


def sum_of_weights(agent: Any, state: Any, evaluation: Any) -> Array:
    del agent, evaluation
    return jnp.sum(state.weight)


def test_fresh_seeds_train_the_best_setting_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "write_picture", lambda *args, **options: None)
    done: list[int] = []
    options: dict[str, Any] = {
        "grid": {"actor_lr": [1e-3, 1e-2]},
        "num_fresh_seeds": 3,
        "score": sum_of_weights,
        "folder": tmp_path / "sweep",
    }
    one = sweep(progress=lambda steps, total: done.append(steps), **options)
    assert done[-1] == (2 * 2 + 3) * 100
    weights = [np.sum(state.weight, axis=1) for state in one.states]
    np.testing.assert_allclose(one.scores, weights, rtol=1e-6)
    # Policies that had only played other episodes would score as before.
    assert len({*one.scores[one.best], *one.fresh_scores}) == 2 + 3
    assert_same(sweep(progress=killed_after(1), **options), one)


def test_the_table_has_the_statistics_of_numpy(tmp_path: Path) -> None:
    scores = np.random.default_rng(1).normal(size=(3, 5)) + np.array([[0], [2], [1]])
    scores[0, 1] = NAN
    fresh = np.array([0.5, 1.5, 1.0])
    made = eqrl.SweepSolution(
        settings=(
            {"lr": 0.1, "low": -1.0},
            {"lr": 0.2},
            {"lr": jnp.array(0.25)},
        ),
        scores=scores,
        fresh_scores=fresh,
        metrics=({}, {}, {}),
        center="mean",
        agents=(),
        states=(),
    )
    assert made.best == 1
    table: dict[str, Any] = made.table
    draws = np.random.default_rng(0).integers(5, size=(2_000, 5))
    low, high = np.quantile(scores[1][draws].mean(axis=1), [0.025, 0.975])
    assert table["low"][1] == pytest.approx(low)
    assert table["high"][1] == pytest.approx(high)
    assert table["mean"] == pytest.approx(np.nanmean(scores, axis=1).tolist())
    assert table["iqm"][1] == pytest.approx(np.sort(scores[1])[1:4].mean())
    assert table["fresh_mean"] == pytest.approx([NAN, 1.0, NAN], nan_ok=True)
    assert table["lr"] == [0.1, 0.2, 0.25]
    # The name of a statistic.
    assert table["hyperparameter_low"][0] == -1.0
    made.write_csv(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert float(rows[1]["low"]) == table["low"][1]
    assert rows[0]["fresh_low"] == "" and rows[0]["diverged"] == "1"
    eqrl.draw_sweep(tmp_path / "sweep.png", made)
    assert (tmp_path / "sweep.png").stat().st_size > 0


def test_a_figure_names_fresh_scores_if_there_are_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "eqrl._reporting.sweep.save_figure", lambda figure, path: drawn.append(figure)
    )
    for fresh in (1.0, NAN):
        made = eqrl.SweepSolution(
            settings=({"lr": 0.1},),
            scores=np.ones((1, 2)),
            fresh_scores=np.full(2, fresh),
            metrics=({},),
            center="mean",
            agents=(),
            states=(),
        )
        eqrl.draw_sweep("sweep.png", made)
    legends = [figure.axes[0].get_legend() for figure in drawn]
    texts = [text.get_text() for text in legends[0].get_texts()]
    assert texts == ["center of seeds", "fresh scores"]
    assert legends[1] is None


def test_the_interval_is_that_of_the_center(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "eqrl._reporting.sweep.save_figure", lambda figure, path: drawn.append(figure)
    )
    scores = np.random.default_rng(2).exponential(size=(2, 8))
    for center in ("mean", "iqm"):
        made = eqrl.SweepSolution(
            settings=({"lr": 0.1, 60 * "x": 1.0}, {"lr": 0.2}),
            scores=scores,
            fresh_scores=scores[0],
            metrics=({}, {}),
            center=center,
            agents=(),
            states=(),
        )
        low, high = eqrl.bootstrap_interval(scores, center=center)
        table: dict[str, Any] = made.table
        assert table["low"] == low.tolist() and table["high"] == high.tolist()
        best = int(np.argmax(table[center]))
        assert made.best == best and table["fresh_low"][best] == low[0]
        eqrl.draw_sweep("sweep.png", made)
        axes = drawn[-1].axes[0]
        # The best one is at the top, and its interval is that of the table.
        assert axes.yaxis_inverted()
        ends = axes.lines[1].get_xdata()
        np.testing.assert_allclose(ends, [low[best], high[best]], rtol=1e-12)
        assert ("interquartile" in axes.get_xlabel()) == (center == "iqm")
    # Long labels leave the axes their width.
    drawn[-1].draw_without_rendering()
    assert axes.get_window_extent().width > 0.3 * drawn[-1].bbox.width


def test_settings_are_ordered_by_lost_seeds_then_center_then_mean() -> None:
    rows = [[9, 9, 9, NAN], [1, 1, 1, 1], [0, 2, 2, 2], [1, 2, 2, 2], [NAN] * 4]
    made = eqrl.SweepSolution(
        settings=tuple({"lr": float(index)} for index in range(5)),
        scores=np.array(rows, float),
        fresh_scores=np.full(4, NAN),
        metrics=tuple({"step": np.array([index])} for index in range(5)),
        center="iqm",
        agents=(),
        states=(),
    )
    assert made.order == (3, 2, 1, 0, 4)
    assert made.best == 3
    assert [*made.curves] == ["lr=3.0", "lr=2.0", "lr=1.0", "lr=0.0", "lr=4.0"]


def test_draws_lie_in_their_priors_and_do_not_depend_on_how_many_there_are() -> None:
    priors = {"actor_lr": eqrl.LogUniform(1e-4, 1e-2), "discount": eqrl.Uniform(0.9, 1)}

    def drawn(number: int, saved: Any = ()) -> list[dict[str, Any]]:
        grid = {"batch_size": [4, 8]}
        made = make_settings(
            eqrl.SAC(), TRAINER, grid, priors, number, key=jr.key(0), saved=saved
        )
        for each in made:
            for name in priors:
                value: Any = each.values[name]
                assert float(getattr(each.agent, name)) == np.float32(value)
            assert each.trainer.batch_size == each.values["batch_size"]
        return [each.values for each in made]

    three = drawn(3)
    assert len(three) == 6 and drawn(2) == three[:4]
    # What another processor rounded otherwise is kept, and nothing else.
    other = [{**each, "actor_lr": each["actor_lr"] * (1 + 1e-6)} for each in three]
    assert drawn(3, other) == other != three
    changed = [{**each, "actor_lr": each["actor_lr"] * (1 + 1e-4)} for each in three]
    assert drawn(3, changed) == three
    rates: set[Any] = {each["actor_lr"] for each in three}
    assert len(rates) == 3 and all(1e-4 <= rate <= 1e-2 for rate in rates)


def test_fields_are_found_by_the_end_of_their_path() -> None:
    agent = eqrl.Normalized(eqrl.SAC(make_critic=eqrl.nn.Critic((8,))))
    for name, path in {
        "actor_lr": "agent.actor_lr",
        "agent.discount": "agent.discount",
        "clip": "clip",
        "make_critic.hidden_sizes": "agent.make_critic.hidden_sizes",
        "num_envs": "trainer.num_envs",
    }.items():
        assert find_path(agent, TRAINER, name) == path
    grid = {"hidden_sizes": [(4,), (16,)], "num_envs": [4]}
    trainer = eqrl.Trainer.on_policy(num_envs=2, num_steps=8)
    made = make_settings(
        eqrl.PPO(make_critic=eqrl.nn.Value((8,))),
        trainer,
        grid,
        {},
        None,
        key=jr.key(0),
    )
    agents: list[Any] = [each.agent for each in made]
    assert [each.make_critic.hidden_sizes for each in agents] == [(4,), (16,)]
    assert made[0].trainer == eqrl.Trainer.on_policy(num_envs=4, num_steps=8)
    # Values that fit only together are given together, whatever their order.
    disk = eqrl.Intrinsic(eqrl.SAC(), eqrl.Incremental())
    for names in (("num_samples", "k"), ("k", "num_samples")):
        pair = {name: [2] for name in names}
        [changed] = make_settings(disk, TRAINER, pair, {}, None, key=jr.key(0))
        reward: Any = changed.agent
        assert (reward.reward.num_samples, reward.reward.k) == (2, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"lr": [1.0]}}, "There is no hyperparameter `lr`.* actor_lr,"),
        ({"grid": {"actor_lr": 1.0}}, "must be a list of values"),
        ({"grid": {"actor_lr": []}}, "must be a list of values"),
        ({"grid": {"actor_lr": [1, 2.0, 1.0]}}, "'actor_lr'.. has 1.0 twice.* seeds"),
        ({"grid": {"batch_size": [jnp.array(4)] * 2}}, "has .* twice"),
        ({"grid": {"batch_size": [4, 0]}}, "'batch_size': 0} is wrong: `batch_size=0`"),
        ({"grid": {"num_envs": [2, 3]}}, "'num_envs': 3} is wrong: `num_steps=100`"),
        ({"grid": {"num_envs": [3]}}, "^`num_steps=100` must be a whole number"),
        ({"priors": {"actor_lr": eqrl.Uniform}}, "do not fit"),
        ({"num_draws": 3}, "`num_draws=3` and `priors` of nothing do not fit"),
        ({"priors": {"actor_lr": 3}, "num_draws": 2}, "actor_lr.*given twice"),
        ({"grid": {}, "priors": {"actor_lr": 3}, "num_draws": 2}, "AbstractPrior"),
        (
            {"priors": {"num_envs": eqrl.Uniform(1, 2)}, "num_draws": 1},
            "put it into the `grid`",
        ),
        ({"num_seeds": 0}, "`num_seeds=0` must be an integer"),
        ({"num_steps": 0}, "`num_steps=0` must be an integer, at least 1"),
        ({"score": lambda agent, state, evaluation: evaluation.returns}, "one number"),
        ({"center": "median"}, "must be one of 'mean', 'iqm'"),
        ({"progress": lambda done: None}, "`progress="),
    ],
)
def test_what_does_not_fit_is_refused_before_any_training(
    options: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # As users call it, whose arguments nothing checks before.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    trained = lambda done, total: pytest.fail(f"trained {done} of {total}")
    with pytest.raises(ValueError, match=message):
        sweep(**{"progress": trained, "folder": tmp_path, **options})
    assert not [*tmp_path.iterdir()]


def test_a_prior_out_of_range_and_a_bad_folder_are_refused(tmp_path: Path) -> None:
    priors = {"discount": eqrl.Uniform(0.5, 1.5)}
    with pytest.raises(ValueError, match="The prior of `discount` is wrong"):
        make_settings(eqrl.SAC(), TRAINER, {}, priors, 1, key=jr.key(0))
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ValueError, match="is not empty, and holds no sweep"):
        sweep(folder=tmp_path)


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    # Empty folders are left by a run that was stopped before its first row.
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(Killed):
        sweep(folder=tmp_path, progress=killed_after(1))
    with pytest.raises(ValueError, match="holds another sweep: its `settings`"):
        sweep(folder=tmp_path, grid={"actor_lr": [1.0]})
    with pytest.raises(ValueError, match="its `num_seeds` is 2, not 3"):
        sweep(folder=tmp_path, num_seeds=3)
    # Arrays of an environment, of which its text shows only the shapes.
    disabled, other = (eqrl.envs.DisabledActions(ENV, which) for which in ([0], []))
    assert repr(disabled) == repr(other)
    folder, progress = tmp_path / "arrays", killed_after(1)
    with pytest.raises(Killed):
        sweep(folder=folder, evaluation_env=disabled, progress=progress)
    with pytest.raises(
        ValueError, match="holds another sweep: its `arrays_of_evaluation_env`"
    ):
        sweep(folder=folder, evaluation_env=other)
