from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool, PRNGKeyArray

from .._pytree.fields import check_fields, static_integer
from .counts import Counts
from .replay import AbstractReplay, Item, ReplayState, empty_rows, write_row


class LatestRows(AbstractReplay[ReplayState[Any]]):
    """The steps of one iteration, in the order in which they were taken.

    It is for agents that learn on-policy, whose `sequence_length` is `None`. A batch is
    all that there is, with the axes `(envs, time)`, and no copy of it.
    """

    capacity: int = static_integer(least=1)
    batch_size: int = static_integer(least=1)
    sequence_length: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        check_fields(self)
        if self.sequence_length is not None:
            raise ValueError(
                f"`LatestRows` holds a rollout, but the agent learns from batches of "
                f"`sequence_length={self.sequence_length}` steps, drawn from a replay; "
                "take `make_replay=eqrl.ReplayBuffer`, the default of `eqrl.Trainer`."
            )

    def init(self, item: Item, num_envs: int) -> ReplayState[Item]:
        """Room for `capacity // num_envs` rows.

        **Arguments:**

        - `item`: a transition of one environment, or its shapes and types.
        - `num_envs`: the number of environments.
        """
        return empty_rows(item, num_envs, self.capacity // num_envs)

    def add(
        self,
        state: ReplayState[Item],
        items: Item,
        counts: Counts,
        *,
        keep: Bool[Array, ""] | None = None,
    ) -> ReplayState[Item]:
        """Writes one row, over that of the iteration before.

        **Arguments:**

        - `state`: the replay.
        - `items`: one transition of every environment, with a leading axis `envs`.
        - `counts`: from before this row. Rows that were kept do not count: the first
            of an iteration is always the first here.
        - `keep`: if it is false, nothing changes.
        """
        rows = self.capacity // self.batch_size
        return write_row(state, items, counts.rows_written % rows, keep=keep)

    def sample(
        self, state: ReplayState[Item], counts: Counts, *, key: PRNGKeyArray
    ) -> Item:
        """All the steps of the iteration, with the axes `(envs, time)`.

        **Arguments:**

        - `state`: the replay.
        - `counts`, `key`: not used.
        """
        del counts, key
        return state.data


LatestRows.__init__.__doc__ = """**Arguments:**

- `capacity`: transitions of an iteration, of all environments.
- `batch_size`: the number of environments: a batch has the steps of each.
- `sequence_length`: `None`.
"""
