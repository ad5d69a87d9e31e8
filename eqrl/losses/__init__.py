from ._bootstrap import bootstrapped_target as bootstrapped_target
from ._critic import (
    Critic as Critic,
    critic_loss as critic_loss,
    critic_values as critic_values,
)
from ._sac import (
    sac_actor_loss as sac_actor_loss,
    sac_next_value as sac_next_value,
    sac_temperature_loss as sac_temperature_loss,
)
from ._skill import (
    discriminator_loss as discriminator_loss,
    skill_log_ratio as skill_log_ratio,
)
from ._td3 import (
    td3_actor_loss as td3_actor_loss,
    td3_next_value as td3_next_value,
)
