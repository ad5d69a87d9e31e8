"""A device of JAX for each core of the processor."""

import contextlib
import math
import os
from pathlib import Path

import jax


_LIMITS = Path("/sys/fs/cgroup")


def use_all_cores() -> None:
    """Makes a device of each core that this process may use.

    `train_seeds` and `train_population` then divide their seeds and members among
    them. Without it a processor is one device. GPUs are devices as they are.

    ```python
    import eqrl

    eqrl.use_all_cores()
    ```

    Call it before anything else that JAX does: making an agent, or a key, makes arrays.
    It replaces the number that `jax_num_cpu_devices` or `XLA_FLAGS` gives.

    Raises a `RuntimeError` if JAX has started with another number of devices.
    """
    number = count_cores()
    if make_devices(number) or jax.default_backend() != "cpu":
        return
    there = jax.local_device_count("cpu")
    if there != number:
        raise RuntimeError(
            f"JAX has started with a number of devices, {there}, that is not that of "
            f"the cores, {number}. Call `eqrl.use_all_cores()` before anything else "
            "that JAX does, right behind the imports: making an agent, or a key, makes "
            "arrays. A notebook has to be started again."
        )


def make_devices(number: int) -> bool:
    """Has JAX make so many devices of the processor; `False` if it has started."""
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        return False
    return True


def count_cores() -> int:
    """The cores that this process may use: by its affinity, and by its time."""
    available = os.cpu_count() or 1
    with contextlib.suppress(AttributeError):  # Where there are no affinities.
        available = len(os.sched_getaffinity(0))
    return max(1, int(min(available, _cores_of_time(_LIMITS))))


def _cores_of_time(limits: Path) -> float:
    """The cores whose whole time a container has; infinity if it has all."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (limits / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (
            int((limits / "cpu" / f"cpu.cfs_{name}_us").read_text())
            for name in ("quota", "period")
        )
        return math.inf if quota < 0 else quota / period
    return math.inf
