"""A simulator of your own: a tank of water, held at a level by a valve and a drain.

It is written to Gymnasium's interface, in NumPy, and could as well call a program of
yours or a machine.
"""

from typing import Any

import gymnasium
import numpy as np


class Tank(gymnasium.Env[np.ndarray, np.ndarray]):
    observation_space = gymnasium.spaces.Box(0, 2, (2,))
    action_space = gymnasium.spaces.Box(0, 0.2, (1,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.level, self.goal = self.np_random.uniform(0.2, 1, 2)
        return self.observed(), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.level += float(action[0]) - 0.1 * np.sqrt(self.level)
        self.level = max(self.level, 0.0)
        spills = bool(self.level > 1.5)
        return self.observed(), -abs(self.level - self.goal), spills, False, {}

    def observed(self) -> np.ndarray:
        return np.array([self.level, self.goal], np.float32)

    def render(self) -> np.ndarray:
        image = np.full((150, 60, 3), 255, np.uint8)
        image[max(150 - int(100 * self.level), 0) :] = (70, 130, 180)
        return image
