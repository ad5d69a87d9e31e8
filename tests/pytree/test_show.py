import equinox as eqx
import jax.numpy as jnp

import eqrl


def test_an_agent_is_printed_with_its_values() -> None:
    text = repr(eqrl.SAC(actor_lr=1e-3, target_entropy=None))
    for part in ("SAC(", "actor_lr=0.001,", "critic_lr=0.0003,", "num_critics=2,"):
        assert part in text
    assert "target_entropy=None" in text and "hidden_sizes=(256, 256)" in text
    assert "activation=relu" in text


def test_what_is_inside_is_printed_with_its_values_too() -> None:
    agent = eqrl.diayn(eqrl.Normalized(eqrl.TD3(policy_delay=3)), num_skills=4)
    text = repr(agent)
    for part in ("Discriminator(", "Normalized(", "policy_delay=3", "OneHotSkills("):
        assert part in text


def test_a_trainer_and_pbt_are_printed_with_their_defaults() -> None:
    text = repr(eqrl.Trainer(capacity=100))
    assert "batch_size=256" in text and "capacity=100" in text
    prior = eqrl.LogUniform(1e-4, 1e-2)
    assert repr(prior) == "LogUniform(low=0.0001, high=0.01)"
    pbt = eqrl.PBT(where=lambda agent: (agent.actor_lr,), priors=(prior,))
    assert "resample_probability=0.25" in repr(pbt) and repr(prior) in repr(pbt)


def test_a_stack_and_traced_values_are_printed_as_shapes() -> None:
    rates = jnp.asarray([1e-4, 1e-3])
    stack = eqx.filter_vmap(lambda rate: eqrl.PPO(lr=rate))(rates)
    assert "PPO(" in repr(stack) and "lr=f32[2]" in repr(stack)
    seen: list[str] = []
    eqx.filter_vmap(lambda rate: seen.append(repr(eqrl.PPO(lr=rate))))(rates)
    assert "lr=f32[]" in seen[0]
