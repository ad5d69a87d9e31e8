"""Exported policies that act without JAX, as those that act with it."""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

import eqrl
from eqrl import numpy_policy
from eqrl._interaction.numpy_programs import numpy_members
from tests.agents_under_test import ALL_AGENTS, HIDDEN, env_of, sac
from tests.toy import Learner


_SPEC = eqrl.EnvSpec(observation_size=2, action_size=1)
_MODES: tuple[Literal["greedy", "sample"], ...] = ("greedy", "sample")


def _export(path: Path, agent: Any) -> None:
    """Exports an agent as if it had learned, without compiling its `init`."""
    spec = env_of(agent).spec
    shapes = eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))
    generator = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        drawn = generator.normal(size=leaf.shape)
        # Others than weights may be variances or counts.
        drawn = drawn / np.sqrt(leaf.shape[0]) if leaf.ndim == 2 else np.abs(drawn)
        return jnp.asarray(np.ceil(drawn) if leaf.dtype == np.int32 else drawn).astype(
            leaf.dtype
        )

    eqrl.export_policy(path, agent, jax.tree.map(fill, shapes), spec)


def _actions(policy: Any) -> list[np.ndarray]:
    """Those of three episodes."""
    generator = np.random.default_rng(1)
    actions = []
    for _ in range(3):
        policy.reset()
        for _ in range(6):
            # Wide enough that the best of several choices changes.
            observation = 5 * generator.normal(size=policy.observation_size)
            actions.append(policy.act(observation))
    return actions


def _assert_equal_policies(path: Path) -> None:
    for mode in _MODES:
        expected = _actions(eqrl.load_policy(path, mode=mode, seed=3))
        actions = _actions(numpy_policy.load_policy(path, mode=mode, seed=3))
        for action, other in zip(actions, expected, strict=True):
            assert type(action) is np.ndarray
            assert (action.dtype, action.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(action, other, atol=1e-5)
        assert len({action.tobytes() for action in actions}) > 1


# Among them: both kinds of actions, memory, statistics, and skills.
_SOME = ("TAAC-options", "Normalized(DIAYN(SAC))-sphere", "PQN")


@pytest.mark.parametrize(
    "name",
    [
        name if name in _SOME else pytest.param(name, marks=pytest.mark.long)
        for name in ALL_AGENTS
    ],
)
def test_a_policy_without_jax_acts_as_that_with_jax(name: str, tmp_path: Path) -> None:
    _export(tmp_path / "policy", ALL_AGENTS[name])
    _assert_equal_policies(tmp_path / "policy")


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"residual": True, "activation": jax.nn.gelu},
        {"layer_norm": True, "activation": jnp.tanh},
        {"encoder": eqrl.nn.Convolution((3, 5, 2), (2, 3), kernels=2, strides=(1, 2))},
    ],
)
@pytest.mark.parametrize("kind", ["Gaussian", "Deterministic", "Normal", "Choice", "Q"])
def test_all_networks_of_the_library_act_without_jax(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    agents: dict[str, Callable[[], Any]] = {
        "Gaussian": lambda: eqrl.SAC(make_actor=eqrl.nn.Gaussian(HIDDEN, **options)),
        "Deterministic": lambda: eqrl.TD3(
            make_actor=eqrl.nn.Deterministic(HIDDEN, **options)
        ),
        "Normal": lambda: eqrl.PPO(make_actor=eqrl.nn.Normal(HIDDEN, **options)),
        "Choice": lambda: eqrl.PPO(make_actor=eqrl.nn.Choice(HIDDEN, **options)),
        "Q": lambda: eqrl.DQN(
            make_network=eqrl.nn.ActionValues(
                (*HIDDEN, *HIDDEN), dueling=True, **options
            )
        ),
    }
    is_discrete = kind in ("Choice", "Q")
    space = eqrl.spaces.Discrete(3) if is_discrete else eqrl.spaces.Box(2)
    spec = eqrl.EnvSpec(observation_size=32, action=space)
    agent = agents[kind]()
    state = eqx.filter_jit(agent.init)(spec, key=jr.key(0))
    eqrl.export_policy(tmp_path / "policy", agent, state, spec)
    _assert_equal_policies(tmp_path / "policy")


@pytest.mark.long
def test_a_fixed_skill_acts_without_jax(tmp_path: Path) -> None:
    env = eqrl.envs.Point()
    agent = eqrl.diayn(sac(), num_skills=3)
    state = eqx.filter_jit(agent.init)(env.spec, key=jr.key(0))
    agent, state = eqrl.fix_skill(agent, state, jnp.eye(3)[1])
    eqrl.export_policy(tmp_path / "policy", agent, state, env)
    _assert_equal_policies(tmp_path / "policy")


_ODD = np.array(
    [0.0, -0.0, 1, -1, 2.5, -2.5, 0.49999997, np.inf, -np.inf, np.nan, 3e9, -3e9, 1e-8],
    np.float32,
)


def _elementwise(x: Float[Array, " odd"]) -> list[Array]:
    integers = lax.iota(jnp.int32, 5) * 3 - 7
    divisors = jnp.array([2, -2, 3, -2, 0])
    functions = (jnp.exp, jnp.log1p, lax.rsqrt, lax.erf, lax.erfc, lax.erf_inv, jnp.sin)
    functions += (jax.nn.softplus, jax.nn.gelu, jax.nn.sigmoid, jnp.arctan, jnp.sign)
    functions += (jnp.round, lax.round, jnp.isnan, jnp.argmax, jnp.sort, jnp.argsort)
    functions += (lambda x: x.astype(jnp.int32), lambda x: x.astype(jnp.uint8))
    functions += (lambda x: lax.bitcast_convert_type(x, jnp.uint8), lambda x: x**-2)
    return [
        *(function(x) for function in functions),
        lax.div(integers, jnp.where(divisors == 0, 1, divisors)),
        lax.rem(integers, divisors),
        integers * 1_000_000_007,
        jnp.sum(integers),
        jnp.any(integers > 0),
        lax.shift_right_logical(integers, 3),
        jax.nn.one_hot(integers[3], 4),
    ]


def _indices(x: Float[Array, "3 4"], index: UInt32[Array, ""]) -> list[Array]:
    i = index.astype(jnp.int32)
    far = i + 9
    rows = jnp.stack([i, i, far])
    return [
        x[i, 1:],
        x[:, ::-2],
        jnp.take(x, rows, axis=1),
        jnp.take(x, rows, axis=0, mode="clip"),
        jax.vmap(lambda row, place: row[place])(x, rows),
        jax.vmap(lambda row, place: row.at[place].set(0.0))(x, rows),
        x.at[rows].add(1.0),
        x.at[i, rows].set(3.0),
        lax.dynamic_slice(x, (i, far), (2, 2)),
        lax.dynamic_update_slice(x, x[:2, :2], (i, far)),
        lax.pad(x, 0.0, ((1, -1, 1), (-1, 0, 2))),
        lax.cumsum(x, 0, reverse=True),
        *lax.sort((jnp.sign(x[0]), x[1], x[2]), num_keys=2),
        *lax.unstack(x, axis=1),
        lax.select_n(rows % 3, x[:, 0], x[:, 1], x[:, 2]),
        jnp.concatenate([x, jnp.flip(x, 0)], 1),
        jnp.tile(x, (2, 1)),
    ]


def _loops(x: Float[Array, "3 4"], index: UInt32[Array, ""]) -> list[Array]:
    def add(total: Array, row: Array) -> tuple[Array, Array]:
        return 0.5 * total + row, total

    functions = [lambda y: y, lambda y: 2 * y, lambda y: 3 * y]
    return [
        *lax.scan(add, x[0], x),
        *lax.scan(add, x[0], x, reverse=True),
        lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: jnp.abs(c) + c**2 + 1, x),
        lax.switch(index.astype(jnp.int32) + 5, functions, x),
        lax.cond(index > 0, jnp.sin, jnp.cos, x),
    ]


def _products(x: Float[Array, "2 3 4"], image: Float[Array, "1 5 6 4"]) -> list[Array]:
    order = ("NHWC", "HWIO", "NHWC")
    filters = jnp.sin(jnp.arange(72.0).reshape(3, 2, 2, 6))
    wide = jnp.sin(jnp.arange(144.0).reshape(3, 2, 4, 6))
    grouped: dict[str, Any] = {"dimension_numbers": order, "feature_group_count": 2}
    dilated: dict[str, Any] = {"dimension_numbers": order, "lhs_dilation": (2, 1)}
    dilated["rhs_dilation"] = (2, 3)
    return [
        jnp.einsum("abc,abd->acd", x, x),
        jnp.einsum("abc,dbc->ad", x, x),
        x @ x[0].T,
        lax.conv_general_dilated(image, filters, (1, 2), "SAME", **grouped),
        lax.conv_general_dilated(image, wide, (2, 1), ((1, 0), (-1, 2)), **dilated),
        eqx.nn.MaxPool2d(3, 2, padding=1)(-jnp.abs(image[0])),
        eqx.nn.AvgPool2d(2, 2)(image[0]),
    ]


def _drawn(data: UInt32[Array, " 2"]) -> list[Array]:
    keys = jr.split(jr.wrap_key_data(data), 8)
    return [
        jr.normal(keys[0], (64,)),
        jr.randint(keys[1], (5,), 0, 7),
        jr.categorical(keys[2], jnp.zeros(3)),
        jr.permutation(keys[3], 7),
        jr.bits(keys[4], (3,), "uint8"),
        jax.vmap(lambda key: jr.uniform(key, (3,)))(keys[5:7]),
        jr.key_data(jr.fold_in(keys[7], 7)),
        jr.key_data(jr.key(lax.bitcast_convert_type(data[0], jnp.int32))),
        jr.uniform(lax.cond(data[1] > 0, lambda: keys[0], lambda: keys[1])),
    ]


def _many(arguments: Sequence[Array]) -> list[Array]:
    odd, x, index, data, image = arguments
    made = [*_elementwise(odd), *_indices(x[0], index), *_loops(x[0], index)]
    return [*made, *_products(x, image), *_drawn(data)]


def test_operations_are_those_of_jax() -> None:
    generator = np.random.default_rng(0)
    arguments = [
        _ODD,
        generator.normal(size=(2, 3, 4)).astype(np.float32),
        np.array(1, np.uint32),
        np.array([2**31 + 5, 7], np.uint32),
        generator.normal(size=(1, 5, 6, 4)).astype(np.float32),
    ]
    many = jax.jit(_many)
    traced = many.trace(arguments).jaxpr
    size = jax.ShapeDtypeStruct((2,), np.float32)
    members = numpy_members({"begin": traced}, (), size)
    program = json.loads(members["numpy.json"])["begin"]
    with np.errstate(all="ignore"):
        results = numpy_policy._Program(program, members)(*arguments)
    expected = many(arguments)
    for number, (result, other) in enumerate(zip(results, expected, strict=True)):
        assert (result.dtype, result.shape) == (other.dtype, other.shape), number
        np.testing.assert_allclose(
            result, other, rtol=2e-5, atol=2e-6, err_msg=str(number)
        )


class _Waves(eqx.Module):
    """The spectrum of an observation."""

    def __call__(self, x: Float[Array, " obs"]) -> Float[Array, " obs"]:
        return jnp.abs(jnp.fft.fft(x))


class _WavyDistribution(eqrl.nn.AbstractDistribution):
    """Only a sample needs the waves."""

    waves: _Waves
    observation: Float[Array, " obs"]

    @property
    def space(self) -> eqrl.spaces.Box:
        return eqrl.spaces.Box(1)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        del key
        # Within a loop, whose program is one of its own.
        return lax.map(self.waves, self.observation[None])[0, :1]

    def mode(self) -> Float[Array, " act"]:
        # No action depends on these.
        self.waves(self.observation)
        return self.observation[:1]


class _Wavy(eqrl.AbstractMarkovAgent[Any]):
    """Its state is a network."""

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> Any:
        del spec, key
        return _Waves()

    def policy(self, state: Any) -> Any:
        return lambda observation: _WavyDistribution(state, observation)

    def update(self, state: Any, batch: Any, *, step: Any, key: Any) -> Any:
        del batch, step, key
        return state, {}


def test_an_operation_that_is_missing_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "wavy.policy"
    eqrl.export_policy(path, _Wavy(), _Waves(), _SPEC)
    assert numpy_policy.load_policy(path).act(np.ones(2)).tolist() == [1.0]
    message = r"wavy\.policy` .* `fft`, .* `_Waves\.__call__` \(line \d+ of test_numpy"
    with pytest.raises(ValueError, match=message + r".*`eqrl\.load_policy`\.$"):
        numpy_policy.load_policy(path, mode="sample")
    assert eqrl.load_policy(path, mode="sample").act(np.ones(2)).tolist() == [2.0]


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numpy") / "learner.policy"
    state = Learner().init(_SPEC, key=jr.key(0))
    eqrl.export_policy(path, Learner(), state, _SPEC)
    return path


def _rewritten(path: Path, to: Path, change: Callable[[Any, Any], None]) -> Path:
    """A copy of a policy with other members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members["policy.json"])
    change(header, members)
    members["policy.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(to, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return to


def _replace(old: bytes, new: bytes) -> Callable[[Any, Any], None]:
    def change(header: Any, members: Any) -> None:
        del header
        assert old in members["numpy.json"]
        members["numpy.json"] = members["numpy.json"].replace(old, new)

    return change


def test_files_and_arguments_that_do_not_fit_are_named(
    learner: Path, tmp_path: Path
) -> None:
    path = tmp_path / "changed.policy"
    for change, message in (
        (lambda header, _: header["members"].remove("numpy.json"), "export it again"),
        (_replace(b'"format": 1', b'"format": 2'), "format 2 of policies for NumPy"),
        (_replace(b'"add"', b'"later"'), "has the operation 'later', which this"),
        (lambda header, _: header.update(format=2), "format 2 of exported policies"),
    ):
        _rewritten(learner, path, change)
        with pytest.raises(ValueError, match=rf"changed\.policy` .*{message}"):
            numpy_policy.load_policy(path, mode="sample")
    path.write_bytes(learner.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"changed\.policy` is damaged"):
        numpy_policy.load_policy(path)
    with pytest.raises(ValueError, match=r"absent` cannot be read: No such"):
        numpy_policy.load_policy(tmp_path / "absent")
    for seed in (-1, 2**32, True):
        with pytest.raises(ValueError, match=f"`seed={seed}` must be"):
            numpy_policy.load_policy(learner, seed=seed)
    for wrong in (np.zeros(3), np.zeros((1, 2)), np.array(["a", "b"])):
        with pytest.raises(ValueError, match="`observation` has the shape"):
            numpy_policy.load_policy(learner).act(wrong)


_ALONE = """
import sys

import numpy as np

before = set(sys.modules)
import numpy_policy

policy = numpy_policy.load_policy("learner.policy", mode="sample", seed=3)
print([policy.act(np.array([0.5, -1.0])).tolist() for _ in range(3)])
found = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(found - set(sys.stdlib_module_names)))
"""


def test_a_copy_of_one_module_acts_where_there_is_only_numpy(
    learner: Path, tmp_path: Path
) -> None:
    # Where eqrl is installed, it is imported by this name too.
    assert numpy_policy.__name__ == "eqrl.numpy_policy"
    shutil.copy(numpy_policy.__file__, tmp_path)
    shutil.copy(learner, tmp_path)
    for folder in Path(np.__file__).parents[1].glob("numpy*"):
        (tmp_path / folder.name).symlink_to(folder)
    # With `-S` nothing else that is installed can be imported.
    result = subprocess.run(
        [sys.executable, "-S", "-P", "-W", "error", "-c", _ALONE],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    policy = numpy_policy.load_policy(learner, mode="sample", seed=3)
    actions = [policy.act(np.array([0.5, -1.0])).tolist() for _ in range(3)]
    expected = [str(actions), "['numpy_policy']"]
    assert result.stdout.splitlines() == expected, result.stderr


def test_the_policies_of_the_results_act_without_jax() -> None:
    files = Path(__file__).parents[2].glob("docs/results/policies/*.policy")
    assert len([numpy_policy.load_policy(file) for file in files]) == 20
