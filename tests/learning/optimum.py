"""How near a trained agent comes to the known optimum of an analytic CMDP."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ccpo
from ccpo.envs.registry import find_task


def assert_near_the_optimum(
    task: str, algorithm: str, thresholds: tuple[float, ...], *, out: Path, **settings: Any
) -> None:
    """Train; at each threshold, cost must be within 10 % of it and return within 10 % of the optimum."""
    agent = ccpo.train(task, algorithm, out=out, behaviour_thresholds=thresholds, **settings)
    table = agent.evaluate(thresholds, episodes=100, workers=1)
    env = find_task(task).make()
    found = {}
    for threshold in thresholds:
        episodes = table.select(table.threshold == threshold)
        optimum = env.optimal_return(threshold)
        found[threshold] = np.mean(episodes.cost) / threshold, np.mean(episodes.reward) / optimum
    print(task, algorithm, "cost/threshold and return/optimum:", found)
    for threshold, ratios in found.items():
        assert ratios == pytest.approx((1.0, 1.0), abs=0.1), (threshold, found)
