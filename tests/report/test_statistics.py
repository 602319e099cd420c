"""Ranking and shading against the paper's own tables, averages against scipy and plain loops."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from ccpo.errors import FormatError
from ccpo.metrics import estimate
from ccpo.report.paper import PAPER_ABLATION, PAPER_EFFICIENCY, PAPER_RESULTS
from ccpo.report.statistics import Score, average_over_tasks, rank, safest


def shaded_rows() -> list[list[set[int]]]:
    """Which columns are shaded, for each violation row of the main, the efficiency and the ablation table."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "paper"
    sources = [text for path in folder.glob("*.txt") if "tab:ablation" in (text := path.read_text("utf-8"))]
    if not sources:
        pytest.skip("the paper's LaTeX is not beside the checkout")
    return [
        [
            {i for i, cell in enumerate(line.split("&")[2:]) if "cellcolor" in cell}
            for line in body.splitlines()
            if re.search(r"Avg\. CV", line)
        ]
        for body in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", sources[0], re.DOTALL)
    ]


def test_the_safest_are_those_that_the_paper_shades():
    main, efficiency, ablation = shaded_rows()
    rows = iter(main)
    for methods in PAPER_RESULTS.values():
        for stat in ("CV", "CV-G"):
            violations = {name: row[stat].mean for name, row in methods.items()}
            assert set(safest(violations)) == {list(methods)[i] for i in next(rows)}
    names = list(PAPER_ABLATION)
    for column, task in enumerate(PAPER_ABLATION["CCPO"]):
        for row, stat in enumerate(("CV", "CV-G")):
            violations = {name: PAPER_ABLATION[name][task][stat].mean for name in names}
            assert safest(violations, 1) == [names[i] for i in range(3) if column in ablation[2 * i + row]]
    for column, task in enumerate(PAPER_EFFICIENCY["CCPO with {20, 40, 60}"]):
        violations = {name: tasks[task]["CV"].mean for name, tasks in PAPER_EFFICIENCY.items()}
        assert safest(violations, 1) == [
            name for name, row in zip(violations, efficiency, strict=True) if column in row
        ]


def better(a: Score, b: Score) -> bool:
    """The rule as the paper words it, for two methods."""
    if a.violation > 0 or b.violation > 0:
        return a.violation < b.violation
    return a.reward > b.reward


def test_ranking_agrees_with_the_rule_for_every_pair():
    rng = np.random.default_rng(0)
    scores = [Score(str(i), rng.normal(), max(0.0, rng.normal())) for i in range(20)]
    ranked = rank(scores)
    assert sorted(s.name for s in ranked) == sorted(s.name for s in scores)
    assert all(better(a, b) for a, b in itertools.combinations(ranked, 2))


def test_a_tolerance_lets_reward_decide_between_the_nearly_safe():
    near, far = Score("near", 5.0, 0.4), Score("far", 9.0, 0.6)
    assert rank([far, near]) == [near, far]
    assert rank([near, far], tolerance=1.0) == [far, near]


def test_the_unknown_comes_last_and_is_never_safe():
    unknown, unsafe = Score("unknown", 9.0, math.nan), Score("unsafe", 1.0, 50.0)
    assert rank([unknown, unsafe]) == [unsafe, unknown]
    assert safest({"unknown": math.nan, "unsafe": 50.0}) == ["unsafe"]


def test_the_average_over_tasks_is_the_papers():
    for tasks in PAPER_EFFICIENCY.values():
        means = {task: np.array([row["R"].mean]) for task, row in tasks.items() if task != "Averaged Score"}
        assert average_over_tasks(means).mean == pytest.approx(tasks["Averaged Score"]["R"].mean, abs=0.01)


def test_tasks_count_alike_whatever_their_seeds():
    values = {"a": np.arange(8.0), "b": 100 + np.arange(4.0) ** 2}
    result = average_over_tasks(values)
    assert result.mean == (3.5 + 103.5) / 2
    assert result.iqm == (scipy.stats.trim_mean(values["a"], 0.25) + scipy.stats.trim_mean(values["b"], 0.25)) / 2
    draws = np.random.default_rng(0)
    simulated = [(draws.choice(values["a"]) + draws.choice(values["b"])) / 2 for _ in range(20_000)]
    spread = math.sqrt(values["a"].var() + values["b"].var()) / 2
    assert np.std(simulated) == pytest.approx(spread, rel=0.02)
    assert result.std == pytest.approx(math.sqrt(values["a"].var(ddof=1) + values["b"].var(ddof=1)) / 2)
    assert result.low < result.iqm < result.high


def test_one_task_is_the_estimate_of_that_task():
    values = np.random.default_rng(0).normal(size=9)
    assert average_over_tasks({"only": values}) == estimate(values)


def test_one_seed_has_no_spread_and_no_task_is_refused():
    result = average_over_tasks({"a": np.ones(3), "b": np.ones(1)})
    assert (result.mean, result.iqm) == (1.0, 1.0)
    assert all(map(math.isnan, (result.std, result.low, result.high)))
    with pytest.raises(FormatError, match="no task was given"):
        average_over_tasks({})
