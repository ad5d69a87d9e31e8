"""The folder of a run and the formats of its files."""

import contextlib
import json
import math
import re
import shutil
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from jaxtyping import Float

from .._storage.checkpoint import Directory, check_directory, save, saved_steps
from .._storage.files import LOCK, __version__, atomic_write, locked, sealed
from .._types.installed import is_installed


CONFIG = "config.json"

Options = ParamSpec("Options")
Value = TypeVar("Value")

# Files that a run or `eqrl render` writes. Orbax writes those within a checkpoint.
_OWN_FILES = re.compile(
    r"""
    ( (config | evaluation | skills | sweep | search | fresh)\.json
    | (metrics | settings)\.csv | trained/\d+_\d+_\d+\.json
    | (learning_curves? | hyperparameters | family_tree | sweep)\.png
    | skills(_of_seed_\d+)?\.png
    | episode_of_(setting_\d+_)?(seed|member|skill)_\d+(_skill(_[-+.e\d]+)+)?
      \.(png|gif|html)
    ) (\.partial)?
    | library/(metrics\.npz | sizes_\d+\.json)(\.partial)?
    | ( policy/((seed|member)_\d+ | \d+_\d+_\d+) | unfinished/\d+_\d+_\d+
      | library/(skills|training) | checkpoints )
      /\d+(\.orbax-checkpoint-tmp[^/]*)?
      /(_CHECKPOINT_METADATA | commit_success\.txt | (arrays|record)[^/]*/.+)
    | tensorboard/seed_\d+/events\.[^/]+
    """,
    re.VERBOSE,
)


def new_folder(name: str) -> Path:
    """Makes a folder in `runs`, called after the run and the time."""
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            # Another run began in this second.
            number += 1
        else:
            return folder


def versions() -> dict[str, str]:
    """Versions that affect a run's last bits, besides its settings and the machine."""
    return {"eqrl": __version__, "jax": metadata.version("jax")}


def config_of(folder: Directory) -> Path:
    """The file that describes a run. Raises a `ValueError` if there is none."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ValueError(
            f"`{folder}` is not the folder of a run: there is no `{CONFIG}` in it."
        )
    return path


@contextlib.contextmanager
def claim_folder(
    folder: Directory, *, overwrite: bool = False, again: bool = False
) -> Iterator[Path]:
    """Makes a folder for a run and locks it until the end of the block.

    A `config.json` alone, or with empty folders, was left by a run that was stopped
    before its first row, and may be overwritten.

    **Arguments:**

    - `folder`: created with its parents if it does not exist.
    - `overwrite`: deletes what an earlier run wrote into it.
    - `again`: as for `locked`.

    Raises a `ValueError`, and changes nothing, if another process writes the folder, if
    it is not empty and not to be overwritten, or if it holds a file that no run writes.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ValueError(f"`folder={str(folder)!r}` is a file; give another.")
    check_directory(path)
    # If a run is writing the folder, that is the error to raise.
    if not (path / LOCK).exists():
        _check_claim(path, overwrite)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path, again=again):
        _check_claim(path, overwrite)
        if overwrite:
            for name in files_in(path):
                # Last, since it marks the folder as that of a run, should this be
                # interrupted.
                if name != CONFIG:
                    (path / name).unlink()
            for item in sorted(path.rglob("*"), reverse=True):
                if item.is_dir():
                    item.rmdir()
            (path / CONFIG).unlink(missing_ok=True)
        yield path


def _check_claim(path: Path, overwrite: bool) -> None:
    if not path.exists():
        return
    files = files_in(path)
    text = (path / CONFIG).read_bytes() if CONFIG in files else b""
    try:
        # A run writes the whole file or, if it is killed at the start, nothing.
        content = json.loads(text or b'{"eqrl": null}')
    except ValueError:
        content = {"eqrl": None} if overwrite else None
    is_foreign = not (isinstance(content, dict) and "eqrl" in content)
    if {*files} <= {CONFIG, f"{CONFIG}.partial"} and not is_foreign:
        return
    if not overwrite:
        raise ValueError(
            f"`folder={str(path)!r}` is there already and not empty; give another, or "
            "overwrite a run that is in it (`overwrite=True`, `--overwrite`), or "
            "`--resume` one of the command line."
        )
    if CONFIG not in files or is_foreign:
        no_file = f"there is no `{CONFIG}` in it"
        reason = f"no run wrote its `{CONFIG}`" if CONFIG in files else no_file
        raise ValueError(
            f"`folder={str(path)!r}` is not the folder of a run, since {reason}; it is "
            "not overwritten. Give another."
        )
    foreign = [name for name in files if not _OWN_FILES.fullmatch(name)]
    if foreign:
        raise ValueError(
            f"`folder={str(path)!r}` holds `{foreign[0]}`, which no run writes; it is "
            "not overwritten. Move that away, or give another folder."
        )


def files_in(path: Path) -> list[str]:
    """Everything that is not a folder, by its path from `path`, except the lock."""
    items = sorted(path.rglob("*"))
    names = [
        item.relative_to(path).as_posix()
        for item in items
        if item.is_symlink() or not item.is_dir()
    ]
    return [name for name in names if name != LOCK]


def checkpoints_folder(folder: Directory) -> Path:
    """Folder of the checkpoints that seeds or a population resume from."""
    return Path(folder) / "checkpoints"


def policy_folder(folder: Directory, kind: str, index: int) -> Path:
    """The checkpoint of a seed or a member."""
    return Path(folder) / "policy" / f"{kind}_{index}"


def library_folder(folder: Directory) -> Path:
    """The library of skills that were learned one after another."""
    return Path(folder) / "library"


def save_policy(directory: Directory, step: int, policy: Any) -> None:
    """Saves the final policy of a run, in place of an earlier one."""
    earlier = saved_steps(directory)
    # `save` refuses an existing step; the others go once this one is complete.
    if step in earlier:
        shutil.rmtree(Path(directory) / str(step))
    save(directory, step, policy)
    for each in earlier:
        if each != step:
            shutil.rmtree(Path(directory) / str(each))


def finite(values: Float[np.ndarray, " values"]) -> list[float | None]:
    """For JSON: NaN and infinity become null."""
    return [float(value) if math.isfinite(value) else None for value in values]


def write_json(folder: Directory, name: str, content: dict[str, Any]) -> None:
    """Writes a JSON file, which ends with a digest of its content."""
    text = json.dumps(sealed(content), indent=2, allow_nan=False)
    with atomic_write(Path(folder) / name) as path:
        path.write_text(text + "\n")


def write_picture(
    folder: Directory,
    name: str,
    draw: Callable[Concatenate[Path, Options], None],
    *arguments: Options.args,
    **options: Options.kwargs,
) -> None:
    """Calls `draw` with the path of a picture and the arguments.

    Without Matplotlib there are no pictures, and no error.
    """
    if not is_installed("matplotlib"):
        return
    with atomic_write(Path(folder) / name) as path:
        draw(path, *arguments, **options)


def make_typed(options: type[Value], values: Mapping[str, Any]) -> Value:
    """An instance of a dataclass whose fields all have values of their types.

    Raises a `TypeError` that names the field otherwise.
    """
    types = typing.get_type_hints(options)
    for name, value in values.items():
        if name not in types:
            raise TypeError(f"`{name}` is not an option of this version")
        check_type(f"`{name}`", value, types[name])
    return options(**values)


def check_type(name: str, value: Value, expected: Any) -> Value:
    """Returns the value, or raises a `TypeError` if it is not of the expected type.

    An integer is accepted for a float, but a bool is not accepted for a number.
    """
    alternatives = (expected, *typing.get_args(expected))
    if isinstance(value, bool):
        fits = bool in alternatives
    elif isinstance(value, int) and float in alternatives:
        fits = True
    else:
        # Imported here because importing it is slow.
        from beartype.door import is_bearable

        fits = is_bearable(value, expected)
    if not fits:
        shown = getattr(expected, "__name__", str(expected))
        raise TypeError(f"{name} is {value!r} and must be of the type {shown}")
    return value
