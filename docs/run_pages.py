"""Runs the Python blocks of every page, each page in its own process and folder.

If a block reads a folder that a command of the page writes, that command runs first.
Trainings are shortened, since their results are tested elsewhere. Run it as `nox -s
pages`, which installs the package as built for a release.
"""

import argparse
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from snippets import ROOT, check_names, snippets


# Precedes the blocks of a page.
_SHORTEN = """
import functools

import jax

import eqrl


def _shorten(name, **most):
    original = getattr(eqrl, name)

    @functools.wraps(original)
    def shortened(*args, **options):
        given = [*args, *options.values()]
        trainers = [each for each in given if isinstance(each, eqrl.Trainer)]
        iteration = trainers[0].steps_of_iteration if trainers else 1
        for option, limit in most.items():
            if not isinstance(options.get(option), int) or options[option] <= limit:
                continue
            unit = iteration if "steps" in option else 1
            # Devices have equal shares of a population.
            unit = jax.device_count() if option == "size" else unit
            options[option] = max(limit // unit, 1) * unit
        return original(*args, **options)

    setattr(eqrl, name, shortened)


for name in ("train", "train_seeds"):
    _shorten(name, num_steps=1_200)
_shorten("learn_skills", num_steps=300, num_collected_episodes=2)
_shorten("sweep", num_steps=1_200, num_seeds=2, num_draws=1, num_episodes=2)
_shorten("train_population", size=4, num_generations=2, steps_per_generation=1_200)
_shorten("Evaluations", every=500, num_episodes=2)
for name in ("evaluate", "evaluate_skills"):
    _shorten(name, num_episodes=2)
# A cluster of one process needs no coordinator.
jax.distributed.initialize = lambda *args, **options: None
"""

# A page may show late the lines that must come first in a program.
_FIRST = "eqrl.use_all_cores()\n"

# Options that shorten the commands of a page, in place of their own.
_SHORT_COMMANDS = {
    "train": {"--num-steps": "1200", "--seeds": "2"},
    "sweep": {"--num-steps": "1200", "--seeds": "2", "--num-episodes": "2"},
    "pbt": {"--num-generations": "2", "--steps-per-generation": "1200", "--size": "2"},
    "disk": {
        "--num-skills": "2",
        "--num-steps": "300",
        "--num-collected-episodes": "2",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of pages; by default all")
    arguments = parser.parse_args()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    check_names(arguments.names, pages)
    failed = [
        page.stem
        for page in pages
        if not arguments.names or page.stem in arguments.names
        if not _runs(page)
    ]
    if failed:
        sys.exit(f"Blocks of these pages do not run: {', '.join(failed)}.")


def _runs(page: pathlib.Path) -> bool:
    """Whether all blocks of a page run, one after another."""
    text = page.read_text()
    blocks = snippets(text)
    if not blocks:
        return True
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        # A page may import an example, as in a copy of the repository.
        shutil.copytree(ROOT / "docs" / "examples", f"{folder}/docs/examples")
        script = pathlib.Path(folder) / "page.py"
        first = _FIRST if _FIRST in "".join(blocks) else ""
        script.write_text("\n".join([_SHORTEN, first, *blocks]))
        programs = [["-m", "eqrl", *words] for words in _commands(text, blocks)]
        programs.append(["-W", "default", script.name])
        failures = (_failure(program, folder) for program in programs)
        failure = next(filter(None, failures), None)
    words = f"{len(blocks)} blocks, {time.perf_counter() - begin:.0f} s"
    print(f"{page.relative_to(ROOT)}: {words}, {'FAILED' if failure else 'ran'}")
    if failure:
        print(failure)
    sys.stdout.flush()
    return failure is None


def _failure(program: list[str], folder: str) -> str | None:
    """The error of a program that fails; `None` if it succeeds."""
    ended = subprocess.run(
        [sys.executable, *program], cwd=folder, capture_output=True, text=True
    )
    if ended.returncode == 0:
        return None
    return f"{shlex.join(program)}: exit code {ended.returncode}\n{ended.stderr}"


def _commands(text: str, blocks: list[str]) -> list[list[str]]:
    """The shortened commands of a page that write folders for its Python blocks.

    Such a command names its folder with `--folder`, and a block in quotes.
    """
    code = "\n".join(blocks)
    shell = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    commands = []
    for line in "".join(shell).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["eqrl"] or "--folder" not in words:
            continue
        if f'"{words[words.index("--folder") + 1]}' in code:
            commands.append(_shortened(words[1:]))
    return commands


def _shortened(words: list[str]) -> list[str]:
    words = list(words)
    options = _SHORT_COMMANDS[words[0]]
    for option in options.keys() & set(words):
        place = words.index(option)
        del words[place : place + 2]
    return [*words, *(word for pair in options.items() for word in pair)]


if __name__ == "__main__":
    main()
