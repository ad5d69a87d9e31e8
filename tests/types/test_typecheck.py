"""Types are checked where, and as strictly as, the user asks for."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import beartype
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

import eqrl
from eqrl._types import typecheck

from ..typing.copied import ROOT, write_project


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What is set of JAX, which is not set; hooks are taken back."""
    settings: dict[str, Any] = {}
    monkeypatch.setattr(typecheck, "_plays_envs", False)
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    hooks = list(sys.meta_path)
    yield settings
    sys.meta_path[:] = hooks


@pytest.mark.parametrize(
    ("value", "is_on"),
    [("1", True), ("true", True), ("True", True), ("0", False), ("False", False)],
)
def test_the_environment_variable_says_whether_types_are_checked(
    monkeypatch: pytest.MonkeyPatch, value: str, is_on: bool
) -> None:
    hooked: list[str] = []
    monkeypatch.setattr(
        typecheck,
        "install_import_hook",
        lambda package, checker: hooked.append(package),
    )
    monkeypatch.setenv("EQRL_TYPECHECK", value)
    typecheck.check_own_types()
    assert hooked == (["eqrl"] if is_on else [])


@pytest.mark.parametrize("value", ["yes", "2", "eqrl"])
def test_another_value_of_the_environment_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("EQRL_TYPECHECK", value)
    with pytest.raises(ValueError, match=f"`EQRL_TYPECHECK={value}` must be 1 or true"):
        typecheck.check_own_types()


def test_a_function_is_prepared_to_be_checked_at_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[Any] = []

    def prepare(function: Any) -> Any:
        prepared.append(function)
        return function

    monkeypatch.setattr(beartype, "beartype", prepare)
    function = lambda x: x + 1
    checked = typecheck.checked_when_called(function)
    assert function not in prepared
    assert [checked(1), checked(2)] == [2, 3]
    assert prepared.count(function) == 1


def test_a_package_of_ones_own_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "other_lab"
    package.mkdir()
    (package / "__init__.py").write_text("import eqrl; eqrl.typecheck(__name__)")
    importlib.import_module("other_lab")
    (tmp_path / "checked_lab.py").write_text(
        "from jaxtyping import Array, Float\n\n\n"
        'def total(x: Float[Array, " rows"]) -> Float[Array, " rows"]:\n'
        "    return x\n"
    )
    eqrl.typecheck("checked_lab")
    module = importlib.import_module("checked_lab")
    module.total(jnp.zeros(2))
    with pytest.raises(TypeCheckError):
        module.total(np.zeros((2, 1), np.float32))
    with pytest.raises(ValueError, match="`checked_lab` has been imported already"):
        eqrl.typecheck("checked_lab")
    monkeypatch.delitem(sys.modules, "checked_lab")
    monkeypatch.delitem(sys.modules, "other_lab")


def test_strict_sets_the_flags_of_jax_and_plays_environments(
    settings: dict[str, Any],
) -> None:
    eqrl.typecheck("some_lab")
    assert settings == {} and not typecheck.plays_envs()
    eqrl.typecheck("third_lab", strict=True)
    assert settings == {
        "jax_numpy_rank_promotion": "raise",
        "jax_numpy_dtype_promotion": "strict",
        "jax_debug_key_reuse": True,
    }
    assert typecheck.plays_envs()
    eqrl.typecheck(strict=True, play_envs=False)
    assert not typecheck.plays_envs()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("eqrl", "`EQRL_TYPECHECK=1`"),
        ("eqrl.nn", "`EQRL_TYPECHECK=1`"),
        ("my lab", "not the name of a package"),
    ],
)
def test_what_is_no_package_of_ones_own_is_refused(name: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eqrl.typecheck(name)


@pytest.mark.long
def test_a_whole_project_trains_with_all_types_checked_as_strictly_as_can_be(
    tmp_path: Path,
) -> None:
    write_project(tmp_path / "project")
    paths = os.pathsep.join(map(str, (tmp_path / "project", ROOT)))
    program = (
        "import eqrl; eqrl.typecheck('mylab', strict=True); "
        "from mylab import population, train; train.main(); population.main()"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths, "EQRL_TYPECHECK": "1"},
        check=True,
    )
