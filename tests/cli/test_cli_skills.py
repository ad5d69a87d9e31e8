import contextlib
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from matplotlib.axes import Axes

import eqrl
from eqrl._cli import main
from eqrl._cli.commands import Train, parse
from eqrl._cli.jobs import print_skills
from eqrl._run.config import write_config
from eqrl._run.files import _OWN_FILES
from eqrl._run.rewards import skill_of
from eqrl._run.write import write_skills


_TINY = [
    *("--env", "eqrl/Point", "--max-steps", "5", "--hidden-sizes", "8"),
    *("--num-steps", "60", "--log-every", "20"),
    *("--warmup-steps", "20", "--batch-size", "4", "--capacity", "64"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that learned three skills with TD3."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    options = ["--agent", "td3", "--num-skills", "3", "--normalize"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        assert main(["train", "diayn", *_TINY, *options, "--folder", str(folder)]) == 0
    assert "accuracy of the discriminator: " in printed.getvalue()
    assert "mean diversity return of 8 episodes of each skill: " in printed.getvalue()
    # Skills have a reward of their own.
    assert "mean return" not in printed.getvalue()
    assert "Every return was 0" not in printed.getvalue()
    return folder


def _parsed_run(*args: str) -> Any:
    command = parse(["train", "diayn", *args])
    assert isinstance(command, Train)
    return command.run


def _agent(*args: str) -> Any:
    return _parsed_run(*args).make_agent()


def test_diayn_alone_learns_skills_of_the_point_with_sac() -> None:
    run = _parsed_run()
    assert (run.agent, run.settings.env) == ("diayn", "eqrl/Point")
    assert run.schedule.num_steps == 40_000
    assert run.trainer_options["batch_size"] == 128
    agent = run.make_agent()
    assert isinstance(agent.agent.agent, eqrl.SAC)
    np.testing.assert_allclose(agent.agent.agent.initial_temperature, 0.1)
    np.testing.assert_allclose(agent.reward.lr, 1e-3)
    assert agent.agent.skills.size == 8


def test_options_are_those_of_the_agent_within() -> None:
    for given in (("--agent", "td3"), ("--agent=td3",)):
        rest = ("--reward-minibatches", "2", "--score-after-update")
        agent = _agent(*given, "--policy-delay", "3", *rest)
        assert (agent.reward_minibatches, agent.score_after_update) == (2, True)
        assert isinstance(agent.agent.agent, eqrl.TD3)
        assert agent.agent.agent.policy_delay == 3


@pytest.mark.parametrize(
    ("kind", "prior", "size"),
    [
        ("one-hot", eqrl.OneHotSkills, 8),
        ("even", eqrl.EvenOneHotSkills, 8),
        ("sphere", eqrl.SphereSkills, 2),
        ("normal", eqrl.NormalSkills, 2),
        ("uniform", eqrl.UniformSkills, 2),
    ],
)
def test_skills_are_of_each_kind(kind: str, prior: type, size: int) -> None:
    for args, expected in (([], size), (["--num-skills", "5"], 5)):
        skills = _agent("--skills", kind, *args).agent.skills
        assert isinstance(skills, prior)
        assert skills.size == expected


def test_options_reach_the_discriminator() -> None:
    agent = _agent(
        *("--descriptor", "both", "--discriminator-lr", "0.5"),
        *("--environment-weight", "0.25", "--no-include-prior"),
    )
    assert agent.reward.descriptor == "both"
    assert agent.reward.lr == 0.5
    assert agent.environment_weight == 0.25
    assert not agent.reward.include_prior


@pytest.mark.parametrize(
    ("args", "expected", "weight"),
    [
        (["apt"], eqrl.ParticleEntropy(1e-3), None),
        (
            ["apt", "--intrinsic-encoder", "--intrinsic-num-features", "3"],
            eqrl.ParticleEntropy(
                1e-3, num_features=3, make_encoder=eqrl.nn.Features((64, 64))
            ),
            None,
        ),
        (["cic"], eqrl.CIC(eqrl.UniformSkills(64, low=0, high=1), 1e-3), None),
        (["dads", "--num-skills", "5"], eqrl.DADS(eqrl.OneHotSkills(5), 1e-3), None),
        (["disagreement"], eqrl.Disagreement(1e-3), None),
        (
            ["icm", "--environment-weight", "2", "--intrinsic-encoder"],
            eqrl.ICM(1e-3, make_encoder=eqrl.nn.Features((64, 64))),
            2.0,
        ),
        (["lsd"], eqrl.LSD(eqrl.SphereSkills(), lr=1e-3), None),
        (
            ["metra", "--intrinsic-constraint", "mean", "--skills", "one-hot"],
            eqrl.METRA(8, 1e-3, 1e-3, constraint="mean"),
            None,
        ),
        (["rnd", "--intrinsic-clip", "3"], eqrl.RND(1e-3, 3.0), None),
        (
            ["smerl", "--intrinsic-target", "7", "--intrinsic-descriptor", "both"],
            eqrl.SMERL(eqrl.Discriminator(5, 1e-3, "both"), 7.0),
            1.0,
        ),
    ],
)
def test_every_reward_has_a_name(
    args: list[str], expected: Any, weight: float | None
) -> None:
    command: Any = parse(["train", *args, "--agent", "td3", "--batch-size", "32"])
    agent = command.run.make_agent()
    networks = (("make_network", eqrl.nn.Features((64, 64))),)
    if isinstance(expected, eqrl.SMERL):
        made = eqrl.nn.CategoricalDiscriminator((64, 64))
        inner = dataclasses.replace(expected.inner, make_network=made)
        expected, networks = dataclasses.replace(expected, inner=inner), ()
    expected = dataclasses.replace(expected, **dict(networks))
    assert bool(eqx.tree_equal(agent.reward, expected))
    assert agent.environment_weight == weight
    is_skilled = isinstance(agent.agent, eqrl.SkillConditioned)
    assert is_skilled == hasattr(expected, "skills")
    assert isinstance(agent.agent.agent if is_skilled else agent.agent, eqrl.TD3)
    assert command.run.title == f"{args[0].upper()} with TD3 on eqrl/Point"
    # The agent's own option keeps its name beside the reward's.
    assert command.run.make_trainer().batch_size == 32


def test_representations_that_are_subtracted_stay_in_float32() -> None:
    def agent_of(name: str) -> Any:
        command: Any = parse(["train", name, "--precision", "bfloat16"])
        return command.run.make_agent()

    for name in ("metra", "lsd"):
        agent = agent_of(name)
        assert agent.reward.make_network.precision == "float32"
        assert agent.agent.agent.make_actor.precision == "bfloat16"
    assert agent_of("cic").reward.make_network.precision == "bfloat16"
    csf: Any = eqrl.unwrap(agent_of("csf"), eqrl.CSF)
    assert csf.make_phi.precision == "float32"
    assert csf.make_actor.precision == csf.make_critic.precision == "bfloat16"


def test_skills_are_drawn_anew_and_smerl_knows_the_returns() -> None:
    command: Any = parse(["train", "cic"])
    assert command.run.make_agent().agent.resample_every == 50
    command = parse(["train", "cic", "--resample-every", "None"])
    assert command.run.make_agent().agent.resample_every is None
    for name, expected in (("smerl", True), ("metra", False)):
        command = parse(["train", name])
        replay = command.run.make_trainer().replay(1)
        assert replay.episode_returns == expected


def test_a_reward_that_cannot_tell_skills_apart_has_no_accuracy(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, state, env = eqrl.load_run(trained)
    evaluation = eqrl.evaluate_skills(agent, state, env, num_episodes=8, key=jr.key(0))
    print_skills([dataclasses.replace(evaluation, accuracy=jnp.array(jnp.nan))])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("mean diversity return of 8 episodes of each skill: ")


def test_a_run_writes_pictures_and_numbers_of_its_skills(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == {
        ".lock",
        "checkpoints",
        "config.json",
        "evaluation.json",
        "learning_curve.png",
        "metrics.csv",
        "policy",
        "skills.json",
        "skills.png",
    }
    assert (trained / "skills.png").read_bytes().startswith(b"\x89PNG")


def test_skills_are_evaluated_one_by_one(trained: Path) -> None:
    written = json.loads((trained / "skills.json").read_text())
    assert written["num_episodes"] == 8
    (seed,) = written["seeds"]
    assert 0 <= seed["accuracy"] <= 1
    assert np.shape(seed["diversity_returns"]) == (3,)
    # Without a goal the point has no reward of its own.
    assert seed["environment_returns"] == [0, 0, 0]
    np.testing.assert_array_equal(seed["skills"], np.eye(3))


def test_a_loaded_run_has_the_skills_that_were_evaluated(trained: Path) -> None:
    agent, state, env = eqrl.load_run(trained)
    _, evaluation_key = jr.split(jr.key(0))
    key = jr.fold_in(jr.fold_in(evaluation_key, 1), 0)
    evaluation = eqrl.evaluate_skills(agent, state, env, num_episodes=8, key=key)
    written = json.loads((trained / "skills.json").read_text())["seeds"][0]
    means = jnp.mean(evaluation.diversity_returns, axis=1)
    np.testing.assert_allclose(means, written["diversity_returns"], rtol=1e-5)


def test_evaluate_plays_such_a_run_and_render_shows_one_skill(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles, agents = [], []
    monkeypatch.setattr(Axes, "set_title", lambda self, title: titles.append(title))
    monkeypatch.setattr(
        "eqrl._cli.finished.render",
        lambda agent, *args, **options: (
            agents.append(agent),
            eqrl.render(agent, *args, **options),
        ),
    )
    assert main(["evaluate", str(trained)]) == 0
    assert main(["render", str(trained), "--skill", "1"]) == 0
    (agent,) = agents
    np.testing.assert_array_equal(agent.agent.skill, jax.nn.one_hot(1, 3))
    skill = "DIAYN with TD3 on eqrl/Point, seed 0, skill 1"
    assert titles == [f"{skill}\n5 steps, return 0.00"]
    path = trained / "episode_of_seed_0_skill_1.png"
    assert path.is_file()
    path.unlink()
    # Skills may be vectors, whose pictures are a run's own, too.
    assert _OWN_FILES.fullmatch("episode_of_seed_0_skill_-1.0_1e-05.png")


def test_a_skill_that_a_run_does_not_have_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for args, skill, message in (
        (["diayn", "--num-skills", "3"], "3", "which are 0 to 2"),
        (["csf"], "0", "vectors from SphereSkills("),
        (["csf"], "nan", "each given by its 2 elements"),
        (["td3"], "0", "TD3 has no skills"),
    ):
        command: Any = parse(["train", *args])
        write_config(tmp_path, command.run)
        assert main(["render", str(tmp_path), "--skill", skill]) == 2
        assert message in capsys.readouterr().err
    parsed: Any = parse(["render", str(tmp_path), "--skill", "-3", "4.0"])
    skill = skill_of(eqrl.SphereSkills(2), parsed.skill)
    np.testing.assert_allclose(skill, [-0.6, 0.8], rtol=1e-6)
    for prior, given in (
        (eqrl.SphereSkills(2), (0.0, 0.0)),
        (eqrl.NormalSkills(2), (np.nan, 0.0)),
        (eqrl.UniformSkills(2), (0.0, 1.5)),
    ):
        with pytest.raises(ValueError, match="is not among the skills"):
            skill_of(prior, given)


def test_skills_of_each_seed_have_a_plot_of_their_own(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, state, env = eqrl.load_run(trained)
    evaluation = eqrl.evaluate_skills(agent, state, env, num_episodes=8, key=jr.key(0))
    labels: list[str] = []
    monkeypatch.setattr(Axes, "set_xlabel", lambda self, text: labels.append(text))
    write_skills(tmp_path, _parsed_run(), env, [evaluation, evaluation])
    assert labels == ["x", "x"]
    names = {"skills.json", "skills_of_seed_0.png", "skills_of_seed_1.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
