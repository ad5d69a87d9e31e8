"""A virtual environment for each library to measure against, made on first use.

The libraries need conflicting versions of their dependencies. The environments are in
the user's cache folder, and are made once for each list of requirements.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path


REQUIREMENTS = {
    # Its setup takes the type of a tree of arrays from jaxtyping.
    "qdax": ("qdax==0.5.0", "jaxtyping"),
    "brax": ("brax==0.14.2",),
    "sbx": ("sbx-rl==0.28.0", "gymnasium[mujoco]"),
    "rejax": ("rejax==0.1.3", "gymnax<1", "brax==0.14.2"),
}


class NotInstalled(Exception):
    """The output of an installer that failed."""


def requirements_of(name: str) -> tuple[str, ...]:
    """The requirements of a library, with the same JAX as here."""
    version = metadata.version("jax")
    extra = ""
    for kind in ("cuda12", "cuda13", "rocm7"):
        if importlib.util.find_spec(f"jax_{kind}_plugin"):
            extra = f"[{kind}]"
    return (*REQUIREMENTS[name], f"jax{extra}=={version}")


def cache_folder() -> Path:
    """The folder of the environments."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "eqrl" / "peers"


def python_of(name: str) -> str:
    """The Python of an environment that has the library; made if it is not there.

    `uv` installs if it is found, else `pip`; both take the options in the environment
    variables that they know, such as where to find packages. Raises `NotInstalled`.
    """
    requirements = requirements_of(name)
    content = "\n".join((sys.version, *requirements))
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    folder = cache_folder() / f"{name}-{digest}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done = folder / "complete"
    if done.exists():
        return str(python)
    print(f"Installing {', '.join(requirements)} in {folder}", file=sys.stderr)
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv")
    if uv is None:
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", *requirements)
    else:
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--quiet", "--python", str(python), *requirements)
    done.touch()
    return str(python)


def _run(*command: str) -> None:
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        raise NotInstalled(f"`{' '.join(command)}` failed: {result.stderr.strip()}")
