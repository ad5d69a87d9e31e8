"""The devices on which a command trains."""

import contextlib
import os
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from .._run import Population, SkillSchedule, Training, read_schedule
from .._training.cores import count_cores, make_devices
from .._training.members import most_shares
from .._training.mesh import POPULATION


_FLAG = "--xla_force_host_platform_device_count"


def make_devices_for(schedule: Training | Population | SkillSchedule) -> None:
    """Makes devices of the processor's cores, as many as the schedule can use.

    A number that the user has set for JAX stays, and so do the devices with which JAX
    has started.
    """
    is_set = jax.config.values["jax_num_cpu_devices"] >= 0
    if is_set or _FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    if isinstance(schedule, SkillSchedule):
        return
    number = schedule.devices
    if number is None and schedule.members != "together":
        number = most_shares(schedule.count, count_cores())
    if number is not None and number > 1:
        make_devices(number)


def make_devices_of(folder: Path) -> None:
    """Likewise, for the run in a folder."""
    # What is wrong with it is said when all of it is read.
    with contextlib.suppress(ValueError):
        make_devices_for(read_schedule(folder))


def make_mesh(num_devices: int | None) -> Mesh | None:
    """The devices that were asked for; `None` if none were."""
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
