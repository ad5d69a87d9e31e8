"""Policies in files of their own, which act as the agents that wrote them."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl._interaction import exported_policy
from eqrl._types.custom_types import Mode
from eqrl.nn import Critic, Deterministic, Gaussian
from tests.toy import Clock, GetKey, Idle, Learner, Scribe


_OBSERVATIONS = np.array([[0.5, -1.0], [3.0, 0.25], [-0.1, 2.0]], np.float32)
_SPEC = eqrl.EnvSpec(observation_size=2, action_size=1)


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The file of a policy, and the state that it was made of."""
    path = tmp_path_factory.mktemp("exported") / "new" / "learner.policy"
    agent = Learner()
    state = agent.init(_SPEC, key=jr.key(0))
    eqrl.export_policy(path, agent, jax.device_get(state), _SPEC)
    return path, state


def test_an_exported_policy_acts_as_its_agent(learner: tuple[Path, Any]) -> None:
    path, state = learner
    policy = eqrl.load_policy(path)
    act = eqx.filter_jit(Learner().act)
    for observation in _OBSERVATIONS:
        action, _, _ = act(
            state, None, jnp.asarray(observation), mode="greedy", key=jr.key(1)
        )
        exported = policy.act(observation)
        assert type(exported) is np.ndarray
        np.testing.assert_array_equal(exported, np.asarray(action), strict=True)
    policy = eqrl.load_policy(path, mode="sample", seed=3)
    drawn = [policy.act(_OBSERVATIONS[0]) for _ in range(3)]
    again = eqrl.load_policy(path, mode="sample", seed=3)
    np.testing.assert_array_equal(drawn[0], again.act(_OBSERVATIONS[0]))
    assert len({float(action[0]) for action in drawn}) == 3


def test_an_exported_policy_says_which_observations_it_takes(
    learner: tuple[Path, Any],
) -> None:
    policy = eqrl.load_policy(learner[0])
    assert policy.observation_size == 2
    for wrong in (np.zeros(3), np.zeros((1, 2)), np.array(["a", "b"])):
        with pytest.raises(ValueError, match="`observation` has the shape"):
            policy.act(wrong)


def test_a_policy_remembers_within_an_episode_only(tmp_path: Path) -> None:
    # A scribe acts greedily with a number that it draws once an episode.
    eqrl.export_policy(
        tmp_path / "scribe", Scribe(), Scribe().init(_SPEC, key=jr.key(0)), Clock()
    )
    policy = eqrl.load_policy(tmp_path / "scribe")
    episodes = []
    for _ in range(2):
        policy.reset()
        episodes.append([float(policy.act(x)[0]) for x in _OBSERVATIONS])
    assert [len(set(actions)) for actions in episodes] == [1, 1]
    assert episodes[0] != episodes[1]


class _KeyedState(eqx.Module):
    key: PRNGKeyArray
    scale: Float[Array, " act"]
    num_calls: Int[Array, ""]


class _Keyed(Idle):
    """Draws with keys of its state and its memory; samples with a scale of its own."""

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> _KeyedState:
        return _KeyedState(key, jnp.full(spec.action_size, 0.3), jnp.zeros((), int))

    def begin(
        self,
        state: _KeyedState,
        spec: eqrl.EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> PRNGKeyArray:
        del spec
        return jr.fold_in(key, index)

    def act(
        self,
        state: _KeyedState,
        memory: PRNGKeyArray,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], PRNGKeyArray, None]:
        drawn = jr.uniform(state.key) + jr.uniform(memory)
        action = 0.1 * jnp.tanh(observation[:1]) + 0.1 * drawn
        if mode == "sample":
            action = action + state.scale * jr.uniform(key, (1,))
        return action, jr.fold_in(memory, 1), None


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_keys_and_what_only_sampled_actions_read_are_exported(
    mode: Literal["greedy", "sample"], tmp_path: Path
) -> None:
    agent = _Keyed()
    # A state's keys need not be of one kind.
    state = agent.init(_SPEC, key=jr.key(5, impl="rbg"))
    eqrl.export_policy(tmp_path / "keyed", agent, state, _SPEC)
    policy = eqrl.load_policy(tmp_path / "keyed", mode=mode, seed=3)
    act = eqx.filter_jit(agent.act)
    begin_key, step_key = (jr.fold_in(jr.key(3), purpose) for purpose in (0, 1))
    for episode in range(2):
        policy.reset()
        index = jnp.zeros((), int)
        memory = agent.begin(
            state, _SPEC, index=index, key=jr.fold_in(begin_key, episode)
        )
        for step, observation in enumerate(_OBSERVATIONS, 3 * episode):
            key = jr.fold_in(step_key, step)
            action, memory, _ = act(
                state, memory, jnp.asarray(observation), mode=mode, key=key
            )
            exported = policy.act(observation)
            np.testing.assert_allclose(exported, np.asarray(action), rtol=1e-6)


def test_a_policy_acts_only_on_its_platforms(tmp_path: Path) -> None:
    agent, path = Learner(), tmp_path / "policy"
    state = agent.init(_SPEC, key=jr.key(0))
    actions = []
    for platforms in (("cpu", "cuda"), ("cpu",)):
        eqrl.export_policy(path, agent, state, _SPEC, platforms=platforms)
        actions.append(eqrl.load_policy(path).act(_OBSERVATIONS[0]))
    np.testing.assert_array_equal(*actions)
    eqrl.export_policy(path, agent, state, _SPEC, platforms=("cuda",))
    with pytest.raises(ValueError, match=r"exported for .*cuda.* used on .*cpu"):
        eqrl.load_policy(path).act(_OBSERVATIONS[0])
    for wrong in ("cpu", (), ("cpu", "cudaa"), ("cpu", "cpu")):
        with pytest.raises(ValueError, match="one or several of 'cpu', 'cuda'"):
            eqrl.export_policy(path, agent, state, _SPEC, platforms=wrong)


def test_the_file_holds_nothing_that_acting_does_not_read(
    learner: tuple[Path, Any],
) -> None:
    with zipfile.ZipFile(learner[0]) as archive:
        sizes = [x.file_size for x in archive.infolist() if "weights/" in x.filename]
    # The policy reads the weight of the state, two floats, and neither its record of
    # rewards nor the hyperparameters of the agent.
    assert sizes == [8]


def test_a_damaged_policy_is_refused_and_named(
    learner: tuple[Path, Any], tmp_path: Path
) -> None:
    content, weights = learner[0].read_bytes(), eqrl.load_policy(learner[0])._weights
    path = tmp_path / "damaged.policy"
    generator = np.random.default_rng(0)
    within: list[int] = []
    with zipfile.ZipFile(learner[0]) as archive:
        for member in archive.infolist():
            begin = member.header_offset + 30 + len(member.filename)
            within += range(begin, begin + member.file_size)
    outside = sorted({*range(len(content))} - {*within})
    # The last bytes within are the weight of the policy.
    for place in (*within[-8:], *generator.choice(within, 40), *outside[::5]):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(flipped)
        if place in within:
            with pytest.raises(ValueError, match=r"damaged\.policy` is") as caught:
                eqrl.load_policy(path)
            assert "\n" not in str(caught.value)
            continue
        # Of the archive's own bytes some, such as dates, are not needed.
        try:
            policy = eqrl.load_policy(path)
        except ValueError as error:
            assert "damaged.policy` " in str(error)
        else:
            assert eqx.tree_equal(policy._weights, weights)
    for cut in (0, 5, 14, 80, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=r"damaged\.policy` is"):
            eqrl.load_policy(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("policy.json", '{"format": 2}')
    with pytest.raises(ValueError, match=r"format 2 .* update eqrl"):
        eqrl.load_policy(path)
    with pytest.raises(ValueError, match=r"absent\.policy` cannot be read: No such"):
        eqrl.load_policy(tmp_path / "absent.policy")


def test_what_cannot_be_exported_or_loaded_is_named(
    learner: tuple[Path, Any], tmp_path: Path
) -> None:
    path, state = learner
    wide = eqrl.EnvSpec(observation_size=3, action_size=1)
    with pytest.raises(ValueError, match="observations of size 3"):
        eqrl.export_policy(tmp_path / "x", Learner(), state, wide)
    two = eqrl.EnvSpec(observation_size=2, action_size=2)
    with pytest.raises(ValueError, match=r"actions of shape \(1,\)"):
        eqrl.export_policy(tmp_path / "x", Learner(), state, two)
    assert not list(tmp_path.iterdir())
    with (
        jax.enable_x64(True),
        pytest.raises(ValueError, match="exported with `jax_enable_x64=False`"),
    ):
        eqrl.load_policy(path)
    for seed in (-1, 2**32, True):
        with pytest.raises(ValueError, match=f"`seed={seed}` must be"):
            eqrl.load_policy(path, seed=seed)


def _fixed_skill(agent: Any, state: Any) -> tuple[Any, Any]:
    return eqrl.fix_skill(agent, state, jnp.eye(3)[1])


def _as_it_is(agent: Any, state: Any) -> tuple[Any, Any]:
    return agent, state


_ACTOR, _CRITIC = Gaussian((8,)), Critic((8,))
_SAC = eqrl.SAC(make_actor=_ACTOR, make_critic=_CRITIC)
_TD3 = eqrl.TD3(make_actor=Deterministic((8,)), make_critic=_CRITIC)
_TAAC = eqrl.TAAC(make_actor=_ACTOR, make_critic=_CRITIC, max_repeat_steps=3)


@pytest.mark.long
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("agent", "of_one"),
    [
        pytest.param(_SAC, _as_it_is, id="sac"),
        pytest.param(_TD3, _as_it_is, id="td3"),
        pytest.param(eqrl.Normalized(_SAC), _as_it_is, id="normalized"),
        pytest.param(_TAAC, _as_it_is, id="taac"),
        pytest.param(eqrl.diayn(_SAC, num_skills=3), _fixed_skill, id="skill"),
    ],
)
def test_an_exported_episode_is_that_of_the_agent_bit_for_bit(
    agent: Any,
    of_one: Callable[[Any, Any], tuple[Any, Any]],
    tmp_path: Path,
    getkey: GetKey,
) -> None:
    env = eqrl.envs.Point(max_steps=20)
    # As if it had learned: statistics at their start would normalize nothing.
    state = jax.tree.map(
        lambda x: 1.1 * x + 0.1 if eqx.is_inexact_array(x) else x,
        eqx.filter_jit(agent.init)(env.spec, key=getkey()),
    )
    agent, state = of_one(agent, state)
    eqrl.export_policy(tmp_path / "policy", agent, state, env)
    policy = eqrl.load_policy(tmp_path / "policy")

    begin, act = eqx.filter_jit(agent.begin), eqx.filter_jit(agent.act)
    step = eqx.filter_jit(env.step)
    env_state, observation = env.reset(key=getkey())
    index, key = jnp.zeros((), int), getkey()
    memory = begin(state, env.spec, index=index, key=key)
    actions = []
    for _ in range(20):
        # Greedy actions draw nothing, so that any key does.
        act_key, step_key = getkey(), getkey()
        exported = policy.act(np.asarray(observation))
        action, memory, _ = act(state, memory, observation, mode="greedy", key=act_key)
        np.testing.assert_array_equal(exported, np.asarray(action), strict=True)
        actions.append(tuple(exported.tolist()))
        env_state, outcome = step(env_state, action, key=step_key)
        observation = outcome.observation
    assert len(set(actions)) > 1


_ALONE = """
import sys

import numpy as np

import exported_policy

policy = exported_policy.load_policy("learner.policy")
print(policy.act(np.array([0.5, -1.0])).tolist())
heavy = ("eqrl", "equinox", "brax", "gymnax", "optax", "jaxtyping", "orbax", "tests")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.long
def test_a_copy_of_one_module_loads_a_policy_without_eqrl(
    learner: tuple[Path, Any], tmp_path: Path
) -> None:
    shutil.copy(exported_policy.__file__, tmp_path)
    shutil.copy(learner[0], tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", _ALONE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    action = eqrl.load_policy(learner[0]).act(_OBSERVATIONS[0])
    assert result.stdout.splitlines() == [str(action.tolist()), "[]"], result.stderr
