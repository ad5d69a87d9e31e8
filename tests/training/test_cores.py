"""A device for each core, what is divided among devices, and compiled programs."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import eqrl
from eqrl._cli.main import forget_oldest
from eqrl._training import mesh
from eqrl._training.mesh import default_mesh


def test_cores_are_no_more_than_those_whose_time_a_container_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "_LIMITS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert mesh.count_cores() == 8
    old = tmp_path / "cpu"
    old.mkdir()
    for quota, expected in (("-1", 8), ("50000", 1), ("650000", 6)):
        (old / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (old / "cpu.cfs_period_us").write_text("100000\n")
        assert mesh.count_cores() == expected
    for limit, expected in (("max", 8), ("350000", 3), ("10000", 1)):
        (tmp_path / "cpu.max").write_text(f"{limit} 100000\n")
        assert mesh.count_cores() == expected


def test_members_in_turn_are_on_as_many_devices_as_divide_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = jax.devices() * 4
    monkeypatch.setattr(jax, "devices", lambda: devices)
    sizes = {}
    for size in (1, 5, 6, 8):
        mesh = default_mesh("in_turn", size)
        sizes[size] = 1 if mesh is None else mesh.size
    assert sizes == {1: 1, 5: 1, 6: 3, 8: 4}
    assert default_mesh("together", 8) is None
    with jax.default_device(devices[0]):
        assert default_mesh("in_turn", 8) is None


_COMMANDS = """
import importlib
import os
import sys

import jax

import eqrl
from eqrl._run.config import write_config


cores, commands, main = (
    importlib.import_module(f"eqrl.{name}")
    for name in ("_training.mesh", "_cli.commands", "_cli.main")
)
cores.count_cores = commands.count_cores = lambda: 3
main.make_job = lambda command: None
main.run_training = lambda job, place: 0


def made(line):
    main.main(line.split())
    return jax.config.values["jax_num_cpu_devices"]


def reset():
    jax.config.update("jax_num_cpu_devices", -1)


def kept(home):
    os.environ["XDG_CACHE_HOME"] = home
    made("train")
    return jax.config.values["jax_compilation_cache_dir"]


# What is compiled is kept unless JAX was told not to, or there can be no folder.
home, config = sys.argv[1:]
assert kept(home) is None
jax.config.update("jax_enable_compilation_cache", True)
assert kept(f"{home}/file") is None
assert kept(home).startswith(f"{home}/eqrl/") and os.path.isdir(kept(home))
assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] == 0.0
jax.config.update("jax_compilation_cache_dir", "/else")
assert kept(home) == "/else"
jax.config.update("jax_enable_compilation_cache", False)

eqrl.use_all_cores()
assert jax.config.values["jax_num_cpu_devices"] == 3
reset()
assert made("train") == -1
assert made("pbt --members together") == -1
assert made("train --seeds 6") == 3
# What is set stays.
assert made("pbt --size 4") == 3
reset()
assert made("pbt --size 4") == 2
reset()
assert made("train --seeds 4 --devices 4") == 4
reset()
write_config(config, commands.parse(["pbt", "--size", "9"]).run)
assert made(f"pbt --resume {config}") == jax.device_count() == 3
# JAX has started.
eqrl.use_all_cores()
cores.count_cores = lambda: 4
try:
    eqrl.use_all_cores()
except RuntimeError as error:
    assert "JAX has started with 3 devices, but there are 4 cores. Call" in str(error)
    print("passed")
"""


def test_what_a_command_sets_before_jax_starts(tmp_path: Path) -> None:
    home, config = tmp_path / "home", tmp_path / "run"
    for folder in (home, config):
        folder.mkdir()
    (home / "file").touch()
    unset = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    result = subprocess.run(
        [sys.executable, "-c", _COMMANDS, str(home), str(config)],
        cwd=Path(__file__).parents[2],
        env={k: v for k, v in os.environ.items() if k not in unset}
        | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.endswith("passed\n"), result.stderr[-3000:]


def test_programs_that_were_used_longest_ago_are_deleted_first(tmp_path: Path) -> None:
    for name, size, used in (("b/x", 5, 30), ("a/x", 4, 10), ("a/y", 3, 20)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (used, 1))
    forget_oldest(tmp_path, 12)
    assert len([*tmp_path.glob("*/*")]) == 3
    forget_oldest(tmp_path, 8)
    assert [path.name for path in sorted(tmp_path.glob("*/*"))] == ["y", "x"]
    forget_oldest(tmp_path, 7)
    assert [path.parent.name for path in tmp_path.glob("*/*")] == ["b"]


def test_seeds_of_several_devices_have_to_divide() -> None:
    mesh = jax.sharding.Mesh(jax.devices() * 2, ("population",))
    with pytest.raises(ValueError, match=r"`num_seeds=3` cannot be .* among 2 devices"):
        eqrl.train_seeds(
            eqrl.SAC(),
            eqrl.envs.Point(),
            eqrl.Trainer(),
            num_seeds=3,
            num_steps=1,
            key=jax.random.key(0),
            mesh=mesh,
        )
