"""The paper's figures against its own LaTeX, where that is at hand, and against their own arithmetic."""

import re
from pathlib import Path

import pytest

from ccpo.report.paper import (
    PAPER_ABLATION,
    PAPER_EFFICIENCY,
    PAPER_RESULTS,
    STATS,
    Value,
    display_name,
    paper_results,
)

TASKS = ["Ball-Circle", "Car-Circle", "Drone-Circle", "Drone-Run", "Ant-Run"]


def latex_tables() -> list[list[list[Value]]]:
    """The numbers of the main, the efficiency and the ablation table: table → row → values."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "paper"
    sources = [text for path in folder.glob("*.txt") if "tab:ablation" in (text := path.read_text("utf-8"))]
    if not sources:
        pytest.skip("the paper's LaTeX is not beside the checkout")
    tables = []
    for body in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", sources[0], re.DOTALL):
        rows = [line.split("&")[2:] for line in body.splitlines() if re.search(r"Avg\. (R|CV)", line)]
        tables.append([[read_value(cell) for cell in row] for row in rows])
    return tables


def read_value(cell: str) -> Value:
    text = re.sub(r"\\cellcolor\[rgb\]\{[^}]*\}|\\tiny|[{}\\\s]", "", cell)
    mean, _, std = text.partition("±")
    return Value(float(mean), float(std) if std else None)


def test_every_figure_is_the_printed_one():
    main, efficiency, ablation = latex_tables()
    assert main == [
        [methods[method][stat] for method in methods] for methods in PAPER_RESULTS.values() for stat in STATS
    ]
    assert efficiency == [
        [tasks[task][stat] for task in tasks] for tasks in PAPER_EFFICIENCY.values() for stat in STATS[:2]
    ]
    assert ablation == [[tasks[task][stat] for task in tasks] for tasks in PAPER_ABLATION.values() for stat in STATS]


def test_shape():
    assert list(PAPER_RESULTS) == TASKS
    for methods in PAPER_RESULTS.values():
        assert list(methods) == ["CCPO", "V-SAC-Lag", "V-DDPG-Lag", "C-PPO-Lag", "C-TRPO-Lag"]
        assert all(tuple(row) == STATS for row in methods.values())
    assert [list(tasks) for tasks in PAPER_ABLATION.values()] == [TASKS] * 3
    assert [list(tasks) for tasks in PAPER_EFFICIENCY.values()] == [[*TASKS[:4], "Averaged Score"]] * 3


def test_tables_agree_with_each_other():
    for task in TASKS:
        assert PAPER_ABLATION["CCPO"][task] == PAPER_RESULTS[task]["CCPO"]
    for task in TASKS[:4]:
        for name in ("CCPO", "C-TRPO-Lag"):
            printed = PAPER_EFFICIENCY[f"{name} with {{20, 40, 60}}"][task]
            assert printed == {stat: PAPER_RESULTS[task][name][stat] for stat in ("R", "CV")}


@pytest.mark.parametrize(("grid", "unseen", "impossible"), [(13, 10, 6), (7, 4, 0)])
def test_which_grid_the_tables_fit(grid, unseen, impossible):
    """Violations are ≥ 0, so grid · CV ≥ unseen · CV-G, up to the rounding of two decimals."""
    rows = {(task, method): row for task, methods in PAPER_RESULTS.items() for method, row in methods.items()}
    rows |= {(task, name): row for name, tasks in PAPER_ABLATION.items() for task, row in tasks.items()}
    broken = [key for key, row in rows.items() if grid * (row["CV"].mean + 0.005) < unseen * (row["CV-G"].mean - 0.005)]
    assert len(broken) == impossible


def test_names():
    assert display_name("drone_run") == "Drone-Run"
    assert display_name("Anything") == "Anything"
    assert paper_results("BallCircle", "ccpo") == PAPER_RESULTS["Ball-Circle"]["CCPO"]
    assert paper_results("AntRun", "ddpg_lag") == PAPER_RESULTS["Ant-Run"]["V-DDPG-Lag"]
    assert paper_results("AntRun", "ccpo w/o VVE") == PAPER_ABLATION["CCPO w/o VVE"]["Ant-Run"]
    assert paper_results("AntRun", "ppo_lag") is None
    assert paper_results("Toy", "ccpo") is None
