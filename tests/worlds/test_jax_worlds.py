"""Environments of other libraries in JAX against the libraries, stepped by hand."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl._cli import main
from eqrl.envs import AbstractEnv, AbstractEnvWrapper, FunctionalEnv, TimeLimit, make
from eqrl.envs._base import lenient_promotion
from eqrl.envs._check import check_env
from eqrl.envs._make import name_of
from eqrl.spaces import Discrete

from ..simulators import check_rows, interacted


pytestmark = [
    pytest.mark.worlds,
    # Navix imports all of TensorFlow Probability.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NUM_ENVS, NUM_STEPS = 4, 500


class SeededState(eqx.Module):
    inner: Any
    seed: Int[Array, ""]
    num_steps: Int[Array, ""]


class Seeded(AbstractEnvWrapper[SeededState]):
    """Draws the keys of an episode from a seed, which is the state descriptor."""

    env: AbstractEnv[Any]

    @property
    def inner(self) -> AbstractEnv[Any]:
        return self.env

    def inner_state(self, state: SeededState) -> Any:
        return state.inner

    @property
    def spec(self) -> eqrl.EnvSpec:
        spec = self.env.spec
        return eqrl.EnvSpec(
            observation_size=spec.observation_size,
            action=spec.action,
            observation_dtype=spec.observation_dtype,
            state_descriptor_size=1,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[SeededState, Array]:
        # A float holds it.
        seed = jr.randint(key, (), 0, 2**20)
        inner, observation = self.env.reset(key=jr.key(seed))
        return SeededState(inner, seed, jnp.array(0)), observation

    def step(
        self, state: SeededState, action: Any, *, key: PRNGKeyArray
    ) -> tuple[SeededState, eqrl.envs.Outcome]:
        del key
        own = jr.fold_in(jr.key(state.seed), state.num_steps)
        inner, outcome = self.env.step(state.inner, action, key=own)
        return SeededState(inner, state.seed, state.num_steps + 1), outcome

    def state_descriptor(self, state: SeededState) -> Float[Array, "1"]:
        return state.seed[None].astype(float)


Begin = Callable[[Any], tuple[Any, Any]]
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any]]


class ByHand:
    """A library's own environment, with the seeds of its episodes one after another.

    `step` gives the state, the observation, the reward, whether the episode terminates,
    and whether the library says that it is over, if it has a time limit.
    """

    def __init__(self, begin: Begin, step: Step, seeds: Any, limit: int) -> None:
        self._begin, self._step, self._limit = begin, step, limit
        self._seeds = iter(seeds)
        self._seed = self._time = 0
        self._state: Any = None

    def begin(self) -> tuple[Any, Any]:
        # Of the episode after the last row nothing is seen.
        self._seed, self._time = int(next(self._seeds, 0)), 0
        self._state, seen = self._begin(jr.key(self._seed))
        return np.ravel(seen), [self._seed]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        key = jr.fold_in(jr.key(self._seed), self._time)
        self._state, seen, reward, terminated, over = self._step(
            self._state, action, key
        )
        self._time += 1
        truncated = self._time == self._limit and not terminated
        assert over is None or over == (terminated or truncated)
        return np.ravel(seen), reward, terminated, truncated, [self._seed]


def craftax(limit: int) -> tuple[AbstractEnv[Any], Begin, Step]:
    from craftax.craftax_classic.envs import (  # pyright: ignore[reportMissingImports]
        craftax_symbolic_env,
    )

    bare = craftax_symbolic_env.CraftaxClassicSymbolicEnvNoAutoReset()
    # Otherwise hardly anyone dies.
    options = {"spawn_zombie_base_chance": 0.9, "cow_health": 4}
    params = bare.default_params.replace(max_timesteps=limit, **options)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        seen, state, reward, over, _ = bare.step_env(key, state, action, params)
        return state, seen, reward, state.player_health <= 0, over

    env = make("craftax/Craftax-Classic-Symbolic-v1", max_steps=limit, options=options)
    return env, lambda key: bare.reset_env(key, params)[::-1], step


def jumanji_of(
    name: str, limit: int, seen: Callable[[Any], Any], action_of: Callable[[Any], Any]
) -> tuple[Begin, Step]:
    import jumanji  # pyright: ignore[reportMissingImports]

    bare = jumanji.make(name, time_limit=limit)
    unlimited = jumanji.make(name, time_limit=10 * limit)

    def begin(key: Any) -> tuple[Any, Any]:
        state, timestep = bare.reset(key)
        return state, seen(timestep.observation)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        del key
        _, further = unlimited.step(state, action_of(action))
        state, timestep = bare.step(state, action_of(action))
        seen_after = seen(timestep.observation)
        return state, seen_after, timestep.reward, further.last(), timestep.last()

    return begin, step


def snake(limit: int) -> tuple[AbstractEnv[Any], Begin, Step]:
    env = make("jumanji/Snake-v1", max_steps=limit, observation="grid")
    assert env.spec.observation_shape == (12, 12, 5)
    same = lambda action: action
    return env, *jumanji_of("Snake-v1", limit, lambda seen: seen.grid, same)


def tetris(limit: int) -> tuple[AbstractEnv[Any], Begin, Step]:
    env = make("jumanji/Tetris-v0", max_steps=limit)
    assert env.spec.action == Discrete(40)

    def seen(seen: Any) -> Any:
        parts = (seen.grid, seen.tetromino, seen.action_mask, seen.step_count)
        return jnp.concatenate([jnp.ravel(part).astype(float) for part in parts])

    # A rotation and a column.
    both = lambda action: jnp.stack([action // 10, action % 10])
    return env, *jumanji_of("Tetris-v0", limit, seen, both)


def navix(limit: int) -> tuple[AbstractEnv[Any], Begin, Step]:
    nx = pytest.importorskip("navix")
    name = "Navix-Empty-Random-5x5-v0"
    bare = nx.make(name, max_steps=limit, penality_coeff=0.9)

    def begin(key: Any) -> tuple[Any, Any]:
        state = bare.reset(key)
        return state, state.observation

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        del key
        # The ordinary step of an environment whose episode goes on.
        state = bare.step(state, action)
        end = state.is_termination(), state.is_done()
        return state, state.observation, state.reward, *end

    env = make(f"navix/{name}", max_steps=limit, options={"penality_coeff": 0.9})
    return env, begin, step


def xminigrid(limit: int) -> tuple[AbstractEnv[Any], Begin, Step]:
    import xminigrid as library  # pyright: ignore[reportMissingImports]

    name = "MiniGrid-EmptyRandom-5x5"
    bare, params = library.make(name, max_steps=limit)

    def begin(key: Any) -> tuple[Any, Any]:
        state = bare.reset(params, key)
        return state, state.observation

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        del key
        state = bare.step(params, state, action)
        end = state.discount == 0, state.last()
        return state, state.observation, state.reward, *end

    return make(f"xminigrid/{name}", max_steps=limit), begin, step


def pgx(name: str, limit: int) -> tuple[AbstractEnv[Any], Begin, Step]:
    import pgx as library  # pyright: ignore[reportMissingImports]

    bare = library.make(name)

    def begin(key: Any) -> tuple[Any, Any]:
        state = bare.init(key)
        return state, state.observation

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        state = bare.step(state, action, key)
        return state, state.observation, state.rewards[0], state.terminated, None

    return make(f"pgx/{name}", max_steps=limit), begin, step


# With time limits at which some episodes of a random player terminate.
WORLDS: dict[str, tuple[Callable[[int], Any], int]] = {
    "craftax": (craftax, 60),
    "snake": (snake, 6),
    "tetris": (tetris, 9),
    "navix": (navix, 20),
    "2048": (lambda limit: pgx("2048", limit), 6),
    "asterix": (lambda limit: pgx("minatar-asterix", limit), 40),
    "xminigrid": (xminigrid, 15),
}


@pytest.mark.parametrize("name", WORLDS)
def test_rows_are_those_of_a_library_stepped_by_hand(name: str) -> None:
    make_world, limit = WORLDS[name]
    env, begin, step = make_world(limit)
    check_env(env)
    assert env.spec.max_steps == limit
    play = lambda env: interacted(
        env, num_envs=NUM_ENVS, num_steps=NUM_STEPS, key=jr.key(3)
    )
    rows: Any = jax.tree.map(np.asarray, play(Seeded(env)))
    begin, step = jax.jit(begin), jax.jit(step)

    def by_hand(index: int) -> ByHand:
        first = rows.timestep[index] == 0
        seeds = rows.state_descriptor[index, first, 0]
        # A fresh one for each episode.
        assert len(set(seeds)) == len(seeds) > 2
        return ByHand(begin, step, seeds, limit)

    with lenient_promotion():
        observed = np.bool_ if name in ("2048", "asterix") else np.float32
        check_rows(rows, [*range(NUM_ENVS)], by_hand, observed)
    at_limit = rows.timestep == limit - 1
    assert np.any(rows.truncated & at_limit) and not np.any(rows.truncated & ~at_limit)
    assert np.any(rows.terminated) and not np.any(rows.terminated & rows.truncated)
    assert np.all((rows.terminated | rows.truncated)[at_limit])


def test_environments_are_listed_with_their_sizes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["envs", "pgx/2048"]) == 0
    (_, line) = capsys.readouterr().out.splitlines()
    words = "pgx/2048 image of 4 x 4 x 31 bool 4 choices 1000"
    assert line.split() == words.split()
    assert main(["envs", "*/*empty*5x5*"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert {"navix/Navix-Empty-5x5-v0", "xminigrid/MiniGrid-Empty-5x5"} < {*listed}
    assert main(["envs", "craftax/", "--sizes"]) == 0
    assert "vector of 1345" in capsys.readouterr().out


def test_an_environment_of_a_library_is_wrapped_with_its_own_limit() -> None:
    import jumanji  # pyright: ignore[reportMissingImports]
    import xminigrid  # pyright: ignore[reportMissingImports]

    world = xminigrid.make("MiniGrid-Empty-5x5", max_steps=7)
    env = FunctionalEnv(*world)
    assert (env.spec.max_steps, env.params.max_steps) == (7, 7)
    assert FunctionalEnv(world[0]).spec.max_steps == 4 * 9 * 9
    assert name_of(env) == "xminigrid/Empty"
    bare = jumanji.make("Snake-v1", time_limit=9)
    env = FunctionalEnv(bare, observation=("step_count", "action_mask"))
    assert (env.spec.max_steps, env.spec.observation_size) == (9, 5)
    assert bare.time_limit == 9 < env.environment.time_limit
    assert name_of(TimeLimit(make("jumanji/Snake-v1"), 3)) == "jumanji/Snake-v1"
    # With arrays as long as an episode.
    long: Any = make("jumanji/MMST-v0", max_steps=90)
    state, _ = long.reset(key=jr.key(0))
    assert (long.spec.max_steps, state.connected_nodes.shape[1]) == (90, 90)
    # Equal ones share compilations.
    assert make("pgx/2048") is make("pgx/2048")


def test_an_illegal_action_of_pgx_costs_1_and_ends_the_episode() -> None:
    env = make("pgx/2048")
    # Only two tiles, which move to two sides at least; one that cannot is illegal.
    for seed in range(20):
        state, _ = env.reset(key=jr.key(seed))
        (illegal,) = np.nonzero(~np.asarray(state.inner.legal_action_mask))
        if len(illegal) > 0:
            _, outcome = env.step(state, jnp.asarray(illegal[0]), key=jr.key(0))
            assert (outcome.reward, outcome.terminated) == (-1, True)
            return
    pytest.fail("all actions were legal")


def wrapped(library: str, name: str) -> Any:
    return FunctionalEnv(pytest.importorskip(library).make(name))


@pytest.mark.parametrize(
    "make_env, message",
    [
        (lambda: make("pgx/chess"), "no environment `pgx/chess`"),
        (lambda: wrapped("pgx", "chess"), "`chess` of pgx is for 2 players"),
        (lambda: make("jumanji/Connector-v3"), r"gives rewards of shape \(10,\)"),
        (lambda: make("jumanji/JobShop-v0"), "actions, which are too many"),
        (lambda: make("navix/Navix-Empty-5x5-v0", options={"sun": 1}), "'sun'"),
        (lambda: make("jumanji/Snake-v1", observation="sky"), "no field 'sky'"),
        (lambda: make("pgx/2048", observation="board"), "not an option of `pgx/2048`"),
        (lambda: FunctionalEnv(3), "`environment=3` is not an environment of craftax"),
        (
            lambda: eqrl.envs.check(
                pytest.importorskip("pgx").make("2048"), key=jr.key(0)
            ),
            r"a Play2048 of pgx, .*`eqrl.envs.FunctionalEnv\(env\)`",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    make_env: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_env()
