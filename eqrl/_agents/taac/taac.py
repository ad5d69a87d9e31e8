import math
from typing import get_args

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._pytree.fields import (
    check_choice,
    check_fields,
    checked_by,
    hyperparameter,
    hyperparameters,
    shown,
    static_choice,
    static_integer,
)
from ..._pytree.tree import init_optimizer, tree_copy, tree_where
from ..._types.custom_types import FloatLike, MakeOptimizer, Metrics, Mode, Observation
from ..._types.data import Box, EnvSpec, Transition
from ...losses._taac import TDLoss
from ...nn import Critic, Gaussian, MakePolicy, MakeTrajectoryCritic
from ..actor_critic import (
    check_spec,
    learning_rules,
    optimizers,
    periodic_update,
    reachable,
)
from ..base import AbstractAgent
from ..networks import critic, make_network
from .policy import (
    Decision,
    Preferences,
    TAACExtras,
    TAACMemory,
    decide,
    make_trajectory_policy,
    random_decision,
    randomize_first,
)
from .trajectory import AbstractTrajectory, ConstantTrajectory
from .update import (
    LogTemperatures,
    RepeatStatistics,
    TAACState,
    actor_step,
    critic_step,
    default_switch_target_entropy,
    default_target_entropy,
    flatten_windows,
    or_default,
    repeat_metrics,
    temperature_step,
)


def _check_reward_weights(name: str, reward_weights: object) -> None:
    if reward_weights is not None and not isinstance(reward_weights, tuple):
        raise ValueError(
            f"`{name}={reward_weights}` must be a tuple, with one number for "
            "each dimension of a vector reward. Leave it None if the reward is a "
            "scalar."
        )


def _check_advantage_clip(name: str, advantage_clip: object) -> None:
    if advantage_clip is None:
        return
    if not isinstance(advantage_clip, tuple) or len(advantage_clip) != 2:
        raise ValueError(
            f"`{name}={shown(advantage_clip)}` must be a tuple of two numbers, the "
            "least and the greatest advantage of switching, or None."
        )
    # A bound that is not a number is refused by the check of each element.
    if any(b is None or isinstance(b, jax.core.Tracer) for b in advantage_clip):
        return
    low, high = (float(bound) for bound in advantage_clip)
    if low > high:
        raise ValueError(
            f"`{name}=({low:g}, {high:g})` is empty; the first must not be "
            "more than the second."
        )


def _check_td_loss(name: str, td_loss: TDLoss) -> None:
    values = jax.ShapeDtypeStruct((2, 3), jnp.result_type(float))
    loss = eqx.filter_eval_shape(td_loss, values, values) if callable(td_loss) else None
    if getattr(loss, "shape", None) != values.shape:
        raise ValueError(
            f"`{name}={shown(td_loss)}` must be an elementwise function of values and "
            "targets, such as `optax.huber_loss`."
        )


def _check_rewards(
    discount: FloatLike | tuple[FloatLike, ...],
    reward_weights: tuple[FloatLike, ...] | None,
    spec: EnvSpec,
) -> None:
    """Checks that tuples have one number for each reward dimension."""
    for name, value, otherwise in (
        ("discount", discount, "a single number"),
        ("reward_weights", reward_weights, "None"),
    ):
        if isinstance(value, tuple) and len(value) != spec.reward_size:
            size = spec.reward_size
            reward = "is a scalar" if size is None else f"has {size} dimensions"
            raise ValueError(
                f"`{name}` has {len(value)} numbers, but `spec.reward_size={size}`: "
                f"the reward {reward}. Give one for each dimension of a vector "
                f"reward, or {otherwise}."
            )


class TAAC(AbstractAgent[TAACState, TAACMemory, TAACExtras]):
    """Temporally abstract actor-critic (TAAC): acts or repeats, in closed loop.

    At each step the actor proposes a new trajectory. The critics value the proposal and
    the continuation of the current trajectory, and the agent samples which of the two
    to follow from a softmax over these two values. So there is no second policy network
    to learn, and the decision to repeat is made anew at each step. With a
    `ConstantTrajectory` an action is repeated; with a `LinearTrajectory` (TAAC-L) or a
    `QuadraticTrajectory` (TAAC-Q) it keeps changing in the same way.

    The critics' target runs through a window of the replay for as long as both the
    stored and the current policy keep their trajectory, and bootstraps where either of
    them switches, or where the episode or the window ends. The last transition of a
    window bootstraps at its own `next_observation`, so a window of length 1 gives
    one-step targets. A window may contain the end of an episode; no reward or value
    passes across it.

    All parts are updated together, each from the state before the update. An episode
    begins with a trajectory of zeros, which may be kept like any other.

    Differences from the reference implementation, HorizonRobotics' ALF:

    - A switch that `max_repeat_steps` forces is stored as a switch. The reference
        stores the policy's decision, and so bootstraps past actions that were not
        repeated.
    - A reward dimension with weight zero is valued like any other. In the reference its
        target is the reward alone, since the minimum over critics is multiplied by the
        sign of the weight.
    - `bootstrap="sampled"` bootstraps with the value of the sampled switch. The
        reference uses the mean over both sides of the switch, which is biased, because
        the same sample decides whether to bootstrap at all: it is the value of a policy
        that repeats more. The mean is the default here too.
    - The critics' loss is a mean over transitions. The reference pads each window with
        a zero, and so multiplies the loss by `(T - 1) / T`, where `T`, the number of
        states in a window, is one more than the number of transitions.
    - The states reached are valued with separate samples, not with those of the
        actor's loss, and the last state of a window does not enter the actor's loss.

    `faithful=True` follows the reference in the first four points.

    The metrics are `critic_loss`, `actor_loss` and `temperature_loss`; `temperature`
    and `entropy` of the actor, `switch_temperature` and `switch_entropy` of the switch;
    `value_0`, `td_error_0` and `explained_variance_0` of the first critic, and so on,
    and `target`, to which the index of the dimension of a vector reward is added, as in
    `value_0_1`; `switch_advantage`, by how much the proposal is worth more;
    `keep_probability` and its standard deviation over the batch,
    `keep_probability_std`; `repeat_fraction`, the share of the batch's steps that keep
    a trajectory; and the mean length of trajectories in steps, in the batch and as
    collected recently, `repeat_length_replayed` and `repeat_length_collected`. With
    `debug` there are histograms, too.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{yu2021taac,
            title={{TAAC}: Temporally Abstract Actor-Critic for Continuous Control},
            author={Yu, Haonan and Xu, Wei and Zhang, Haichao},
            booktitle={Advances in Neural Information Processing Systems},
            year={2021},
        }
        ```
    """

    trajectory: AbstractTrajectory = eqx.field(default=ConstantTrajectory())
    window_length: int = static_integer(4, least=1)
    actor_lr: FloatLike = hyperparameter(3e-4, low=0)
    critic_lr: FloatLike = hyperparameter(3e-4, low=0)
    temperature_lr: FloatLike = hyperparameter(3e-4, low=0)
    discount: FloatLike | tuple[FloatLike, ...] = hyperparameters(0.99, low=0, high=1)
    target_step_size: FloatLike = hyperparameter(0.005, low=0, high=1)
    target_period: int = static_integer(1, least=1)
    reward_weights: tuple[FloatLike, ...] | None = hyperparameters(
        None, check=_check_reward_weights
    )
    num_critics: int = static_integer(2, least=1)
    initial_temperature: FloatLike = hyperparameter(
        1.0, low=0, low_open=True, init_only=True
    )
    target_entropy: FloatLike | None = hyperparameter(None)
    switch_target_entropy: FloatLike | None = hyperparameter(None)
    advantage_clip: tuple[FloatLike, ...] | None = hyperparameters(
        None, check=_check_advantage_clip
    )
    max_repeat_steps: int | None = static_integer(None, least=1)
    randomize_first_trajectory: bool = eqx.field(default=False, static=True)
    epsilon: FloatLike = hyperparameter(0.0, low=0, high=1)
    bootstrap: str = static_choice("mixed", ("mixed", "sampled"))
    target: str = static_choice(
        "compare_through", ("compare_through", "one_step", "multi_step")
    )
    td_loss: TDLoss = eqx.field(
        default=optax.squared_error, static=True, metadata=checked_by(_check_td_loss)
    )
    faithful: bool = eqx.field(default=False, static=True)
    make_actor: MakePolicy = eqx.field(default=Gaussian(), static=True)
    make_critic: MakeTrajectoryCritic = eqx.field(default=Critic(), static=True)
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...] = optimizers(
        "actor", "critic", "temperature"
    )
    debug: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        # The base class checks fields, too, but only after this method.
        check_fields(self)
        if self.faithful and self.bootstrap != "mixed":
            raise ValueError(
                "`faithful=True` bootstraps as the reference does, but `bootstrap="
                f"{shown(self.bootstrap)}` was given; make it 'mixed', or not faithful."
            )

    @property
    def sequence_length(self) -> int:
        return self.window_length

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> TAACState:
        check_spec("TAAC", spec, Box, vector_reward=True)
        _check_rewards(self.discount, self.reward_weights, spec)
        actor_key, critic_key = jr.split(key)
        num_parts = self.trajectory.num_parts
        actor = make_trajectory_policy(self.make_actor, num_parts, spec, key=actor_key)
        critics = make_network(
            critic(trajectory_size=num_parts * spec.action_size),
            "make_critic",
            self.make_critic,
            spec,
            number=self.num_critics,
            key=critic_key,
        )
        log_temperatures = LogTemperatures(
            action=reachable(
                jnp.log(self.initial_temperature),
                self.target_entropy,
                spec.action_size * math.log(2),
                what="actions that are uniform in [-1, 1]",
            ),
            switch=reachable(
                jnp.log(self.initial_temperature),
                self.switch_target_entropy,
                math.log(2),
                name="switch_target_entropy",
                what="a switch that is as likely as not",
            ),
        )
        actor_rule, critic_rule, temperature_rule = self._learning_rules()
        return TAACState(
            actor=actor,
            critics=critics,
            target_critics=tree_copy(critics),
            log_temperatures=log_temperatures,
            actor_optimizer=init_optimizer(actor_rule, actor),
            critic_optimizer=init_optimizer(critic_rule, critics),
            temperature_optimizer=init_optimizer(temperature_rule, log_temperatures),
            repeats=RepeatStatistics(steps=jnp.zeros(()), beginnings=jnp.zeros(())),
        )

    def begin(
        self,
        state: TAACState,
        spec: EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> TAACMemory:
        del state, index, key
        return TAACMemory(
            trajectory=self.trajectory.begin(spec.action_size),
            repeats=jnp.zeros((), int),
        )

    def act(
        self,
        state: TAACState,
        memory: TAACMemory,
        observation: Observation[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], TAACMemory, TAACExtras]:
        check_choice("mode", mode, get_args(Mode))
        begin_key, decide_key = jr.split(key)
        if self.randomize_first_trajectory and mode != "greedy":
            memory = randomize_first(memory, key=begin_key)
        if mode == "random":
            decision = random_decision(memory.trajectory, key=decide_key)
        else:
            decision = decide(
                state.actor,
                state.critics,
                jnp.exp(state.log_temperatures.switch),
                observation,
                memory.trajectory,
                self._preferences(),
                # Training draws from both stages of the policy.
                epsilon=self.epsilon if mode == "greedy" else 1.0,
                key=decide_key,
            )
        taken = decision
        if self.max_repeat_steps is not None:
            forced = memory.repeats >= self.max_repeat_steps
            # The output was drawn anyway; a forced switch only decides to use it.
            taken = Decision(output=decision.output, switch=decision.switch | forced)
        # Under `vmap` both branches of a condition are computed anyway.
        trajectory = tree_where(
            taken.switch,
            self.trajectory.new(memory.trajectory, taken.output),
            self.trajectory.keep(memory.trajectory),
        )
        repeats = jnp.where(taken.switch, 0, memory.repeats) + 1
        extras = TAACExtras(
            previous=memory.trajectory,
            trajectory=trajectory,
            # Targets stop at a stored switch. The reference stores the policy's
            # decision, so its targets run past a forced switch.
            switch=decision.switch if self.faithful else taken.switch,
            repeats=repeats,
        )
        memory = TAACMemory(trajectory=trajectory, repeats=repeats)
        return trajectory.action, memory, extras

    def observe(
        self, state: TAACState, transitions: Transition[TAACExtras]
    ) -> TAACState:
        repeats = state.repeats.update(transitions.extras.repeats)
        return eqx.tree_at(lambda state: state.repeats, state, repeats)

    def update(
        self,
        state: TAACState,
        batch: Transition[TAACExtras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[TAACState, Metrics]:
        next_key, actor_key = jr.split(key)
        actor_rule, critic_rule, temperature_rule = self._learning_rules()
        preferences = self._preferences()
        # Losses take one axis; only the critics' targets need the windows again.
        batch, window_length = flatten_windows(batch)
        critics, critic_optimizer, critic_metrics = critic_step(
            state,
            critic_rule,
            batch,
            preferences,
            window_length=window_length,
            discount=self.discount,
            target=self.target,
            td_loss=self.td_loss,
            sampled=self.bootstrap == "sampled",
            faithful=self.faithful,
            key=next_key,
        )
        actor, actor_optimizer, actor_metrics = actor_step(
            state, actor_rule, batch, preferences, histograms=self.debug, key=actor_key
        )
        log_temperatures, temperature_optimizer, temperature_metrics = temperature_step(
            state,
            temperature_rule,
            actor_metrics,
            target_entropy=or_default(
                self.target_entropy, default_target_entropy(batch.action.shape[-1])
            ),
            switch_target_entropy=or_default(
                self.switch_target_entropy, default_switch_target_entropy()
            ),
        )
        repeats = repeat_metrics(
            batch.extras.repeats, state.repeats, histograms=self.debug
        )
        state = TAACState(
            actor=actor,
            critics=critics,
            target_critics=periodic_update(
                critics,
                state.target_critics,
                self.target_step_size,
                period=self.target_period,
                step=step,
            ),
            log_temperatures=log_temperatures,
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            temperature_optimizer=temperature_optimizer,
            repeats=state.repeats,
        )
        return state, critic_metrics | actor_metrics | temperature_metrics | repeats

    def _preferences(self) -> Preferences:
        weights, clip = self.reward_weights, self.advantage_clip
        return Preferences(
            family=self.trajectory,
            reward_weights=None if weights is None else jnp.stack(weights),
            advantage_clip=None if clip is None else (clip[0], clip[1]),
        )

    def _learning_rules(self) -> tuple[optax.GradientTransformation, ...]:
        rates = (self.actor_lr, self.critic_lr, self.temperature_lr)
        return learning_rules(self.make_optimizer, *rates)


TAAC.__init__.__doc__ = """**Arguments:**

- `trajectory`: the family of trajectories: `ConstantTrajectory`, `LinearTrajectory` or
    `QuadraticTrajectory`.
- `window_length`: number of consecutive transitions in each element of a batch, at
    least 1.
- `actor_lr`, `critic_lr`, `temperature_lr`: learning rates, at least 0.
- `discount`: in [0, 1]; or a tuple with one for each dimension of a vector reward.
- `target_step_size`: weight of the new critics when the target critics move, in [0, 1].
- `target_period`: number of updates between such moves, at least 1.
- `reward_weights`: weight of each dimension of a vector reward for the policy, of
    either sign; `None` weighs all equally. Each dimension has its own target.
- `num_critics`: at least 1; values are the minimum over the critics.
- `initial_temperature`: initial weight of both entropies, greater than 0.
- `target_entropy`: of the actor, in nats, summed over the dimensions of the action;
    `None` is log 0.2 for each dimension, the entropy of a uniform distribution over a
    tenth of the range. It is at most log 2 for each dimension.
- `switch_target_entropy`: of the switch, in nats, at most log 2; `None` is 0.325, the
    entropy of a switch with probability 0.1.
- `advantage_clip`: lower and upper bound of the advantage of switching before the
    switch is drawn, in units of the value; `None` for no bounds.
- `max_repeat_steps`: maximum number of steps on one trajectory, at least 1; then a new
    one begins. `None` for no limit. Values bootstrap as if there were none, but
    a target ends at a switch that it forced.
- `randomize_first_trajectory`: whether training episodes begin with a trajectory drawn
    uniformly instead of zeros.
- `epsilon`: probability in [0, 1] with which a greedy step samples the actor's output
    and, independently, the switch.
- `bootstrap`: `"mixed"` takes the mean of both values over the switch's distribution,
    `"sampled"` the value of the sampled switch.
- `target`: `"compare_through"`, `"one_step"`, or `"multi_step"`, which bootstraps only
    at the end of the episode or window.
- `td_loss`: elementwise loss of values and targets, such as `optax.huber_loss`.
- `faithful`: follows the reference implementation in the first four of the
    differences above.
- `make_actor`: a factory `(observation_size, action_size, *, key)` of a policy that
    maps one observation to an `eqrl.nn.AbstractDensity`. Its observations have the
    embedded trajectory appended.
- `make_critic`: a factory `(observation_size, action_size, *, trajectory_size,
    reward_size, key)` of one critic that maps one observation and one vector of length
    `trajectory_size` to a scalar, or to a vector unless `reward_size` is `None`.
- `make_optimizer`: maps a learning rate to an Optax optimizer; or a tuple of three such
    factories, for actor, critic and temperature.
- `debug`: adds histograms to the metrics, as the share of each numbered bin.
"""
