"""Evaluation while training: the best policy, and an early end."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Generic

import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._agents.base import AbstractAgent
from .._interaction.evaluate import Evaluation, evaluate
from .._interaction.evaluate_skills import mean_return
from .._pytree.arguments import checked
from .._pytree.fields import PositiveInt, Range, Takes, reusable_key
from .._pytree.tree import tree_copy
from .._types.custom_types import EnvState, Extras, Memory, Mode, State
from ..envs import AbstractEnv
from .rows import OfflineSolution, Solution


@dataclasses.dataclass(frozen=True)
class BestPolicy(Generic[State]):
    """The agent's state with the highest score of an `Evaluations`.

    **Attributes:**

    - `step`: environment steps before it was evaluated.
    - `score`: its score, the mean return by default.
    - `state`: the agent's state, a copy.
    """

    step: int
    score: float
    state: State


class Evaluations(Generic[State]):
    """Evaluates an agent at intervals of steps; a callback of `train`.

    Of `train_offline` they are updates.

    ```python
    evaluations = eqrl.Evaluations(agent, env, every=5_000, key=jr.key(1), patience=5)
    eqrl.train(agent, env, trainer, num_steps=..., key=key, callback=evaluations)
    policy = evaluations.best.state
    ```

    It keeps the best policy, and ends training where that is asked for. Episodes are
    played beside the training, which they do not affect; their steps are not counted.

    **Attributes:**

    - `steps`: the environment steps before each evaluation.
    - `scores`: as many numbers, mean returns by default.
    - `returns`: as many arrays with the axis `episodes`.
    - `best`: the policy with the highest score, the first of several; `None` before
        the first evaluation.
    """

    @checked
    def __init__(
        self,
        agent: AbstractAgent[State, Memory, Extras],
        env: AbstractEnv[EnvState],
        *,
        every: PositiveInt,
        key: PRNGKeyArray,
        num_episodes: PositiveInt = 16,
        mode: Mode = "greedy",
        score: Annotated[
            Callable[
                [AbstractAgent[State, Memory, Extras], State, Evaluation[None]],
                Float[Array, ""],
            ],
            Takes(("agent", "state", "evaluation")),
        ]
        | None = None,
        patience: PositiveInt | None = None,
        target: Annotated[float, Range()] | None = None,
        log: Annotated[
            Callable[[dict[str, float], int], object], Takes(("metrics", "step"))
        ]
        | None = None,
    ) -> None:
        """**Arguments:**

        - `agent`: the agent that is trained, or one that acts from its state.
        - `env`: where to evaluate it; it needs a time limit.
        - `every`: environment steps from one evaluation to the next. An evaluation
            takes place after the first row of the metrics, of `log_every` steps, that
            reaches a multiple of it.
        - `key`: from it and the step each evaluation derives its own.
        - `num_episodes`: of each evaluation.
        - `mode`: how actions are picked.
        - `score`: maps an agent, its state and its `Evaluation` to a number, the higher
            the better; by default the mean return. Required if the reward is a vector.
        - `patience`: ends training when this many evaluations in a row were no better
            than the best before them; `None` is never.
        - `target`: ends training when a score reaches it; `None` is never.
        - `log`: called as `log(metrics, step)` after each evaluation with the mean
            `evaluation_return` and `evaluation_length`, and with `evaluation_score`, if
            there is a `score`.
        """
        if score is None and env.spec.reward_size is not None:
            raise ValueError(
                "The environment's reward is a vector, so that there is no mean return "
                "by which one policy is better than another; give a `score`, such as "
                "`eqrl.weighted_return`."
            )
        key = reusable_key(key)
        self._agent, self._env, self._key = agent, env, key
        self._every, self._num_episodes = every, num_episodes
        self._mode: Mode = mode
        self._score, self._patience, self._target = score, patience, target
        self._log = log
        # Evaluations that were no better.
        self._since_best = 0
        self.steps: list[int] = []
        self.scores: list[float] = []
        self.returns: list[Float[np.ndarray, "episodes ..."]] = []
        self.best: BestPolicy[State] | None = None

    def __call__(
        self,
        step: int,
        metrics: object,
        solution: Solution[State, EnvState, Memory, Extras] | OfflineSolution[State],
    ) -> bool:
        """Evaluates if it is time. Returns whether training should end."""
        del metrics
        if isinstance(solution, Solution) and solution.trainer_state.failed.ndim == 1:
            raise ValueError(
                "`Evaluations` is a callback of `train`, which trains one agent; of "
                "`train_seeds` evaluate `eqrl.member(solution.state, seed)` in a "
                "callback of your own, or when training is over."
            )
        rows = solution.metrics["step"]
        before = int(rows[-2]) if len(rows) > 1 else 0
        if step // self._every == before // self._every:
            return False
        evaluation = evaluate(
            self._agent,
            solution.state,
            self._env,
            num_episodes=self._num_episodes,
            key=jr.fold_in(self._key, step),
            mode=self._mode,
        )
        score = mean_return if self._score is None else self._score
        self.steps.append(step)
        self.scores.append(float(score(self._agent, solution.state, evaluation)))
        self.returns.append(np.asarray(evaluation.returns))
        if self._log is not None:
            logged = {"evaluation_length": float(np.mean(evaluation.lengths))}
            # Vectors of returns have no mean that would say anything.
            if evaluation.returns.ndim == 1:
                logged["evaluation_return"] = float(np.mean(evaluation.returns))
            if self._score is not None:
                logged["evaluation_score"] = self.scores[-1]
            self._log(logged, step)
        # A score of nan is never better, not even than none.
        least = -math.inf if self.best is None else self.best.score
        self._since_best += 1
        if self.scores[-1] > least:
            self._since_best = 0
            state = tree_copy(solution.state)
            self.best = BestPolicy(step=step, score=self.scores[-1], state=state)
        if self._target is not None and self.scores[-1] >= self._target:
            return True
        return self._patience is not None and self._since_best >= self._patience
