"""What the source as a whole must be like, whatever it does."""

import ast
import importlib
import inspect
import os
import pkgutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import pytest

import eqrl


_ROOT = Path(__file__).parents[1]
_SOURCE = _ROOT / "eqrl"
_FILES = sorted(_SOURCE.rglob("*.py"))

# A module imports from lines above its own only; modules side by side do not import
# each other. A package stands here for all that is in it.
_ORDER = (
    ("_types",),
    ("_pytree", "_storage"),
    ("nn",),
    ("losses", "_skills"),
    ("_rewards",),
    ("_agents", "envs"),
    ("_interaction",),
    ("_training",),
    ("_population", "_disk"),
    ("_reporting",),
    ("_run",),
    ("_cli",),
    ("__main__",),
)
_RANKS = {name: rank for rank, names in enumerate(_ORDER) for name in names}


def _name(file: Path) -> str:
    return str(file.relative_to(_SOURCE))


def _part(file: Path) -> str:
    """The module or package right below `eqrl` that a file belongs to."""
    return file.relative_to(_SOURCE).parts[0].removesuffix(".py")


def _imported_parts(file: Path) -> Iterator[str]:
    """Which parts of `eqrl` a file imports, inside functions too."""
    package = ("eqrl", *file.relative_to(_SOURCE).parent.parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level > 0 else ()
            module = [*base, *(node.module.split(".") if node.module else [])]
            paths = [[*module, alias.name] for alias in node.names]
        else:
            continue
        for path in paths:
            if path[0] == "eqrl":
                yield path[1] if len(path) > 1 else "the whole of eqrl"


_ORDERED_FILES = [file for file in _FILES if _part(file) != "__init__"]


@pytest.mark.parametrize("file", _ORDERED_FILES, ids=_name)
def test_imports_go_one_way(file: Path) -> None:
    part = _part(file)
    assert part in _RANKS, "give the module its place in _ORDER"
    wrong = {
        imported
        for imported in _imported_parts(file)
        if imported != part and _RANKS.get(imported, len(_ORDER)) >= _RANKS[part]
    }
    assert not wrong


@pytest.mark.parametrize("file", _ORDERED_FILES, ids=_name)
def test_agents_rewards_and_losses_do_not_import_environments(file: Path) -> None:
    if _part(file) in ("_agents", "_rewards", "losses", "nn"):
        assert "envs" not in set(_imported_parts(file))


@pytest.mark.parametrize("file", _FILES, ids=_name)
def test_functions_are_annotated_throughout(file: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = [
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
            *filter(None, [node.args.vararg, node.args.kwarg]),
        ]
        missing += [
            f"{node.name}: {argument.arg}"
            for argument in arguments
            if argument.annotation is None and argument.arg not in ("self", "cls")
        ]
        if node.returns is None and node.name != "__init__":
            missing.append(f"{node.name}: result")
    assert not missing


@pytest.mark.parametrize("file", _FILES, ids=_name)
def test_a_module_has_400_lines_at_most(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 400


def test_half_of_the_modules_have_150_lines_at_most() -> None:
    lengths = [len(file.read_text().splitlines()) for file in _FILES]
    assert statistics.median(lengths) <= 150


def test_no_module_is_called_utils() -> None:
    names = [part for file in _FILES for part in file.relative_to(_ROOT).parts]
    assert not [
        name for name in names if name.removesuffix(".py").strip("_") == "utils"
    ]


def _modules() -> list[type[eqx.Module]]:
    """All `equinox.Module`s of the library."""
    for _, name, _ in pkgutil.walk_packages(eqrl.__path__, "eqrl."):
        if name != "eqrl.__main__":
            importlib.import_module(name)
    found: dict[type[eqx.Module], None] = {}
    waiting = [eqx.Module]
    while waiting:
        for subclass in waiting.pop().__subclasses__():
            waiting.append(subclass)
            if subclass.__module__.partition(".")[0] == "eqrl":
                found[subclass] = None
    return list(found)


@pytest.fixture(scope="module")
def modules() -> list[type[eqx.Module]]:
    return _modules()


def test_there_are_modules_to_look_at(modules: list[type[eqx.Module]]) -> None:
    assert {eqrl.SAC, eqrl.TAAC, eqrl.AbstractAgent, eqrl.envs.BraxEnv} <= set(modules)


def test_modules_are_abstract_if_and_only_if_named_so(
    modules: list[type[eqx.Module]],
) -> None:
    wrong = [
        module
        for module in modules
        if inspect.isabstract(module) != module.__name__.startswith("Abstract")
    ]
    assert not wrong


def test_only_abstract_modules_are_subclassed(modules: list[type[eqx.Module]]) -> None:
    wrong = [
        (module, base)
        for module in modules
        for base in module.__mro__[1:]
        if base in modules and not inspect.isabstract(base)
    ]
    assert not wrong


def test_no_method_is_overridden_that_does_something(
    modules: list[type[eqx.Module]],
) -> None:
    wrong = [
        (module, name)
        for module in modules
        for base in module.__mro__[1:]
        if base in modules
        for name, attribute in vars(base).items()
        if (callable(attribute) or isinstance(attribute, property))
        and not name.startswith("__")
        and not getattr(attribute, "__isabstractmethod__", False)
        and name in vars(module)
    ]
    assert not wrong


def test_only_final_modules_have_fields(modules: list[type[eqx.Module]]) -> None:
    wrong = [
        module
        for module in modules
        if inspect.isabstract(module) and len(module.__dataclass_fields__) > 0
    ]
    assert not wrong


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python of its own, in which nothing checks types unless asked."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("EQRL_")}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(_ROOT / ".jax_cache")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env=inherited | cache | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


_WRONG_SHAPE = """
import eqrl, jax.numpy as jnp
eqrl.losses.bootstrapped_target(
    jnp.ones(2), jnp.zeros((1, 2), bool), jnp.ones(2), 0.9
)
"""


def test_importing_runs_no_jax_and_imports_neither_brax_nor_gymnax() -> None:
    result = _python(
        "import sys, eqrl\n"
        "from jax._src.xla_bridge import backends_are_initialized\n"
        "print({'brax', 'gymnax'} & set(sys.modules), backends_are_initialized())"
    )
    assert result.stdout == "set() False\n", result.stderr


@pytest.mark.parametrize("agent", ["SAC", "TAAC", "TD3"])
def test_agents_train_where_brax_and_gymnax_cannot_be_imported(agent: str) -> None:
    make_actor = {"TD3": "Deterministic"}.get(agent, "Gaussian")
    result = _python(
        "import sys\n"
        "sys.modules['brax'] = sys.modules['gymnax'] = None\n"
        "import eqrl, jax.random as jr\n"
        f"agent = eqrl.{agent}(\n"
        f"    make_actor=eqrl.nn.{make_actor}((8,)), make_critic=eqrl.nn.Critic((8,))\n"
        ")\n"
        "trainer = eqrl.Trainer(batch_size=4, capacity=20, warmup_steps=4)\n"
        "solution = eqrl.train(\n"
        "    agent, eqrl.envs.Point(), trainer, num_steps=20, key=jr.key(0)\n"
        ")\n"
        "print(solution.counts.updates)"
    )
    assert result.stdout == "16\n", result.stderr


def test_types_are_checked_where_the_user_asks_for_it() -> None:
    result = _python(_WRONG_SHAPE, EQRL_TYPECHECK="1")
    assert result.returncode != 0
    assert "TypeCheckError" in result.stderr
    assert "'terminated'" in result.stderr


def test_types_cost_nothing_where_the_user_does_not_ask() -> None:
    result = _python(
        "import eqrl, sys\n"
        "print(\n"
        "    hasattr(eqrl.losses.bootstrapped_target, '__wrapped__'),\n"
        "    hasattr(eqrl.SAC.update, '__wrapped__'),\n"
        ")"
    )
    assert result.stdout == "False False\n", result.stderr
