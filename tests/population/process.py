"""Trains the tiny population as one of several processes and writes what it found.

Run as `python -m tests.population.process PROCESS_ID NUM_PROCESSES PORT FOLDER`.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import eqrl

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
    folder = Path(sys.argv[4])
    solutions = tiny.solutions(mesh)
    for members, solution in solutions.items():
        found: dict[str, Any] = dict(tiny.found(solution))
        np.savez(folder / f"{members}_{process_id}.npz", **found)
    # What is spread over processes is saved by all, what each has by the first.
    eqrl.save(folder / "states", 0, solutions["in_turn"].trainer_states)
    winner = tiny.winner(solutions["in_turn"])
    if process_id == 0:
        eqrl.save(folder / "winner", 0, winner)
    else:
        try:
            eqrl.save(folder / "refused", 0, winner)
        except ValueError as error:
            (folder / "refusal").write_text(str(error))
    generations = tiny.generations_if_interrupted(
        mesh, solutions["in_turn"].agents, here=process_id == 1
    )
    (folder / f"generations_{process_id}").write_text(str(generations))


if __name__ == "__main__":
    main()
