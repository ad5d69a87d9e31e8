"""Makes the networks of agents, and checks that they fit the environment."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray

from .._pytree.fields import check_arity, check_factory, is_module, shown
from .._pytree.tree import described, is_float_shape, take_element
from .._types.custom_types import Observation, PyTree
from .._types.data import EnvSpec
from ..nn import AbstractDensity, AbstractLikelihood, LikelihoodPolicy, Softmax


AnyNetwork = Callable[..., PyTree]
Network = TypeVar("Network", bound=AnyNetwork)
Given = TypeVar("Given")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of network: how its factory is called and what the network must return.

    - `sizes`: the positional arguments of the factory for an environment.
    - `check`: takes a factory's name, its network and the environment's `spec`. Raises
        a `ValueError` if the output of the network does not fit.
    - `takes`: the arguments of the network.
    - `options`: further arguments of the factory.
    - `for_critics`: whether the network takes the observations of critics.
    """

    sizes: Callable[[EnvSpec], tuple[int, ...]]
    check: Callable[[str, AnyNetwork, EnvSpec], None]
    takes: tuple[str, ...] = ("observation",)
    options: Callable[[EnvSpec], Mapping[str, int | None]] = lambda spec: {}
    for_critics: bool = False


def make_network(
    kind: Kind,
    name: str,
    factory: Callable[..., Network],
    spec: EnvSpec,
    *,
    number: int | None = None,
    key: PRNGKeyArray,
) -> Network:
    """A network from the factory that is the agent's argument `name`.

    With a `number` it is a stack of that many networks with independent weights.
    """
    spec = spec.for_critics if kind.for_critics else spec
    sizes, options = kind.sizes(spec), kind.options(spec)

    def make(key: PRNGKeyArray) -> Network:
        # Python's own error would name neither the agent's argument nor those of the
        # call.
        check_factory(name, factory, *sizes, **options, key=key)
        network = factory(*sizes, **options, key=key)
        if not callable(network):
            raise ValueError(
                f"`{name}` gives {shown(network)}, a {type(network).__name__}; it must "
                "return a network, which can be called."
            )
        check_arity(f"{name}(...)", network, *kind.takes)
        return network

    if number is None:
        made = make(key)
        kind.check(name, made, spec)
    else:
        made = eqx.filter_vmap(make)(jr.split(key, number))
    # A function that closes over its weights has no arrays to stack, or to update. A
    # module without any may be a fixed policy.
    has_arrays = any(map(eqx.is_array, jax.tree.leaves(made)))
    is_fixed = number is None and is_module(type(made))
    if not has_arrays and not is_fixed:
        raise ValueError(
            f"`{name}` gives {shown(made)}, which holds no arrays, so that there "
            "is nothing to learn. Return a pytree that holds the weights, such as an "
            "`equinox.Module`, rather than a function that refers to them."
        )
    if number is not None:
        # The element is taken while shapes are traced, so that no weights are copied.
        kind.check(name, lambda *inputs: take_element(made, 0)(*inputs), spec)
    return made


def _output(name: str, network: AnyNetwork, *vectors: jax.ShapeDtypeStruct) -> PyTree:
    """The output of a network for vectors of these shapes and types, as shapes."""
    try:
        # Only shapes are traced: a check runs and compiles nothing.
        return eqx.filter_eval_shape(network, *vectors)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        shapes = " and one of shape ".join(str(vector.shape) for vector in vectors)
        reason = (str(error) or repr(error)).splitlines()[0].rstrip(".")
        raise ValueError(
            f"The network of `{name}` fails for one vector of shape {shapes}: "
            f"{reason}. Write it for a single observation, of the sizes that it is "
            "made with, and without a state or a key, as batch normalization has."
        ) from error


def _given(
    name: str, policy: AnyNetwork, spec: EnvSpec, kind: type[Given], must: str
) -> Given:
    """The output of a policy for one observation, as shapes, if it is of this kind."""
    given = _output(name, policy, spec.observation_struct)
    if not isinstance(given, kind):
        raise ValueError(
            f"The actor of `{name}` gives an output of {described(given)} for one "
            f"observation; it must give {must}."
        )
    return given


def _check_actor(name: str, actor: AnyNetwork, spec: EnvSpec) -> None:
    must = "an action, as `eqrl.nn.Deterministic` makes it"
    action = _given(name, actor, spec, jax.ShapeDtypeStruct, must)
    _check_action(name, action, spec)


def _check_density(name: str, policy: AnyNetwork, spec: EnvSpec) -> None:
    must = (
        "an `eqrl.nn.AbstractDensity`, such as `eqrl.nn.TanhNormal`, as "
        "`eqrl.nn.Gaussian` makes it"
    )
    density = _given(name, policy, spec, AbstractDensity, must)

    def draw(observation: Observation[Array, " obs"]) -> tuple[PyTree, PyTree, PyTree]:
        density = policy(observation)
        # Only shapes are computed, so any key will do.
        return density.mode(), *density.sample_and_log_prob(key=jr.key(0))

    mode, sample, log_prob = _output(name, draw, spec.observation_struct)
    # Evaluation takes the mode and training the sample, which are written separately.
    for action in (mode, sample):
        _check_action(name, action, spec)
    _check_scalar(name, density, "sample_and_log_prob", log_prob)


def _check_softmax(name: str, policy: AnyNetwork, spec: EnvSpec) -> None:
    expected = (spec.action.num_outputs,)
    must = (
        f"an `eqrl.nn.Softmax` of logits of shape {expected}, as `eqrl.nn.Choice` "
        "makes it"
    )
    logits = _given(name, policy, spec, Softmax, must).logits
    given = f"The actor of `{name}` gives a Softmax of logits of {described(logits)}"
    _check_shape(logits, expected, f"{given} for one observation", f"give {must}")


def _check_likelihood(name: str, policy: LikelihoodPolicy, spec: EnvSpec) -> None:
    must = (
        "an `eqrl.nn.AbstractLikelihood`, as `eqrl.nn.Choice` and `eqrl.nn.Normal` "
        "make it"
    )
    likelihood = _given(name, policy, spec, AbstractLikelihood, must)
    # Networks for both kinds of actions have the same methods; only their spaces
    # differ.
    space = _output(name, lambda x: policy(x).space, spec.observation_struct)
    if space != spec.action:
        raise ValueError(
            f"The actor of `{name}` picks actions out of {space}, but "
            f"`spec.action={spec.action}`; use `eqrl.nn.Choice` for a `Discrete` and "
            "`eqrl.nn.Normal` for a `Box`."
        )

    def probability(observation: Observation[Array, " obs"]) -> dict[str, PyTree]:
        likelihood = policy(observation)
        drawn = likelihood.draw(key=jr.key(0))
        return {"log_prob": likelihood.log_prob(drawn), "entropy": likelihood.entropy()}

    for method, value in _output(name, probability, spec.observation_struct).items():
        _check_scalar(name, likelihood, method, value)


def _values(
    whose: str, shape: Callable[[EnvSpec], tuple[int, ...]], must: str
) -> Callable[[str, AnyNetwork, EnvSpec], None]:
    """A check that the values of a network for an observation have this shape."""

    def check(name: str, network: AnyNetwork, spec: EnvSpec) -> None:
        value = _output(name, network, spec.observation_struct)
        given = f"The {whose} of `{name}` gives {described(value)} for one observation"
        _check_shape(value, shape(spec), given, must.format(shape(spec)))

    return check


def _check_scalar(name: str, distribution: object, method: str, value: object) -> None:
    giver = f"`{method}` of the {type(distribution).__name__} of `{name}`"
    must = "give a scalar, of all elements of an action together"
    _check_shape(value, (), f"{giver} gives {described(value)}", must)


def _check_shape(
    value: object, expected: tuple[int | None, ...], given: str, must: str
) -> None:
    if getattr(value, "shape", None) != expected:
        raise ValueError(f"{given}; it must {must}.")


def _check_action(name: str, action: jax.ShapeDtypeStruct, spec: EnvSpec) -> None:
    if action.shape != (spec.action_size,) or not is_float_shape(action):
        raise ValueError(
            f"The actor of `{name}` gives actions of {described(action)} for one "
            f"observation of shape {(spec.observation_size,)}, but the environment "
            f"takes {(spec.action_size,)}, of floats. Write it for a single "
            "observation, and let its output follow the `action_size` it is made with."
        )


def _action_sizes(spec: EnvSpec) -> tuple[int, ...]:
    return (spec.observation_size, spec.action.num_outputs)


ACTOR = Kind(_action_sizes, _check_actor)
DENSITY = Kind(_action_sizes, _check_density)
SOFTMAX = Kind(_action_sizes, _check_softmax)
LIKELIHOOD = Kind(_action_sizes, _check_likelihood)
VALUE = Kind(
    lambda spec: (spec.observation_size,),
    _values("critic", lambda spec: (), "give a scalar, as `eqrl.nn.Value` makes it"),
    for_critics=True,
)
ACTION_VALUES = Kind(
    _action_sizes,
    _values(
        "network",
        lambda spec: (spec.action.num_outputs,),
        "give a vector of shape {}, the value of each action, as "
        "`eqrl.nn.ActionValues` makes it",
    ),
)


def features(size: int, num_features: int) -> Kind:
    """The kind of networks that map a vector of this size to `num_features`."""

    def check(name: str, network: AnyNetwork, spec: EnvSpec) -> None:
        del spec
        value = _output(
            name, network, jax.ShapeDtypeStruct((size,), jnp.result_type(float))
        )
        given = f"The network of `{name}` gives {described(value)} for one vector"
        must = f"give features of shape {(num_features,)}"
        _check_shape(value, (num_features,), given, must)

    return Kind(lambda spec: (size, num_features), check, takes=("vector",))


def critic(*, trajectory_size: int | None = None) -> Kind:
    """The kind of critics that map an observation and an action to a scalar.

    With a `trajectory_size` they take a vector of that length in place of the action,
    return one value for each dimension of the reward, and see the actor's observations.
    """

    def options(spec: EnvSpec) -> dict[str, int | None]:
        if trajectory_size is None:
            return {}
        return {"trajectory_size": trajectory_size, "reward_size": spec.reward_size}

    def check(name: str, critic: AnyNetwork, spec: EnvSpec) -> None:
        is_vector = trajectory_size is not None and spec.reward_size is not None
        expected = (spec.reward_size,) if is_vector else ()
        # A trajectory holds an action and how it changes, so its vector is longer.
        valued_size = spec.action_size if trajectory_size is None else trajectory_size
        valued = jax.ShapeDtypeStruct((valued_size,), jnp.result_type(float))
        value = _output(name, critic, spec.observation_struct, valued)
        given = f"A critic of `{name}` gives {described(value)} for one observation"
        must = f"be of shape {expected}" if is_vector else "be a scalar, of shape ()"
        _check_shape(value, expected, f"{given} and one action", must)

    return Kind(
        _action_sizes,
        check,
        takes=("observation", "action"),
        options=options,
        for_critics=trajectory_size is None,
    )
