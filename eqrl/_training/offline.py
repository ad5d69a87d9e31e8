"""Training from a data set alone: checks of the data, and replays that hold it."""

import dataclasses
from collections.abc import Iterator
from typing import overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, Shaped

from .._agents.base import AbstractAgent, AnyAgent, after_observe
from .._interaction.fit import check_numbers
from .._pytree.control_flow import filter_scan
from .._pytree.fields import NonNegativeInt, PositiveInt, checked
from .._pytree.tree import check_same_shapes, tree_copy
from .._types.custom_types import Extras, Memory, PyTree, State
from .._types.data import AnyTransition, Discrete, EnvSpec, Transition
from .host_loop import Callbacks, Reached, drive
from .iteration import (
    Progress,
    check_finite_agent,
    empty_row,
    names_of_updates,
    restore_agent,
    update,
)
from .replay import AbstractReplay, AnyReplay, LatestRows, ReplayBuffer
from .rows import OfflineSolution, append_row, what_failed
from .schedule import Counts, first_counts
from .trainer import Ran


@overload
def train_offline(
    agent: AbstractAgent[State, Memory, None],
    transitions: AnyTransition,
    spec: EnvSpec,
    *,
    num_updates: int,
    key: PRNGKeyArray,
    batch_size: int = 256,
    log_every: int = 1_000,
    initial: OfflineSolution[State] | None = None,
    callback: Callbacks[OfflineSolution[State]] | None = None,
) -> OfflineSolution[State]: ...


@overload
def train_offline(
    agent: AbstractAgent[State, Memory, Extras],
    transitions: Transition[Extras],
    spec: EnvSpec,
    *,
    num_updates: int,
    key: PRNGKeyArray,
    batch_size: int = 256,
    log_every: int = 1_000,
    initial: OfflineSolution[State] | None = None,
    callback: Callbacks[OfflineSolution[State]] | None = None,
) -> OfflineSolution[State]: ...


@checked
def train_offline(
    agent: AbstractAgent[State, Memory, Extras],
    transitions: AnyTransition,
    spec: EnvSpec,
    *,
    num_updates: NonNegativeInt,
    key: PRNGKeyArray,
    batch_size: PositiveInt = 256,
    log_every: PositiveInt = 1_000,
    initial: OfflineSolution[State] | None = None,
    callback: Callbacks[OfflineSolution[State]] | None = None,
) -> OfflineSolution[State]:
    """Trains one agent on a data set, without an environment.

    The agent first observes all transitions once, as wrappers like `eqrl.Normalized`
    require, and is then updated on batches from a replay of them.

    **Arguments:**

    - `agent`: any agent that learns from a replay, except with `SMERL`, which needs the
        returns of whole episodes.
    - `transitions`: the data, with one leading axis, such as those that
        `eqrl.transitions_from_arrays` makes. For an agent that learns from several
        steps in a row, the steps of an episode must follow each other. Extras are
        needed if the agent stores some, and are ignored otherwise.
    - `spec`: the `spec` of the environment that produced them: `env.spec`, or one made
        by hand, as in `eqrl.EnvSpec(observation_size=17, action_size=6)`.
    - `num_updates`: how many updates to make, beyond those of `initial`.
    - `key`: the key of the whole training. To resume, pass the same one again.
    - `batch_size`: elements of a batch, each of the agent's `sequence_length`
        transitions.
    - `log_every`: updates in a row of the metrics. It also determines how often
        `callback` is called and Ctrl-C is checked for. It does not affect the result.
    - `initial`: the solution of an earlier call, to resume from: with the same data,
        key and hyperparameters, the state is that of one longer call, bit for bit, and
        so are the rows of the metrics if the earlier call ended with a whole one. The
        data are not observed again. It stays usable.
    - `callback`: called as `callback(step, metrics, solution)` after each row, where
        steps are updates; or several of them, as in `eqrl.train`, such as an
        `eqrl.Evaluations`. Training ends with this row if one returns true. Copy what
        you keep of the state (`eqrl.tree_copy`): it is donated to the next row.

    **Returns:**

    An `OfflineSolution`, with all metrics of the agent's `update`, also those of how it
    would act, such as `epsilon` of a `DQN`.

    The transitions must fit the agent and `spec`, with finite numbers and actions in
    [-1, 1]; otherwise a `ValueError` is raised. Raises a `NonFiniteError` if the result
    of an update is not finite, and `TrainingInterrupted` after Ctrl-C, SIGTERM or
    SIGHUP; both hold the solution so far.
    """
    if agent.sequence_length is None:
        raise ValueError(
            f"`{type(agent).__name__}` learns on-policy, from steps that it has just "
            "taken itself, so not from a data set; take an agent that learns from a "
            "replay, such as `eqrl.SAC` or, for discrete actions, `eqrl.DQN`."
        )
    check_numbers(agent, spec)
    data = fitting_transitions(agent, transitions, spec)
    replay = ReplayBuffer(data.timestep.shape[0], batch_size, agent.sequence_length)
    stored, counts = fill_replay(replay, data)
    if initial is None:
        state, metrics = _begin(agent, spec, data, jr.fold_in(key, 0)), {}
    else:
        expected = eqx.filter_eval_shape(agent.init, spec, key=key)
        check_same_shapes("initial", expected, initial.state)
        state, metrics = tree_copy(initial.state), initial.metrics
    check_finite_agent(state)
    solution = OfflineSolution(state=state, metrics=metrics)
    done = int(metrics["step"][-1]) if metrics else 0
    # The replay holds them; a second copy of large data might not fit in memory.
    del data
    run_key, end = jr.fold_in(key, 1), done + num_updates

    def rows() -> Iterator[Reached]:
        nonlocal solution, stored, counts, done
        yield Reached(done, None, solution)
        while done < end:
            # Rows end where they would in a single call.
            size = min(log_every - done % log_every, end - done)
            number = jnp.asarray(done, int)
            counts = eqx.tree_at(lambda counts: counts.updates, counts, number)
            kept = (agent, replay, counts, jnp.asarray(size, int), run_key)
            state, stored, ran = _update(kept, solution.state, stored)
            if ran.row.failure.in_agent:
                solution = OfflineSolution(state=state, metrics=solution.metrics)
                yield Reached(done, None, solution, what_failed(ran))
                return
            done += size
            row = {name: np.asarray(value) for name, value in ran.metrics.items()}
            solution = OfflineSolution(
                state=state, metrics=append_row(solution.metrics, done, row)
            )
            yield Reached(done, row, solution)

    return drive(rows(), callback=callback, counted="update")


@eqx.filter_jit
def _begin(
    agent: AbstractAgent[State, Memory, Extras],
    spec: EnvSpec,
    data: AnyTransition,
    key: PRNGKeyArray,
) -> State:
    state = agent.init(spec, key=key)
    return after_observe(agent, state, agent.observe(state, data))


@eqx.filter_jit(donate="all-except-first")
def _update(
    kept: tuple[AnyAgent, AnyReplay, Counts, Int[Array, ""], PRNGKeyArray],
    state: PyTree,
    stored: PyTree,
) -> tuple[PyTree, PyTree, Ran]:
    """Makes updates; returns the state from before them if one is not finite."""
    agent, replay, counts, num_updates, key = kept
    row = empty_row(names_of_updates(agent, replay, state, stored, counts, key=key), [])
    progress = update(
        agent,
        replay,
        Progress(agent=state, actors=None, replay=stored, row=row),
        counts,
        num_steps=0,
        num_updates=num_updates,
        mapped=False,
        key=key,
    )
    progress = restore_agent(progress, state, ends_row=jnp.array(True), num_steps=0)
    of_updates = progress.row.of_updates
    ran = Ran(
        row=progress.row, metrics=of_updates.result(), diverged=of_updates.diverged()
    )
    return progress.agent, progress.replay, ran


Rows = Shaped[Array | np.ndarray, "rows ..."]


def transitions_from_arrays(
    *,
    observation: Rows,
    action: Rows,
    reward: Rows,
    next_observation: Rows,
    terminated: Rows,
    truncated: Rows | None = None,
    timestep: Rows | None = None,
) -> Transition[None]:
    """Converts a data set to transitions, in the types that agents learn from.

    All arrays begin with the same axis, one row for each step. If an agent learns from
    several steps in a row, as `eqrl.DQN(return_steps=3)` does, the steps of an episode
    must follow each other. If rows of several environments alternate, reshape each
    array as `x.reshape(-1, num_envs, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)`.

    **Arguments:**

    - `observation`, `next_observation`: before and after the step, never the one after
        a reset; other shapes are flattened. `uint8` and `bool` are kept, for a `spec`
        with this `observation_dtype`; all other types become floats.
    - `action`: vectors in [-1, 1]; or integers, with no further axis.
    - `reward`: the reward of the step, a scalar or a vector.
    - `terminated`: whether the step ended the episode in a state without value; bools,
        or 0 and 1, of shape `(rows,)`.
    - `truncated`: whether a time limit, or the end of the recording, ended the episode;
        a terminated step is not truncated. `None` truncates wherever the next row does
        not begin with `next_observation`, and in the last row.
    - `timestep`: steps of the episode before this one. `None` counts them, from each
        row that does not begin with the `next_observation` of the row before.

    **Returns:**

    Transitions with one leading axis `rows`, for `eqrl.train_offline`.

    Raises a `ValueError` if the numbers of rows differ, or if flags have another shape
    or are `nan`.
    """
    given = {
        "observation": observation,
        "action": action,
        "reward": reward,
        "next_observation": next_observation,
        "terminated": terminated,
        "truncated": truncated,
        "timestep": timestep,
    }
    lengths = {name: len(x) for name, x in given.items() if x is not None}
    num_rows = lengths["observation"]
    if num_rows == 0 or set(lengths.values()) != {num_rows}:
        named = ", ".join(f"`{name}` {length}" for name, length in lengths.items())
        raise ValueError(
            f"The arrays have different numbers of rows, or none: {named}. Each has "
            "one row for each step."
        )
    observation, next_observation = (
        np.asarray(x).reshape(num_rows, -1) for x in (observation, next_observation)
    )
    dtype = observation.dtype
    if dtype != next_observation.dtype or dtype not in (np.uint8, np.bool_):
        # Cast before they are compared: numbers of different types are rarely equal.
        dtype = jnp.result_type(float)
    observation, next_observation = (
        x.astype(dtype) for x in (observation, next_observation)
    )
    terminated = _flags("terminated", terminated)
    goes_on = np.all(next_observation[:-1] == observation[1:], axis=-1)
    if truncated is None:
        truncated = np.append(~goes_on, True)
    truncated = _flags("truncated", truncated) & ~terminated
    if timestep is None:
        row = np.arange(num_rows)
        begins = np.append(True, (terminated | truncated)[:-1] | ~goes_on)
        timestep = row - np.maximum.accumulate(np.where(begins, row, 0))
    action = np.asarray(action)
    is_choice = action.ndim == 1 and np.issubdtype(action.dtype, np.integer)
    return Transition(
        observation=jnp.asarray(observation),
        action=jnp.asarray(action, int if is_choice else float),
        reward=jnp.asarray(reward, float),
        next_observation=jnp.asarray(next_observation),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        timestep=jnp.asarray(timestep, int),
        state_descriptor=None,
        next_state_descriptor=None,
        extras=None,
    )


def _flags(name: str, values: Rows) -> Bool[np.ndarray, " rows"]:
    given = np.asarray(values)
    if given.ndim != 1:
        raise ValueError(
            f"`{name}` has the shape {given.shape}; give one flag for each row, of "
            f"shape ({len(given)},), such as `{name}.reshape(-1)`."
        )
    # A `nan` would count as true.
    if np.any(np.isnan(given.astype(float))):
        raise ValueError(f"`{name}` holds `nan`; give bools, or 0 and 1.")
    return given.astype(bool)


@checked
def fill_replay(
    replay: AbstractReplay[State], transitions: Transition[Extras]
) -> tuple[State, Counts]:
    """A replay filled with the given transitions.

    **Arguments:**

    - `replay`: the replay to fill, such as an `eqrl.ReplayBuffer`. If it has less room,
        only the last transitions are kept.
    - `transitions`: the transitions of one environment, with the axis `(rows,)`, or of
        several, with the axes `(envs, rows)`.

    **Returns:**

    The state of the replay, and the counts to draw from it with, in which all rows
    count as kept. The last row of each environment ends an episode, as truncated unless
    it is terminated.

    Raises a `ValueError` for an `eqrl.LatestRows`, whose batches are the steps of one
    iteration.
    """
    if isinstance(replay, LatestRows):
        raise ValueError(
            "`replay` is a LatestRows, which holds the steps of one iteration only; "
            "give an `eqrl.ReplayBuffer`."
        )
    axes = transitions.timestep.shape
    if len(axes) not in (1, 2):
        raise ValueError(
            f"`transitions` has the axes {axes}; give one, `(rows,)`, or two, "
            "`(envs, rows)`."
        )
    if len(axes) == 1:
        transitions = jax.tree.map(lambda x: x[None], transitions)
    # What an environment adds after them begins another episode.
    transitions = jax.tree.map(jnp.asarray, transitions)
    truncated = transitions.truncated.at[:, -1:].set(~transitions.terminated[:, -1:])
    transitions = dataclasses.replace(transitions, truncated=truncated)
    return _fill(replay, transitions), first_counts(axes[-1])


@eqx.filter_jit
def _fill(replay: AbstractReplay[State], transitions: AnyTransition) -> State:
    num_envs, num_rows = transitions.timestep.shape
    item = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), transitions
    )

    def add(state: State, row: Int[Array, ""]) -> tuple[State, None]:
        items = jax.tree.map(lambda x: x[:, row], transitions)
        return replay.add(state, items, first_counts(row)), None

    return filter_scan(add, replay.init(item, num_envs), jnp.arange(num_rows))[0]


def fitting_transitions(
    agent: AnyAgent, transitions: AnyTransition, spec: EnvSpec
) -> AnyTransition:
    """The transitions in the types that the agent learns from.

    They must match `spec` and contain everything that the agent needs; otherwise a
    `ValueError` is raised. Extras that it does not need are left out.
    """
    axes = transitions.timestep.shape
    if len(axes) != 1 or axes[0] == 0:
        raise ValueError(
            f"`transitions` has the axes {axes}; give one, of at least one row. Of "
            "what `eqrl.rollout` returns, these are the steps within the episodes: "
            "`jax.tree.map(lambda x: x[mask], transitions)`."
        )
    vector = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.result_type(float))
    flag = jax.ShapeDtypeStruct((), jnp.result_type(bool))
    wanted = {
        "observation": spec.observation_struct,
        "action": spec.action.struct,
        "reward": vector() if spec.reward_size is None else vector(spec.reward_size),
        "next_observation": spec.observation_struct,
        "terminated": flag,
        "truncated": flag,
        "timestep": jax.ShapeDtypeStruct((), jnp.result_type(int)),
    }
    # Their size is not in the `spec`, which may be made by hand.
    if transitions.state_descriptor is not None:
        descriptor = vector(transitions.state_descriptor.shape[-1])
        wanted |= {"state_descriptor": descriptor, "next_state_descriptor": descriptor}
    critic_size = spec.critic_observation_size
    if critic_size is not None:
        if transitions.critic_observation is None:
            raise ValueError(
                "`transitions.critic_observation` is None, but critics see it by "
                f"`spec.critic_observation_size={critic_size}`; give it and "
                "`next_critic_observation`, or leave the size out of the `spec`."
            )
        seen = vector(critic_size)
        wanted |= {"critic_observation": seen, "next_critic_observation": seen}
    described = ("state_descriptor", "next_state_descriptor")
    fields: dict[str, PyTree] = dict.fromkeys(described)
    is_integer = lambda x: jnp.issubdtype(x.dtype, jnp.integer)
    for name, element in wanted.items():
        value, shape = getattr(transitions, name), (axes[0], *element.shape)
        if value is None:
            raise ValueError(
                f"`transitions.{name}` is None; give it before and after the step."
            )
        # Every float type will do for floats, but an integer may be a discrete action,
        # and pixels must have their declared type.
        is_seen = name in ("observation", "next_observation")
        is_pixel = is_seen and spec.observation_dtype != "float32"
        has_type = value.dtype == element.dtype
        fits = has_type if is_pixel else is_integer(value) == is_integer(element)
        if value.shape != shape or not fits:
            raise ValueError(
                f"`transitions.{name}` has the shape {value.shape} and the type "
                f"{value.dtype}, but {shape} and {element.dtype} are needed for "
                f"`{spec}`."
            )
        fields[name] = jnp.asarray(value, element.dtype)
    extras = _fitting_extras(agent, transitions, spec)
    transitions = Transition(**fields, extras=extras)
    _check_values(transitions, spec)
    if agent.sequence_length is not None and agent.sequence_length > 1:
        _check_sequences(agent, agent.sequence_length, transitions)
    return transitions


def _fitting_extras(
    agent: AnyAgent, transitions: AnyTransition, spec: EnvSpec
) -> PyTree:
    """The extras that the agent needs; `None` if it needs none."""

    def extras(key: PRNGKeyArray) -> PyTree:
        init_key, begin_key, act_key = jr.split(key, 3)
        state = agent.init(spec, key=init_key)
        index = jnp.zeros((), int)
        memory = agent.begin(state, spec, index=index, key=begin_key)
        struct = spec.observation_struct
        observation = jnp.zeros(struct.shape, struct.dtype)
        return agent.act(state, memory, observation, mode="sample", key=act_key)[2]

    wanted = eqx.filter_eval_shape(extras, jr.key(0))
    if wanted is None:
        return None
    given = transitions.extras
    leaves, structure = jax.tree.flatten(given)
    wanted_leaves, wanted_structure = jax.tree.flatten(wanted)
    if structure != wanted_structure or (
        [(x.shape[1:], x.dtype) for x in leaves]
        != [(x.shape, x.dtype) for x in wanted_leaves]
    ):
        raise ValueError(
            f"`{type(agent).__name__}` stores extras with each transition, a "
            f"`{type(wanted).__name__}`, and `transitions.extras` is "
            f"{'none' if given is None else 'another'}. Collect the data with such an "
            "agent, by `eqrl.rollout`, or take one without extras, such as `eqrl.SAC`."
        )
    return given


def _check_values(transitions: AnyTransition, spec: EnvSpec) -> None:
    """Checks that all values are finite and actions are within their bounds."""
    for name, value in vars(transitions).items():
        if name == "extras" or value is None:
            continue
        finite = np.isfinite(np.asarray(value))
        if not np.all(finite):
            rows = np.flatnonzero(~finite.reshape(len(finite), -1).all(axis=1))
            raise ValueError(
                f"`transitions.{name}` is not finite in {len(rows)} rows, the first of "
                f"which is {rows[0]}; leave them out."
            )
    action = np.asarray(transitions.action)
    low, high = float(action.min()), float(action.max())
    if isinstance(spec.action, Discrete):
        if low < 0 or high >= spec.action.num_actions:
            raise ValueError(
                f"`transitions.action` goes from {low:.0f} to {high:.0f}, but "
                f"`spec.action={spec.action}` counts from 0 to "
                f"{spec.action.num_actions - 1}."
            )
    elif low < -1 or high > 1:
        raise ValueError(
            f"`transitions.action` goes from {low:.9g} to {high:.9g}, but actions are "
            "in [-1, 1]: rescale them, `2 * (action - low) / (high - low) - 1`, or "
            "clip what is beyond."
        )


def _check_sequences(agent: AnyAgent, length: int, transitions: AnyTransition) -> None:
    """Checks that each episode continues from row to row."""
    timestep = np.asarray(transitions.timestep)
    if len(timestep) < length:
        raise ValueError(
            f"`transitions` has {len(timestep)} rows, fewer than the `sequence_length="
            f"{length}` steps in a row from which `{type(agent).__name__}` learns."
        )
    over = np.asarray(transitions.terminated | transitions.truncated)
    if np.all(over) and not np.all(transitions.terminated):
        raise ValueError(
            f"`{type(agent).__name__}` learns from `sequence_length={length}` steps in "
            "a row, but no row of `transitions` begins with the `next_observation` of "
            "the one before. Where several environments alternate, reorder each array: "
            "`x.reshape(-1, num_envs, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)`."
        )
    broken = np.flatnonzero(~over[:-1] & (timestep[1:] != timestep[:-1] + 1))
    if len(broken) > 0:
        row = int(broken[0])
        raise ValueError(
            f"`{type(agent).__name__}` learns from `sequence_length={length}` steps in "
            f"a row, but row {row} of `transitions` ends no episode and row {row + 1} "
            f"is not its next step: their timesteps are {timestep[row]} and "
            f"{timestep[row + 1]}. Put the steps of each episode one after another, "
            "and make `truncated` true in the last one of each that does not terminate."
        )
