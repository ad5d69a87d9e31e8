import csv
import dataclasses
import inspect
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest

import eqrl
from eqrl._reporting.progress import TensorBoard
from eqrl._run import write
from eqrl._run.config import (
    Population,
    Run,
    Settings,
    Training,
    read_config,
    write_config,
)
from eqrl._run.files import atomic_write, claim_folder
from eqrl._run.load import best_policy, read_summary
from eqrl._run.write import (
    GrowingMetrics,
    draw_solution,
    read_metrics,
    states_of_seeds,
    write_evaluation,
    write_policies,
)
from eqrl.nn._product import products_of_bfloat16
from tests.reporting.made import population
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
    state, _ = eqx.filter_jit(init)(jr.split(jr.key(0)))
    # 60 steps of two environments.
    counts = eqrl.Counts(*(jnp.asarray(number) for number in (20, 30, 0)))
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
    write_policies(folder, solution)
    draw_solution(folder, _RUN.title, solution)
    return folder


def _rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_config_holds_the_whole_run(folder: Path) -> None:
    assert read_config(folder) == _RUN


def test_config_says_how_products_of_bfloat16_run(tmp_path: Path) -> None:
    settings = dataclasses.replace(_RUN.settings, precision="bfloat16")
    run = dataclasses.replace(_RUN, settings=settings)
    write_config(tmp_path, run)
    assert read_config(tmp_path) == run
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["products"] == products_of_bfloat16()


def test_config_names_the_versions(folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    assert (content["eqrl"], content["jax"]) == ("0.1.0", jax.__version__)


def test_options_reach_the_agent() -> None:
    agent = _RUN.make_agent()
    assert isinstance(agent, eqrl.Normalized)
    assert isinstance(agent.agent, eqrl.TD3)
    assert agent.agent.policy_delay == 3


def test_an_unknown_agent_or_a_number_below_one_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="`agent='a2c'` must be one of 'csf', 'discrete-sac', "
    ):
        Run("a2c", {}, {}, Settings(), Training())
    for name, training in (
        ("num_steps", Training(num_steps=0)),
        ("seeds", Training(seeds=0)),
    ):
        with pytest.raises(ValueError, match=f"`{name}=0` must be .* at least 1"):
            Run("sac", {}, {}, Settings(), training)


def test_metrics_have_a_row_for_each_seed_and_log_row(folder: Path) -> None:
    steps = [(row["seed"], row["step"]) for row in _rows(folder)]
    assert steps == [(seed, step) for step in ("20", "40", "60") for seed in "01"]


def test_metrics_hold_what_was_measured(folder: Path, solution: Any) -> None:
    losses = np.array([float(row["critic_loss"]) for row in _rows(folder)])
    expected = solution.metrics["critic_loss"].reshape(-1)
    np.testing.assert_array_equal(losses, expected)


def test_a_loaded_run_is_what_was_learned(folder: Path, solution: Any) -> None:
    for seed in (0, 1):
        _, state, _ = eqrl.load_run(folder, seed)
        assert eqx.tree_equal(state, states_of_seeds(solution)[seed])
        leaves = jax.tree.leaves(state)
        assert not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def test_a_loaded_run_can_be_evaluated(folder: Path, getkey: GetKey) -> None:
    agent, state, env = eqrl.load_run(folder)
    evaluation = eqrl.evaluate(agent, state, env, num_episodes=3, key=getkey())
    np.testing.assert_array_equal(evaluation.lengths, [5, 5, 5])


def test_a_run_of_a_program_is_loaded_with_its_agent_and_environment(
    solution: Any, tmp_path: Path
) -> None:
    agent, env = _RUN.make_agent(), _RUN.make_env()
    eqrl.save_run(tmp_path / "run", solution, agent, env, title="Mine")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"config.json", "metrics.csv", "learning_curve.png", "policy"}
    assert len(_rows(tmp_path / "run")) == 6
    for seed in (0, 1):
        loaded = eqrl.load_run(tmp_path / "run", seed, agent=agent, env=env)
        assert eqx.tree_equal(loaded, (agent, states_of_seeds(solution)[seed], env))
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"seed": 2}, "has the seeds 0 to 1"),
        ({"env": None}, r"load_run\(folder, agent=agent.*actor_lr=0.01"),
    )
    for given, message in wrong:
        with pytest.raises(ValueError, match=message):
            eqrl.load_run(tmp_path / "run", **({"agent": agent, "env": env} | given))
    with pytest.raises(ValueError, match=r"was written by `eqrl\.save_run`"):
        read_config(tmp_path / "run")
    with pytest.raises(ValueError, match="already and not empty"):
        eqrl.save_run(tmp_path / "run", solution, agent, env)
    eqrl.save_run(tmp_path / "run", solution, agent, env, overwrite=True)


def test_the_run_of_one_seed_has_one_policy(solution: Any, tmp_path: Path) -> None:
    first = jax.tree.map(lambda x: x[0], solution.trainer_state)
    metrics = {"step": np.array([20]), "critic_loss": np.array([0.5])}
    one = eqrl.Solution(trainer_state=first, counts=solution.counts, metrics=metrics)
    agent, env = _RUN.make_agent(), _RUN.make_env()
    eqrl.save_run(tmp_path, one, agent, env)
    assert read_summary(tmp_path) == ("TD3 on eqrl/Point", "seed")
    eqrl.save_run(tmp_path / "skills", one, eqrl.diayn(agent), env)
    title, _ = read_summary(tmp_path / "skills")
    assert title == "Discriminator with TD3 on eqrl/Point"
    assert eqx.tree_equal(
        eqrl.load_run(tmp_path, agent=agent, env=env), (agent, first.agent, env)
    )
    # There is no return to draw.
    assert not (tmp_path / "learning_curve.png").exists()
    empty = eqrl.Solution(trainer_state=first, counts=solution.counts, metrics={})
    offline = eqrl.OfflineSolution(state=first.agent, metrics=metrics)
    with pytest.raises(ValueError, match=r"eqrl\.save\(directory, step"):
        # Without the checks of types, which would come first.
        inspect.unwrap(eqrl.save_run)(tmp_path / "empty", offline, agent, env)
    with pytest.raises(ValueError, match="no row of metrics"):
        eqrl.save_run(tmp_path / "empty", empty, agent, env)
    none = np.zeros((0, 2))
    begun = population(none[..., None], none.astype(int), scores=none)
    with pytest.raises(ValueError, match="has no complete generation"):
        eqrl.save_run(tmp_path / "empty", begun, agent, env)
    assert not (tmp_path / "empty").exists()


def test_the_agent_of_a_run_of_the_command_line_is_not_given(folder: Path) -> None:
    with pytest.raises(ValueError, match="leave `agent` and `env` out"):
        eqrl.load_run(folder, agent=_RUN.make_agent())  # pyright: ignore[reportCallIssue]


def test_the_state_of_a_seed_is_its_own(solution: Any) -> None:
    biases = [
        state.agent.actor.network.layers[0].bias for state in states_of_seeds(solution)
    ]
    stacked = solution.state.agent.actor.network.layers[0].bias
    np.testing.assert_array_equal(np.stack(biases), stacked)


def test_a_seed_that_was_not_trained_is_an_error(folder: Path) -> None:
    for seed in (-1, 2):
        with pytest.raises(ValueError, match=f"`seed={seed}` is not .* seeds 0 to 1"):
            eqrl.load_run(folder, seed)


def test_a_folder_of_something_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not the folder of a run"):
        eqrl.load_run(tmp_path)


def _changed(change: Callable[[Any], object]) -> bytes:
    """The configuration after a change by hand, for which its digest is left out."""
    content = json.loads(json.dumps(_CONFIG))
    change(content)
    return json.dumps(content).encode()


_CONFIG = {
    "eqrl": "0.1.0",
    "agent": "td3",
    "agent_options": {"actor_lr": 0.01},
    "trainer_options": {},
    "settings": {"env": "eqrl/Point", "hidden_sizes": [8]},
    "jax": "0.10.2",
    "training": {},
    "skills": None,
    "priors": [],
}
_WRONG_CONFIGS = {
    b"\xff\xfe": "is damaged: it is not text in UTF-8",
    b"{": "is damaged: it is not JSON",
    b"[" * 100_000: "is damaged: it is nested too deeply",
    b"[]": "it holds a list",
    b"{}": "there is no 'eqrl' in it",
    _changed(lambda c: c["agent_options"].update(wings=2)): "'wings'",
    _changed(lambda c: c["settings"].update(wings=2)): "`wings` is not an option",
    _changed(lambda c: c.update(agent="sac", agent_options={"policy_delay": 2})): (
        "'policy_delay'"
    ),
    _changed(lambda c: c["settings"].update(env=5)): "`env` is 5",
    _changed(lambda c: c["settings"].update(max_steps=0)): "`max_steps=0`",
    _changed(lambda c: c["settings"].update(seed=2**32)): "`seed=4294967296` must be",
    _changed(lambda c: c["settings"].update(max_steps="x")): "`max_steps` is 'x'",
    _changed(lambda c: c["settings"].update(max_steps=True)): "`max_steps` is True",
    _changed(
        lambda c: c["settings"].update(normalize_clip=-1.0)
    ): "`normalize_clip=-1`",
    _changed(lambda c: c["settings"].update(normalize=False, normalize_clip=5.0)): (
        "`normalize_clip=5.0` bounds normalized observations"
    ),
    _changed(lambda c: c["settings"].update(hidden_sizes=5)): "not iterable",
    _changed(lambda c: c["training"].update(seeds=1.5)): "`seeds` is 1.5",
    _changed(lambda c: c["training"].update(seeds=0)): "`seeds=0`",
    _changed(lambda c: c["trainer_options"].update(num_envs="a")): "`num_envs='a'`",
    _changed(lambda c: c.update(priors=[["discount", 2]])): "a prior is",
    _changed(lambda c: c.update(eqrl="9.0", wings=2)): (
        "was saved by eqrl 9.0, newer than this one (0.1.0), which cannot read it"
    ),
}


def test_what_is_wrong_with_a_config_is_one_line_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for content, message in _WRONG_CONFIGS.items():
        path.write_bytes(content)
        with pytest.raises(ValueError) as raised:
            eqrl.load_run(tmp_path)
        text = str(raised.value)
        assert f"`{path}`" in text and message in text
        assert "\n" not in text and len(text) < 500


def test_a_config_of_a_newer_version_is_read_if_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(_changed(lambda c: c.update(eqrl="9.0")))
    assert read_config(tmp_path).settings.hidden_sizes == (8,)


def test_a_changed_number_in_a_config_is_noticed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = (folder / "config.json").read_text()
    path.write_text(text.replace('"actor_lr": 0.01', '"actor_lr": 0.03'))
    with pytest.raises(
        ValueError, match=r"config.json` is damaged: .*`digest` differs"
    ):
        read_config(tmp_path)
    changed = json.loads(path.read_text())
    del changed["digest"]
    path.write_text(json.dumps(changed))
    assert read_config(tmp_path).agent_options["actor_lr"] == 0.03


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("[]", "it holds a list"),
        ("{}", "there is no 'best' in it"),
        ('{"best": "1"}', "`best` is '1'"),
        ('{"best": 8}', "is not a member"),
        ('{"bert": 1}', "'bert'"),
    ],
)
def test_the_best_of_a_population_is_never_guessed(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "evaluation.json").write_text(content)
    run = Run("td3", {}, {}, Settings(), Population())
    with pytest.raises(ValueError, match=rf"evaluation\.json` .*{message}"):
        best_policy(tmp_path, run)


def test_evaluation_holds_the_returns_of_each_seed(tmp_path: Path) -> None:
    returns = np.array([[1.0, 2.0], [3.0, 5.0]])
    write_evaluation(tmp_path, returns, step=7, mode="greedy")
    written = json.loads((tmp_path / "evaluation.json").read_text())
    del written["digest"]
    assert written == {
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


def test_pictures_of_skills_have_the_names_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    drawn: list[Any] = []
    keep = lambda *_, names, **__: drawn.append(names)
    monkeypatch.setattr(write, "write_picture", keep)
    run: Any = SimpleNamespace(agent="diayn", reward_options={}, title="")
    for known, size, expected in (
        (("x", "y"), 2, ("x", "y")),
        (("x", "y", "z"), 3, ("x", "y")),
        # One info that is a vector.
        (("position",), 3, None),
        (None, 1, None),
    ):
        monkeypatch.setattr(write, "descriptor_names", lambda env, known=known: known)
        played: Any = SimpleNamespace(descriptors=np.zeros((2, 1, 3, size)))
        write.draw_skills_of("x", "skills.png", run, eqrl.envs.Point(), played)
        assert drawn.pop() == expected
    # The discriminator is shown something else, whose names are not known.
    monkeypatch.setattr(write, "descriptor_names", lambda env: ("x", "y"))
    played = SimpleNamespace(descriptors=np.zeros((2, 1, 3, 2)))
    for agent, option in (("diayn", "descriptor"), ("smerl", "intrinsic_descriptor")):
        run.agent, run.reward_options = agent, {option: "observation"}
        write.draw_skills_of("x", "skills.png", run, eqrl.envs.Point(), played)
        assert drawn.pop() is None


def test_returns_of_skills_are_means_over_their_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    returns = np.array([[1.0, 3.0], [5.0, 7.0]])
    evaluation: Any = SimpleNamespace(
        accuracy=0.5, diversity_returns=-returns, returns=returns, skills=np.eye(2)
    )
    summary = write.skill_summary(evaluation)
    assert summary["environment_returns"] == [2, 6]
    assert summary["diversity_returns"] == [-2, -6]


def _claimed(folder: Path, *, overwrite: bool = False) -> list[str]:
    """What is in a folder while it is claimed."""
    with claim_folder(folder, overwrite=overwrite):
        return [item.name for item in folder.iterdir()]


def test_a_folder_with_something_in_it_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="is there already and not empty"):
        _claimed(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        _claimed(tmp_path / "thesis.tex")
    (tmp_path / "mine").mkdir()
    mine = tmp_path / "mine" / "config.json"
    for text in ('{"width": 256}', "5"):
        mine.write_text(text)
        for overwrite, message in ((False, "not empty"), (True, "no run wrote its")):
            with pytest.raises(ValueError, match=message):
                _claimed(mine.parent, overwrite=overwrite)
    mine.write_text("width: 256")
    with pytest.raises(ValueError, match="not empty"):
        _claimed(mine.parent)


def test_what_was_stopped_before_its_first_row_is_claimed_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "checkpoints").mkdir()
    assert sorted(_claimed(tmp_path)) == [".lock", "checkpoints", "config.json"]


def test_a_folder_in_which_arrays_would_be_lost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"contains a `\["):
        _claimed(tmp_path / "lr=[0.1]")
    with pytest.raises(ValueError, match=r"contains a `\["):
        eqrl.save(tmp_path / "lr=[0.1]", 0, np.ones(2))
    with pytest.raises(ValueError, match=r"contains a `\\"):
        eqrl.save(f"{tmp_path}/a\\b", 0, np.ones(2))
    assert list(tmp_path.iterdir()) == []


def test_rows_are_written_by_the_names_of_their_metrics(tmp_path: Path) -> None:
    history = {"step": np.array([10]), "b": np.array([1.0]), "a": np.array([2.0])}
    grow = GrowingMetrics(tmp_path, history)
    grow(20, {"a": np.asarray(4.0), "b": np.asarray(3.0)}, None)
    metrics = read_metrics(tmp_path)
    np.testing.assert_array_equal(metrics["a"], [2.0, 4.0])
    # Others than before are columns from the first row on.
    grow(30, {"c": np.asarray(5.0), "b": np.asarray(6.0)}, None)
    grow(40, {"c": np.asarray(7.0), "b": np.asarray(8.0), "a": np.asarray(9.0)}, None)
    metrics = read_metrics(tmp_path)
    np.testing.assert_array_equal(metrics["step"], [10, 20, 30, 40])
    np.testing.assert_array_equal(metrics["a"], [2.0, 4.0, np.nan, 9.0])
    np.testing.assert_array_equal(metrics["b"], [1.0, 3.0, 6.0, 8.0])
    np.testing.assert_array_equal(metrics["c"], [np.nan, np.nan, 5.0, 7.0])
    # None replaces the number of its seed.
    for step in (50, 60):
        grow(step, {"a": np.asarray(1.0), "seed": np.asarray(7.0)}, None)
    metrics = read_metrics(tmp_path)
    np.testing.assert_array_equal(metrics["metric_seed"][-3:], [np.nan, 7.0, 7.0])


def test_a_folder_and_those_above_it_are_made(tmp_path: Path) -> None:
    assert _claimed(tmp_path / "runs" / "x") == [".lock"]
    # The lock's file stays: another process may be about to lock it.
    assert os.listdir(tmp_path / "runs" / "x") == [".lock"]


def test_a_folder_that_a_run_is_writing_is_refused_until_its_end(
    tmp_path: Path, folder: Path
) -> None:
    copied = shutil.copytree(folder, tmp_path / "copied")
    message = "copied` is being written by another process"
    with pytest.raises(ZeroDivisionError), claim_folder(copied, overwrite=True):
        (copied / "config.json").touch()
        for overwrite in (False, True):
            with pytest.raises(ValueError, match=message):
                _claimed(copied, overwrite=overwrite)
        raise ZeroDivisionError
    assert sorted(_claimed(copied)) == [".lock", "config.json"]


_HOLDER = """
import sys
import time
from pathlib import Path

from eqrl._storage.files import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_free_when_the_process_that_held_it_was_killed(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    with pytest.raises(ValueError, match="is being written by another process"):
        _claimed(tmp_path)
    process.kill()
    process.communicate()
    assert _claimed(tmp_path) == [".lock"]


def test_of_many_that_claim_a_folder_at_once_one_has_it(tmp_path: Path) -> None:
    for _ in range(20):
        start, end = threading.Barrier(4), threading.Barrier(4)
        outcomes: list[bool] = []
        threads = [
            threading.Thread(
                target=_try_to_claim, args=(tmp_path, start, end, outcomes)
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [False, False, False, True]


def _try_to_claim(
    folder: Path,
    start: threading.Barrier,
    end: threading.Barrier,
    outcomes: list[bool],
) -> None:
    start.wait()
    try:
        with claim_folder(folder):
            outcomes.append(True)
            end.wait()
    except ValueError:
        outcomes.append(False)
        end.wait()


def test_overwriting_clears_the_files_of_a_run(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "copied")
    assert _claimed(copied, overwrite=True) == [".lock"]


@pytest.mark.parametrize(
    "name", ["metrics.csv.old", "policy/thesis.tex", "policy/seed_0/60/thesis.tex"]
)
def test_overwriting_deletes_nothing_where_there_is_something_else(
    folder: Path, tmp_path: Path, name: str
) -> None:
    copied = shutil.copytree(folder, tmp_path / "copied")
    (copied / name).touch()
    before = sorted(copied.rglob("*"))
    with pytest.raises(ValueError, match=f"holds `{name}`, which no run writes"):
        _claimed(copied, overwrite=True)
    assert sorted(copied.rglob("*")) == before


def test_what_is_not_the_folder_of_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").touch()
    with pytest.raises(ValueError, match=r"there is no `config.json` in it"):
        _claimed(tmp_path, overwrite=True)
    assert (tmp_path / "metrics.csv").is_file()


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


def test_tensorboard_has_the_metrics_of_each_seed(tmp_path: Path) -> None:
    row = {"first": np.array([0.3, math.nan]), "second": np.array([math.nan, 0.7])}
    with TensorBoard(tmp_path) as write:
        # An average over seeds, which comes before the first row.
        write.log({"mean": 0.25}, 5)
        write(10, row, None)
    written = [
        next((tmp_path / f"seed_{seed}").iterdir()).read_bytes() for seed in (0, 1)
    ]
    found = [[name in events for name in (b"first", b"second")] for events in written]
    assert found == [[True, False], [False, True]]
    assert [b"mean" in events for events in written] == [True, False]
    # A number, and the tenth step, as protocol buffers encode them.
    for events, value in zip(written, (0.3, 0.7), strict=True):
        assert struct.pack("<f", value) in events and b"\x10\x0a" in events
    with pytest.raises(ValueError, match=r"with eqrl\.TensorBoard"):
        eqrl.TensorBoard(tmp_path).log({"first": 1.0}, 10)


def test_a_logger_is_given_the_numbers_that_are_known() -> None:
    logged: list[tuple[dict[str, float], int]] = []
    logger = eqrl.Logger(lambda metrics, step: logged.append((metrics, step)))
    logger(10, {"one": np.asarray(0.5), "none": np.asarray(math.nan)}, None)
    logger(20, {"seeds": np.array([1.0, math.inf, 3.0])}, None)
    assert logged == [({"one": 0.5}, 10), ({"seeds/0": 1.0, "seeds/2": 3.0}, 20)]


def test_the_figure_of_a_run_is_closed(folder: Path) -> None:
    del folder
    pyplot = pytest.importorskip("matplotlib.pyplot")
    assert pyplot.get_fignums() == []
