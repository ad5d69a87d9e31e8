"""Spaces of actions."""

from ._types.data import (
    AbstractActionSpace as AbstractActionSpace,
    Action as Action,
    Box as Box,
    Discrete as Discrete,
)
