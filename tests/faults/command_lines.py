"""Gives the command line right and wrong words.

Run as `python -m tests.faults.command_lines --number 1000`. Each command line must
either be such as would train, or end with the exit code 2 and a message that names one
of its words or arguments; nothing is trained. Prints how often each was so, and exits
with 1 after anything else.
"""

import argparse
import collections
import contextlib
import io
import random
import re
import sys
import tempfile
import warnings
from typing import Any
from unittest import mock

from eqrl._cli import training
from eqrl._cli.main import main as run


WOULD_TRAIN, NAMED = "would train", "named"
UNNAMED, FOREIGN = "NOTHING NAMED", "OTHER ERROR"

COMMANDS = (
    *(
        ("train", agent)
        for agent in ("sac", "td3", "taac", "diayn", "dqn", "discrete-sac")
    ),
    ("pbt", "sac"),
    ("pbt", "diayn"),
    ("disk",),
    ("evaluate",),
    ("render",),
    ("export",),
    ("plot",),
)
WORDS = (
    *("0", "1", "2", "8", "-1", "20", "1000", "100000000000000000000", "0.5", "-0.5"),
    *("1e-3", "1e400", "nan", "inf", "none", "None", "true", "false", "", "no"),
    *("eqrl/Point", "gymnax/CartPole-v1", "brax/ant", "eqrl", "observation", "keep"),
    *("8 8", "8 0", "uniform 0 1", "/nowhere", "/dev/null", "é", "--", "-", "--seed"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    draw = random.Random(options.seed)
    known = {command: _options_of(command) for command in COMMANDS}
    counts: collections.Counter[str] = collections.Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.object(training, "_train_into", lambda *_: 0),
    ):
        for _ in range(options.number):
            command = draw.choice(COMMANDS)
            words = [*command, *_arguments(known[command], draw)]
            what, message = outcome(words)
            counts[what] += 1
            if what not in (WOULD_TRAIN, NAMED):
                print(f"{what}: eqrl {words}\n    {message[-400:]}", flush=True)
    for what, number in counts.items():
        print(f"{number:6} {what}")
    return 0 if set(counts) <= {WOULD_TRAIN, NAMED} else 1


def _options_of(command: tuple[str, ...]) -> list[str]:
    """The options that the help of a command names."""
    code, text = _run([*command, "--help"])
    assert code == 0
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--help"})


def _arguments(known: list[str], draw: random.Random) -> list[str]:
    """A few options, most of them known, with words that may be wrong."""
    words = []
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        option = draw.choice(known)
        if draw.random() < 0.05:
            option = f"{option}x"
        words.append(option)
        if draw.random() < 0.95:
            words.extend(draw.choice(WORDS).split(" "))
    if draw.random() < 0.1:
        words.append(draw.choice(WORDS) or "word")
    return words


def outcome(words: list[str]) -> tuple[str, str]:
    """What a command line came to, and what it said."""
    try:
        code, text = _run(words)
    except Exception as error:
        return FOREIGN, f"{type(error).__name__}: {error}"
    if code == 0:
        return WOULD_TRAIN, text
    if code != 2 or "Traceback" in text:
        return FOREIGN, f"{code}: {text}"
    names = {re.sub("^--", "", word).replace("-", "_") for word in words if word}
    said = text.replace("-", "_")
    # An empty word has no name.
    if "" in words and "Unrecognized options" in text:
        return NAMED, text
    if re.search(r"`[^`]+`", text) or any(name in said for name in names - {""}):
        return NAMED, text
    return UNNAMED, text


def _run(words: list[str]) -> tuple[Any, str]:
    """The exit code of a command line, and all that it wrote."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            code = run(words)
        except SystemExit as error:
            code = error.code
    return code, text.getvalue()


if __name__ == "__main__":
    sys.exit(main())
