"""On-policy methods on CMDPs with a known optimum, under an active constraint."""

import pytest

import ccpo
from ccpo.envs.registry import find_task

# PPO swings around the threshold by about one trust region, so its steps are short here; and it narrows slowly.
SETTINGS = {"ppo_lag": {"kl_stop": 0.005, "initial_std": 0.15}, "trpo_lag": {"initial_std": 0.3}}


@pytest.mark.long
@pytest.mark.parametrize("algorithm", SETTINGS)
@pytest.mark.parametrize("task", ["StaticBudget", "DriftBudget"])
def test_they_learn_to_spend_their_threshold(task, algorithm, tmp_path):
    agent = ccpo.train(
        task,
        algorithm,
        out=tmp_path,
        behaviour_thresholds=(40.0,),
        steps=240_000,
        lanes_per_threshold=8,
        hidden=(32, 32),
        checkpoint_every=80_000,
        **SETTINGS[algorithm],
    )
    table = agent.evaluate([40.0], episodes=50, workers=1)
    optimum = find_task(task).make().optimal_return(40.0)
    assert table.cost.mean() == pytest.approx(40.0, rel=0.1)
    assert table.reward.mean() == pytest.approx(optimum, rel=0.1)
