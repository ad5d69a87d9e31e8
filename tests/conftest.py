import gc
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.monitoring
import jax.random as jr
import pytest
from jaxtyping import PRNGKeyArray


jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update(
    "jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".jax_cache")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Nearly all of the tests' time is compiling; a test that is about bits, memory or the
# compiled program itself is marked `optimized`. With this variable all of them compile
# as users do.
ALL_OPTIMIZED = os.environ.get("EQRL_TESTS_OPTIMIZED") == "1"
jax.config.update("jax_disable_most_optimizations", not ALL_OPTIMIZED)

# XLA reads this when it is first asked to do something, and ends the process where it
# does not know a name.
_FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):
    # XLA's newer way to make code of fused operations takes more than half of the time
    # to compile such small programs. Since jax 0.11 there is no other.
    _FLAGS.insert(0, "--xla_cpu_use_fusion_emitters=false")
if not ALL_OPTIMIZED:
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS])

# Programs need not say where in the source each of their operations comes from.
jax.config.update("jax_include_full_tracebacks_in_locations", False)
jax.config.update("jax_traceback_in_locations_limit", 0)

# Commands make no devices of their own, which would be other programs.
jax.config.update("jax_num_cpu_devices", 1)

# Tracing makes many objects; by default Python looks through them all too often.
gc.freeze()
gc.set_threshold(50_000, 20, 50)

# Compiled programs take memory maps, of which Linux lets a process have 65,530.
MEMORY_MAPS = Path("/proc/self/maps")
MOST_MEMORY_MAPS = 8_000

# Runs that share the cache may write an entry at once; jax warns, and compiles.
jax.config.update("jax_raise_persistent_cache_errors", False)


@pytest.fixture(autouse=True)
def optimizations(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiles as users do in tests marked `optimized`."""
    if ALL_OPTIMIZED or request.node.get_closest_marker("optimized") is None:
        yield
        return
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


@pytest.fixture(autouse=True)
def key_reuse(request: pytest.FixtureRequest) -> Iterator[None]:
    """Finds keys that are used twice, in tests marked `checks_keys`."""
    with jax.debug_key_reuse(
        request.node.get_closest_marker("checks_keys") is not None
    ):
        yield


@pytest.fixture
def getkey(request: pytest.FixtureRequest) -> Callable[[], PRNGKeyArray]:
    """A fresh key at each call, the same ones whenever this test runs."""
    seed = zlib.crc32(request.node.nodeid.encode())
    num_keys = 0

    def getkey() -> PRNGKeyArray:
        nonlocal num_keys
        num_keys += 1
        return jr.fold_in(jr.key(seed), num_keys)

    return getkey


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The names of what JAX traces, lowers and compiles while the test runs."""
    events: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event.startswith("/jax/core/compile"):
            events.append(f"{event} {kwargs.get('fun_name')}")

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


# With all optimizations a program is in many pieces, each with maps of its own.
@pytest.fixture(scope="function" if ALL_OPTIMIZED else "module", autouse=True)
def forget_compilations() -> Iterator[None]:
    """Keeps few enough compiled programs; later files use those of earlier ones."""
    yield
    if not MEMORY_MAPS.exists() or (
        len(MEMORY_MAPS.read_bytes().splitlines()) > MOST_MEMORY_MAPS
    ):
        jax.clear_caches()


@pytest.fixture(scope="session", autouse=True)
def handle_ctrl_c() -> Iterator[None]:
    """Where the tests run in the background, a shell may have Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
