"""Metrics against slow loops and scipy, on tables small enough to check by hand."""

import csv
import dataclasses
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ccpo.errors import FormatError, MissingExtraError
from ccpo.metrics import (
    COLUMNS,
    GRIDS,
    GROUPS,
    METRICS,
    EpisodeTable,
    best_constant,
    bootstrap_interval,
    estimate,
    grids,
    iqm,
    largest_inversion,
    per_threshold,
    summarise,
    threshold_groups,
    violation,
)

BEHAVIOUR = [20, 40, 60]


def make_table(thresholds=GRIDS["13"], tasks=("Toy",), algorithms=("ccpo",), seeds=3, episodes=4):
    rng = np.random.default_rng(0)
    rows = [
        {
            "task": task,
            "algorithm": algorithm,
            "seed": seed,
            "threshold": threshold,
            "episode": episode,
            "reward": rng.normal(100, 10) + threshold,
            "cost": rng.uniform(0, 1.5) * threshold,
            "length": 200,
        }
        for task in tasks
        for algorithm in algorithms
        for seed in range(seeds)
        for threshold in thresholds
        for episode in range(episodes)
    ]
    return EpisodeTable.from_rows(rows), rows


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def slow_average(rows, seed, thresholds, value):
    """By episode, then over episodes, then over thresholds."""
    return mean(
        mean(value(row) for row in rows if row["seed"] == seed and row["threshold"] == threshold)
        for threshold in thresholds
    )


@pytest.mark.parametrize("grid", ["13", "7"])
def test_summary_equals_the_slow_version(grid):
    table, rows = make_table()
    (summary,) = [s for s in summarise(table, BEHAVIOUR) if s.grid == grid]
    thresholds = GRIDS[grid]
    unseen = [threshold for threshold in thresholds if threshold not in BEHAVIOUR]

    def cv(row):
        return max(0.0, row["cost"] - row["threshold"])

    for name, chosen, value in [
        ("R", thresholds, lambda row: row["reward"]),
        ("CV", thresholds, cv),
        ("R-G", unseen, lambda row: row["reward"]),
        ("CV-G", unseen, cv),
    ]:
        by_seed = [slow_average(rows, seed, chosen, value) for seed in range(3)]
        assert summary.metrics[name].mean == pytest.approx(mean(by_seed))
        assert summary.metrics[name].std == pytest.approx(np.std(by_seed, ddof=1))
    assert (summary.thresholds, summary.seeds) == (int(grid), 3)
    assert summary.episodes == int(grid) * 3 * 4


def slow_constant(rows, seed, grid, own_cv):
    """R and CV of the best setting that is used for every threshold of the grid."""
    candidates = []
    for setting in GRIDS["13"]:
        of_setting = [row for row in rows if row["seed"] == seed and row["threshold"] == setting]
        cv = mean(mean(max(0.0, row["cost"] - threshold) for row in of_setting) for threshold in grid)
        candidates.append((mean(row["reward"] for row in of_setting), cv))
    allowed = [candidate for candidate in candidates if candidate[1] <= own_cv]
    return max(allowed) if allowed else min(candidates, key=lambda candidate: candidate[1])


@pytest.mark.parametrize("grid", ["13", "7"])
def test_the_dials_numbers_equal_the_slow_version(grid):
    table, rows = make_table()
    (summary,) = [s for s in summarise(table, BEHAVIOUR) if s.grid == grid]
    thresholds = GRIDS[grid]

    def ratio(row):
        return row["cost"] / row["threshold"]

    def distance(row):
        return abs(row["cost"] - row["threshold"]) / row["threshold"]

    seeds = range(3)
    own = [slow_average(rows, s, thresholds, lambda row: max(0.0, row["cost"] - row["threshold"])) for s in seeds]
    constants = [slow_constant(rows, seed, thresholds, own[seed]) for seed in seeds]
    expected = {
        "use": [slow_average(rows, seed, thresholds, ratio) for seed in seeds],
        "worst": [max(slow_average(rows, seed, [threshold], ratio) for threshold in thresholds) for seed in seeds],
        "tracking": [slow_average(rows, seed, thresholds, distance) for seed in seeds],
        "constant R": [reward for reward, _ in constants],
        "constant CV": [cv for _, cv in constants],
    }
    for name, by_seed in expected.items():
        assert summary[name].mean == pytest.approx(mean(by_seed))
        assert summary[name].std == pytest.approx(np.std(by_seed, ddof=1))


def test_groups_of_thresholds_have_numbers_of_their_own():
    table, rows = make_table()
    summary = summarise(table, BEHAVIOUR)[0]
    groups = {
        "behaviour": [20, 40, 60],
        "interpolated": [25, 30, 35, 45, 50, 55],
        "extrapolated": [10, 15, 65, 70],
    }
    assert tuple(groups) == GROUPS
    for group, thresholds in groups.items():
        for name, value in (
            ("R", lambda row: row["reward"]),
            ("CV", lambda row: max(0.0, row["cost"] - row["threshold"])),
            ("use", lambda row: row["cost"] / row["threshold"]),
        ):
            by_seed = [slow_average(rows, seed, thresholds, value) for seed in range(3)]
            assert summary[f"{name} {group}"].mean == pytest.approx(mean(by_seed))
    shown = {row.threshold: row.group for row in per_threshold(table, BEHAVIOUR)}
    assert shown == {threshold: group for group, of_group in groups.items() for threshold in of_group}


def test_without_behaviour_thresholds_every_threshold_lies_beyond():
    assert threshold_groups(np.array([10.0, 20.0]), []).tolist() == ["extrapolated"] * 2


def test_the_best_constant_earns_most_of_those_that_violate_no_more_than_the_dial():
    reward = np.array([[1.0, 2.0, 3.0, 4.0]] * 3)
    constant_cv = np.array([[0.0, 0.5, 0.5, 2.0]] * 3)
    own_cv = np.array([0.5, 9.0, 0.0])
    assert best_constant(reward, constant_cv, own_cv)[:, 0].tolist() == [2, 3, 0]


def test_if_every_constant_violates_more_it_is_the_one_that_violates_least():
    reward, constant_cv = np.array([[9.0, 1.0, 2.0]]), np.array([[3.0, 1.0, 1.0]])
    assert best_constant(reward, constant_cv, np.array([0.5])).tolist() == [[2]]


def test_a_dial_without_effect_is_its_own_best_constant():
    rows = [
        dict(zip(COLUMNS, ("T", "a", 0, float(threshold), 0, 5.0, 12.0, 1), strict=True)) for threshold in (10, 20, 30)
    ]
    summary = summarise(EpisodeTable.from_rows(rows), [20])[0]
    assert (summary["constant R"].mean, summary["constant CV"].mean) == (summary["R"].mean, summary["CV"].mean)
    assert summary["use"].mean == pytest.approx((1.2 + 0.6 + 0.4) / 3)
    assert summary["worst"].mean == 1.2


def test_a_threshold_of_zero_is_left_out_of_the_ratios():
    rows = [
        dict(zip(COLUMNS, ("T", "a", 0, threshold, 0, 1.0, cost, 1), strict=True))
        for threshold, cost in ((0.0, 3.0), (10.0, 8.0))
    ]
    table = EpisodeTable.from_rows(rows)
    summary = summarise(table, [10])[0]
    assert [summary[name].mean for name in ("use", "worst", "CV")] == [0.8, 0.8, 1.5]
    assert summary["tracking"].mean == pytest.approx(0.2)
    assert math.isnan(summary["use extrapolated"].mean)
    assert summary["CV extrapolated"].mean == 3.0
    zero, ten = per_threshold(table, [10])
    assert math.isnan(zero.use)
    assert math.isnan(zero.tracking)
    assert (ten.use, ten.tracking) == (0.8, 0.2)
    (only,) = summarise(table.select(table.threshold == 0), [10])
    assert all(math.isnan(only[name].mean) for name in ("use", "worst", "tracking"))


def test_every_metric_is_there_and_explained():
    table, _ = make_table(thresholds=(10.0, 20.0))
    (summary,) = summarise(table, BEHAVIOUR)
    assert tuple(summary.metrics) == METRICS
    assert math.isnan(summary["not measured"].mean)
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text("utf-8")
    for name in METRICS:
        whole = name.removesuffix(" error")
        for group in GROUPS:
            whole = whole.removesuffix(f" {group}")
        assert f"`{whole}`" in page


def test_unequal_numbers_of_episodes_weigh_thresholds_equally():
    costs = {10.0: [10, 30], 20.0: [20, 20, 20, 60]}
    rows = [
        dict(zip(COLUMNS, ("T", "a", 0, threshold, i, 0.0, cost, 1), strict=True))
        for threshold, of_threshold in costs.items()
        for i, cost in enumerate(of_threshold)
    ]
    (summary,) = summarise(EpisodeTable.from_rows(rows), [20])
    assert summary.grid == "all"
    assert summary.metrics["CV"].mean == (20 / 2 + 40 / 4) / 2
    assert summary.metrics["CV-G"].mean == 10.0


def test_violation_is_taken_by_episode():
    np.testing.assert_array_equal(violation(np.array([5.0, 15.0]), np.array([10.0, 10.0])), [0.0, 5.0])


def test_per_threshold_equals_the_slow_version():
    table, rows = make_table(thresholds=(10.0, 20.0), algorithms=("b", "a"))
    results = per_threshold(table, BEHAVIOUR)
    assert [(r.algorithm, r.threshold, r.seen) for r in results] == [
        ("b", 10.0, False),
        ("b", 20.0, True),
        ("a", 10.0, False),
        ("a", 20.0, True),
    ]
    for result in results:
        of = [r for r in rows if (r["algorithm"], r["threshold"]) == (result.algorithm, result.threshold)]
        assert (result.seeds, result.episodes) == (3, 12)
        assert result.reward_mean == pytest.approx(np.mean([r["reward"] for r in of]))
        assert result.reward_std == pytest.approx(np.std([r["reward"] for r in of]))
        assert result.cost_mean == pytest.approx(np.mean([r["cost"] for r in of]))
        assert result.cost_std == pytest.approx(np.std([r["cost"] for r in of]))
        excess = [max(0.0, r["cost"] - r["threshold"]) for r in of]
        assert result.violation_mean == pytest.approx(np.mean(excess))
        assert result.violation_std == pytest.approx(np.std(excess))


def test_grids():
    assert list(grids(np.array(GRIDS["13"]))) == ["13", "7"]
    assert list(grids(np.array(GRIDS["7"]))) == ["7"]
    assert grids(np.array([2.0, 1.0])) == {"all": (1.0, 2.0)}
    assert list(grids(np.array([5.0, *GRIDS["13"]]))) == ["all", "13", "7"]


def test_all_thresholds_seen_leaves_the_generalised_metrics_empty():
    table, _ = make_table(thresholds=(20.0, 40.0))
    (summary,) = summarise(table, BEHAVIOUR)
    assert math.isnan(summary.metrics["R-G"].mean)
    assert not math.isnan(summary.metrics["R"].mean)
    assert json.loads(json.dumps(summary.as_dict(), allow_nan=False))["metrics"]["R-G"]["mean"] is None


def test_one_seed_has_no_spread():
    table, _ = make_table(seeds=1)
    metric = summarise(table, BEHAVIOUR)[0].metrics["R"]
    assert math.isnan(metric.std)
    assert math.isnan(metric.low)
    assert metric.iqm == metric.mean


def test_a_seed_that_lacks_a_threshold_is_refused():
    table, _ = make_table()
    partial = table.select(~((table.seed == 1) & (table.threshold == 25)))
    with pytest.raises(FormatError, match="Toy ccpo: seed 1 has no episode at threshold 25"):
        summarise(partial, BEHAVIOUR)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_iqm_equals_scipy(values):
    assert iqm(np.array(values)) == pytest.approx(scipy.stats.trim_mean(values, 0.25), abs=1e-6)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 9)), min_size=1, max_size=12))
def test_largest_inversion_equals_all_pairs(curve):
    values, errors = np.transpose(curve).astype(float)
    pairs = [(values[i] - values[j], i, j) for i in range(len(values)) for j in range(i, len(values))]
    found, error = largest_inversion(values, errors)
    assert found == max(pairs)[0]
    assert error in [0.0 if found == 0 else np.hypot(errors[i], errors[j]) for fall, i, j in pairs if fall == found]


def test_the_error_of_an_inversion_is_that_of_a_difference_of_means():
    rng = np.random.default_rng(0)
    rewards = {10.0: rng.normal(5.0, 2.0, 40), 20.0: rng.normal(1.0, 3.0, 40), 30.0: rng.normal(9.0, 1.0, 40)}
    rows = [
        dict(zip(COLUMNS, ("T", "a", 0, t, i, float(reward), 0.0, 1), strict=True))
        for t, episodes in rewards.items()
        for i, reward in enumerate(episodes)
    ]
    metrics = summarise(EpisodeTable.from_rows(rows), [])[0].metrics
    first, second = rewards[10.0], rewards[20.0]
    test = scipy.stats.ttest_ind(first, second, equal_var=False)
    assert metrics["reward inversion"].mean == pytest.approx(first.mean() - second.mean())
    assert metrics["reward inversion"].mean / metrics["reward inversion error"].mean == pytest.approx(test.statistic)
    assert metrics["cost inversion error"].mean == 0.0


def test_what_noise_alone_makes_of_a_flat_dial():
    curves = np.random.default_rng(0).normal(size=(4_000, 13))
    falls = np.array([largest_inversion(curve, np.ones(13)) for curve in curves])
    in_errors = falls[:, 0] / np.sqrt(2.0)
    assert in_errors.mean() == pytest.approx(2.1, abs=0.05)
    assert np.quantile(in_errors, 0.95) == pytest.approx(3.1, abs=0.05)


def test_inversions_are_taken_by_seed():
    rewards = {0: [1.0, 5.0, 2.0], 1: [3.0, 1.0, 4.0]}
    rows = [
        dict(zip(COLUMNS, ("T", "a", seed, float(t), 0, reward, 2.0 * t, 1), strict=True))
        for seed, curve in rewards.items()
        for t, reward in enumerate(curve)
    ]
    metrics = summarise(EpisodeTable.from_rows(rows), [])[0].metrics
    assert metrics["reward inversion"].mean == (3.0 + 2.0) / 2
    assert metrics["cost inversion"].mean == 0.0


def test_bootstrap_equals_scipy_for_one_stratum():
    values = np.random.default_rng(0).normal(10, 2, 30)
    ours = bootstrap_interval([values], lambda x: np.mean(x, axis=-1), resamples=4000)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(1)
    ).confidence_interval
    np.testing.assert_allclose(ours, theirs, atol=0.1)


def test_bootstrap_resamples_within_strata():
    assert bootstrap_interval([np.full(5, 1.0), np.full(5, 3.0)], lambda x: np.mean(x, axis=-1)) == (2.0, 2.0)
    assert all(map(math.isnan, bootstrap_interval([np.ones(5), np.ones(1)])))
    assert bootstrap_interval([np.arange(9.0)]) == bootstrap_interval([np.arange(9.0)])


def test_estimate_orders_its_parts():
    result = estimate(np.array([1.0, 2.0, 3.0, 10.0]))
    assert result.low <= result.iqm <= result.high
    assert (result.mean, result.iqm) == (4.0, 2.5)


def test_csv_round_trip_is_exact(tmp_path):
    table, _ = make_table(tasks=("Ball, the first", "Größe"))
    table.write_csv(tmp_path / "new" / "episodes.csv")
    back = EpisodeTable.read_csv(tmp_path / "new" / "episodes.csv")
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(back, name), getattr(table, name))
    with (tmp_path / "new" / "episodes.csv").open(newline="", encoding="utf-8") as file:
        assert tuple(next(csv.reader(file))) == COLUMNS
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["episodes.csv"]


def test_empty_and_joined_tables(tmp_path):
    empty = EpisodeTable.from_rows([])
    empty.write_csv(tmp_path / "e.csv")
    assert len(EpisodeTable.read_csv(tmp_path / "e.csv")) == 0
    assert summarise(empty, BEHAVIOUR) == per_threshold(empty, BEHAVIOUR) == []
    first, second = make_table(tasks=("A",))[0], make_table(tasks=("B",))[0]
    joined = EpisodeTable.concatenate([first, second])
    assert [task for task, _, _ in joined.groups()] == ["A", "B"]
    with pytest.raises(FormatError, match="156 rows repeat an episode"):
        EpisodeTable.concatenate([first, first])


HEADER = ",".join(COLUMNS)
GOOD = "T,a,0,10,0,1.5,2,200"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "starts with 'nothing'"),
        ("task,seed\n", "expected the columns task,algorithm"),
        (f"{HEADER},extra\n{GOOD},1\n", "expected the columns"),
        (f"{HEADER}\n{GOOD}\nT,a,0,10\n", "line 3 has 4 fields, expected 8"),
        (f"{HEADER}\n{GOOD}\n\n", "line 3 has 0 fields"),
        (f"{HEADER}\n{GOOD.replace('1.5', 'high')}\n", "column 'reward' cannot be read as float64"),
        (f"{HEADER}\n{GOOD.replace('1.5', 'nan')}\n", "column 'reward' holds NaN"),
        (f"{HEADER}\n{GOOD.replace('200', '2.5')}\n", "column 'length' cannot be read as int64"),
        (f"{HEADER}\n{GOOD.replace(',10,', ',-10,')}\n", "must be ≥ 0"),
        (f"{HEADER}\n{GOOD}\n{GOOD}\n", "1 rows repeat an episode"),
        (f'{HEADER}\n"{GOOD}\n', "cannot read episodes"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    path = tmp_path / "episodes.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=message) as caught:
        EpisodeTable.read_csv(path)
    assert "\n" not in str(caught.value)


def test_missing_file_and_wrong_rows_are_refused(tmp_path):
    with pytest.raises(FormatError, match="cannot read episodes"):
        EpisodeTable.read_csv(tmp_path / "none.csv")
    with pytest.raises(FormatError, match=r"a row has the fields \['task'\]"):
        EpisodeTable.from_rows([{"task": "T"}])
    row = dict(zip(COLUMNS, ("T", "a", 0.5, 10.0, 0, 1.0, 2.0, 200), strict=True))
    with pytest.raises(FormatError, match="column 'seed' must hold whole numbers"):
        EpisodeTable.from_rows([row])
    columns = {name: np.zeros(2) for name in COLUMNS} | {"cost": np.zeros(3)}
    with pytest.raises(FormatError, match=r"column 'cost' has shape \(3,\), expected \(2,\)"):
        EpisodeTable(**columns)


def test_a_table_prints_as_the_command_line_shows_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    table = dataclasses.replace(make_table()[0], behaviour_thresholds=tuple(BEHAVIOUR))
    shown = str(table)
    assert shown.splitlines()[0].strip() == "Evaluation by threshold · Toy"
    assert len([line for line in shown.splitlines() if "±" in line]) == 13 + 1
    assert "● 20" in shown
    assert repr(table) == "<EpisodeTable: 156 episodes at 13 thresholds on Toy>"
    assert "<pre" in table._repr_html_()
    assert "R ↑" in str(summarise(table))
    assert "<pre" in summarise(table)._repr_html_()


def test_a_table_knows_its_behaviour_thresholds_through_every_operation():
    table = dataclasses.replace(make_table()[0], behaviour_thresholds=tuple(BEHAVIOUR))
    assert str(summarise(table)) == str(summarise(table, BEHAVIOUR))
    assert table.select(table.threshold > 20).behaviour_thresholds == tuple(BEHAVIOUR)
    assert EpisodeTable.concatenate([table.select(table.seed == seed) for seed in range(3)]).behaviour_thresholds
    other = dataclasses.replace(table.select(table.seed == 1), behaviour_thresholds=(1.0,))
    assert EpisodeTable.concatenate([table.select(table.seed == 0), other]).behaviour_thresholds == ()


def test_a_table_becomes_csv_and_a_data_frame(tmp_path, monkeypatch):
    """With a stand-in for pandas, which is no dependency."""
    table, rows = make_table()
    table.to_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == table.to_csv()
    assert EpisodeTable.read_csv(tmp_path / "a.csv").cost.tolist() == [row["cost"] for row in rows]
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    frame = table.to_pandas()
    assert list(frame) == list(COLUMNS)
    assert frame["cost"] is table.cost
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        table.to_pandas()
