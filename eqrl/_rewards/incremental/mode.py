import dataclasses
from typing import Literal


Feature = Literal["delta", "next_state"]
Normalization = Literal["previous_skill_mean", "batch_mean", "none", "released"]
ModeName = Literal["pseudocode", "paper", "released"]
Replay = Literal["keep", "half", "clear", "random_half"]


@dataclasses.dataclass(frozen=True)
class IncrementalMode:
    """Settings of one variant of DISk.

    - `k`: the distance is to the k-th nearest neighbor.
    - `feature`: the feature of a transition.
    - `per_timestep`: whether a transition is compared with those of its timestep only.
    - `normalization`: of the two distances.
    - `num_recent_episodes`: capacity of the set of recent features, in episodes.
    - `clear_recent`: whether each skill begins with an empty set of recent features.
    - `recollect`: whether all skills are rolled out again before the next one begins;
        otherwise only the newest is, and is added to the past features.
    - `include_newest`: whether the skill learned last is among them.
    - `replay`: the part of the replay that the next skill inherits.
    """

    k: int
    feature: Feature
    per_timestep: bool
    normalization: Normalization
    num_recent_episodes: int
    clear_recent: bool
    recollect: bool
    include_newest: bool
    replay: Replay


MODES: dict[ModeName, IncrementalMode] = {
    "paper": IncrementalMode(
        k=3,
        feature="delta",
        per_timestep=False,
        normalization="previous_skill_mean",
        num_recent_episodes=1,
        clear_recent=True,
        recollect=True,
        include_newest=True,
        replay="half",
    ),
    "pseudocode": IncrementalMode(
        k=5,
        feature="next_state",
        per_timestep=True,
        normalization="none",
        num_recent_episodes=100,
        clear_recent=True,
        recollect=False,
        include_newest=True,
        replay="keep",
    ),
    "released": IncrementalMode(
        k=3,
        feature="delta",
        per_timestep=False,
        normalization="released",
        num_recent_episodes=1,
        clear_recent=False,
        recollect=True,
        include_newest=False,
        replay="half",
    ),
}
