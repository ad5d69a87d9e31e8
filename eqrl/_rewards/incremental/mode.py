import dataclasses
from typing import Literal


Feature = Literal["delta", "next_state"]
Normalization = Literal["previous_skill_mean", "batch_mean", "none", "released"]
ModeName = Literal["pseudocode", "paper", "released"]
Replay = Literal["keep", "half", "clear"]


@dataclasses.dataclass(frozen=True)
class IncrementalMode:
    """One reading of how skills are learnt one after another.

    - `k`: which of the nearest neighbors counts.
    - `feature`: what the sets hold of a transition.
    - `per_timestep`: whether a transition is compared with others of its timestep only.
    - `normalization`: how the two distances are made commensurable.
    - `num_recent_episodes`: what the set of recent features holds, in episodes.
    - `clear_recent`: whether it begins empty with each skill.
    - `recollect`: whether all skills are rolled out again before the next begins, or
        the newest is added to what was collected before.
    - `include_newest`: whether the skill that was learnt last is among them.
    - `replay`: what of the replay the next skill is given.
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
