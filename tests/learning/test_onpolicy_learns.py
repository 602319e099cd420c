"""On-policy methods on CMDPs with a known optimum, under an active constraint."""

import pytest
from optimum import assert_near_the_optimum

# The multiplier sees the cost of sampled actions, the mean is evaluated: a wide policy would stay below its threshold.
SETTINGS = {"ppo_lag": {"kl_stop": 0.005, "initial_std": 0.05}, "trpo_lag": {"initial_std": 0.3}}


@pytest.mark.long
@pytest.mark.parametrize("algorithm", SETTINGS)
@pytest.mark.parametrize("task", ["StaticBudget", "DriftBudget"])
def test_they_learn_to_spend_their_threshold(task, algorithm, tmp_path):
    assert_near_the_optimum(
        task,
        algorithm,
        (40.0,),
        out=tmp_path,
        steps=160_000,
        lanes_per_threshold=8,
        hidden=(32, 32),
        checkpoint_every=80_000,
        **SETTINGS[algorithm],
    )
