"""Off-policy Lagrangian methods on CMDPs with a known optimum, at the thresholds of their data, all active."""

import pytest
from optimum import assert_near_the_optimum

pytestmark = pytest.mark.long

# Short episodes: the multipliers move once an episode, and need hundreds of moves to settle.
SETTINGS = {
    "warmup_steps": 600,
    "hidden": (64, 64),
    "rate_decay": 0.9,
    "multiplier_gains": (0.5, 0.05, 0.3),
}


@pytest.mark.parametrize(
    ("thresholds", "steps"), [((4.0, 8.0, 12.0), 48_000), ((8.0,), 20_000)], ids=["conditioned", "single"]
)
@pytest.mark.parametrize("task", ["StaticBudget-T20", "DriftBudget-T20"])
@pytest.mark.parametrize("algorithm", ["sac_lag", "ddpg_lag"])
def test_learns_the_optimum_under_an_active_constraint(algorithm, task, thresholds, steps, tmp_path):
    assert_near_the_optimum(task, algorithm, thresholds, out=tmp_path, steps=steps, **SETTINGS)
