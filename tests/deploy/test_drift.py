"""The study of the monitor: what it writes, and that its simulation is what it says."""

import csv
import json

import numpy as np
import pytest

from ccpo.deploy import drift


@pytest.fixture(scope="module")
def rows():
    strong = [
        drift.deploy("shift", use=0.8, shift=2.5, shifted_at=60, episodes=160, seed=seed, confidence=0.95)
        for seed in range(3)
    ]
    return [*strong, drift.deploy("within it", use=0.8, shift=1.0, shifted_at=60, episodes=60, seed=0, confidence=0.95)]


def test_a_strong_shift_is_told_after_it_happened(rows):
    for row in rows[:3]:
        assert row.refuted >= row.shifted_at
        assert abs(row.onset - row.shifted_at) < 15
    assert (rows[3].refuted, rows[3].drift, rows[3].onset) == (-1, -1, -1)


def test_the_summary_counts_false_alarms_and_delays(rows):
    summary = drift.summarise(
        [*rows, drift.Deployment("at the threshold", 1.0, 0, 60, refuted=7, drift=-1, onset=3)],
        episodes=160,
        confidence=0.95,
    )
    assert summary["within it"] == {"deployments": 1, "false alarms": 0, "p": 1.0}
    assert summary["at the threshold"]["false alarms"] == 1
    assert summary["at the threshold"]["p"] == pytest.approx(0.05)
    shift = summary["shift 2.5"]
    assert shift["refuted told"] == 3
    assert shift["refuted delay (median)"] == np.median([row.refuted - 59 for row in rows[:3]])
    assert shift["drift told"] == sum(row.drift >= 0 for row in rows[:3])


def test_files_hold_every_deployment_and_the_command(rows, tmp_path):
    others = [drift.Deployment("at the threshold", 1.0, 0, 60, refuted=-1, drift=-1, onset=-1)]
    drift.write([*rows, *others], tmp_path, command="as typed", episodes=160, confidence=0.95)
    with open(tmp_path / "drift.csv", newline="") as file:
        assert [int(row["refuted"]) for row in csv.DictReader(file)] == [row.refuted for row in [*rows, *others]]
    assert json.loads((tmp_path / "drift.json").read_text())["command"] == "as typed"
