from collections.abc import Sequence
from typing import Any

import numpy as np

from .._pytree.fields import converted
from ._make import make
from ._wrappers import DisabledActions, TimeLimit


_LEGS = (1, 2, 3, 4)


def ant_with_broken_legs(
    legs: Sequence[int], *, backend: str | None = None, max_steps: int | None = None
) -> DisabledActions[Any]:
    """Brax's ant with some legs that are not actuated.

    Hip and ankle of a broken leg get no torque, whatever an agent chooses. The mask of
    broken legs is a leaf, so ants with other broken legs share their compilations.

    Legs are numbered as in brax's model, in which `hip_1` and `ankle_1` are the joints
    of leg 1. Seen from above, with x to the right, the direction that brax rewards, and
    y upwards, they lie counter-clockwise: leg 1 to the upper right, leg 2 to the upper
    left, leg 3 to the lower left, leg 4 to the lower right. The elements of the action
    are in another order: the first two are those of leg 4.

    **Arguments:**

    - `legs`: the broken legs, numbered 1 to 4, possibly none.
    - `backend`, `max_steps`: as in [`eqrl.envs.make`][].

    **Returns:**

    `make("brax/ant", ...)` inside a [`eqrl.envs.DisabledActions`][].
    """
    legs = converted("legs", tuple, legs, f"must be a sequence of some of {_LEGS}.")
    wrong = [leg for leg in legs if leg not in _LEGS]
    if wrong:
        raise ValueError(f"`legs` names {wrong}, but an ant has the legs {_LEGS}.")
    env = make("brax/ant", backend=backend, max_steps=max_steps)
    # Brax takes seconds to import, which `import eqrl` must not.
    from ._brax import BraxEnv

    assert isinstance(env, TimeLimit) and isinstance(env.env, BraxEnv)
    environment: Any = env.env.environment
    system = environment.sys
    # Leg 1 is the link `aux_1`, the thigh, and its child without a name.
    thighs = {system.link_names.index(f"aux_{leg}"): leg for leg in _LEGS}
    link_of_joint = np.asarray(system.dof_link())
    disabled = []
    for element, joint in enumerate(np.asarray(system.actuator.qd_id)):
        link = int(link_of_joint[joint])
        thigh = link if link in thighs else int(system.link_parents[link])
        if thighs[thigh] in legs:
            disabled.append(element)
    return DisabledActions(env, disabled)
