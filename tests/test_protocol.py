"""What every agent must do, whatever it is."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._pytree.control_flow import filter_fori_loop

from .agents_under_test import ALL_AGENTS


SPEC = eqrl.EnvSpec(observation_size=3, action_size=2)
BATCH_SIZE = 8
GetKey = Callable[[], PRNGKeyArray]
Agent = eqrl.AbstractAgent[Any, Any, Any]


@pytest.fixture(params=list(ALL_AGENTS))
def agent(request: pytest.FixtureRequest) -> Agent:
    return ALL_AGENTS[request.param]


@eqx.filter_jit
def random_batch(agent: Agent, state: Any, *, key: PRNGKeyArray) -> eqrl.Transition:
    """A batch of what this agent asks for, of which every third step terminates."""
    keys = jr.split(key, 5)
    time = (agent.sequence_length,) if agent.sequence_length > 1 else ()
    shape = (BATCH_SIZE, *time)
    memory = agent.begin(state, SPEC, index=jnp.asarray(0), key=keys[3])
    _, _, extras = agent.act(state, memory, jnp.zeros(3), mode="sample", key=keys[4])
    return eqrl.Transition(
        observation=jr.normal(keys[0], (*shape, 3)),
        action=jr.uniform(keys[1], (*shape, 2), minval=-1, maxval=1),
        reward=jnp.ones(shape),
        next_observation=jr.normal(keys[2], (*shape, 3)),
        terminated=jnp.broadcast_to(jnp.arange(BATCH_SIZE) % 3 == 0, shape[::-1]).T,
        truncated=jnp.zeros(shape, bool),
        timestep=jnp.zeros(shape, int),
        state_descriptor=None,
        next_state_descriptor=None,
        extras=jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)), extras),
    )


@eqx.filter_jit
def init(agent: Agent, key: PRNGKeyArray) -> Any:
    return agent.init(SPEC, key=key)


@eqx.filter_jit
def updates(
    agent: Agent,
    state: Any,
    batch: eqrl.Transition,
    key: PRNGKeyArray,
    num_updates: int = 10,
) -> Any:
    def update(step: Int[Array, ""], state: Any) -> Any:
        return agent.update(state, batch, step=step, key=jr.fold_in(key, step))[0]

    return filter_fori_loop(0, num_updates, update, state)


@eqx.filter_jit
def act(agent: Agent, state: Any, *, mode: eqrl.Mode, key: PRNGKeyArray) -> Array:
    memory = agent.begin(state, SPEC, index=jnp.asarray(0), key=jr.key(0))
    action, after, _ = agent.act(state, memory, jnp.full(3, 0.5), mode=mode, key=key)
    assert jax.tree.structure(memory) == jax.tree.structure(after)
    return action


def shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type) if eqx.is_array(x) else x, tree
    )


@pytest.mark.parametrize("mode", ["random", "sample", "greedy"])
def test_actions_fit_the_environment_in_every_mode(
    agent: Agent, mode: eqrl.Mode, getkey: GetKey
) -> None:
    state = init(agent, getkey())
    action = act(agent, state, mode=mode, key=getkey())
    assert action.shape == (2,)
    assert action.dtype == jnp.float32
    assert jnp.all(jnp.abs(action) <= 1)


def test_random_actions_do_not_depend_on_what_was_learnt(
    agent: Agent, getkey: GetKey
) -> None:
    one, other = init(agent, getkey()), init(agent, getkey())
    seed = getkey()
    actions = [
        act(agent, state, mode="random", key=jr.clone(seed)) for state in (one, other)
    ]
    assert jnp.array_equal(actions[0], actions[1])


def test_random_actions_fill_the_range(agent: Agent, getkey: GetKey) -> None:
    state = init(agent, getkey())
    actions = jax.vmap(lambda key: act(agent, state, mode="random", key=key))(
        jr.split(getkey(), 500)
    )
    assert jnp.all(actions.min(axis=0) < -0.9) and jnp.all(actions.max(axis=0) > 0.9)


def test_greedy_actions_do_not_depend_on_the_key(agent: Agent, getkey: GetKey) -> None:
    state = init(agent, getkey())
    actions = [act(agent, state, mode="greedy", key=getkey()) for _ in range(2)]
    assert jnp.array_equal(actions[0], actions[1])


def test_sampled_actions_depend_on_the_key(agent: Agent, getkey: GetKey) -> None:
    state = init(agent, getkey())
    # More than two: an agent may as well go on with what it did before.
    actions = jax.vmap(lambda key: act(agent, state, mode="sample", key=key))(
        jr.split(getkey(), 20)
    )
    assert jnp.any(actions != actions[:1])


def test_an_unknown_mode_is_refused(agent: Agent, getkey: GetKey) -> None:
    state = init(agent, getkey())
    with pytest.raises(Exception, match="mode"):
        act(agent, state, mode="best", key=getkey())  # pyright: ignore[reportArgumentType]


def test_init_and_update_give_the_same_shapes_and_types(
    agent: Agent, getkey: GetKey
) -> None:
    state = init(agent, getkey())
    batch = random_batch(agent, state, key=getkey())
    after = updates(agent, state, batch, getkey())
    assert shapes(state) == shapes(after)


def test_a_state_holds_no_weakly_typed_array(agent: Agent, getkey: GetKey) -> None:
    state = init(agent, getkey())
    arrays = jax.tree.leaves(eqx.filter(state, eqx.is_array))
    assert not any(array.weak_type for array in arrays)


def test_a_state_holds_no_buffer_twice(agent: Agent, getkey: GetKey) -> None:
    state = init(agent, getkey())
    arrays = jax.tree.leaves(eqx.filter(state, eqx.is_array))
    assert len({array.unsafe_buffer_pointer() for array in arrays}) == len(arrays)


def test_a_state_holds_no_key(agent: Agent, getkey: GetKey) -> None:
    arrays = jax.tree.leaves(eqx.filter(init(agent, getkey()), eqx.is_array))
    assert not any(jnp.issubdtype(array.dtype, jax.dtypes.prng_key) for array in arrays)


def test_an_update_learns_something(agent: Agent, getkey: GetKey) -> None:
    state = init(agent, getkey())
    batch = random_batch(agent, state, key=getkey())
    after = updates(agent, state, batch, getkey())
    assert not eqx.tree_equal(state, after)


def test_metrics_are_finite_scalars_of_the_same_names_at_each_call(
    agent: Agent, getkey: GetKey
) -> None:
    state = init(agent, getkey())
    batch = random_batch(agent, state, key=getkey())
    names = []
    for step in range(2):
        state, metrics = eqx.filter_jit(agent.update)(
            state, batch, step=jnp.asarray(step), key=getkey()
        )
        names.append(set(metrics))
        assert all(value.shape == () for value in metrics.values())
        # TD3 has an actor loss at every second update only.
        assert step > 0 or all(jnp.isfinite(value) for value in metrics.values())
    assert names[0] == names[1]


def test_the_bound_update_can_be_jitted(agent: Agent, getkey: GetKey) -> None:
    state = init(agent, getkey())
    batch = random_batch(agent, state, key=getkey())
    key = getkey()
    expected = updates(agent, state, batch, jr.clone(key), num_updates=1)
    bound, _ = eqx.filter_jit(agent.update)(
        state, batch, step=jnp.asarray(0), key=jr.fold_in(key, 0)
    )
    assert eqx.tree_equal(bound, expected, rtol=1e-4, atol=1e-5)


def test_an_update_is_traced_once_for_three_values_of_every_hyperparameter(
    agent: Agent, getkey: GetKey
) -> None:
    state = init(agent, getkey())
    batch = random_batch(agent, state, key=getkey())
    num_traces = 0

    @eqx.filter_jit
    def update(agent: Agent, key: PRNGKeyArray) -> Any:
        nonlocal num_traces
        num_traces += 1
        return agent.update(state, batch, step=jnp.asarray(0), key=key)

    for factor in (1.0, 0.9, 0.5):
        update(jax.tree.map(lambda x, f=factor: x * f, agent), getkey())
    assert num_traces == 1


def test_every_hyperparameter_is_a_strongly_typed_scalar(agent: Agent) -> None:
    for leaf in jax.tree.leaves(agent):
        assert leaf.shape == () and leaf.dtype == jnp.float32 and not leaf.weak_type


def test_a_member_of_a_population_equals_the_agent_alone(
    agent: Agent, getkey: GetKey
) -> None:
    factors = jnp.asarray([1.0, 0.9, 0.8])
    agents = jax.tree.map(lambda x: x * factors, agent)
    init_keys, update_keys = jr.split(getkey(), 3), jr.split(getkey(), 3)
    states = eqx.filter_vmap(init)(agents, init_keys)
    batch = random_batch(agent, init(agent, getkey()), key=getkey())
    together = eqx.filter_vmap(updates, in_axes=(0, 0, None, 0))(
        agents, states, batch, update_keys
    )
    for index in range(3):
        member, state, key, expected = jax.tree.map(
            lambda x, i=index: x[i], (agents, states, update_keys, together)
        )
        alone = updates(member, state, batch, key)
        assert eqx.tree_equal(alone, expected, rtol=1e-5, atol=1e-5)


_OF_SCALAR_REWARDS = [
    name for name in ALL_AGENTS if name.startswith(("SAC", "TD3", "Normalized(SAC)"))
]


@pytest.mark.parametrize("name", _OF_SCALAR_REWARDS)
def test_a_vector_reward_is_refused(name: str, getkey: GetKey) -> None:
    spec = eqrl.EnvSpec(observation_size=3, action_size=2, reward_size=2)
    with pytest.raises(ValueError, match="reward_size=2"):
        ALL_AGENTS[name].init(spec, key=getkey())
