from typing import TYPE_CHECKING, Any, Generic

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import hyperparameter
from .._skills.prior import AbstractSkillPrior, SkillExtras
from .._types.custom_types import FloatLike, Metrics, RewardState
from .._types.data import EnvSpec, Transition
from ..losses import smerl_mask
from .base import AbstractSkillReward, after_update


_Transition = Transition[SkillExtras[Any]]


class SMERLState(eqx.Module, Generic[RewardState]):
    """State of `SMERL`."""

    reward: RewardState
    best: Float[Array, ""]


SMERLState.__init__.__doc__ = """**Arguments:**

- `reward`: the state of the reward inside.
- `best`: the greatest mean of a batch so far, of the return of each transition's
    episode.
"""


class SMERL(AbstractSkillReward[SMERLState[RewardState]]):
    """A reward for diversity that is given only in episodes that do well enough.

    Around a `Discriminator` or `DADS`, and added to the environment's reward, it leads
    to skills that solve a task in different ways, so that one of them may still work if
    the environment changes:

    ```python
    agent = eqrl.Intrinsic(
        eqrl.SkillConditioned(eqrl.SAC(), 5),
        eqrl.SMERL(eqrl.Discriminator(5), target=5_000, margin=500, scale=10),
        environment_weight=1.0,
    )
    trainer = eqrl.Trainer(
        make_replay=functools.partial(eqrl.ReplayBuffer, episode_returns=True)
    )
    ```

    A transition is rewarded if the undiscounted return of its whole episode is at least
    `target - margin`. The reward inside learns from all transitions.

    The metrics are those of the reward inside, `accepted`, the share of transitions
    that are rewarded, and `target`.

    Difference from the paper: without a target, the best return is found along the way
    (see `target`). Differences from the implementation in QDax: an episode is not
    judged before it has ended. QDax takes the sum so far, and so rejects the beginning
    of a good episode and accepts that of a bad one.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kumar2020one,
            title={One Solution is Not All You Need: Few-Shot Extrapolation via
                Structured {MaxEnt} {RL}},
            author={Kumar, Saurabh and Kumar, Aviral and Levine, Sergey and Finn,
                Chelsea},
            booktitle={Advances in Neural Information Processing Systems},
            year={2020},
        }
        ```
    """

    inner: AbstractSkillReward[RewardState]
    target: FloatLike | None = hyperparameter(None)
    margin: FloatLike = hyperparameter(100.0, low=0)
    scale: FloatLike = hyperparameter(1.0, low=0)

    if TYPE_CHECKING:
        # Static type checkers take the abstract `skills` for an argument.
        def __init__(
            self,
            inner: AbstractSkillReward[RewardState],
            target: FloatLike | None = ...,
            margin: FloatLike = ...,
            scale: FloatLike = ...,
        ) -> None: ...

    @property
    def skills(self) -> AbstractSkillPrior:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.skills

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> SMERLState[RewardState]:
        if spec.reward_size is not None:
            raise ValueError(
                f"`SMERL` compares returns with a number, but `spec.reward_size="
                f"{spec.reward_size}`: rewards are vectors. Make them scalars in the "
                "environment."
            )
        # Less than any return, and finite as states have to be.
        dtype = jnp.result_type(float)
        best = jnp.full((), jnp.finfo(dtype).min, dtype)
        return SMERLState(self.inner.init(spec, key=key), best)

    def observe(
        self, state: SMERLState[RewardState], transitions: _Transition
    ) -> SMERLState[RewardState]:
        return SMERLState(self.inner.observe(state.reward, transitions), state.best)

    def reward(
        self,
        state: SMERLState[RewardState],
        batch: _Transition,
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        reward = self.inner.reward(state.reward, batch, step=step, key=key)
        target = state.best if self.target is None else self.target
        returns = _returns(batch)
        accepted = smerl_mask(returns.reshape(-1), target, self.margin)
        return jnp.where(accepted.reshape(returns.shape), self.scale * reward, 0)

    def update(
        self, state: SMERLState[RewardState], batch: _Transition, *, key: PRNGKeyArray
    ) -> tuple[SMERLState[RewardState], Metrics]:
        updated = self.inner.update(state.reward, batch, key=key)
        inner, metrics = after_update(self.inner, state.reward, updated)
        target = state.best if self.target is None else jnp.asarray(self.target, float)
        returns = _returns(batch)
        # Both ignore nan, which marks episodes that are still running.
        best = jnp.fmax(state.best, jnp.nanmean(returns))
        accepted = smerl_mask(returns.reshape(-1), target, self.margin)
        metrics = metrics | {
            "accepted": jnp.mean(accepted, dtype=float),
            # Before an episode has ended there is no best return.
            "target": jnp.where(target > jnp.finfo(target.dtype).min, target, 0),
        }
        return SMERLState(inner, best), metrics


SMERL.__init__.__doc__ = """**Arguments:**

- `inner`: the reward for diversity, such as `eqrl.Discriminator(5)`.
- `target`: the return of the best policy, such as that of an agent trained before.
    `None` takes the greatest mean of a batch so far, of the return of each transition's
    episode. Where lengths differ, that is more than the mean return, since a long
    episode counts for each of its steps.
- `margin`: how far below the target the return of an episode may be, at least 0; the
    paper takes a tenth of the target.
- `scale`: factor of the diversity reward, at least 0.
"""


def _returns(batch: _Transition) -> Float[Array, "*batch"]:
    if batch.episode_return is None:
        raise ValueError(
            "`SMERL` needs the returns of whole episodes, which these transitions do "
            "not have: take an agent that learns from a replay, and give the trainer "
            "`make_replay=functools.partial(eqrl.ReplayBuffer, episode_returns=True)`. "
            "`eqrl.train_offline` cannot train with it."
        )
    return batch.episode_return
