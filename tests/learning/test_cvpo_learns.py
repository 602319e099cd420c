"""CVPO on CMDPs with a known optimum, under an active constraint."""

import pytest
from optimum import assert_near_the_optimum


@pytest.mark.long
@pytest.mark.parametrize("task", ["StaticBudget-T20", "DriftBudget-T20"])
def test_it_learns_to_spend_its_threshold(task, tmp_path):
    assert_near_the_optimum(
        task,
        "cvpo",
        (8.0,),
        out=tmp_path,
        steps=24_000,
        warmup_steps=600,
        hidden=(64, 64),
        batch=128,
        states=64,
        updates_per_step=0.5,
        discount=0.9,
        rate_decay=0.9,
        feedback_rate=0.1,
        violation_margin=0.0,
    )
