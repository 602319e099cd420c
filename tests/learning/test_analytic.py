"""CCPO on CMDPs whose optimal return is a known function of the threshold; the constraint is active at every one."""

import numpy as np
import pytest

import ccpo
from ccpo.envs.registry import find_task


def learn(task: str, out, **settings):
    """Return, cost and optimum at 13 thresholds of an agent trained under three."""
    agent = ccpo.train(task, out=out, **settings)
    thresholds = np.linspace(*agent.threshold_range, 13)
    table = agent.evaluate(thresholds, episodes=20, workers=1)
    by_threshold = [table.select(table.threshold == t) for t in thresholds]
    reward = np.array([part.reward.mean() for part in by_threshold])
    cost = np.array([part.cost.mean() for part in by_threshold])
    env = find_task(task).make()
    optimum = np.array([env.optimal_return(t) for t in thresholds])
    return reward / optimum, cost / thresholds


@pytest.mark.parametrize("task", ["StaticBudget"])
def test_static(task, tmp_path):
    reward, cost = learn(task, tmp_path)
    assert (np.abs(reward - 1.0) < 0.05).all(), reward
    assert (cost >= 0.9).all(), cost
    assert (cost <= 1.05).all(), cost
