"""Faults of `_disk` and of the stacks that hold its skills."""

from ..fault import Fault


_LEARN = "tests/disk/test_learn_skills.py"
_INPUT = "tests/disk/test_learn_skills_input.py"
_STORE = "tests/disk/test_store.py"
_WORLD = "tests/disk/test_skill_world.py"
_SWITCH = "tests/disk/test_skill_switch.py"

FAULTS = (
    Fault(
        "disk:an-unfinished-row-is-forgotten",
        "eqrl/_disk/learn.py",
        "runner.start(state, counts, training.unfinished)",
        "runner.start(state, counts, None)",
        ("tests/disk/test_learn_skills.py -k within_a_row",),
    ),
    Fault(
        "disk:an-unfinished-row-is-not-loaded",
        "eqrl/_disk/library.py",
        "        if not is_within_row:\n",
        "        if True:\n",
        ("tests/disk/test_learn_skills.py -k within_a_row",),
    ),
    Fault(
        "disk:change-one-step-late",
        "eqrl/_disk/learn.py",
        "bisect.bisect_right(self.steps, step) - 1",
        "max(bisect.bisect_left(self.steps, step) - 1, 0)",
        (f"{_WORLD} -k 'next_iteration'", _WORLD),
    ),
    Fault(
        "disk:world-of-the-last-skill",
        "eqrl/_disk/learn.py",
        "return min(skill, len(self.envs) - 1)",
        "return len(self.envs) - 1",
        (f"{_WORLD} -k 'world_of_the_next'", _WORLD),
    ),
    Fault(
        "disk:worlds-of-any-sizes",
        "eqrl/_disk/learn.py",
        "if env.spec != first.spec:",
        "if False:",
        (f"{_WORLD} -k 'does_not_fit'",),
    ),
    Fault(
        "disk:cut-where-terminated",
        "eqrl/_training/replay.py",
        "cut = ~terminated & (",
        "cut = jnp.ones_like(terminated) & (",
        (f"{_SWITCH} -k 'keeps_what_it_should or cut_in_mid'",),
    ),
    Fault(
        "disk:cut-one-row-late",
        "eqrl/_training/replay.py",
        "row = (written - 1) % data.timestep.shape[1]",
        "row = written % data.timestep.shape[1]",
        (f"{_SWITCH} -k 'keeps_what_it_should or cut_in_mid'",),
    ),
    Fault(
        "disk:half-is-all",
        "eqrl/_disk/learn.py",
        '"half": filled // 2',
        '"half": filled',
        (f"{_SWITCH} -k 'keeps_what_it_should or half'",),
    ),
    Fault(
        "disk:random-half-is-the-oldest",
        "eqrl/_training/replay.py",
        "jnp.where(age < filled, jr.uniform(key, (num_envs, rows)), 2.0)",
        "age",
        (f"{_SWITCH} -k random_half",),
    ),
    Fault(
        "disk:skills-begin-where-the-last-ended",
        "eqrl/_disk/learn.py",
        "agent=fresh.agent,",
        "agent=state.agent.agent,",
        (f"{_LEARN} -k begins_with_nothing_learned",),
    ),
    Fault(
        "disk:steps-behind-the-end-are-counted",
        "eqrl/_disk/learn.py",
        "jnp.sum(mask)",
        "jnp.sum(jnp.ones_like(mask))",
        (f"{_SWITCH} -k what_showing_costs",),
    ),
    Fault(
        "disk:skill-behind-the-last",
        "eqrl/_disk/library.py",
        "if not 0 <= index < count:",
        "if not 0 <= index <= count:",
        (f"{_INPUT} -k picked",),
    ),
    Fault(
        "disk:skills-with-one-key",
        "eqrl/_disk/learn.py",
        "key = jr.fold_in(self.key, skill)",
        "key = jr.fold_in(self.key, 0 * skill)",
        (f"{_LEARN} -k begins_otherwise",),
    ),
    Fault(
        "disk:newest-skill-is-shown-too",
        "eqrl/_disk/learn.py",
        "skill if reward.preset.include_newest else skill - 1",
        "skill",
        (f"{_WORLD} -k leaves_out_the_newest",),
    ),
    Fault(
        "disk:past-is-kept-where-it-is-shown-again",
        "eqrl/_disk/learn.py",
        "reward_state = reward.without_past(reward_state)",
        "pass",
        (f"{_WORLD} -k 'show_what_they_do'",),
    ),
    Fault(
        "disk:past-has-room-for-single-steps",
        "eqrl/_disk/learn.py",
        "num_episodes if reward.per_timestep else num_episodes * limit",
        "num_episodes",
        (f"{_WORLD} -k 'all_skills_so_far'",),
    ),
    Fault(
        "disk:more-skills-than-there-is-room-for",
        "eqrl/_disk/learn.py",
        "if capacity < num_skills:",
        "if False:",
        (f"{_INPUT} -k out_of_range",),
    ),
    Fault(
        "disk:saved-into-another-library",
        "eqrl/_disk/library.py",
        "if not np.array_equal(digests[: len(held)], held):",
        "if False:",
        (f"{_STORE} -k another_library",),
    ),
    Fault(
        "disk:folders-of-others-are-deleted",
        "eqrl/_disk/library.py",
        'elif saved_steps(path / "training") and is_checkpoint(folder):',
        "elif True:",
        (f"{_STORE} -k 'never_deleted'",),
    ),
    Fault(
        "disk:any-skill-in-the-place-is-kept",
        "eqrl/_disk/library.py",
        "    except ValueError:\n        return False\n",
        "    except ValueError:\n        return True\n",
        (f"{_STORE} -k 'gives_way or lost_its_training'",),
    ),
    Fault(
        "disk:skills-in-other-places",
        "eqrl/_disk/library.py",
        "if not np.array_equal(digest_of(state), digest):",
        "if False:",
        (f"{_STORE} -k changed_places",),
    ),
    Fault(
        "disk:metrics-in-32-bits",
        "eqrl/_disk/library.py",
        "name: np.empty(shape.shape, shape.dtype)",
        "name: jnp.empty(shape.shape, shape.dtype)",
        (f"{_STORE} -k 'from_disk_exactly'",),
    ),
    Fault(
        "disk:last-row-of-metrics-is-lost",
        "eqrl/_disk/library.py",
        "metrics=skills.metrics,",
        "metrics={name: rows[:-1] for name, rows in skills.metrics.items()},",
        (f"{_STORE} -k 'from_disk_exactly'",),
    ),
    Fault(
        "disk:finished-skill-one-place-too-early",
        "eqrl/_pytree/tree.py",
        "x.at[index].set(y)",
        "x.at[index - 1].set(y)",
        (f"{_LEARN} -k had_learned_at_its_end", _LEARN),
    ),
    Fault(
        "disk:library-grows-at-its-beginning",
        "eqrl/_pytree/tree.py",
        "jnp.concatenate([x, missing])",
        "jnp.concatenate([missing, x])",
        (f"{_LEARN} -m long -k beyond",),
    ),
    Fault(
        "disk:callbacks-cannot-stop",
        "eqrl/_training/host_loop.py",
        "if on_any_process(stops, mesh):",
        "if False:",
        ("tests/disk/test_learn_skills.py -k never_stopped",),
    ),
    Fault(
        "disk:target-entropy",
        "eqrl/_disk/learn.py",
        "    check_numbers(agent, first.spec)\n",
        "",
        ("tests/test_boundary.py -k out_of_reach",),
    ),
    Fault(
        "disk:skills-played-once-a-key",
        "eqrl/_disk/library.py",
        "    key = reusable_key(key)\n",
        "",
        ("tests/disk/test_learn_skills.py -k played_again",),
    ),
)
