"""Figures of the source that say how plain it is.

    python -m tests.measures

`test_architecture.py` holds each of them to the value reached so far.
"""

import ast
import io
import re
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "eqrl"
FILES = sorted(SOURCE.rglob("*.py"))

Function = ast.FunctionDef | ast.AsyncFunctionDef

_PUBLIC_PACKAGES = ("", "envs", "losses", "nn", "presets", "spaces")

# Phrases of translated prose, at the beginning of a docstring or anywhere in it.
_TRANSLATED = re.compile(
    r"^(Of|By|In|With|To|On|From|At|Over) (a |an |the )?which\b"
    r"|^(Of|By|With|That|Those|It|They|What|Who|Whose|Where|How) "
    r"|^Raises (a|an|what|unless) "
    r"|\b(goes|go) (on|round)\b|\bbehind (it|them|the)\b|\bof one's own\b"
    r"|\bat once\b|\bso many\b|\bstands? in\b|\bhand(s|ed)? over\b"
    r"|\b(nobody|whoever|whatever)\b|\bin a line\b|\b(of|by) which\b|\bis no\b",
    re.IGNORECASE,
)


def functions(tree: ast.AST) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def _docstring(node: ast.AST) -> ast.Expr | None:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    is_text = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    return first if is_text and isinstance(first, ast.Expr) else None


def _span(first: ast.stmt, last: ast.stmt) -> range:
    return range(first.lineno, (last.end_lineno or last.lineno) + 1)


def body_length(function: Function) -> int:
    """Lines from the first statement behind the docstring to the last."""
    statements = function.body[1 if _docstring(function) else 0 :]
    return len(_span(statements[0], statements[-1])) if statements else 0


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def _code_lines(text: str, tree: ast.AST) -> set[int]:
    """Lines that are neither blank nor comments, docstrings or imports."""
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT)
    silent = (*silent, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in _tokens(text):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(_span(node, node))
        docstring = _docstring(node)
        if docstring is not None:
            lines -= set(_span(docstring, docstring))
    return lines


def _check_lines(tree: ast.AST) -> set[int]:
    """Lines that raise, with what leads to it, and check functions with their calls."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function):
            is_check = node.name.lstrip("_").startswith("check")
        elif isinstance(node, ast.If):
            is_check = isinstance(node.body[-1], ast.Raise) and not node.orelse
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).rpartition(".")[2]
            is_check = called.lstrip("_").startswith("check")
        else:
            is_check = isinstance(node, ast.Raise)
        if is_check and isinstance(node, ast.stmt):
            lines |= set(_span(node, node))
    return lines


def _private_called_once(tree: ast.AST) -> list[Function]:
    """Functions and methods with a leading underscore that one place of it names."""
    named = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return [
        function
        for function in functions(tree)
        if function.name.startswith("_")
        and not function.name.startswith("__")
        and named[function.name] == 1
    ]


def _defined(file: Path, name: str) -> tuple[Path, str] | None:
    """The file that defines what a file exports, and the name there."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return file, name
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    folder = file.parents[node.level - 1]
                    path = folder.joinpath(*(node.module or "").split("."))
                    module = path / "__init__.py" if path.is_dir() else path
                    return _defined(module.with_suffix(".py"), alias.name)
    return None


def public_definitions() -> set[tuple[Path, str]]:
    """The functions and classes that users import, each with its file."""
    found = set()
    for package in _PUBLIC_PACKAGES:
        file = SOURCE / package / "__init__.py"
        if not file.exists():
            file = (SOURCE / package).with_suffix(".py")
        tree = ast.parse(file.read_text())
        names = [
            node.name for node in tree.body if isinstance(node, Function | ast.ClassDef)
        ]
        # A module also imports what it uses; only `X as X` is public.
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names += [alias.asname for alias in node.names if alias.asname]
        found |= {_defined(file, name) for name in names if name[0] != "_"}
    return {each for each in found if each is not None}


def first_sentences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            if text:
                yield re.split(r"(?<=[.:])\s|\n\n", " ".join(text.split()))[0]


def translated(sentence: str) -> bool:
    """Whether a sentence has a phrase of translated prose."""
    return _TRANSLATED.search(sentence) is not None


def measures() -> dict[str, float]:
    """Each figure by its name; shares are in percent of the lines of `eqrl/`."""
    texts = {file: file.read_text() for file in FILES}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    num_lines = {file: len(text.splitlines()) for file, text in texts.items()}
    total = sum(num_lines.values())
    public = public_definitions()
    imports = comments = checks = code = internal = 0
    once: list[Function] = []
    for file, tree in trees.items():
        lines = texts[file].splitlines()
        comments += sum(line.lstrip().startswith("#") for line in lines)
        imports += sum(
            len(_span(node, node))
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        checks += len(_check_lines(tree))
        once += _private_called_once(tree)
        code_lines = _code_lines(texts[file], tree)
        for node in tree.body:
            if isinstance(node, Function | ast.ClassDef):
                number = len(code_lines & set(_span(node, node)))
                code += number
                internal += 0 if (file, node.name) in public else number
    every = [function for tree in trees.values() for function in functions(tree)]
    bodies = [body_length(function) for function in every]
    sac = trees[SOURCE / "_agents" / "sac.py"]
    strings = sum(
        token.end[0] - token.start[0] + 1
        for token in _tokens(texts[SOURCE / "_agents" / "sac.py"])
        if token.type == tokenize.STRING and token.end[0] > token.start[0]
    )
    (update,) = (f for f in functions(sac) if f.name == "update")
    sentences = [s for tree in trees.values() for s in first_sentences(tree)]
    tests = [
        file
        for file in (ROOT / "tests").rglob("*.py")
        if "mutants" not in file.relative_to(ROOT).parts
    ]
    return {
        "lines": total,
        "lines for each public name": round(total / len(public), 1),
        "lines of the longest module": max(num_lines.values()),
        "files": len(FILES),
        "median lines of a module": statistics.median(
            n for file, n in num_lines.items() if file.name != "__init__.py"
        ),
        "private functions named once": len(once),
        "of these of at most 6 lines": sum(body_length(f) <= 6 for f in once),
        "internal share of definitions": round(100 * internal / code, 1),
        "share of imports": round(100 * imports / total, 1),
        "lines of checks": checks,
        "share of comments": round(100 * comments / total, 1),
        "longest body": max(bodies),
        "bodies over 60 lines": sum(body > 60 for body in bodies),
        "uses of Any": len(re.findall(r"\bAny\b", "".join(texts.values()))),
        "body of SAC.update": body_length(update),
        "lines of sac.py without its texts": num_lines[SOURCE / "_agents" / "sac.py"]
        - strings,
        "translated first sentences": sum(map(translated, sentences)),
        "private faces": sum(
            file.name == "__init__.py"
            and len(texts[file].strip()) > 0
            and any(p.startswith("_") for p in file.relative_to(SOURCE).parts[:-1])
            for file in FILES
        ),
        "lines of tests": sum(len(file.read_text().splitlines()) for file in tests),
    }


if __name__ == "__main__":
    for name, value in measures().items():
        print(f"{name:<36}{value:>10,}")
