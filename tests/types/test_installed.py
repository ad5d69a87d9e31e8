"""What is said and done where packages of the extras are not installed."""

import inspect
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.random as jr
import pytest

import eqrl
from eqrl._cli import main
from eqrl._types.installed import needed
from eqrl.envs._base import LIBRARIES
from eqrl.envs._make import _SEARCHED

from ..toy import Clock


_ROOT = Path(__file__).parents[2]

Remove = Callable[..., None]


@pytest.fixture
def remove(monkeypatch: pytest.MonkeyPatch) -> Remove:
    """Has packages not be installed, until the test is over."""

    def remove(*packages: str) -> None:
        for name in [*packages, *sys.modules]:
            if name.partition(".")[0] in packages:
                monkeypatch.setitem(sys.modules, name, None)
        for library in ("brax", "gymnax"):
            # It is imported on first use.
            monkeypatch.delitem(sys.modules, f"eqrl.envs._{library}", raising=False)

    return remove


_ANY: Any = None


# Functions without the checks of types, which would come first.
def _render(env: Any) -> object:
    return inspect.unwrap(eqrl.render)(_ANY, _ANY, env, "x.png", key=jr.key(0))


# What needs which package of which extra.
_NEEDS: dict[str, tuple[str, str, Callable[[], object]]] = {
    "`brax/ant`": ("brax", "brax", lambda: eqrl.envs.make("brax/ant")),
    "`gymnax/Pendulum-v1`": (
        *("gymnax", "gymnax"),
        lambda: eqrl.envs.make("gymnax/Pendulum-v1"),
    ),
    "`xminigrid/MiniGrid-Empty-5x5`": (
        *("xminigrid", "xminigrid"),
        lambda: eqrl.envs.make("xminigrid/MiniGrid-Empty-5x5"),
    ),
    "`playground/CartpoleBalance`": (
        *("mujoco_playground", "playground"),
        lambda: eqrl.envs.make("playground/CartpoleBalance"),
    ),
    "`craftax/Craftax-Symbolic-v1`": (
        *("craftax", "craftax"),
        lambda: eqrl.envs.make("craftax/Craftax-Symbolic-v1"),
    ),
    "`eqrl.envs.BraxEnv`": ("brax", "brax", lambda: eqrl.envs.BraxEnv),
    "`eqrl.envs.GymnaxEnv`": ("gymnax", "gymnax", lambda: eqrl.envs.GymnaxEnv),
    "`draw_skills`": (
        *("matplotlib", "plots"),
        lambda: inspect.unwrap(eqrl.draw_skills)("x.png", _ANY),
    ),
    "`draw_repeats`": (
        *("matplotlib", "plots"),
        lambda: inspect.unwrap(eqrl.draw_repeats)("x.png", _ANY, _ANY),
    ),
    "`draw_schedules`": (
        *("matplotlib", "plots"),
        lambda: inspect.unwrap(eqrl.draw_schedules)("x.png", _ANY),
    ),
    "`draw_family_tree`": (
        *("matplotlib", "plots"),
        lambda: inspect.unwrap(eqrl.draw_family_tree)("x.png", _ANY),
    ),
    # Before an episode is played.
    "`render` of `eqrl/Point`": (
        *("matplotlib", "plots"),
        lambda: _render(eqrl.envs.make("eqrl/Point")),
    ),
}


@pytest.mark.parametrize("what", _NEEDS)
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    what: str, remove: Remove
) -> None:
    package, extra, use = _NEEDS[what]
    remove(package)
    with pytest.raises(ModuleNotFoundError) as raised:
        use()
    assert raised.value.name == package
    assert str(raised.value) == (
        f"{what} needs {package}, which is not installed: "
        f'`pip install "eqrl[{extra}]"`.'
    )


def test_only_modules_of_others_count_as_not_installed() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"named 'eqrl\.nowhere'$"):
        with needed("x", extra="y"):
            raise ModuleNotFoundError(
                "No module named 'eqrl.nowhere'", name="eqrl.nowhere"
            )
    # What a library imports is missing as much as the library.
    with pytest.raises(ModuleNotFoundError, match=r"`x` needs six, .*eqrl\[gymnax\]"):
        with needed("`x`", extra="gymnax"):
            raise ModuleNotFoundError("No module named 'six.moves'", name="six.moves")


def test_names_are_suggested_of_quick_libraries_that_are_installed(
    remove: Remove, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LIBRARIES.keys() < {each for names, _ in _SEARCHED for each in names}
    remove("gymnax")
    monkeypatch.setitem(LIBRARIES, "brax", None)
    with pytest.raises(ValueError, match=r"or `eqrl/`.*Did you mean `eqrl/Point`\?$"):
        eqrl.envs.make("Pont")


def test_an_environment_of_ones_own_is_not_drawn_and_imports_no_library(
    remove: Remove,
) -> None:
    remove("brax", "gymnax")
    own = Clock()
    with pytest.raises(ValueError, match="There is no way to draw a `Clock`"):
        _render(own)


@pytest.mark.parametrize(
    ("args", "package", "message"),
    [
        (["train"], "gymnax", "`gymnax/Pendulum-v1` needs gymnax"),
        (["train", "--env", "brax/ant"], "brax", "`brax/ant` needs brax"),
        (
            ["train", "--env", "eqrl/Point", "--tensorboard"],
            "tensorboardX",
            "`--tensorboard` needs tensorboardX",
        ),
        (["disk", "--tensorboard"], "tensorboardX", "`--tensorboard` needs tens"),
    ],
)
def test_a_command_that_needs_what_is_not_installed_says_so_and_writes_nothing(
    args: list[str],
    package: str,
    message: str,
    remove: Remove,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eqrl._cli.training._train_into", lambda *_: 0)
    remove(package)
    assert main(args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"eqrl: {message}")
    assert 'pip install "eqrl[' in line
    assert os.listdir() == []


def test_extras_hold_what_is_installed_on_demand_and_all_holds_most() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = set(extras)
    together = extras.pop("all")
    # EnvPool takes 741 MB, and few train in all of the others.
    for name in "envpool craftax jumanji navix pgx playground xminigrid".split():
        del extras[name]
    assert together == [f"eqrl[{','.join(sorted(extras))}]"]
    assert {extra for _, extra, _ in _NEEDS.values()} <= known
    always = {requirement.partition(">=")[0] for requirement in project["dependencies"]}
    assert not always & {
        "brax",
        "gymnasium",
        "gymnax",
        "matplotlib",
        "pygame",
        "tensorboardx",
    }
