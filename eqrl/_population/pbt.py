import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast, get_args

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, Real

from .._pytree.fields import (
    check_choice,
    check_fields,
    check_integer,
    hyperparameter,
    static_integer,
)
from .._pytree.tree import (
    check_stack,
    described,
    init_only_leaves,
    range_at,
    repeated,
    show_values,
    stack_size,
)
from .._training.mesh import (
    from_owner,
    on_each_device,
    place_in_share,
    replicate,
    shard,
)
from .._training.trainer import TrainerState
from .._types.custom_types import FloatLike, PyTree, State
from .._types.stacked import Stacked
from ..envs._host import without_copies_of_simulators
from .prior import AbstractPrior, bounds_of, check_prior


class AbstractSelection(eqx.Module):
    """Chooses the members to replace and their parents."""

    def __check_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def check_size(self, size: int) -> None:
        """Checks that it can choose among the members, or raises a `ValueError`."""

    @abstractmethod
    def most_replaced(self, size: int) -> int:
        """The most members of `size` that are replaced at a time."""

    @abstractmethod
    def parents(
        self,
        ranked: Float[Array, " population"],
        order: Int[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> Int[Array, " population"]:
        """The index of each member's parent, which is its own index if it is kept.

        A parent comes after its children in `order`, or is kept itself.

        **Arguments:**

        - `ranked`: score of each member, minus infinity if it failed.
        - `order`: the members from worst to best.
        - `key`: for the draws.
        """


class Truncation(AbstractSelection):
    """Truncation selection: replaces the worst members with children of the best.

    Each of the `num_replaced` worst gets a parent drawn from the `num_elite` best.
    """

    num_replaced: int = static_integer(2, least=0)
    num_elite: int = static_integer(2, least=1)

    def check_size(self, size: int) -> None:
        if self.num_elite + self.num_replaced > size:
            raise ValueError(
                f"`num_elite={self.num_elite}` and `num_replaced={self.num_replaced}` "
                f"are more than the {size} members of the population together; lower "
                "one of them, or enlarge the population."
            )

    def most_replaced(self, size: int) -> int:
        del size
        return self.num_replaced

    def parents(
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


Truncation.__init__.__doc__ = """**Arguments:**

- `num_replaced`: number of members to replace at a time, at least 0.
- `num_elite`: number of members to copy from, at least 1.
"""


class Tournament(AbstractSelection):
    """Tournament selection: replaces losing members with children of their opponents.

    Every member has one opponent, drawn from all others; that of a member that failed
    is drawn from those with a score. A member loses if its opponent is better.
    """

    num_replaced: int | None = static_integer(None, least=0)

    def check_size(self, size: int) -> None:
        del size

    def most_replaced(self, size: int) -> int:
        # The best member never loses.
        most = size - 1
        return most if self.num_replaced is None else min(self.num_replaced, most)

    def parents(
        self,
        ranked: Float[Array, " population"],
        order: Int[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> Int[Array, " population"]:
        size = order.shape[0]
        members = jnp.arange(size)
        any_key, finite_key = jr.split(key)
        opponents = (members + jr.randint(any_key, (size,), 1, max(size, 2))) % size
        # What failed is to be replaced, so it may not meet another that failed. Finite
        # scores are the last in the order.
        finite = jnp.isfinite(ranked)
        most = jnp.maximum(jnp.sum(finite), 1)
        others = order[size - 1 - jr.randint(finite_key, (size,), 0, most)]
        opponents = jnp.where(finite, opponents, others)
        loses = ranked[opponents] > ranked
        num_losses = jnp.cumsum(loses[order])
        allowed = num_losses <= self.most_replaced(size)
        allowed = jnp.zeros(size, bool).at[order].set(allowed)
        return jnp.where(loses & allowed, opponents, members)


Tournament.__init__.__doc__ = """**Arguments:**

- `num_replaced`: number of losers to replace at a time, the worst of them, at least 0;
    `None` replaces every loser, as in the paper.
"""


Agent = TypeVar("Agent")
Selection = Literal["truncation", "tournament"]
_DEFAULT_NUM_REPLACED = 2
_DEFAULT_NUM_ELITE = 2


class PBT(eqx.Module):
    """Population based training: bad members copy good ones and vary hyperparameters.

    It works on stacks, and so for every agent, wrappers included. Differences from the
    paper: with `Truncation`, the numbers of members to replace and to copy from are
    arguments, not 20 % each; a perturbation applies in the coordinates of the prior and
    stays in its range.

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
    num_replaced: int | None = static_integer(None, least=0)
    num_elite: int | None = static_integer(None, least=1)
    resample_probability: FloatLike = hyperparameter(0.25, low=0, high=1)
    selection: Selection | AbstractSelection = eqx.field(
        default="truncation", static=True
    )
    copy_replay: bool = eqx.field(default=True, static=True)

    def __repr__(self) -> str:
        return show_values(self)

    def __check_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.selection, AbstractSelection):
            check_choice("selection", self.selection, get_args(Selection))
        elif self.num_replaced is not None or self.num_elite is not None:
            raise ValueError(
                f"`selection={self.selection}` holds its own numbers; give "
                "`num_replaced` and `num_elite` to it, not to `PBT`."
            )

    @property
    def scheme(self) -> AbstractSelection:
        """The selection scheme; `selection` may be its name or the scheme."""
        if isinstance(self.selection, AbstractSelection):
            return self.selection
        num_replaced, num_elite = self.num_replaced, self.num_elite
        if num_replaced is None:
            num_replaced = _DEFAULT_NUM_REPLACED
        if self.selection == "tournament":
            return Tournament(num_replaced)
        return Truncation(
            num_replaced, _DEFAULT_NUM_ELITE if num_elite is None else num_elite
        )

    def init(
        self, agent: Agent, size: int, *, key: PRNGKeyArray
    ) -> Stacked[Agent, "population"]:
        """A stack of agents that differ in the hyperparameters drawn from the priors.

        **Arguments:**

        - `agent`: a single agent; all members share what `where` does not select.
        - `size`: number of members; with truncation at least
            `num_elite + num_replaced`.
        - `key`: for the samples.

        Raises a `ValueError` unless `where`, `priors` and the sizes fit each other.
        """
        self.check(agent, size)
        agents = repeated(agent, size)
        values = jax.vmap(self._sample)(jr.split(key, size))
        return self._with(agents, values)

    def selected(self, tree: object) -> tuple[object, ...]:
        """The leaves that `where` selects in any tree with the structure of an agent.

        `where` itself gets one agent with numbers, whatever the leaves are, since it
        may be written, and type-checked, for a single agent.
        """
        leaves = jax.tree.leaves(tree)
        return tuple(leaves[position] for position in self._positions(tree))

    def _with(
        self, agents: Stacked[Agent, "population"], values: tuple[object, ...]
    ) -> Stacked[Agent, "population"]:
        """The agents with other values of the selected hyperparameters."""
        leaves, structure = jax.tree.flatten(agents)
        for position, value in zip(self._positions(agents), values, strict=True):
            leaves[position] = value
        return jax.tree.unflatten(structure, leaves)

    def with_greatest(
        self, agents: Stacked[Agent, "population"]
    ) -> Stacked[Agent, "population"]:
        """The agents with the greatest values that their children may be given."""
        values = cast(tuple[Array, ...], self.selected(agents))
        bounds = map(bounds_of, self.priors)
        raised = (
            value if ends is None else jnp.maximum(value, ends[1])
            for value, ends in zip(values, bounds, strict=True)
        )
        return self._with(agents, tuple(raised))

    def _positions(self, tree: PyTree) -> list[int]:
        """Which leaves `where` selects."""
        structure = jax.tree.structure(tree)
        with jax.ensure_compile_time_eval():
            leaves = [jnp.zeros(()) for _ in range(structure.num_leaves)]
        numbers = {id(leaf): index for index, leaf in enumerate(leaves)}
        selected = self.where(jax.tree.unflatten(structure, leaves))
        positions = [numbers[id(x)] for x in selected if id(x) in numbers]
        if len(set(positions)) != len(selected):
            raise ValueError(
                "`where` must select hyperparameters as they are, and each once, as in "
                "`lambda a: (a.actor_lr, a.critic_lr)`."
            )
        return positions

    def exploit(
        self,
        agents: Stacked[Agent, "population"],
        states: Stacked[State, "population"],
        scores: Real[Array | np.ndarray, " population"],
        *,
        key: PRNGKeyArray,
    ) -> tuple[
        Stacked[Agent, "population"],
        Stacked[State, "population"],
        Int[Array, " population"],
    ]:
        """Replaces the worst members with children of better ones.

        A member whose score is not finite ranks last and is never a parent. Children
        vary all hyperparameters except those that only `init` reads, such as the
        `initial_temperature` of `SAC`: these differ between members from the start and
        are inherited together with the result of `init`.

        **Arguments:**

        - `agents`, `states`: stacks of the population; `states` may be any stack, such
            as one of `TrainerState`s.
        - `scores`: the score of each member; higher is better.
        - `key`: for parents and perturbations; each child has its own samples.

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
        scores: Real[Array | np.ndarray, " population"],
        *,
        key: PRNGKeyArray,
    ) -> tuple[
        Stacked[Agent, "population"],
        Stacked[State, "population"],
        Int[Array, " population"],
    ]:
        """Like `exploit`, with the states sharded over a mesh.

        Devices exchange only what they copy from each other. The mesh must have the one
        axis `population`, and each device an equal share of the members; `None` means
        no mesh.
        """
        check_stack("states", states)
        size = stack_size(states)
        check_stack("agents", agents, size=size)
        if jnp.shape(scores) != (size,):
            raise ValueError(
                f"`scores` has the shape {jnp.shape(scores)}, but there are {size} "
                f"members: one number for each is needed, of shape ({size},)."
            )
        scheme = self.scheme
        scheme.check_size(size)
        most_replaced = scheme.most_replaced(size)
        if most_replaced == 0:
            return agents, states, jnp.arange(size)
        # Agents are small, so every device has all of them and chooses for all.
        agents, scores = replicate((agents, scores), mesh)
        parent_key, vary_key = jr.split(key)
        # Scores may be counts, such as those of goals that were reached.
        scores = scores.astype(float)
        finite = jnp.isfinite(scores)
        ranked = jnp.where(finite, scores, -jnp.inf)
        # From worst to best, so that no parent is overwritten before it is copied.
        order = jnp.argsort(ranked)
        parents = scheme.parents(ranked, order, key=parent_key)
        replaced = parents != jnp.arange(size)
        # The members to replace, still from worst to best.
        children = order[jnp.argsort(~replaced[order])][:most_replaced]
        agents = copy_members(agents, children, parents, None)
        agents = self._vary(agents, replaced, jr.split(vary_key, size))
        copied = copy_members(states, children, parents, mesh)
        others = parents
        if isinstance(states, TrainerState) and not self.copy_replay:
            # Children inherit only the agent, and keep their environments and replays,
            # which come from policies that are not much worse. A failed member has
            # nothing worth keeping.
            others = jnp.where(finite, jnp.arange(size), parents)
            kept = (states.actors, states.replay, states.failed)
            copied = eqx.tree_at(
                lambda state: (state.actors, state.replay, state.failed),
                copied,
                copy_members(kept, children, others, mesh),
            )
        moved = others != jnp.arange(size)
        copied = without_copies_of_simulators(states, copied, moved)
        return shard(agents, mesh), copied, parents

    def check(self, agent: Any, size: int) -> None:
        """Checks that it fits populations of an agent, or raises a `ValueError`."""
        check_integer("size", size, least=1)
        self.scheme.check_size(size)
        try:
            values = self.where(agent)
        except AttributeError as error:
            raise ValueError(
                f"`where` cannot select from a {type(agent).__name__}: {error}. Select "
                "its hyperparameters, as in `lambda a: (a.actor_lr,)`."
            ) from error
        if not isinstance(values, tuple) or len(values) != len(self.priors):
            raise ValueError(
                f"`where` must select a tuple of {len(self.priors)} hyperparameters, "
                f"one for each of `priors`, but it selects {eqx.tree_pformat(values)}."
            )
        for value in values:
            if not eqx.is_inexact_array(value) or value.shape != ():
                raise ValueError(
                    f"`where` selects {eqx.tree_pformat(value)}, which is not a "
                    "hyperparameter: select float fields of a single agent, as in "
                    "`lambda a: (a.actor_lr,)`."
                )
        leaves = jax.tree_util.tree_flatten_with_path(agent)[0]
        for position, prior in zip(self._positions(agent), self.priors, strict=True):
            path, _ = leaves[position]
            name = jax.tree_util.keystr(path).lstrip(".")
            try:
                check_prior(name, prior, range_at(agent, path))
                _check_drawn(prior, name)
            except ValueError as error:
                raise ValueError(f"The prior of `{name}` is wrong: {error}") from error

    def _sample(self, key: PRNGKeyArray) -> tuple[Float[Array, ""], ...]:
        keys = jr.split(key, len(self.priors))
        # A custom prior may draw integers, or weakly typed numbers.
        return tuple(
            jnp.asarray(prior.sample(key=keys[index]), float)
            for index, prior in enumerate(self.priors)
        )

    def _vary(
        self,
        agents: Stacked[Agent, "population"],
        replaced: Bool[Array, " population"],
        keys: Key[Array, " population"],
    ) -> Stacked[Agent, "population"]:
        """Perturbs or resamples the hyperparameters of replaced members."""

        def vary(
            values: PyTree, replaced: Bool[Array, ""], key: PRNGKeyArray
        ) -> tuple[Float[Array, ""], ...]:
            sample_key, perturb_key, choice_key = jr.split(key, 3)
            size = len(self.priors)
            sampled = self._sample(sample_key)
            fresh = jr.bernoulli(choice_key, self.resample_probability, (size,))
            perturb_keys = jr.split(perturb_key, size)
            varied = []
            for index, (prior, old) in enumerate(zip(self.priors, values, strict=True)):
                perturbed = prior.perturb(old, key=perturb_keys[index])
                new = jnp.where(
                    fresh[index], sampled[index], jnp.asarray(perturbed, float)
                )
                # All members draw, since `vmap` does not skip branches.
                varied.append(jnp.where(replaced, new, old))
            return tuple(varied)

        before = self.selected(agents)
        varied = jax.vmap(vary)(before, replaced, keys)
        # A child inherits the result of its parent's `init` for these.
        settled = self.selected(init_only_leaves(agents))
        values = tuple(
            old if fixed else new
            for old, new, fixed in zip(before, varied, settled, strict=True)
        )
        return self._with(agents, values)


def _check_drawn(prior: AbstractPrior, name: str) -> None:
    """Checks that a prior draws and perturbs single numbers."""

    def draw(key: PRNGKeyArray) -> dict[str, object]:
        sample_key, perturb_key = jr.split(key)
        value = prior.sample(key=sample_key)
        return {"sample": value, "perturb": prior.perturb(value, key=perturb_key)}

    for method, value in eqx.filter_eval_shape(draw, jr.key(0)).items():
        if jnp.shape(value) != ():
            raise ValueError(
                f"`{method}` of {type(prior).__name__} gives {described(value)}; it "
                f"must give a scalar, a value of `{name}`."
            )


PBT.__init__.__doc__ = """**Arguments:**

- `where`: maps an agent to a tuple of the hyperparameters to tune. Pass the same
    function throughout an experiment: it is compared by identity.
- `priors`: one for each of these hyperparameters.
- `num_replaced`, `num_elite`: if `selection` is a name, the arguments of its class, by
    default 2; `Tournament` only takes the first.
- `resample_probability`: probability, in [0, 1], of sampling each hyperparameter of a
    child from its prior rather than perturbing the parent's value.
- `selection`: an `eqrl.Truncation` or an `eqrl.Tournament`; or `"truncation"` or
    `"tournament"`, with `num_replaced` and `num_elite` above.
- `copy_replay`: whether a child copies its parent's replay, environments and memories
    too. Otherwise it keeps its own, unless its score was not finite.
"""


# Elements that are copied at a time: enough that devices seldom wait for each other,
# and few enough that no replay is ever held twice.
_PIECE = 2**16


def copy_members(
    stack: PyTree,
    children: Int[Array, " children"],
    parents: Int[Array, " population"],
    mesh: Mesh | None,
) -> PyTree:
    """Overwrites each of `children`, in order, with its parent.

    To save memory, it loops over arrays, members and pieces of a member, and copies
    each piece in place: gathering the parents would hold a second copy of the whole
    stack, replays included, and over a mesh the whole population on each device. The
    loop only needs room for one piece.
    """

    def copy_share(
        share: PyTree,
        shared: tuple[Int[Array, " children"], Int[Array, " population"]],
    ) -> tuple[PyTree, None]:
        copied = jax.tree.map(
            lambda x: _copy(x, *shared, mesh) if eqx.is_array(x) else x, share
        )
        return copied, None

    copied, _ = on_each_device(copy_share, mesh, stack, (children, parents))
    return copied


def _copy(
    array: Array,
    children: Int[Array, " children"],
    parents: Int[Array, " population"],
    mesh: Mesh | None,
) -> Array:
    share = array.shape[0]
    # The shape of a piece: a member of the array, cut along its longest axis.
    sizes = [1, *array.shape[1:]]
    axis = int(np.argmax(sizes))
    num_pieces = 1
    if math.prod(sizes) > _PIECE:
        sizes[axis] = max(1, _PIECE * sizes[axis] // math.prod(sizes))
        num_pieces = math.ceil(array.shape[axis] / sizes[axis])

    def copy(index: Int[Array, ""], array: Array) -> Array:
        child = children[index // num_pieces]
        # Both slices clamp the start of a last piece that would reach beyond the end,
        # so it overlaps the one before.
        start: list[int | Array] = [0] * array.ndim
        start[axis] = index % num_pieces * sizes[axis]
        start[0], owned = place_in_share(parents[child], share, mesh)
        piece = from_owner(lax.dynamic_slice(array, start, sizes), owned, mesh)
        start[0], owned = place_in_share(child, share, mesh)
        kept = lax.dynamic_slice(array, start, sizes)
        return lax.dynamic_update_slice(array, jnp.where(owned, piece, kept), start)

    return lax.fori_loop(0, children.shape[0] * num_pieces, copy, array)
