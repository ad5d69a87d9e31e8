from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._pytree.control_flow import filter_cond
from ..._pytree.fields import (
    check_choice,
    check_integer,
    check_range,
    hyperparameter,
    hyperparameters,
)
from ..._pytree.tree import incremental_update, tree_copy
from ..._types.custom_types import FloatLike, MakeOptimizer, Metrics, Mode
from ..._types.data import EnvSpec, Transition
from ...losses._taac import TDLoss
from ...nn import Critic, Gaussian
from ..actor_critic import (
    MakeNetwork,
    check_make_optimizer,
    init_optimizer,
    learning_rule,
    make_critics,
)
from ..base import AbstractAgent
from .checks import (
    check_advantage_clip,
    check_each,
    check_faithful,
    check_reward_weights,
    check_rewards,
    check_td_loss,
    check_trajectory,
)
from .policy import (
    Decision,
    Preferences,
    TAACExtras,
    TAACMemory,
    begin_at_random,
    decide,
    decide_at_random,
    make_trajectory_policy,
    take,
)
from .repeats import RepeatStatistics, repeat_metrics
from .state import LogTemperatures, TAACState
from .target import flat_batch, with_time
from .trajectory import AbstractTrajectory, ConstantTrajectory
from .update import (
    actor_step,
    critic_step,
    default_switch_target_entropy,
    default_target_entropy,
    temperature_step,
)


_PARTS = ("actor", "critic", "temperature")
_MODES = ("random", "sample", "greedy")
_BOOTSTRAPS = ("mixed", "sampled")
_TARGETS = ("compare_through", "one_step", "multi_step")


class TAAC(AbstractAgent[TAACState, TAACMemory, TAACExtras]):
    """Temporally abstract actor-critic: acts or repeats, in closed loop.

    At each step the actor proposes how a new trajectory would begin. The critics value
    it and going on as before, and a switch is drawn which prefers the better of both.
    So no second policy is learnt, and what is kept is kept for a reason at each step.
    With a `ConstantTrajectory` an action is repeated, with a `LinearTrajectory`
    (TAAC-L) or a `QuadraticTrajectory` (TAAC-Q) it goes on changing.

    The critics' target runs through a window of the replay for as long as both the
    stored and the current policy keep their trajectory, and bootstraps where either
    switches, the episode ends or the window does. The last transition of a window
    bootstraps at its own `next_observation`, so a window of one gives one-step targets.
    Windows may go on from one episode to the next; nothing leaks over its end.

    All parts learn at once, from the parts before the update. An episode begins on a
    trajectory of zeros, which may be kept like any other.

    Where it differs from the reference, HorizonRobotics' ALF:

    - A switch that `max_repeat_steps` forced is stored as one. The reference stores
        what was decided, and so bootstraps past actions that were not repeated.
    - A reward whose weight is zero is valued as it is. In the reference its target is
        its reward alone, for the least value is multiplied by the sign of the weight.
    - `bootstrap="sampled"` bootstraps on the value of the switch that was drawn. The
        reference's mean over both is biased, since what is drawn also decides whether
        to stop: it values a policy that repeats more. It is the default here too.
    - The critics' loss is a mean over transitions. The reference pads it by a row of
        zeros for each window, and so multiplies it by `(T - 1) / T`, where `T`, the
        states in a window, is one more than the transitions.
    - States reached are valued with draws of their own, not with those of the actor's
        loss; and the last state of a window has no part in the actor's loss.

    `faithful=True` takes the reference's side in the first four.

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
    window_length: int = eqx.field(default=4, static=True)
    actor_lr: FloatLike = hyperparameter(3e-4)
    critic_lr: FloatLike = hyperparameter(3e-4)
    temperature_lr: FloatLike = hyperparameter(3e-4)
    discount: FloatLike | tuple[FloatLike, ...] = hyperparameters(0.99)
    target_step_size: FloatLike = hyperparameter(0.005)
    target_period: int = eqx.field(default=1, static=True)
    reward_weights: tuple[FloatLike, ...] | None = hyperparameters(None)
    num_critics: int = eqx.field(default=2, static=True)
    initial_temperature: FloatLike = hyperparameter(1.0)
    target_entropy: FloatLike | None = hyperparameter(None)
    switch_target_entropy: FloatLike | None = hyperparameter(None)
    advantage_clip: tuple[FloatLike, ...] | None = hyperparameters(None)
    max_repeat_steps: int | None = eqx.field(default=None, static=True)
    randomize_first_trajectory: bool = eqx.field(default=False, static=True)
    epsilon: FloatLike = hyperparameter(0.0)
    bootstrap: str = eqx.field(default="mixed", static=True)
    target: str = eqx.field(default="compare_through", static=True)
    td_loss: TDLoss = eqx.field(default=optax.squared_error, static=True)
    faithful: bool = eqx.field(default=False, static=True)
    make_actor: MakeNetwork = eqx.field(default=Gaussian(), static=True)
    make_critic: MakeNetwork = eqx.field(default=Critic(), static=True)
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...] = eqx.field(
        default=optax.adam, static=True
    )
    debug: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        for name in ("actor_lr", "critic_lr", "temperature_lr"):
            check_range(name, getattr(self, name), low=0)
        check_each("discount", self.discount, low=0, high=1)
        check_reward_weights(self.reward_weights)
        check_range("target_step_size", self.target_step_size, low=0, high=1)
        check_range(
            "initial_temperature", self.initial_temperature, low=0, low_open=True
        )
        check_range("target_entropy", self.target_entropy, optional=True)
        check_range("switch_target_entropy", self.switch_target_entropy, optional=True)
        check_range("epsilon", self.epsilon, low=0, high=1)
        check_advantage_clip(self.advantage_clip)
        for name in ("window_length", "target_period", "num_critics"):
            check_integer(name, getattr(self, name), least=1)
        if self.max_repeat_steps is not None:
            check_integer("max_repeat_steps", self.max_repeat_steps, least=1)
        check_trajectory(self.trajectory)
        check_choice("bootstrap", self.bootstrap, _BOOTSTRAPS)
        check_choice("target", self.target, _TARGETS)
        check_td_loss(self.td_loss)
        check_faithful(self.faithful, self.bootstrap)
        check_make_optimizer(self.make_optimizer, _PARTS)

    @property
    def sequence_length(self) -> int:
        return self.window_length

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> TAACState:
        check_rewards(self.discount, self.reward_weights, spec)
        actor_key, critic_key = jr.split(key)
        num_parts = self.trajectory.num_parts
        actor = make_trajectory_policy(self.make_actor, num_parts, spec, key=actor_key)
        critics = make_critics(
            self.make_critic,
            self.num_critics,
            spec,
            trajectory_size=num_parts * spec.action_size,
            key=critic_key,
        )
        log_temperatures = LogTemperatures(
            action=jnp.log(self.initial_temperature),
            switch=jnp.log(self.initial_temperature),
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
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], TAACMemory, TAACExtras]:
        check_choice("mode", mode, _MODES)
        begin_key, decide_key = jr.split(key)
        if self.randomize_first_trajectory and mode != "greedy":
            memory = begin_at_random(memory, key=begin_key)
        if mode == "random":
            decision = decide_at_random(memory.trajectory, key=decide_key)
        else:
            decision = decide(
                state.actor,
                state.critics,
                jnp.exp(state.log_temperatures.switch),
                observation,
                memory.trajectory,
                self._preferences(),
                epsilon=self.epsilon if mode == "greedy" else 1.0,
                key=decide_key,
            )
        taken = self._force(decision, memory)
        trajectory = take(self.trajectory, memory.trajectory, taken)
        repeats = jnp.where(taken.switch, 0, memory.repeats) + 1
        extras = TAACExtras(
            previous=memory.trajectory,
            trajectory=trajectory,
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
        batch = with_time(batch)
        critics, critic_optimizer, critic_metrics = critic_step(
            state,
            critic_rule,
            batch,
            preferences,
            discount=self.discount,
            target=self.target,
            td_loss=self.td_loss,
            sampled=self.bootstrap == "sampled",
            faithful=self.faithful,
            key=next_key,
        )
        actor, actor_optimizer, actor_metrics = actor_step(
            state,
            actor_rule,
            flat_batch(batch),
            preferences,
            histograms=self.debug,
            key=actor_key,
        )
        log_temperatures, temperature_optimizer, temperature_metrics = temperature_step(
            state,
            temperature_rule,
            actor_metrics,
            target_entropy=_default(
                self.target_entropy, default_target_entropy(batch.action.shape[-1])
            ),
            switch_target_entropy=_default(
                self.switch_target_entropy, default_switch_target_entropy()
            ),
        )
        repeats = repeat_metrics(
            batch.extras.repeats, state.repeats, histograms=self.debug
        )
        state = TAACState(
            actor=actor,
            critics=critics,
            target_critics=self._move_targets(critics, state.target_critics, step),
            log_temperatures=log_temperatures,
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            temperature_optimizer=temperature_optimizer,
            repeats=state.repeats,
        )
        return state, critic_metrics | actor_metrics | temperature_metrics | repeats

    def _force(self, decision: Decision, memory: TAACMemory) -> Decision:
        if self.max_repeat_steps is None:
            return decision
        forced = memory.repeats >= self.max_repeat_steps
        return Decision(output=decision.output, switch=decision.switch | forced)

    def _move_targets(
        self, critics: Any, target_critics: Any, step: Int[Array, ""]
    ) -> Any:
        move = lambda new, old: incremental_update(new, old, self.target_step_size)
        if self.target_period == 1:
            return move(critics, target_critics)
        return filter_cond(
            (step + 1) % self.target_period == 0,
            move,
            lambda new, old: old,
            critics,
            target_critics,
        )

    def _preferences(self) -> Preferences:
        weights, clip = self.reward_weights, self.advantage_clip
        return Preferences(
            family=self.trajectory,
            reward_weights=None if weights is None else jnp.stack(weights),
            advantage_clip=None if clip is None else (clip[0], clip[1]),
        )

    def _learning_rules(self) -> tuple[optax.GradientTransformation, ...]:
        rates = (self.actor_lr, self.critic_lr, self.temperature_lr)
        return tuple(
            learning_rule(self.make_optimizer, index, rate)
            for index, rate in enumerate(rates)
        )


TAAC.__init__.__doc__ = """**Arguments:**

- `trajectory`: the family of trajectories: `ConstantTrajectory`, `LinearTrajectory` or
    `QuadraticTrajectory`.
- `window_length`: consecutive transitions in each element of a batch, at least 1.
- `actor_lr`, `critic_lr`, `temperature_lr`: learning rates, at least 0.
- `discount`: in [0, 1]; or one for each dimension of a vector of rewards.
- `target_step_size`: how far the target critics move, in [0, 1].
- `target_period`: updates from one such move to the next, at least 1.
- `reward_weights`: what each dimension of a vector of rewards counts for the policy, of
    either sign; `None` counts all alike. Each dimension has a target of its own.
- `num_critics`: at least 1; values are the least of theirs.
- `initial_temperature`: weight of both entropies at first, more than 0.
- `target_entropy`: of the actor, in nats, summed over the dimensions of the action;
    `None` is log 0.2 for each of them, as though uniform over a tenth of the range.
- `switch_target_entropy`: of the switch, in nats; `None` is 0.325, that of a switch
    which is taken with probability 0.1.
- `advantage_clip`: the least and the greatest advantage of switching that the switch is
    to see, in units of the value; `None` for no bounds.
- `max_repeat_steps`: the most steps on one trajectory, at least 1, after which a new
    one begins; `None` for no limit. Targets do not know of it.
- `randomize_first_trajectory`: begins each episode of training on a trajectory drawn
    uniformly rather than on zeros.
- `epsilon`: probability in [0, 1] with which a greedy step samples the actor's output,
    and, independently, the switch.
- `bootstrap`: `"mixed"` takes the mean of both values over the switch, `"sampled"` the
    value of the switch that was drawn.
- `target`: `"compare_through"`, `"one_step"`, or `"multi_step"`, which stops where the
    episode or the window ends only.
- `td_loss`: elementwise, of values and targets, such as `optax.huber_loss`.
- `faithful`: follows the reference where it is at odds with the paper or with itself.
- `make_actor`: a factory `(observation_size, action_size, *, key)` of a policy: from
    one observation to an `eqrl.nn.AbstractDensity`. It is made for observations with
    the embedded trajectory behind them.
- `make_critic`: a factory `(observation_size, action_size, *, trajectory_size,
    reward_size, key)` of one critic: from one observation and one vector of
    `trajectory_size` to a scalar, or to a vector where `reward_size` is not `None`.
- `make_optimizer`: from a learning rate to an Optax optimizer; or three such
    factories, for actor, critic and temperature.
- `debug`: adds histograms to the metrics, as shares in numbered bins.

Factories are compared by value where they define equality, as the library's own do,
else by identity: a fresh lambda compiles everything again.
"""


def _default(value: FloatLike | None, default: float) -> FloatLike:
    return default if value is None else value
