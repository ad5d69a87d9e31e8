"""Multi-step returns for agents that learn from single transitions.

A batch holds the summed rewards of `num_steps` steps and the state that they lead to.
The agent multiplies the value of that state by its own discount, once: give it
`discount**num_steps`. That would be wrong if a time limit ended an episode earlier, so
runs across one are not drawn; after a termination there is nothing to discount. There
is no correction for different actions of the current policy in between. A whole run
must exist at the first update: `warmup_steps` of at least `num_steps` for each
environment, and episodes of as many steps.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

import eqrl
from eqrl import losses


class NStepReplay(eqrl.AbstractReplay[eqrl.ReplayState[Any]]):
    num_steps: int = eqx.field(static=True)
    discount: float = eqx.field(static=True)
    capacity: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    sequence_length: int = eqx.field(default=1, static=True)

    @property
    def ring(self) -> eqrl.ReplayBuffer:
        return eqrl.ReplayBuffer(self.capacity, self.batch_size)

    def init(self, item: eqrl.Transition[Any], num_envs: int) -> eqrl.ReplayState[Any]:
        return self.ring.init(item, num_envs)

    def add(
        self,
        state: eqrl.ReplayState[Any],
        items: eqrl.Transition[Any],
        counts: eqrl.Counts,
        *,
        keep: Array | None = None,
    ) -> eqrl.ReplayState[Any]:
        return self.ring.add(state, items, counts, keep=keep)

    def sample(
        self, state: eqrl.ReplayState[Any], counts: eqrl.Counts, *, key: Array
    ) -> eqrl.Transition[Any]:
        data = state.data
        rows = data.reward.shape[1]
        written = counts.rows_kept + counts.rows_written
        filled = jnp.minimum(written, rows)
        age = jnp.arange(rows)
        # The rows of the run that begins at each age, from the oldest one.
        steps = jnp.arange(self.num_steps)
        runs = (written - filled + age[:, None] + steps[None]) % rows
        over = (data.terminated | data.truncated)[:, runs]
        first_end = over & (jnp.cumsum(over, axis=-1) == 1)
        cut = jnp.any((first_end & data.truncated[:, runs])[..., :-1], axis=-1)
        whole = ~cut & (age <= filled - self.num_steps)[None]
        # One of all whole runs, with equal chances.
        number = jnp.cumsum(whole)
        lot = jr.randint(key, (self.batch_size,), 0, number[-1])
        env, start = jnp.divmod(jnp.searchsorted(number, lot, side="right"), rows)
        run = jax.tree.map(lambda x: x[env[:, None], runs[start]], data)
        returns, last, _ = jax.vmap(losses.multi_step_return, (0, 0, 0, None))(
            run.reward, run.terminated, run.truncated, self.discount
        )
        end = jax.tree.map(lambda x: x[jnp.arange(self.batch_size), last], run)
        return dataclasses.replace(
            jax.tree.map(lambda x: x[:, 0], run),
            reward=returns,
            next_observation=end.next_observation,
            next_critic_observation=end.next_critic_observation,
            next_state_descriptor=end.next_state_descriptor,
            terminated=end.terminated,
            truncated=end.truncated,
        )
