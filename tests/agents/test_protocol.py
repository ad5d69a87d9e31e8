"""The protocol that every agent must keep.

Shapes, types and names are looked at for all agents, without compiling anything. Those
in `THOROUGHLY_TESTED` are run too: two programs each, whose results all tests share.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Shaped

import eqrl
from eqrl._agents.base import AnyAgent
from eqrl._pytree.control_flow import filter_scan
from eqrl._types.data import AnyTransition
from eqrl.spaces import AbstractActionSpace, Discrete

from ..agents_under_test import ALL_AGENTS, THOROUGHLY_TESTED, space_of
from ..toy import GetKey, transitions_of


pytestmark = pytest.mark.checks_keys

BATCH_SIZE = 8
NUM_UPDATES = 10
FACTORS = (1.0, 0.9, 0.8)


def spec_of(agent: AnyAgent) -> eqrl.EnvSpec:
    return eqrl.EnvSpec(observation_size=3, action=space_of(agent))


class Life(eqx.Module):
    """What an agent did and learned: each program gives all that is looked at."""

    before: Any
    after: Any
    batch: AnyTransition
    update_key: PRNGKeyArray
    metrics: eqrl.Metrics
    random_before: Shaped[Array, "keys ..."]
    random: Shaped[Array, "keys ..."]
    sample: Shaped[Array, "keys ..."]
    greedy: Shaped[Array, "keys ..."]


def random_batch(agent: AnyAgent, state: Any, *, key: PRNGKeyArray) -> AnyTransition:
    """A batch of what this agent asks for, of which every third step terminates."""
    keys = jr.split(key, 5)
    # On-policy it is a rollout, of any number of steps.
    steps = 4 if agent.sequence_length is None else agent.sequence_length
    time = (steps,) if steps > 1 else ()
    shape = (BATCH_SIZE, *time)
    spec = spec_of(agent)
    memory = agent.begin(state, spec, index=jnp.asarray(0), key=keys[3])
    _, _, extras = agent.act(state, memory, jnp.zeros(3), mode="sample", key=keys[4])
    return transitions_of(
        jr.normal(keys[0], (*shape, 3)),
        action=_random_actions(spec.action, shape, key=keys[1]),
        reward=jnp.ones(shape),
        next_observation=jr.normal(keys[2], (*shape, 3)),
        terminated=jnp.broadcast_to(jnp.arange(BATCH_SIZE) % 3 == 0, shape[::-1]).T,
        extras=jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)), extras),
    )


def _random_actions(
    space: AbstractActionSpace, shape: tuple[int, ...], *, key: PRNGKeyArray
) -> Array:
    if isinstance(space, Discrete):
        return jr.randint(key, shape, 0, space.num_actions)
    return jr.uniform(key, (*shape, 2), minval=-1, maxval=1)


def learn(
    update: Callable[..., tuple[Any, eqrl.Metrics]],
    state: Any,
    batch: AnyTransition,
    key: PRNGKeyArray,
) -> tuple[Any, eqrl.Metrics]:
    """The state after some updates on one batch, and the metrics of each."""

    def body(state: Any, step: Int[Array, ""]) -> tuple[Any, eqrl.Metrics]:
        return update(state, batch, step=step, key=jr.fold_in(key, step))

    return filter_scan(body, state, jnp.arange(NUM_UPDATES))


def act(agent: AnyAgent, state: Any, *, mode: Any, key: PRNGKeyArray) -> Array:
    memory = agent.begin(state, spec_of(agent), index=jnp.asarray(0), key=jr.key(0))
    action, after, _ = agent.act(state, memory, jnp.full(3, 0.5), mode=mode, key=key)
    assert jax.tree.structure(memory) == jax.tree.structure(after)
    return action


def live(agent: AnyAgent, key: PRNGKeyArray) -> Life:
    init_key, batch_key, update_key, act_key = jr.split(key, 4)
    before = agent.init(spec_of(agent), key=init_key)
    batch = random_batch(agent, before, key=batch_key)
    # The bound method is a pytree, which can be jitted itself.
    after, metrics = learn(eqx.filter_jit(agent.update), before, batch, update_key)

    def actions(state: Any, mode: eqrl.Mode, num_keys: int) -> Array:
        keys = jr.split(jr.clone(act_key), num_keys)
        return jax.vmap(lambda key: act(agent, state, mode=mode, key=key))(keys)

    return Life(
        before=before,
        after=after,
        batch=batch,
        update_key=jr.clone(update_key),
        metrics=metrics,
        random_before=actions(before, "random", 500),
        random=actions(after, "random", 500),
        # More than two: an agent may as well go on with what it did before.
        sample=actions(after, "sample", 20),
        greedy=actions(after, "greedy", 2),
    )


def arrays(tree: Any) -> list[np.ndarray]:
    """In NumPy, where comparing compiles nothing."""
    return [np.asarray(x) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


class Run(eqx.Module):
    """Three members with different hyperparameters, alone and as a population."""

    lives: list[Life]
    states_together: Any
    num_traces: int


@pytest.fixture(scope="module", params=THOROUGHLY_TESTED)
def run(request: pytest.FixtureRequest) -> Run:
    agent = ALL_AGENTS[request.param]
    keys = [jr.key(seed) for seed in range(len(FACTORS))]
    num_traces = 0

    @eqx.filter_jit
    def live_alone(agent: AnyAgent, key: PRNGKeyArray) -> Life:
        nonlocal num_traces
        num_traces += 1
        return live(agent, key)

    @eqx.filter_jit
    @eqx.filter_vmap
    def learn_together(
        agent: AnyAgent, state: Any, batch: AnyTransition, key: PRNGKeyArray
    ) -> Any:
        return learn(agent.update, state, batch, key)[0]

    agents = [
        jax.tree.map(lambda x, f=factor: (x * f).astype(x.dtype), agent)
        for factor in FACTORS
    ]
    lives = [live_alone(*x) for x in zip(agents, keys, strict=True)]

    def stack(trees: list[Any]) -> Any:
        return jax.tree.map(
            lambda *x: jnp.asarray(np.stack(x)) if eqx.is_array(x[0]) else x[0], *trees
        )

    states = learn_together(
        stack(agents),
        stack([life.before for life in lives]),
        stack([life.batch for life in lives]),
        jnp.stack([life.update_key for life in lives]),
    )
    return Run(lives=lives, states_together=states, num_traces=num_traces)


def test_actions_are_within_bounds_in_every_mode(run: Run) -> None:
    for life in run.lives:
        for actions in (life.random_before, life.random, life.sample, life.greedy):
            actions = np.asarray(actions)
            low = 0 if np.issubdtype(actions.dtype, np.integer) else -1
            high = 3 if np.issubdtype(actions.dtype, np.integer) else 1
            assert np.all((actions >= low) & (actions <= high))


def test_random_actions_do_not_depend_on_the_state(run: Run) -> None:
    for life in run.lives:
        np.testing.assert_array_equal(life.random_before, life.random)


def test_random_actions_fill_the_range(run: Run) -> None:
    for life in run.lives:
        actions = np.asarray(life.random)
        if np.issubdtype(actions.dtype, np.integer):
            assert set(actions.tolist()) == {0, 1, 2, 3}
            continue
        assert np.all(actions.min(axis=0) < -0.9) and np.all(actions.max(axis=0) > 0.9)


def test_greedy_actions_do_not_depend_on_the_key(run: Run) -> None:
    for life in run.lives:
        first, second = np.asarray(life.greedy)
        np.testing.assert_array_equal(first, second)


def test_sampled_actions_depend_on_the_key(run: Run) -> None:
    for life in run.lives:
        actions = np.asarray(life.sample)
        assert np.any(actions != actions[:1])


def test_updates_change_the_state(run: Run) -> None:
    for life in run.lives:
        pairs = zip(arrays(life.before), arrays(life.after), strict=True)
        assert any(np.any(before != after) for before, after in pairs)


def test_metrics_of_the_first_update_are_finite(run: Run) -> None:
    # Of the first: TD3 has an actor loss at every second update only.
    for life in run.lives:
        for name, values in life.metrics.items():
            assert np.isfinite(np.asarray(values)[0]), name


def test_other_values_of_every_hyperparameter_trace_nothing_anew(run: Run) -> None:
    assert run.num_traces == 1


def test_a_member_of_a_population_equals_the_agent_alone(run: Run) -> None:
    # Alone the bound update is jitted, together it is not.
    together = arrays(run.states_together)
    for index, life in enumerate(run.lives):
        for alone, stacked in zip(arrays(life.after), together, strict=True):
            np.testing.assert_allclose(alone, stacked[index], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module", params=list(ALL_AGENTS))
def agent(request: pytest.FixtureRequest) -> AnyAgent:
    return ALL_AGENTS[request.param]


@pytest.fixture(scope="module")
def state(agent: AnyAgent) -> Any:
    """Shapes and types of the state that it begins with."""
    return eqx.filter_eval_shape(agent.init, spec_of(agent), key=jr.key(0))


def shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x: (
            (x.shape, x.dtype, x.weak_type)
            if isinstance(x, jax.ShapeDtypeStruct)
            else x
        ),
        tree,
    )


def test_shapes_and_types_are_as_the_protocol_has_them(
    agent: AnyAgent, state: Any, getkey: GetKey
) -> None:
    leaves = jax.tree.leaves(eqx.filter(state, lambda x: hasattr(x, "dtype")))
    assert not any(leaf.weak_type for leaf in leaves)
    assert not any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves)

    for mode in ("random", "sample", "greedy"):
        one = functools.partial(act, agent, mode=mode)
        action = eqx.filter_eval_shape(one, state, key=getkey())
        struct = spec_of(agent).action.struct
        assert (action.shape, action.dtype) == (struct.shape, struct.dtype)

    def update(state: Any, *, key: PRNGKeyArray) -> tuple[Any, eqrl.Metrics]:
        batch_key, update_key = jr.split(key)
        batch = random_batch(agent, state, key=batch_key)
        return agent.update(state, batch, step=jnp.asarray(0), key=update_key)

    after, metrics = eqx.filter_eval_shape(update, state, key=getkey())
    assert shapes(after) == shapes(state)
    assert all(metric.shape == () for metric in metrics.values())


@pytest.mark.parametrize("name", ["SAC", "TD3", "PPO"])
def test_an_update_keeps_networks_of_half_precision(name: str, getkey: GetKey) -> None:
    def half(x: Any) -> Any:
        return x.astype(jnp.bfloat16) if eqx.is_inexact_array(x) else x

    class Half(eqx.Module):
        network: Any

        def __call__(self, observation: Any, action: Any = None) -> Any:
            given = (observation,) if action is None else (observation, action)
            return self.network(*map(half, given))

    def in_half(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*sizes: int, **options: Any) -> Any:
            return Half(jax.tree.map(half, make(*sizes, **options)))

        return made

    def begin_and_update(key: PRNGKeyArray) -> tuple[Any, Any]:
        init_key, batch_key, update_key = jr.split(key, 3)
        state = agent.init(spec_of(agent), key=init_key)
        batch = random_batch(agent, state, key=batch_key)
        after, _ = agent.update(state, batch, step=jnp.asarray(0), key=update_key)
        return state, after

    small: Any = ALL_AGENTS[name]
    agent = dataclasses.replace(
        small,
        make_actor=in_half(small.make_actor),
        make_critic=in_half(small.make_critic),
    )
    # Such networks meet observations of float32.
    with jax.numpy_dtype_promotion("standard"):
        state, after = eqx.filter_eval_shape(begin_and_update, getkey())
    assert any(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(state.actor))
    assert shapes(after) == shapes(state)


def test_what_is_nan_acts_nan(agent: AnyAgent, state: Any) -> None:
    if isinstance(space_of(agent), Discrete):
        return  # An integer cannot be nan: `test_train.py` holds that training ends.

    # Or else training would go on, and nobody would know.
    def broken(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        return np.full(x.shape, np.nan if is_float else 0, x.dtype)

    state = jax.tree.map(broken, state)
    sample = functools.partial(act, agent, mode="sample", key=jr.key(1))
    greedy = functools.partial(act, agent, mode="greedy", key=jr.key(1))
    for action in eqx.filter_jit(lambda state: (sample(state), greedy(state)))(state):
        assert np.all(np.isnan(action))


def test_a_state_holds_no_array_twice(agent: AnyAgent, getkey: GetKey) -> None:
    # It could not be donated. A compiled function would copy what it returns twice, so
    # this looks at the arrays and at what computes them.
    num_arrays = num_objects = 0

    def init(key: PRNGKeyArray) -> Any:
        nonlocal num_arrays, num_objects
        state = agent.init(spec_of(agent), key=key)
        leaves = jax.tree.leaves(eqx.filter(state, eqx.is_array))
        num_arrays, num_objects = len(leaves), len({id(leaf) for leaf in leaves})
        return state

    jaxpr, _, _ = eqx.filter_make_jaxpr(init)(getkey())
    assert num_objects == num_arrays
    assert len({id(out) for out in jaxpr.jaxpr.outvars}) == num_arrays


@pytest.mark.parametrize(
    "agent", ["SAC", "TD3", "PPO", "Normalized(DIAYN(SAC))-sphere"], indirect=True
)
def test_critics_may_see_more_than_the_actor(agent: AnyAgent, getkey: GetKey) -> None:
    spec = dataclasses.replace(spec_of(agent), critic_observation_size=5)

    def update(key: PRNGKeyArray) -> Any:
        state_key, batch_key, update_key = jr.split(key, 3)
        state = agent.init(spec, key=state_key)
        batch = random_batch(agent, state, key=batch_key)
        seen = jnp.zeros((*batch.observation.shape[:-1], 5))
        batch = dataclasses.replace(
            batch, critic_observation=seen, next_critic_observation=seen
        )
        return agent.update(state, batch, step=jnp.asarray(0), key=update_key)

    eqx.filter_eval_shape(update, getkey())


def test_an_unknown_mode_is_refused(
    agent: AnyAgent, state: Any, getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="`mode='best'` must be"):
        eqx.filter_eval_shape(
            functools.partial(act, agent, mode="best"), state, key=getkey()
        )


def test_every_hyperparameter_is_a_strongly_typed_scalar(agent: AnyAgent) -> None:
    for leaf in jax.tree.leaves(agent):
        assert leaf.shape == () and leaf.dtype == jnp.float32 and not leaf.weak_type


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ALL_AGENTS
        if name.startswith(("SAC", "TD3", "DQN", "DiscreteSAC", "Normalized(SAC)"))
    ],
)
def test_a_vector_reward_is_refused(name: str, getkey: GetKey) -> None:
    agent = ALL_AGENTS[name]
    spec = dataclasses.replace(spec_of(agent), reward_size=2)
    with pytest.raises(ValueError, match="reward_size=2"):
        agent.init(spec, key=getkey())
