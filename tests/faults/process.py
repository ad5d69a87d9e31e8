"""Trains the tiny population as one of several processes, or goes on with it.

Run as `python -m tests.faults.process PROCESS_ID NUM_PROCESSES PORT FOLDER`.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import eqrl
from eqrl._storage.checkpoint import saved_steps


_GENERATIONS = 30
_STEPS = 400


def main() -> None:
    process_id, num_processes = int(sys.argv[1]), int(sys.argv[2])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{sys.argv[3]}",
        num_processes=num_processes,
        process_id=process_id,
        initialization_timeout=60,
        heartbeat_timeout_seconds=20,
    )
    # It makes arrays at once, which must not be before.
    from ..population import tiny

    folder = Path(sys.argv[4])
    mesh = jax.make_mesh((jax.device_count(),), ("population",))
    solution = None
    if saved_steps(folder / "checkpoints"):
        solution = eqrl.load_solution(
            folder / "checkpoints", tiny.AGENT, tiny.ENV, tiny.TRAINER, mesh=mesh
        )
    left = _GENERATIONS - (0 if solution is None else len(solution.returns))
    # The clocks of the processes differ; all save when the first one's time is over.
    with eqrl.Checkpoints(
        folder / "checkpoints", every_seconds=0.5 + process_id
    ) as checkpoints:
        if left > 0:
            solution = tiny.train(
                mesh,
                num_generations=left,
                steps_per_generation=_STEPS,
                initial=solution,
                callback=checkpoints,
            )
        assert solution is not None
        checkpoints.save(solution)
    found: dict[str, Any] = dict(tiny.found(solution))
    np.savez(folder / f"found_{process_id}.npz", **found)


if __name__ == "__main__":
    main()
