import csv
import json
import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl._reporting.learning_curve import _known_returns, draw_learning_curve
from eqrl._reporting.tensorboard import TensorBoard
from eqrl._run import (
    Run,
    Settings,
    Training,
    claim_folder,
    read_config,
    states_of_seeds,
    write_config,
    write_evaluation,
    write_solution,
)
from eqrl._run.files import atomic_write
from tests.toy import GetKey


_RUN = Run(
    agent="td3",
    agent_options={"actor_lr": 0.01, "policy_delay": 3},
    trainer_options={
        "num_envs": 2,
        "batch_size": 4,
        "capacity": 64,
        "warmup_steps": 20,
    },
    settings=Settings(
        env="eqrl/Point",
        max_steps=5,
        hidden_sizes=(8,),
        normalize=True,
    ),
    schedule=Training(num_steps=60, seeds=2, log_every=20),
)


@pytest.fixture(scope="module")
def solution() -> Any:
    """Two seeds as they begin, with metrics that are made up."""
    init = eqx.filter_vmap(
        lambda key: _RUN.make_trainer().init(
            _RUN.make_agent(), _RUN.make_env(), key=key
        ),
        out_axes=(eqx.if_array(0), None),
    )
    state, counts = eqx.filter_jit(init)(jr.split(jr.key(0)))
    losses = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
    metrics = {
        "step": np.array([20, 40, 60]),
        "critic_loss": losses,
        "episode_return": -losses,
    }
    return eqrl.Solution(trainer_state=state, counts=counts, metrics=metrics)


@pytest.fixture(scope="module")
def folder(solution: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_config(folder, _RUN)
    write_solution(folder, _RUN, solution)
    return folder


def _rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_config_holds_the_whole_run(folder: Path) -> None:
    assert read_config(folder) == _RUN


def test_config_names_the_version(folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text())["eqrl"] == "0.1.0"


def test_options_reach_the_agent() -> None:
    agent = _RUN.make_agent()
    assert isinstance(agent, eqrl.Normalized)
    assert isinstance(agent.agent, eqrl.TD3)
    assert agent.agent.policy_delay == 3


def test_an_unknown_agent_or_a_number_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="`agent='ppo'` must be one of 'sac', "):
        Run("ppo", {}, {}, Settings(), Training())
    for name in ("num_steps", "seeds"):
        with pytest.raises(ValueError, match=f"`{name}=0` must be .* at least 1"):
            Run("sac", {}, {}, Settings(), Training(**{name: 0}))


def test_metrics_have_a_row_for_each_seed_and_log_row(folder: Path) -> None:
    steps = [(row["seed"], row["step"]) for row in _rows(folder)]
    assert steps == [(seed, step) for seed in "01" for step in ("20", "40", "60")]


def test_metrics_hold_what_was_measured(folder: Path, solution: Any) -> None:
    losses = np.array([float(row["critic_loss"]) for row in _rows(folder)])
    expected = solution.metrics["critic_loss"].T.reshape(-1)
    np.testing.assert_array_equal(losses, expected)


def test_a_loaded_run_is_what_was_learned(folder: Path, solution: Any) -> None:
    for seed in (0, 1):
        _, state, _ = eqrl.load_run(folder, seed)
        assert eqx.tree_equal(state, states_of_seeds(solution, 2)[seed])
        leaves = jax.tree.leaves(state)
        assert not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def test_a_loaded_run_can_be_evaluated(folder: Path, getkey: GetKey) -> None:
    agent, state, env = eqrl.load_run(folder)
    evaluation = eqrl.evaluate(agent, state, env, num_episodes=3, key=getkey())
    np.testing.assert_array_equal(evaluation.lengths, [5, 5, 5])


def test_the_state_of_a_seed_is_its_own(solution: Any) -> None:
    biases = [
        state.agent.actor.network.layers[0].bias
        for state in states_of_seeds(solution, 2)
    ]
    stacked = solution.state.agent.actor.network.layers[0].bias
    np.testing.assert_array_equal(np.stack(biases), stacked)


def test_of_one_seed_the_state_has_no_axis_of_seeds(solution: Any) -> None:
    (state,) = states_of_seeds(solution, 1)
    assert state is solution.state


def test_a_seed_that_was_not_trained_is_an_error(folder: Path) -> None:
    for seed in (-1, 2):
        with pytest.raises(ValueError, match=f"`seed={seed}` is not .* seeds 0 to 1"):
            eqrl.load_run(folder, seed)


def test_a_folder_or_a_config_of_something_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not the folder of a run"):
        eqrl.load_run(tmp_path)
    for text in ("{", "[]", "{}", '{"eqrl": "9", "settings": {}}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="is not as this version of eqrl writes"):
            eqrl.load_run(tmp_path)


def test_evaluation_holds_the_returns_of_each_seed(tmp_path: Path) -> None:
    returns = np.array([[1.0, 2.0], [3.0, 5.0]])
    write_evaluation(tmp_path, returns, step=7, mode="greedy")
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {
        "step": 7,
        "mode": "greedy",
        "num_episodes": 2,
        "mean_returns": [1.5, 4.0],
        "returns": [[1.0, 2.0], [3.0, 5.0]],
    }


def test_evaluation_writes_nan_as_null(tmp_path: Path) -> None:
    write_evaluation(tmp_path, np.array([[1.0, np.nan]]), step=7, mode="greedy")
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["returns"] == [[1.0, None]]


def test_a_folder_with_something_in_it_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="is there already and not empty"):
        claim_folder(tmp_path)


def test_a_folder_and_those_above_it_are_made(tmp_path: Path) -> None:
    claim_folder(tmp_path / "runs" / "x")
    assert (tmp_path / "runs" / "x").is_dir()


def _write_half(path: Path) -> None:
    with atomic_write(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt


def test_a_file_stays_as_it_was_where_writing_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("whole")
    with pytest.raises(KeyboardInterrupt):
        _write_half(path)
    assert path.read_text() == "whole"


def test_interrupted_writing_leaves_nothing_else_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _write_half(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_learning_curve_leaves_out_rows_without_an_episode() -> None:
    nan = np.nan
    metrics = {
        "step": np.array([10, 20, 30]),
        "episode_return": np.array([[nan, nan], [1.0, nan], [2.0, np.inf]]),
    }
    steps, returns = _known_returns(metrics)
    np.testing.assert_array_equal(steps, [20, 30])
    np.testing.assert_array_equal(returns, [[1, nan], [2, nan]])


@pytest.mark.parametrize(
    "returns",
    [np.ones(3), np.ones((3, 2)), np.full(3, math.nan)],
    ids=["one seed", "two seeds", "no episode"],
)
def test_learning_curve_is_a_png(tmp_path: Path, returns: np.ndarray) -> None:
    metrics = {"step": np.array([10, 20, 30]), "episode_return": returns}
    draw_learning_curve(tmp_path / "curve", metrics, title="SAC")
    assert (tmp_path / "curve").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_has_the_metrics_of_each_seed(tmp_path: Path) -> None:
    row = {"first": np.array([1.0, math.nan]), "second": np.array([math.nan, 2.0])}
    with TensorBoard(tmp_path, num_seeds=2) as write:
        write(10, row, None)
    written = [
        next((tmp_path / f"seed_{seed}").iterdir()).read_bytes() for seed in (0, 1)
    ]
    found = [[name in events for name in (b"first", b"second")] for events in written]
    assert found == [[True, False], [False, True]]


def test_the_figure_of_a_run_is_closed(folder: Path) -> None:
    del folder
    pyplot = pytest.importorskip("matplotlib.pyplot")
    assert pyplot.get_fignums() == []
