"""Rows of compilation: seconds to trace, lower and compile a training, and its memory.

Nothing is cached from one round to the next. The memory is the most that the compiled
program holds on one device: its arguments, including the replay, its results that do
not overwrite arguments, and its temporaries.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jaxtyping import Array, Int, PRNGKeyArray

import eqrl
from eqrl._pytree.tree import flatten
from eqrl._training.mesh import choose_members
from eqrl._training.train import begin_rows, jit_begin_row, run_members
from eqrl._training.trainer import Piece, run_piece

from .beside_limit import limit_of_now
from .command import MakeRows
from .measure import Effort
from .members import make_crew
from .report import Row


# Compiling takes long and varies little.
NUM_ROUNDS = 3
NUM_MEMBERS = 8

Program = tuple[Callable[..., Any], Any, Any]
"""A function from arrays to arrays with its first two arguments, the first one donated;
its other arguments are a number of steps and a key. As in training, nothing is a
constant of the program."""


def megabytes(size: float) -> float:
    return size / 1e6


def _training(agent: Any) -> Program:
    env = eqrl.envs.make("brax/fast", max_steps=1000)
    trainer = eqrl.Trainer()
    state, counts = eqrl.jit_init(trainer, agent, env, key=jr.key(0))
    row = jit_begin_row(trainer, agent, env, state, counts)
    first = eqrl.tree_copy(state.agent)
    donated, static = eqx.partition((state, counts), eqx.is_array)
    kept, static_kept = eqx.partition((agent, first, row), eqx.is_array)

    def run(
        donated: Any, kept: Any, num_steps: Int[Array, ""], key: PRNGKeyArray
    ) -> Any:
        state, counts = eqx.combine(donated, static)
        agent, first, row = eqx.combine(kept, static_kept)
        piece = Piece(num_steps=num_steps, row=row, ends_row=jnp.array(True))
        results = run_piece(
            trainer,
            agent,
            env,
            state,
            counts,
            first,
            piece,
            key=key,
            mapped=False,
        )
        return eqx.filter(results, eqx.is_array)

    return run, donated, kept


def _population(agent: Any) -> Program:
    env = eqrl.envs.make("brax/fast", max_steps=1000)
    trainer = eqrl.Trainer(capacity=10_000)
    agents = jax.tree.map(lambda x: jnp.broadcast_to(x, (NUM_MEMBERS, *x.shape)), agent)
    members = choose_members(None, None)
    crew, states, counts = make_crew(trainer, agents, env, members, None)
    row = begin_rows(crew, states, counts)
    first = eqrl.tree_copy(states.agent)
    donated, static = eqx.partition((states, counts), eqx.is_array)
    kept, static_kept = eqx.partition((agents, first, row), eqx.is_array)

    def run(
        donated: Any, kept: Any, num_steps: Int[Array, ""], key: PRNGKeyArray
    ) -> Any:
        states, counts = eqx.combine(donated, static)
        agents, first, row = eqx.combine(kept, static_kept)
        given = dataclasses.replace(
            crew, agents=agents, keys=jr.split(key, NUM_MEMBERS)
        )
        piece = Piece(num_steps=num_steps, row=row, ends_row=jnp.array(True))
        arguments = flatten(given), flatten(first), piece
        results = run_members(arguments, flatten(states), counts)
        return eqx.filter(results, eqx.is_array)

    return run, donated, kept


def _rows_of(name: str, make_program: Callable[[], Program]) -> MakeRows:
    def make(effort: Effort) -> list[Row]:
        del effort
        run, donated, kept = make_program()
        num_steps, key = jnp.asarray(1_000), jr.key(1)
        # The row measures this compilation.
        jax.config.update("jax_enable_compilation_cache", False)
        # JAX remembers from an earlier compilation that there is a cache.
        reset_cache()
        seconds: dict[str, list[float]] = {"trace": [], "lower": [], "compile": []}
        limits: list[float] = []
        compiled: Any = None
        for _ in range(NUM_ROUNDS):
            jax.clear_caches()
            limits.append(limit_of_now())
            jitted = jax.jit(run, donate_argnums=0)
            marks = [time.perf_counter()]
            traced = jitted.trace(donated, kept, num_steps, key)
            marks.append(time.perf_counter())
            lowered = traced.lower()
            marks.append(time.perf_counter())
            compiled = lowered.compile()
            marks.append(time.perf_counter())
            for index, part in enumerate(seconds):
                seconds[part].append(marks[index + 1] - marks[index])
        rows = [
            Row(f"compile/{name}/{part}", "s", tuple(measured), limits=tuple(limits))
            for part, measured in seconds.items()
        ]
        memory = compiled.memory_analysis()
        if memory is not None:
            held = (
                memory.argument_size_in_bytes
                + memory.output_size_in_bytes
                - memory.alias_size_in_bytes
                + memory.temp_size_in_bytes
            )
            temporaries = megabytes(memory.temp_size_in_bytes)
            note = f"temporaries: {temporaries:.2f} MB"
            rows.append(Row(f"memory/{name}", "MB", (megabytes(held),), note=note))
        return rows

    return make


COMPILES = {
    f"compile/{name}": _rows_of(name, make_program)
    for name, make_program in {
        "SAC": lambda: _training(eqrl.SAC()),
        "TAAC": lambda: _training(eqrl.TAAC()),
        f"population of {NUM_MEMBERS}": lambda: _population(eqrl.SAC()),
    }.items()
}
