"""CCPO on CMDPs whose optimal return is a known function of the threshold, with the settings that it has unless told.

Trained under three behaviour thresholds, evaluated at 13 that are mostly unseen; the constraint is active at every one.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ccpo
from ccpo.envs.registry import TASKS, find_task

ANALYTIC = [task.name for task in TASKS.values() if task.closed_form]


def learn(task: str, out: Path, *, episodes: int, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean return over the optimum and mean cost over the threshold, at 13 thresholds."""
    agent = ccpo.train(task, out=out, **settings)
    thresholds = np.linspace(*agent.threshold_range, 13)
    table = agent.evaluate(thresholds, episodes=episodes, workers=1)
    parts = [table.select(table.threshold == t) for t in thresholds]
    env = find_task(task).make()
    reward = np.array([part.reward.mean() / env.optimal_return(t) for part, t in zip(parts, thresholds, strict=True)])
    cost = np.array([part.cost.mean() / t for part, t in zip(parts, thresholds, strict=True)])
    print(task, settings, "return/optimum", reward.round(3), "cost/threshold", cost.round(3))
    return reward, cost


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("task", ANALYTIC)
def test_the_closed_form_is_nearly_reached_on_every_analytic_task(task, seed, tmp_path):
    reward, cost = learn(task, tmp_path, episodes=20, seed=seed)
    assert (reward >= 0.92).all(), reward
    assert (cost <= 1.05).all(), cost


SMALL = {"hidden": (32, 32), "features": 16, "batch": 64, "states": 64, "steps": 45_000, "updates_per_step": 0.2}


@pytest.mark.parametrize("task", ["StaticBudget-T20", "LateBudget-T20"])
def test_a_short_training_of_small_networks_spends_budgets_well(task, tmp_path):
    """A minute: far from the closed form, and further still from a policy that does not learn or does not keep
    its budget."""
    reward, cost = learn(task, tmp_path, episodes=5, **SMALL)
    assert (reward >= 0.75).all(), reward
    assert (cost >= 0.6).all(), cost
    assert (cost <= 1.25).all(), cost
