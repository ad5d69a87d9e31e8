from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

import eqrl
from eqrl import PBT, LogUniform, OneMinus, Uniform
from eqrl._pytree.tree import init_only_leaves
from eqrl._training.mesh import shard

from ..agents_under_test import ALL_AGENTS, sac, taac
from ..toy import GetKey


AGENT = sac()


def where(agent: eqrl.SAC) -> tuple[Any, Any]:
    # It is given one agent, also where all members of a population are varied.
    assert jnp.ndim(agent.actor_lr) == 0
    return agent.actor_lr, agent.discount


PRIORS = (LogUniform(1e-5, 1e-1), OneMinus(LogUniform(1e-4, 0.5)))


SCORES = [3.0, 0.0, 5.0, 1.0, 4.0, 2.0]
_init = eqx.filter_jit(lambda pbt, *args, key: pbt.init(*args, key=key))
_exploit = eqx.filter_jit(lambda pbt, *args, key: pbt.exploit(*args, key=key))


def make(**options: Any) -> PBT:
    return PBT(where=where, priors=PRIORS, **options)


def exploit(
    pbt: PBT, scores: Sequence[float], key: PRNGKeyArray
) -> tuple[Any, Any, dict[str, Any], list[int]]:
    """The agents before and after, states that say whose they were, and parents.

    It is compiled once for `make()` and six scores, whatever they are.
    """
    size = len(scores)
    init_key, exploit_key = jr.split(key)
    before = _init(pbt, AGENT, size, key=init_key)
    owner = np.arange(size, dtype=np.int32)
    states = jax.device_put({"owner": owner, "weights": 10 * owner[:, None]})
    after, states, parents = _exploit(
        pbt, before, states, jnp.asarray(scores), key=exploit_key
    )
    before, after, states, parents = jax.device_get((before, after, states, parents))
    return before, after, states, parents.tolist()


def test_members_draw_what_is_tuned_and_share_the_rest(
    getkey: GetKey,
) -> None:
    agents = jax.device_get(_init(make(), AGENT, 8, key=getkey()))
    assert len(set(np.asarray(agents.actor_lr).tolist())) == 8
    assert len(set(np.asarray(agents.discount).tolist())) == 8
    assert np.array_equal(agents.critic_lr, np.full(8, AGENT.critic_lr))


def test_the_worst_are_replaced_by_children_of_any_of_the_best(getkey: GetKey) -> None:
    chosen = set()
    for _ in range(12):
        *_, states, parents = exploit(make(), SCORES, getkey())
        assert [parents[i] for i in (0, 2, 4, 5)] == [0, 2, 4, 5]
        assert {parents[1], parents[3]} <= {2, 4}
        assert states["owner"].tolist() == parents
        assert states["weights"][:, 0].tolist() == [10 * parent for parent in parents]
        chosen.add(parents[1])
    assert chosen == {2, 4}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_member_whose_score_is_not_finite_is_replaced_first(
    bad: float, getkey: GetKey
) -> None:
    *_, parents = exploit(make(), [1.0, bad, 0.0, 2.0, 4.0, 3.0], getkey())
    assert {parents[1], parents[2]} <= {4, 5}
    assert [parents[i] for i in (0, 3, 4, 5)] == [0, 3, 4, 5]


def test_nobody_is_a_child_of_a_member_that_failed(getkey: GetKey) -> None:
    scores = [np.nan, 1.0, np.nan, np.nan, np.nan, np.nan]
    for _ in range(5):
        *_, parents = exploit(make(), scores, getkey())
        replaced = [i for i, parent in enumerate(parents) if parent != i]
        assert len(replaced) == 2
        assert all(parents[i] == 1 for i in replaced)


def test_if_all_failed_nobody_is_replaced(getkey: GetKey) -> None:
    *_, parents = exploit(make(), [np.nan] * 6, getkey())
    assert parents == [0, 1, 2, 3, 4, 5]


def test_without_copies_of_replays_only_a_failed_member_is_given_its_parents(
    getkey: GetKey,
) -> None:
    def member(owner: Array) -> eqrl.TrainerState[Any, Any, Any, Any]:
        actor = eqrl.Actors(
            env_state=owner,
            observation=jnp.zeros(2),
            memory=None,
            timestep=owner,
            episode_return=jnp.zeros(()),
        )
        return eqrl.TrainerState(
            agent=owner, actors=actor, replay=owner, failed=jnp.array(False)
        )

    pbt = make(copy_replay=False, num_replaced=2, num_elite=1)
    before = _init(pbt, AGENT, 4, key=getkey())
    states = eqx.filter_jit(eqx.filter_vmap(member))(jnp.arange(4))
    scores = jnp.asarray([np.nan, 5.0, 1.0, 2.0])
    _, states, parents = _exploit(pbt, before, states, scores, key=getkey())
    assert parents.tolist() == [1, 1, 1, 3]
    assert states.agent.tolist() == [1, 1, 1, 3]
    assert states.replay.tolist() == [1, 1, 2, 3]
    assert states.actors.env_state.tolist() == [1, 1, 2, 3]


def test_replacing_nobody_changes_nothing(getkey: GetKey) -> None:
    before, after, states, parents = exploit(
        make(num_replaced=0), [1.0, 2.0, 3.0], getkey()
    )
    assert parents == [0, 1, 2] and states["owner"].tolist() == [0, 1, 2]
    assert eqx.tree_equal(before, after)


def test_children_are_perturbed_or_resampled_and_the_others_keep_their_values(
    getkey: GetKey,
) -> None:
    for probability in (0.0, 1.0):
        pbt = make(resample_probability=probability)
        before, after, _, parents = exploit(pbt, SCORES, getkey())
        kept = [0, 2, 4, 5]
        for name in ("actor_lr", "discount"):
            one, other = (np.asarray(getattr(x, name))[kept] for x in (before, after))
            assert np.array_equal(one, other)
        for child in (1, 3):
            ratio = float(after.actor_lr[child] / before.actor_lr[parents[child]])
            distances = [abs(ratio - factor) for factor in (0.8, 1.25)]
            if probability == 0:
                assert min(distances) < 1e-5
            else:
                assert min(*distances, abs(ratio - 1)) > 1e-5


def test_a_child_inherits_what_only_init_reads_and_varies_the_rest(
    getkey: GetKey,
) -> None:
    # No step of its training would see another value.
    class Begun(eqx.Module):
        start: eqrl.FloatLike = eqrl.hyperparameter(0.5, init_only=True)
        rate: eqrl.FloatLike = eqrl.hyperparameter(0.5)
        width: eqrl.FloatLike = eqrl.hyperparameter(0.5, init_only="narrow")
        narrow: bool = eqx.field(default=False, static=True)

    for narrow in (False, True):
        pbt = PBT(
            where=lambda a: (a[0].start, a[0].rate, a[0].width),
            priors=(Uniform(0.1, 0.9),) * 3,
            resample_probability=1.0,
        )
        before = pbt.init((Begun(narrow=narrow),), 4, key=getkey())
        replaced = np.array([True, False, False, False])
        after = pbt._vary(before, jnp.asarray(replaced), jr.split(getkey(), 4))
        assert len(np.unique(np.asarray(before[0].start))) == 4
        assert np.array_equal(before[0].start, after[0].start)
        assert np.array_equal(before[0].rate != after[0].rate, replaced)
        assert np.array_equal(
            before[0].width != after[0].width, replaced & (not narrow)
        )


def test_a_learned_temperature_and_a_multiplier_are_all_that_only_init_reads() -> None:
    found = set()
    for name, agent in ALL_AGENTS.items():
        leaves = jax.tree_util.tree_leaves_with_path(init_only_leaves(agent))
        for path, is_marked in leaves:
            learned = ("initial_temperature", "initial_multiplier")
            is_learned = jax.tree_util.keystr(path).endswith(learned)
            assert is_marked == (is_learned and name != "SAC-fixed-temperature")
            found |= {name} if is_marked else set()
    assert {"SAC", "TAAC", "DiscreteSAC", "Normalized(TAAC)"} < found


def test_a_fixed_temperature_is_tuned_as_any_hyperparameter() -> None:
    marked = init_only_leaves(eqrl.SAC(learn_temperature=False))
    assert not any(jax.tree.leaves(marked))


def test_hyperparameters_of_children_vary_independently() -> None:
    class Pair(eqx.Module):
        one: eqrl.FloatLike = eqrl.hyperparameter(0.5)
        other: eqrl.FloatLike = eqrl.hyperparameter(0.5)

    pbt = PBT(
        where=lambda a: (a.one, a.other),
        priors=(LogUniform(1e-3, 1e3),) * 2,
        resample_probability=0.5,
    )
    size = 4_000
    agents = Pair(*jnp.ones((2, size)))
    after = eqx.filter_jit(pbt._vary)(
        agents, jnp.ones(size, bool), jr.split(jr.key(0), size)
    )
    values = np.log(np.stack([after.one, after.other]))
    down, up = (np.isclose(values, np.log(factor)) for factor in (0.8, 1.25))
    sampled = ~(down | up)
    # Each expectation is within five standard errors, and between the two of a child
    # as between neighbors.
    assert np.abs(sampled.mean(axis=1) - 0.5).max() < 0.04
    assert abs(up[~sampled].mean() - 0.5) < 0.04
    pairs = ((values[0], values[1]), (values[0, :-1], values[0, 1:]))
    masks = ((sampled[0], sampled[1]), (sampled[0, :-1], sampled[0, 1:]))
    for pair, (first, second) in zip(pairs, masks, strict=True):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.08
        both = first & second
        assert abs(np.corrcoef(pair[0][both], pair[1][both])[0, 1]) < 0.16
        neither = ~first & ~second
        signs = (pair[0][neither] > 0, pair[1][neither] > 0)
        assert abs(np.corrcoef(*signs)[0, 1]) < 0.16


def test_two_children_of_one_parent_differ(getkey: GetKey) -> None:
    # Of two parents that are drawn for two children, some are the same.
    for _ in range(8):
        pbt = make(resample_probability=1.0)
        _, after, _, parents = exploit(pbt, SCORES, getkey())
        if parents[1] == parents[3]:
            assert after.actor_lr[1] != after.actor_lr[3]
            return
    raise AssertionError("no parent has two children")


def test_in_a_tournament_only_losers_are_replaced_and_by_better_ones(
    getkey: GetKey,
) -> None:
    num_replaced = set()
    # A score may be a count.
    scores = [round(score) for score in SCORES]
    for _ in range(10):
        pbt = make(selection="tournament", num_replaced=3)
        *_, states, parents = exploit(pbt, scores, getkey())
        losers = [i for i, parent in enumerate(parents) if parent != i]
        assert all(SCORES[parents[i]] > SCORES[i] for i in losers)
        assert states["owner"].tolist() == parents
        num_replaced.add(len(losers))
    assert (max(num_replaced) <= 3 and len(num_replaced) > 1) or num_replaced == {3}


def test_in_a_tournament_every_loser_may_be_replaced(getkey: GetKey) -> None:
    scheme = eqrl.Tournament()
    ranked = jnp.arange(6.0)
    counts, most_ahead = np.zeros(6, int), 0
    for key in jr.split(getkey(), 40):
        parents = np.asarray(scheme.parents(ranked, jnp.arange(6), key=key))
        counts += parents != np.arange(6)
        assert np.all(parents >= np.arange(6))
        most_ahead = max(most_ahead, len({*(parents - np.arange(6)).tolist()} - {0}))
    # Opponents are drawn for each alone.
    assert most_ahead > 1
    # The worst loses always, the best never, and others to those above them.
    assert counts[0] == 40 and counts[5] == 0
    assert np.all(np.abs(counts - 8 * np.arange(5, -1, -1)) <= 14) and counts[3] > 2
    assert scheme.most_replaced(6) == 5 and scheme.most_replaced(1) == 0


def test_in_a_tournament_all_that_failed_are_replaced_first(getkey: GetKey) -> None:
    ranked = jnp.array([3.0, -jnp.inf, -jnp.inf, 1.0, -jnp.inf])
    order, chosen = jnp.argsort(ranked), set()
    for key in jr.split(getkey(), 12):
        parents = np.asarray(eqrl.Tournament().parents(ranked, order, key=key))
        chosen |= {*parents[[1, 2, 4]].tolist()}
        assert parents[0] == 0
        few = np.asarray(eqrl.Tournament(2).parents(ranked, order, key=key))
        assert np.sum(few[[1, 2, 4]] != [1, 2, 4]) == 2 and few[3] == 3
        none = eqrl.Tournament().parents(jnp.full(5, -jnp.inf), order, key=key)
        np.testing.assert_array_equal(none, np.arange(5))
    assert chosen == {0, 3}


def test_a_limited_tournament_replaces_the_worst_losers(getkey: GetKey) -> None:
    ranked = jnp.asarray(SCORES)
    order = jnp.argsort(ranked)
    for key in jr.split(getkey(), 12):
        everyone = np.asarray(eqrl.Tournament().parents(ranked, order, key=key))
        losers = [i for i in np.asarray(order) if everyone[i] != i]
        for number in (0, 1, 2, 5):
            scheme = eqrl.Tournament(num_replaced=number)
            parents = np.asarray(scheme.parents(ranked, order, key=key))
            expected = np.arange(6)
            expected[losers[:number]] = everyone[losers[:number]]
            np.testing.assert_array_equal(parents, expected)


def test_on_a_mesh_a_parent_is_copied_before_it_is_replaced(getkey: GetKey) -> None:
    mesh = Mesh(jax.devices()[:1], ("population",))
    pbt = PBT(
        where=lambda a: a, priors=(Uniform(0.5, 0.9),), selection=eqrl.Tournament()
    )
    agents = (jnp.full(6, 0.7),)
    # Each member is copied in three pieces.
    rows = np.arange(6 * 2 * 70_000, dtype=np.int32).reshape(6, 2, 70_000)
    states = shard(jnp.asarray(rows), mesh)
    scores = jnp.asarray(SCORES)
    exploit_over = eqx.filter_jit(pbt.exploit_over)
    num_replaced_parents = 0
    for key in jr.split(getkey(), 5):
        _, copied, parents = exploit_over(mesh, agents, states, scores, key=key)
        parents = np.asarray(parents)
        assert np.array_equal(copied, rows[parents])
        num_replaced_parents += np.count_nonzero(parents[parents] != parents)
    assert num_replaced_parents > 0


def test_a_tournament_is_not_restricted_by_an_elite() -> None:
    # Of two members one may be replaced, whatever `num_elite` is.
    for pbt in (
        make(selection="tournament", num_replaced=1, num_elite=2),
        make(selection=eqrl.Tournament(1)),
        make(selection=eqrl.Tournament()),
    ):
        pbt.check(AGENT, 2)
        assert pbt.scheme.most_replaced(2) == 1


def test_names_of_selections_mean_what_they_meant() -> None:
    assert make().scheme == eqrl.Truncation(num_replaced=2, num_elite=2)
    named = make(num_replaced=1, num_elite=3).scheme
    assert named == eqrl.Truncation(num_replaced=1, num_elite=3)
    assert make(selection="tournament").scheme == eqrl.Tournament(num_replaced=2)


def test_a_selection_with_numbers_given_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="holds its own numbers"):
        make(selection=eqrl.Truncation(), num_elite=3)


def test_nested_hyperparameters_can_be_tuned(getkey: GetKey) -> None:
    pbt = PBT(where=lambda a: (a.agent.discount,), priors=(Uniform(0.5, 0.9),))
    agents: Any = _init(pbt, eqrl.Normalized(AGENT), 4, key=getkey())
    assert len(set(np.asarray(agents.agent.discount).tolist())) == 4


def test_more_elite_and_replaced_than_members_are_an_error(getkey: GetKey) -> None:
    with pytest.raises(ValueError, match=r"`num_elite=2` and `num_replaced=2`.*3"):
        make().init(AGENT, 3, key=getkey())


def test_a_selector_that_does_not_fit_the_priors_is_an_error(getkey: GetKey) -> None:
    pbt = PBT(where=lambda a: (a.actor_lr,), priors=PRIORS)
    with pytest.raises(ValueError, match="`where` must select a tuple of 2"):
        pbt.init(AGENT, 4, key=getkey())


def test_a_selector_of_no_hyperparameter_is_an_error(getkey: GetKey) -> None:
    for wrong in (
        lambda a: (a.actor_lr, a.actor_lr),
        lambda a: (a.actor_lr, 1 - a.discount),
    ):
        pbt = PBT(where=wrong, priors=PRIORS)
        with pytest.raises(ValueError, match="as they are, and each once"):
            pbt.init(AGENT, 4, key=getkey())
    pbt = PBT(where=lambda a: (a.num_critics,), priors=(Uniform(0.0, 1.0),))
    with pytest.raises(ValueError, match="which is not a hyperparameter"):
        pbt.init(AGENT, 4, key=getkey())


@pytest.mark.parametrize(
    "prior",
    [Uniform(0.9, 1.5), LogUniform(0.5, 2.0), OneMinus(Uniform(-0.5, 0.1))],
    ids=["uniform", "loguniform", "one minus"],
)
def test_a_prior_stays_in_the_range_of_its_hyperparameter(prior: Any) -> None:
    pbt = PBT(where=lambda a: (a.agent.discount,), priors=(prior,))
    with pytest.raises(ValueError, match=r"prior of `agent\.discount` .*\[0, 1\]"):
        pbt.init(eqrl.Normalized(AGENT), 4, key=jr.key(0))
    # One that goes up to the bound is allowed, as is one of a field without a range.
    fitting = (OneMinus(Uniform(0.0, 0.5)), Uniform(-1.0, 1.5))
    PBT(where=lambda a: (a.discount, a.target_entropy), priors=fitting).check(
        sac(target_entropy=0.0), 4
    )


def test_an_element_of_a_tuple_has_the_range_of_its_field() -> None:
    agent = taac(discount=(0.9, 0.9))
    pbt = PBT(where=lambda a: (a.discount[0],), priors=(Uniform(0.5, 3.0),))
    with pytest.raises(ValueError, match=r"`discount\[0\]` is wrong.*\[0, 1\]"):
        pbt.check(agent, 4)


class Choices(eqrl.AbstractPrior):
    """A prior of one's own, of whole numbers."""

    shape: tuple[int, ...] = eqx.field(static=True, default=())

    def sample(self, *, key: PRNGKeyArray) -> Any:
        return jr.randint(key, self.shape, 1, 4)

    def perturb(self, value: Any, *, key: PRNGKeyArray) -> Any:
        del key
        return value


def test_what_an_own_prior_draws_is_a_scalar_of_the_type_of_the_leaf() -> None:
    def where(agent: Any) -> tuple[Any]:
        return (agent.reward_scale,)

    agents: Any = PBT(where=where, priors=(Choices(),)).init(AGENT, 4, key=jr.key(0))
    assert agents.reward_scale.dtype == jnp.float32
    wrong = PBT(where=where, priors=(Choices(shape=(1,)),))
    with pytest.raises(ValueError, match=r"`reward_scale`.* of Choices gives .*scalar"):
        wrong.init(AGENT, 4, key=jr.key(0))


@pytest.mark.long
@pytest.mark.optimized
def test_exploiting_holds_no_second_copy(getkey: GetKey) -> None:
    pbt, size = make(num_replaced=2), 20
    agents = eqx.filter_eval_shape(pbt.init, AGENT, size, key=getkey())
    states = {
        "replay": jax.ShapeDtypeStruct((size, 100_000), jnp.float32),
        "weights": jax.ShapeDtypeStruct((size, 500), jnp.float32),
    }
    step = jax.jit(
        lambda agents, states, scores, key: pbt.exploit(
            agents, states, scores, key=key
        ),
        donate_argnums=(0, 1),
    )
    scores = jax.ShapeDtypeStruct((size,), jnp.float32)
    lowered = step.lower(agents, states, scores, getkey())
    analysis = lowered.compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < 0.1 * states["replay"].size * 4
