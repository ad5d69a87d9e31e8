"""The processor time of `import eqrl`, in separate processes.

It alternates with the import of its dependencies, `import jax, equinox, optax`, so that
both meet the same load. Run it as `nox -s benchmarks -- imports`.
"""

import argparse
import os
import statistics
import subprocess
import sys


_IMPORTS = ("jax, equinox, optax", "eqrl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    seconds: dict[str, list[float]] = {modules: [] for modules in _IMPORTS}
    # The first process of each may write bytecode.
    for repeat in range(repeats + 1):
        for modules, values in seconds.items():
            elapsed = _seconds_of_import(modules)
            if repeat > 0:
                values.append(elapsed)
    whole = statistics.median(seconds[_IMPORTS[0]])
    print("| | processor seconds, median | least to most | ratio |")
    print("|---|---|---|---|")
    for modules, values in seconds.items():
        middle = statistics.median(values)
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(
            f"| `import {modules}` | {middle:.2f} | {spread} | {middle / whole:.2f} |"
        )


def _seconds_of_import(modules: str) -> float:
    # Installed packages have their bytecode beside them.
    never = "PYTHONDONTWRITEBYTECODE"
    environment = {k: v for k, v in os.environ.items() if k != never}
    command = [sys.executable, "-c", f"import {modules}"]
    before = os.times()
    subprocess.run(command, env=environment, check=True)
    after = os.times()
    return (
        after.children_user
        - before.children_user
        + after.children_system
        - before.children_system
    )


if __name__ == "__main__":
    main()
