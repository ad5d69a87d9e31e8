"""Faults of `_interaction`."""

from ..fault import Fault


_INTERACT = "tests/test_interact.py"
_EVALUATE = "tests/test_evaluate.py"
_SKILLS = "tests/skills/test_evaluate_skills.py"
_EXPORT = "tests/test_export.py"
_CHOICE = "tests/skills/test_skill_choice.py"

FAULTS = (
    Fault(
        "interaction:episodes-go-on-behind-a-limit",
        "eqrl/_interaction/actors.py",
        "over = transitions.terminated | transitions.truncated",
        "over = transitions.terminated",
        (_INTERACT,),
    ),
    Fault(
        "interaction:episodes-begin-all-at-once",
        "eqrl/_interaction/actors.py",
        "jnp.any(over),\n",
        "jnp.all(over),\n",
        (_INTERACT,),
    ),
    Fault(
        "interaction:a-reset-at-every-step",
        "eqrl/_interaction/actors.py",
        "    actors = filter_cond(\n        jnp.any(over),\n",
        "    actors = (lambda _, begin, leave: begin())(\n        jnp.any(over),\n",
        (_INTERACT,),
    ),
    Fault(
        "interaction:next-observation-is-the-last",
        "eqrl/_interaction/actors.py",
        "next_observation=outcome.observation",
        "next_observation=actor.observation",
        (f"{_INTERACT} -k successor",),
    ),
    Fault(
        "interaction:timestep-of-the-state-reached",
        "eqrl/_interaction/actors.py",
        "timestep=actor.timestep,",
        "timestep=actor.timestep + 1,",
        (f"{_INTERACT} -k timestep",),
    ),
    Fault(
        "interaction:key-used-twice",
        "eqrl/_interaction/actors.py",
        "env.step(actor.env_state, action, key=step_key)",
        "env.step(actor.env_state, action, key=act_key)",
        (f"{_INTERACT} -k keys_of_their_own",),
    ),
    Fault(
        "interaction:descriptor-of-the-state-reached",
        "eqrl/_interaction/actors.py",
        "env.state_descriptor(actor.env_state)",
        "env.state_descriptor(env_state)",
        (f"{_INTERACT} -k descriptors",),
    ),
    Fault(
        "interaction:one-index-for-all",
        "eqrl/_interaction/actors.py",
        "eqx.filter_vmap(begin)(jnp.arange(num_envs)",
        "eqx.filter_vmap(begin)(jnp.zeros(num_envs, int)",
        (f"{_INTERACT} -k index",),
    ),
    Fault(
        "interaction:return-of-all-episodes",
        "eqrl/_interaction/actors.py",
        "episode_return=actor.episode_return + outcome.reward",
        "episode_return=outcome.reward",
        (f"{_INTERACT} -k episode_return",),
    ),
    Fault(
        "interaction:mask-one-short",
        "eqrl/_interaction/rollout.py",
        "(record(after.actors, transitions), episodes.alive)",
        "(record(after.actors, transitions), after.alive)",
        (f"{_EVALUATE} -k Rollout",),
    ),
    Fault(
        "interaction:lengths-one-short",
        "eqrl/_interaction/rollout.py",
        "episodes.lengths + alive.astype(int)",
        "episodes.lengths + (alive & ~transitions.terminated).astype(int)",
        (f"{_EVALUATE} -k TestEvaluate",),
    ),
    Fault(
        "interaction:returns-behind-the-end",
        "eqrl/_interaction/rollout.py",
        "episodes.returns + zero_outside(alive, transitions.reward)",
        "episodes.returns + transitions.reward",
        (f"{_EVALUATE} -k TestEvaluate",),
    ),
    Fault(
        "interaction:accuracy-behind-the-end",
        "eqrl/_interaction/evaluate_skills.py",
        "jnp.mean(right.astype(float), where=mask)",
        "jnp.mean(right.astype(float))",
        (f"{_SKILLS} -k 'accuracy or behind'", _SKILLS),
    ),
    Fault(
        "interaction:discriminator-sees-what-is-not-normalized",
        "eqrl/_agents/wrappers/unwrap.py",
        "transitions = agent.inner_transitions(state, transitions)",
        "pass",
        (f"{_SKILLS} -k normalization", _SKILLS),
    ),
    Fault(
        "interaction:unwraps-to-the-state",
        "eqrl/_agents/wrappers/unwrap.py",
        "return find(agent, None, None, kind)[0]",
        "return find(agent, None, None, kind)[1]",
        ("tests/agents/test_wrappers.py -k unwrapped",),
    ),
    Fault(
        "interaction:skills-that-are-not-there",
        "eqrl/_interaction/skill_choice.py",
        "jnp.where(exists, action, -jnp.inf)",
        "action",
        (f"{_CHOICE} -k largest", _CHOICE),
    ),
    Fault(
        "interaction:skill-runs-one-step-longer",
        "eqrl/_interaction/skill_choice.py",
        "max_steps=self.num_steps,",
        "max_steps=self.num_steps + 1,",
        (f"{_CHOICE} -k afresh", _CHOICE),
    ),
    Fault(
        "interaction:skill-runs-behind-a-limit",
        "eqrl/_interaction/rollout.py",
        "return ~(self.terminated | self.truncated)",
        "return ~self.terminated",
        (f"{_CHOICE} -k cuts_the_last", _CHOICE),
    ),
    Fault(
        "interaction:choices-rounded-down",
        "eqrl/_interaction/skill_choice.py",
        "-(-max_steps // self.num_steps)",
        "max_steps // self.num_steps",
        (f"{_CHOICE} -k spec", _CHOICE),
    ),
    Fault(
        "interaction:one-agent-for-all-skills",
        "eqrl/_interaction/skill_choice.py",
        "return take_element(self.agent, chosen), state",
        "return take_element(self.agent, 0), state",
        (f"{_CHOICE} -k fixed_skills",),
    ),
    Fault(
        "interaction:skills-of-any-length",
        "eqrl/_interaction/skill_choice.py",
        "if isinstance(prior, SphereSkills):",
        "if False:",
        (f"{_CHOICE} -k are_vectors",),
    ),
    Fault(
        "interaction:a-stack-is-evaluated",
        "eqrl/_interaction/evaluate_skills.py",
        "_check_state(with_skill(agent, skills[0]), state, env)",
        "pass",
        (f"{_SKILLS} -k stack_of_states",),
    ),
    Fault(
        "interaction:an-exported-policy-forgets-within-an-episode",
        "eqrl/_interaction/exported_policy.py",
        "        self._num_steps += 1",
        "        self._num_steps, self._memory = self._num_steps + 1, None",
        (f"{_EXPORT} -k remembers",),
    ),
    Fault(
        "interaction:a-damaged-policy-is-loaded",
        "eqrl/_interaction/exported_policy.py",
        "if digest != _digest(body).encode():",
        "if len(digest) != 64:",
        (f"{_EXPORT} -k damaged",),
    ),
    Fault(
        "interaction:an-exported-policy-draws-the-same-at-each-step",
        "eqrl/_interaction/export.py",
        "key = jr.fold_in(jr.fold_in(jr.key(seed), _STEPS), step)",
        "key = jr.fold_in(jr.key(seed), _STEPS)",
        (f"{_EXPORT} -k acts_as_its_agent",),
    ),
)
