import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import (
    check_factory,
    checked_by,
    hyperparameter,
    static_integer,
)
from .._pytree.tree import gradient_step, init_optimizer
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics, Seen
from .._types.data import Discrete, EnvSpec, Transition
from ..nn import Features, MakeNetwork, VectorFunction
from .base import (
    AbstractReward,
    StateDescriptor,
    as_if_left,
    check_descriptor,
    describe,
    descriptor_size,
)


_Rows = tuple[
    Float[Array, "rows descriptor"],
    Float[Array, "rows action"],
    Float[Array, "rows descriptor"],
]


class CuriosityModel(eqx.Module):
    """Networks that predict the outcome of an action.

    With an `encoder` they see its features of a state. An inverse network, which
    predicts the action between two states, keeps these features from vanishing.

    **Attributes:**

    - `forward`: from a state and an action, joined, to the state reached.
    - `encoder`, `inverse`: `None` if states are seen without an encoder.
    - `num_actions`: number of discrete actions, which are seen as one-hot vectors.
    """

    forward: VectorFunction
    encoder: VectorFunction | None
    inverse: VectorFunction | None
    num_actions: int | None = eqx.field(static=True)

    def features(
        self, descriptor: Float[Array, "rows descriptor"]
    ) -> Float[Array, "rows feature"]:
        return (
            descriptor if self.encoder is None else jax.vmap(self.encoder)(descriptor)
        )

    def errors(
        self,
        before: Float[Array, "rows descriptor"],
        action: Float[Array, "rows action"],
        after: Float[Array, "rows descriptor"],
    ) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
        """Errors of the predicted states, and of the predicted actions.

        They are distances; for a discrete action, the second is a cross-entropy.
        Without an encoder it is 0.
        """
        seen, reached = self.features(before), self.features(after)
        predicted = jax.vmap(self.forward)(jnp.concatenate([seen, action], axis=1))
        # Otherwise features would shrink to be easier to predict.
        error = lengths(lax.stop_gradient(reached) - predicted)
        if self.inverse is None:
            return error, jnp.zeros_like(error)
        # The gradient flows through both states, so that features tell actions apart.
        guess = jax.vmap(self.inverse)(jnp.concatenate([seen, reached], axis=1))
        if self.num_actions is None:
            return error, lengths(action - jnp.tanh(guess))
        return error, -jnp.sum(action * jax.nn.log_softmax(guess), axis=1)


def make_curiosity_model(
    descriptor: StateDescriptor,
    spec: EnvSpec,
    make_network: MakeNetwork[VectorFunction],
    make_encoder: MakeNetwork[VectorFunction] | None,
    num_features: int,
    *,
    key: PRNGKeyArray,
) -> CuriosityModel:
    """A model for an environment, with fresh weights."""
    size = descriptor_size(descriptor, spec)
    action_size = spec.action.num_outputs
    forward_key, encoder_key, inverse_key = jr.split(key, 3)
    encoder = None
    if make_encoder is not None:
        check_factory("make_encoder", make_encoder, size, num_features, key=key)
        encoder = make_encoder(size, num_features, key=encoder_key)
        size = num_features
    sizes = (size + action_size, size)
    check_factory("make_network", make_network, *sizes, key=key)
    return CuriosityModel(
        forward=make_network(*sizes, key=forward_key),
        encoder=encoder,
        inverse=None
        if encoder is None
        else make_network(2 * size, action_size, key=inverse_key),
        num_actions=action_size if isinstance(spec.action, Discrete) else None,
    )


def curiosity_rows(
    descriptor: StateDescriptor, num_actions: int | None, batch: Transition[Seen]
) -> _Rows:
    """States before each step, actions, and states after it, one in each row."""
    before, after = (
        describe(descriptor, transitions) for transitions in (as_if_left(batch), batch)
    )
    action = batch.action
    if num_actions is not None:
        action = jax.nn.one_hot(action, num_actions)
    rows = lambda x: x.reshape(-1, x.shape[-1])
    return rows(before), rows(action), rows(after)


def learn_curiosity(
    model: CuriosityModel,
    optimizer_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    rows: _Rows,
) -> tuple[CuriosityModel, optax.OptState, Metrics]:
    """One gradient step of a model on rows, with its losses before the step."""

    def loss(model: CuriosityModel) -> tuple[Float[Array, ""], Metrics]:
        forward, inverse = map(jnp.mean, model.errors(*rows))
        return forward + inverse, {"forward_loss": forward, "inverse_loss": inverse}

    (_, metrics), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(model)
    if model.inverse is None:
        del metrics["inverse_loss"]
    return *gradient_step(model, gradient, optimizer, optimizer_state), metrics


def lengths(x: Float[Array, "rows size"]) -> Float[Array, " rows"]:
    """The Euclidean length of each row."""
    # The constant keeps the gradient finite where a prediction is perfect.
    return jnp.sqrt(jnp.sum(x**2, axis=1) + 1e-12)


class ICMState(eqx.Module):
    """State of `ICM`."""

    model: CuriosityModel
    optimizer: optax.OptState


ICMState.__init__.__doc__ = """**Arguments:**

- `model`: the networks that predict the outcomes of actions.
- `optimizer`: the state of the model's optimizer.
"""


class ICM(AbstractReward[ICMState, Seen]):
    """The reward of curiosity: how badly the state reached was predicted.

    It is `log(1 + scale * error)`; the error is the distance between the state reached
    and a network's prediction from the state before and the action, in the space of a
    learned encoder if there is one.

    The metrics are `forward_loss`, the mean error before the update, and with an
    encoder `inverse_loss`.

    Differences from the paper: errors are distances, not their squares, under a
    logarithm, as in URLB's code. Without an encoder, the default, there is no inverse
    network, since it would change nothing. No gradient of the error flows through the
    encoding of the state reached, since that would shrink the features.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pathak2017curiosity,
            title={Curiosity-driven Exploration by Self-supervised Prediction},
            author={Pathak, Deepak and Agrawal, Pulkit and Efros, Alexei A. and
                Darrell, Trevor},
            booktitle={International Conference on Machine Learning},
            year={2017},
        }
        ```
    """

    lr: FloatLike = hyperparameter(1e-4, low=0)
    scale: FloatLike = hyperparameter(1.0, low=0)
    num_features: int = static_integer(64, least=1)
    descriptor: StateDescriptor = eqx.field(
        default="observation", static=True, metadata=checked_by(check_descriptor)
    )
    make_network: MakeNetwork[VectorFunction] = eqx.field(
        default=Features(), static=True
    )
    make_encoder: MakeNetwork[VectorFunction] | None = eqx.field(
        default=None, static=True
    )
    make_optimizer: MakeOptimizer = eqx.field(default=optax.adam, static=True)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> ICMState:
        model = make_curiosity_model(
            self.descriptor,
            spec,
            self.make_network,
            self.make_encoder,
            self.num_features,
            key=key,
        )
        return ICMState(model, init_optimizer(self.make_optimizer(self.lr), model))

    def observe(self, state: ICMState, transitions: Transition[Seen]) -> ICMState:
        del transitions
        return state

    def reward(
        self,
        state: ICMState,
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step, key
        rows = curiosity_rows(self.descriptor, state.model.num_actions, batch)
        error, _ = state.model.errors(*rows)
        return jnp.log1p(self.scale * error).reshape(batch.timestep.shape)

    def update(
        self, state: ICMState, batch: Transition[Seen], *, key: PRNGKeyArray
    ) -> tuple[ICMState, Metrics]:
        del key
        model, optimizer, metrics = learn_curiosity(
            state.model,
            state.optimizer,
            self.make_optimizer(self.lr),
            curiosity_rows(self.descriptor, state.model.num_actions, batch),
        )
        return ICMState(model, optimizer), metrics


ICM.__init__.__doc__ = """**Arguments:**

- `lr`: learning rate of all networks, at least 0.
- `scale`: factor of the errors, at least 0.
- `num_features`: outputs of the encoder, at least 1.
- `descriptor`: the part of a state that is predicted: `"observation"`, in full;
    `"state_descriptor"`, as the environment describes behavior; `"both"`, joined; or a
    function of one observation.
- `make_network`: a factory `(input_size, output_size, *, key)` of a network from one
    vector to another.
- `make_encoder`: likewise, for the encoder; `None` predicts the descriptor itself.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""
