"""Simulators outside JAX: presents, processes, failures, and how they are saved."""

import dataclasses
import functools
import gc
import itertools
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import eqrl
from eqrl.envs import (
    AbstractEnv,
    AbstractStatelessWrapper,
    GymnasiumEnv,
    _gymnasium,
    _host,
)
from eqrl.envs._simulators import GROUPS, Group, RowError, step_rows

from ..simulators import groups_of
from ..toy import Learner, same


AGENT = Learner()
# Two environments with 40 rows each, the first 4 of them random.
TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, capacity=80, warmup_steps=8)


def pendulum() -> GymnasiumEnv:
    """Episodes of 7 steps, so that one ends in each of the tests' trainings."""
    return GymnasiumEnv("Pendulum-v1", max_steps=7)


def train(env: AbstractEnv[Any], num_steps: int, initial: Any = None) -> Any:
    return eqrl.train(
        AGENT, env, TRAINER, num_steps=num_steps, initial=initial, key=jr.key(0)
    )


class ArmError(Exception):
    """Can be pickled, but not made again."""

    def __init__(self, part: str, words: str) -> None:
        super().__init__(f"the {part} is {words}")


class Faulty(gymnasium.Env[Any, Any]):
    """Counts its steps, and does what it was made for at the third one.

    Counts those that are not closed, too.
    """

    num_open = 0
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.number = self.num_begun = 0
        Faulty.num_open += 1

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.number = 0
        self.num_begun += 1
        is_nan = self.fault == f"nan in episode {self.num_begun}"
        return np.full(2, np.nan if is_nan else 0, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.number += 1
        action[:] = 0
        if self.number == 3:
            if self.fault == "raise":
                raise OverflowError("the arm is bent")
            if self.fault == "raise after a signal":
                signal.raise_signal(signal.SIGTERM)
                raise OverflowError("the arm is bent")
            if self.fault == "Ctrl-C":
                raise KeyboardInterrupt
            if self.fault == "raise an error of its own":
                raise ArmError("arm", "bent")
            if self.fault == "exit":
                os._exit(3)
            if self.fault == "hang":
                time.sleep(60)
        reward = np.nan if self.number == 3 and self.fault == "nan" else 1.0
        return np.full(2, 0.1 * self.number, np.float32), reward, False, False, {}

    def close(self) -> None:
        Faulty.num_open -= 1
        if str(self.fault).endswith("closed"):
            Path(self.fault).touch()


class Fussy(Faulty):
    """Refuses to begin another episode before one is over."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self.number != 0:
            raise RuntimeError("it is not over")
        return super().reset(**options)


class Scaled(Faulty):
    """Observes in a unit that is drawn when it is made, a number or part of a model."""

    def __init__(self, is_number: bool) -> None:
        super().__init__()
        unit = float(np.random.default_rng().random())
        self.model: Any = unit if is_number else {"unit": unit}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = super().step(action)
        unit = self.model["unit"] if isinstance(self.model, dict) else self.model
        return (unit * step[0], *step[1:])


class Odd(Faulty):
    """Draws nothing, acts by one number without an axis, and tells where it is."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012
    action_space = gymnasium.spaces.Box(-2, 2, ())

    def __init__(self, start: Any, render_mode: str | None = None) -> None:
        assert render_mode is None or render_mode in self.metadata["render_modes"]
        super().__init__()
        self.start = start

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {"place": self.start, "height": 7.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        infos = {"place": self.start + action, "height": 8.0}
        no: Any = np.array([False])
        return np.full(2, action), 1.0, no, no, infos


def begin(env: AbstractEnv[Any], number: int) -> tuple[Any, Any]:
    return jax.vmap(lambda key: env.reset(key=key))(jr.split(jr.key(0), number))


def step(env: AbstractEnv[Any], state: Any, actions: Any) -> tuple[Any, Any]:
    return jax.vmap(lambda *x: env.step(*x, key=jr.key(0)))(state, actions)


def _fail(row: int) -> bytes:
    raise BrokenPipeError(row)


def test_a_saved_simulator_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, other = pendulum(), pendulum()
    whole, half = train(env, 60), train(env, 30)
    eqrl.save_solution(tmp_path, half)
    # Their present is past: what was saved is not touched by it.
    train(env, 4, initial=half)
    loaded = eqrl.load_solution(tmp_path, AGENT, other, TRAINER)
    (group,) = groups_of(other)
    # Errors give no steps of episodes whose beginning is not known.
    assert (group.first_ticks > group.ticks).all()
    resumed = train(other, 30, initial=loaded)
    assert same(resumed.state, whole.state)
    # What was learned is saved even if a simulator's process has died.
    state, simulators = resumed.trainer_state.actors, GROUPS[max(GROUPS)].simulators
    assert _host.saved_simulators(state) is not None
    with monkeypatch.context() as patched:
        patched.setattr(simulators, "save", _fail)
        assert _host.saved_simulators(state) is None
    # Simulators of another task are not made those of the one that was saved.
    changed = GymnasiumEnv("Pendulum-v1", max_steps=9)
    elsewhere = eqrl.load_solution(tmp_path, AGENT, changed, TRAINER)
    assert not _host.are_present(changed, elsewhere.trainer_state.actors).any()
    assert same(resumed.trainer_state.replay, whole.trainer_state.replay)
    number = len(GROUPS)
    # A copy shares the simulators, which end with the last one.
    copy = jax.tree.map(lambda x: x, other)
    del other
    gc.collect()
    assert len(GROUPS) == number
    del copy
    gc.collect()
    assert len(GROUPS) == number - 1
    # Each of several seeds goes on in simulators of its own.
    seeds = functools.partial(
        eqrl.train_seeds, AGENT, trainer=TRAINER, num_seeds=2, key=jr.key(1)
    )
    both = seeds(env=env, num_steps=60).trainer_state
    eqrl.save_solution(tmp_path / "seeds", seeds(env=env, num_steps=30))
    other = pendulum()
    loaded = eqrl.load_solution(tmp_path / "seeds", AGENT, other, TRAINER)
    resumed = seeds(env=other, num_steps=30, initial=loaded).trainer_state
    assert same(resumed.replay, both.replay)


def test_new_episodes_begin_where_the_present_is_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = pendulum()
    first = train(env, 30)
    whole = train(env, 10, initial=first)
    with caplog.at_level("INFO", "eqrl"):
        again = train(env, 10, initial=first)
    assert "new episodes begin" in caplog.text
    rows = again.trainer_state.replay.data
    # 15 rows were there: the newest was the first step of the third episode.
    assert rows.timestep[0, 13:18].tolist() == [6, 0, 0, 1, 2]
    assert rows.truncated[0, 13:18].tolist() == [True, True, False, False, False]
    rows = whole.trainer_state.replay.data
    assert rows.timestep[0, 13:18].tolist() == [6, 0, 1, 2, 3]
    assert not np.any(rows.truncated[0, 14:18])


def test_what_a_simulator_raises_ends_training_with_its_solution() -> None:
    for fault, cause, words in (
        ("raise", OverflowError, "OverflowError: the arm is bent"),
        ("nan", ValueError, "nan or infinite"),
    ):
        env = GymnasiumEnv(Faulty, options={"fault": fault}, max_steps=5)
        with pytest.raises(eqrl.SimulatorError, match=words) as raised:
            train(env, 20)
        error = raised.value
        assert isinstance(error.__cause__, cause)
        assert error.row == 0
        assert int(error.solution.counts.rows_written) == 2
        assert np.all(np.isfinite(error.solution.trainer_state.replay.data.reward))
        # The error does not come again, and new simulators are made.
        with pytest.raises(eqrl.SimulatorError, match=words):
            train(env, 20, initial=error.solution)
        with pytest.raises(eqrl.SimulatorError, match=words):
            eqrl.evaluate(
                AGENT, error.solution.state, env, num_episodes=2, key=jr.key(0)
            )


def test_a_failure_before_an_interruption_in_one_row_is_raised() -> None:
    env = GymnasiumEnv(Faulty, options={"fault": "raise after a signal"}, max_steps=5)
    with pytest.raises(eqrl.SimulatorError, match="the arm is bent") as raised:
        eqrl.train(AGENT, env, TRAINER, num_steps=400, log_every=400, key=jr.key(0))
    assert int(raised.value.solution.counts.rows_written) == 2


def test_ctrl_c_in_a_step_is_no_failure() -> None:
    env = GymnasiumEnv(Faulty, options={"fault": "Ctrl-C"}, max_steps=5)
    with pytest.raises(eqrl.TrainingInterrupted) as raised:
        train(env, 20)
    solution = raised.value.solution
    assert int(solution.counts.rows_written) == 2
    with pytest.raises(KeyboardInterrupt):
        eqrl.evaluate(AGENT, solution.state, env, num_episodes=1, key=jr.key(0))


def test_a_simulator_that_fails_leaves_a_generation_unfinished() -> None:
    calls = itertools.count()
    # The first one is the adapter's.
    env = GymnasiumEnv(lambda: Faulty("raise" if next(calls) == 2 else ""), max_steps=5)
    train = functools.partial(eqrl.train_population, AGENT, env, TRAINER, None, size=2)
    options: dict[str, Any] = {"num_generations": 1, "num_episodes": 1}
    options |= {"steps_per_generation": 200, "key": jr.key(0)}
    with pytest.raises(eqrl.SimulatorError, match="environment 1 failed") as raised:
        train(**options)
    solution: Any = raised.value.solution
    assert len(solution.scores) == 0
    assert int(solution.counts.rows_written) < 100
    resumed: Any = train(initial=solution, **options)
    assert int(resumed.counts.rows_written) == 100
    assert resumed.metrics["step"].tolist() == [200]
    assert np.isfinite(resumed.scores).tolist() == [[False, True]]


def test_the_environment_of_a_member_that_fails_is_named() -> None:
    calls = itertools.count()
    # The first one is the adapter's, the last one the second of the second seed.
    env = GymnasiumEnv(lambda: Faulty("raise" if next(calls) == 4 else ""), max_steps=5)
    train = functools.partial(eqrl.train_seeds, AGENT, env, TRAINER, num_steps=20)
    with pytest.raises(eqrl.SimulatorError, match="environment 1 failed") as raised:
        train(num_seeds=2, members="together", key=jr.key(0))
    assert raised.value.row == 1


def test_simulators_that_are_not_stepped_again_are_closed() -> None:
    Faulty.num_open = 0
    env = GymnasiumEnv(Faulty, options={"fault": "raise"}, max_steps=5)
    with pytest.raises(eqrl.SimulatorError):
        train(env, 20)
    assert Faulty.num_open == 0
    env = GymnasiumEnv(Faulty, max_steps=5)
    grid = {"actor_lr": [1e-3, 1e-2]}
    sweep = functools.partial(eqrl.sweep, AGENT, env, TRAINER, grid=grid, num_seeds=1)
    sweep(num_steps=10, num_episodes=2, members_at_once=1, key=jr.key(0))
    assert Faulty.num_open == 0


def test_a_failure_in_a_loop_of_ones_own_is_not_that_of_a_later_call() -> None:
    env = GymnasiumEnv(Faulty, options={"fault": "raise"}, max_steps=5)

    def fail() -> None:
        state, _ = begin(env, 1)
        rewards: list[Array] = []
        for _ in range(3):
            state, outcome = step(env, state, jnp.zeros((1, 1)))
            rewards.append(outcome.reward[0])
        assert jnp.isnan(jnp.stack(rewards)).tolist() == [False, False, True]

    fail()
    trained = train(env, 4)
    fail()
    options: dict[str, Any] = {"num_episodes": 1, "max_steps": 2, "key": jr.key(0)}
    assert eqrl.evaluate(AGENT, trained.state, env, **options).lengths.tolist() == [2]


@pytest.mark.parametrize("episode", [1, 2])
def test_nan_at_a_reset_is_a_failure_of_its_simulator(episode: int) -> None:
    calls = itertools.count()

    def make() -> Any:
        # The first one is the adapter's.
        return Faulty(f"nan in episode {episode}" if next(calls) else "")

    env = GymnasiumEnv(make, max_steps=2)
    with pytest.raises(eqrl.SimulatorError, match=r"environment 0 failed.*nan or inf"):
        train(env, 20)


def test_what_a_simulator_raises_in_an_evaluation_loses_nothing() -> None:
    env = GymnasiumEnv(Faulty, max_steps=5)
    other = GymnasiumEnv(Faulty, options={"fault": "raise"}, max_steps=5)
    evaluations = lambda: eqrl.Evaluations(AGENT, other, every=8, key=jr.key(0))
    options: dict[str, Any] = {"num_steps": 16, "log_every": 8, "key": jr.key(0)}
    population = functools.partial(
        eqrl.train_population,
        *(AGENT, env, TRAINER, None),
        size=2,
        num_generations=1,
        steps_per_generation=8,
        num_episodes=2,
        key=jr.key(0),
    )
    trainings = (
        lambda: eqrl.train(AGENT, env, TRAINER, callback=evaluations(), **options),
        lambda: eqrl.train_seeds(
            AGENT, env, TRAINER, num_seeds=2, evaluations=evaluations(), **options
        ),
        lambda: population(evaluation_env=other),
    )
    solution: Any = None
    for learn in trainings:
        with pytest.raises(eqrl.SimulatorError, match="the arm is bent") as raised:
            learn()
        solution = raised.value.solution
        assert int(solution.counts.rows_written) == 4
        assert "Training had taken 8 environment steps" in str(raised.value)
    # No generation counts that was not evaluated. It is evaluated without training.
    assert len(solution.scores) == 0
    resumed, whole = population(initial=solution), population()
    assert resumed.unfinished is None
    assert same(resumed.counts, whole.counts)
    assert same(resumed.states, whole.states)
    assert same((resumed.scores, resumed.metrics), (whole.scores, whole.metrics))


def test_processes_do_what_one_process_does() -> None:
    env = GymnasiumEnv("Pendulum-v1", num_processes=2)
    alone = GymnasiumEnv("Pendulum-v1")
    results = []
    for each in (env, alone):
        state, observation = begin(each, 3)
        actions = jnp.linspace(-1, 1, 3)[:, None]
        first, (state, outcome) = state, step(each, state, actions)
        # A state that is no longer the present cannot be stepped.
        assert jnp.isnan(step(each, first, actions)[1].reward).all()
        # One is left out, then begun.
        chosen = jnp.array([True, False, True])
        moved = jax.vmap(
            lambda state, action, active, each=each: _host.stepping_where(
                each, active
            ).step(state, action, key=jr.key(0))
        )(state, actions, chosen)
        begun = jax.vmap(
            lambda state, over, each=each: _host.beginning_where(
                each, over, state
            ).reset(key=jr.key(0))
        )(moved[0], ~chosen)
        saved = _host.saved_simulators(begun[0])
        results.append((observation, outcome, moved[1], begun[1]))
        assert saved is not None
        assert begun[0].tick.tolist() == [2, 2, 2]
    # A sweep is resumed by what is printed.
    assert same(*results) and repr(alone) == repr(GymnasiumEnv("Pendulum-v1"))
    assert len(multiprocessing.active_children()) == 2
    del env, each
    gc.collect()
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_or_hangs_is_named() -> None:
    for fault, number, words in (
        ("exit", 2, "environments 0 to 1 ended with exit code 3"),
        ("hang", 1, "environments 0 to 2 did not answer within `step_timeout=2"),
        ("raise an error of its own", 1, "ArmError('the arm is bent')"),
    ):
        env = GymnasiumEnv(
            Faulty, options={"fault": fault}, num_processes=number, step_timeout=2
        )
        state, _ = begin(env, 3)
        for active in ([True, True, True], [False, True, False], [False, True, False]):
            state, _ = jax.vmap(
                lambda state, active, env=env: _host.stepping_where(env, active).step(
                    state, jnp.zeros(1), key=jr.key(0)
                )
            )(state, jnp.array(active))
        failure = _host.failure_of(env)
        assert failure is not None
        assert words in str(failure)
        assert not np.any(_host.are_present(env, state))
        # The frames of its traceback hold the environment.
        del env, failure
        gc.collect()
        assert multiprocessing.active_children() == []
    with pytest.raises(ValueError, match="`step_timeout=5` needs `num_processes`"):
        GymnasiumEnv(Faulty, step_timeout=5)
    env = GymnasiumEnv(lambda: Faulty(), num_processes=1)
    begin(env, 1)
    assert "cannot be sent to another process" in str(_host.failure_of(env))
    one = Faulty()
    env = GymnasiumEnv(lambda: one)
    begin(env, 2)
    assert "returns one simulator twice" in str(_host.failure_of(env))


def test_a_process_leaves_interrupts_to_the_other_and_closes(tmp_path: Path) -> None:
    file = tmp_path / "closed"
    env = GymnasiumEnv(Faulty, options={"fault": str(file)}, num_processes=1)
    # The one that was made to be looked at.
    file.unlink()
    state, _ = begin(env, 1)
    (process,) = multiprocessing.active_children()
    # What ends the group of this process, such as a cluster's signal, spares it.
    assert process.pid is not None and os.getpgid(process.pid) == process.pid
    os.kill(process.pid, signal.SIGINT)
    _, outcome = step(env, state, jnp.zeros((1, 1)))
    np.testing.assert_allclose(outcome.observation, 0.1, rtol=1e-6)
    assert not file.exists()
    del env
    gc.collect()
    assert file.exists()


def test_options_may_be_lists_and_constructors_without_a_render_mode() -> None:
    gymnasium.register("Plain-v0", f"{__name__}:Faulty")
    makers: list[Any] = [
        GymnasiumEnv("Plain-v0", options={"fault": fault})._make
        for fault in (["none"], ["none"], ["other"])
    ]
    assert makers[0] == makers[1] != makers[2]
    assert _gymnasium._is_saved_exactly(makers[0])
    # Options may be objects that cannot be compared.
    other: Any = GymnasiumEnv(Faulty, options={"fault": object()})._make
    assert _gymnasium._is_saved_exactly(other)
    # What was saved with another limit, by another name or with other options is not
    # taken.
    for limit in (8, 9):
        name = f"Limited{limit}-v0"
        gymnasium.register(name, f"{__name__}:Faulty", max_episode_steps=limit)
    tasks: list[Any] = [
        GymnasiumEnv(name, options={"fault": fault})._make
        for name in ("Limited8-v0", "Limited9-v0")
        for fault in (["none"], ["other"])
    ]
    saved = _gymnasium._saved(tasks[0].one(), tasks[0])
    assert saved is not None
    taken = [_gymnasium._restore(maker.one(), maker, saved) for maker in tasks]
    assert taken == [True, False, False, False]
    # What is saved must make another simulator the same.
    for is_number in (True, False):
        maker: Any = GymnasiumEnv(Scaled, options={"is_number": is_number})._make
        assert _gymnasium._is_saved_exactly(maker) == is_number
    # Nor must trying it out fail, or leave any open.
    Faulty.num_open = 0
    assert not _gymnasium._is_saved_exactly(cast(Any, GymnasiumEnv(Fussy)._make))
    assert Faulty.num_open == 0

    def make(calls: Any = itertools.count()) -> Any:
        # The first one is the adapter's; of the others the second cannot begin.
        return Fussy(next(calls) == 2)

    begin(GymnasiumEnv(make), 3)
    assert Faulty.num_open == 0


def test_options_may_be_arrays_and_infos_vectors_and_actions_numbers() -> None:
    gymnasium.register("Odd-v0", f"{__name__}:Odd")

    def make(*start: float) -> GymnasiumEnv:
        options = {"start": np.array(start)}
        names = ("place", "height")
        return GymnasiumEnv("Odd-v0", state_descriptor=names, options=options)

    env = make(1, 2)
    assert env._make == make(1, 2)._make != make(1, 3)._make
    assert env._make != env
    state, _ = begin(env, 2)
    assert state.descriptor.tolist() == [[1, 2, 7]] * 2
    state, outcome = step(env, state, jnp.array([[0.5], [-1.0]]))
    assert outcome.observation.tolist() == [[1, 1], [-2, -2]]
    assert state.descriptor.tolist() == [[2, 3, 8], [-1, 0, 8]]
    for source in ("Odd-v0", Odd):
        with pytest.raises(ValueError, match=r"`options={'begin': 1}` of .*Odd.*begin"):
            GymnasiumEnv(source, options={"begin": 1})
    calls: list[int] = []

    def fail(size: int) -> Any:
        calls.append(size)
        raise TypeError("a fault of its own")

    with pytest.raises(ValueError, match="of its own"):
        GymnasiumEnv(fail, options={"size": 3})
    assert calls == [3]
    with pytest.warns(UserWarning, match="render_modes"):
        GymnasiumEnv("CartPole-v1", options={"render_mode": "rgb_aray"})


class Nudged(AbstractStatelessWrapper[Any]):
    """Takes a first step in each episode before the agent sees it."""

    env: AbstractEnv[Any]

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[Any, Array]:
        state, _ = self.env.reset(key=key)
        state, outcome = self.env.step(state, jnp.ones(1), key=key)
        return state, outcome.observation

    def step(self, state: Any, action: Any, *, key: PRNGKeyArray) -> tuple[Any, Any]:
        return self.env.step(state, action, key=key)


class Around(AbstractEnv[Any]):
    """An environment around another one that does not say so."""

    env: AbstractEnv[Any]

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[Any, Array]:
        return self.env.reset(key=key)

    def step(self, state: Any, action: Any, *, key: PRNGKeyArray) -> tuple[Any, Any]:
        return self.env.step(state, action, key=key)

    def state_descriptor(self, state: Any) -> None:
        del state


def test_a_reset_that_steps_leaves_the_simulators_of_others_alone() -> None:
    env = Nudged(pendulum())
    state, _ = begin(env, 2)
    over = jnp.array([True, False])
    again, seen = jax.vmap(
        lambda over, state: _host.beginning_where(env, over, state).reset(key=jr.key(0))
    )(over, state)
    assert (again.tick - state.tick).tolist() == [2, 0]
    assert bool(jnp.all(jnp.isfinite(seen)))
    _, outcome = step(env, again, jnp.zeros((2, 1)))
    assert bool(jnp.all(jnp.isfinite(outcome.reward)))


def test_what_simulators_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = pendulum()
    with pytest.raises(ValueError, match=r"outside JAX.* without `PooledReset`"):
        eqrl.envs.PooledReset(env, 2, key=jr.key(0))
    with pytest.raises(ValueError, match="simulators of this one have one present"):
        eqrl.envs.check(eqrl.envs.TimeLimit(env, 3), key=jr.key(0))
    with pytest.raises(
        ValueError, match=r"Around contains.*`eqrl.envs.AbstractEnvWrapper`"
    ):
        train(Around(env), 8)
    mode = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    lakes = lambda num_envs: gymnasium.wrappers.vector.TransformObservation(
        gymnasium.make_vec("FrozenLake-v1", num_envs, vector_kwargs=mode),
        lambda cells: cast(Any, cells) + 16,
    )
    with pytest.raises(ValueError, match=r"observes `Discrete\(16\)`, but its `reset`"):
        eqrl.envs.GymnasiumVectorEnv(lakes)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="belong to one process, but there are 2"):
        TRAINER.init(AGENT, env, key=jr.key(0))


def test_a_copy_of_a_member_has_simulators_of_its_own() -> None:
    env = pendulum()
    state, _ = begin(env, 4)
    stack = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), state)
    copied = jax.tree.map(lambda x: x[jnp.array([1, 1])], stack)
    kept = _host.without_copies_of_simulators(stack, copied, jnp.array([True, False]))
    flat = lambda state: jax.tree.map(lambda x: x.reshape(4, *x.shape[2:]), state)
    assert _host.are_present(env, kept).tolist() == [[False] * 2, [True] * 2]
    assert kept.row.tolist() == [[0, 1], [2, 3]]
    # What was left is closed, and what is used stays.
    apart, _ = begin(env, 2)
    left = eqx.tree_at(lambda x: x.tick, apart, jnp.full(2, -1))
    jax.vmap(lambda x: _host.release(x, abandoned=True))(left)
    jax.vmap(lambda x: _host.release(x, abandoned=True))(state)
    assert int(apart.group[0]) not in GROUPS
    assert int(state.group[0]) in GROUPS
    # Simulators that were made together are closed together.
    for half in (kept, eqx.tree_at(lambda x: x.tick, stack, jnp.full((2, 2), -1))):
        assert int(state.group[0]) in GROUPS
        jax.vmap(lambda x: _host.release(x, abandoned=True))(flat(half))
    assert int(state.group[0]) not in GROUPS


def test_a_simulator_that_is_not_stepped_leaves_the_others_alone() -> None:
    env = pendulum()
    state, _ = begin(env, 3)
    actions = jnp.array([[0.0], [jnp.nan], [0.0]])
    state, outcome = step(env, state, actions)
    assert jnp.isfinite(outcome.reward).tolist() == [True, False, True]
    old = eqx.tree_at(lambda x: x.tick, state, state.tick - jnp.array([0, 0, 1]))
    _, outcome = step(env, old, jnp.zeros((3, 1)))
    assert jnp.isfinite(outcome.reward).tolist() == [True, True, False]


def test_members_that_share_simulators_train_as_if_alone() -> None:
    train = functools.partial(
        eqrl.train_population,
        **{"size": 3, "steps_per_generation": 16, "num_episodes": 1},
        **{"key": jr.key(0), "members": "together"},
    )
    agents = dataclasses.replace(AGENT, actor_lr=jnp.array([1e-2, jnp.nan, 1e-2]))
    carts = lambda num_envs: gymnasium.make_vec(
        "Pendulum-v1",
        num_envs=num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED},
    )
    env = eqrl.envs.GymnasiumVectorEnv(carts, max_steps=7)
    some: Any = train(agents, env, TRAINER, None, num_generations=3)
    assert some.trainer_states.failed.tolist() == [False, True, False]
    assert np.all(some.metrics["nonfinite"][:, [0, 2]] == 0)
    assert len([*groups_of(env)]) == 1
    pbt = eqrl.PBT(
        lambda agent: (agent.actor_lr,),
        (eqrl.LogUniform(1e-4, 1e-3),),
        num_replaced=1,
        num_elite=1,
    )
    env = pendulum()
    tuned: Any = train(AGENT, env, TRAINER, pbt, num_generations=3)
    # Those that were not replaced go on in theirs, and get no others.
    num_replaced = int(np.sum(tuned.parents != np.arange(3)))
    assert num_replaced > 0
    assert np.all(tuned.metrics["nonfinite"] == 0)
    made = sum(len(group.ticks) for group in groups_of(env))
    assert made <= 2 * (3 + num_replaced)


@pytest.mark.parametrize("name", ["observation", "descriptor"])
def test_what_is_nan_is_found_at_its_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = GymnasiumEnv("Pendulum-v1", state_descriptor=lambda infos: np.zeros(3))
    simulators, rows = env._make([0]), np.zeros(1, np.int32)
    group = Group(simulators, 1, 1, simulators.begin(rows))
    seen = np.full((1, 3), np.nan, np.float32)
    stepped = group.last._replace(**{name: seen})
    monkeypatch.setattr(simulators, "step", lambda rows, actions: stepped)
    with pytest.raises(RowError):
        step_rows(group, rows, np.zeros((1, 1), np.float32))
