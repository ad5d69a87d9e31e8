"""Optuna chooses hyperparameters of PPO; each trial trains four seeds.

Only the first trial compiles, since trials differ in numbers alone.
"""

from typing import Any

import jax.random as jr

import eqrl


NUM_STEPS = 51_200
ENV = eqrl.envs.make("gymnax/CartPole-v1")
TRAINER = eqrl.Trainer.on_policy(num_envs=4, num_steps=128)


def objective(trial: Any) -> float:
    """The mean greedy return of four seeds after training."""
    agent = eqrl.PPO(
        lr=trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        clip=trial.suggest_float("clip", 0.1, 0.4),
        entropy_weight=trial.suggest_float("entropy_weight", 1e-4, 1e-1, log=True),
    )
    evaluations = eqrl.Evaluations(
        agent, ENV, every=NUM_STEPS, key=jr.key(1), num_episodes=64
    )
    try:
        eqrl.train_seeds(
            agent,
            ENV,
            TRAINER,
            num_seeds=4,
            num_steps=NUM_STEPS,
            key=jr.key(0),
            evaluations=evaluations,
        )
    except eqrl.NonFiniteError:
        # All seeds diverged. Optuna counts a trial without a number as failed.
        return float("nan")
    return evaluations.scores[-1]


def main(num_trials: int = 20) -> None:
    # `pip install optuna`; eqrl does not need it.
    import optuna  # pyright: ignore[reportMissingImports]

    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0)
    )
    study.optimize(objective, n_trials=num_trials)
    print(study.best_value, study.best_params)


if __name__ == "__main__":
    main()
