"""The devices on which a command trains."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path

import jax
import numpy as np
import platformdirs
from jax.sharding import Mesh

from .._run.config import Population, SkillSchedule, Training, read_schedule
from .._training.mesh import POPULATION, count_cores, make_devices, most_shares


_MOST_BYTES = 1_000_000_000

# JAX caches only programs that take a second to compile. Many smaller ones add up.
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def keep_compilations() -> None:
    """Makes JAX keep compiled programs in the user's cache folder.

    JAX settings of the user take precedence: another folder, or no cache, as with
    `JAX_ENABLE_COMPILATION_CACHE=0`. Without a writable folder nothing is kept.
    """
    values = jax.config.values
    is_set = values["jax_compilation_cache_dir"] is not None
    if is_set or not values["jax_enable_compilation_cache"]:
        return
    try:
        root = platformdirs.user_cache_path("eqrl", appauthor=False) / "compiled"
        # Several machines may share a home, and a program compiled on one may contain
        # instructions that another lacks.
        described = [platform.machine(), platform.processor()]
        with contextlib.suppress(OSError):
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            names = ("model name", "flags", "Features")
            described += sorted({line for line in lines if line.startswith(names)})
        folder = root / hashlib.sha256("\n".join(described).encode()).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        forget_oldest(root, _MOST_BYTES)
    # `Path.home` raises a `RuntimeError` if there is no home.
    except (OSError, RuntimeError):
        return
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    for name, value in _SETTINGS.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)


def forget_oldest(root: Path, most_bytes: int) -> None:
    """Evicts the least recently used files beyond `most_bytes`.

    JAX can do this too, but it locks the folder for every program, and a process killed
    while holding the lock disables the cache.
    """
    entries: list[tuple[float, int, Path]] = []
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):  # Another command may delete it first.
            status = path.stat()
            used = max(status.st_atime, status.st_mtime)
            entries.append((used, status.st_size, path))
    too_much = sum(size for _, size, _ in entries) - most_bytes
    for _, size, path in sorted(entries):
        if too_much <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        too_much -= size


_FLAG = "--xla_force_host_platform_device_count"


def make_devices_for(schedule: Training | Population | SkillSchedule) -> None:
    """Makes devices of the processor's cores, as many as the schedule can use.

    A number that the user has set for JAX takes precedence, and so do devices that JAX
    has already made.
    """
    is_set = jax.config.values["jax_num_cpu_devices"] >= 0
    if is_set or _FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    # Skills are learned one after another, on one device.
    if isinstance(schedule, SkillSchedule):
        return
    number = schedule.devices
    if number is None and schedule.members != "together":
        number = most_shares(schedule.count, count_cores())
    if number is not None and number > 1:
        make_devices(number)


def make_devices_of(folder: Path) -> None:
    """Makes devices for the run in a folder."""
    # Reading the whole configuration, which comes next, reports its errors.
    with contextlib.suppress(ValueError):
        make_devices_for(read_schedule(folder))


def make_mesh(num_devices: int | None) -> Mesh | None:
    """A mesh of the first `num_devices` devices; `None` if no number is given."""
    if num_devices is None:
        return None
    devices = jax.devices()
    if not 1 <= num_devices <= len(devices):
        raise ValueError(
            f"`devices={num_devices}` must be from 1 to {len(devices)}, which is how "
            "many JAX has here. Of a processor `eqrl` makes them, unless "
            "`JAX_NUM_CPU_DEVICES` or `XLA_FLAGS` gives another number."
        )
    return Mesh(np.array(devices[:num_devices]), (POPULATION,))
