import asyncio
import contextlib
import dataclasses
import sys
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array


AnyArray = Array | np.ndarray
Index = tuple[tuple[int, int], ...]
"""Where a block of an array begins and ends along each axis."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A block of an array and the CRC-32 of its bytes.

    A CRC-32 changes with any single bit, and takes a fraction of the time of writing.
    """

    index: Index
    digest: int


def is_spread(leaf: object) -> bool:
    """Whether other processes hold parts of an array."""
    sharding = getattr(leaf, "sharding", None)
    return sharding is not None and not sharding.is_fully_addressable


def pieces_of(arrays: Mapping[str, AnyArray]) -> dict[str, list[Piece]]:
    """The digests of all blocks of each array, a block for each different shard.

    If some are spread over processes, each of these must make this call.
    """
    places: list[tuple[str, Index]] = []
    digests: list[int | None] = []
    for name, array in arrays.items():
        blocks = _blocks(array)
        indices = set(blocks)
        if not isinstance(array, np.ndarray):
            shards = array.sharding.devices_indices_map(array.shape).values()
            indices.update(_index(slices, array.shape) for slices in shards)
        # All processes list the same blocks in the same order, whichever of them holds
        # a block, so that a digest is identified by its position.
        for index in sorted(indices):
            places.append((name, index))
            digests.append(_digest(blocks[index]) if index in blocks else None)
    if any(map(is_spread, arrays.values())):
        digests = _gather(digests)
    pieces: dict[str, list[Piece]] = {name: [] for name in arrays}
    for (name, index), digest in zip(places, digests, strict=True):
        if digest is not None:
            pieces[name].append(Piece(index, digest))
    return pieces


def is_intact(value: AnyArray, pieces: Sequence[Piece]) -> bool:
    """Whether an array has the digests it was saved with.

    In an array that is spread over processes, only the blocks that lie within one shard
    of this process are checked.
    """
    blocks = _blocks(value)
    for piece in pieces:
        found = _find(blocks, piece.index)
        if found is None and not is_spread(value):
            # It was saved with another sharding, and its block lies across the shards.
            blocks = {_whole(value.shape): np.asarray(value)}
            found = _find(blocks, piece.index)
        if found is not None and _digest(found) != piece.digest:
            return False
    return True


def _digest(block: np.ndarray) -> int:
    # Orbax gives all arrays back in the byte order of the machine.
    native = block.astype(block.dtype.newbyteorder("="), copy=False)
    return zlib.crc32(np.ascontiguousarray(native).reshape(-1).view(np.uint8).data)


def _whole(shape: tuple[int, ...]) -> Index:
    return tuple((0, size) for size in shape)


def _index(slices: Sequence[slice], shape: tuple[int, ...]) -> Index:
    bounds = [part.indices(size) for part, size in zip(slices, shape, strict=True)]
    return tuple((begin, end) for begin, end, _ in bounds)


def _blocks(array: AnyArray) -> dict[Index, np.ndarray]:
    """The different shards of an array that this process holds."""
    if isinstance(array, np.ndarray):
        return {_whole(array.shape): array}
    return {
        _index(shard.index, array.shape): np.asarray(shard.data)
        for shard in array.addressable_shards
    }


def _find(blocks: Mapping[Index, np.ndarray], index: Index) -> np.ndarray | None:
    """The block at an index, if it lies within one that is held."""
    for outer, block in blocks.items():
        if all(
            low <= begin and end <= high
            for (low, high), (begin, end) in zip(outer, index, strict=True)
        ):
            slices = (
                slice(begin - low, end - low)
                for (low, _), (begin, end) in zip(outer, index, strict=True)
            )
            return block[(*slices, ...)]
    return None


def _gather(digests: Sequence[int | None]) -> list[int | None]:
    """The digest of each block, from the first process that holds it."""
    from jax.experimental import multihost_utils

    # Every number may be a digest, so a separate column holds whether there is one.
    mine = np.asarray(
        [[digest is not None, digest or 0] for digest in digests], np.uint32
    )
    everyones = np.asarray(multihost_utils.process_allgather(mine))
    first = np.argmax(everyones[:, :, 0], axis=0)
    return [int(everyones[first[place], place, 1]) for place in range(len(digests))]


# Several threads may save concurrently; the last to end restores asyncio's function.
_lock = threading.Lock()
_num_open = 0
_new_event_loop = asyncio.new_event_loop


@contextlib.contextmanager
def quiet_event_loops() -> Iterator[None]:
    """Silences the event loops that Orbax makes, in any thread, when they end.

    If one of many reads or writes fails, Orbax closes its event loop while the others
    are in progress, and each of them would write a traceback to standard error. The
    error that matters is raised anyway.
    """
    global _num_open
    with _lock:
        _num_open += 1
        asyncio.new_event_loop = _make_loop
    try:
        yield
    finally:
        with _lock:
            _num_open -= 1
            if _num_open == 0:
                asyncio.new_event_loop = _new_event_loop


def _make_loop() -> asyncio.AbstractEventLoop:
    loop = _new_event_loop()
    # The function serves the whole process, and loops of other libraries are left
    # alone.
    if any(
        str(frame.f_globals.get("__name__")).startswith("orbax.")
        for frame, _ in traceback.walk_stack(sys._getframe())
    ):
        # A loop that is not written in Python does not take attributes.
        with contextlib.suppress(AttributeError):
            loop.call_soon_threadsafe = _unless_closed(loop)  # pyright: ignore[reportAttributeAccessIssue]
        loop.set_exception_handler(lambda loop, context: None)
    return loop


def _unless_closed(loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    call = loop.call_soon_threadsafe

    def call_unless_closed(*args: Any, **options: Any) -> asyncio.Handle | None:
        try:
            return call(*args, **options)
        except RuntimeError:
            if not loop.is_closed():
                raise
            return None

    return call_unless_closed
