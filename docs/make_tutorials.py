"""Runs the tutorials, and writes their pictures, notebooks and pages.

Each script of `docs/tutorials` runs in its own process and folder, on two cores,
without a compilation cache. A script that takes more than three minutes, warns, or
draws a picture that is too large is an error. Run it as `nox -s tutorials`, with names
to run some of them; `nox -s tutorials -- --only-write` runs none.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import jupytext
from PIL import Image
from snippets import ROOT, check_names


FOLDER = ROOT / "docs" / "tutorials"
PICTURES = ROOT / "docs" / "images" / "tutorials"
MOST_SECONDS = 180
MOST_BYTES = 150_000
NUM_CORES = 2

# A picture in the prose: the name of the tutorial, then that of the file it writes.
_PICTURE = re.compile(r"^!\[[^]]*\]\(\.\./images/tutorials/(\w+)\.png\)\n*", re.M)
_WARNING = re.compile(r"^(.+):\d+: \w+Warning: ")


class Cell(NamedTuple):
    """A cell of a script in the percent format."""

    is_code: bool
    text: str


class Ran(NamedTuple):
    """The time of a script, and its faults."""

    seconds: float
    processor_seconds: float
    faults: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of tutorials; by default all")
    parser.add_argument("--only-write", action="store_true", help="notebooks and pages")
    arguments = parser.parse_args()
    check_names(arguments.names, FOLDER.glob("*.py"))
    scripts = [
        script
        for script in sorted(FOLDER.glob("*.py"))
        if not arguments.names or script.stem in arguments.names
    ]
    faults = [] if arguments.only_write else _run_all(scripts)
    for script in scripts:
        cells = read_cells(script.read_text())
        script.with_suffix(".ipynb").write_text(notebook(script.stem, cells))
        script.with_suffix(".md").write_text(page(script.stem, cells))
    if faults:
        sys.exit("\n".join(faults))


def read_cells(script: str) -> list[Cell]:
    cells: Iterable[Any] = jupytext.reads(script, fmt="py:percent").cells
    return [Cell(cell.cell_type == "code", cell.source.strip("\n")) for cell in cells]


def notebook(name: str, cells: list[Cell]) -> str:
    """A notebook without outputs; it shows its own pictures, not those of the pages."""
    shown: list[Cell] = []
    for cell in cells:
        if cell.is_code:
            shown.append(cell)
            continue
        for picture in _PICTURE.findall(cell.text):
            file = picture.removeprefix(f"{name}_")
            code = f'from IPython.display import Image\n\n\nImage("{file}.png")'
            shown.append(Cell(True, code))
        shown.append(Cell(False, _PICTURE.sub("", cell.text)))
    content = {
        "cells": [_as_json(index, cell) for index, cell in enumerate(shown)],
        "metadata": {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _as_json(index: int, cell: Cell) -> dict[str, Any]:
    kind = "code" if cell.is_code else "markdown"
    content = {
        "cell_type": kind,
        "id": f"cell-{index}",
        "metadata": {},
        "source": cell.text.splitlines(keepends=True),
    }
    if cell.is_code:
        return {**content, "execution_count": None, "outputs": []}
    return content


def page(name: str, cells: list[Cell]) -> str:
    parts = [f"```python\n{text}\n```" if code else text for code, text in cells]
    title, rest = "\n\n".join(parts).split("\n", 1)
    link = f"[As a notebook]({name}.ipynb). The script is `docs/tutorials/{name}.py`."
    return f"{title}\n\n{link}\n{rest}\n"


def _run_all(scripts: list[pathlib.Path]) -> list[str]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    if hasattr(os, "sched_setaffinity"):  # Linux alone has affinities.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])
    rows, faults = [], []
    for script in scripts:
        ran = _run(script)
        faults += [f"{script.name}: {fault}" for fault in ran.faults]
        rows.append(
            f"| {script.stem} | {ran.seconds:.0f} s | {ran.processor_seconds:.0f} s |"
        )
        print(f"{rows[-1]}\n", flush=True)
    print("| tutorial | time | processor time |\n|---|---|---|")
    print("\n".join(rows), flush=True)
    return faults


def _run(script: pathlib.Path) -> Ran:
    begin, before = time.perf_counter(), os.times()
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [sys.executable, "-W", "default", script],
            cwd=folder,
            env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
            capture_output=True,
            text=True,
        )
        seconds, after = time.perf_counter() - begin, os.times()
        processor_seconds = sum(after[2:4]) - sum(before[2:4])
        print(f"{script.name}\n{ended.stdout}", flush=True)
        faults = [] if ended.returncode == 0 else [ended.stderr]
        faults += [f"warns: {line}" for line in _own_warnings(ended.stderr)]
        if seconds > MOST_SECONDS:
            faults.append(
                f"took {seconds:.0f} s, and {processor_seconds:.0f} s of processor "
                f"time; at most {MOST_SECONDS} s are allowed"
            )
        faults += _keep_pictures(script, pathlib.Path(folder))
    return Ran(seconds, processor_seconds, faults)


def _own_warnings(errors: str) -> list[str]:
    """Lines of warnings that a tutorial or the library gives or causes."""
    own = (str(FOLDER), str(ROOT / "eqrl"))
    lines = [line for line in errors.splitlines() if _WARNING.match(line)]
    return [line for line in lines if line.startswith(own)]


def _keep_pictures(script: pathlib.Path, folder: pathlib.Path) -> list[str]:
    faults = []
    drawn = sorted(folder.glob("*.png"))
    for picture in drawn:
        kept = PICTURES / f"{script.stem}_{picture.name}"
        # A palette takes a third of the bytes.
        with Image.open(picture) as image:
            palette = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            palette.save(kept, optimize=True)
        if (size := kept.stat().st_size) > MOST_BYTES:
            faults.append(f"{picture.name} has {size:,} bytes, over {MOST_BYTES:,}")
    if not drawn:
        faults.append("draws no picture")
    return faults


if __name__ == "__main__":
    main()
