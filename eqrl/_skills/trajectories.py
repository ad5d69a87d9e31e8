import equinox as eqx
from jaxtyping import Array, Bool, Float


class SkillTrajectories(eqx.Module):
    """Descriptors along episodes of several skills."""

    descriptors: Float[Array, "skills episodes time descriptor"]
    mask: Bool[Array, "skills episodes time"]
    first_descriptors: Float[Array, "skills episodes descriptor"] | None = None


SkillTrajectories.__init__.__doc__ = """**Arguments:**

- `descriptors`: of the state reached by each step, such as the transitions'
    `next_state_descriptor`.
- `mask`: which steps are within the episode; all other values are meaningless.
- `first_descriptors`: of the state before the first step of each episode; `None` if
    they are not known.
"""
