import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._types.data import AbstractActionSpace, Action, Box, Discrete


class AbstractDistribution(eqx.Module):
    """A distribution over one action."""

    @property
    @abstractmethod
    def space(self) -> AbstractActionSpace:
        """The space of the action."""

    @abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Action:
        """Draws one action."""

    @abstractmethod
    def mode(self) -> Action:
        """The greedy action."""


class AbstractDensity(AbstractDistribution):
    """A distribution over vectors in [-1, 1], with a density.

    Its samples carry gradients.
    """

    @property
    def space(self) -> Box:
        # Every density has a mode; its shape is known without computing it.
        return Box(jax.eval_shape(self.mode).shape[0])

    @abstractmethod
    def sample_and_log_prob(
        self, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " act"], Float[Array, ""]]:
        """Draws one action, differentiably, with the logarithm of its density."""

    def entropy(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        """An estimate of the entropy, in nats, from one sample.

        It is unbiased, and so is its gradient. For `tanh` of a normal distribution
        there is no closed form.
        """
        return -self.sample_and_log_prob(key=key)[1]


class AbstractLikelihood(AbstractDistribution):
    """A distribution over actions that are made from a draw.

    Probabilities are those of the draw, such as a vector before it is clipped to
    [-1, 1]: they are known for each draw and stay finite.
    """

    @abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> Action:
        """Draws the value that an action is made from."""

    @abstractmethod
    def most_likely(self) -> Action:
        """The most likely draw, which makes the greedy action."""

    @abstractmethod
    def action(self, drawn: Action) -> Action:
        """The action made from a draw."""

    @abstractmethod
    def log_prob(self, drawn: Action) -> Float[Array, ""]:
        """Logarithm of the probability, or of the density, of a draw."""

    @abstractmethod
    def entropy(self) -> Float[Array, ""]:
        """Entropy, in nats, of the draws."""


@jax.custom_jvp
def _log_tanh_derivative(x: Float[Array, " act"]) -> Float[Array, " act"]:
    # log|d tanh(x)/dx|, in the form that is stable for large |x|.
    size = jnp.abs(x)
    return 2 * (math.log(2) - size - jnp.log1p(jnp.exp(-2 * size)))


# JAX would differentiate the logarithm and the exponential, but `tanh` suffices, and it
# is computed for the action anyway.
_log_tanh_derivative.defjvps(lambda tangent, _, x: -2 * jnp.tanh(x) * tangent)


class TanhNormal(AbstractDensity):
    """`tanh` of a diagonal normal distribution.

    Log-probabilities are computed from the value before `tanh`, so they stay finite for
    saturated actions.
    """

    mean: Float[Array, " act"]
    log_scale: Float[Array, " act"]

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        noise = jr.normal(key, self.mean.shape)
        return jnp.tanh(self.mean + jnp.exp(self.log_scale) * noise)

    def sample_and_log_prob(
        self, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " act"], Float[Array, ""]]:
        noise = jr.normal(key, self.mean.shape)
        before = self.mean + jnp.exp(self.log_scale) * noise
        # From the noise, not from (before - mean) / scale, which loses digits if the
        # scale is small.
        log_normal = -0.5 * (noise**2 + math.log(2 * math.pi)) - self.log_scale
        log_prob = jnp.sum(log_normal - _log_tanh_derivative(before))
        return jnp.tanh(before), log_prob

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """Logarithm of the density of an action, such as one from a data set.

        It and its gradient are finite even for actions on the border of [-1, 1], which
        count as the nearest numbers inside. For an action that was just drawn,
        `sample_and_log_prob` is more accurate.
        """
        # The largest number below 1: `arctanh` is finite there.
        most = 1 - float(jnp.finfo(action.dtype).epsneg)
        before = jnp.arctanh(jnp.clip(action, -most, most))
        noise = (before - self.mean) * jnp.exp(-self.log_scale)
        log_normal = -0.5 * (noise**2 + math.log(2 * math.pi)) - self.log_scale
        return jnp.sum(log_normal - _log_tanh_derivative(before))

    def mode(self) -> Float[Array, " act"]:
        return jnp.tanh(self.mean)


TanhNormal.__init__.__doc__ = """**Arguments:**

- `mean`: before `tanh`.
- `log_scale`: logarithm of the standard deviation before `tanh`.
"""


def _normal_density(x: Float[Array, " act"]) -> Float[Array, " act"]:
    return jnp.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)


def _clipped_log_prob(
    mean: Float[Array, " act"],
    scale: Float[Array, ""] | Float[Array, " act"],
    action: Float[Array, " act"],
) -> Float[Array, " act"]:
    """Log-density of each element inside (-1, 1), log-probability of a tail outside."""
    noise = (jnp.clip(action, -1, 1) - mean) / scale
    inside = -0.5 * (noise**2 + math.log(2 * math.pi)) - jnp.log(scale)
    below, above = log_ndtr((-1 - mean) / scale), log_ndtr((mean - 1) / scale)
    return jnp.where(action <= -1, below, jnp.where(action >= 1, above, inside))


class ClippedNormal(AbstractDistribution):
    """An isotropic normal distribution, clipped to [-1, 1].

    Clipping moves everything beyond the border onto it. So an element inside has a
    density, and one on the border a probability; log-probabilities and the entropy use
    one or the other.
    """

    mean: Float[Array, " act"]
    scale: Float[Array, ""]

    @property
    def space(self) -> Box:
        return Box(self.mean.shape[0])

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        noise = self.scale * jr.normal(key, self.mean.shape)
        return jnp.clip(self.mean + noise, -1, 1)

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """Logarithm of the density, or on the border of the probability, of an action.

        It is summed over elements, each inside or on the border.
        """
        return jnp.sum(_clipped_log_prob(self.mean, self.scale, action))

    def entropy(self) -> Float[Array, ""]:
        """Entropy, in nats, of the density inside and the probability on the border."""
        low, high = (-1 - self.mean) / self.scale, (1 - self.mean) / self.scale
        tails = (log_ndtr(low), log_ndtr(-high))
        inside = ndtr(high) - ndtr(low)
        # The integral of the squared noise, and of the constant, between the borders.
        squares = inside - (high * _normal_density(high) - low * _normal_density(low))
        constant = 0.5 * math.log(2 * math.pi) + jnp.log(self.scale)
        on_border = sum(jnp.exp(tail) * tail for tail in tails)
        return jnp.sum(0.5 * squares + constant * inside - on_border)

    def mode(self) -> Float[Array, " act"]:
        return jnp.clip(self.mean, -1, 1)


ClippedNormal.__init__.__doc__ = """**Arguments:**

- `mean`: before clipping.
- `scale`: standard deviation before clipping. Where it is 0 there is no density.
"""


class SquashedNormal(AbstractLikelihood):
    """A diagonal normal distribution, squashed to actions by `tanh` or clipping.

    Probabilities and the entropy are those of the normal distribution. For the ratio of
    two policies this makes no difference, since the derivative of `tanh` cancels. For
    actions, such as those of a data set, use `action_log_prob`.
    """

    mean: Float[Array, " act"]
    log_scale: Float[Array, " act"]
    squash: bool = eqx.field(static=True)

    @property
    def space(self) -> Box:
        return Box(self.mean.shape[0])

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        noise = jr.normal(key, self.mean.shape)
        return self.mean + jnp.exp(self.log_scale) * noise

    def most_likely(self) -> Float[Array, " act"]:
        return self.mean

    def action(self, drawn: Float[Array, " act"]) -> Float[Array, " act"]:
        return jnp.tanh(drawn) if self.squash else jnp.clip(drawn, -1, 1)

    def log_prob(self, drawn: Float[Array, " act"]) -> Float[Array, ""]:
        noise = (drawn - self.mean) * jnp.exp(-self.log_scale)
        constant = 0.5 * math.log(2 * math.pi)
        return jnp.sum(-0.5 * noise**2 - self.log_scale - constant)

    def action_log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """Logarithm of the density of an action, as in `TanhNormal`.

        Without `squash` it is as in `ClippedNormal`: a probability on the border.
        """
        if self.squash:
            return TanhNormal(self.mean, self.log_scale).log_prob(action)
        scale = jnp.exp(self.log_scale)
        return jnp.sum(_clipped_log_prob(self.mean, scale, action))

    def entropy(self) -> Float[Array, ""]:
        return jnp.sum(self.log_scale + 0.5 * math.log(2 * math.pi * math.e))

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        return self.action(self.draw(key=key))

    def mode(self) -> Float[Array, " act"]:
        return self.action(self.mean)


SquashedNormal.__init__.__doc__ = """**Arguments:**

- `mean`: mean of the draws.
- `log_scale`: logarithm of their standard deviation.
- `squash`: whether actions are made by `tanh` rather than by clipping to [-1, 1].
"""


class Softmax(AbstractLikelihood):
    """A categorical distribution whose probabilities are the softmax of logits."""

    logits: Float[Array, " actions"]

    @property
    def space(self) -> Discrete:
        return Discrete(self.logits.shape[0])

    def draw(self, *, key: PRNGKeyArray) -> Int[Array, ""]:
        # A stored action has the integer type of its space, not JAX's default.
        return jr.categorical(key, self.logits).astype(self.space.struct.dtype)

    def most_likely(self) -> Int[Array, ""]:
        return self.mode()

    def action(self, drawn: Int[Array, ""]) -> Int[Array, ""]:
        return drawn

    def log_prob(self, drawn: Int[Array, ""]) -> Float[Array, ""]:
        return self.log_probs()[drawn]

    def entropy(self) -> Float[Array, ""]:
        log_probs = self.log_probs()
        # A choice that is ruled out by an infinite logit adds nothing.
        known = jnp.where(jnp.isneginf(log_probs), 0, log_probs)
        return -jnp.sum(jnp.exp(log_probs) * known)

    def sample(self, *, key: PRNGKeyArray) -> Int[Array, ""]:
        return self.draw(key=key)

    def mode(self) -> Int[Array, ""]:
        return jnp.argmax(self.logits).astype(self.space.struct.dtype)

    def log_probs(self) -> Float[Array, " actions"]:
        """The logarithm of the probability of each action."""
        return jax.nn.log_softmax(self.logits)


Softmax.__init__.__doc__ = """**Arguments:**

- `logits`: one for each action; only their differences matter.
"""


class EpsilonGreedy(AbstractDistribution):
    """The best action or, with probability `epsilon`, one of all actions at random.

    With `num_actions` in all, the best one is drawn with the probability
    `1 - epsilon + epsilon / num_actions`. Among several best ones it is the first.
    """

    values: Float[Array, " actions"]
    epsilon: Float[Array, ""]

    @property
    def space(self) -> Discrete:
        return Discrete(self.values.shape[0])

    def sample(self, *, key: PRNGKeyArray) -> Int[Array, ""]:
        explore_key, action_key = jr.split(key)
        # A random action may be the best one, too.
        explores = jr.bernoulli(explore_key, self.epsilon)
        return jnp.where(explores, self.space.sample(key=action_key), self.mode())

    def log_prob(self, action: Int[Array, ""]) -> Float[Array, ""]:
        """Logarithm of an action's probability; minus infinity if it is never drawn."""
        return jnp.log(self._probs()[action])

    def entropy(self) -> Float[Array, ""]:
        """Entropy, in nats."""
        probs = self._probs()
        # An action that is never drawn adds nothing.
        return -jnp.sum(probs * jnp.log(jnp.where(probs > 0, probs, 1)))

    def _probs(self) -> Float[Array, " actions"]:
        num_actions = self.values.shape[0]
        is_best = jnp.arange(num_actions) == self.mode()
        explores = self.epsilon / num_actions
        return jnp.where(is_best, 1 - self.epsilon + explores, explores)

    def mode(self) -> Int[Array, ""]:
        return jnp.argmax(self.values).astype(self.space.struct.dtype)


EpsilonGreedy.__init__.__doc__ = """**Arguments:**

- `values`: value of each action; the best has the highest.
- `epsilon`: probability of a random action, in [0, 1].
"""
