"""CCPO on CMDPs whose optimal return is a known function of the threshold.

Trained under three behaviour thresholds, evaluated at 13 that are mostly unseen; the constraint is active at every one.
"""

import time

import numpy as np
import pytest

import ccpo
from ccpo.envs.registry import find_task

pytestmark = pytest.mark.long

SMALL = {
    "steps": 120_000,
    "warmup_steps": 1_200,
    "hidden": (64, 64),
    "batch": 128,
    "states": 32,
    "updates_per_step": 0.15,
    "mstep_kl_std_bound": 0.0002,
    "mstep_multiplier_rate": 0.01,
    "critic_rate": 0.002,
    "discount": 0.9,
    "pretrain_share": 0.2,
    "relabel_share": 0.7,
    "unseen_share": 0.8,
    "spread_embedding": True,
    "constraint_gain": 0.1,
    "normalise_observations": False,
    "feedback_rate": 0.1,
    "violation_margin": 0.0,
    "rate_decay": 0.9,
}


def learn(task: str, out, **settings):
    """Return over optimum and cost over threshold, at 13 thresholds; and the seconds that training took."""
    began = time.process_time()
    agent = ccpo.train(task, out=out, **{**SMALL, **settings})
    seconds = time.process_time() - began
    thresholds = np.linspace(*agent.threshold_range, 13)
    table = agent.evaluate(thresholds, episodes=20, workers=1)
    parts = [table.select(table.threshold == t) for t in thresholds]
    env = find_task(task).make()
    optimum = np.array([env.optimal_return(t) for t in thresholds])
    reward = np.array([part.reward.mean() for part in parts]) / optimum
    cost = np.array([part.cost.mean() for part in parts]) / thresholds
    print(task, f"{seconds:.0f} s", "return/optimum", reward.round(3), "cost/threshold", cost.round(3))
    return reward, cost, seconds


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("StaticBudget", {}),
        ("StaticBudget-T20-C100", {}),
        ("StaticBudget-T500-C0.01", {"rollout_length": 100, "spread_embedding": False}),
    ],
)
def test_static(task, settings, tmp_path):
    reward, cost, _ = learn(task, tmp_path, **settings)
    assert (np.abs(reward - 1.0) <= 0.05).all(), reward
    assert (cost >= 0.9).all(), cost
    assert (cost <= 1.05).all(), cost


@pytest.mark.parametrize("task", ["DriftBudget"])
def test_dynamic(task, tmp_path):
    reward, cost, _ = learn(task, tmp_path, feedback_rate=0.2, violation_margin=2.0)
    assert (reward >= 0.9).all(), reward
    assert (cost <= 1.05).all(), cost


def test_late(tmp_path):
    """Safe at every threshold; the gap to the closed form is printed, closing it is later work."""
    settings = {"horizon": "finite", "discount": 0.95, "violation_margin": 1.0, "spread_embedding": False}
    _, cost, _ = learn("LateBudget", tmp_path, **settings)
    assert (cost <= 1.1).all(), cost


@pytest.mark.parametrize("switch", ["versatile_critic", "versatile_policy"])
def test_the_ablations_learn_at_the_behaviour_thresholds(switch, tmp_path):
    reward, cost, _ = learn("StaticBudget", tmp_path, **{switch: False})
    seen = [2, 6, 10]
    assert (np.abs(cost[seen] - 1.0) <= 0.15).all(), cost
    assert (np.abs(reward[seen] - 1.0) <= 0.1).all(), reward


def test_a_budget_aware_policy_spends_a_budget_in_every_episode(tmp_path):
    """Drift makes costs differ from episode to episode; a policy that sees them need not let any go beyond."""
    settings = {"overspend_price": 5.0, "horizon": "finite", "discount": 0.97, "out": tmp_path}
    agent = ccpo.train("DriftBudget-BudgetAware", **{**SMALL, **settings})
    for threshold in (15.0, 35.0, 55.0):
        episodes = agent.evaluate([threshold], episodes=20, workers=1)
        optimum = find_task("DriftBudget").make().optimal_return(threshold)
        print(threshold, episodes.cost.round(1), episodes.reward.mean() / optimum)
        assert (episodes.cost <= 1.1 * threshold).all()
        assert episodes.reward.mean() >= 0.9 * optimum
