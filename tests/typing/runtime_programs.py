"""Programs with one mistake each, such as users make, to see how they end.

`tests/typing/runtime.py` runs them. Nothing here is looked at by a static checker:
`eqrl` is of any type.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float

import eqrl as _eqrl


eqrl: Any = _eqrl
ENV: Any = eqrl.envs.Point(max_steps=6)
OTHER: Any = eqrl.EnvSpec(observation_size=5, action_size=2)
TRAINER: Any = eqrl.Trainer(num_envs=2, batch_size=4, capacity=40, warmup_steps=4)
SMALL: Any = {"make_critic": eqrl.nn.Critic((4,))}
SAC: Any = eqrl.SAC(make_actor=eqrl.nn.Gaussian((4,)), **SMALL)
TD3: Any = eqrl.TD3(make_actor=eqrl.nn.Deterministic((4,)), **SMALL)
PBT: Any = eqrl.PBT(where=lambda a: (a.actor_lr,), priors=(eqrl.Uniform(0, 1),))


def state_of(agent: Any, spec: Any = ENV.spec) -> Any:
    return agent.init(spec, key=jr.key(0))


def several(agent: Any, size: int = 3) -> Any:
    return PBT.init(agent, size + 1, key=jr.key(0))


def train(agent: Any, env: Any = ENV, **options: Any) -> Any:
    return eqrl.train(
        agent, env, TRAINER, **({"num_steps": 8, "key": jr.key(1)} | options)
    )


def play(agent: Any, state: Any, env: Any = ENV, **options: Any) -> Any:
    return eqrl.evaluate(agent, state, env, num_episodes=2, key=jr.key(2), **options)


def batch(**changed: Any) -> Any:
    fields: dict[str, Any] = {
        "observation": jnp.zeros((4, ENV.spec.observation_size)),
        "action": jnp.zeros((4, 2)),
        "reward": jnp.zeros(4),
        "next_observation": jnp.zeros((4, ENV.spec.observation_size)),
        "terminated": jnp.zeros(4, bool),
        "truncated": jnp.zeros(4, bool),
        "timestep": jnp.zeros(4, int),
        "state_descriptor": None,
        "next_state_descriptor": None,
        "extras": None,
    }
    return eqrl.Transition(**(fields | changed))


def right() -> Any:
    return train(SAC)


def state_of_another_environment() -> Any:
    return play(SAC, state_of(SAC, OTHER))


def state_of_another_agent() -> Any:
    return play(SAC, state_of(TD3))


def solution_in_the_place_of_its_state() -> Any:
    return play(SAC, train(SAC))


def state_of_the_agent_inside_a_wrapper() -> Any:
    agent = eqrl.Normalized(SAC)
    return play(agent, state_of(agent).agent)


def population_trained_as_one_agent() -> Any:
    return train(several(SAC))


def states_of_a_population_evaluated_as_one() -> Any:
    return play(SAC, jax.tree.map(lambda x: jnp.stack([x, x]), state_of(SAC)))


def member_of_a_single_agent() -> Any:
    return eqrl.member(SAC, 0)


def member_that_is_not_there() -> Any:
    return eqrl.member(several(SAC), 9)


def best_by_the_returns_of_all_generations() -> Any:
    return eqrl.best(several(SAC), jnp.zeros((2, 4, 3)))


def exploit_by_too_many_scores() -> Any:
    agents = several(SAC)
    return PBT.exploit(agents, agents, jnp.zeros(8), key=jr.key(0))


def hyperparameter_of_another_name() -> Any:
    return eqrl.PBT(where=lambda a: (a.lr,), priors=(eqrl.Uniform(0, 1),)).init(
        SAC, 4, key=jr.key(0)
    )


def target_with_a_column_of_rewards() -> Any:
    return eqrl.losses.bootstrapped_target(
        jnp.zeros((4, 1)), jnp.zeros(4, bool), jnp.zeros(4), 0.9
    )


def target_with_a_mask_of_numbers() -> Any:
    return eqrl.losses.bootstrapped_target(
        jnp.zeros(4), 1 - jnp.zeros(4), jnp.zeros(4), 0.9
    )


def loss_of_one_critic_for_a_stack() -> Any:
    critic = eqrl.nn.Critic((4,))(3, 2, key=jr.key(0))
    rows = jnp.zeros((4, 3)), jnp.zeros((4, 2))
    return eqrl.losses.critic_loss(critic, *rows, jnp.zeros(4))


def critic_of_action_and_observation() -> Any:
    critic = eqrl.nn.Critic((4,))(3, 2, key=jr.key(0))
    return critic(jnp.zeros(2), jnp.zeros(3))


def loss_of_ones_own_that_broadcasts() -> Any:
    return squared_error(jnp.zeros((4, 1)), jnp.zeros(4))


def squared_error(
    value: Float[Array, "batch *ones"], target: Float[Array, " batch"]
) -> Float[Array, ""]:
    return jnp.mean((value - target) ** 2)


def matrix_for_a_vector_in_ones_own_function() -> Any:
    return total(jnp.zeros((4, 1)))


def total(reward: Float[Array, " batch"]) -> Float[Array, ""]:
    return jnp.sum(reward)


def key_used_twice() -> Any:
    key = jr.key(0)
    return jr.normal(key) + jr.uniform(key)


def transition_with_flags_that_are_numbers() -> Any:
    return batch(terminated=jnp.zeros(4))


def transition_with_rows_that_differ() -> Any:
    return batch(reward=jnp.zeros(1))


def windows_that_are_none() -> Any:
    agent = eqrl.TAAC()
    step = jnp.zeros((), int)
    return agent.update(state_of(agent), batch(), step=step, key=jr.key(0))


def truncated_for_terminated() -> Any:
    rows = batch()
    return eqrl.losses.bootstrapped_target(rows.reward, rows.truncated, rows.reward, 1)


def gradient_of_another_model() -> Any:
    models = [eqrl.nn.MLP(2, 1, (size,), key=jr.key(0)) for size in (4, 5)]
    adam = optax.adam(1e-3)
    state = adam.init(eqx.filter(models[0], eqx.is_array))
    return eqrl.gradient_step(models[0], models[1], adam, state)


def callback_with_too_few_arguments() -> Any:
    return train(SAC, callback=lambda step: None)


class Columns(_eqrl.AbstractReward[None]):
    """Gives a column of rewards, in place of one number for each row."""

    def init(self, spec: Any, *, key: Any) -> None:
        return None

    def observe(self, state: None, transitions: Any) -> None:
        return None

    def reward(self, state: None, batch: Any, *, step: Any, key: Any) -> Any:
        return batch.observation[..., :1]

    def update(self, state: None, batch: Any, *, key: Any) -> Any:
        return None, {}


def intrinsic_reward_that_is_a_column() -> Any:
    return train(eqrl.Intrinsic(SAC, Columns()))


class Changed(_eqrl.envs.AbstractEnv[Any]):
    """The environment, of which some part is not what it says."""

    limit: int = eqx.field(default=6, static=True)
    action_size: int = eqx.field(default=2, static=True)
    ends: str = eqx.field(default="", static=True)

    @property
    def spec(self) -> _eqrl.EnvSpec:
        spec: _eqrl.EnvSpec = eqrl.EnvSpec(
            ENV.spec.observation_size, self.action_size, max_steps=self.limit
        )
        return spec

    def reset(self, *, key: Any) -> Any:
        return ENV.reset(key=key)

    def step(self, state: Any, action: Any, *, key: Any) -> Any:
        state, outcome = ENV.step(state, action[:2], key=key)
        if self.ends == "both":
            outcome = dataclasses.replace(outcome, terminated=outcome.truncated)
        if self.ends == "both at once":
            outcome = dataclasses.replace(outcome, terminated=outcome.truncated | False)
        if self.ends == "column":
            outcome = dataclasses.replace(outcome, reward=outcome.reward[None])
        return state, outcome

    def state_descriptor(self, state: Any) -> None:
        return None


def one_flag_for_both_ends() -> Any:
    return train(SAC, Changed(ends="both"))


def both_flags_at_once() -> Any:
    return train(SAC, Changed(ends="both at once"))


def reward_that_is_a_column() -> Any:
    return train(SAC, Changed(ends="column"))


def limit_that_is_not_kept() -> Any:
    return train(SAC, Changed(limit=3))


def actions_that_are_not_read() -> Any:
    return train(SAC, Changed(action_size=4))
