"""The paper's tables from finished runs, with its figures beside ours."""

import csv
from statistics import mean

import pytest
from miniature import finished_run
from well_formed import check_latex

from ccpo.errors import RunError
from ccpo.report.paper import PAPER_EFFICIENCY, PAPER_RESULTS
from ccpo.studies.comparison import table_1, table_2, table_3

METHODS = {"CCPO": (700.0, 1.0), "V-SAC-Lag": (800.0, 5.0), "C-PPO-Lag": (850.0, 0.0), "C-TRPO-Lag": (640.0, 0.0)}


@pytest.fixture(scope="module")
def main_report(tmp_path_factory):
    root = tmp_path_factory.mktemp("main")
    runs = [
        finished_run(root, label, reward=reward + 10 * seed, excess=excess, seed=seed)
        for label, (reward, excess) in METHODS.items()
        for seed in (0, 1)
    ]
    return {path.name: path for path in table_1(runs, root)}


def rows_of(text: str) -> dict[tuple[str, str], list[str]]:
    """The cells of the methods by (statistic, grid), of the Markdown tables that have them."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {(row[1], row[2]): row[3:] for row in cells if row[2] in ("13", "7", "paper")}


def test_means_and_spreads_on_both_grids_with_the_paper_below(main_report):
    rows = rows_of(main_report["tables.md"].read_text("utf-8"))
    printed = PAPER_RESULTS["Ball-Circle"]
    for grid in ("13", "7"):
        assert rows["R ↑", grid] == ["705.0 ± 7.1", "805.0 ± 7.1", "**855.0 ± 7.1**", "**645.0 ± 7.1**"]
        assert rows["CV ↓", grid] == ["1.00 ± 0.00", "5.00 ± 0.00", "**0.00 ± 0.00**", "**0.00 ± 0.00**"]
    assert rows["R ↑", "paper"] == [f"{printed[m]['R'].mean:.1f} ± {printed[m]['R'].std:.1f}" for m in METHODS]
    assert rows["CV-G ↓", "paper"] == [f"{printed[m]['CV-G'].mean:.2f} ± {printed[m]['CV-G'].std:.2f}" for m in METHODS]


def test_the_dials_numbers_and_groups_stand_beside_them(main_report):
    text = main_report["tables.md"].read_text("utf-8")
    rows = rows_of(text)
    excess = [excess for _, excess in METHODS.values()]
    use = [1 + mean(each / threshold for threshold in range(10, 71, 10)) for each in excess]
    assert rows["use", "7"] == [f"{value:.2f} ± 0.00" for value in use]
    assert rows["worst", "13"] == [f"{1 + each / 10:.2f} ± 0.00" for each in excess]
    assert rows["tracking", "7"] == [f"{value - 1:.2f} ± 0.00" for value in use]
    assert (
        rows["constant R", "13"] == rows["R extrapolated", "13"] == [f"{r + 5:.1f} ± 7.1" for r, _ in METHODS.values()]
    )
    assert rows["CV behaviour", "13"] == [f"{each:.2f} ± 0.00" for each in excess]
    assert ("use", "paper") not in rows
    with open(main_report["numbers.csv"], encoding="utf-8") as file:
        numbers = {(row["method"], row["grid"], row["stat"]): row for row in csv.DictReader(file)}
    assert float(numbers["CCPO", "7", "worst"]["mean"]) == pytest.approx(1.1)
    assert float(numbers["CCPO", "13", "CV interpolated"]["mean"]) == 1.0


def test_ranks_are_by_safety_then_by_reward(main_report):
    with open(main_report["numbers.csv"], encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ranks = {row["method"]: int(row["rank"]) for row in rows if row["grid"] == "13"}
    assert sorted(ranks, key=ranks.__getitem__) == ["C-PPO-Lag", "C-TRPO-Lag", "CCPO", "V-SAC-Lag"]
    reward = next(row for row in rows if (row["method"], row["grid"], row["stat"]) == ("CCPO", "7", "R"))
    assert [float(reward[name]) for name in ("mean", "iqm", "low", "high")] == [705.0, 705.0, 700.0, 710.0]
    assert (float(reward["paper_mean"]), float(reward["paper_std"])) == PAPER_RESULTS["Ball-Circle"]["CCPO"]["R"]
    assert "705.0 [700.0, 710.0]" in main_report["tables.md"].read_text("utf-8")


def test_latex_is_shaded_and_well_formed(main_report):
    text = main_report["tables.tex"].read_text("utf-8")
    assert len(check_latex(text)) == 3
    assert r"\cellcolor[gray]{0.9}855.0 $\pm$ 7.1" in text
    assert r"\textit{710.9 $\pm$ 20.5}" in text


def test_the_figure_is_drawn(main_report):
    assert main_report["figure.png"].stat().st_size > 10_000
    assert main_report["figure.svg"].is_file()


def test_averaged_score_is_the_mean_over_tasks_of_methods_with_all_of_them(tmp_path):
    runs = [
        finished_run(tmp_path, label, reward=reward, excess=excess, task=task)
        for label, task, reward, excess in (
            ("CCPO", "BallCircle", 700.0, 0.0),
            ("CCPO", "DroneRun", 400.0, 3.0),
            ("C-TRPO-Lag", "BallCircle", 500.0, 9.0),
            ("C-TRPO-Lag (six)", "BallCircle", 600.0, 8.0),
            ("C-TRPO-Lag (six)", "DroneRun", 300.0, 8.0),
        )
    ]
    paths = table_2(runs, tmp_path)
    text = paths[0].read_text("utf-8")
    averaged = {
        tuple(cell.strip() for cell in line.split("|")[2:4]): [cell.strip() for cell in line.split("|")[4:-1]]
        for line in text.splitlines()
        if line.startswith("| Averaged Score")
    }
    assert averaged["R ↑", "13"] == ["**550.0**", "–", "450.0"]
    assert averaged["CV ↓", "7"] == ["**1.50**", "–", "8.00"]
    printed = [PAPER_EFFICIENCY[name]["Averaged Score"]["CV"].mean for name in PAPER_EFFICIENCY]
    assert averaged["CV ↓", "paper"] == [f"{mean:.2f}" for mean in printed]
    assert "CV-G" not in text


def test_the_ablation_shades_only_the_safest(tmp_path):
    labels = ("CCPO", "CCPO w/o VVE", "CCPO w/o CVI")
    runs = [finished_run(tmp_path, label, reward=700.0, excess=float(i)) for i, label in enumerate(labels)]
    rows = rows_of(table_3(runs, tmp_path)[0].read_text("utf-8"))
    assert rows["CV ↓", "7"] == ["**0.00**", "1.00", "2.00"]
    assert rows["CV ↓", "paper"] == ["0.59 ± 0.31", "0.60 ± 0.41", "1.44 ± 0.72"]


def test_nothing_finished_is_an_error(tmp_path):
    with pytest.raises(RunError, match="no run is finished yet"):
        table_1([], tmp_path)
