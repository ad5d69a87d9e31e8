import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

from eqrl import Counts, EnvSpec, Trainer, jit_init, jit_run, tree_copy
from eqrl._interaction.actors import step_keys
from eqrl._training.rows import steps_taken
from eqrl._training.trainer import AnyTrainerState
from eqrl.envs import AbstractEnv, Outcome
from eqrl.envs._check import check_env
from tests.agents_under_test import td3
from tests.toy import (
    Clock,
    GetKey,
    Learner,
    Scribe,
    World,
    equations,
    primitives_with_axis,
)


# Two steps of warm-up on each of two environments, then one update an iteration.
_TRAINER = Trainer(num_envs=2, batch_size=8, capacity=2000, warmup_steps=4)
_TEN_UPDATES = 4 + 2 * 10

# One environment and no update.
_IDLE = dataclasses.replace(_TRAINER, num_envs=1, updates_per_iteration=0)

# Three steps of each environment and then five updates, in one compiled program.
_SEVERAL = dataclasses.replace(_TRAINER, steps_per_iteration=3, updates_per_iteration=5)

_Trained = tuple[AnyTrainerState, Counts, dict[str, Array]]


def _train(
    trainer: Trainer,
    agent: Any,
    env: AbstractEnv[Any],
    chunks: list[int],
    getkey: GetKey,
) -> _Trained:
    """`chunks`: the `num_steps` of each call."""
    state, counts = jit_init(trainer, agent, env, key=getkey())
    metrics: dict[str, Array] = {}
    key = getkey()
    for num_steps in chunks:
        options = {"num_steps": num_steps, "key": jr.clone(key)}
        state, counts, metrics = jit_run(trainer, agent, env, state, counts, **options)
    return state, counts, metrics


def _numbers(tree: Any) -> list[np.ndarray]:
    return [
        np.asarray(
            jr.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        )
        for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    ]


def _assert_same_bits(first: Any, second: Any) -> None:
    for x, y in zip(_numbers(first), _numbers(second), strict=True):
        np.testing.assert_array_equal(x, y)


_WORLD = World(ends=True)
_ENDLESS = World()


@pytest.mark.parametrize("as_array", [False, True])
def test_the_schedule_is_arithmetic_of_integers(as_array: bool) -> None:
    number = jnp.asarray if as_array else int
    # Warm-up is rounded up to whole iterations of 2 environments.
    for warmup_steps, left in ((4, 2), (5, 3), (6, 3)):
        schedule = dataclasses.replace(_TRAINER, warmup_steps=warmup_steps).schedule
        assert schedule.warmup_left(number(0)) == left
        assert schedule.warmup_left(number(1)) == left - 1
        assert schedule.warmup_left(number(9)) == 0
        assert schedule.updates_in(number(10), rows_written=number(0)) == 10 - left
    # Iterations of 3 rows, 6 environment steps: one of warm-up, then 5 updates in each.
    trainer = dataclasses.replace(
        _TRAINER, steps_per_iteration=3, updates_per_iteration=5
    )
    assert trainer.steps_of_iteration == trainer.schedule.steps_of_iteration == 6
    for done, iterations, updates in ((0, 0, 0), (0, 1, 0), (0, 4, 15), (3, 4, 20)):
        given = trainer.schedule.updates_in(number(iterations), rows_written=done)
        assert given == updates
    idle = dataclasses.replace(_TRAINER, updates_per_iteration=0)
    assert idle.schedule.updates_in(number(12), rows_written=0) == 0


class TestRun:
    def test_ten_updates_after_the_warm_up(self) -> None:
        state, counts, metrics = _train(
            _TRAINER, Scribe(), _WORLD, [_TEN_UPDATES], lambda: jr.key(7)
        )
        assert (counts.updates, counts.rows_written, counts.rows_kept) == (10, 12, 0)
        assert state.agent.num_observed == _TEN_UPDATES
        # Updates are numbered from zero; the metric is the mean of 0, ..., 9.
        assert (state.agent.num_updates, state.agent.last_step) == (10, 9)
        np.testing.assert_allclose(metrics["update"], 4.5)
        # Updates and environments draw with keys of their own.
        interact_key, update_key = (jr.fold_in(jr.key(7), x) for x in range(2))
        draws = [
            float(jr.uniform(jr.split(jr.fold_in(update_key, number))[1]))
            for number in range(10)
        ]
        np.testing.assert_array_equal(state.agent.draws[:10], draws)
        data = jax.tree.map(lambda x: x[:, :12], state.replay.data)
        moved = data.next_observation[..., 0] - data.observation[..., 0]
        for number in range(12):
            keys = step_keys(jr.fold_in(interact_key, number), 2)[:, 0, 1]
            noise = [0.3 * float(jr.normal(key)) for key in keys]
            np.testing.assert_allclose(moved[:, number], noise, atol=1e-5)

    def test_warm_up_makes_no_update_and_updates_go_on_being_numbered(
        self, getkey: GetKey
    ) -> None:
        state, counts, metrics = _train(_TRAINER, Scribe(), _WORLD, [4], getkey)
        assert (state.agent.num_updates, counts.updates) == (0, 0)
        assert np.isnan(metrics["update"])
        chunks = [4, 4, 2]
        state, _, metrics = _train(_TRAINER, Scribe(), _WORLD, chunks, getkey)
        assert state.agent.last_step == 2
        np.testing.assert_allclose(metrics["update"], 2)
        # `Scribe` acts with 0.25 at random and with 0.5 when it samples.
        actions = np.asarray(state.replay.data.action)[:, :5, 0]
        np.testing.assert_array_equal(actions, [[0.25, 0.25, 0.5, 0.5, 0.5]] * 2)
        by_policy = dataclasses.replace(_TRAINER, warmup_mode="sample")
        state, counts, _ = _train(by_policy, Scribe(), _WORLD, [6], getkey)
        assert (state.agent.num_updates, counts.updates) == (1, 1)
        actions = np.asarray(state.replay.data.action)[:, :3, 0]
        np.testing.assert_array_equal(actions, np.full((2, 3), 0.5))

    def test_an_iteration_may_have_no_update_where_the_updates_asked_for_are_0(
        self, getkey: GetKey
    ) -> None:
        state, counts, _ = _train(_IDLE, Scribe(), _WORLD, [8], getkey)
        assert (state.agent.num_updates, counts.updates) == (0, 0)

    @pytest.mark.parametrize(
        ("trainer", "num_steps", "num_updates"),
        [(_TRAINER, 4 + 1000, 500), (_SEVERAL, 6 + 1002, 5 * 167)],
        ids=["one", "several"],
    )
    def test_the_updates_asked_for_have_each_a_batch_and_a_key_of_its_own(
        self, trainer: Trainer, num_steps: int, num_updates: int, getkey: GetKey
    ) -> None:
        # The last 16 updates are on 900 transitions and more.
        state, counts, _ = _train(trainer, Scribe(), _ENDLESS, [num_steps], getkey)
        assert (state.agent.num_updates, counts.updates) == (num_updates, num_updates)
        assert len(np.unique(state.agent.timesteps)) > 12
        assert len(np.unique(state.agent.draws)) == 16

    def test_an_iteration_has_the_steps_asked_for(self, getkey: GetKey) -> None:
        # 12 steps of each of 2 environments are 4 iterations of 3, one of them warm-up,
        # all of which is at random.
        state, counts, _ = _train(_SEVERAL, Scribe(), _ENDLESS, [24], getkey)
        assert state.agent.num_observed == 24
        assert (counts.rows_written, counts.updates) == (12, 15)
        actions = np.asarray(state.replay.data.action)[0, :12, 0]
        np.testing.assert_array_equal(actions, [0.25] * 3 + [0.5] * 9)

    def test_an_update_samples_sequences_up_to_the_newest_transition(
        self, getkey: GetKey
    ) -> None:
        # A replay of three rows has one run of three, of which the last is of time 5.
        trainer = Trainer(num_envs=2, batch_size=2, capacity=6, warmup_steps=6)
        state, _, metrics = _train(trainer, Scribe(length=3), _ENDLESS, [12], getkey)
        assert state.agent.last_timestep == 5
        # A batch holds as many sequences as asked for.
        assert metrics["batch_size"] == 2 * 3

    @pytest.mark.parametrize("trainer", [_TRAINER, _SEVERAL], ids=["one", "several"])
    def test_each_step_of_each_environment_has_noise_of_its_own(
        self, trainer: Trainer, getkey: GetKey
    ) -> None:
        state, _, _ = _train(trainer, Scribe(), _ENDLESS, [60], getkey)
        data = jax.tree.map(lambda x: x[:, :30], state.replay.data)
        noise = data.next_observation[..., 0] - data.observation[..., 0]
        assert len(np.unique(np.round(np.asarray(noise), 4))) > 55

    def test_the_ring_holds_the_newest_transitions(self, getkey: GetKey) -> None:
        state, _, _ = _train(_TRAINER, Scribe(), _ENDLESS, [2 * 2003], getkey)
        times = np.asarray(state.replay.data.timestep)
        # 2003 rows into 1000: the last 1000 are times 1003 to 2002, and time 2000 is in
        # place 0.
        np.testing.assert_array_equal(
            times, [[2000, 2001, 2002, *range(1003, 2000)]] * 2
        )

    @pytest.mark.long
    def test_no_steps_change_nothing(self, getkey: GetKey) -> None:
        first, first_counts, _ = _train(_TRAINER, Learner(), _WORLD, [10], getkey)
        kept = tree_copy(first)
        second, second_counts, _ = jit_run(
            _TRAINER, Learner(), _WORLD, first, first_counts, num_steps=0, key=getkey()
        )
        _assert_same_bits(kept, second)
        assert second_counts.rows_written == 5

    @pytest.mark.long
    def test_step_is_one_iteration(self, getkey: GetKey) -> None:
        state, counts = jit_init(_SEVERAL, Scribe(), _WORLD, key=getkey())
        state, counts, _ = eqx.filter_jit(_SEVERAL.step)(
            Scribe(), _WORLD, state, counts, key=getkey()
        )
        assert counts.rows_written == 3
        assert state.agent.num_observed == 6

    @pytest.mark.parametrize(
        "chunks", [[2] * 12, [6, 2, 16], [2, 22]], ids=["ones", "uneven", "in warm-up"]
    )
    def test_how_it_is_cut_into_calls_changes_no_bit(
        self, chunks: list[int], request: pytest.FixtureRequest
    ) -> None:
        once = _train(_TRAINER, Learner(), _WORLD, [_TEN_UPDATES], _same_keys())
        cut = _train(_TRAINER, Learner(), _WORLD, chunks, _same_keys())
        _assert_same_bits(once[:2], cut[:2])

    def test_counters_are_exact_up_to_the_largest_integer(self, getkey: GetKey) -> None:
        begun, _, _ = _train(_TRAINER, Scribe(), _ENDLESS, [2 * 2003], getkey)
        schedule = _TRAINER.schedule
        # As 2003, at place 3 of the ring.
        most = 2**31 - 1
        rows, updates = (most - 1703) // 1000 * 1000 + 3, most - 1700
        key = getkey()

        def go_on(chunks: list[int]) -> _Trained:
            state, metrics = tree_copy(begun), {}
            counts = Counts(*(jnp.asarray(x, int) for x in (updates, rows, 0)))
            schedule.check_counters("num_steps", sum(chunks), counts)
            for num_steps in chunks:
                state, counts, metrics = jit_run(
                    _TRAINER,
                    Scribe(),
                    _ENDLESS,
                    state,
                    counts,
                    num_steps=num_steps,
                    key=jr.clone(key),
                )
            return state, counts, metrics

        once = go_on([2 * 1700])
        _assert_same_bits(once[:2], go_on([2 * 640, 2 * 20, 2, 2 * 1039])[:2])
        state, counts, metrics = once
        assert steps_taken(_TRAINER, counts) == 2 * (rows + 1700) > 2**32 - 2000
        assert counts.updates == most
        assert state.agent.num_updates - begun.agent.num_updates == 1700
        assert state.agent.last_step == most - 1
        assert (metrics["nonfinite"], metrics["batch_size"]) == (0, 8)
        # The ring holds the newest rows, and the last updates are on all of them.
        times = np.asarray(state.replay.data.timestep)
        np.testing.assert_array_equal(
            times, [[*range(3000, 3703), *range(2703, 3000)]] * 2
        )
        assert len(np.unique(state.agent.timesteps)) > 12
        assert len(np.unique(state.agent.draws)) == 16

    def test_another_key_gives_another_training(self, getkey: GetKey) -> None:
        first, _, _ = _train(_TRAINER, Learner(), _WORLD, [_TEN_UPDATES], _same_keys())
        second, _, _ = _train(_TRAINER, Learner(), _WORLD, [_TEN_UPDATES], getkey)
        assert np.any(first.agent.weight != second.agent.weight)


class TestMetrics:
    def test_each_reward_of_episodes_that_end_is_averaged(self, getkey: GetKey) -> None:
        # All episodes have one step, which is worth 1 and -2.
        env = Clock(longest=1, reward_size=2)
        _, _, metrics = _train(_IDLE, Scribe(), env, [20], getkey)
        assert metrics["episode_length"] == 1
        assert metrics["episode_return_0"] == 1
        assert metrics["episode_return_1"] == -2

    def test_length_and_return_are_of_whole_episodes(self, getkey: GetKey) -> None:
        # Episodes of at most 5 steps.
        state, _, metrics = _train(_IDLE, Scribe(), _WORLD, [40], getkey)
        data = jax.tree.map(lambda x: np.asarray(x[0, :40]), state.replay.data)
        ends = np.flatnonzero(data.terminated | data.truncated)
        episodes = np.split(data.reward, ends + 1)[:-1]
        assert len(episodes) > 4
        np.testing.assert_allclose(
            metrics["episode_return"], np.mean([e.sum() for e in episodes]), rtol=1e-5
        )
        np.testing.assert_allclose(
            metrics["episode_length"], np.mean([len(e) for e in episodes]), rtol=1e-6
        )

    def test_they_are_nan_where_no_episode_ends(self, getkey: GetKey) -> None:
        _, _, metrics = _train(_TRAINER, Scribe(), _ENDLESS, [_TEN_UPDATES], getkey)
        assert np.isnan(metrics["episode_return"])
        assert np.isnan(metrics["episode_length"])

    def test_names_are_those_of_the_agent_and_of_episodes(self, getkey: GetKey) -> None:
        _, _, metrics = _train(_TRAINER, Scribe(), _WORLD, [_TEN_UPDATES], getkey)
        of_episodes = {"episode_return", "episode_length", "nonfinite"}
        assert set(metrics) == {"update", "batch_size", *of_episodes}


def _same_keys() -> GetKey:
    """A `getkey` that gives the same keys whenever it is made."""
    num_keys = 0

    def getkey() -> PRNGKeyArray:
        nonlocal num_keys
        num_keys += 1
        return jr.fold_in(jr.key(0), num_keys)

    return getkey


class TestPopulation:
    _SIZE = 3

    def _keys(self) -> tuple[PRNGKeyArray, PRNGKeyArray]:
        return jr.split(jr.key(1), self._SIZE), jr.split(jr.key(2), self._SIZE)

    def _agents(self, rates: tuple[float, ...] = (1e-3, 1e-2, 3e-2)) -> Learner:
        return Learner(actor_lr=jnp.array(rates))

    def _alone(self, index: int) -> AnyTrainerState:
        init_keys, run_keys = self._keys()
        agent = _member(self._agents(), index)
        keys = iter((init_keys[index], run_keys[index]))
        return _train(_TRAINER, agent, _WORLD, [_TEN_UPDATES], lambda: next(keys))[0]

    def test_members_at_once_equal_each_alone(self) -> None:
        init_keys, run_keys = self._keys()
        state, counts = _jit_init_all(self._agents(), init_keys)
        state, counts, metrics = _jit_run_all(
            self._agents(), state, run_keys, counts, jnp.array(_TEN_UPDATES)
        )
        assert counts.updates.shape == ()
        assert metrics["loss"].shape == (self._SIZE,)
        for index in range(self._SIZE):
            pairs = zip(
                _numbers(_member(state, index)),
                _numbers(self._alone(index)),
                strict=True,
            )
            for member, alone in pairs:
                np.testing.assert_allclose(member, alone, rtol=1e-5, atol=1e-5)

    def test_if_one_gives_nan_the_other_members_go_on(self) -> None:
        agents = self._agents((1e-2, np.nan, 1e-2))
        init_keys, run_keys = self._keys()
        state, counts = _jit_init_all(agents, init_keys)
        state, _, metrics = _jit_run_all(agents, state, run_keys, counts, jnp.array(24))
        np.testing.assert_array_equal(metrics["nonfinite"], [0, 18, 0])

    @pytest.mark.long
    def test_members_one_after_another_equal_each_alone_bit_for_bit(self) -> None:
        init_keys, run_keys = self._keys()
        state, counts = _jit_init_all(self._agents(), init_keys)

        def run(arguments: Any) -> Any:
            agent, state, key = arguments
            return _TRAINER.run(
                agent, _WORLD, state, counts, num_steps=_TEN_UPDATES, key=key
            )[0]

        members = (self._agents(), state)
        state = jax.jit(lambda members: lax.map(run, members))((*members, run_keys))
        run_alone = jax.jit(run)
        for index in range(self._SIZE):
            alone = run_alone((*_member(members, index), run_keys[index]))
            _assert_same_bits(_member(state, index), alone)

    @pytest.mark.long
    def test_step_holds_no_second_replay(self) -> None:
        # With a batched count, or a choice between replays, it would hold several.
        state, counts, trainer = self._large()
        lowered = jax.jit(
            lambda agents, state, keys, counts: _run_all(
                agents, state, keys, counts, 4, trainer
            ),
            donate_argnums=(1, 2, 3),
        ).lower(self._agents(), state, self._keys()[1], counts)
        assert temporary_share(lowered, state) < 0.02

    def test_step_chooses_between_no_two_replays(self) -> None:
        state, counts, trainer = self._large()
        jaxpr = jax.make_jaxpr(
            lambda state, keys, counts: _run_all(
                self._agents(), state, keys, counts, 4, trainer
            )
        )(state, self._keys()[1], counts)
        rows = trainer.capacity // trainer.num_envs
        assert primitives_with_axis(jaxpr, rows) <= {"dynamic_update_slice", "scatter"}

    def _large(self) -> tuple[AnyTrainerState, Counts, Trainer]:
        """The shapes of a population with large replays."""
        trainer = dataclasses.replace(_TRAINER, capacity=50_021 * 2)
        state, counts = eqx.filter_eval_shape(
            _init_all, self._agents(), self._keys()[0], trainer
        )
        return state, counts, trainer

    def test_delayed_actor_is_not_computed_where_it_is_not_its_turn(
        self, getkey: GetKey
    ) -> None:
        # `policy_delay` must stay a branch where members are mapped over.
        keys = jr.split(getkey(), 3)
        agents = eqx.filter_vmap(lambda x: eqx.tree_at(lambda a: a.actor_lr, td3(), x))(
            jnp.array([1e-3, 1e-2, 3e-2])
        )
        state, counts = eqx.filter_eval_shape(_init_all, agents, keys)
        jaxpr = jax.make_jaxpr(
            lambda state, keys, counts: _run_all(agents, state, keys, counts, 4)
        )(state, jr.split(getkey(), 3), counts)
        branches = [
            len(list(equations(branch)))
            for equation in equations(jaxpr)
            if equation.primitive.name == "cond"
            for branch in equation.params["branches"]
        ]
        assert len(branches) == 2
        assert max(branches) > 10 * max(min(branches), 1)


def temporary_share(lowered: Any, state: AnyTrainerState) -> float:
    """What a program holds beside arguments and results, by the size of the replay."""
    replay_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.replay))
    assert replay_bytes > 1_000_000
    memory = lowered.compile().memory_analysis()
    return memory.temp_size_in_bytes / replay_bytes


def _member(stack: Any, index: int) -> Any:
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, stack)


def _init_all(
    agents: Any, keys: PRNGKeyArray, trainer: Trainer = _TRAINER
) -> tuple[AnyTrainerState, Counts]:
    return eqx.filter_vmap(
        lambda agent, key: trainer.init(agent, _WORLD, key=key),
        out_axes=(eqx.if_array(0), None),
    )(agents, keys)


def _run_all(
    agents: Any,
    state: AnyTrainerState,
    keys: PRNGKeyArray,
    counts: Counts,
    num_steps: int | Array,
    trainer: Trainer = _TRAINER,
) -> _Trained:
    return eqx.filter_vmap(
        lambda agent, state, key: trainer.run(
            agent, _WORLD, state, counts, num_steps=num_steps, key=key
        ),
        out_axes=(eqx.if_array(0), None, eqx.if_array(0)),
    )(agents, state, keys)


_jit_init_all = eqx.filter_jit(_init_all)
_jit_run_all = eqx.filter_jit(_run_all)


class TestJit:
    def test_run_deletes_what_it_was_given(self, getkey: GetKey) -> None:
        # A state that holds a buffer twice could not be donated, and JAX would warn.
        before, counts = jit_init(_TRAINER, Learner(), _WORLD, key=getkey())
        jit_run(_TRAINER, Learner(), _WORLD, before, counts, num_steps=2, key=getkey())
        leaves = jax.tree.leaves(eqx.filter(before, eqx.is_array))
        assert all(leaf.is_deleted() for leaf in leaves)

    @pytest.mark.parametrize("updates", [pytest.param(1, marks=pytest.mark.long), 3])
    def test_run_holds_no_second_replay(self, updates: int, getkey: GetKey) -> None:
        trainer = dataclasses.replace(
            _TRAINER, capacity=50_021 * 2, updates_per_iteration=updates
        )
        state, counts = eqx.filter_eval_shape(
            trainer.init, Learner(), _WORLD, key=getkey()
        )
        lowered = jax.jit(
            lambda key, state, counts: trainer.run(
                Learner(), _WORLD, state, counts, num_steps=8, key=key
            ),
            donate_argnums=(1, 2),
        ).lower(getkey(), state, counts)
        assert temporary_share(lowered, state) < 0.02

    def test_run_leaves_the_agent_alone(self, getkey: GetKey) -> None:
        agent = Learner(actor_lr=jnp.array(1e-2))
        state, counts = jit_init(_TRAINER, agent, _WORLD, key=getkey())
        jit_run(_TRAINER, agent, _WORLD, state, counts, num_steps=2, key=getkey())
        assert not jnp.asarray(agent.actor_lr).is_deleted()

    def test_another_number_of_steps_compiles_nothing_anew(
        self, getkey: GetKey, compilations: list[str]
    ) -> None:
        state, counts = jit_init(_TRAINER, Learner(), _WORLD, key=getkey())
        for num_steps, key in [(steps, getkey()) for steps in (2, 4, 10)]:
            compilations.clear()
            state, counts, _ = jit_run(
                _TRAINER,
                Learner(),
                _WORLD,
                state,
                counts,
                num_steps=num_steps,
                key=key,
            )
        assert compilations == []

    def test_a_number_of_steps_that_is_no_whole_number_of_iterations_is_refused(
        self, getkey: GetKey
    ) -> None:
        state, counts = jit_init(_TRAINER, Scribe(), _WORLD, key=getkey())
        with pytest.raises(ValueError, match=r"`num_steps=3`.*the nearest are 2 and 4"):
            jit_run(
                _TRAINER, Scribe(), _WORLD, state, counts, num_steps=3, key=getkey()
            )


def _without_flag(state: AnyTrainerState) -> tuple[Any, Any, Any]:
    return state.agent, state.actors, state.replay


class TestNonFinite:
    @pytest.mark.parametrize("what", ["observation", "reward"])
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_everything_stays_as_it_was_before(self, what: str, value: float) -> None:
        # Row 7 is the first to fail: after 2 rows of warm-up, so in the 6th iteration.
        env = World(at=7, **{what: value})
        broken, _, _ = _train(_TRAINER, Learner(), env, [24], _same_keys())
        before, _, _ = _train(_TRAINER, Learner(), env, [2 * 7], _same_keys())
        assert (broken.failed, before.failed) == (True, False)
        _assert_same_bits(_without_flag(broken), _without_flag(before))

    def test_everything_stays_as_it_was_in_later_calls_too(self) -> None:
        env = World(at=7, reward=np.nan)
        broken, counts, metrics = _train(
            _TRAINER, Learner(), env, [24, 6], _same_keys()
        )
        before, _, _ = _train(_TRAINER, Learner(), env, [2 * 7], _same_keys())
        assert broken.failed
        assert metrics["nonfinite"] == 6
        assert counts.rows_written == 15
        _assert_same_bits(_without_flag(broken), _without_flag(before))

    def test_the_metric_says_how_many_steps_were_lost(self, getkey: GetKey) -> None:
        env = World(at=7, reward=np.nan)
        _, _, metrics = _train(_TRAINER, Learner(), env, [24], getkey)
        assert metrics["nonfinite"] == 24 - 2 * 7

    def test_the_metric_is_zero_where_all_is_finite(self, getkey: GetKey) -> None:
        _, _, metrics = _train(_TRAINER, Learner(), _WORLD, [24], getkey)
        assert metrics["nonfinite"] == 0

    def test_metrics_are_of_the_steps_before(self) -> None:
        env = World(at=7, reward=np.nan)
        _, _, broken = _train(_TRAINER, Learner(), env, [24], _same_keys())
        _, _, before = _train(_TRAINER, Learner(), env, [2 * 7], _same_keys())
        del broken["nonfinite"], before["nonfinite"]
        jax.tree.map(np.testing.assert_array_equal, broken, before)

    def test_it_stops_in_warm_up_too(self, getkey: GetKey) -> None:
        env = World(at=1, reward=np.nan)
        state, _, metrics = _train(_TRAINER, Scribe(), env, [24], getkey)
        assert metrics["nonfinite"] == 22
        assert (state.agent.num_observed, state.agent.num_updates) == (2, 0)

    def test_steps_before_it_in_its_iteration_are_kept_without_an_update(
        self, getkey: GetKey
    ) -> None:
        # Iterations of 3 rows: warm-up, one with updates, and the third fails in its
        # second row.
        env = World(at=7, reward=np.nan)
        state, _, metrics = _train(_SEVERAL, Scribe(), env, [24], getkey)
        assert (state.agent.num_observed, state.agent.num_updates) == (14, 5)
        assert metrics["nonfinite"] == 24 - 14

    def test_an_agent_that_gives_nan_is_stopped_too(self, getkey: GetKey) -> None:
        agent = Learner(actor_lr=np.nan)
        state, _, metrics = _train(_TRAINER, agent, _WORLD, [24], getkey)
        # After 2 rows of warm-up and one more the first update spoils the actor.
        assert metrics["nonfinite"] == 24 - 6
        assert np.all(np.isfinite(state.replay.data.action))


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_envs", 0),
            ("batch_size", 0),
            ("capacity", 0),
            ("warmup_steps", -1),
            ("steps_per_iteration", 0),
            ("updates_per_iteration", -1),
            ("batch_size", True),
        ],
    )
    def test_counts_out_of_range_are_named(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"`{name}={value}` must be an integer"):
            Trainer(**{name: value})

    def test_capacity_below_one_transition_an_environment(self) -> None:
        with pytest.raises(ValueError, match="`capacity=2` is shared by `num_envs=3`"):
            Trainer(num_envs=3, capacity=2)

    @pytest.mark.parametrize(
        ("length", "options", "message"),
        [
            (
                4,
                {"num_envs": 2, "batch_size": 1, "capacity": 6, "warmup_steps": 6},
                r"`capacity=6`.*`sequence_length=4`.*at least 8",
            ),
            (
                1,
                {"batch_size": 11, "capacity": 10, "warmup_steps": 4},
                r"`capacity=10` holds 10 .*less than one batch.*raise `capacity`",
            ),
            (
                4,
                {"batch_size": 3, "capacity": 10, "warmup_steps": 4},
                r"less than one batch .* 3 \* 4",
            ),
            (
                4,
                {"num_envs": 2, "batch_size": 1, "capacity": 20, "warmup_steps": 7},
                r"`warmup_steps=7` must be at least.*4 \* 2",
            ),
            (
                1,
                {"batch_size": 1, "capacity": 10, "warmup_steps": 11},
                r"`warmup_steps=11` is more than .*`capacity=10`.*Raise",
            ),
        ],
    )
    def test_a_replay_that_cannot_serve_is_refused(
        self, length: int, options: dict[str, Any], message: str, getkey: GetKey
    ) -> None:
        with pytest.raises(ValueError, match=message):
            Trainer(**options).init(Scribe(length=length), Clock(), key=getkey())

    @pytest.mark.parametrize(
        ("num_steps", "message"), [(3, r"=3`.*2 \* 1 = 2"), (-2, "=-2`.*at least 0")]
    )
    def test_steps_that_cannot_be_made(self, num_steps: int, message: str) -> None:
        with pytest.raises(ValueError, match=f"`num_steps{message}"):
            _TRAINER.check_num_steps(num_steps)

    def test_init_checks_the_environment(self, getkey: GetKey) -> None:
        with pytest.raises(ValueError, match=r"reward.*`spec.reward_size=None`"):
            _TRAINER.init(Scribe(), _Odd(fault="reward of length one"), key=getkey())

    def test_sequences_that_just_fit_are_accepted(self, getkey: GetKey) -> None:
        trainer = Trainer(num_envs=2, batch_size=2, capacity=8, warmup_steps=8)
        eqx.filter_eval_shape(trainer.init, Scribe(length=4), Clock(), key=getkey())


class _Odd(AbstractEnv[dict[str, Array]]):
    """An environment with one fault."""

    fault: str = eqx.field(default="", static=True)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation_size=0 if self.fault == "no observation" else 2,
            action_size=0 if self.fault == "no action" else 1,
            reward_size=2 if self.fault == "scalar for a vector" else None,
            state_descriptor_size={
                "no descriptor": 1,
                "wrong descriptor": 2,
                "int descriptor": 1,
                "right descriptor": 1,
            }.get(self.fault),
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[dict[str, Array], Array]:
        del key
        if self.fault == "no state":
            alone: Any = self._observe("reset")
            return alone
        state = {"x": jnp.zeros(2), "time": jnp.zeros((), int)}
        more = {"more state at reset": {"extra": jnp.zeros(())}}
        return state | more.get(self.fault, {}), self._observe("reset")

    def step(
        self, state: dict[str, Array], action: Array, *, key: PRNGKeyArray
    ) -> tuple[dict[str, Array], Outcome]:
        del action, key
        after = {
            "other type of state": {"time": jnp.zeros(())},
            "other shape of state": {"x": jnp.zeros(3)},
        }
        state = {"x": state["x"], "time": state["time"] + 1} | after.get(self.fault, {})
        given = {
            "reward of length one": {"reward": jnp.zeros(1)},
            "int reward": {"reward": jnp.zeros((), int)},
            "float flag": {"terminated": jnp.zeros(())},
            # A state with a Python number makes flags that are none, either.
            "other type of state": {"terminated": False},
            "long flag": {"truncated": jnp.zeros(1, bool)},
        }
        right = {
            "observation": self._observe("step"),
            "reward": jnp.zeros(()),
            "terminated": jnp.array(False),
            "truncated": jnp.array(False),
        }
        # Built past the checks of `Outcome`, which users do not have.
        outcome = object.__new__(Outcome)
        for name, value in (right | given.get(self.fault, {})).items():
            object.__setattr__(outcome, name, value)
        wrong: dict[str, Any] = {"tuple": tuple(right.values())}
        return state, wrong.get(self.fault, outcome)

    def state_descriptor(self, state: dict[str, Array]) -> Array | None:
        if self.fault == "int descriptor":
            return state["time"][None]
        given = ("undeclared descriptor", "wrong descriptor", "right descriptor")
        return state["x"][:1] if self.fault in given else None

    def _observe(self, where: str) -> Array:
        wrong = {
            f"int observation of {where}": jnp.zeros(2, int),
            f"long observation of {where}": jnp.zeros(3),
            f"half observation of {where}": jnp.zeros(2, jnp.float16),
            f"flat observation of {where}": jnp.zeros(()),
        }
        return wrong.get(self.fault, jnp.zeros(2))


class TestCheckEnv:
    @pytest.mark.parametrize("fault", ["", "right descriptor"])
    def test_a_sound_environment_passes(self, fault: str) -> None:
        check_env(_Odd(fault=fault))

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("no observation", r"`spec.observation_size=0`.* at least 1"),
            ("no action", r"`action_size=0` must be at least 1"),
            (
                "int observation of reset",
                r"`reset` gives an observation.*int32.*floats",
            ),
            ("int observation of step", r"`step` gives an observation.*int32.*floats"),
            ("long observation of reset", r"`reset`.*shape \(3,\).*shape \(2,\)"),
            ("long observation of step", r"`step`.*shape \(3,\).*shape \(2,\)"),
            ("half observation of step", r"`step` of _Odd .*float16, not .*float32"),
            ("no state", r"`reset` gives shape \(2,\) .*, not a state and"),
            ("flat observation of reset", r"`reset`.*shape \(\).*flatten"),
            ("reward of length one", r"\(1,\).*a scalar. A vector of length 1"),
            ("scalar for a vector", r"shape \(\).*`spec.reward_size=2`"),
            ("int reward", r"gives a reward of.*int32.*floats.*; cast it, as"),
            ("float flag", r"`terminated`.*float32.*bool"),
            ("long flag", r"`truncated`.*\(1,\).*bool"),
            ("tuple", r"`step` gives \(.*, not a state and an `eqrl\.envs\.Outcome`"),
            ("more state at reset", r"missing.*`jnp\.asarray"),
            ("other type of state", r"\['time'\]` is .*float32, not .*int32"),
            ("other shape of state", r"\['x'\]` is .*\(3,\).*, not .*\(2,\)"),
            ("no descriptor", r"`spec.state_descriptor_size=1`.*None"),
            ("undeclared descriptor", r"`spec.state_descriptor_size=None`"),
            ("wrong descriptor", r"`state_descriptor`.*shape \(1,\).*shape \(2,\)"),
            ("int descriptor", r"`state_descriptor`.*int32.*floats"),
        ],
    )
    def test_each_fault_is_named(self, fault: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            check_env(_Odd(fault=fault))


def test_episodes_that_begin_anew_end_the_last_in_any_replay(getkey: GetKey) -> None:
    env = Clock(terminates=False)
    state, counts = _IDLE.init(Scribe(), env, key=getkey())
    counts = dataclasses.replace(counts, rows_written=counts.rows_written + 3)
    own = dataclasses.replace(state, replay={"ring": state.replay, "priority": 1.0})
    replay: Any = _IDLE.restart(Scribe(), env, own, counts, key=getkey()).replay
    assert replay["ring"].data.truncated[0, :4].tolist() == [False, False, True, False]
    assert replay["priority"] == 1
