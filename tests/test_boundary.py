"""What does not fit is refused while it is traced, before anything is computed.

Nothing here is compiled: arguments are shapes, or fail first.
"""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jaxtyping import Array, Bool, Float, PRNGKeyArray

import eqrl
from eqrl import losses, nn
from eqrl._agents.base import pick_action
from eqrl._interaction.fit import check_is_agent, check_numbers, check_rate
from eqrl._pytree.tree import check_stack
from eqrl.envs import Outcome
from eqrl.envs._check import check_env
from eqrl.spaces import Discrete

from .toy import Compass, Drift, DriftState, Idle, Learner, Relay, random_transitions


ROW = np.zeros(4, np.float32)
COLUMN = np.zeros((4, 1), np.float32)
NO = np.zeros(4, bool)
INDEX = np.zeros(4, np.int32)

# A loss, what it is given, and what is said of it. Without the checks of types, which
# the tests have on and which would come first.
WRONG_LOSSES: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (losses.bootstrapped_target, (COLUMN, NO, ROW, 0.9), r"`terminated`.*\(4, 1\)"),
    (losses.bootstrapped_target, (ROW, NO, COLUMN, 0.9), r"`next_value`.*\(4, 1\)"),
    (losses.bootstrapped_target, (ROW, ROW, ROW, 0.9), "`terminated`.*type bool"),
    (losses.bootstrapped_target, (ROW, NO, ROW, COLUMN), r"`discount`.*\(4, 1\)"),
    (losses.multi_step_return, (ROW, NO, ROW, 0.9), "`truncated`.*type bool"),
    (losses.multi_step_return, (ROW, NO[:3], NO, 0.9), r"`terminated`.*\(3,\)"),
    (losses.lambda_return, (ROW, NO, NO, COLUMN, 0.9, 0.9), r"`next_value`.*\(4, 1\)"),
    (losses.lambda_return, (ROW, ROW, NO, ROW, 0.9, 0.9), "`terminated`.*type bool"),
    (losses.lambda_return, (COLUMN, *2 * [NO[:, None]], COLUMN, 0.9, 0.9), "vmap"),
    (losses.multi_step_return, (COLUMN, NO, NO, 0.9), r"`reward`.*\(4, 1\).*vmap"),
    (losses.ppo_actor_loss, (ROW, ROW, COLUMN, 0.2), r"`advantage`.*\(4, 1\)"),
    (losses.ppo_critic_loss, (ROW, ROW, COLUMN, None), r"`target`.*\(4, 1\)"),
    (losses.compare_through_target, (ROW, ROW, ROW, ROW), "`stop`.*type bool"),
    (losses.compare_through_target, (ROW, ROW, NO, COLUMN), r"`next_value`.*\(4, 1\)"),
    (losses.switch_probabilities, (ROW[0], ROW, 0.1), r"`new_value`.*\(4,\)"),
]


@pytest.mark.parametrize(("loss", "arguments", "message"), WRONG_LOSSES)
def test_losses_refuse_shapes_that_would_broadcast_and_flags_that_are_numbers(
    loss: Callable[..., Any], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(loss)(*arguments)


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def traced(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return eqx.filter_eval_shape(
        lambda *xs: inspect.unwrap(function)(*xs, **options), *arguments
    )


KEY = jax.eval_shape(lambda: jr.key(0))
CRITIC = eqx.filter_eval_shape(lambda key: nn.Critic((8,))(2, 1, key=key), KEY)
CRITICS = eqx.filter_eval_shape(
    lambda key: eqx.filter_vmap(lambda key: nn.Critic((8,))(2, 1, key=key))(
        jr.split(key)
    ),
    KEY,
)


def test_losses_of_critics_refuse_one_critic_and_targets_of_other_rows() -> None:
    rows = (struct(4, 2), struct(4, 1))
    with pytest.raises(ValueError, match="`critics` is a single StateActionValue"):
        traced(losses.critic_values, CRITIC, *rows)
    with pytest.raises(ValueError, match=r"`action` has the shape \(3, 1\)"):
        traced(losses.critic_values, CRITICS, rows[0], struct(3, 1))
    with pytest.raises(ValueError, match=r"`target` has the shape \(4, 1\)"):
        traced(losses.critic_loss, CRITICS, *rows, struct(4, 1))


def test_a_critic_notices_an_action_in_the_place_of_the_observation() -> None:
    with pytest.raises(ValueError, match="observations of length 2 was given one of"):
        traced(lambda critic, *xs: critic(*xs), CRITIC, struct(1), struct(2))


def test_a_network_says_how_long_its_input_must_be() -> None:
    linear = nn.Linear.__call__
    layer = eqx.filter_eval_shape(lambda key: nn.Linear(2, 3, key=key), KEY)
    for wrong in (struct(3), [0.0, 1.0]):
        with pytest.raises(ValueError, match="inputs of length 2 was given"):
            traced(linear, layer, wrong)


BATCH: eqrl.Transition[None] = jax.eval_shape(
    lambda key: random_transitions(key, 4, observation_size=2, action_size=1), KEY
)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("terminated", ROW, "`terminated` is of type float32"),
        ("truncated", INDEX, "`truncated` is of type int32"),
        ("terminated", NO[:1], r"`terminated` has the shape \(1,\)"),
        ("reward", ROW[:1], r"`reward` has the shape \(1,\)"),
        ("reward", COLUMN[None], r"`reward` has the shape \(1, 4, 1\)"),
        ("observation", ROW, r"`observation` has the shape \(4,\).*one more"),
        ("state_descriptor", COLUMN[:2], r"`state_descriptor` has the shape \(2, 1\)"),
    ],
)
def test_a_transition_has_flags_that_are_booleans_and_rows_that_agree(
    field: str, value: np.ndarray, message: str
) -> None:
    wrong = eqx.tree_at(
        lambda batch: getattr(batch, field), BATCH, value, is_leaf=lambda x: x is None
    )
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(eqrl.Transition.__check_init__)(wrong)


def test_a_transition_may_be_made_of_what_stands_for_arrays() -> None:
    check = inspect.unwrap(eqrl.Transition.__check_init__)
    for leaf in (0, None, "envs", np.float32):
        # As in the `in_axes` of a `vmap`, or in a specification of shards.
        check(jax.tree.map(lambda _, leaf=leaf: leaf, BATCH))
    check(BATCH)
    check(jax.tree.map(lambda x: struct(5, *x.shape, dtype=x.dtype), BATCH))
    check(eqx.tree_at(lambda batch: batch.reward, BATCH, struct(4, 3)))
    check(eqx.tree_at(lambda batch: batch.action, BATCH, struct(4, dtype=jnp.int32)))


def state_of(agent: Any, spec: eqrl.EnvSpec) -> Any:
    return eqx.filter_eval_shape(agent.init, spec, key=KEY)


def stacked(tree: Any, size: int) -> Any:
    return jax.tree.map(lambda x: struct(size, *x.shape, dtype=x.dtype), tree)


ENV = Drift()
OTHER = eqrl.EnvSpec(observation_size=3, action_size=1)


def play(agent: Any, state: Any, env: Any = ENV) -> object:
    return eqx.filter_eval_shape(
        lambda state: eqrl.evaluate(agent, state, env, num_episodes=2, key=jr.key(0)),
        state,
    )


def test_a_state_that_does_not_fit_is_named_where_it_is_played() -> None:
    agent = Learner()
    of_other = state_of(agent, OTHER)
    with pytest.raises(
        ValueError, match=r"`\.weight` is of shape \(3,\).*not of shape \(2,\)"
    ):
        play(agent, of_other)
    with pytest.raises(
        ValueError, match=r"`\.weight` is of shape \(3,\).*not of shape \(2,\)"
    ):
        eqx.filter_eval_shape(
            lambda state: eqrl.rollout(
                agent, state, ENV, num_episodes=2, key=jr.key(0)
            ),
            of_other,
        )
    state = state_of(agent, ENV.spec)
    with pytest.raises(ValueError, match=r"stack of 3.*`eqrl.member\(state, index\)`"):
        play(agent, stacked(state, 3))
    with pytest.raises(ValueError, match=r"it is a dict, not a LearnerState"):
        play(agent, {"state": state})


def test_actions_of_another_size_than_the_environment_takes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\).*asks for shape \(1,\)"):
        play(Compass(), struct())


class Turns(Drift):
    """A point that is pushed one way or another, or not."""

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(observation_size=2, action=Discrete(3), max_steps=5)


class Voter(Idle):
    """Has a row of numbers for each choice."""

    def init(
        self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray
    ) -> Float[Array, "choices obs"]:
        return jr.normal(key, (spec.action.num_outputs, spec.observation_size))


def test_a_state_made_for_more_choices_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(5, 2\).*not of shape \(3, 2\)"):
        play(Voter(), struct(5, 2), Turns())


def test_a_population_is_refused_where_one_agent_is_wanted() -> None:
    several = eqx.tree_at(lambda agent: agent.actor_lr, eqrl.SAC(), np.ones(3))
    message = r"stack of 3: its `actor_lr`.*`eqrl.member.*`eqrl.train_population`"
    with pytest.raises(ValueError, match=message):
        check_is_agent(several)
    with pytest.raises(ValueError, match=message):
        check_is_agent(eqrl.Normalized(several))
    with pytest.raises(ValueError, match=message):
        eqrl.train(several, ENV, TRAINER, num_steps=8, key=jr.key(0))


def test_one_is_refused_where_a_stack_is_wanted() -> None:
    check_stack("stack", {"a": jnp.zeros((3, 2)), "b": jnp.zeros(3)}, size=3)
    with pytest.raises(ValueError, match=r"not a stack: its leaf .*\.actor_lr"):
        inspect.unwrap(eqrl.member)(Learner(), 0)
    for index in (3, jnp.array(3), np.int64(3)):
        with pytest.raises(ValueError, match="`index=3` must be from -3 to 2"):
            inspect.unwrap(eqrl.member)(jnp.zeros(3), index)
    with pytest.raises(ValueError, match=r"`index=1\.5` must be an integer"):
        inspect.unwrap(eqrl.member)(jnp.zeros(3), 1.5)
    with pytest.raises(ValueError, match="`agents` is a stack of 2, but 3 are needed"):
        check_stack("agents", jnp.zeros(2), size=3)


PBT = eqrl.PBT(where=lambda agent: (agent.rate,), priors=(eqrl.Uniform(0, 1),))


def test_returns_and_scores_must_have_one_row_for_each_member() -> None:
    members = jnp.zeros(3)
    with pytest.raises(ValueError, match=r"\(2, 3, 4\).*3 members.*`solution.returns"):
        inspect.unwrap(eqrl.best)(members, np.zeros((2, 3, 4), np.float32))
    for scores in (np.zeros(4, np.float32), np.zeros((3, 1), np.float32)):
        with pytest.raises(ValueError, match=r"`scores`.*of shape \(3,\)"):
            inspect.unwrap(eqrl.PBT.exploit_over)(
                PBT, None, members, members, scores, key=None
            )


def test_what_where_cannot_select_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"`where` cannot select from a Learner: .*rate"
    ):
        PBT.check(Learner(), 4)


TRAINER = eqrl.Trainer(num_envs=2, batch_size=2, capacity=20, warmup_steps=4)


COUNTS = eqx.filter_eval_shape(TRAINER.init, Learner(), ENV, key=KEY)[1]


def run(agent: Any, state: Any, trainer: eqrl.Trainer = TRAINER) -> object:
    counts = COUNTS
    return eqx.filter_eval_shape(
        lambda state, counts: trainer.run(
            agent, ENV, state, counts, num_steps=8, key=jr.key(0)
        ),
        state,
        counts,
    )


def begun(agent: Any) -> Any:
    return eqx.filter_eval_shape(TRAINER.init, agent, ENV, key=KEY)[0]


def test_a_state_that_does_not_fit_is_named_where_it_is_trained() -> None:
    agent = Learner()
    state = begun(agent)
    with pytest.raises(ValueError, match="2 environments, but `num_envs=4`"):
        run(agent, state, eqrl.Trainer(num_envs=4, batch_size=2, warmup_steps=8))
    with pytest.raises(ValueError, match=r"is a stack.*`eqrl.member"):
        run(agent, stacked(state, 3))
    with pytest.raises(ValueError, match=r"\.agent\.weight` is of shape \(3,\)"):
        run(agent, eqx.tree_at(lambda s: s.agent, state, state_of(agent, OTHER)))


class Forgetful(Learner):
    """Returns what `wrong` says from its methods."""

    wrong: str = eqx.field(default="", static=True)

    def begin(self, *args: Any, **options: Any) -> Any:
        del args, options
        given = {"number": {"hidden": 0}, "weak": {"hidden": jnp.asarray(0)}}
        return given.get(self.wrong, {"hidden": jnp.zeros(2)})

    def act(self, state: Any, memory: Any, *args: Any, **options: Any) -> Any:
        action, _, extras = Learner.act(self, state, None, *args, **options)
        after = {
            "shape": {"hidden": jnp.zeros(3)},
            "type": {"hidden": jnp.zeros(2, int)},
            "structure": {"hidden": None},
            "names": {"visible": jnp.zeros(2)},
            "kind": (jnp.zeros(2),),
            "number": {"hidden": jnp.zeros((), int)},
            "weak": {"hidden": jnp.zeros(())},
        }
        extras = {"p": 0.5} if self.wrong == "extras" else extras
        chosen = (action, after.get(self.wrong, memory), extras)
        return action if self.wrong == "act" else chosen

    def observe(self, state: Any, transitions: Any) -> Any:
        after = Learner.observe(self, state, transitions)
        return None if self.wrong == "observe" else after

    def update(self, *args: Any, **options: Any) -> Any:
        state, metrics = Learner.update(self, *args, **options)
        longer = eqx.tree_at(lambda x: x.weight, state, jnp.zeros(3))
        static = eqx.tree_at(lambda x: x.weight, state, jnp.tanh)
        given = {
            "update": state,
            "metric": (state, {"loss": 0.0}),
            "longer": (longer, metrics),
            "static": (static, metrics),
        }
        return given.get(self.wrong, (state, metrics))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("update", r"`update` of Forgetful gives .*`return state, \{\}`"),
        ("metric", "The metric `loss` is of the Python type float"),
        (
            "longer",
            r"`update` of Forgetful gives another state than `init`: `\.weight` is of "
            r"shape \(3,\) and type float32, not of shape \(2,\) and type float32\.",
        ),
        ("static", r"`update` .*: `\.weight` is <.*, not of shape \(2,\)"),
        ("observe", "`observe` .* another state than `init`: it is None, not a Learn"),
    ],
)
def test_what_a_method_of_an_agent_gives_is_named(wrong: str, message: str) -> None:
    state = begun(Forgetful())
    with pytest.raises(ValueError, match=message) as caught:
        run(Forgetful(wrong=wrong), state)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("act", r"`act` of Forgetful gives .*`return action, None, None`"),
        (
            "shape",
            r"`act` of Forgetful gives another memory than `begin`: `\['hidden'\]` is "
            r"of shape \(3,\) and type float32, not of shape \(2,\) and type float32",
        ),
        ("type", r"`\['hidden'\]` is of shape \(2,\) and type int32, not of shape"),
        ("structure", r"`\['hidden'\]` is None, not of shape \(2,\)"),
        ("names", r"`\['hidden'\]` is missing"),
        ("kind", "it is a tuple, not a dict"),
        ("number", r"`\['hidden'\]` is of shape \(\) and type int32, not 0\."),
        ("extras", r"`act` of Forgetful gives 0\.5 in its extras, .*`jnp\.asarray"),
    ],
)
def test_a_memory_that_changes_its_structure_is_named(wrong: str, message: str) -> None:
    agent = Forgetful(wrong=wrong)
    state = state_of(agent, ENV.spec)
    for use in (lambda: begun(agent), lambda: play(agent, state)):
        with pytest.raises(ValueError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_memory_within_a_wrapper_and_one_that_is_exported_is_named(
    tmp_path: Path,
) -> None:
    agent = eqrl.SkillConditioned(Forgetful(wrong="act"), 2)
    with pytest.raises(
        ValueError, match=r"`act` of Forgetful gives .*it must give the"
    ):
        begun(agent)
    agent = Forgetful(wrong="shape")
    state = state_of(agent, ENV.spec)
    with pytest.raises(ValueError, match="`act` of Forgetful gives another memory"):
        eqrl.export_policy(tmp_path / "x.policy", agent, state, ENV)


def test_a_weakly_typed_memory_may_take_the_type_that_it_is_given() -> None:
    agent = Forgetful(wrong="weak")
    with jax.numpy_dtype_promotion("standard"):
        run(agent, begun(agent))


def test_a_state_that_changes_is_named_where_data_are_learned_from(
    getkey: Callable[[], PRNGKeyArray],
) -> None:
    data = random_transitions(getkey(), 8, observation_size=2, action_size=1)
    for wrong in ("observe", "longer"):
        with pytest.raises(ValueError, match="of Forgetful gives another state than"):
            eqrl.train_offline(
                Forgetful(wrong=wrong),
                data,
                ENV.spec,
                num_updates=1,
                batch_size=2,
                key=getkey(),
            )


def updated(agent: Any) -> object:
    return eqx.filter_eval_shape(
        agent.update,
        state_of(agent, ENV.spec),
        BATCH,
        step=struct(dtype=jnp.int32),
        key=KEY,
    )


@pytest.mark.parametrize(
    "wrap",
    [
        eqrl.Normalized,
        eqrl.NormalizedReward,
        lambda agent: eqrl.Intrinsic(agent, Amnesiac(wrong="")),
    ],
)
def test_what_the_agent_within_a_wrapper_gives_is_named(
    wrap: Callable[[Any], Any],
) -> None:
    for wrong, message in (
        ("update", r"`update` of Forgetful gives .*`return state, \{\}`"),
        ("longer", r"`update` of Forgetful gives another state.*`\.weight`"),
    ):
        with pytest.raises(ValueError, match=message):
            updated(wrap(Forgetful(wrong=wrong)))


def test_a_policy_must_give_a_distribution() -> None:
    with pytest.raises(ValueError, match=r"gives shape \(1,\).*AbstractDistribution"):
        inspect.unwrap(pick_action)(jnp.zeros(1), mode="greedy", key=None)


class Columns(Relay):
    """Gives a column of rewards."""

    def reward(self, state: None, batch: Any, **options: Any) -> Float[Array, "..."]:
        del state, options
        return batch.observation[..., :1]


def test_an_intrinsic_reward_is_one_number_for_each_transition() -> None:
    with pytest.raises(ValueError, match=r"`reward` of Columns gives shape \(4, 1\)"):
        updated(eqrl.Intrinsic(Learner(), Columns()))


class Amnesiac(Relay):
    """Returns what `wrong` says from its methods."""

    wrong: str = eqx.field(static=True)

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> Any:
        del spec, key
        return jnp.zeros(2)

    def observe(self, state: Any, transitions: Any) -> Any:
        del transitions
        return None if self.wrong == "observe" else state

    def update(self, state: Any, batch: Any, *, key: PRNGKeyArray) -> Any:
        del batch, key
        after = jnp.zeros(3) if self.wrong == "state" else state
        return state if self.wrong == "update" else (after, {})


def test_what_the_update_of_a_reward_gives_is_named() -> None:
    for wrong, message in (
        ("update", r"`update` of Amnesiac gives 'f32\[2\]'; .*`return state, \{\}`"),
        ("state", r"`update` of Amnesiac .*: it is of shape \(3,\) .*\(2,\)"),
    ):
        reward = Amnesiac(wrong=wrong)
        for agent in (
            eqrl.Intrinsic(Learner(), reward),
            eqrl.Intrinsic(Learner(), reward, reward_minibatches=2),
            eqrl.Intrinsic(Learner(), eqrl.Sum((reward,))),
        ):
            with pytest.raises(ValueError, match=message):
                updated(agent)
    agent = eqrl.Intrinsic(Learner(), Amnesiac(wrong="observe"))
    with pytest.raises(ValueError, match="`observe` of Amnesiac gives another state"):
        eqx.filter_eval_shape(agent.observe, state_of(agent, ENV.spec), BATCH)


def test_a_gradient_of_another_model_is_refused() -> None:
    adam = optax.adam(1e-3)
    step = inspect.unwrap(eqrl.gradient_step)
    with pytest.raises(ValueError, match=r"has the shape \(3,\), but .* \(2,\)"):
        step({"a": jnp.zeros(2)}, {"a": jnp.zeros(3)}, adam, None)
    with pytest.raises(ValueError, match="at other places"):
        step({"a": jnp.zeros(2)}, {"b": jnp.zeros(2)}, adam, None)


def test_callbacks_that_take_other_arguments_are_refused_before_the_first_step() -> (
    None
):
    options: dict[str, Any] = {"num_steps": 8, "key": jr.key(0)}
    callbacks: tuple[Any, ...] = (
        lambda step: None,
        lambda step, metrics: None,
        [lambda step, metrics, solution: None, lambda step, metrics: None],
    )
    for callback in callbacks:
        with pytest.raises(ValueError, match=r"`callback\(step, metrics, solution\)"):
            eqrl.train(Learner(), ENV, TRAINER, callback=callback, **options)
    with pytest.raises(ValueError, match=r"`checkpoint\(step, metrics, solution\)`"):
        eqrl.train(Learner(), ENV, TRAINER, checkpoint=lambda: None, **options)  # pyright: ignore[reportArgumentType]
    options = {
        "size": 2,
        "num_generations": 1,
        "steps_per_generation": 8,
        "num_episodes": 1,
        "key": jr.key(0),
    }
    for name, message in (
        ("callback", r"`callback\(step, metrics, solution\)`"),
        ("score", r"`score\(agent, state, evaluation\)`"),
    ):
        wrong: Any = {name: lambda only: None}
        with pytest.raises(ValueError, match=message):
            eqrl.train_population(Learner(), ENV, TRAINER, None, **options, **wrong)


def train(agent: Any, env: Any = ENV, **options: Any) -> object:
    given = {"num_steps": 8, "key": jr.key(0)} | options
    return eqrl.train(agent, env, TRAINER, **given)


def train_members(agent: Any) -> object:
    return eqrl.train_population(
        agent,
        ENV,
        TRAINER,
        None,
        size=2,
        num_generations=1,
        steps_per_generation=8,
        num_episodes=1,
        key=jr.key(0),
    )


HIGH = eqrl.SAC(target_entropy=0.7)
TOO_HIGH: list[Callable[[], object]] = [
    lambda: train(HIGH),
    lambda: train(eqrl.Normalized(eqrl.diayn(HIGH, 2, descriptor="observation"))),
    lambda: train(eqrl.TAAC(target_entropy=0.7)),
    lambda: train(eqrl.TAAC(switch_target_entropy=0.7)),
    lambda: train(eqrl.DiscreteSAC(target_entropy=1.2), Turns()),
    lambda: eqrl.train_seeds(
        HIGH, ENV, TRAINER, num_seeds=2, num_steps=8, key=jr.key(0)
    ),
    lambda: train_members(HIGH),
    lambda: train_members(
        eqx.filter_vmap(lambda x: eqrl.SAC(target_entropy=x))(jnp.array([0.7, 0.0]))
    ),
    lambda: train_members(
        eqx.filter_vmap(lambda x: eqrl.SAC(target_entropy=x))(jnp.array([0.0, 0.7]))
    ),
    lambda: eqrl.train_offline(HIGH, BATCH, ENV.spec, num_updates=1, key=jr.key(0)),
    lambda: eqrl.learn_skills(
        eqrl.Intrinsic(HIGH, eqrl.Incremental()),
        ENV,
        TRAINER,
        num_skills=1,
        num_steps=8,
        num_collected_episodes=1,
        key=jr.key(0),
    ),
]


@pytest.mark.parametrize("run", TOO_HIGH)
def test_a_target_entropy_out_of_reach_is_refused_before_the_first_step(
    run: Callable[[], object],
) -> None:
    message = r"target_entropy=(0\.7|1\.2)` is more than (0\.693|1\.1), .* Lower it\."
    with pytest.raises(ValueError, match=message):
        run()


def test_a_target_entropy_within_reach_is_not_refused() -> None:
    for agent in (
        eqrl.SAC(target_entropy=0.69),
        eqrl.SAC(target_entropy=0.7, learn_temperature=False),
        eqx.filter_vmap(lambda x: eqrl.SAC(target_entropy=x))(jnp.array([0.6, 0.5])),
    ):
        check_numbers(agent, ENV.spec)
    fixed = eqrl.DiscreteSAC(target_entropy=1.2, learn_temperature=False)
    check_numbers(fixed, Turns().spec)


def wrapped(agent: Any) -> Any:
    skilled = eqrl.NormalizedReward(eqrl.diayn(agent, 2, descriptor="observation"))
    return eqrl.Normalized(skilled)


@pytest.mark.parametrize("wrap", [lambda agent: agent, wrapped])
@pytest.mark.parametrize("kind", [eqrl.PPO, eqrl.PQN])
def test_a_state_whose_rate_was_annealed_to_0_is_refused(wrap: Any, kind: Any) -> None:
    def after(agent: Any, num_steps: Any) -> Any:
        state = state_of(agent, Turns().spec)
        return jax.tree_util.tree_map_with_path(
            lambda path, x: (
                np.int32(num_steps) if "num_steps" in jax.tree_util.keystr(path) else x
            ),
            state,
        )

    agent = wrap(kind(anneal_steps=60.0))
    message = r"observed 60 steps.* `anneal_steps=60`.*such as 68, or `None`\."
    with pytest.raises(ValueError, match=message):
        train(agent, Turns(), agent_state=after(agent, 60))
    check_rate(agent, after(agent, 59), 8)
    check_rate(wrap(kind()), after(agent, 60), 8)
    check_rate(agent, after(wrap(eqrl.DQN()), 60), 8)
    # A stack, whose shapes are compared later.
    check_rate(agent, after(agent, [60, 60]), 8)


def test_a_skill_of_a_state_whose_rate_was_annealed_to_0_is_refused() -> None:
    agent = eqrl.diayn(eqrl.PPO(anneal_steps=60.0), 2, descriptor="observation")
    state = state_of(agent, ENV.spec)
    done = eqx.tree_at(lambda x: x.agent.num_steps, state, np.int32(70))
    fixed, of_skill = eqrl.fix_skill(agent, done, jnp.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="`agent_state` would learn nothing more"):
        train(fixed, agent_state=of_skill)


class Ends(Drift):
    """Gives one flag for both ends of an episode."""

    never: bool = eqx.field(default=False, static=True)

    def step(
        self, state: DriftState, action: Float[Array, "1"], *, key: PRNGKeyArray
    ) -> tuple[DriftState, Outcome]:
        after, outcome = Drift.step(self, state, action, key=key)
        over: Bool[Array, ""] = (
            jnp.zeros((), bool) if self.never else outcome.terminated
        )
        outcome = dataclasses.replace(outcome, terminated=over, truncated=over)
        return after, outcome


def test_one_array_for_both_flags_is_refused_unless_it_never_ends() -> None:
    with pytest.raises(ValueError, match="one array for both"):
        check_env(Ends())
    check_env(Ends(never=True))
