"""A cheetah that is paid for hurdles, HalfCheetahHurdle of METRA's paper."""

import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco import half_cheetah_v5


MODEL = Path(half_cheetah_v5.__file__).parent / "assets" / "half_cheetah.xml"
HURDLES = tuple(3.0 + 4.0 * index for index in range(7))
# Half of the height, in meters, of a box that stands on the ground, and of its depth.
HALF_HEIGHT, HALF_DEPTH = 0.15, 0.05


def with_hurdles(model: str) -> str:
    """The cheetah's model with a box across the track at each of `HURDLES`."""
    tree = xml.fromstring(model)
    world = tree.find("worldbody")
    assert world is not None
    for index, x in enumerate(HURDLES):
        xml.SubElement(
            world,
            "geom",
            name=f"hurdle{index}",
            type="box",
            pos=f"{x} 0 {HALF_HEIGHT}",
            size=f"{HALF_DEPTH} 1 {HALF_HEIGHT}",
            # Like the floor, it touches the cheetah.
            conaffinity="1",
            rgba="0.6 0.3 0.2 1",
        )
    return xml.tostring(tree, encoding="unicode")


class HalfCheetahHurdle(half_cheetah_v5.HalfCheetahEnv):
    """Gymnasium's cheetah with hurdles, each of which pays 1 once it is passed.

    It is passed when the back foot is beyond it. The observation begins with x and ends
    with the x of the next hurdle and the way of the back foot to it; after the last one
    both stay at those of the last. `eqrl.envs.GymnasiumEnv(HalfCheetahHurdle,
    max_steps=200, state_descriptor="x")` is the task of the paper, which does not print
    the size of its hurdles; these are 0.3 high and 0.1 deep.
    """

    def __init__(self, **options: Any) -> None:
        self._num_passed = 0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cheetah.xml"
            path.write_text(with_hurdles(MODEL.read_text()))
            super().__init__(
                xml_file=str(path),
                exclude_current_positions_from_observation=False,
                **options,
            )
        seen: Any = self.observation_space
        self.observation_space = spaces.Box(
            np.append(seen.low, 2 * [-np.inf]),
            np.append(seen.high, 2 * [np.inf]),
            dtype=np.float64,
        )

    def step(self, action: Any) -> Any:
        _, _, terminated, truncated, info = super().step(action)
        foot = self._foot()
        before = self._num_passed
        self._num_passed = max(before, sum(foot > x for x in HURDLES))
        reward = float(self._num_passed - before)
        return self._get_obs(), reward, terminated, truncated, info

    def reset_model(self) -> Any:
        self._num_passed = 0
        return super().reset_model()

    def _foot(self) -> float:
        """The x of the back foot."""
        return float(self.data.body("bfoot").xpos[0])

    def _get_obs(self) -> Any:
        following = HURDLES[min(self._num_passed, len(HURDLES) - 1)]
        seen = super()._get_obs()
        return np.append(seen, [following, following - self._foot()])
