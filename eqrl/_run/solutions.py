"""Whole solutions on disk, for another process to resume training from."""

import contextlib
import functools
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import PyTreeDef, default_registry, keystr

from .._agents.base import AbstractAgent, AnyAgent
from .._population.solution import (
    PopulationHistory,
    PopulationSolution,
    UnfinishedGeneration,
    history_of,
)
from .._population.train import make_agents
from .._pytree.fields import check_integer, is_key, shown
from .._pytree.tree import is_array_shape
from .._storage.checkpoint import (
    Directory,
    begin_save,
    check_directory,
    checkpoint_manager,
    restore,
    save,
    saved_arrays,
    saved_steps,
)
from .._storage.orbax import quiet_event_loops
from .._training.mesh import mesh_of_processes, on_any_process, shardings_over
from .._training.rows import AnySolution, Solution
from .._training.trainer import Trainer, begin_row, without_frames
from .._types.custom_types import EnvState, Extras, Memory, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._host import saved_simulators, with_simulators


# The kind of the solution is the name under which a checkpoint holds all of it but the
# history.
_KINDS = ("solution", "seeds", "population")


def save_solution(
    directory: Directory,
    solution: AnySolution | PopulationSolution,
    step: int | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Saves a whole solution: states, replays, counts and the history so far.

    ```python
    eqrl.save_solution("runs/x", solution)
    # In another process:
    solution = eqrl.load_solution("runs/x", agent, env, trainer)
    eqrl.train(agent, env, trainer, ..., initial=solution)
    ```

    Everything is saved bit for bit. Simulators outside JAX are saved if they can be,
    such as those of MuJoCo and classic control in Gymnasium; otherwise, or with other
    options or another time limit, training resumes with new episodes. Earlier steps
    stay intact if the process is killed while saving.

    **Arguments:**

    - `directory`: created if it does not exist. Each step has a folder in it.
    - `solution`: from `train`, `train_seeds` or `train_population`, or from an error
        that one of them raised. For the skills of `learn_skills`, use `save_skills`. If
        it spans several processes, all of them must save it together; see `save`.
    - `step`: the step to save it under, not yet in the directory; by default the number
        of environment steps of each seed or member.
    - `overwrite`: deletes the step first if it is in the directory. Not for several
        processes.
    """
    content = content_of(solution)
    number = step_of(solution) if step is None else step
    if overwrite and number in saved_steps(directory):
        if jax.process_count() > 1:
            raise ValueError(
                "`overwrite=True` is for one process; delete the step before others "
                "look for it."
            )
        shutil.rmtree(Path(directory) / str(number))
    save(directory, number, content)


def content_of(solution: AnySolution | PopulationSolution) -> PyTree:
    """The tree that is saved for a solution."""
    if isinstance(solution, PopulationSolution):
        kind, state = "population", solution.trainer_states
        content = {"agents": solution.agents, "state": state, "counts": solution.counts}
        history = history_of(solution)
        if solution.unfinished is not None:
            content["unfinished"] = dict(vars(solution.unfinished))
    elif isinstance(solution, Solution):
        state = solution.trainer_state
        kind = "solution" if state.failed.ndim == 0 else "seeds"
        content = {"state": state, "counts": solution.counts}
        history = {"metrics": solution.metrics}
        if solution.unfinished is not None:
            content["unfinished"] = solution.unfinished
    else:
        raise _cannot_be_saved(solution)
    try:
        structure = jax.tree.structure(history).serialize_using_proto()
    except ValueError as error:
        raise ValueError(
            "`solution.descriptors` cannot be saved: they must be arrays, alone or in "
            f"dictionaries with strings as keys, lists or tuples. {error}"
        ) from error
    # Loading derives the structure of the states from agent, environment and trainer;
    # that of the history depends on metrics and descriptor, so it is saved as well.
    rows = {"rows": history, "structure": np.frombuffer(structure, np.uint8)}
    simulators = saved_simulators(state.actors.env_state)
    given = {} if simulators is None else {"simulators": simulators}
    return {kind: content, "history": rows, **given}


def load_solution(
    directory: Directory,
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    trainer: Trainer,
    step: int | None = None,
    *,
    mesh: Mesh | None = None,
) -> Any:
    """Loads a solution that `save_solution` saved.

    **Arguments:**

    - `directory`: as given to `save_solution`.
    - `agent`, `env`, `trainer`: those it was trained with. The hyperparameters of the
        members of a population are loaded, so `agent` may be a single one.
    - `step`: the step to load; `None` is the latest.
    - `mesh`: devices to spread seeds or a population over, as in `train_seeds` and
        `train_population`. It need not be the one they were trained on.

    **Returns:**

    The `Solution`, which has the axis `num_seeds` if `train_seeds` made it, or the
    `PopulationSolution`.

    Raises a `ValueError` if no such step holds a solution, or if agent, environment and
    trainer do not fit it.
    """
    step, saved = saved_arrays(directory, step)
    kinds = [kind for kind in _KINDS if f"['{kind}']['state'].failed" in saved]
    if not kinds:
        raise ValueError(
            f"Step {step} of `{directory}` holds no solution that "
            "`eqrl.save_solution` saved; `eqrl.restore` loads what `eqrl.save` saved."
        )
    [kind] = kinds
    if mesh is not None and kind == "solution":
        raise ValueError(
            "`mesh` is for seeds and populations, but a single training was saved."
        )
    like = {kind: _shapes(kind, saved, agent, env, trainer, mesh)}
    content = restore(directory, like, step, lambda tree: tree[kind])[kind]
    history = _read_history(directory, step, saved)
    if _SIMULATORS in saved:
        like = {
            "simulators": {
                name: np.zeros(saved[f"['simulators']['{name}']"].shape, kind)
                for name, kind in (("bytes", np.uint8), ("lengths", int))
            }
        }
        read = restore(directory, like, step, lambda tree: tree["simulators"])
        content["state"] = with_simulators(env, content["state"], read["simulators"])
    unfinished = content.get("unfinished")
    if kind != "population":
        return Solution(
            trainer_state=content["state"],
            counts=content["counts"],
            unfinished=unfinished,
            **history,
        )
    if unfinished is not None:
        unfinished = UnfinishedGeneration(**unfinished)
    return PopulationSolution(
        agents=content["agents"],
        trainer_states=content["state"],
        counts=content["counts"],
        unfinished=unfinished,
        **history,
    )


def continues(
    solution: AnySolution | PopulationSolution, directory: Directory, step: int
) -> bool:
    """Whether the history of a solution begins with that of the one that was saved."""
    _, saved = saved_arrays(directory, step)
    if _STRUCTURE not in saved:
        return False
    earlier, now = (
        {keystr(path): rows for path, rows in jax.tree.leaves_with_path(history)}
        for history in (
            _read_history(directory, step, saved),
            content_of(solution)["history"]["rows"],
        )
    )
    return all(
        name in now and np.array_equal(now[name][: len(rows)], rows, equal_nan=True)
        for name, rows in earlier.items()
    )


# The name in a checkpoint of the saved simulators outside JAX.
_SIMULATORS = "['simulators']['bytes']"

# The name in a checkpoint of the structure of its history.
_STRUCTURE = "['history']['structure']"


def _read_history(
    directory: Directory, step: int, saved: dict[str, jax.ShapeDtypeStruct]
) -> PopulationHistory:
    like = {"history": {"structure": np.zeros(saved[_STRUCTURE].shape, np.uint8)}}
    read = restore(directory, like, step, lambda tree: tree["history"]["structure"])
    structure = PyTreeDef.deserialize_using_proto(
        default_registry, read["history"]["structure"].tobytes()
    )
    places = jax.tree.unflatten(structure, range(structure.num_leaves))
    shapes = jax.tree.map_with_path(
        lambda path, _: saved[f"['history']['rows']{keystr(path)}"], places
    )
    # NumPy arrays, since JAX arrays would have 32 bits.
    rows = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    if structure.num_leaves == 0:
        return rows
    like = {"history": {"rows": rows}}
    read = restore(directory, like, step, lambda tree: tree["history"]["rows"])
    return read["history"]["rows"]


def _shapes(
    kind: str,
    saved: dict[str, jax.ShapeDtypeStruct],
    agent: AnyAgent,
    env: AnyEnv,
    trainer: Trainer,
    mesh: Mesh | None,
) -> dict[str, Any]:
    """Shapes and types of everything saved except the history."""
    key = jr.key(0)
    has_frames = any(".replay.frames" in name for name in saved)
    if not has_frames:
        # `fill_replay` does not store frames, as `fitting` knows.
        trainer = without_frames(trainer)
    size = saved[f"['{kind}']['state'].failed"].shape
    agents = agent
    if kind == "population":
        agents = eqx.filter_eval_shape(make_agents, agent, None, size[0], key=key)
        agent = _reshaped(agents, lambda shape: shape[1:])
    state, counts = eqx.filter_eval_shape(trainer.init, agent, env, key=key)
    # Arrays are read straight to their devices: all seeds may not fit on one.
    spread, same = shardings_over(mesh)
    shapes = {
        "state": _reshaped(state, lambda shape: (*size, *shape), spread),
        "counts": _reshaped(counts, lambda shape: shape, same),
    }
    if kind == "population":
        shapes["agents"] = _reshaped(agents, lambda shape: shape, spread)
    if any(name.startswith(f"['{kind}']['unfinished']") for name in saved):
        row = eqx.filter_eval_shape(begin_row, trainer, agent, env, state, counts)
        row = _reshaped(row, lambda shape: (*size, *shape), spread)
        shapes["unfinished"] = row
        if kind == "population":
            at = "['population']['unfinished']"
            counters = {x: saved[f"{at}['{x}']"] for x in ("parents", "num_steps")}
            zeros = {x: np.zeros(y.shape, y.dtype) for x, y in counters.items()}
            shapes["unfinished"] = {"row": row, **zeros}
    return shapes


def _reshaped(
    tree: PyTree,
    reshape: Callable[[tuple[int, ...]], tuple[int, ...]],
    sharding: NamedSharding | None = None,
) -> PyTree:
    """Shapes with other axes, and where to put the arrays."""

    def reshaped(leaf: object) -> object:
        if not is_array_shape(leaf):
            return leaf
        shape = reshape(leaf.shape)
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(reshaped, tree)


def _cannot_be_saved(solution: object) -> ValueError:
    return ValueError(
        f"`solution` is a {type(solution).__name__}; it must come from `eqrl.train`, "
        "`eqrl.train_seeds` or `eqrl.train_population`. `eqrl.save_skills` saves "
        "skills, and `eqrl.save` anything else."
    )


def step_of(solution: AnySolution | PopulationSolution) -> int:
    """The number of environment steps of a solution."""
    if isinstance(solution, PopulationSolution):
        state = solution.trainer_states
    elif isinstance(solution, Solution):
        state = solution.trainer_state
    else:
        raise _cannot_be_saved(solution)
    return int(solution.counts.rows_written) * state.actors.timestep.shape[-1]


class Interval:
    """Tells when the next checkpoint is due, by steps or by the clock."""

    def __init__(
        self, *, every_steps: int | None, every_seconds: float | int = 60.0
    ) -> None:
        if every_steps is not None:
            check_integer("every_steps", every_steps, least=1)
        if not (isinstance(every_seconds, Real) and every_seconds >= 0):
            raise ValueError(
                f"`every_seconds={shown(every_seconds)}` must be at least 0."
            )
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self.begin_at(0)

    def begin_at(self, step: int) -> None:
        """Restarts the interval at `step`."""
        self._step, self._seconds = step, time.monotonic()

    def is_over(self, step: int) -> bool:
        """Whether the next checkpoint is due."""
        if self._every_steps is None:
            return time.monotonic() - self._seconds >= self._every_seconds
        return step - self._step >= self._every_steps


class Checkpoints:
    """Saves checkpoints at intervals during training.

    ```python
    with eqrl.Checkpoints("checkpoints") as checkpoints:
        eqrl.train(agent, env, trainer, ..., checkpoint=checkpoints)
    # In another process, after this one was killed:
    solution = eqrl.load_solution("checkpoints", agent, env, trainer)
    eqrl.train(agent, env, trainer, ..., initial=solution)
    ```

    Pass it as the `checkpoint` of `train` and `train_seeds`, or as a `callback` of
    `train_population`. It saves the same as `eqrl.save_solution`, in the background and
    from a copy. A checkpoint that cannot be written does not end training. If the
    directory holds another training, recognized by its `metrics`, a `ValueError` is
    raised at the first row, so that nothing saved is lost, and nothing goes unsaved.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        every_steps: int | None = None,
        every_seconds: float | int = 60.0,
        max_to_keep: int = 2,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """Opens a directory, which may hold earlier checkpoints.

        **Arguments:**

        - `directory`: created if it does not exist; for one training only, which may
            have resumed from the latest step in it. Unfinished checkpoints of a killed
            process are removed from it.
        - `every_steps`: environment steps, of each seed or member, from one checkpoint
            to the next, rounded up to rows or generations; `None` saves by time.
        - `every_seconds`: seconds from one checkpoint to the next, if `every_steps` is
            `None`, rounded up to rows or generations.
        - `max_to_keep`: how many of the newest are kept, at least 1.
        - `on_error`: called with the error of the first checkpoint that could not be
            written; by default it is a warning.
        """
        check_integer("max_to_keep", max_to_keep, least=1)
        self._interval = Interval(every_steps=every_steps, every_seconds=every_seconds)
        self._on_error = on_error
        check_directory(directory)
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._quiet = ExitStack()
        # A program may change its working directory before the first checkpoint.
        self._directory = Path(directory).absolute()
        self._max_to_keep = max_to_keep
        # The step of the checkpoint, or call, after which the next one comes.
        self._latest: int | None = None
        if any(Path(directory).iterdir()):
            self._latest = self._manager.latest_step()
        self._is_own = False
        self._interval.begin_at(self._latest or 0)
        self._has_failed = False

    @functools.cached_property
    def _manager(self) -> Any:
        # Importing Orbax takes a tenth of a second, and an empty directory does not
        # need it before the first checkpoint.
        return checkpoint_manager(self._directory, max_to_keep=self._max_to_keep)

    def __call__(
        self, step: int, metrics: object, solution: AnySolution | PopulationSolution
    ) -> None:
        """Saves a solution if a checkpoint is due."""
        del step, metrics
        number = step_of(solution)
        self._check_order(solution, number)
        # The clocks of several processes differ, and all of them have to save.
        mesh = mesh_of_processes(solution)
        if not on_any_process(self._interval.is_over(number), mesh):
            return
        self._interval.begin_at(number)
        self._wait()
        try:
            begin_save(self._manager, number, _copied(content_of(solution)))
        except Exception as error:
            self._report(error)

    def save(self, solution: AnySolution | PopulationSolution) -> None:
        """Saves a solution, waits until it is written, and raises any error.

        Nothing is written if it was saved already.
        """
        number = step_of(solution)
        self._check_order(solution, number)
        self._wait()
        self._manager.reload()
        if number not in self._manager.all_steps():
            begin_save(self._manager, number, content_of(solution))
            self._manager.wait_until_finished()

    def _wait(self) -> None:
        """Waits for the checkpoint before, whose error does not concern the next."""
        if "_manager" not in vars(self):
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            self._report(error)
            # A new manager removes what was written; all processes would have to make
            # one, but only some may know of the error.
            if jax.process_count() == 1:
                with contextlib.suppress(Exception):
                    self._manager.close()
                del self._manager

    def __enter__(self) -> "Checkpoints":
        self._quiet.enter_context(quiet_event_loops())
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        with self._quiet:
            if "_manager" not in vars(self):
                return
            try:
                self._manager.close()
            except Exception as error:
                self._report(error)

    def _check_order(
        self, solution: AnySolution | PopulationSolution, number: int
    ) -> None:
        """Checks that a solution belongs to the training in the folder."""
        latest = self._latest
        if latest is not None:
            if number >= latest and not self._is_own:
                self._is_own = continues(solution, self._directory, latest)
            if number < latest or not self._is_own:
                raise ValueError(
                    f"`{self._directory}` holds step {latest} of another training than "
                    f"this one, which is at step {number}: each needs a folder of its "
                    "own. To resume the earlier one, pass what `eqrl.load_solution` "
                    "gives as `initial`; to resume an older step, delete later ones."
                )
        self._latest, self._is_own = number, True

    def _report(self, error: Exception) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        if self._on_error is not None:
            self._on_error(error)
            return
        warnings.warn(
            f"A checkpoint could not be written, and training continues: {error}",
            stacklevel=2,
        )


def _copied(tree: PyTree) -> PyTree:
    """A copy on the host, since training donates the arrays of its solution."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
        if not leaf.is_fully_addressable:
            return jnp.copy(leaf)
        if is_key(leaf):
            return jr.wrap_key_data(jnp.copy(jr.key_data(leaf)), impl=jr.key_impl(leaf))
        return np.array(leaf)

    return jax.tree.map(copy, tree)
