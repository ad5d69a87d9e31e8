import asyncio
import dataclasses
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqrl
from eqrl._storage.checkpoint import saved_steps
from eqrl._storage.files import sealed
from eqrl._storage.orbax import Piece, _unless_closed, is_intact, pieces_of
from eqrl.nn import Critic, Gaussian
from tests.population.pusher import Pusher
from tests.toy import Drift, GetKey


def _network(width: int = 4, depth: int = 2, *, seed: int = 0) -> eqx.nn.MLP:
    return eqx.nn.MLP(2, 3, width, depth, key=jr.key(seed))


def _tree() -> dict[str, Any]:
    network = _network()
    weights = eqx.filter(network, eqx.is_inexact_array)
    return {
        "network": network,
        "optimizer": optax.adam(1e-3).init(weights),
        "keys": jr.split(jr.key(1), 3),
        "other keys/of rbg": jr.key(3, impl="rbg"),
        "bfloat": jnp.array([1 / 3, jnp.nan, -0.0], jnp.bfloat16),
        "bool": jnp.array(True),
        "int": jnp.arange(3),
        "empty": jnp.zeros((0, 3)),
        "numpy": np.arange(3) / 3,
        "none": None,
        "number": 2.5,
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `_tree()` at step 3."""
    directory = tmp_path_factory.mktemp("checkpoints")
    eqrl.save(directory, 3, _tree())
    return directory


def _zeros(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.zeros_like(leaf)
    if not eqx.is_array(leaf):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jnp.zeros_like(jr.key_data(leaf))
        return jr.wrap_key_data(data, impl=jr.key_impl(leaf))
    return jnp.zeros_like(leaf)


def _bits(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
    data = leaf
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jr.key_data(leaf)
    return str(leaf.dtype), leaf.shape, np.asarray(data).tobytes()


def _all_bits(tree: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        jax.tree_util.keystr(path): _bits(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if isinstance(leaf, (jax.Array, np.ndarray))
    }


def test_arrays_come_back_bit_for_bit_and_all_else_is_that_of_like(
    directory: Path,
) -> None:
    shapes = eqx.filter_eval_shape(lambda: {**_tree(), "numpy": None})
    for like in (jax.tree.map(_zeros, _tree()), {**shapes, "numpy": np.zeros(3)}):
        restored = eqrl.restore(directory, {**like, "number": 7.5})
        assert _all_bits(restored) == _all_bits(_tree())
        assert isinstance(restored["numpy"], np.ndarray)
        assert restored["number"] == 7.5


def test_only_what_was_put_onto_a_device_is_bound_to_it(tmp_path: Path) -> None:
    free = jnp.zeros(2)
    eqrl.save(tmp_path, 0, free)
    assert not eqrl.restore(tmp_path, free).committed
    assert eqrl.restore(tmp_path, jax.device_put(free, jax.devices()[0])).committed


def test_without_a_step_the_latest_is_restored_else_the_one_asked_for(
    tmp_path: Path,
) -> None:
    for step in (9, 10, 2):
        eqrl.save(tmp_path, step, jnp.array(step))
    assert eqrl.restore(tmp_path, jnp.array(0)) == 10
    assert eqrl.restore(tmp_path, jnp.array(0), step=9) == 9
    message = r"`step=8` is not in .*; there are 2, 9, 10\."
    with pytest.raises(ValueError, match=message):
        eqrl.restore(tmp_path, jnp.array(0), step=8)


def test_a_missing_directory_has_no_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no saved steps in .*nowhere"):
        eqrl.restore(tmp_path / "nowhere", jnp.array(0))


def test_a_step_is_never_overwritten(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"`step=3` is in .*/3` first"):
        eqrl.save(directory, 3, jnp.array(0))


@pytest.mark.parametrize("step", [-1, 1.5, True, "3"])
def test_a_step_is_a_whole_number(directory: Path, step: Any) -> None:
    message = re.escape(f"`step={step!r}` must be a whole number, at least 0")
    # Without the check of types, of which users have none.
    save, restore = inspect.unwrap(eqrl.save), inspect.unwrap(eqrl.restore)
    with pytest.raises(ValueError, match=message):
        save(directory, step, jnp.array(0))
    with pytest.raises(ValueError, match=message):
        restore(directory, _tree(), step=step)


def test_a_tree_without_arrays_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`tree` holds no array"):
        eqrl.save(tmp_path, 0, {"function": abs, "empty": jnp.zeros(0)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"int": jnp.arange(4)},
            r"`\['int'\]` was saved as int32\[3\] and is wanted as int32\[4\]",
        ),
        (
            {"int": jnp.zeros(3)},
            r"`\['int'\]` was saved as int32\[3\] and is wanted as float32\[3\]",
        ),
        (
            {"keys": jr.split(jr.key(0, impl="rbg"), 3)},
            r"`\['keys'\]` was saved as key<fry>\[3\] and is wanted as key<rbg>\[3\]",
        ),
        (
            {"new": jnp.zeros(3)},
            r"`\['new'\]` is wanted as float32\[3\] and was not saved",
        ),
        (
            {"int": None},
            r"`\['int'\]` was saved as int32\[3\] and has no place there",
        ),
        (
            {"int": 3},
            r"`\['int'\]` was saved as int32\[3\] and has no place there",
        ),
    ],
    ids=["shape", "type", "kind of key", "not saved", "not wanted", "no array"],
)
def test_a_leaf_that_does_not_fit_is_named(
    directory: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        eqrl.restore(directory, _tree() | change)


def test_where_loads_the_part(directory: Path) -> None:
    like = {"network": _network(seed=5)}
    restored = eqrl.restore(directory, like, where=lambda tree: tree["network"])
    assert _all_bits(restored["network"]) == _all_bits(_network())


def test_where_leaves_the_rest_which_may_have_other_shapes(directory: Path) -> None:
    like = {"network": _network(seed=5), "int": jnp.arange(7), "new": jnp.ones(2)}
    restored = eqrl.restore(directory, like, where=lambda tree: tree["network"])
    del restored["network"], like["network"]
    assert _all_bits(restored) == _all_bits(like)


def test_where_may_select_several_parts(directory: Path) -> None:
    like = {"int": jnp.zeros(3, int), "bool": jnp.array(False), "empty": jnp.ones(2)}
    restored = eqrl.restore(
        directory, like, where=lambda tree: (tree["int"], tree["bool"])
    )
    del restored["empty"]
    assert _all_bits(restored) == _all_bits({"int": jnp.arange(3), "bool": True}) | {
        "['bool']": _bits(jnp.array(True))
    }


def test_a_part_with_fewer_layers_than_saved_is_refused(tmp_path: Path) -> None:
    layers = [jnp.zeros(2), jnp.zeros(2), jnp.zeros(2)]
    eqrl.save(tmp_path, 0, {"layers": layers, "other": jnp.zeros(1)})
    with pytest.raises(ValueError, match=r"`\['layers'\]\[2\]` was saved"):
        eqrl.restore(tmp_path, {"layers": layers[:2]}, where=lambda t: t["layers"])


def test_where_may_leave_some_of_a_list(tmp_path: Path) -> None:
    eqrl.save(tmp_path, 0, [jnp.array(1), jnp.array(2), jnp.array(3)])
    like = [jnp.array(0), jnp.array(0), jnp.array(0)]
    restored = eqrl.restore(tmp_path, like, where=lambda tree: tree[:2])
    assert restored == [1, 2, 0]


def test_where_must_give_a_part_with_leaves(directory: Path) -> None:
    with pytest.raises(ValueError, match="`where` must give a part of `like`"):
        eqrl.restore(directory, _tree(), where=lambda tree: tree["none"])


def test_a_save_that_fails_before_the_end_leaves_the_earlier_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eqrl.save(tmp_path, 1, jnp.array(1))

    def fail(*args: Any, **options: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="killed"):
            eqrl.save(tmp_path, 2, jnp.array(2))
    assert eqrl.restore(tmp_path, jnp.array(0)) == 1
    with pytest.raises(ValueError, match=r"there are 1\."):
        eqrl.restore(tmp_path, jnp.array(0), step=2)


def test_an_empty_folder_is_no_step(tmp_path: Path) -> None:
    eqrl.save(tmp_path, np.int64(1), jnp.array(1))
    (tmp_path / "2").mkdir()
    assert eqrl.restore(tmp_path, jnp.array(0)) == 1
    eqrl.save(tmp_path, 2, jnp.array(2))
    assert eqrl.restore(tmp_path, jnp.array(0)) == 2


# Damaged since it was saved.


@pytest.fixture
def copied(directory: Path, tmp_path: Path) -> Path:
    """A copy of the directory, to be damaged."""
    return shutil.copytree(directory, tmp_path / "copied")


def _restore_like(directory: Path) -> Any:
    return eqrl.restore(directory, _tree())


def _change_record(
    directory: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    path = directory / "3" / "record" / "metadata"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_arrays_of_the_same_shapes_that_were_not_saved_there_are_named(
    copied: Path,
) -> None:
    other = _tree()
    other["keys"] = jr.split(jr.key(2), 3)
    eqrl.save(copied, 4, other)
    shutil.rmtree(copied / "3" / "arrays")
    shutil.copytree(copied / "4" / "arrays", copied / "3" / "arrays")
    with pytest.raises(ValueError) as raised:
        eqrl.restore(copied, _tree(), step=3)
    assert str(raised.value) == (
        f"`{copied}/3/arrays` is damaged: `['keys']` differs from its digest; restore "
        f"another step with `step=`; there are 4; or delete `{copied}/3`, so that the "
        "newest of these is resumed."
    )


@pytest.mark.parametrize("name", ["int", "bool"])
def test_an_array_that_is_missing_never_becomes_zeros(copied: Path, name: str) -> None:
    path = copied / "3" / "arrays" / "_METADATA"
    text = path.read_text()
    assert f"'{name}'" in text
    path.write_text(text.replace(f"'{name}'", "'renamed'"))
    with pytest.raises(
        ValueError, match=rf"/3/arrays` is damaged: `\['{name}'\]` is mis"
    ):
        _restore_like(copied)


_DAMAGED = {
    "record/metadata": ["cut", "zeros", "no text", "list", "deep", "deleted"],
    "arrays/_METADATA": ["cut", "zeros", "no text", "list"],
    "arrays/manifest.ocdbt": ["cut", "zeros", "deleted"],
}


def _damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "deleted":
        path.unlink()
        return
    damaged = {
        "cut": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "no text": content[:100] + b"\xff" + content[101:],
        "list": b"[]",
        "deep": b"[" * 100_000,
    }
    path.write_bytes(damaged[how])


def test_damaged_files_give_one_line_that_names_the_folder_and_nothing_else(
    copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    like = _tree()
    for name, ways in _DAMAGED.items():
        path = copied / "3" / name
        content = path.read_bytes()
        for how in ways:
            _damage(path, how)
            with pytest.raises(ValueError) as raised:
                eqrl.restore(copied, like)
            message = str(raised.value)
            folder = name if name.startswith("record") else "arrays"
            assert message.startswith(f"`{copied}/3/{folder}` "), how
            assert message.endswith("; there is no other step beside it."), how
            assert "\n" not in message and len(message) < 600
            path.write_bytes(content)
    # Reads that were under way end in threads of the storage.
    time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_calls_into_a_closed_loop_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    call = _unless_closed(loop)
    loop.close()
    assert call(print) is None


def test_no_bit_of_the_record_can_be_flipped_unnoticed(copied: Path) -> None:
    path = copied / "3" / "record" / "metadata"
    content = path.read_bytes()
    for position in range(0, 8 * len(content), 8 * len(content) // 100):
        byte, bit = divmod(position, 8)
        damaged = bytearray(content)
        damaged[byte] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="/3/record/metadata` "):
            eqrl.restore(copied, np.zeros(2))


def test_a_record_of_a_newer_version_loads_if_it_can_be_read(copied: Path) -> None:
    _change_record(
        copied, lambda record: sealed({"eqrl": "99.1", "arrays": record["arrays"]})
    )
    assert _all_bits(_restore_like(copied)) == _all_bits(_tree())
    _change_record(copied, lambda record: sealed({**record, "new": 1}))
    message = r"/3/record/metadata` was saved by eqrl 99\.1, newer than this one \(0\.1"
    with pytest.raises(ValueError, match=message):
        _restore_like(copied)


def test_blocks_of_an_array_have_digests_of_their_own() -> None:
    array = np.arange(12, dtype=np.int16).reshape(4, 3)
    halves = [
        dataclasses.replace(
            pieces_of({"": array[begin:end]})[""][0], index=((begin, end), (0, 3))
        )
        for begin, end in ((0, 2), (2, 4))
    ]
    assert is_intact(array, halves)
    assert is_intact(array, pieces_of({"": array})[""])
    changed = array.copy()
    changed[3, 2] ^= 1
    assert not is_intact(changed, halves)
    assert is_intact(changed, halves[:1])
    assert halves[0] == Piece(((0, 2), (0, 3)), zlib.crc32(array[:2].tobytes()))


def test_a_flip_anywhere_in_an_array_changes_its_digest() -> None:
    # Of several pages.
    array = np.random.default_rng(0).normal(size=(3, 5_000))
    pieces = pieces_of({"": array})[""]
    for place in (0, 511, 512, 513, 4_999, 5_000, 9_999, 14_999):
        changed = array.copy()
        changed.view(np.uint64).reshape(-1)[place] ^= 1
        assert not is_intact(changed, pieces)
    assert is_intact(array, pieces)
    # In whichever order of bytes it is.
    assert is_intact(array.astype(">f8"), pieces)


def test_an_array_in_another_order_of_bytes_comes_back(tmp_path: Path) -> None:
    array = np.arange(3, dtype=">i4")
    eqrl.save(tmp_path, 0, array)
    assert eqrl.restore(tmp_path, array).tolist() == [0, 1, 2]


def test_a_folder_with_zeros_before_its_number_is_no_step(tmp_path: Path) -> None:
    for name in ("007", "5"):
        (tmp_path / name / "record").mkdir(parents=True)
    assert saved_steps(tmp_path) == [5]


_KILLED_WHILE_SAVING = """
import os, sys
import jax.numpy as jnp
import eqrl

eqrl.save(sys.argv[1], 1, jnp.array(1))
os.rename = os.replace = lambda *args, **kwargs: os._exit(9)
eqrl.save(sys.argv[1], 2, jnp.array(2))
"""


@pytest.fixture(scope="module")
def directory_after_kill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 1 was saved; saving step 2 was killed before it was put in place."""
    directory = tmp_path_factory.mktemp("killed")
    process = subprocess.run(
        [sys.executable, "-c", _KILLED_WHILE_SAVING, str(directory)],
        capture_output=True,
        check=False,
    )
    assert process.returncode == 9
    return directory


@pytest.mark.long
def test_a_killed_save_leaves_the_earlier_step(directory_after_kill: Path) -> None:
    assert eqrl.restore(directory_after_kill, jnp.array(0)) == 1


@pytest.mark.long
def test_a_killed_save_leaves_no_step_of_its_own(directory_after_kill: Path) -> None:
    with pytest.raises(ValueError, match=r"there are 1\."):
        eqrl.restore(directory_after_kill, jnp.array(0), step=2)


@pytest.mark.parametrize(
    "agent",
    [
        Pusher(),
        pytest.param(
            eqrl.SAC(make_actor=Gaussian((8,)), make_critic=Critic((8,))),
            marks=pytest.mark.long,
        ),
    ],
    ids=["linear", "sac"],
)
def test_training_from_disk_goes_on_as_if_never_stopped(
    agent: eqrl.AbstractAgent[Any, Any, Any], tmp_path: Path, getkey: GetKey
) -> None:
    key = getkey()
    env = Drift()
    trainer = eqrl.Trainer(batch_size=8, capacity=100, warmup_steps=20)
    once = eqrl.train(agent, env, trainer, num_steps=80, key=key)
    half = eqrl.train(agent, env, trainer, num_steps=40, key=key)
    eqrl.save(tmp_path, 40, (half.trainer_state, half.counts))
    like = eqx.filter_eval_shape(trainer.init, agent, env, key=jr.key(0))
    state, counts = eqrl.restore(tmp_path, like)
    initial = eqrl.Solution(trainer_state=state, counts=counts, metrics=half.metrics)
    twice = eqrl.train(agent, env, trainer, num_steps=40, key=key, initial=initial)
    assert _all_bits(twice.trainer_state) == _all_bits(once.trainer_state)
