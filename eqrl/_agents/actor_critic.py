"""Parts shared by the agents with an actor and a stack of critics."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.control_flow import filter_cond
from .._pytree.fields import check_arity, check_factory, shown
from .._pytree.tree import (
    described,
    gradient_step,
    incremental_update,
    is_float_shape,
    take_element,
)
from .._types.custom_types import (
    ActionValueFunction,
    CriticFunction,
    FloatLike,
    MakeOptimizer,
    PyTree,
)
from .._types.data import AbstractActionSpace, AnyTransition, Box, Discrete, EnvSpec
from ..losses import bootstrapped_target, critic_loss, sac_temperature_loss
from ..nn import (
    AbstractDensity,
    AbstractLikelihood,
    Actor,
    ChoiceFunction,
    LikelihoodPolicy,
    MakeCritic,
    MakeTrajectoryCritic,
    Softmax,
    StochasticPolicy,
    ValueFunction,
)


# The agents for each kind of actions.
_FITTING: dict[type[AbstractActionSpace], tuple[str, ...]] = {
    Box: ("SAC", "TD3", "TAAC", "PPO"),
    Discrete: ("DQN", "DiscreteSAC", "PPO", "PQN"),
}

Network = TypeVar("Network", bound=Callable[..., Any])


def check_scalar_reward(agent_name: str, spec: EnvSpec) -> None:
    """Raises a `ValueError` unless the environment's reward is a scalar."""
    if spec.reward_size is not None:
        raise ValueError(
            f"`{agent_name}` learns from a scalar reward, but `spec.reward_size="
            f"{spec.reward_size}`: the environment gives a vector. Make it a scalar in "
            "the environment, or use an agent that takes vectors."
        )


def check_space(
    agent_name: str, spec: EnvSpec, space: type[AbstractActionSpace]
) -> None:
    """Raises a `ValueError` unless actions are of the kind that the agent picks."""
    if isinstance(spec.action, space):
        return
    names = [f"`eqrl.{name}`" for name in _FITTING.get(type(spec.action), ())]
    advice = f"use {' or '.join(names)}" if names else "write an agent of your own"
    raise ValueError(
        f"`{agent_name}` picks actions out of a `{space.__name__}`, but `spec.action="
        f"{spec.action}`; {advice}."
    )


def make_network(
    name: str,
    factory: Callable[..., Network],
    *sizes: int,
    takes: tuple[str, ...] = ("observation",),
    **options: Any,
) -> Network:
    """What the factory of the argument `name` makes.

    Raises a `ValueError` unless it can be called with these sizes and options, a key
    among them, and gives something that can be called with what it `takes`.
    """
    check_factory(name, factory, *sizes, **options)
    network = factory(*sizes, **options)
    if not callable(network):
        raise ValueError(
            f"`{name}` gives {shown(network)}, a {type(network).__name__}; it must "
            "return a network, which can be called."
        )
    check_arity(f"{name}(...)", network, *takes)
    return network


def make_stack(
    name: str, make: Callable[[PRNGKeyArray], Network], size: int, *, key: PRNGKeyArray
) -> Network:
    """A stack of networks with independent weights.

    Raises a `ValueError` if they have none.
    """
    networks = eqx.filter_vmap(make)(jr.split(key, size))
    if not any(map(eqx.is_array, jax.tree.leaves(networks))):
        raise ValueError(
            f"`{name}` gives {shown(networks)}, which holds no arrays, so that there "
            "is nothing to learn. Return a pytree that holds the weights, such as an "
            "`equinox.Module`, rather than a function that refers to them."
        )
    return networks


def check_action(actor: Actor, spec: EnvSpec) -> None:
    """Raises a `ValueError` unless an actor gives actions of the environment's size."""
    action = _output("make_actor", actor, spec.observation_size)
    if not isinstance(action, jax.ShapeDtypeStruct):
        raise ValueError(
            f"The actor of `make_actor` gives a {type(action).__name__}; it must give "
            "an action, from one observation, as `eqrl.nn.Deterministic` makes it."
        )
    _check_action(action, spec)


def check_density(policy: StochasticPolicy, spec: EnvSpec) -> None:
    """Raises a `ValueError` unless a policy gives a density over actions that fit."""
    density = _output("make_actor", policy, spec.observation_size)
    if not isinstance(density, AbstractDensity):
        raise ValueError(
            f"The actor of `make_actor` gives a {type(density).__name__}; it must give "
            "an `eqrl.nn.AbstractDensity`, such as `eqrl.nn.TanhNormal`, from one "
            "observation, as `eqrl.nn.Gaussian` makes it."
        )

    def draw(observation: Float[Array, " obs"]) -> tuple[Any, Any, Any]:
        density = policy(observation)
        return density.mode(), *density.sample_and_log_prob(key=jr.key(0))

    mode, sample, log_prob = _output("make_actor", draw, spec.observation_size)
    for action in (mode, sample):
        _check_action(action, spec)
    _check_scalar(density, "sample_and_log_prob", log_prob)


def check_softmax(policy: ChoiceFunction, spec: EnvSpec) -> None:
    """Raises a `ValueError` unless a policy gives probabilities of all actions."""
    softmax = _output("make_actor", policy, spec.observation_size)
    expected = (spec.action.num_outputs,)
    if not isinstance(softmax, Softmax) or softmax.logits.shape != expected:
        given = f"a {type(softmax).__name__}"
        if isinstance(softmax, Softmax):
            given += f" of logits of shape {softmax.logits.shape}"
        raise ValueError(
            f"The actor of `make_actor` gives {given} for one observation; it must "
            f"give an `eqrl.nn.Softmax` of logits of shape {expected}, as "
            "`eqrl.nn.Choice` makes it."
        )


def check_likelihood(policy: LikelihoodPolicy, spec: EnvSpec) -> None:
    """Raises a `ValueError` unless a policy gives probabilities of fitting actions."""
    size = spec.observation_size
    likelihood = _output("make_actor", policy, size)
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(
            f"The actor of `make_actor` gives a {type(likelihood).__name__}; it must "
            "give an `eqrl.nn.AbstractLikelihood`, from one observation, as "
            "`eqrl.nn.Choice` and `eqrl.nn.Normal` make it."
        )
    space = _output("make_actor", lambda x: policy(x).space, size)
    if space != spec.action:
        raise ValueError(
            f"The actor of `make_actor` picks actions out of {space}, but "
            f"`spec.action={spec.action}`; use `eqrl.nn.Choice` for a `Discrete` and "
            "`eqrl.nn.Normal` for a `Box`."
        )

    def probability(observation: Float[Array, " obs"]) -> dict[str, Any]:
        likelihood = policy(observation)
        drawn = likelihood.draw(key=jr.key(0))
        return {
            "log_prob": likelihood.log_prob(drawn),
            "entropy": likelihood.entropy(),
        }

    for name, value in _output("make_actor", probability, size).items():
        _check_scalar(likelihood, name, value)


def check_value(name: str, critic: ValueFunction, spec: EnvSpec) -> None:
    """Raises a `ValueError` unless a critic gives a scalar."""
    value = _output(name, critic, spec.observation_size)
    if getattr(value, "shape", None) != ():
        raise ValueError(
            f"The critic of `{name}` gives {described(value)} for one observation; it "
            "must give a scalar, as `eqrl.nn.Value` makes it."
        )


def check_action_values(name: str, network: ActionValueFunction, spec: EnvSpec) -> None:
    """Raises a `ValueError` unless a network gives one value for each action."""
    values = _output(name, network, spec.observation_size)
    expected = (spec.action.num_outputs,)
    if getattr(values, "shape", None) != expected:
        raise ValueError(
            f"The network of `{name}` gives {described(values)} for one observation; "
            f"it must give a vector of shape {expected}, the value of each action, as "
            "`eqrl.nn.ActionValues` makes it."
        )


def _output(name: str, network: Callable[..., Any], *sizes: int) -> Any:
    """What a network of the factory `name` gives for vectors of these sizes, traced.

    Raises a `ValueError` where it fails.
    """
    vectors = [jax.ShapeDtypeStruct((size,), jnp.result_type(float)) for size in sizes]
    try:
        return eqx.filter_eval_shape(network, *vectors)
    except (TypeError, ValueError, IndexError) as error:
        shapes = " and one of shape ".join(str(vector.shape) for vector in vectors)
        raise ValueError(
            f"The network of `{name}` fails for one vector of shape {shapes}: "
            f"{str(error).splitlines()[0].rstrip('.')}. Write it for a single "
            "observation, and let it follow the sizes that it is made with."
        ) from error


def _check_scalar(distribution: object, method: str, value: object) -> None:
    if getattr(value, "shape", None) != ():
        raise ValueError(
            f"`{method}` of the {type(distribution).__name__} of `make_actor` gives "
            f"{described(value)}; it must give a scalar, of all elements of an action "
            "together."
        )


def _check_action(action: jax.ShapeDtypeStruct, spec: EnvSpec) -> None:
    if action.shape != (spec.action_size,) or not is_float_shape(action):
        raise ValueError(
            f"The actor of `make_actor` gives actions of {described(action)} for one "
            f"observation of shape {(spec.observation_size,)}, but the environment "
            f"takes {(spec.action_size,)}, of floats. Write it for a single "
            "observation, and let its output follow the `action_size` it is made with."
        )


def make_critics(
    make_critic: MakeCritic | MakeTrajectoryCritic,
    num_critics: int,
    spec: EnvSpec,
    *,
    trajectory_size: int | None = None,
    key: PRNGKeyArray,
) -> CriticFunction:
    """A stack of critics with independent weights.

    With a `trajectory_size` they take vectors of that length in place of actions, and
    give one value for each dimension of the reward.

    Raises a `ValueError` unless their values have the shape of the reward.
    """
    sizes = (spec.observation_size, spec.action_size)
    if trajectory_size is None:
        options, valued_size, expected = {}, spec.action_size, ()
    else:
        options = {"trajectory_size": trajectory_size, "reward_size": spec.reward_size}
        valued_size = trajectory_size
        expected = () if spec.reward_size is None else (spec.reward_size,)

    def make(key: PRNGKeyArray) -> CriticFunction:
        return make_network(
            "make_critic",
            make_critic,
            *sizes,
            takes=("observation", "action"),
            **options,
            key=key,
        )

    critics = make_stack("make_critic", make, num_critics, key=key)

    def value_of_first(observation: PyTree, action: PyTree) -> PyTree:
        return take_element(critics, 0)(observation, action)

    sizes = (spec.observation_size, valued_size)
    value = _output("make_critic", value_of_first, *sizes)
    if getattr(value, "shape", None) != expected:
        what = "a scalar, of shape ()" if expected == () else f"of shape {expected}"
        raise ValueError(
            f"A critic of `make_critic` gives {described(value)} for one observation "
            f"and one action; it must be {what}."
        )
    return critics


def learning_rule(
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...],
    index: int,
    learning_rate: FloatLike,
) -> optax.GradientTransformation:
    """The optimizer of one part, counted in the order of the agent's rates."""
    if isinstance(make_optimizer, tuple):
        return make_optimizer[index](learning_rate)
    return make_optimizer(learning_rate)


def reachable(
    log_temperature: Float[Array, ""],
    target: FloatLike | None,
    most: float,
    *,
    name: str = "target_entropy",
    what: str,
) -> Float[Array, ""]:
    """`log_temperature`, if a policy can have the target entropy.

    **Arguments:**

    - `log_temperature`: the initial one.
    - `target`: of the argument `name`; `None` for the default.
    - `most`: the entropy that a policy can have, in nats.
    - `what`: whose entropy this is.

    Raises a `ValueError` else, or, where `target` is traced, Equinox's error when the
    program runs, unless several processes run it.
    """
    if target is None:
        return log_temperature
    limit = (
        f"more than {most:.3g}, the entropy of {what}: the temperature would grow "
        "without end. Lower it."
    )
    if isinstance(target, jax.core.Tracer):
        # An error in one of several processes would leave the others waiting.
        if jax.process_count() > 1:
            return log_temperature
        return eqx.error_if(log_temperature, target > most, f"`{name}` is {limit}")
    if float(target) > most:
        raise ValueError(f"`{name}={float(target):.3g}` is {limit}")
    return log_temperature


def check_make_optimizer(
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...], parts: tuple[str, ...]
) -> None:
    """Raises a `ValueError` unless it is one factory, or a tuple of one per part."""
    factories: tuple[object, ...] = (make_optimizer,) * len(parts)
    # An optimizer itself is a tuple, too, of two functions.
    is_optimizer = isinstance(make_optimizer, optax.GradientTransformation)
    if isinstance(make_optimizer, tuple) and not is_optimizer:
        factories = make_optimizer
    if len(factories) != len(parts) or not all(map(callable, factories)):
        raise ValueError(
            f"`make_optimizer={shown(make_optimizer)}` must be one factory, from a "
            f"learning rate to an optimizer, or a tuple of {len(parts)}, for "
            f"{', '.join(parts)}."
        )


def clipped(
    optimizer: optax.GradientTransformation, max_norm: FloatLike
) -> optax.GradientTransformation:
    """The optimizer of gradients that are scaled to a norm of at most `max_norm`."""

    def scaled(gradient: PyTree, params: PyTree) -> PyTree:
        del params
        squares = [jnp.sum(x.astype(float) ** 2) for x in jax.tree.leaves(gradient)]
        norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
        # A gradient of length 0 stays one.
        factor = jnp.where(norm > max_norm, max_norm / jnp.maximum(norm, max_norm), 1)
        # Each in its own type, of which there may be several.
        return jax.tree.map(lambda x: (factor * x).astype(x.dtype), gradient)

    return optax.chain(optax.stateless(scaled), optimizer)


def init_optimizer(
    optimizer: optax.GradientTransformation, model: PyTree
) -> optax.OptState:
    """The initial state of an optimizer of the inexact arrays of `model`."""
    return optimizer.init(eqx.filter(model, eqx.is_inexact_array))


def periodic_update(
    new: Network,
    old: Network,
    step_size: FloatLike,
    *,
    period: int,
    step: Int[Array, ""],
) -> Network:
    """Target networks after an update: a step towards `new` at each `period`-th one."""
    move = lambda new, old: incremental_update(new, old, step_size)
    if period == 1:
        return move(new, old)
    # `step` is never batched, so this stays a branch under `vmap` too.
    return filter_cond((step + 1) % period == 0, move, lambda new, old: old, new, old)


def critic_step(
    critics: Network,
    optimizer_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    batch: AnyTransition,
    next_value: Float[Array, " batch"],
    *,
    reward_scale: FloatLike,
    discount: FloatLike,
    loss: Callable[..., Float[Array, ""]] = critic_loss,
) -> tuple[Network, optax.OptState, Float[Array, ""]]:
    """One gradient step of a stack of critics towards one target.

    `loss` is of the critics, observations, actions and targets.

    **Returns:**

    The critics and the state of their optimizer after the step; the loss before it.
    """
    target = bootstrapped_target(
        reward_scale * batch.reward, batch.terminated, next_value, discount
    )
    error, gradient = eqx.filter_value_and_grad(loss)(
        critics, batch.observation, batch.action, target
    )
    critics, optimizer_state = gradient_step(
        critics, gradient, optimizer, optimizer_state
    )
    return critics, optimizer_state, error


def read_temperature(
    learned: Float[Array, ""], fixed: FloatLike, *, learn: bool
) -> Float[Array, ""]:
    """The logarithm of a temperature that is learned, or of one that is fixed.

    The second is read at each update, so that another value is heeded.
    """
    return learned if learn else jnp.log(fixed)


def temperature_step(
    log_temperature: Float[Array, ""],
    optimizer_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    entropy: Float[Array, ""],
    target_entropy: FloatLike,
    *,
    learn: bool,
) -> tuple[Float[Array, ""], optax.OptState, Float[Array, ""]]:
    """One gradient step of a temperature, if it is learned.

    **Returns:**

    The logarithm and the state of its optimizer after the step; the loss before it,
    which is a metric even where the temperature is fixed.
    """
    loss, gradient = eqx.filter_value_and_grad(sac_temperature_loss)(
        log_temperature, entropy, target_entropy
    )
    if learn:
        log_temperature, optimizer_state = gradient_step(
            log_temperature, gradient, optimizer, optimizer_state
        )
    return log_temperature, optimizer_state, loss
