"""Writes the Python snippets of the documentation as modules, to be type-checked."""

import json
import pathlib
import re
import sys
from collections.abc import Iterable


ROOT = pathlib.Path(__file__).parent.parent


def snippets(page: str) -> list[str]:
    """The contents of a page's Python blocks, without included files."""
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    return [block for block in blocks if not block.startswith("--8<--")]


def check_names(names: Iterable[str], files: Iterable[pathlib.Path]) -> None:
    """Ends the program if one of the names has no file."""
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
        # A page is one module, and a later snippet may repeat imports.
        "reportDuplicateImport": "none",
        "reportMissingTypeStubs": "none",
        # A strict type checker does not know many types of JAX, Equinox and Optax.
        "reportUnknownArgumentType": "none",
        "reportUnknownLambdaType": "none",
        "reportUnknownMemberType": "none",
        "reportUnknownParameterType": "none",
        "reportUnknownVariableType": "none",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main()
