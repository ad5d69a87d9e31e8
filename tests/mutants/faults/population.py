"""Faults of `_population`."""

from ..fault import Fault


_PBT = "tests/population/test_pbt.py"
_PRIOR = "tests/population/test_prior.py"
_TRAIN = "tests/population/test_train.py"
_PICTURES = "tests/population/test_pictures.py"

FAULTS = (
    Fault(
        "population:nan-ranks-first",
        "eqrl/_population/pbt.py",
        "ranked = jnp.where(finite, scores, -jnp.inf)",
        "ranked = jnp.where(finite, scores, jnp.inf)",
        (f"{_PBT} -k 'not_finite or failed'",),
    ),
    Fault(
        "population:elite-of-the-worst",
        "eqrl/_population/selection.py",
        "elite = order[size - self.num_elite :]",
        "elite = order[: self.num_elite]",
        (f"{_PBT} -k worst_are_replaced",),
    ),
    Fault(
        "population:children-with-one-key",
        "eqrl/_population/pbt.py",
        "self._vary(agents, replaced, jr.split(vary_key, size))",
        "self._vary(agents, replaced, jnp.broadcast_to(vary_key, (size,)))",
        (f"{_PBT} -k two_children",),
    ),
    Fault(
        "population:resampled-the-rest-of-the-time",
        "eqrl/_population/pbt.py",
        "choice_key, self.resample_probability, (",
        "choice_key, 1 - self.resample_probability, (",
        (f"{_PBT} -k 'perturbed or resampled'",),
    ),
    Fault(
        "population:tournament-replaces-the-better",
        "eqrl/_population/selection.py",
        "loses = ranked[opponents] > ranked",
        "loses = ranked[opponents] < ranked",
        (f"{_PBT} -k tournament",),
    ),
    Fault(
        "population:tournament-limited-by-default",
        "eqrl/_population/selection.py",
        "return most if self.num_replaced is None else",
        "return min(2, most) if self.num_replaced is None else",
        (f"{_PBT} -k every_loser",),
    ),
    Fault(
        "population:children-keep-their-own-states",
        "eqrl/_population/copying.py",
        "place_in_share(parents[child], share, mesh)",
        "place_in_share(child, share, mesh)",
        (f"{_PBT} -k worst_are_replaced",),
    ),
    Fault(
        "population:failed-members-keep-their-replay",
        "eqrl/_population/pbt.py",
        "others = jnp.where(finite, jnp.arange(size), parents)",
        "others = jnp.arange(size)",
        (f"{_PBT} -k copies_of_replays",),
    ),
    Fault(
        "population:replays-are-always-copied",
        "eqrl/_population/pbt.py",
        "if isinstance(states, TrainerState) and not self.copy_replay:",
        "if False:",
        (f"{_PBT} -k copies_of_replays",),
    ),
    Fault(
        "population:perturbed-out-of-the-range",
        "eqrl/_population/prior.py",
        "jnp.clip(value * factor, low, high)",
        "value * factor",
        (f"{_PRIOR} -k stays_in_the_range",),
    ),
    Fault(
        "population:one-minus-perturbs-the-value",
        "eqrl/_population/prior.py",
        "1 - self.prior.perturb(1 - value, key=key)",
        "self.prior.perturb(value, key=key)",
        (f"{_PRIOR} -k perturbation",),
    ),
    Fault(
        "population:log-uniform-is-uniform",
        "eqrl/_population/prior.py",
        "jnp.exp(jr.uniform(key, (), minval=low, maxval=high))",
        "jr.uniform(key, (), minval=self.low, maxval=self.high)",
        (f"{_PRIOR} -k log_uniform",),
    ),
    Fault(
        "population:members-with-one-key",
        "eqrl/_population/run.py",
        "lambda index: jr.fold_in(key, index)",
        "lambda index: jr.fold_in(key, 0 * index)",
        (f"{_TRAIN} -k equals_the_agent_alone",),
    ),
    Fault(
        "population:failed-members-have-a-score",
        "eqrl/_population/evaluation.py",
        "jnp.where(failed, jnp.nan, value)",
        "value",
        ("tests/test_unseen.py -k no_score",),
    ),
    Fault(
        "population:returns-are-not-weighed",
        "eqrl/_interaction/scores.py",
        "if weights is None:\n        return jnp.sum(means)",
        "if True:\n        return jnp.sum(means)",
        (f"{_TRAIN} -k weighs",),
    ),
    Fault(
        "population:mesh-that-does-not-divide",
        "eqrl/_population/mesh.py",
        "if size % mesh.size != 0:",
        "if False:",
        ("tests/population/test_mesh.py -k divide",),
    ),
    Fault(
        "population:ancestors-of-the-first-generation-too",
        "eqrl/_population/history.py",
        "parents[:0:-1]",
        "parents[::-1]",
        (f"{_PICTURES} -k ancestors",),
    ),
    Fault(
        "population:winner-of-the-first-generation",
        "eqrl/_population/history.py",
        "np.isnan(scores[-1]), -np.inf, scores[-1]",
        "np.isnan(scores[0]), -np.inf, scores[0]",
        (f"{_PICTURES} -k winner",),
    ),
    Fault(
        "population:together-on-a-processor",
        "eqrl/_population/run.py",
        'return "in_turn" if device.platform == "cpu" else "together"',
        'return "together" if device.platform == "cpu" else "in_turn"',
        (f"{_TRAIN} -k on_a_cpu",),
    ),
    Fault(
        "population:stacks-are-not-checked",
        "eqrl/_population/train.py",
        "lambda stack: pbt.check(take_element(stack, 0), size), agent",
        "lambda stack: None, agent",
        (f"{_TRAIN} -k before_its_first",),
    ),
    Fault(
        "population:best-of-the-first-generation",
        "eqrl/_population/stack.py",
        "stack.scores[-1])",
        "stack.scores[0])",
        (f"{_PICTURES} -k best_of_a_population",),
    ),
    Fault(
        "population:pictures-of-the-returns",
        "eqrl/_population/history.py",
        "given = population.scores if scores is None else scores",
        "given = population.returns.mean(axis=2) if scores is None else scores",
        (f"{_PICTURES} -k something_else",),
    ),
    Fault(
        "population:the-callbacks-agents-are-donated",
        "eqrl/_population/train.py",
        '@eqx.filter_jit(donate="all-except-first")',
        '@eqx.filter_jit(donate="all")',
        (f"{_TRAIN} -k score_decides",),
    ),
    Fault(
        "population:what-init-read-is-perturbed",
        "eqrl/_population/pbt.py",
        "old if fixed else new",
        "new",
        (f"{_PBT} -k only_init_reads",),
    ),
    Fault(
        "population:scores-of-any-shape",
        "eqrl/_population/evaluation.py",
        "            _check_score(value)\n",
        "",
        (f"{_TRAIN} -k before_the_first",),
    ),
)
