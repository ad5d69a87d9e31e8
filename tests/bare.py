"""Trains from the command line and in Python where no extra of eqrl is installed.

Run as `python -P bare.py` in an environment in which eqrl is installed alone, as the
nox session `bare` does. Prints what it does, and exits with 1 where that does not end
as it should.
"""

import importlib.util
import subprocess
import sys
import tempfile
import time


_EXTRAS = ("brax", "gymnax", "matplotlib", "pygame", "tensorboardX")

# The words after `eqrl`, the exit code, and a part of the only line that is an error.
_COMMANDS = (
    (
        "train --env eqrl/Point --env-option goal=(1,2) --num-steps 2000 --folder run",
        0,
        "There are no pictures: drawing needs matplotlib, which is not installed: `pip "
        'install "eqrl[plots]"`.',
    ),
    ("evaluate run", 0, None),
    ("export run --output point.policy", 0, None),
    ("render run", 2, "`render` of `eqrl/Point` needs matplotlib"),
    ("train", 2, "`gymnax/Pendulum-v1` needs gymnax"),
    ("train --env brax/ant", 2, "`brax/ant` needs brax"),
    ("train --env eqrl/Point --tensorboard", 2, "`--tensorboard` needs tensorboardX"),
)

_PROGRAM = """
import jax.numpy as jnp
import jax.random as jr
import eqrl

env = eqrl.envs.make("eqrl/Point")
agent = eqrl.TD3(
    make_actor=eqrl.nn.Deterministic((8,)), make_critic=eqrl.nn.Critic((8,))
)
trainer = eqrl.Trainer(batch_size=8, capacity=200, warmup_steps=50)
solution = eqrl.train(agent, env, trainer, num_steps=200, key=jr.key(0))
eqrl.save("saved", 200, solution.state)
state = eqrl.restore("saved", like=solution.state)
# In tests, run-time type checks would name these before eqrl does.
for wrong in (
    "product(jnp.ones(1), jnp.ones((4, 2)))",
    "product(jnp.ones(1), jnp.ones((1, 2)), 'bf16')",
    "Linear(1, 1, precision='bf16', key=jr.key(0))",
):
    try:
        eval(f"eqrl.nn.{wrong}")
    except ValueError as error:
        print(error)
    else:
        raise SystemExit(f"{wrong} was not refused")
print(eqrl.evaluate(agent, state, env, num_episodes=2, key=jr.key(1)).returns)
"""


def main() -> int:
    installed = [name for name in _EXTRAS if importlib.util.find_spec(name)]
    if installed:
        print(f"{', '.join(installed)} can be imported here, so this shows nothing")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        passed = [
            _ends(["-m", "eqrl", *words.split()], folder, code, error)
            for words, code, error in _COMMANDS
        ]
        passed.append(_ends(["-c", _PROGRAM], folder, 0, None))
    return 0 if all(passed) else 1


def _ends(words: list[str], folder: str, code: int, error: str | None) -> bool:
    """Whether Python, with these words in a folder, ends as it should."""
    begin = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-P", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = result.stderr.splitlines()
    passed = result.returncode == code and (
        not lines if error is None else len(lines) == 1 and error in lines[0]
    )
    name = "a program" if words[0] == "-c" else " ".join(words[1:])
    state = "as it should" if passed else "NOT AS IT SHOULD"
    print(f"{time.monotonic() - begin:5.1f} s  {name}: ends {state}", flush=True)
    if not passed:
        print(f"exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return passed


if __name__ == "__main__":
    sys.exit(main())
