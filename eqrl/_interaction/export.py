import os
from collections.abc import Callable, Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, UInt32

from .._agents.base import AbstractAgent
from .._pytree.fields import is_key
from .._storage.files import __version__, atomic_write
from .._types.custom_types import (
    EnvState,
    Extras,
    Memory,
    Mode,
    Observation,
    PyTree,
    State,
)
from .._types.data import Action, EnvSpec
from ..envs import AbstractEnv
from .exported_policy import write_policy
from .fit import check_fits
from .numpy_programs import numpy_members


# Folded into the seed's key: for draws once per episode, and for each action.
_EPISODES, _STEPS = 0, 1

_PLATFORMS = {"cpu", "cuda", "rocm", "tpu"}

# From arrays, as a file can hold them, to the tree that they were taken from.
_Restore = Callable[[Sequence[Array]], PyTree]


def export_policy(
    path: str | os.PathLike[str],
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState] | EnvSpec,
    *,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
) -> None:
    """Writes a policy into one file, which `load_policy` loads without its agent.

    ```python
    eqrl.export_policy("walker.policy", agent, state, env)
    # In another process, without the environment and the agent's class:
    policy = eqrl.load_policy("walker.policy")
    action = policy.act(observation)  # In [-1, 1], or a number from 0.
    # Or without JAX:
    policy = eqrl.numpy_policy.load_policy("walker.policy")
    ```

    The file holds compiled forms of `agent.begin` and `agent.act`, as `jax.export`
    serializes them, and the arrays of the state that they read: the actor and the
    normalizer, not the critics, the optimizers or the replay. JAX guarantees that its
    releases of the next six months can read the file. It also holds them as operations
    of NumPy, for `numpy_policy.load_policy`, which any version of NumPy can read. If a
    custom network or agent uses an operation that NumPy policies do not support, only
    that form is missing, and its `load_policy` names the operation.

    Actions are those of the agent, in [-1, 1], which an environment's adapter rescales.
    To step a simulator with them, rescale them to its bounds likewise.

    **Arguments:**

    - `path`: the file to write; an existing one is replaced, and missing folders are
        created.
    - `agent`, `state`: the agent that acts, and its state. Take one from a stack with
        `member`, and one skill of an agent with skills with `fix_skill`; otherwise a
        skill is drawn at the beginning of each episode, with `EvenOneHotSkills` always
        the first.
    - `env`: the environment, or its `spec`.
    - `platforms`: where the policy can be loaded, by JAX's names.

    Raises a `ValueError` if the state does not fit the agent and the environment.
    """
    if isinstance(platforms, str) or not 0 < len({*platforms} & _PLATFORMS) == len(
        platforms
    ):
        raise ValueError(
            f"`platforms={platforms!r}` must be one or several of "
            f"{', '.join(map(repr, sorted(_PLATFORMS)))}, each once, in a tuple."
        )
    spec = env if isinstance(env, EnvSpec) else env.spec
    hint = "Export one agent with its own state; take it from a stack by `eqrl.member`."
    check_fits(agent, state, spec, hint=hint)
    weights, restore = _as_data((agent, state))
    traced = {
        name: (jax.jit(program), arguments)
        for name, (program, arguments) in _programs(weights, restore, spec).items()
    }
    programs = {
        name: jax.export.export(program, platforms=tuple(platforms))(
            weights, *arguments
        )
        for name, (program, arguments) in traced.items()
    }
    members = {name: bytes(program.serialize()) for name, program in programs.items()}
    members |= numpy_members(
        {
            name: program.trace(weights, *arguments).jaxpr
            for name, (program, arguments) in traced.items()
        },
        weights,
        spec.observation_struct,
    )
    # The weights are the first arguments of each program, so the indices of those that
    # JAX did not drop as unused mean the same in all of them.
    used = set().union(*(program.module_kept_var_idx for program in programs.values()))
    for index, array in enumerate(weights):
        if index in used:
            members[f"weights/{index}"] = np.asarray(array).tobytes()
    header = {
        "eqrl": __version__,
        "jax": jax.__version__,
        "x64": jax.config.read("jax_enable_x64"),
    }
    with atomic_write(Path(path)) as partial:
        write_policy(partial, header, members)


def _as_data(tree: PyTree) -> tuple[list[Array], _Restore]:
    """The arrays of a tree, and a function that rebuilds the tree from them.

    Typed keys, which a file cannot hold, are replaced by their data.
    """
    arrays, static = eqx.partition(tree, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    kinds = [jr.key_impl(leaf) if is_key(leaf) else None for leaf in leaves]

    def restore(data: Sequence[Array]) -> PyTree:
        leaves = [
            leaf if kind is None else jr.wrap_key_data(leaf, impl=kind)
            for leaf, kind in zip(data, kinds, strict=True)
        ]
        return eqx.combine(jax.tree.unflatten(structure, leaves), static)

    data = [jr.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf) for leaf in leaves]
    return data, restore


def _programs(
    weights: list[Array], restore: _Restore, spec: EnvSpec
) -> dict[str, tuple[Callable[..., PyTree], tuple[PyTree, ...]]]:
    """Each exported function, and the shapes of its arguments after the weights.

    They take and return lists of arrays, since a file cannot name a class.
    """
    # Known once `begin` is traced, which happens before `act` needs it.
    restore_memory: list[_Restore] = []

    def begin(
        weights: list[Array], seed: UInt32[Array, ""], episode: UInt32[Array, ""]
    ) -> list[Array]:
        agent, state = restore(weights)
        key = jr.fold_in(jr.fold_in(jr.key(seed), _EPISODES), episode)
        memory = agent.begin(state, spec, index=jnp.zeros((), int), key=key)
        data, restore_this = _as_data(memory)
        restore_memory.append(restore_this)
        return data

    number = jax.ShapeDtypeStruct((), np.uint32)
    memory_shapes = jax.eval_shape(begin, weights, number, number)

    def act_in(mode: Mode) -> Callable[..., tuple[Action, list[Array]]]:
        def act(
            weights: list[Array],
            memory: list[Array],
            observation: Observation[Array, " obs"],
            seed: UInt32[Array, ""],
            step: UInt32[Array, ""],
        ) -> tuple[Action, list[Array]]:
            agent, state = restore(weights)
            before = restore_memory[0](memory)
            key = jr.fold_in(jr.fold_in(jr.key(seed), _STEPS), step)
            action, after, _ = agent.act(state, before, observation, mode=mode, key=key)
            return action, _as_data(after)[0]

        return act

    shapes = (memory_shapes, spec.observation_struct, number, number)
    return {
        "begin": (begin, (number, number)),
        "greedy": (act_in("greedy"), shapes),
        "sample": (act_in("sample"), shapes),
    }
