"""What environments take for an action."""

from .._types.data import (
    AbstractActionSpace as AbstractActionSpace,
    Action as Action,
    Box as Box,
    Discrete as Discrete,
)
