"""The coverage study: its truths against simulation, and a small version of it."""

import csv
import json

import numpy as np
import pytest

from ccpo.deploy import coverage


@pytest.mark.parametrize("case", coverage.CASES)
def test_the_simulated_policy_has_the_cost_that_is_claimed(case):
    draw, exceedance = coverage.CASES[case]
    costs = draw(np.random.default_rng(0), 40.0, 200_000)
    assert costs.min() >= 0.0
    assert costs.max() <= coverage.STEPS
    assert costs.mean() == pytest.approx(40.0, abs=0.3)
    for request in (10.0, 40.0, 44.5, 70.0):
        assert exceedance(40.0, request) == pytest.approx((costs > request).mean(), abs=0.005)


def test_the_policy_is_miscalibrated_and_not_monotone():
    means = np.array([coverage.mean_cost(dial) for dial in np.arange(10.0, 70.5, 0.5)])
    assert (np.diff(means) < 0).any()
    assert (means > np.arange(10.0, 70.5, 0.5)).mean() > 0.5


def test_promises_are_kept_with_their_confidence(tmp_path):
    rows = coverage.study(20, episodes=200, confidence=0.9)
    coverage.write(rows, tmp_path, command="the command", confidence=0.9)
    content = json.loads((tmp_path / "coverage.json").read_text())
    assert set(content["cases"]) == {"spread", "rare", "false claims"}
    for case in content["cases"].values():
        assert case["means p"] > 0.001
        assert case["exceedances p"] > 0.001
    assert content["cases"]["spread"]["mean certified"] > 5
    with open(tmp_path / "coverage.csv", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(rows) == 60


def test_the_study_notices_a_broken_promise(monkeypatch):
    monkeypatch.setattr("ccpo.deploy.calibrate.mean_upper_bound", lambda values, **_: float(np.mean(values)))
    summary = coverage.summarise(coverage.study(20, episodes=100), 0.95)
    assert summary["false claims"]["means p"] < 0.001
