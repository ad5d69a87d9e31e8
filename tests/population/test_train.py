import csv
import dataclasses
import functools
import signal
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl._population import train as population_train
from eqrl._population.train import make_agents
from eqrl._pytree.tree import giving_away
from eqrl._run.solutions import step_of
from eqrl._training import train as training
from eqrl._training.mesh import automatic, choose_members, replicate, shard
from eqrl._training.rows import Position, Runner
from eqrl._training.train import Crew, init_members
from eqrl.envs import Point

from ..agents_under_test import ALL_AGENTS, env_of, trainer_of
from ..toy import Clock, GetKey, Learner, interrupt_in_piece
from .pusher import Pusher


pytestmark = pytest.mark.checks_keys

AGENT = Pusher()
ENV = Point(max_steps=7, goal=(0.3, 0.1))
TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=60)
PBT = eqrl.PBT(
    where=lambda a: (a.rate, a.noise),
    priors=(
        eqrl.LogUniform(1e-4, 1e-2),
        eqrl.OneMinus(eqrl.LogUniform(1e-3, 1e-1)),
    ),
    num_replaced=1,
    num_elite=1,
)


def train(pbt: eqrl.PBT | None = PBT, **options: Any) -> eqrl.PopulationSolution:
    given: dict[str, Any] = {
        "agent": AGENT,
        "env": ENV,
        "trainer": TRAINER,
        "pbt": pbt,
        "size": 3,
        "num_generations": 3,
        "steps_per_generation": 40,
        "num_episodes": 2,
        "key": jr.key(0),
    }
    return eqrl.train_population(**(given | options))


@pytest.fixture(scope="module")
def solution() -> eqrl.PopulationSolution:
    return train()


@pytest.mark.parametrize(
    "members", ["in_turn", pytest.param("together", marks=pytest.mark.long)]
)
def test_several_calls_equal_one_bit_for_bit(
    solution: eqrl.PopulationSolution, members: Any
) -> None:
    whole = solution if members == "in_turn" else train(members=members)
    # In turn, what comes first is what an interrupted call hands over.
    seen: list[int] = []
    if members == "in_turn":
        with pytest.raises(eqrl.TrainingInterrupted) as error:
            train(callback=lambda *_: signal.raise_signal(signal.SIGINT))
        first = error.value.solution
    else:
        first = train(members=members, num_generations=1)
    resumed = first
    for _ in range(2):
        resumed = train(
            members=members,
            num_generations=1,
            initial=resumed,
            callback=lambda step, metrics, _: seen.append(step),
        )
    assert eqx.tree_equal(resumed, whole)
    assert seen == [80, 120]
    # What they went on from stays usable.
    arrays = filter(eqx.is_array, jax.tree.leaves(first))
    assert not any(x.is_deleted() for x in arrays if isinstance(x, jax.Array))


# Within the warm-up of the first generation, and within the second one.
@pytest.mark.parametrize("number", [4, 31])
def test_ctrl_c_within_a_generation_loses_nothing(
    solution: eqrl.PopulationSolution,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    with (
        monkeypatch.context() as patched,
        pytest.raises(eqrl.TrainingInterrupted) as error,
    ):
        interrupt_in_piece(patched, number)
        train()
    reached = error.value.solution
    generations = len(reached.scores)
    assert (generations, step_of(reached)) == (number // 20, 2 * (number + 1))
    eqrl.save_solution(tmp_path, reached)
    loaded = eqrl.load_solution(tmp_path, AGENT, ENV, TRAINER)
    assert eqx.tree_equal(loaded, reached)
    taken = step_of(reached) % 40
    fewer = taken - 2
    with pytest.raises(ValueError, match=f"{taken} steps into .*={fewer}` cannot"):
        train(initial=loaded, steps_per_generation=fewer)
    if generations == 0:
        with pytest.raises(ValueError, match="has not been evaluated yet"):
            eqrl.best(reached)
    with giving_away():
        resumed = train(num_generations=3 - generations, initial=loaded)
    assert eqx.tree_equal(resumed, solution)
    assert loaded.trainer_states.replay.data.reward.is_deleted()


def test_a_population_is_saved_as_a_run_with_the_policy_of_each_member(
    solution: eqrl.PopulationSolution, tmp_path: Path
) -> None:
    eqrl.save_run(tmp_path, solution, AGENT, ENV)
    with open(tmp_path / "metrics.csv", newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    total = step_of(solution)
    assert steps == [total // 3] * 3 + [2 * total // 3] * 3 + [total] * 3
    with eqrl.TensorBoard(tmp_path / "board") as board:
        board(total, {"loss": np.zeros(3)}, solution)
    assert (tmp_path / "board" / "member_2").is_dir()
    loaded = eqrl.load_run(tmp_path, 2, agent=AGENT, env=ENV)
    expected = (*eqrl.member((solution.agents, solution.states), 2), ENV)
    assert eqx.tree_equal(loaded, expected)


def test_no_column_of_a_saved_population_takes_the_place_of_another(
    solution: eqrl.PopulationSolution, tmp_path: Path
) -> None:
    names = ["member", "score", "noise", "metric_noise", "loss"]
    metrics = {name: np.full((3, 3), float(i)) for i, name in enumerate(names)}
    metrics["step"] = solution.metrics["step"]
    tuned = {"noise": np.full((3, 3), 5.0), "parent": np.full((3, 3), 6.0)}
    named = dataclasses.replace(solution, metrics=metrics, hyperparameters=tuned)
    eqrl.save_run(tmp_path, named, AGENT, ENV)
    with open(tmp_path / "metrics.csv", newline="") as file:
        table = list(csv.reader(file))
    columns = {name: values for name, *values in zip(*table, strict=True)}
    assert len(columns) == len(table[0])
    expected = {
        "score": solution.scores,
        "parent": solution.parents,
        "hyperparameter_parent": tuned["parent"],
        "noise": tuned["noise"],
        "metric_member": metrics["member"],
        "metric_score": metrics["score"],
        "metric_noise": metrics["noise"],
        "metric_metric_noise": metrics["metric_noise"],
        "loss": metrics["loss"],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(
            np.asarray(columns[name], float), values.reshape(-1), rtol=1e-6
        )


def test_a_population_comes_back_from_disk_bit_for_bit(
    solution: eqrl.PopulationSolution, tmp_path: Path
) -> None:
    # Any structure of descriptors comes back.
    pair = (solution.returns, {"a": [solution.scores, solution.parents]})
    described = dataclasses.replace(solution, descriptors=pair)
    eqrl.save_solution(tmp_path, solution)
    eqrl.save_solution(tmp_path, described, step=0)
    load = functools.partial(eqrl.load_solution, tmp_path, AGENT, ENV, TRAINER)
    assert eqx.tree_equal(load(), solution)
    on_mesh = load(0, mesh=jax.make_mesh((1,), ("population",)))
    assert eqx.tree_equal(on_mesh, described)
    [weights] = jax.tree.leaves(on_mesh.states)
    assert weights.sharding.spec == jax.sharding.PartitionSpec("population")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4}, "`initial` holds 3 members, but `size=4`"),
        (
            {"agent": eqrl.Normalized(AGENT), "pbt": None},
            "`initial` is of another kind",
        ),
        (
            {
                "pbt": dataclasses.replace(
                    PBT, where=lambda a: (a.rate,), priors=PBT.priors[:1]
                )
            },
            r"records \['noise', 'rate'\] .*tunes \['rate'\]; tune the same",
        ),
        (
            {
                "pbt": dataclasses.replace(
                    PBT, priors=(PBT.priors[0], eqrl.Uniform(0.5, 2.0))
                )
            },
            r"prior of `noise` is wrong: `noise=2` .*\[0, 1\]",
        ),
        ({"num_episodes": 4}, r"\(3, 2\).*have \(.3, 4\).*same `num_episodes`"),
        (
            {"trainer": dataclasses.replace(TRAINER, num_envs=4)},
            r"`initial` does not fit this agent, environment or trainer",
        ),
    ],
)
def test_a_solution_that_does_not_fit_is_refused_before_the_first_step(
    options: dict[str, Any],
    message: str,
    solution: eqrl.PopulationSolution,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "run_members", _untrained)
    with pytest.raises(ValueError, match=message):
        train(initial=solution, **options)


def test_the_history_has_a_row_for_each_generation(
    solution: eqrl.PopulationSolution, tmp_path: Path
) -> None:
    assert solution.returns.shape == (3, 3, 2)
    assert solution.parents.shape == (3, 3)
    np.testing.assert_allclose(solution.scores, solution.returns.mean(axis=2))
    # As `train_population` derives it from its key, for member 1 of generation 2.
    key = jr.split(jr.fold_in(jr.fold_in(jr.key(0), 3), 2), 3)[1]
    played = eqrl.evaluate(*eqrl.member(solution, 1), ENV, num_episodes=2, key=key)
    np.testing.assert_allclose(solution.returns[2, 1], played.returns, rtol=1e-5)
    assert set(solution.hyperparameters) == {"rate", "noise"}
    assert solution.hyperparameters["noise"].shape == (3, 3)
    assert solution.metrics["size"].shape == (3, 3)
    # Without warm-up all generations take as many steps.
    steps = step_of(solution) * np.arange(1, 4) // 3
    assert np.array_equal(solution.metrics["step"], steps)
    np.testing.assert_allclose(
        solution.metrics["evaluation_return"], solution.returns.mean(axis=2)
    )
    # They are those of a run with several seeds.
    figure = tmp_path / "curves.svg"
    eqrl.draw_learning_curves(
        figure, {"PBT": solution.metrics}, metric="evaluation_return"
    )
    assert figure.stat().st_size > 0


def test_the_worst_of_a_generation_is_replaced_by_the_best(
    solution: eqrl.PopulationSolution,
) -> None:
    assert solution.parents[0].tolist() == [0, 1, 2]
    for generation in (1, 2):
        means = solution.returns[generation - 1].mean(axis=1)
        expected = np.arange(3)
        expected[means.argmin()] = means.argmax()
        assert np.array_equal(solution.parents[generation], expected)


def test_hyperparameters_are_drawn_and_varied_with_keys_of_their_own(
    solution: eqrl.PopulationSolution,
) -> None:
    agents_key, exploit_key = (jr.fold_in(jr.key(0), purpose) for purpose in (0, 4))

    @eqx.filter_jit
    def begin_and_vary(scores: Array) -> tuple[list[Any], Array]:
        stacks, parents = [make_agents(AGENT, PBT, 3, key=agents_key)], jnp.arange(3)
        for generation in (1, 2):
            key = jr.fold_in(exploit_key, generation)
            agents, _, parents = PBT.exploit(
                stacks[-1], jnp.arange(3), scores[generation - 1], key=key
            )
            stacks.append(agents)
        return stacks, parents

    stacks, parents = begin_and_vary(jnp.asarray(solution.scores))
    assert np.array_equal(parents, solution.parents[2])
    for generation, stack in enumerate(stacks):
        for name, values in solution.hyperparameters.items():
            np.testing.assert_allclose(
                getattr(stack, name), values[generation], rtol=1e-6
            )


def test_only_children_change_their_hyperparameters(
    solution: eqrl.PopulationSolution,
) -> None:
    rates = solution.hyperparameters["rate"]
    changed = rates[1:] != rates[:-1]
    assert np.array_equal(changed, solution.parents[1:] != np.arange(3))


def test_members_make_the_same_number_of_updates(
    solution: eqrl.PopulationSolution,
) -> None:
    assert int(solution.counts.updates) == 50


def test_members_and_the_best_can_be_taken_out(
    solution: eqrl.PopulationSolution,
) -> None:
    means = jnp.asarray(solution.returns[-1].mean(axis=1))
    chosen = eqrl.best(solution.states, means)
    expected = eqrl.member(solution.states, int(means.argmax()))
    assert eqx.tree_equal(chosen, expected)
    assert eqx.tree_equal(eqrl.best(solution, means)[1], chosen)
    ranks = means.argsort().argsort()
    assert eqx.tree_equal(eqrl.best(solution.states, ranks), chosen)
    pair = (eqrl.member(solution.agents, 1), eqrl.member(solution.states, 1))
    assert eqx.tree_equal(eqrl.member(solution, 1), pair)
    assert jax.tree.structure(chosen) == jax.tree.structure(
        AGENT.init(ENV.spec, key=jr.key(0))
    )


def test_without_pbt_nobody_is_replaced_and_the_callback_sees_each_generation() -> None:
    seen = []
    solution = train(None, callback=lambda step, metrics, _: seen.append(step))
    assert np.array_equal(solution.parents, np.tile(np.arange(3), (3, 1)))
    # No hyperparameter differs between members.
    assert seen == [40, 80, 120] and solution.hyperparameters == {}
    # One that returns true ends training with its generation.
    stopped = train(
        None, callback=lambda step, metrics, reached: len(reached.parents) == 2
    )
    assert eqx.tree_equal(stopped.returns, solution.returns[:2])


def test_a_stack_of_agents_is_taken_as_it_is_and_stays_usable(getkey: GetKey) -> None:
    agents = PBT.init(AGENT, 3, key=getkey())
    train(agent=agents)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(agents))
    kept = train(None, agent=agents, num_generations=2)
    assert eqx.tree_equal(kept.agents, agents)
    # Without selection the history has what differs between members, and goes on with
    # it whatever agent is given.
    resumed = train(None, num_generations=1, initial=kept)
    assert list(resumed.hyperparameters) == ["noise", "rate"]
    for name, values in resumed.hyperparameters.items():
        np.testing.assert_array_equal(values, np.tile(getattr(agents, name), (3, 1)))


def test_a_vector_of_hyperparameters_is_not_recorded(getkey: GetKey) -> None:
    skills = eqrl.OneHotSkills(3, [1.0, 2.0, 3.0])
    agents: Any = make_agents(
        eqrl.SkillConditioned(AGENT, skills), None, 3, key=getkey()
    )
    agents = eqx.tree_at(lambda a: a.skills.weights, agents, jnp.eye(3) + 1)
    assert population_train._names(agents, None, None, None) == []


def test_a_single_agent_may_hold_as_many_weights_as_there_are_members(
    getkey: GetKey,
) -> None:
    skills = eqrl.OneHotSkills(3, [1.0, 2.0, 3.0])
    agent = eqrl.SkillConditioned(AGENT, skills)
    stack: Any = make_agents(agent, None, 3, key=getkey())
    assert stack.skills.weights.shape == (3, 3)
    assert eqx.tree_equal(make_agents(stack, None, 3, key=getkey()), stack)


def test_members_in_turn_and_together_agree(getkey: GetKey) -> None:
    key = getkey()
    together, in_turn = (
        train(None, members=members, key=jr.clone(key))
        for members in ("together", "in_turn")
    )
    assert eqx.tree_equal(together.states, in_turn.states, rtol=1e-3, atol=1e-4)
    assert eqx.tree_equal(together.counts, in_turn.counts)


def test_members_run_in_turn_on_a_cpu_by_default(
    solution: eqrl.PopulationSolution,
) -> None:
    in_turn = train(members="in_turn")
    assert eqx.tree_equal(solution.trainer_states, in_turn.trainer_states)
    assert choose_members(None, None) == "in_turn"


def test_a_mesh_of_one_device_begins_the_same_bit_for_bit(
    getkey: GetKey,
) -> None:
    # With a stack, something shared and a key, in and out.
    agents = jax.tree.map(lambda leaf: jnp.full(3, leaf), AGENT)
    keys = jr.split(getkey(), 3)
    mesh = automatic(jax.make_mesh((1,), ("population",)))
    crew = Crew(TRAINER, agents, ENV, keys, True, "in_turn", None)
    expected = init_members(crew, keys)
    agents, env, keys = shard(agents, mesh), replicate(ENV, mesh), shard(keys, mesh)
    crew = Crew(TRAINER, agents, env, keys, True, "in_turn", mesh)
    on_mesh = init_members(crew, keys)
    assert eqx.tree_equal(on_mesh, expected)


@pytest.mark.long
@pytest.mark.parametrize("calls", [1, 2])
def test_a_mesh_of_one_device_gives_the_same_bit_for_bit(
    solution: eqrl.PopulationSolution, calls: int
) -> None:
    mesh = jax.make_mesh((1,), ("population",))
    # Of two calls, the first one has no mesh.
    first = train(num_generations=1) if calls == 2 else None
    on_mesh = train(mesh=mesh, num_generations=4 - calls, initial=first)
    assert np.array_equal(on_mesh.parents, solution.parents)
    assert eqx.tree_equal(on_mesh.hyperparameters, solution.hyperparameters)
    assert np.array_equal(on_mesh.returns, solution.returns)
    assert eqx.tree_equal(on_mesh.states, solution.states)


def test_an_unknown_way_to_run_members_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Where types are checked at run time, that finds it first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"'parallel'.*'together', 'in_turn'"):
        train(members="parallel")


def _check_equals_the_agent_alone(agent: Any) -> None:
    env, trainer = env_of(agent), trainer_of(agent, TRAINER)
    solution = train(None, agent=agent, env=env, trainer=trainer, members="in_turn")
    assert np.all(np.isfinite(solution.returns))
    # As `train_population` derives them from its key, for member 1.
    init_key = jr.split(jr.fold_in(jr.key(0), 1), 3)[1]
    run_key = jr.fold_in(jr.fold_in(jr.key(0), 2), 1)
    state, counts = eqrl.jit_init(trainer, agent, env, key=init_key)
    for _ in range(3):
        state, counts, _ = eqrl.jit_run(
            trainer, agent, env, state, counts, num_steps=40, key=run_key
        )
    assert eqx.tree_equal(eqrl.member(solution.trainer_states, 1), state)


def test_a_member_in_turn_equals_the_agent_alone_bit_for_bit() -> None:
    _check_equals_the_agent_alone(AGENT)


@pytest.mark.long
@pytest.mark.optimized
@pytest.mark.parametrize("name", list(ALL_AGENTS))
def test_a_member_in_turn_equals_each_agent_alone_bit_for_bit(name: str) -> None:
    _check_equals_the_agent_alone(ALL_AGENTS[name])


def test_each_member_is_evaluated_on_episodes_of_its_own() -> None:
    # Returns follow from the lengths of episodes, which are drawn, whoever acts.
    env, agent = Clock(longest=50), Learner()
    first = train(None, agent=agent, env=env, num_generations=1, num_episodes=3)
    solution = train(
        None, agent=agent, env=env, num_generations=1, num_episodes=3, initial=first
    )
    state = eqrl.member(solution.states, 0)
    for generation in range(2):
        # As `train_population` derives them from its key.
        key = jr.fold_in(jr.fold_in(jr.key(0), 3), generation)
        for index, member_key in enumerate(jr.split(key, 3)):
            evaluation = eqrl.evaluate(
                agent, state, env, num_episodes=3, key=member_key
            )
            np.testing.assert_array_equal(
                evaluation.returns, solution.returns[generation, index]
            )
            length = solution.metrics["evaluation_length"][generation, index]
            np.testing.assert_allclose(length, evaluation.lengths.mean(), rtol=1e-6)
    assert len(np.unique(solution.returns)) > 9
    # By default the mean of its returns ranks it.
    np.testing.assert_allclose(
        solution.scores, solution.returns.mean(axis=2), rtol=1e-6
    )


def test_the_score_decides_and_is_kept_with_descriptors_and_agents() -> None:
    def noise_of(agent: Any, state: Any, evaluation: Any) -> Float[Array, ""]:
        del state, evaluation
        return agent.noise

    def end(transitions: eqrl.Transition, mask: Array) -> Array:
        del mask
        return transitions.next_observation[-1, :2]

    kept: list[Any] = []
    logged: list[tuple[dict[str, float], int]] = []

    def keep(step: int, metrics: dict[str, Any], solution: Any) -> None:
        np.testing.assert_array_equal(metrics["score"], solution.scores[-1])
        noises = solution.hyperparameters["noise"][-1]
        np.testing.assert_array_equal(metrics["noise"], noises)
        eqrl.Logger(lambda numbers, step: logged.append((numbers, step)))(
            step, metrics, solution
        )
        kept.append(solution.agents)

    shorter = Point(max_steps=5, goal=(0.3, 0.1))
    solution = train(
        score=noise_of, descriptor=end, callback=keep, evaluation_env=shorter
    )
    np.testing.assert_array_equal(solution.metrics["evaluation_length"], 5)
    np.testing.assert_array_equal(solution.scores, solution.hyperparameters["noise"])
    noises = solution.hyperparameters["noise"][0]
    assert solution.parents[1][noises.argmin()] == noises.argmax()
    agent, state = eqrl.best(solution)
    assert agent.noise == solution.scores[-1].max()
    expected = eqrl.member(solution.states, int(solution.scores[-1].argmax()))
    assert eqx.tree_equal(state, expected)
    # PBT ranks an infinite score last, too.
    first = np.where(solution.scores == solution.scores[-1].max(), np.inf, 0)
    lost = dataclasses.replace(solution, scores=first)
    assert eqrl.best(lost)[0].noise < agent.noise
    numbers, step = logged[-1]
    assert step == solution.metrics["step"][-1] == step_of(solution)
    assert numbers["noise/1"] == solution.hyperparameters["noise"][-1, 1]
    assert "evaluation_length/2" in numbers
    # The callback kept the agents of each generation.
    noises = [np.asarray(agents.noise) for agents in kept]
    np.testing.assert_array_equal(noises, solution.hyperparameters["noise"])
    assert solution.descriptors.shape == (3, 3, 2, 2)


def _vector_evaluation() -> eqrl.Evaluation:
    return eqrl.Evaluation(
        returns=jnp.array([[1.0, 10.0], [3.0, 30.0]]),
        lengths=jnp.ones(2, int),
        descriptors=None,
    )


def test_vectors_of_returns_are_weighed_as_the_agent_weighs_rewards() -> None:
    evaluation = _vector_evaluation()
    agent = eqrl.Normalized(eqrl.TAAC(reward_weights=(2.0, -0.5)))
    assert eqrl.weighted_return(agent, None, evaluation) == 2 * 2 - 0.5 * 20
    assert eqrl.weighted_return(eqrl.TAAC(), None, evaluation) == 22


def test_returns_cannot_be_weighed_without_a_taac_or_vectors() -> None:
    with pytest.raises(ValueError, match="there is none in Pusher"):
        eqrl.weighted_return(AGENT, None, _vector_evaluation())
    scalar = eqrl.Evaluation(
        returns=jnp.ones(2), lengths=jnp.ones(2, int), descriptors=None
    )
    with pytest.raises(ValueError, match="leave `score` out"):
        eqrl.weighted_return(eqrl.TAAC(), None, scalar)


def test_a_population_is_selected_by_vectors_of_rewards(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stay(runner: Runner, position: Position, *_: Any, **__: Any) -> Position:
        return position._replace(row={name: np.zeros(3) for name in runner.empty.names})

    monkeypatch.setattr(Runner, "_run_piece", stay)
    monkeypatch.setattr(population_train, "compile_members", lambda *_: None)
    _check_selection_by_vectors(getkey())


@pytest.mark.long
def test_a_population_learns_from_vectors_of_rewards(getkey: GetKey) -> None:
    _check_selection_by_vectors(getkey())


def _check_selection_by_vectors(key: PRNGKeyArray) -> None:
    weights = np.array([1.0, -1.0])

    def weighted(agent: Any, state: Any, evaluation: Any) -> Float[Array, ""]:
        del agent, state
        return jnp.mean(evaluation.returns @ jnp.array([1.0, -1.0]))

    env = Clock(longest=3, reward_size=2)
    solution = train(env=env, score=weighted, key=key)
    assert solution.returns.shape == (3, 3, 2, 2)
    second = solution.metrics["evaluation_return_1"]
    np.testing.assert_allclose(second, solution.returns[..., 1].mean(axis=2))
    weighed = (solution.returns * weights).sum(axis=-1).mean(axis=-1)
    for generation in (1, 2):
        replaced = solution.parents[generation] != np.arange(3)
        assert replaced.sum() == 1
        assert replaced[weighed[generation - 1].argmin()]


def test_a_member_that_diverged_is_replaced() -> None:
    rates = jnp.array([1e30, 0.01, 0.01])
    agents = eqx.tree_at(lambda agent: agent.rate, _STACK, rates)
    solution = train(agent=agents)
    assert np.isnan(solution.scores[0]).tolist() == [True, False, False]
    assert np.isposinf(solution.metrics["size"][0]).tolist() == [True, False, False]
    assert solution.parents[1, 0] != 0
    assert np.all(np.isfinite(solution.states.weight))
    assert np.all(solution.metrics["nonfinite"][1:] == 0)


def test_a_population_all_of_which_diverged_is_an_error() -> None:
    agents = eqx.tree_at(lambda agent: agent.rate, _STACK, jnp.full(3, 1e30, float))
    with pytest.raises(eqrl.NonFiniteError, match="`size`") as error:
        train(None, agent=agents)
    reached = error.value.solution
    assert reached.scores.shape == (1, 3)
    assert np.all(np.isfinite(reached.states.weight))
    with pytest.raises(ValueError, match="All 3 seeds or members of `initial` have"):
        train(None, agent=agents, initial=reached)


def test_a_vector_reward_needs_a_score() -> None:
    with pytest.raises(ValueError, match="`score` is needed"):
        train(None, env=Clock(reward_size=2))


def _untrained(*args: Any) -> Any:
    del args
    raise AssertionError("a generation was trained")


_STACK = jax.tree.map(lambda leaf: jnp.full(3, leaf), AGENT)


@pytest.mark.parametrize(
    ("pbt", "message"),
    [
        (dataclasses.replace(PBT, num_replaced=2, num_elite=2), "more than the 3 memb"),
        (dataclasses.replace(PBT, priors=PBT.priors[:1]), "must select a tuple of 1"),
        (
            dataclasses.replace(PBT, where=lambda a: (a.rate, 2)),
            "is not a hyperparameter",
        ),
    ],
)
def test_a_stack_is_checked_before_its_first_step(
    pbt: eqrl.PBT, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population_train, "init_members", _untrained)
    with pytest.raises(ValueError, match=message):
        train(pbt, agent=_STACK)


def test_a_score_of_another_shape_is_an_error_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(population_train, "compile_members", lambda *_: None)
    monkeypatch.setattr(training, "run_members", _untrained)
    with pytest.raises(ValueError, match=r"`score` must be one number.*f32\[2\]"):
        train(None, agent=_STACK, score=lambda agent, state, x: x.returns)


def test_a_stack_of_another_size_is_an_error() -> None:
    agents = jax.tree.map(lambda leaf: jnp.full(4, leaf), AGENT)
    with pytest.raises(ValueError, match="stack of `size=3`"):
        train(None, agent=agents)


def test_a_prior_of_a_target_entropy_stays_below_the_most_entropy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(population_train, "init_members", _untrained)
    priors = (eqrl.Uniform(-2.0, 5.0),)
    pbt = eqrl.PBT(where=lambda a: (a.target_entropy,), priors=priors)
    # None of the first draws is too large, but a child's may be.
    with pytest.raises(ValueError, match="`target_entropy=5` is more"):
        train(pbt, agent=eqrl.SAC(target_entropy=-2.0), size=4)
