from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from .._pytree.fields import (
    check_fields,
    check_integer,
    hyperparameter,
    static_choice,
    static_integer,
)
from .._pytree.stack import stack_size
from .._training.trainer import TrainerState
from .._types.custom_types import FloatLike, State
from .._types.stacked import Stacked
from .copying import copy_members
from .mesh import replicate, shard
from .prior import AbstractPrior


Agent = TypeVar("Agent")
Selection = Literal["truncation", "tournament"]


class PBT(eqx.Module):
    """Population based training: bad members copy good ones and vary hyperparameters.

    It works on stacks, and so for every agent, wrappers included. Differences from the
    paper: the numbers of members to replace and to copy from are arguments, not 20 %
    each; a perturbation applies in the coordinates of the prior and stays in its range.

    ??? cite "Reference"

        ```bibtex
        @article{jaderberg2017population,
            title={Population Based Training of Neural Networks},
            author={Jaderberg, Max and Dalibard, Valentin and Osindero, Simon and
                Czarnecki, Wojciech M. and Donahue, Jeff and Razavi, Ali and
                Vinyals, Oriol and Green, Tim and Dunning, Iain and Simonyan, Karen and
                Fernando, Chrisantha and Kavukcuoglu, Koray},
            journal={arXiv:1711.09846},
            year={2017},
        }
        ```
    """

    where: Callable[[Any], Any] = eqx.field(static=True)
    priors: tuple[AbstractPrior, ...]
    num_replaced: int = static_integer(2, least=0)
    num_elite: int = static_integer(2, least=1)
    resample_probability: FloatLike = hyperparameter(0.25, low=0, high=1)
    selection: Selection = static_choice("truncation", get_args(Selection))
    copy_replay: bool = eqx.field(default=True, static=True)

    def __check_init__(self) -> None:
        check_fields(self)

    def init(
        self, agent: Agent, size: int, *, key: PRNGKeyArray
    ) -> Stacked[Agent, "population"]:
        """A stack of agents that differ in the hyperparameters drawn from the priors.

        **Arguments:**

        - `agent`: a single agent; all members share what `where` does not select.
        - `size`: number of members, at least `num_elite + num_replaced`.
        - `key`: of the samples.

        Raises a `ValueError` unless `where`, `priors` and the sizes fit each other.
        """
        self.check(agent, size)
        agents = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (size, *x.shape)) if eqx.is_array(x) else x,
            agent,
        )
        values = jax.vmap(self._sample)(jr.split(key, size))
        return eqx.tree_at(self.where, agents, values)

    def exploit(
        self,
        agents: Stacked[Agent, "population"],
        states: Stacked[State, "population"],
        scores: Float[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> tuple[
        Stacked[Agent, "population"],
        Stacked[State, "population"],
        Int[Array, " population"],
    ]:
        """Replaces the worst members by children of better ones.

        A member whose score is not finite ranks last and is never a parent. With
        `"truncation"`, each of the `num_replaced` worst gets a parent drawn from the
        `num_elite` best. With `"tournament"`, every member meets another, drawn from
        all, and loses if that one is better; the `num_replaced` worst losers at most
        are replaced by their opponents.

        **Arguments:**

        - `agents`, `states`: of the population; `states` may be any stack, such as of
            `TrainerState`.
        - `scores`: of each member; higher is better.
        - `key`: of parents and perturbations; each child has samples of its own.

        **Returns:**

        The new agents and states, and the index of each member's parent, which is its
        own index if it was kept.
        """
        return self.exploit_over(None, agents, states, scores, key=key)

    def exploit_over(
        self,
        mesh: Mesh | None,
        agents: Stacked[Agent, "population"],
        states: Stacked[State, "population"],
        scores: Float[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> tuple[
        Stacked[Agent, "population"],
        Stacked[State, "population"],
        Int[Array, " population"],
    ]:
        """As `exploit`, with the states sharded over a mesh.

        Devices exchange only what they copy from each other. The mesh must have the one
        axis `population`, and each device an equal share of the members; `None` is no
        mesh.
        """
        size = stack_size(states)
        self._check_size(size)
        if self.num_replaced == 0:
            return agents, states, jnp.arange(size)
        # Agents are small, so every device has all of them and chooses for all.
        agents, scores = replicate((agents, scores), mesh)
        parent_key, vary_key = jr.split(key)
        finite = jnp.isfinite(scores)
        ranked = jnp.where(finite, scores, -jnp.inf)
        # From worst to best, so that no parent is overwritten before it is copied.
        order = jnp.argsort(ranked)
        if self.selection == "truncation":
            parents = self._elite_parents(ranked, order, key=parent_key)
        else:
            parents = self._opponents(ranked, order, key=parent_key)
        replaced = parents != jnp.arange(size)
        # The members to replace, still from worst to best.
        children = order[jnp.argsort(~replaced[order])][: self.num_replaced]
        agents = copy_members(agents, children, parents, None)
        agents = self._vary(agents, replaced, jr.split(vary_key, size))
        copied = copy_members(states, children, parents, mesh)
        if isinstance(states, TrainerState) and not self.copy_replay:
            # A failed member has nothing worth keeping.
            others = jnp.where(finite, jnp.arange(size), parents)
            kept = (states.actors, states.replay, states.failed)
            copied = eqx.tree_at(
                lambda state: (state.actors, state.replay, state.failed),
                copied,
                copy_members(kept, children, others, mesh),
            )
        return shard(agents, mesh), copied, parents

    def check(self, agent: Any, size: int) -> None:
        """Raises a `ValueError` unless it fits populations of a single agent."""
        self._check_size(size)
        self._check_where(agent)

    def _check_size(self, size: int) -> None:
        check_integer("size", size, least=1)
        if self.num_elite + self.num_replaced > size:
            raise ValueError(
                f"`num_elite={self.num_elite}` and `num_replaced={self.num_replaced}` "
                f"are more than the {size} members of the population together; lower "
                "one of them, or enlarge the population."
            )

    def _check_where(self, agent: Any) -> None:
        values = self.where(agent)
        if not isinstance(values, tuple) or len(values) != len(self.priors):
            raise ValueError(
                f"`where` must select a tuple of {len(self.priors)} hyperparameters, "
                f"one for each of `priors`, but it selects {eqx.tree_pformat(values)}."
            )
        for value in values:
            if not eqx.is_inexact_array(value) or value.shape != ():
                raise ValueError(
                    f"`where` selects {eqx.tree_pformat(value)}, which is no "
                    "hyperparameter: select float fields of a single agent, as in "
                    "`lambda a: (a.actor_lr,)`."
                )

    def _sample(self, key: PRNGKeyArray) -> tuple[Float[Array, ""], ...]:
        keys = jr.split(key, len(self.priors))
        return tuple(
            prior.sample(key=keys[index]) for index, prior in enumerate(self.priors)
        )

    def _elite_parents(
        self,
        ranked: Float[Array, " population"],
        order: Int[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> Int[Array, " population"]:
        size = order.shape[0]
        elite = order[size - self.num_elite :]
        worst = order[: self.num_replaced]
        # Only finite scores qualify; in the order from worst to best they are last.
        num_finite = jnp.sum(jnp.isfinite(ranked[elite]))
        drawn = jr.randint(key, (self.num_replaced,), 0, jnp.maximum(num_finite, 1))
        parents = elite[self.num_elite - 1 - drawn]
        parents = jnp.where(num_finite > 0, parents, worst)
        return jnp.arange(size).at[worst].set(parents)

    def _opponents(
        self,
        ranked: Float[Array, " population"],
        order: Int[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> Int[Array, " population"]:
        size = order.shape[0]
        members = jnp.arange(size)
        opponents = (members + jr.randint(key, (size,), 1, max(size, 2))) % size
        loses = ranked[opponents] > ranked
        num_losses = jnp.cumsum(loses[order])
        allowed = jnp.zeros(size, bool).at[order].set(num_losses <= self.num_replaced)
        return jnp.where(loses & allowed, opponents, members)

    def _vary(
        self,
        agents: Stacked[Agent, "population"],
        replaced: Bool[Array, " population"],
        keys: Key[Array, " population"],
    ) -> Stacked[Agent, "population"]:
        def vary(
            values: tuple[Float[Array, ""], ...],
            replaced: Bool[Array, ""],
            key: PRNGKeyArray,
        ) -> tuple[Float[Array, ""], ...]:
            sample_key, perturb_key, choice_key = jr.split(key, 3)
            sampled = self._sample(sample_key)
            perturb_keys = jr.split(perturb_key, len(self.priors))
            fresh = jr.bernoulli(
                choice_key, self.resample_probability, (len(self.priors),)
            )
            return tuple(
                jnp.where(
                    replaced,
                    jnp.where(
                        fresh[index],
                        sampled[index],
                        prior.perturb(values[index], key=perturb_keys[index]),
                    ),
                    values[index],
                )
                for index, prior in enumerate(self.priors)
            )

        values = jax.vmap(vary)(self.where(agents), replaced, keys)
        return eqx.tree_at(self.where, agents, values)


PBT.__init__.__doc__ = """**Arguments:**

- `where`: maps an agent to a tuple of the hyperparameters to tune. Pass the same
    function throughout an experiment: it is compared by identity.
- `priors`: one for each of these hyperparameters.
- `num_replaced`: number of members to replace at a time, at least 0.
- `num_elite`: number of members to copy from with `"truncation"`, at least 1.
- `resample_probability`: probability, in [0, 1], of sampling each hyperparameter of a
    child from its prior rather than perturbing the parent's value.
- `selection`: `"truncation"` or `"tournament"`.
- `copy_replay`: whether a child copies its parent's replay, environments and memories
    too. Otherwise it keeps its own, unless its score was not finite.
"""
