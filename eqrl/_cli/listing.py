"""The command that lists environments: `eqrl envs`."""

import contextlib
import fnmatch
import io
import warnings

from .._types.data import Discrete
from .._types.installed import NotInstalledError
from ..envs._base import LIBRARIES, no_devices
from ..envs._make import full_names, make
from .commands import Envs
from .training import message_of


# The most environments that are started without `--sizes`.
_MOST_STARTED = 50


def run_envs(command: Envs) -> int:
    """Prints the names of the environments that match, and describes each."""
    # A pattern must match the whole name, and other text any part of it.
    pattern = command.pattern.lower()
    if not any(sign in pattern for sign in "*?["):
        pattern = f"*{pattern}*"
    library_pattern, slash, _ = pattern.partition("/")
    names: list[str] = []
    missing: dict[str, str] = {}
    for library in ("eqrl", *LIBRARIES):
        # Libraries take seconds to import.
        if slash and not fnmatch.fnmatchcase(library, library_pattern):
            continue
        try:
            known = full_names(library)
        except NotInstalledError as error:
            missing[library] = message_of(error)
            continue
        names += [x for x in known if fnmatch.fnmatchcase(x.lower(), pattern)]
    # Those of a missing library may match.
    if not names and not any(
        slash or fnmatch.fnmatchcase(f"{library}/", pattern) for library in missing
    ):
        installed = " of the installed libraries" if missing else ""
        raise ValueError(
            f"No environment{installed} matches `{command.pattern}`; `eqrl envs` lists "
            "all."
        )
    width = max(map(len, names), default=0)
    starts = len(names) <= _MOST_STARTED or command.sizes
    # The reader of the output, such as `head`, may close it.
    with contextlib.suppress(BrokenPipeError):
        if names and starts:
            columns = _columns("observations", "actions", "time limit")
            print(f"{'name':{width}}  {columns}")
        for name in names:
            line = f"{name:{width}}  {_described(name)}" if starts else name
            print(line, flush=True)
        for line in missing.values():
            print(line)
    return 0


def _columns(observations: str, actions: str, limit: str) -> str:
    return f"{observations:20}  {actions:12}  {limit}"


def _described(name: str) -> str:
    """The observations, actions and time limit of an environment.

    If it cannot start, the reason is returned instead.
    """
    try:
        # Simulators print greetings, and warn about newer versions.
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
            no_devices(),
        ):
            warnings.simplefilter("ignore")
            spec = make(name).spec
    # Simulators may raise any error.
    except Exception as error:
        return f"cannot start: {message_of(error)}"
    observations = f"vector of {spec.observation_size}"
    if spec.observation_shape is not None:
        observations = f"image of {' x '.join(map(str, spec.observation_shape))}"
    if spec.observation_dtype != "float32":
        observations += f" {spec.observation_dtype}"
    action = spec.action
    actions = f"vector of {action.num_outputs}"
    if isinstance(action, Discrete):
        actions = f"{action.num_actions} choices"
    limit = "none" if spec.max_steps is None else f"{spec.max_steps}"
    return _columns(observations, actions, limit)
