from ._critic import (
    Critic as Critic,
    bootstrapped_target as bootstrapped_target,
    critic_loss as critic_loss,
    critic_values as critic_values,
)
from ._csf import (
    csf_actor_loss as csf_actor_loss,
    csf_critic_loss as csf_critic_loss,
    csf_loss as csf_loss,
    csf_next_features as csf_next_features,
)
from ._discrete_sac import (
    action_values as action_values,
    discrete_critic_loss as discrete_critic_loss,
    discrete_sac_actor_loss as discrete_sac_actor_loss,
    discrete_sac_next_value as discrete_sac_next_value,
)
from ._dqn import (
    dqn_loss as dqn_loss,
    dqn_next_value as dqn_next_value,
    multi_step_return as multi_step_return,
)
from ._novelty import (
    disagreement as disagreement,
    knn_distance as knn_distance,
    particle_entropy as particle_entropy,
)
from ._ppo import (
    lambda_return as lambda_return,
    ppo_actor_loss as ppo_actor_loss,
    ppo_critic_loss as ppo_critic_loss,
)
from ._sac import (
    sac_actor_loss as sac_actor_loss,
    sac_next_value as sac_next_value,
    sac_temperature_loss as sac_temperature_loss,
)
from ._skill import (
    contrastive_loss as contrastive_loss,
    discriminator_loss as discriminator_loss,
    metra_loss as metra_loss,
    mixture_log_prob as mixture_log_prob,
    skill_log_ratio as skill_log_ratio,
    smerl_mask as smerl_mask,
)
from ._taac import (
    compare_through_target as compare_through_target,
    flat_trajectory as flat_trajectory,
    least_value as least_value,
    switch_policy as switch_policy,
    switch_probabilities as switch_probabilities,
    taac_actor_loss as taac_actor_loss,
    taac_critic_loss as taac_critic_loss,
    taac_next_value as taac_next_value,
    taac_temperature_loss as taac_temperature_loss,
    trajectory_values as trajectory_values,
)
from ._td3 import td3_actor_loss as td3_actor_loss, td3_next_value as td3_next_value
