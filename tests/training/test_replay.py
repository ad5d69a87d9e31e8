import dataclasses

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jaxtyping import Array, Float, Int, PRNGKeyArray

from eqrl import Counts, ReplayBuffer, ReplayState
from tests.toy import GetKey, primitives_with_axis


class _Item(eqx.Module):
    """Says when it was written and of which environment it is."""

    time: Int[Array, "*batch"]
    vector: Float[Array, "*batch 2"]


_ITEM = _Item(
    time=jax.ShapeDtypeStruct((), jnp.int32),  # pyright: ignore[reportArgumentType]
    vector=jax.ShapeDtypeStruct((2,), jnp.float32),  # pyright: ignore[reportArgumentType]
)


def _counts(rows_written: int | Array, rows_kept: int | Array = 0) -> Counts:
    return Counts(
        updates=jnp.asarray(0, int),
        rows_written=jnp.asarray(rows_written, int),
        rows_kept=jnp.asarray(rows_kept, int),
    )


@eqx.filter_jit
def _row(time: Int[Array, ""], num_envs: int) -> _Item:
    env = jnp.arange(num_envs)
    vector = jnp.stack([jnp.full(num_envs, time), env], axis=1).astype(float)
    return _Item(time=jnp.full(num_envs, time), vector=vector)


def _times(start: int, length: int) -> tuple[Array, Array]:
    return jnp.asarray(start, int), jnp.asarray(start + length, int)


@eqx.filter_jit
def _write_rows(
    buffer: ReplayBuffer,
    state: ReplayState[_Item],
    times: tuple[Int[Array, ""], Int[Array, ""]],
    counts: Counts,
) -> ReplayState[_Item]:
    """Writes a row for each time, the first of which comes behind those counted."""

    def write(time: Int[Array, ""], state: ReplayState[_Item]) -> ReplayState[_Item]:
        num_envs = state.data.time.shape[0]
        rows_written = counts.rows_written + time - times[0]
        here = dataclasses.replace(counts, rows_written=rows_written)
        return buffer.add(state, _row(time, num_envs), here)

    return lax.fori_loop(*times, write, state)


def _write(
    buffer: ReplayBuffer,
    state: ReplayState[_Item],
    start: int,
    stop: int,
    rows_kept: int = 0,
) -> ReplayState[_Item]:
    """Writes the rows that say `start` to `stop - 1`, behind those before."""
    counts = _counts(0, rows_kept) if rows_kept > 0 else _counts(start)
    return _write_rows(buffer, state, _times(start, stop - start), counts)


@eqx.filter_jit
def _init(buffer: ReplayBuffer, num_envs: int) -> ReplayState[_Item]:
    return buffer.init(_ITEM, num_envs)


_add = eqx.filter_jit(ReplayBuffer.add)
_sample_counted = eqx.filter_jit(ReplayBuffer.sample)


def _sample(
    buffer: ReplayBuffer,
    state: ReplayState[_Item],
    rows_written: int,
    key: PRNGKeyArray,
    rows_kept: int | Array = 0,
) -> _Item:
    counts = _counts(rows_written, rows_kept)
    return jax.device_get(_sample_counted(buffer, state, counts, key=key))


def _times_of_model(num_written: int, rows: int) -> list[int]:
    """What a list which drops its oldest element holds in the end."""
    model: list[int] = []
    for time in range(num_written):
        model.append(time)
        if len(model) > rows:
            model.pop(0)
    return model


_SHAPES = [
    # (environments, rows, sequence length)
    (1, 5, 1),
    (3, 4, 1),
    (1, 7, 3),
    (2, 5, 5),
    (3, 6, 2),
]


@pytest.mark.parametrize(("num_envs", "rows", "length"), _SHAPES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_samples_are_the_runs_of_a_list_that_drops_its_oldest(
    num_envs: int, rows: int, length: int, data: st.DataObject
) -> None:
    num_written = data.draw(st.integers(length, 3 * rows + 1))
    buffer = ReplayBuffer(
        capacity=num_envs * rows, batch_size=64, sequence_length=length
    )
    state = _write(buffer, _init(buffer, num_envs), 0, num_written)
    sample = _sample(buffer, state, num_written, jr.key(num_written))

    times = np.asarray(sample.time).reshape(64, length)
    envs = np.asarray(sample.vector)[..., 1].reshape(64, length)
    model = _times_of_model(num_written, rows)
    allowed = {
        tuple(model[start : start + length]) for start in range(len(model) - length + 1)
    }
    assert {tuple(run) for run in times.tolist()} <= allowed
    np.testing.assert_array_equal(envs, np.broadcast_to(envs[:, :1], envs.shape))
    np.testing.assert_array_equal(
        np.asarray(sample.vector)[..., 0].reshape(64, length), times
    )


@pytest.mark.parametrize(("num_envs", "rows", "length"), _SHAPES[1:4])
@pytest.mark.parametrize("rows_kept", [0, 3])
def test_the_ring_turns_on_up_to_the_largest_counter(
    num_envs: int, rows: int, length: int, rows_kept: int
) -> None:
    buffer = ReplayBuffer(
        capacity=num_envs * rows, batch_size=64, sequence_length=length
    )
    kept = jnp.asarray(rows_kept, int)
    state = _init(buffer, num_envs)
    last = 2**31 - 1 - rows_kept
    for begin in (last - rows - 5, last - rows - 2):
        written = range(begin, begin + rows + 2)
        for time, number in enumerate(written):
            counts = Counts(jnp.zeros((), int), jnp.asarray(number, int), kept)
            state = _write_rows(buffer, state, _times(time, 1), counts)
        counts = Counts(jnp.zeros((), int), jnp.asarray(written.stop, int), kept)
        sample = jax.device_get(
            _sample_counted(buffer, state, counts, key=jr.key(begin % 1000))
        )
        times = np.asarray(sample.time).reshape(64, length)
        newest = np.arange(2, 2 + rows)
        runs = np.lib.stride_tricks.sliding_window_view(newest, length)
        assert {tuple(run) for run in times.tolist()} <= {*map(tuple, runs.tolist())}
        if rows > length:
            assert len(np.unique(times, axis=0)) > 1
        place = (begin + 2 + rows_kept + np.arange(rows)) % rows
        np.testing.assert_array_equal(
            np.asarray(state.data.time)[:, place], [newest] * num_envs
        )


@pytest.mark.parametrize("num_written", [3, 6, 8, 20])
@pytest.mark.parametrize(("num_envs", "rows", "length"), [(3, 6, 1), (2, 6, 3)])
def test_all_runs_of_all_environments_are_equally_likely(
    num_envs: int, rows: int, length: int, num_written: int, getkey: GetKey
) -> None:
    size = 8192
    buffer = ReplayBuffer(
        capacity=num_envs * rows, batch_size=size, sequence_length=length
    )
    state = _write(buffer, _init(buffer, num_envs), 0, num_written)
    sample = _sample(buffer, state, num_written, getkey())

    first = np.asarray(sample.vector).reshape(size, length, 2)[:, 0]
    num_starts = min(num_written, rows) - length + 1
    oldest = max(num_written - rows, 0)
    hits = np.zeros((num_envs, num_starts))
    np.add.at(hits, (first[:, 1].astype(int), first[:, 0].astype(int) - oldest), 1)
    expected = size / hits.size
    chi_square = np.sum((hits - expected) ** 2) / expected
    freedom = hits.size - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_elements_of_a_batch_are_drawn_independently(getkey: GetKey) -> None:
    # Environment and time must not go together: with 4 environments and 4 rows all 16
    # pairs occur among 500.
    buffer = ReplayBuffer(capacity=16, batch_size=500)
    state = _write(buffer, _init(buffer, 4), 0, 4)
    sample = _sample(buffer, state, 4, getkey())
    assert len(np.unique(sample.vector, axis=0)) == 16


@pytest.mark.parametrize(("length", "axes"), [(1, (64,)), (2, (64, 2))])
def test_a_batch_has_an_axis_for_time_if_it_is_of_sequences(
    length: int, axes: tuple[int, ...], getkey: GetKey
) -> None:
    buffer = ReplayBuffer(capacity=18, batch_size=64, sequence_length=length)
    state = _write(buffer, _init(buffer, 3), 0, 2)
    sample = _sample(buffer, state, 2, getkey())
    assert (sample.time.shape, sample.vector.shape) == (axes, (*axes, 2))


def test_environments_share_the_capacity_of_items_of_their_types() -> None:
    data = ReplayBuffer(capacity=11, batch_size=1).init(_ITEM, 2).data
    assert (data.time.shape, data.vector.shape) == ((2, 5), (2, 5, 2))
    assert (data.time.dtype, data.vector.dtype) == (jnp.int32, jnp.float32)


@pytest.mark.parametrize("rows_before", [2, 4, 7])
def test_rows_that_were_kept_are_older_than_those_written_since(
    rows_before: int, getkey: GetKey
) -> None:
    buffer = ReplayBuffer(capacity=5, batch_size=64)
    state = _write(buffer, _init(buffer, 1), 0, rows_before)
    state = _write(buffer, state, rows_before, rows_before + 2, rows_kept=rows_before)
    sample = _sample(buffer, state, 2, getkey(), rows_kept=rows_before)
    expected = _times_of_model(rows_before + 2, 5)
    np.testing.assert_array_equal(np.unique(sample.time), expected)


def test_add_writes_only_where_it_is_to_keep() -> None:
    buffer = ReplayBuffer(capacity=10, batch_size=64, sequence_length=5)
    begun, row = _init(buffer, 2), _row(jnp.array(7), 2)
    state = _add(buffer, begun, row, _counts(6), keep=jnp.array(True))
    np.testing.assert_array_equal(state.data.time, [[0, 7, 0, 0, 0]] * 2)
    after = _add(
        buffer, state, _row(jnp.array(99), 2), _counts(7), keep=jnp.array(False)
    )
    assert bool(eqx.tree_equal(*jax.device_get((state, after))))
    with pytest.raises(ValueError, match=r"shape \(1,\) in place of \(2,\): add one"):
        _add(buffer, state, _row(jnp.array(7), 1), _counts(7))


def test_members_of_a_population_write_what_each_writes_alone() -> None:
    buffer = ReplayBuffer(capacity=6, batch_size=1)

    def write(offset: Int[Array, ""], counts: Counts) -> ReplayState[_Item]:
        item = _row(jnp.array(5), 2)
        item = dataclasses.replace(item, time=item.time + offset)
        return buffer.add(buffer.init(_ITEM, 2), item, counts)

    offsets = jnp.array([10, 20, 30])
    counts = _counts(4)
    stacked = eqx.filter_jit(eqx.filter_vmap(write, in_axes=(0, None)))(offsets, counts)
    stacked = jax.device_get(stacked)
    write_alone = eqx.filter_jit(write)
    for index in range(3):
        alone = jax.device_get(write_alone(np.asarray(offsets)[index], counts))
        member = jax.tree.map(lambda x, index=index: x[index], stacked)
        assert bool(eqx.tree_equal(member, alone))


def test_a_population_writes_in_place() -> None:
    # `vmap` makes a scatter of the update of a slice, which writes in place too; a
    # choice between two replays would be a `select_n` over all of it.
    buffer = ReplayBuffer(capacity=2002, batch_size=1)

    def write(state: ReplayState[_Item], keep: Array, counts: Counts) -> ReplayState:
        return buffer.add(state, _row(jnp.array(5), 2), counts, keep=keep)

    state = eqx.filter_vmap(lambda _: buffer.init(_ITEM, 2))(jnp.arange(3))
    jaxpr = jax.make_jaxpr(jax.vmap(write, in_axes=(0, 0, None)))(
        state, jnp.ones(3, bool), _counts(4)
    )
    assert primitives_with_axis(jaxpr, 1001) <= {"dynamic_update_slice", "scatter"}


_keep_newest = eqx.filter_jit(ReplayBuffer.keep_newest)


def _keep(
    buffer: ReplayBuffer, state: ReplayState[_Item], counts: Counts, num_rows: int
) -> tuple[ReplayState[_Item], Counts]:
    return _keep_newest(buffer, state, counts, num_rows=jnp.asarray(num_rows, int))


@pytest.mark.parametrize(("num_envs", "rows", "length"), _SHAPES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_newest_rows_are_kept_and_more_are_written_behind_them(
    num_envs: int, rows: int, length: int, data: st.DataObject
) -> None:
    kept_before = data.draw(st.integers(0, rows))
    num_written = data.draw(st.integers(kept_before, 3 * rows + 1))
    model = _times_of_model(num_written, rows)
    num_kept = data.draw(st.integers(0, len(model)))
    num_more = data.draw(st.integers(max(length - num_kept, 0), 2 * rows))
    buffer = ReplayBuffer(
        capacity=num_envs * rows, batch_size=64, sequence_length=length
    )
    state = _write(buffer, _init(buffer, num_envs), 0, num_written)
    # Some of the rows are taken to be kept from before.
    counts = _counts(num_written - kept_before, kept_before)
    counts = dataclasses.replace(counts, updates=jnp.asarray(7, int))
    state, counts = _keep(buffer, state, counts, num_kept)
    assert [int(x) for x in (counts.rows_kept, counts.rows_written)] == [num_kept, 0]
    assert int(counts.updates) == 0

    state = _write_rows(buffer, state, _times(num_written, num_more), counts)
    model = model[len(model) - num_kept :]
    model = (model + list(range(num_written, num_written + num_more)))[-rows:]
    sample = _sample(
        buffer, state, num_more, jr.key(num_written), rows_kept=counts.rows_kept
    )
    times = np.asarray(sample.time).reshape(64, length)
    envs = np.asarray(sample.vector)[..., 1].reshape(64, length)
    allowed = {
        tuple(model[start : start + length]) for start in range(len(model) - length + 1)
    }
    assert {tuple(run) for run in times.tolist()} <= allowed
    np.testing.assert_array_equal(envs, np.broadcast_to(envs[:, :1], envs.shape))


@pytest.mark.parametrize("num_written", [3, 5, 13])
@pytest.mark.parametrize("num_kept", [0, 1, 3])
def test_what_is_kept_stays_in_its_order(num_written: int, num_kept: int) -> None:
    buffer = ReplayBuffer(capacity=10, batch_size=64, sequence_length=5)
    state = _write(buffer, _init(buffer, 2), 0, num_written)
    state, _ = _keep(buffer, state, _counts(num_written), num_kept)
    expected = [list(range(num_written - num_kept, num_written))] * 2
    data = jax.device_get(state.data)
    np.testing.assert_array_equal(data.time[:, :num_kept], expected)
    np.testing.assert_array_equal(data.vector[:, :num_kept, 0], expected)
