import time
from pathlib import Path
from typing import Any

from .._run import Population, Run


def new_folder(run: Run[Any]) -> Path:
    """Makes a folder in `runs`, named after the run and the time."""
    prefix = "pbt-" if isinstance(run.schedule, Population) else ""
    env = run.settings.env.replace("/", "-")
    name = f"{prefix}{run.agent}-{env}-{time.strftime('%Y%m%d-%H%M%S')}"
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
