"""Writes the Python snippets of the documentation as modules, to be type-checked."""

import json
import pathlib
import re
import sys
from collections.abc import Iterable


ROOT = pathlib.Path(__file__).parent.parent


def snippets(page: str) -> list[str]:
    """What stands in a page's Python blocks, included files excepted."""
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    return [block for block in blocks if not block.startswith("--8<--")]


def check_names(names: Iterable[str], files: Iterable[pathlib.Path]) -> None:
    """Ends the program if one of the names is of no file."""
    known = sorted({file.stem for file in files})
    for name in names:
        if name not in known:
            sys.exit(f"There is no {name}; there are {', '.join(known)}.")


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        code = "\n".join(snippets(page.read_text()))
        if code:
            name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
            (folder / f"{name.replace('-', '_').lower()}.py").write_text(code)
    settings = {
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        # A page is one module, in which a later snippet may import anew.
        "reportDuplicateImport": "none",
        "reportMissingTypeStubs": "none",
        # JAX, Equinox and Optax leave much unknown to a strict type checker.
        "reportUnknownArgumentType": "none",
        "reportUnknownLambdaType": "none",
        "reportUnknownMemberType": "none",
        "reportUnknownParameterType": "none",
        "reportUnknownVariableType": "none",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main()
