"""Where `Any` stands in the annotations of what is public, and why."""

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


_PUBLIC = ("", ".envs", ".losses", ".nn", ".presets", ".spaces")
_MOST = 84

# An annotation that holds `Any`, or an alias of which a part is `Any`: of an argument,
# a result, a field or a base class.
_REASONS: dict[str, tuple[str, ...]] = {
    "A wrapper may be around anything, which is in another state": (
        "AbstractEnvWrapper.inner()",
        "AbstractEnvWrapper.inner_state()",
        "AbstractWrapper.inner()",
        "AbstractWrapper.inner_state()",
        "AbstractWrapper.inner_transitions()",
    ),
    "A replay holds the transitions of any agent, and in a state of its own kind": (
        "AbstractPrioritizedReplay.prioritize(agent_state)",
        "AbstractPrioritizedReplay.prioritize(batch)",
        "AbstractReplay.add(items)",
        "AbstractReplay.init(item)",
        "AbstractReplay.sample()",
        "Trainer.make_replay",
        "Trainer.on_policy(make_replay)",
        "Trainer.replay()",
        "TrainerState.replay",
        "class LatestRows",
        "class ReplayBuffer",
    ),
    "A skill is all that it needs of what the agent stores": (
        "Discriminator.descriptors(transitions)",
        "Discriminator.observe(transitions)",
        "Discriminator.reward(batch)",
        "Discriminator.update(batch)",
        "CIC.observe(transitions)",
        "CIC.reward(batch)",
        "CIC.update(batch)",
        "DADS.observe(transitions)",
        "DADS.reward(batch)",
        "DADS.update(batch)",
        "METRA.observe(transitions)",
        "METRA.reward(batch)",
        "METRA.update(batch)",
        "SMERL.observe(transitions)",
        "SMERL.reward(batch)",
        "SMERL.update(batch)",
        "class AbstractSkillReward",
    ),
    "A tuple of different kinds, each in a state of its own": (
        "Sum.rewards",
        "SumState.rewards",
    ),
    "The solution of any training, which is not looked into": (
        "Checkpoints.__call__(solution)",
        "Checkpoints.save(solution)",
        "save_solution(solution)",
    ),
    "What was reached may be a solution, a population or skills; no class of an error "
    "has type arguments": (
        "NonFiniteError.__init__(solution)",
        "SimulatorError.__init__(solution)",
        "TrainingInterrupted.__init__(solution)",
    ),
    "What is inside was written into a file, or is looked up by a name": (
        "Preset.make_agent()",
        "Preset.make_env()",
        "ant_with_broken_legs()",
        "load_run()",
        "load_run(agent_type)",
        "load_run(make_env)",
        "load_solution()",
        "make()",
        "make(state_descriptor)",
    ),
    "An environment of a library that need not be installed, with its own types": (
        "FunctionalEnv.__init__(params)",
        "FunctionalEnv.__init__(state_descriptor)",
        "FunctionalEnv.environment()",
        "FunctionalEnv.params",
    ),
    "A static type checker would take the argument of a lambda for an `object`": (
        "PBT.check(agent)",
        "PBT.where",
    ),
    "Of a member only the class and the state of its agent are known, not its memory; "
    "a description is any pytree": (
        "PopulationSolution.descriptors",
        "PopulationSolution.trainer_states",
        "SkillTraining.trainer_state",
    ),
    "Metrics are numbers of NumPy or of JAX, and an episode may be of any agent": (
        "Evaluations.__init__(score)",
        "evaluate(descriptor)",
        "learn_skills(callback)",
        "train(callback)",
        "train(checkpoint)",
        "train_offline(callback)",
        "train_population(callback)",
        "train_population(descriptor)",
        "train_seeds(callback)",
        "train_seeds(checkpoint)",
    ),
    "The environments of several skills need not have one type": (
        "learn_skills(env)",
        "load_skill(env)",
        "load_skills(env)",
    ),
    "Whatever the state of an environment is, it can be played": (
        "check(env)",
        "sweep(evaluation_env)",
        "train_population(evaluation_env)",
    ),
    "An agent that stores nothing of its own ignores what others have stored": (
        "train_offline(transitions)",
    ),
    "Any number of wrappers is looked through": (
        "fix_skill()",
        "seek_goal()",
        "unwrap(agent)",
    ),
    "A pytree, of which Equinox and Optax do not say more": (
        "gradient_step(gradient)",
        "restore(where)",
    ),
    "A member of a stack of unknown type has an unknown type, too": (
        "best()",
        "member()",
    ),
    "A field is of the type that is written before it": ("hyperparameter()",),
}


def _names(node: ast.AST | None) -> set[str]:
    if node is None:
        return set()
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those of a module, and those that only a static type checker reads."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


def _assigned(node: ast.stmt) -> tuple[str | None, set[str]]:
    """The name of an alias, and the names of what it is made of."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and not isinstance(node.value, ast.Call):
            return target.id, _names(node.value)
    return None, set()


@functools.cache
def _aliases() -> dict[str, set[str]]:
    """By module, the names there of `Any` and of all aliases that are made of it."""
    trees = {
        name: ast.parse(Path(inspect.getfile(module)).read_text())
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "eqrl"
    }
    found = {name: {"Any"} for name in trees}
    count = 0
    while count != (count := sum(map(len, found.values()))):
        for name, tree in trees.items():
            is_package = hasattr(sys.modules[name], "__path__")
            package = name if is_package else name.rpartition(".")[0]
            for node in _statements(tree):
                alias, parts = _assigned(node)
                if alias is not None and parts & found[name]:
                    found[name].add(alias)
                if isinstance(node, ast.ImportFrom):
                    source = importlib.util.resolve_name(
                        "." * node.level + (node.module or ""), package
                    )
                    found[name].update(
                        each.asname or each.name
                        for each in node.names
                        if each.name in found.get(source, set())
                    )
    return found


def _definitions() -> Iterator[tuple[str, set[str], ast.FunctionDef | ast.ClassDef]]:
    """What is public, once each; of what is overloaded its overloads only."""
    seen: set[int] = set()
    for name in _PUBLIC:
        module: ModuleType = importlib.import_module(f"eqrl{name}")
        source = inspect.getsource(module)
        for public, value in vars(module).items():
            value = inspect.unwrap(value) if callable(value) else value
            is_defined = inspect.isclass(value) or inspect.isfunction(value)
            if public.startswith("_") or not is_defined or id(value) in seen:
                continue
            if not value.__module__.startswith("eqrl"):
                continue
            # A module also imports what it uses; only `X as X` is public.
            is_own = value.__module__ == module.__name__
            if not is_own and f" as {public}" not in source:
                continue
            seen.add(id(value))
            tree = ast.parse(Path(inspect.getfile(value)).read_text())
            for node in _without_implementations(tree.body):
                if getattr(node, "name", None) == value.__name__:
                    yield public, _aliases()[value.__module__], node


def _without_implementations(
    body: list[ast.stmt],
) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    overloaded: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node
        if isinstance(node, ast.FunctionDef):
            if any("overload" in _names(each) for each in node.decorator_list):
                overloaded.add(node.name)
                yield node
            elif node.name not in overloaded:
                yield node


def _of_function(name: str, node: ast.FunctionDef, wanted: set[str]) -> Iterator[str]:
    arguments = node.args
    optional = filter(None, (arguments.vararg, arguments.kwarg))
    for each in [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        *optional,
    ]:
        if _names(each.annotation) & wanted:
            yield f"{name}({each.arg})"
    if _names(node.returns) & wanted:
        yield f"{name}()"


def _places() -> set[str]:
    places: set[str] = set()
    for name, wanted, node in _definitions():
        if isinstance(node, ast.FunctionDef):
            places.update(_of_function(name, node, wanted))
            continue
        if any(_names(base) & wanted for base in node.bases):
            places.add(f"class {name}")
        for each in _without_implementations(node.body):
            is_public = not each.name.startswith("_")
            is_called = each.name in ("__init__", "__call__")
            if isinstance(each, ast.FunctionDef) and (is_public or is_called):
                places.update(_of_function(f"{name}.{each.name}", each, wanted))
        for each in node.body:
            if (
                isinstance(each, ast.AnnAssign)
                and isinstance(each.target, ast.Name)
                and not each.target.id.startswith("_")
                and _names(each.annotation) & wanted
            ):
                places.add(f"{name}.{each.target.id}")
    return places


def test_any_is_public_where_there_is_a_reason_only() -> None:
    reasons = [place for places in _REASONS.values() for place in places]
    assert _places() == set(reasons)
    assert len(reasons) <= _MOST
