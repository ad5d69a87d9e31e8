"""The defaults of agents, networks and trainers, which decide what is learned."""

import inspect
import operator
import re

import pytest

import eqrl


_DEFAULTS = """
SAC: actor_lr=0.0003 critic_lr=0.0003 temperature_lr=0.0003 discount=0.99
    target_step_size=0.005 reward_scale=1.0 target_entropy=None
    initial_temperature=1.0 learn_temperature=True num_critics=2
TD3: actor_lr=0.0003 critic_lr=0.0003 discount=0.99 target_step_size=0.005
    reward_scale=1.0 exploration_noise=0.1 policy_noise=0.2 noise_clip=0.5
    policy_delay=2 num_critics=2
TAAC: window_length=4 actor_lr=0.0003 critic_lr=0.0003 temperature_lr=0.0003
    discount=0.99 target_step_size=0.005 target_period=1 reward_weights=None
    num_critics=2 initial_temperature=1.0 target_entropy=None
    switch_target_entropy=None advantage_clip=None max_repeat_steps=None
    randomize_first_trajectory=False epsilon=0.0 bootstrap='mixed'
    target='compare_through' faithful=False debug=False
DQN: lr=0.00025 discount=0.99 target_step_size=1.0 target_period=50
    initial_epsilon=1.0 final_epsilon=0.05 epsilon_steps=10000.0 reward_scale=1.0
    return_steps=1 double=True huber=False
DiscreteSAC: actor_lr=0.0003 critic_lr=0.0003 temperature_lr=0.0003 discount=0.99
    target_step_size=0.005 reward_scale=1.0 target_entropy=None
    initial_temperature=1.0 learn_temperature=True num_critics=2
PPO: lr=0.00025 discount=0.99 decay=0.95 clip=0.2 value_clip=None value_weight=0.5
    entropy_weight=0.01 max_gradient_norm=0.5 anneal_steps=None reward_scale=1.0
    num_epochs=4 num_minibatches=4 normalize_advantage=True make_actor=None
    recompute_advantages=False
PQN: lr=0.0005 discount=0.99 decay=0.65 initial_epsilon=1.0 final_epsilon=0.05
    epsilon_steps=100000.0 max_gradient_norm=10.0 anneal_steps=None reward_scale=1.0
    num_epochs=2 num_minibatches=32
CSF: num_dimensions=2 actor_lr=0.0001 critic_lr=0.0001 temperature_lr=0.0001
    phi_lr=0.0001 discount=0.99 target_step_size=0.005 contrastive_weight=5.0
    target_entropy=None initial_temperature=0.01 num_negatives=256 num_critics=2
NormalizedReward: clip=10.0 subtract_mean=False
Intrinsic: environment_weight=None reward_minibatches=1 score_after_update=False
Discriminator: lr=0.0003 descriptor='state_descriptor' include_prior=True
    make_network=None
Incremental: alpha=1.0 beta=1.0 mode='paper' k=None num_samples=512 feature=None
    normalization=None per_timestep=None descriptor='state_descriptor'
    recent_capacity=None past_capacity=0
METRA: lr=0.0001 multiplier_lr=0.0001 initial_multiplier=30.0 slack=0.001
    constraint='sum' descriptor='observation'
CIC: lr=0.0001 temperature=0.5 entropy_weight=1.0 contrastive_weight=0.0 clip=0.0
    num_neighbors=15 num_features=64 descriptor='observation'
ParticleEntropy: lr=0.0001 clip=0.0 num_neighbors=12 num_features=64
    descriptor='observation' make_encoder=None
RND: lr=0.0001 clip=5.0 num_features=512 descriptor='observation'
ICM: lr=0.0001 scale=1.0 num_features=64 descriptor='observation' make_encoder=None
Disagreement: lr=0.0001 num_models=5 descriptor='observation'
DADS: lr=0.0003 clip=5.0 num_components=4 num_samples=16 descriptor='state_descriptor'
    dynamics_input='observation'
SMERL: target=None margin=100.0 scale=1.0
Trainer: num_envs=1 batch_size=256 capacity=100000 warmup_steps=1000
    steps_per_iteration=1 updates_per_iteration=1 warmup_mode='random'
PBT: num_replaced=None num_elite=None resample_probability=0.25 selection='truncation'
    copy_replay=True
Truncation: num_replaced=2 num_elite=2
Tournament: num_replaced=None
learn_skills: num_collected_episodes=100 max_skills=None replay=None initial=None
    log_every=1000 evaluations=None callback=None
nn.Gaussian: hidden_sizes=(256,256) layer_norm=False residual=False encoder=None
    precision='float32'
nn.Choice: hidden_sizes=(64,64) layer_norm=False residual=False encoder=None
    precision='float32'
nn.Value: hidden_sizes=(64,64) layer_norm=False residual=False encoder=None
    precision='float32'
nn.ActionValues: hidden_sizes=(120,84) dueling=False layer_norm=False residual=False
    encoder=None precision='float32'
nn.Normal: hidden_sizes=(64,64) squash=False layer_norm=False residual=False
    encoder=None precision='float32' initial_scale=1.0
nn.Convolution: channels=16 kernels=3 strides=1
Evaluations: num_episodes=16 mode='greedy' score=None patience=None target=None
    log=None
"""


@pytest.mark.parametrize("name", re.findall(r"^[\w.]+", _DEFAULTS, re.M))
def test_defaults_stay(name: str) -> None:
    (listed,) = re.findall(rf"^{name}: (.*(?:\n    .*)*)", _DEFAULTS, re.M)
    parameters = inspect.signature(operator.attrgetter(name)(eqrl)).parameters
    kinds = (bool, int, float, str, tuple, type(None))
    defaults = {x: y.default for x, y in parameters.items()}
    shown = {x: repr(y).replace(" ", "") for x, y in defaults.items()}
    found = [f"{x}={shown[x]}" for x, y in defaults.items() if isinstance(y, kinds)]
    assert found == listed.split()
