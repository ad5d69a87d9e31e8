"""Populations of DIAYN on the command line."""

import csv
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl._cli import jobs as _jobs, main, training as _training
from eqrl._cli.commands import parse
from eqrl._pytree.tree import take_element
from eqrl._reporting.statistics import rounded


# Nothing is drawn at random when this agent is greedy, so that an evaluation does not
# depend on its key.
_HEADING = ["pbt", "diayn", "--agent", "tests.disk.heading:Heading"]
_TINY = [
    *("--num-skills", "2", "--max-steps", "5", "--hidden-sizes", "4", "--size", "3"),
    *("--prior", "reward.lr", "loguniform", "1e-4", "1e-2", "--num-episodes", "8"),
    *("--num-replaced", "1", "--num-elite", "1", "--num-generations", "1"),
    *("--steps-per-generation", "20", "--warmup-steps", "10", "--batch-size", "4"),
    *("--capacity", "20"),
]


def _begin(
    agent: Any, env: Any, trainer: Any, pbt: Any, **options: Any
) -> eqrl.PopulationSolution:
    """A population as it begins, ranked, which compiles next to nothing."""
    del trainer
    size, score = options["size"], options["score"]
    agents = pbt.init(agent, size, key=jr.key(0))
    init = eqx.filter_vmap(lambda key: agent.init(env.spec, key=key))
    states = init(jr.split(options["key"], size))
    zero = jnp.zeros((), int)
    played = eqrl.Evaluation(jnp.zeros(8), jnp.zeros(8, int), None)
    first = take_element(states, 0)
    # As a population evaluates its members in turn; a key is not to be used twice.
    eqx.filter_eval_shape(
        lambda: lax.map(lambda _: score(agent, first, played), jnp.zeros(2))
    )
    scores = [
        float(score(agent, take_element(states, index), played))
        for index in range(size)
    ]
    return eqrl.PopulationSolution(
        agents=agents,
        trainer_states=SimpleNamespace(  # pyright: ignore[reportArgumentType]
            agent=states, actors=SimpleNamespace(timestep=np.zeros((size, 1)))
        ),
        counts=eqrl.Counts(zero, zero, zero),
        returns=np.zeros((1, size, 8)),
        descriptors=None,
        hyperparameters={"reward.lr": np.asarray(agents.reward.lr)[None]},
        parents=np.arange(size)[None],
        metrics={"step": np.array([8])},
        scores=np.array([scores]),
    )


@pytest.mark.checks_keys
def test_a_population_of_diayn_is_ranked_and_reported_by_its_skills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writing: Any = importlib.import_module("eqrl._run.write")
    labels = []
    names = []

    def draw(path: Path, *args: object, **options: object) -> None:
        names.append((path.touch(), options.get("names")))

    for name in ("draw_schedules", "draw_family_tree", "draw_skills"):
        monkeypatch.setattr(writing, name, draw)
    monkeypatch.setattr(
        writing,
        "draw_learning_curve",
        lambda path, *args, label, **options: labels.append((path.touch(), label)),
    )
    monkeypatch.setattr(_jobs, "train_population", _begin)
    nothing = lambda *args, **options: np.zeros((3, 64))
    monkeypatch.setattr(_training, "returns_of_policies", nothing)
    folder = tmp_path / "x"
    assert main([*_HEADING, *_TINY, "--folder", str(folder)]) == 0
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    scores = [float(row["score"]) for row in rows]
    assert len(set(scores)) == 3
    best = int(np.argmax(scores))
    assert json.loads((folder / "evaluation.json").read_text())["best"] == best
    skills = json.loads((folder / "skills.json").read_text())
    assert (skills["member"], skills["num_episodes"]) == (best, 8)
    np.testing.assert_allclose(
        np.mean(skills["diversity_returns"]), scores[best], rtol=1e-5
    )
    assert (folder / "skills.png").is_file()
    assert names[-1][1] == ("x", "y")
    assert [label for _, label in labels] == ["score"]
    out = capsys.readouterr().out
    assert "accuracy of the discriminator: " in out
    assert "mean return" not in out and f"best member, {best} with" in out
    score = rounded(scores[best])
    assert f"diversity return of 8 episodes of each skill: {score}" in out


def test_what_the_environment_pays_counts_in_the_ranking_as_in_the_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def take(agent: Any, env: Any, *args: object, **options: Any) -> None:
        given.update(agent=agent, env=env, score=options["score"])
        raise ValueError("This is as far as it has to come.")

    monkeypatch.setattr(_jobs, "train_population", take)
    goal = ["--environment-weight", "2", "--env-option", "goal=(1,1)"]
    assert main([*_HEADING, *_TINY, *goal, "--folder", str(tmp_path / "x")]) == 2
    agent, env = given["agent"], given["env"]
    state = agent.init(env.spec, key=jr.key(0))
    played = eqrl.evaluate_skills(agent, state, env, num_episodes=8, key=jr.key(1))
    task = np.mean(played.returns)
    assert task < -1
    expected = np.mean(played.diversity_returns) + 2 * task
    score = float(given["score"](agent, state, None))
    assert score == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.long
def test_a_population_of_diayn_trains(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    assert main([*_HEADING, *_TINY, "--folder", str(folder)]) == 0
    assert (folder / "skills.png").is_file()
    assert main(["render", str(folder), "--skill", "1"]) == 2
    agent = ["--agent", "tests.disk.heading:Heading"]
    assert main(["render", str(folder), "--skill", "1", *agent]) == 0


def test_options_of_a_population_of_diayn_are_those_of_the_agent_within() -> None:
    command: Any = parse(["pbt", "diayn", "--agent", "td3", "--policy-delay", "3"])
    run = command.run
    assert (run.agent, run.settings.env) == ("diayn", "eqrl/Point")
    assert run.name == "pbt-diayn-eqrl-Point"
    assert (run.schedule.steps_per_generation, run.schedule.num_episodes) == (4_000, 4)
    agent = run.make_agent()
    assert agent.agent.agent.policy_delay == 3
    where = run.schedule.make_pbt(agent, run.priors).where
    inner = agent.agent.agent
    assert where(agent) == (inner.actor_lr, inner.critic_lr, inner.discount)
