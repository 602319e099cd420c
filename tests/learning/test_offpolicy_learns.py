"""Off-policy Lagrangian methods on CMDPs with a known optimum, at the thresholds of their data, all active."""

import numpy as np
import pytest

import ccpo
from ccpo.envs.registry import find_task

pytestmark = pytest.mark.long


@pytest.mark.parametrize("thresholds", [(4.0, 8.0, 12.0), (8.0,)], ids=["conditioned", "single"])
@pytest.mark.parametrize("task", ["StaticBudget-T20", "DriftBudget-T20"])
@pytest.mark.parametrize("algorithm", ["sac_lag", "ddpg_lag"])
def test_learns_the_optimum_under_an_active_constraint(algorithm, task, thresholds, tmp_path):
    # Short episodes: the multipliers move once an episode, and need hundreds of moves to settle.
    settings = {"steps": 60_000, "warmup_steps": 600, "hidden": (64, 64)}
    agent = ccpo.train(task, algorithm, out=tmp_path, behaviour_thresholds=thresholds, **settings)
    table = agent.evaluate(thresholds, episodes=100, workers=1)
    env = find_task(task).make()
    for threshold in thresholds:
        episodes = table.select(table.threshold == threshold)
        cost, reward = np.mean(episodes.cost) / threshold, np.mean(episodes.reward) / env.optimal_return(threshold)
        assert 0.9 <= cost <= 1.1, (threshold, cost, reward)
        assert reward >= 0.9, (threshold, cost, reward)
