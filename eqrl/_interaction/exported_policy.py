"""Policies in files, which do not need the agent that learned them.

This module only imports JAX and NumPy, not eqrl. Where eqrl is not installed, a copy of
it loads exported policies.
"""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import numpy as np


# A file is a zip archive, whose reader compares every member with its CRC-32. This
# member is a JSON object that names the others. They are the compiled programs, by
# their names, and the bytes of each weight that one of them reads, as `weights/3`.
_HEADER = "policy.json"
_FORMAT = 1


class ExportedPolicy:
    """A policy that acts in one environment, from NumPy arrays to NumPy arrays.

    `load_policy` makes it. It keeps the agent's memory within an episode, so call
    `reset` when an episode begins, and load one policy for each environment.
    """

    def __init__(
        self,
        weights: Sequence[np.ndarray],
        begin: jax.export.Exported,
        act: jax.export.Exported,
        *,
        seed: int,
    ) -> None:
        self._weights = jax.device_put(list(weights))
        self._begin = jax.jit(begin.call)
        self._act = jax.jit(act.call)
        # It takes the weights, the memory, the observation, the seed and the step.
        self._observation = act.in_avals[-3]
        self._seed = np.uint32(seed)
        self._num_episodes = 0
        self._num_steps = 0
        self._memory: object = None

    @property
    def observation_size(self) -> int:
        """The length of an observation."""
        return self._observation.shape[0]

    def reset(self) -> None:
        """Begins an episode; the first begins by itself."""
        self._memory = None

    def act(self, observation: np.ndarray) -> np.ndarray:
        """The action after the next observation of the episode.

        It is a vector in [-1, 1], or an integer of shape `()`.

        **Arguments:**

        - `observation`: a vector of the same size and type as in training.
        """
        given, kind = np.asarray(observation), self._observation.dtype
        # Only floats accept numbers of every type.
        fits = given.dtype.kind in "biuf" if kind.kind == "f" else given.dtype == kind
        if given.shape != self._observation.shape or not fits:
            raise ValueError(
                f"`observation` has the shape {given.shape} and the type {given.dtype},"
                f" but must be {self.observation_size} numbers, of the type {kind}."
            )
        if self._memory is None:
            episode = np.uint32(self._num_episodes % 2**32)
            self._memory = self._begin(self._weights, self._seed, episode)
            self._num_episodes += 1
        step = np.uint32(self._num_steps % 2**32)
        action, self._memory = self._act(
            self._weights,
            self._memory,
            given.astype(kind),
            self._seed,
            step,
        )
        self._num_steps += 1
        return np.array(action)


def load_policy(
    path: str | os.PathLike[str],
    *,
    mode: Literal["greedy", "sample"] = "greedy",
    seed: int = 0,
) -> ExportedPolicy:
    """Loads a policy that `export_policy` wrote.

    ```python
    policy = eqrl.load_policy("walker.policy")
    policy.reset()
    action = policy.act(observation)
    ```

    It only needs JAX and its `flatbuffers`, not the environment or the classes of the
    agent and its networks. Where eqrl is not installed, put a copy of the file
    `eqrl/_interaction/exported_policy.py` there and call its `load_policy`. The first
    action of a policy takes longer than the others, since the policy is compiled then.

    **Arguments:**

    - `path`: the file.
    - `mode`: how actions are picked, `"greedy"` as in evaluation or `"sample"` as in
        training.
    - `seed`: at least 0, for the draws of sampled actions and for draws once per
        episode. The same seed draws the same actions.

    Raises a `ValueError` of one line that names the file if it is damaged, if it is
    not an exported policy, or if this version of eqrl or JAX cannot read it.
    """
    if mode not in ("greedy", "sample"):
        raise ValueError(f"`mode={mode!r}` must be 'greedy' or 'sample'.")
    # A bool is an integer to Python.
    is_integer = isinstance(seed, int | np.integer) and type(seed) is not bool
    if not is_integer or not 0 <= seed < 2**32:
        raise ValueError(
            f"`seed={seed}` must be an integer, at least 0 and less than 2^32."
        )
    header, members = _read(Path(path))
    # With the other setting, JAX would compile for, and return, other types.
    if header["x64"] != jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"`{path}` was exported with `jax_enable_x64={header['x64']}`; load it with"
            " the same setting."
        )
    try:
        begin, act = (
            jax.export.deserialize(bytearray(members[name])) for name in ("begin", mode)
        )
    except Exception as error:  # JAX may raise any for a format it no longer reads.
        raise ValueError(
            f"`{path}` was exported with jax {header['jax']} and eqrl "
            f"{header['eqrl']}, and cannot be read with jax {jax.__version__} "
            f"({' '.join(str(error).split())[:240]}); export it again."
        ) from error
    # `begin` takes the weights, the seed and the number of the episode. A weight that
    # no program reads is not in the file, and may be anything of its shape.
    weights = [
        np.ndarray(aval.shape, aval.dtype, members[name])
        if (name := f"weights/{index}") in members
        else np.zeros(aval.shape, aval.dtype)
        for index, aval in enumerate(begin.in_avals[:-2])
    ]
    return ExportedPolicy(weights, begin, act, seed=int(seed))


def write_policy(
    path: Path, header: Mapping[str, object], members: Mapping[str, bytes]
) -> None:
    """Writes a file for `load_policy`.

    `members` are the programs `begin`, `greedy` and `sample`, and the weights.
    """
    described = {**header, "format": _FORMAT, "members": list(members)}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(_HEADER, json.dumps(described))
        for name, content in members.items():
            archive.writestr(name, content)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Reads the header and all other members of a file, even those not needed."""
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(_HEADER))
            if header["format"] == _FORMAT:
                return header, {name: archive.read(name) for name in header["members"]}
    except OSError as error:
        raise ValueError(f"`{path}` cannot be read: {error.strerror}.") from error
    except Exception as error:  # A flipped bit may ask for a password, for example.
        raise ValueError(
            f"`{path}` is damaged, or is not a policy that `eqrl.export_policy` wrote; "
            "take it from a copy, or export the policy again."
        ) from error
    raise ValueError(
        f"`{path}` has the format {header['format']} of exported policies, and this "
        f"version of eqrl reads {_FORMAT}; update eqrl to load it."
    )
