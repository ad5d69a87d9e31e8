"""A policy in a file of its own, without the agent that learned it.

This module imports JAX and NumPy only, and nothing of eqrl. Where eqrl is not
installed, a copy of it loads exported policies.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import numpy as np


# A file is this name and the number of its format, a digest of all that follows, and an
# object in JSON, a line each; and then the bytes of which that object tells the sizes.
_NAME = b"eqrl policy "
_FORMAT = 1

_Program = Callable[..., Any]


class ExportedPolicy:
    """A policy which acts in one environment, from NumPy arrays to NumPy arrays.

    `load_policy` makes it. It remembers what its agent remembers within an episode, so
    call `reset` where an episode begins, and load it again for each environment more.
    """

    def __init__(
        self,
        weights: Sequence[np.ndarray],
        begin: _Program,
        act: _Program,
        *,
        observation: jax.ShapeDtypeStruct,
        seed: int,
    ) -> None:
        self._weights = jax.device_put(list(weights))
        self._begin = jax.jit(begin)
        self._act = jax.jit(act)
        self._observation = observation
        self._seed = np.uint32(seed)
        self._num_episodes = 0
        self._num_steps = 0
        self._memory: list[jax.Array] | None = None

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

        - `observation`: a vector of numbers, of the size that the agent learned from.
        """
        given = np.asarray(observation)
        if given.shape != self._observation.shape or given.dtype.kind not in "biuf":
            raise ValueError(
                f"`observation` has the shape {given.shape} and the type {given.dtype},"
                f" but must be {self.observation_size} numbers."
            )
        if self._memory is None:
            episode = np.uint32(self._num_episodes % 2**32)
            self._memory = self._begin(self._weights, self._seed, episode)
            self._num_episodes += 1
        step = np.uint32(self._num_steps % 2**32)
        action, self._memory = self._act(
            self._weights,
            self._memory,
            given.astype(self._observation.dtype),
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

    Nothing is needed but JAX and its `flatbuffers`: no environment, no class of the
    agent and of its networks. Where eqrl is not installed, put a copy of the file
    `eqrl/_interaction/exported_policy.py` there and call its `load_policy`. The first
    action of a policy takes longer than the others, because it is compiled then.

    **Arguments:**

    - `path`: the file.
    - `mode`: how actions are picked, `"greedy"` as in evaluation or `"sample"` as in
        training.
    - `seed`: of the draws of a sampled action and of those that are made once an
        episode, from 0. With the same one, the same actions are drawn.

    Raises a `ValueError` of one line that names the file if it is damaged, if it is no
    exported policy, or if this version of eqrl or JAX cannot read it.
    """
    if mode not in ("greedy", "sample"):
        raise ValueError(f"`mode={mode!r}` must be 'greedy' or 'sample'.")
    # A bool is an integer to Python.
    if type(seed) is bool or not isinstance(seed, int | np.integer):
        raise ValueError(f"`seed={seed!r}` must be a whole number.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed={seed}` must be at least 0 and less than 2^32.")
    header, parts = _unpack(Path(path))
    if header["x64"] != jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"`{path}` was exported with `jax_enable_x64={header['x64']}`; load it with"
            " the same setting."
        )
    programs = {}
    for name in ("begin", mode):
        try:
            programs[name] = jax.export.deserialize(bytearray(parts[name]))
        except Exception as error:  # Whatever a later JAX says of an old format.
            raise ValueError(
                f"`{path}` was exported with jax {header['jax']} and eqrl "
                f"{header['eqrl']}, and cannot be read with jax {jax.__version__} "
                f"({' '.join(str(error).split())[:240]}); export it again."
            ) from error
    act = programs[mode]
    # The arguments are weights, memory, observation, seed and step.
    observation = act.in_avals[-3]
    return ExportedPolicy(
        _read_weights(header["weights"], parts["weights"]),
        programs["begin"].call,
        act.call,
        observation=jax.ShapeDtypeStruct(observation.shape, observation.dtype),
        seed=int(seed),
    )


def pack(header: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """Packs a header for JSON and named parts into the bytes of a file."""
    sizes = {name: len(part) for name, part in parts.items()}
    first = json.dumps({**header, "parts": sizes}).encode()
    body = b"\n".join([first, b"".join(parts.values())])
    return _NAME + f"{_FORMAT}\n{_digest(body)}\n".encode() + body


def _unpack(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The header and the parts of a file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"`{path}` cannot be read: {error.strerror}.") from error
    first, _, rest = content.partition(b"\n")
    number = first.removeprefix(_NAME)
    if not first.startswith(_NAME) or not number.isdigit():
        raise ValueError(f"`{path}` is not a policy that `eqrl.export_policy` wrote.")
    if number != str(_FORMAT).encode():
        raise ValueError(
            f"`{path}` has the format {number.decode()[:20]} of exported policies, and "
            f"this version of eqrl reads {_FORMAT}; update eqrl to load it."
        )
    digest, _, body = rest.partition(b"\n")
    if digest != _digest(body).encode():
        raise ValueError(
            f"`{path}` is damaged: its digest differs; take it from a copy, or export "
            "the policy again."
        )
    first, _, rest = body.partition(b"\n")
    header = json.loads(first)
    parts: dict[str, bytes] = {}
    for name, size in header["parts"].items():
        parts[name], rest = rest[:size], rest[size:]
    return header, parts


def weights_header(
    weights: Sequence[np.ndarray | jax.Array], used: Sequence[bool]
) -> tuple[list[dict[str, Any]], bytes]:
    """Types and shapes of all weights, and the bytes of those that are used."""
    described = [
        {"type": str(array.dtype), "shape": list(array.shape), "used": is_used}
        for array, is_used in zip(weights, used, strict=True)
    ]
    arrays = (np.asarray(array) for array in weights)
    kept = (a.tobytes() for a, is_used in zip(arrays, used, strict=True) if is_used)
    return described, b"".join(kept)


def _read_weights(
    described: Sequence[Mapping[str, Any]], content: bytes
) -> list[np.ndarray]:
    """The weights; zeros for those that no program uses."""
    weights = []
    for weight in described:
        dtype, shape = np.dtype(weight["type"]), tuple(weight["shape"])
        array = np.zeros(shape, dtype)
        if weight["used"]:
            array = np.frombuffer(content[: array.nbytes], dtype).reshape(shape)
            content = content[array.nbytes :]
        weights.append(array)
    return weights


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
