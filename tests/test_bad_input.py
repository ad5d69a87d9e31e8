"""What is given wrongly is answered by a `ValueError` that says what to do."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import optax
import pytest
from gymnax.environments.classic_control.continuous_mountain_car import (
    ContinuousMountainCar as MountainCar,
)
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl import nn
from eqrl._training.iteration import check_metrics
from eqrl.envs import Point

from .agents_under_test import sac, td3
from .toy import Clock, GetKey


SPEC = eqrl.EnvSpec(observation_size=3, action_size=2)


def make_mlp(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> eqx.nn.MLP:
    return eqx.nn.MLP(observation_size, action_size, 8, 1, key=key)


def actor(function: Callable[..., Any]) -> Any:
    """A factory of one function, whatever the sizes."""
    return lambda observation_size, action_size, *, key: function


def make_for_seven(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> Any:
    del observation_size
    return eqx.nn.MLP(7, action_size, 8, 1, key=key)


class Blurred(eqx.Module):
    """A critic that gives what it was told to."""

    given: Any
    weight: Array

    def __call__(self, observation: Array, action: Array) -> Any:
        del observation, action
        return self.given


def make_blurred(given: Any) -> Any:
    return lambda *sizes, key: Blurred(given, jr.normal(key))


def unwritten(x: Any) -> Any:
    raise NotImplementedError


def uneven(observation: Array) -> nn.TanhNormal:
    del observation
    return nn.TanhNormal(mean=jnp.zeros(2), log_scale=jnp.zeros(3))


class Spread(nn.AbstractDensity):
    """Gives the density of each element."""

    def mode(self) -> Array:
        return jnp.zeros(2)

    def sample(self, *, key: PRNGKeyArray) -> Array:
        return jr.normal(key, (2,))

    def sample_and_log_prob(self, *, key: PRNGKeyArray) -> tuple[Array, Array]:
        return self.sample(key=key), jnp.zeros(2)


def pointlike(observation: Array) -> nn.SquashedNormal:
    zero = jnp.sum(observation)
    return nn.SquashedNormal(mean=zero, log_scale=zero, squash=False)


OF_CHOICES = eqrl.EnvSpec(observation_size=3, action=eqrl.spaces.Discrete(3))
OBSERVATION_ALONE = (
    r"`make_\w+\(...\)=.*`make_\w+\(...\)\(observation\)`: missing .*'b'"
)
TWO_ARGUMENTS = actor(lambda a, b: a)

# The same for networks of one's own, made for `SPEC` or for `OF_CHOICES`.
OWN_NETWORKS: list[tuple[Any, str]] = [
    (eqrl.SAC(make_actor=TWO_ARGUMENTS), OBSERVATION_ALONE),
    (eqrl.TD3(make_actor=TWO_ARGUMENTS), OBSERVATION_ALONE),
    (eqrl.TAAC(make_actor=TWO_ARGUMENTS), OBSERVATION_ALONE),
    (eqrl.PPO(make_actor=TWO_ARGUMENTS), OBSERVATION_ALONE),
    (
        eqrl.PPO(make_critic=lambda *sizes, key: TWO_ARGUMENTS(0, 0, key=key)),
        OBSERVATION_ALONE,
    ),
    (eqrl.DiscreteSAC(make_actor=TWO_ARGUMENTS), OBSERVATION_ALONE),
    (eqrl.DiscreteSAC(make_critic=TWO_ARGUMENTS), OBSERVATION_ALONE),
    (eqrl.DQN(make_network=TWO_ARGUMENTS), OBSERVATION_ALONE),
    (eqrl.PQN(make_network=TWO_ARGUMENTS), OBSERVATION_ALONE),
    (
        eqrl.SAC(make_actor=make_for_seven),
        r"`make_actor` fails for one vector of shape \(3,\): .*\(7,\).*\. Write it",
    ),
    (eqrl.TD3(make_actor=make_for_seven), r"`make_actor` fails .*\(3,\): "),
    (eqrl.TAAC(make_actor=make_for_seven), r"`make_actor` fails .*\(6,\): "),
    (eqrl.PPO(make_actor=make_for_seven), r"`make_actor` fails .*\(3,\): "),
    (eqrl.DQN(make_network=make_for_seven), r"`make_network` fails .*\(3,\): "),
    (
        eqrl.TD3(make_actor=actor(lambda x: x[:, 0])),
        r"`make_actor` fails .*but 2 were indexed\. Write it for a single observation",
    ),
    (
        eqrl.TD3(make_actor=actor(lambda x: jnp.zeros(2, int))),
        r"`make_actor` gives actions of shape \(2,\) and type int32 .*of floats\.",
    ),
    (eqrl.SAC(make_actor=actor(uneven)), r"`make_actor` fails .*\(3,\), \(2,\)"),
    (
        eqrl.SAC(make_actor=actor(lambda x: Spread())),
        r"`sample_and_log_prob` of the Spread of `make_actor` gives shape \(2,\)",
    ),
    (eqrl.PPO(make_actor=actor(pointlike)), "`make_actor` fails .*out of range"),
    (
        eqrl.DiscreteSAC(make_actor=actor(lambda x: nn.Softmax(logits=x[:2]))),
        r"a Softmax of logits of shape \(2,\) .*of logits of shape \(3,\)",
    ),
    (
        eqrl.TD3(make_actor=actor(lambda x: x[:2])),
        "`make_actor` gives <function .*, which holds no arrays",
    ),
    (eqrl.DQN(make_network=actor(unwritten)), "fails .*: NotImplementedError"),
    (
        eqrl.TD3(make_actor=actor(lambda x: x.weight)),
        r"`make_actor` fails .*no attribute .?weight.?\. Write it",
    ),
    (
        eqrl.SAC(make_critic=actor(lambda x, y: jnp.sum(x))),
        "`make_critic` gives <function .*, which holds no arrays",
    ),
    (
        eqrl.DiscreteSAC(make_critic=actor(lambda x: x)),
        "`make_critic` gives <function .*, which holds no arrays",
    ),
    (
        eqrl.SAC(make_critic=make_blurred(None)),
        "`make_critic` gives the Python type NoneType .*must be a scalar",
    ),
    (
        eqrl.SAC(make_critic=make_blurred(jnp.zeros(4))),
        r"`make_critic` gives shape \(4,\) .*must be a scalar",
    ),
    (eqrl.SAC(make_actor=nn.Deterministic((8,))), r"`make_actor`.*AbstractDensity"),  # pyright: ignore[reportArgumentType]
    (eqrl.SAC(make_actor=make_mlp), r"`make_actor`.*AbstractDensity"),  # pyright: ignore[reportArgumentType]
    (eqrl.TD3(make_actor=nn.Gaussian((8,))), "of the Python type TanhNormal"),  # pyright: ignore[reportArgumentType]
]


def test_networks_of_ones_own_that_do_not_fit_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for agent, message in OWN_NETWORKS:
        of_choices = (eqrl.DiscreteSAC, eqrl.DQN, eqrl.PQN)
        spec = OF_CHOICES if isinstance(agent, of_choices) else SPEC
        with pytest.raises(ValueError, match=message) as caught:
            eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("policy", [None, lambda: None, lambda x, y: x])
def test_a_policy_takes_one_observation(policy: Any) -> None:
    with pytest.raises(ValueError, match=r"`Askew.policy\(...\)"):
        Askew(given=policy).act(None, None, jnp.zeros(2), mode="greedy", key=jr.key(0))


# What a new user may give, of the wrong kind, and what is said of it.
TRAINER = eqrl.Trainer(batch_size=4, warmup_steps=4)
RATES: Any = {"where": lambda agent: (agent.actor_lr,)}


def train(agent: Any, env: Any, **options: Any) -> object:
    options = {"num_steps": 8, "key": jr.key(0)} | options
    return eqrl.train(agent, env, options.pop("trainer", TRAINER), **options)


def init(agent: Any) -> object:
    return eqx.filter_eval_shape(agent.init, SPEC, key=jr.key(0))


def make_without_key(observation_size: int, action_size: int) -> None:
    del observation_size, action_size


def make_nothing(observation_size: int, action_size: int, *, key: PRNGKeyArray) -> None:
    del observation_size, action_size, key


OF_ANOTHER_KIND: list[tuple[Callable[[Any], Any], str]] = [
    (lambda e: train(e.SAC, Point()), "`agent` is the class `SAC`; give an instance"),
    (lambda e: train("sac", Point()), "`agent='sac'` is of type str.*`eqrl.SAC"),
    (lambda e: train(sac(), Point), "`env` is the class `Point`; give an instance"),
    (lambda e: train(sac(), "brax/ant"), r"`env='brax/ant'`.*envs.make\('brax/ant'"),
    (lambda e: train(sac(), MountainCar()), "`env` is a .* of gymnax.*GymnaxEnv"),
    (lambda e: train(sac(), (MountainCar(), 3)), "`env` is a .* of gymnax"),
    (lambda e: train(sac(), Point(), key=0), r"`key=0`.*jax.random.key\(0\)"),
    (
        lambda e: train(sac(), Point(), key=jr.split(jr.key(0))),
        r"`key` is a stack of keys of shape \(2,\)",
    ),
    (lambda e: train(sac(), Point(), trainer=e.Trainer), "`trainer` is the class"),
    (lambda e: train(sac(), Point(), log_every="10"), "`log_every='10'`"),
    (lambda e: train(sac(), Point(), log_every=float("nan")), "`log_every=nan`"),
    (lambda e: train(sac(), Clock(reward_size=2)), r"`spec.reward_size=2`"),
    (lambda e: e.SAC(discount=None), "`discount=None` is not a number"),
    (lambda e: e.TD3(discount=None), "`discount=None` is not a number"),
    (lambda e: e.SAC(actor_lr=jnp.ones(3)), r"`actor_lr` has shape \(3,\).*filter_vm"),
    (lambda e: e.TD3(num_critics=0), "`num_critics="),
    (lambda e: e.TD3(num_critics=-1), "`num_critics="),
    (
        lambda e: e.SAC(make_optimizer=(optax.adam, optax.adam)),
        r"`make_optimizer=.*tuple of 3",
    ),
    (lambda e: e.PQN(make_optimizer=(optax.adam,)), "be one factory, .*an optimizer.$"),
    (lambda e: e.SAC(actor_lr=optax.adam), "`actor_lr=.*`make_optimizer`"),
    (lambda e: e.SAC(actor_lr=e.Uniform(0, 1)), "`actor_lr=.*`eqrl.PBT`"),
    (lambda e: e.SAC(discount="0.9"), "`discount='0.9'` is not a number"),
    (lambda e: e.SAC(learn_temperature="no"), "`learn_temperature='no'`.*True or"),
    (lambda e: e.SAC(make_actor=3), "`make_actor=3` must be a function"),
    (
        lambda e: init(e.SAC(make_actor=make_without_key)),
        r"`make_actor=.*cannot be called as `make_actor\(size, size, key=...\)`.*'key'",
    ),
    (
        lambda e: init(e.SAC(make_critic=nn.StateActionValue(jnp.sum))),
        "`make_critic=.*rather than a network",
    ),
    (lambda e: init(e.TD3(make_actor=make_nothing)), "`make_actor` gives None"),
    (lambda e: e.envs.make("Pendulum-v1"), "`gymnax/Pendulum-v1`"),
    (lambda e: e.envs.make(3), "`name=3` is of type int.*`brax/ant`"),
    (lambda e: e.envs.make(Point()), "it is an environment already"),
    (lambda e: e.envs.make("eqrl/Point", max_steps=2.5), "`max_steps=2.5`"),
    (lambda e: e.envs.make("gymnax/Pendulum-v1", max_steps=True), "`max_steps=True`"),
    (lambda e: Point(max_steps=10**30), "`max_steps=1000.*can count"),
    (lambda e: e.envs.Point(goal=3), "`goal=3`"),
    (lambda e: e.envs.Point(num_open="1"), "`num_open='1'` must be a whole number"),
    (lambda e: e.envs.DisabledActions(3, (0,)), "`env=3`"),
    (lambda e: e.envs.DisabledActions(Point(), 0), r"`disabled` has shape \(\)"),
    (lambda e: e.envs.TimeLimit("brax/ant", 3), "`env='brax/ant'` is the name"),
    (lambda e: e.envs.PooledReset(Point, 3, key=jr.key(0)), "`env` is the class"),
    (lambda e: e.envs.GymnaxEnv(3), "`environment=3`"),
    (lambda e: e.EnvSpec("a", "b"), "`observation_size` is a str"),
    (lambda e: e.Normalized(5), "`agent=5`"),
    (lambda e: e.diayn("sac"), "`agent='sac'`"),
    (lambda e: e.diayn(sac(), "8"), "`num_skills='8'`"),
    (lambda e: e.Intrinsic(sac(), sac()), "`reward=.*`AbstractReward`"),
    (lambda e: e.Sum(5), "`rewards=5`"),
    (lambda e: e.Sum((5,)), r"`rewards\[0\]=5`"),
    (lambda e: e.PBT(where=3, priors=()), "`where=3` must be a function"),
    (lambda e: e.PBT(**RATES, priors=(0.1,)), r"`priors\[0\]=0.1` is of type float"),
    (lambda e: e.PBT(**RATES, priors=e.Uniform(0, 1)), "`priors=.*must be a tuple"),
    (lambda e: e.OneMinus(0.1), "`prior=0.1`"),
    (lambda e: e.OneSkill(3), "`skill=3`"),
    (lambda e: e.ProgressBar(-1), "`num_steps=-1`"),
    (
        lambda e: e.train(
            td3(), Point(), TRAINER, num_steps=8, key=jr.key(0), evaluations=3
        ),
        "`evaluations=3`",
    ),
    (lambda e: nn.MLP(3, 2, hidden_sizes=3, key=jr.key(0)), "`hidden_sizes=3`"),  # pyright: ignore[reportArgumentType]
    (lambda e: nn.Gaussian(hidden_sizes=(8, 0)), "`hidden_sizes="),
    (lambda e: nn.Gaussian(activation="relu"), "`activation='relu'`"),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize(("make", "message"), OF_ANOTHER_KIND)
def test_what_is_of_another_kind_is_named(
    make: Callable[[Any], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where types are checked at run time, that finds it first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message) as caught:
        make(eqrl)
    assert "\n" not in str(caught.value)


def test_a_network_of_equinox_serves_as_an_actor(getkey: GetKey) -> None:
    # Its activation is a leaf, which neither init nor a run may compute with.
    agent = eqrl.TD3(make_actor=make_mlp, make_critic=nn.Critic((8,)))
    state, counts = eqx.filter_eval_shape(TRAINER.init, agent, Point(), key=getkey())
    after, _, _ = eqx.filter_eval_shape(
        TRAINER.run, agent, Point(), state, counts, num_steps=8, key=getkey()
    )
    for actor in (state.agent.actor, after.agent.actor):
        assert actor.activation is jax.nn.relu


def test_integers_of_numpy_are_as_good_as_those_of_python() -> None:
    trainer = eqrl.Trainer(
        num_envs=np.int64(2),  # pyright: ignore[reportArgumentType]
        batch_size=4,
        warmup_steps=4,
    )
    assert trainer == eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=4)
    agent = eqrl.TD3(policy_delay=np.int64(2))  # pyright: ignore[reportArgumentType]
    assert type(agent.policy_delay) is int


class Askew(eqrl.AbstractMarkovAgent[None]):
    """Acts in as many dimensions as it is told, and reports what it is told."""

    metrics: Any = eqx.field(default=None, static=True)
    action_size: int = eqx.field(default=2, static=True)
    given: Any = eqx.field(default="normal", static=True)

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> None:
        del spec, key

    def policy(self, state: None) -> Any:
        del state
        if self.given != "normal":
            return self.given

        def policy(observation: Float[Array, " obs"]) -> nn.ClippedNormal:
            del observation
            return nn.ClippedNormal(
                mean=jnp.zeros(self.action_size), scale=jnp.ones(())
            )

        return policy

    def update(
        self, state: None, batch: eqrl.Transition, *, step: Array, key: PRNGKeyArray
    ) -> tuple[None, eqrl.Metrics]:
        del state, batch, step, key
        name, shape = self.metrics
        return None, {name: jnp.zeros(shape)}


# Agents that the trainer cannot train, and what is said of them.
UNTRAINABLE = [
    (
        Askew(metrics=("loss", ()), action_size=3),
        r"`act` gives actions of shape \(3,\)",
    ),
    (Askew(metrics=("step", ())), "metric `step`"),
    (Askew(metrics=("nonfinite", ())), "metric `nonfinite`"),
    (Askew(metrics=("seed", ())), "metric `seed` .*column"),
]


def test_actions_and_metrics_that_do_not_fit_the_trainer_are_named(
    getkey: GetKey,
) -> None:
    for agent, message in UNTRAINABLE:
        with pytest.raises(ValueError, match=message):
            train(agent, Point(), key=getkey())


def test_metrics_are_scalars_with_free_names() -> None:
    with pytest.raises(ValueError, match="metric `loss` is of shape"):
        check_metrics({"loss": jax.ShapeDtypeStruct((2,), jnp.float32)})
    for name in ("step", "episode_return", "episode_return_0", "evaluation_score"):
        with pytest.raises(ValueError, match=f"metric `{name}` is the trainer's"):
            check_metrics({name: jax.ShapeDtypeStruct((), jnp.float32)})


def test_greedy_actions_of_an_unbounded_actor_are_clipped(getkey: GetKey) -> None:
    agent = td3(exploration_noise=0.0)
    state = eqx.filter_eval_shape(agent.init, SPEC, key=getkey())
    state = eqx.tree_at(lambda state: state.actor, state, lambda x: 10 * jnp.ones(2))
    action, _, _ = agent.act(state, None, jnp.zeros(3), mode="greedy", key=jr.key(0))
    assert np.all(np.asarray(action) == 1)
