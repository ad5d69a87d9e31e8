"""Damages what the library saved, and loads it again.

Run as `python -m tests.faults.corruption --number 1000`. Each load of a damaged folder
must either give what was saved, bit for bit, or raise a `ValueError` of one line that
names a path in that folder, and write nothing to the standard error. Prints how often
each was so for each kind of folder and of damage, and exits with 1 if anything else
happened.
"""

import argparse
import collections
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl
from eqrl._disk.library import init_library
from eqrl._run.config import (
    Population,
    Run,
    Settings,
    Training,
    read_config,
    write_config,
)
from eqrl._run.files import policy_folder
from eqrl._run.load import best_policy
from eqrl._run.write import write_evaluation
from eqrl.envs import Point


AGENT = eqrl.SAC(
    make_actor=eqrl.nn.Gaussian((64, 64)), make_critic=eqrl.nn.Critic((64, 64))
)
ENV = Point(max_steps=5)
TRAINER = eqrl.Trainer(num_envs=2, batch_size=8, capacity=2_000, warmup_steps=20)
SKILLED = eqrl.Intrinsic(AGENT, eqrl.Incremental())

UNHARMED, NAMED = "as it was saved", "named in one line"
WRONG, FOREIGN, NOISY = "SILENTLY WRONG", "OTHER ERROR", "NOISE"


@dataclasses.dataclass(frozen=True)
class Saved:
    """A folder that was saved, and how to load it."""

    folder: Path
    load: Callable[[], Any]


def policy(folder: Path) -> Saved:
    """The state of an agent with networks of 64 and 64."""
    state = AGENT.init(ENV.spec, key=jr.key(0))
    eqrl.save(folder, 1, state)
    like = eqx.filter_eval_shape(AGENT.init, ENV.spec, key=jr.key(0))
    return Saved(folder, lambda: eqrl.restore(folder, like))


def trainer_state(folder: Path) -> Saved:
    """Agent, environments and replay, as random numbers so that nothing is alike."""
    like = eqx.filter_eval_shape(TRAINER.init, AGENT, ENV, key=jr.key(0))
    eqrl.save(folder, 1, jax.tree.map(_drawn, like))
    return Saved(folder, lambda: eqrl.restore(folder, like))


def library(folder: Path) -> Saved:
    """Two skills, their training state and metrics."""
    empty = eqx.filter_eval_shape(
        lambda: init_library(SKILLED, ENV, TRAINER, capacity=3, key=jr.key(0))
    )
    skills = jax.tree.map(_drawn, empty)
    steps = 10 * np.arange(1, 401)
    skills = dataclasses.replace(
        skills,
        count=jnp.asarray(2),
        training=_at_the_end(skills.training),
        metrics={"step": steps, "loss": np.sin(steps), "skill": steps // 20},
    )
    eqrl.save_skills(folder, skills)
    return Saved(folder, lambda: eqrl.load_skills(folder, SKILLED, ENV, TRAINER))


def run_of_seeds(folder: Path) -> Saved:
    """What `eqrl train` writes that is read again, of two seeds."""
    run = Run("sac", {}, {}, Settings("eqrl/Point", max_steps=5), Training(seeds=2))
    return _run_folder(folder, run, with_agents=False)


def run_of_a_population(folder: Path) -> Saved:
    """What `eqrl pbt` writes that is read again, of two members."""
    schedule = Population(size=2)
    run = Run("sac", {}, {}, Settings("eqrl/Point", max_steps=5), schedule)
    return _run_folder(folder, run, with_agents=True)


KINDS = (policy, trainer_state, library, run_of_seeds, run_of_a_population)


def _run_folder(folder: Path, run: Run, *, with_agents: bool) -> Saved:
    folder.mkdir()
    write_config(folder, run)
    returns = np.arange(6, dtype=float).reshape(2, 3)
    best = 1 if with_agents else None
    write_evaluation(folder, returns, step=10, mode="greedy", best=best)
    agent, env = run.make_agent(), run.make_env()
    for index in range(2):
        state = agent.init(env.spec, key=jr.key(index))
        policy = (agent, state) if with_agents else state
        eqrl.save(policy_folder(folder, run.schedule.kind, index), 10, policy)

    def load() -> Any:
        read = read_config(folder)
        loaded = [eqrl.load_run(folder, index) for index in range(2)]
        return read, best_policy(folder, read), loaded

    return Saved(folder, load)


def _drawn(leaf: Any) -> Any:
    """An array of the shape and type of a leaf that is hard to compress."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    random = np.random.default_rng(zlib.crc32(str(leaf).encode()))
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jr.split(jr.key(0), leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(random.normal(size=leaf.shape), leaf.dtype)
    return jnp.asarray(random.integers(0, 2, leaf.shape), leaf.dtype)


def _at_the_end(training: Any) -> Any:
    """As many steps as there are in the metrics."""
    return eqx.tree_at(lambda t: t.earlier_steps, training, jnp.asarray(4_000))


def damages(content: bytes, random: np.random.Generator) -> dict[str, bytes | None]:
    """What may become of a file; `None` if it is gone."""
    flipped = bytearray(content)
    if flipped:
        flipped[random.integers(len(flipped))] ^= 1 << int(random.integers(8))
    begin = int(random.integers(len(content) + 1))
    end = min(begin + 512, len(content))
    return {
        "flipped": bytes(flipped),
        "cut": content[:begin],
        "sector of zeros": content[:begin] + bytes(end - begin) + content[end:],
        "zeroed": bytes(len(content)),
        "emptied": b"",
        "deleted": None,
    }


# More than half are flips, which are the hardest to notice.
_WEIGHTS = {"flipped": 0.6, "cut": 0.1, "sector of zeros": 0.1, "zeroed": 0.05}
_WEIGHTS |= {"emptied": 0.05, "deleted": 0.1}


def outcome(saved: Saved, expected: dict[str, Any]) -> tuple[str, str]:
    """What loading a damaged folder came to, and what there is to say of it."""
    with _standard_error() as written:
        try:
            loaded = saved.load()
        except ValueError as error:
            text = str(error)
            is_right = type(error) is ValueError and str(saved.folder) in text
            is_right = is_right and "\n" not in text
            found = (NAMED if is_right else FOREIGN), f"{type(error).__name__}: {text}"
        except Exception as error:
            found = FOREIGN, f"{type(error).__name__}: {error}"
        else:
            found = (UNHARMED if _bits(loaded) == expected else WRONG), ""
    noise = written()
    return (NOISY, noise) if noise else found


@contextlib.contextmanager
def _standard_error() -> Iterator[Callable[[], str]]:
    """Collects what this process, and not only Python, writes to the standard error."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        content = ""

        def written() -> str:
            return content

        try:
            yield written
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            content = file.read().decode(errors="replace")


def _bits(tree: Any) -> dict[str, Any]:
    """All leaves of a tree, to be compared bit for bit."""
    return {
        jax.tree_util.keystr(path): _leaf_bits(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def _leaf_bits(leaf: Any) -> Any:
    if not isinstance(leaf, (jax.Array, np.ndarray)):
        return repr(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jr.key_data(leaf)
    return str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()


def _choose(files: list[Path], random: np.random.Generator) -> Path:
    """Half of the time any file, otherwise a large one sooner than a small one."""
    if random.integers(2):
        return files[random.integers(len(files))]
    sizes = np.asarray([file.stat().st_size for file in files], float)
    return files[random.choice(len(files), p=sizes / sizes.sum())]


def damage_and_load(
    saved: Saved, number: int, random: np.random.Generator
) -> Iterator[tuple[str, str, str]]:
    """The kind of each damage, what loading came to, and what there is to say."""
    expected = _bits(saved.load())
    files = sorted(path for path in saved.folder.rglob("*") if path.is_file())
    for _ in range(number):
        path = _choose(files, random)
        content = path.read_bytes()
        how = str(random.choice(list(_WEIGHTS), p=list(_WEIGHTS.values())))
        damaged = damages(content, random)[how]
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        result, text = outcome(saved, expected)
        path.write_bytes(content)
        yield how, result, f"{how} {path.relative_to(saved.folder)}: {text}"
    assert _bits(saved.load()) == expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1_000, help="of damages in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=3, help="messages of each kind")
    options = parser.parse_args()
    failures: list[str] = []
    totals: collections.Counter[str] = collections.Counter()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        for seed, kind in enumerate(KINDS):
            random = np.random.default_rng((options.seed, seed))
            saved = kind(Path(directory).resolve() / kind.__name__)
            counts: collections.Counter[tuple[str, str]] = collections.Counter()
            shown = 0
            number = -(-options.number // len(KINDS))
            for how, result, text in damage_and_load(saved, number, random):
                counts[how, result] += 1
                totals[result] += 1
                if result not in (UNHARMED, NAMED):
                    failures.append(f"{kind.__name__}: {result}: {text}")
                elif result == NAMED and shown < options.show:
                    shown += 1
                    print(f"  {text}")
            print(f"{kind.__name__}:")
            for (how, result), count in sorted(counts.items()):
                print(f"  {how:16} {result:18} {count:5}")
    print(f"in all, in {time.monotonic() - begin:.0f} s:")
    for result in (UNHARMED, NAMED, WRONG, FOREIGN, NOISY):
        print(f"  {result:18} {totals[result]:5}")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
