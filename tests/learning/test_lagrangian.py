"""Off-policy Lagrangian methods on CMDPs with a known optimum, at the thresholds of their data, all active."""

import numpy as np
import pytest

import ccpo
from ccpo.envs.registry import find_task

pytestmark = pytest.mark.long


@pytest.mark.parametrize("thresholds", [(20.0, 40.0, 60.0), (40.0,)], ids=["conditioned", "single"])
@pytest.mark.parametrize("task", ["StaticBudget", "DriftBudget"])
@pytest.mark.parametrize("algorithm", ["sac_lag", "ddpg_lag"])
def test_learns_the_optimum_under_an_active_constraint(algorithm, task, thresholds, tmp_path):
    agent = ccpo.train(task, algorithm, out=tmp_path, behaviour_thresholds=thresholds, steps=100_000)
    table = agent.evaluate(thresholds, episodes=20, workers=1)
    env = find_task(task).make()
    for threshold in thresholds:
        episodes = table.select(table.threshold == threshold)
        cost, reward = np.mean(episodes.cost) / threshold, np.mean(episodes.reward) / env.optimal_return(threshold)
        assert 0.9 <= cost <= 1.1, (threshold, cost, reward)
        assert reward >= 0.9, (threshold, cost, reward)
