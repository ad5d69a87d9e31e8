"""The reward of DISk over lists of features, one transition after another."""

import dataclasses
from collections import defaultdict

import numpy as np


def kth_distance(feature: np.ndarray, points: list[np.ndarray], k: int) -> float:
    """Not a number where there are fewer than k points."""
    distances = sorted(float(np.linalg.norm(feature - point)) for point in points)
    return distances[k - 1] if len(distances) >= k else np.nan


@dataclasses.dataclass
class Restated:
    """What `eqrl.Incremental` is, where as many points are drawn as there are."""

    normalization: str
    k: int
    alpha: float
    beta: float
    recent_rows: int
    per_timestep: bool

    def __post_init__(self) -> None:
        self.past: dict[int, list[np.ndarray]] = defaultdict(list)
        self.recent: dict[int, list[np.ndarray]] = defaultdict(list)
        self.means: list[tuple[float, float]] = []
        self.previous = (np.nan, np.nan)
        self.calls = 0
        self.all_calls = 0
        self.expected_calls = 0
        self.bonuses: list[float] = []
        self.penalties: list[float] = []
        self.bonus_factor = 1.0
        self.penalty_factor = 1.0

    def bucket(self, timestep: int) -> int:
        return int(timestep) if self.per_timestep else 0

    def observe(self, features: np.ndarray, timesteps: np.ndarray) -> None:
        for feature, timestep in zip(features, timesteps, strict=True):
            recent = self.recent[self.bucket(timestep)]
            recent.append(feature)
            del recent[: -self.recent_rows]

    def with_past(self, features: np.ndarray, mask: np.ndarray) -> None:
        for episode, there in zip(features, mask, strict=True):
            for timestep in np.flatnonzero(there).tolist():
                self.past[self.bucket(timestep)].append(episode[timestep])

    def distances(
        self, features: np.ndarray, timesteps: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = [
            (
                kth_distance(feature, self.past[self.bucket(timestep)], self.k),
                kth_distance(feature, self.recent[self.bucket(timestep)], self.k),
            )
            for feature, timestep in zip(features, timesteps, strict=True)
        ]
        diversity, consistency = np.array(rows).T
        return diversity, consistency

    def terms(
        self, diversity: np.ndarray, consistency: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.normalization == "released":
            diversity = self.bonus_factor * np.nan_to_num(diversity, nan=1)
            consistency = self.temperature * self.penalty_factor * consistency
        elif self.normalization == "batch_mean":
            diversity = diversity / known_mean(diversity, 1)
            consistency = consistency / known_mean(consistency, 1)
        elif self.normalization == "previous_skill_mean":
            diversity = diversity / divisor(self.previous[0], diversity)
            consistency = consistency / divisor(self.previous[1], consistency)
        return (
            self.beta * np.nan_to_num(diversity, nan=1),
            -self.alpha * np.nan_to_num(consistency, nan=0),
        )

    def reward(self, features: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        bonus, penalty = self.terms(*self.distances(features, timesteps))
        return bonus + penalty

    def update(self, features: np.ndarray, timesteps: np.ndarray) -> None:
        distances = self.distances(features[:32], timesteps[:32])
        bonus, penalty = self.terms(*distances)
        self.means.append(
            (known_mean(distances[0], np.nan), known_mean(distances[1], np.nan))
        )
        self.calls += 1
        self.all_calls += 1
        if self.all_calls % 10_000 == 0:
            self.bonuses.append(bonus.mean())
            self.penalties.append(penalty.mean())

    @property
    def temperature(self) -> float:
        if self.expected_calls == 0:
            return 1
        return float(np.tanh(4 * (2 * self.calls / self.expected_calls - 1)))

    def begin_skill(self, num_updates: int, *, clear_recent: bool) -> None:
        means = np.array(self.means)
        self.previous = (
            known_mean(means[:, 0], np.nan),
            known_mean(means[:, 1], np.nan),
        )
        # As in the released code: an empty list is given a 1, which stays there.
        self.bonuses = self.bonuses or [1.0]
        self.penalties = self.penalties or [1.0]
        self.bonus_factor = 1 / (self.beta * np.mean(self.bonuses))
        self.penalty_factor = 1 / (self.alpha * np.mean(self.penalties))
        self.means = []
        self.calls = 0
        self.expected_calls = num_updates
        if clear_recent:
            self.recent.clear()


def known_mean(values: np.ndarray, default: float) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else default


def divisor(previous: float, values: np.ndarray) -> float:
    mean = known_mean(values, 1)
    return mean if np.isnan(previous) else max(previous, 0.01 * mean)
