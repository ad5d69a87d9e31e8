import os
import subprocess
import sys
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


def test_every_array_comes_back_bit_for_bit(directory: Path) -> None:
    restored = eqrl.restore(directory, jax.tree.map(_zeros, _tree()))
    assert _all_bits(restored) == _all_bits(_tree())


def test_shapes_and_types_are_enough_for_like(directory: Path) -> None:
    like = eqx.filter_eval_shape(lambda: {**_tree(), "numpy": None})
    like["numpy"] = np.zeros(3)
    assert _all_bits(eqrl.restore(directory, like)) == _all_bits(_tree())


def test_a_numpy_array_comes_back_as_one(directory: Path) -> None:
    assert isinstance(eqrl.restore(directory, _tree())["numpy"], np.ndarray)


def test_what_is_no_array_comes_from_like(directory: Path) -> None:
    like = _tree()
    like["number"] = 7.5
    assert eqrl.restore(directory, like)["number"] == 7.5


def test_what_was_put_onto_a_device_stays_there(tmp_path: Path) -> None:
    like = jax.device_put(jnp.zeros(2), jax.devices()[0])
    eqrl.save(tmp_path, 0, like)
    assert eqrl.restore(tmp_path, like).committed


def test_what_was_put_nowhere_stays_free_to_go_anywhere(tmp_path: Path) -> None:
    eqrl.save(tmp_path, 0, jnp.zeros(2))
    assert not eqrl.restore(tmp_path, jnp.zeros(2)).committed


def test_without_a_step_the_latest_is_restored(tmp_path: Path) -> None:
    for step in (9, 10, 2):
        eqrl.save(tmp_path, step, jnp.array(step))
    assert eqrl.restore(tmp_path, jnp.array(0)) == 10


def test_the_step_asked_for_is_restored(tmp_path: Path) -> None:
    for step in (9, 10):
        eqrl.save(tmp_path, step, jnp.array(step))
    assert eqrl.restore(tmp_path, jnp.array(0), step=9) == 9


def test_a_missing_step_lists_those_there_are(tmp_path: Path) -> None:
    for step in (10, 9):
        eqrl.save(tmp_path, step, jnp.array(step))
    with pytest.raises(ValueError, match=r"`step=8` is not in .*; there are 9, 10\."):
        eqrl.restore(tmp_path, jnp.array(0), step=8)


def test_a_missing_directory_has_no_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no saved steps in .*nowhere"):
        eqrl.restore(tmp_path / "nowhere", jnp.array(0))


def test_a_step_is_never_overwritten(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"`step=3` is in .* already"):
        eqrl.save(directory, 3, jnp.array(0))


def test_a_negative_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`step=-1` must be at least 0"):
        eqrl.save(tmp_path, -1, jnp.array(0))


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
