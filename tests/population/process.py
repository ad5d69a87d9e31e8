"""Trains the tiny population as one of several processes and writes what it found.

Run as `python -m tests.population.process PROCESS_ID NUM_PROCESSES PORT FILE`.
"""

import sys

import jax
import numpy as np

from .. import conftest as conftest  # For the settings of JAX that tests run with.


def main() -> None:
    process_id, num_processes = int(sys.argv[1]), int(sys.argv[2])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{sys.argv[3]}",
        num_processes=num_processes,
        process_id=process_id,
        initialization_timeout=60,
    )
    # It makes arrays at once, which must not be before.
    from . import tiny

    mesh = jax.make_mesh((jax.device_count(),), ("population",))
    assert mesh.size == num_processes
    found = tiny.results(mesh)
    generations = tiny.generations_if_interrupted(mesh, here=process_id == 1)
    np.savez(sys.argv[4], **found, interrupted=np.asarray(generations))


if __name__ == "__main__":
    main()
