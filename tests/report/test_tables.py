"""What stands in the tables, where, and that nothing is cut off at 80 columns."""

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from ccpo.metrics import GROUPS, EpisodeTable, per_threshold, summarise
from ccpo.report.tables import Cell, ReportTable, group_table, interval_table, summary_table, threshold_table

BEHAVIOUR = [20, 40, 60]


def shown(table, width=80, colour=False):
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="truecolor" if colour else None
    )
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined] it is the StringIO above


@pytest.fixture
def summaries(episodes):
    return summarise(episodes, BEHAVIOUR)


def test_threshold_table(episodes):
    table = threshold_table(per_threshold(episodes, BEHAVIOUR))
    text = shown(table)
    assert "…" not in text
    assert "over 6 episodes per threshold" in text
    ball = text[text.index("Ball-Circle") : text.index("Toy")].splitlines()
    rows = [line.split() for line in ball if "±" in line]
    assert len(rows) == 2 * 13
    assert rows[0][:3] == ["CCPO", "△", "10"]
    assert rows[13][:3] == ["V-SAC-Lag", "△", "10"]
    marked = {mark: [row[1] for row in rows[1:13] if row[0] == mark] for mark in "●○△"}
    assert marked["●"] == ["20", "40", "60"]
    assert marked["○"] == ["25", "30", "35", "45", "50", "55"]
    assert marked["△"] == ["15", "65", "70"]
    of_20 = next(r for r in per_threshold(episodes, BEHAVIOUR) if r.threshold == 20)
    assert rows[2][-3:] == [f"{value:.2f}" for value in (of_20.use, of_20.tracking, of_20.violation_mean)]


def test_all_columns_by_threshold_stand_beside_each_other(episodes):
    text = shown(threshold_table(per_threshold(episodes, BEHAVIOUR)))
    assert text.count("Algorithm") == 1
    assert max(map(len, text.splitlines())) <= 80


def test_columns_that_do_not_fit_come_below_with_the_names_again():
    rows = {"Task": [tuple(Cell(f"{c}{i}" * 5) for c in "abcdef") for i in range(2)]}
    table = ReportTable("Title", ("A", "B", "C", "D", "E", "F"), rows, ("a note",))
    for width in (120, 60, 45, 38):
        text = shown(table, width=width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert all(text.count(cell.text) == 1 for row in rows["Task"] for cell in row[2:])
        assert text.count(rows["Task"][0][0].text) == {120: 1, 60: 2, 45: 4, 38: 4}[width]
        assert (text.count("Title"), text.count("a note")) == (1, 1)
    assert shown(table).startswith("Title · Task")


def test_cost_is_green_below_the_threshold_and_red_above(episodes):
    text = shown(threshold_table(per_threshold(episodes, BEHAVIOUR)), colour=True)
    assert len(re.findall(r"\x1b\[32m[^\x1b]*±", text)) == 2 * 13
    assert len(re.findall(r"\x1b\[1;31m[^\x1b]*±", text)) == 2 * 13


def test_summary_has_both_grids_and_the_paper_beside_them(summaries):
    table = summary_table(summaries)
    lines = shown(table).splitlines()
    ball = next(i for i, line in enumerate(lines) if line.strip() == "Ball-Circle")
    assert lines[ball + 1].split()[:2] == ["CCPO", "13"]
    assert lines[ball + 2].split()[0] == "7"
    papers = [" ".join(line.split()) for line in lines if line.strip().startswith("paper")]
    assert papers[0] == "paper 710.9 ± 20.5 0.59 ± 0.31 – – –"
    assert papers[2] == "paper – 699.0 ± 20.5 0.83 ± 0.42"
    toy = next(i for i, line in enumerate(lines) if line.strip() == "Toy")
    assert not any("paper" in line for line in lines[toy : toy + 5])
    assert max(map(len, lines)) <= 80
    assert "seeds 3, episodes 2 per threshold" in "\n".join(lines)


def test_plus_minus_signs_are_aligned(summaries):
    lines = [line for line in shown(summary_table(summaries), width=160).splitlines() if line.count("±") == 4]
    assert len(lines) == 2 * 4 + 2
    assert len({tuple(i for i, c in enumerate(line) if c == "±") for line in lines}) == 1


def test_the_dials_numbers_stand_beside_r_and_cv(summaries):
    table = summary_table(summaries)
    assert table.headers[2:8] == ("R ↑", "CV ↓", "Use", "Worst", "Tracking", "Constant R / CV")
    row = [cell.text for cell in table.rows_by_task["Toy"][0]]
    toy = next(s for s in summaries if s.task == "Toy")
    assert row[4:7] == [f"{toy[name].mean:.2f}" for name in ("use", "worst", "tracking")]
    assert row[7].split() == [f"{toy['constant R'].mean:.1f}", "/", f"{toy['constant CV'].mean:.2f}"]


def test_variants_of_a_method_stand_above_one_row_of_the_paper(summaries):
    ccpo = [s for s in summaries if (s.task, s.algorithm) == ("BallCircle", "ccpo")]
    variants = [replace(s, algorithm=name) for name in ("CCPO closed loop", "CCPO open loop") for s in ccpo]
    rows = summary_table(variants, {s.algorithm: "CCPO" for s in variants}).rows_by_task["Ball-Circle"]
    assert [(row[0].text, row[1].text) for row in rows] == [
        ("CCPO closed loop", "13"),
        ("CCPO closed loop", "7"),
        ("CCPO open loop", "13"),
        ("CCPO open loop", "7"),
        ("CCPO", "paper"),
    ]


def test_groups_of_thresholds_are_told_apart(summaries):
    rows = group_table(summaries).rows_by_task["Toy"]
    assert [row[1].text.split()[0] for row in rows] == [*GROUPS, *GROUPS]
    toy = next(s for s in summaries if s.task == "Toy")
    for row, group in zip(rows, GROUPS, strict=False):
        numbers = [float(cell.text.split("±")[0]) for cell in row[2:]]
        assert numbers == pytest.approx([toy[f"{name} {group}"].mean for name in ("R", "CV", "use")], abs=0.05)
    text = shown(group_table(summaries))
    assert text.count("Algorithm") == 1
    assert max(map(len, text.splitlines())) <= 80


def test_what_an_older_policy_file_does_not_hold_has_no_column(episodes, summaries):
    older = [replace(s, metrics={name: s[name] for name in ("R", "CV", "R-G", "CV-G")}) for s in summaries]
    table = summary_table(older)
    assert table.headers == ("Algorithm", "Grid", "R ↑", "CV ↓", "R-G ↑", "CV-G ↓")
    assert "tracking" not in " ".join(table.notes)
    rows = [replace(row, distance_mean=math.nan, group="") for row in per_threshold(episodes, BEHAVIOUR)]
    table = threshold_table(rows)
    assert "Tracking" not in table.headers
    marked = [cells[1].text for cells in table.rows_by_task["Toy"][:13] if "●" in cells[1].text]
    assert marked == ["● 20", "● 40", "● 60"]


def test_a_threshold_of_zero_has_a_dash_for_ratios(episodes):
    zero = EpisodeTable(**{**vars(episodes), "threshold": np.where(episodes.threshold == 10, 0, episodes.threshold)})
    row = threshold_table(per_threshold(zero, BEHAVIOUR)).rows_by_task["Toy"][0]
    assert [cell.text for cell in row[4:6]] == ["–", "–"]


def test_no_note_on_the_paper_without_its_rows(summaries):
    text = shown(summary_table([s for s in summaries if s.task == "Toy"]))
    assert "paper" not in text


def test_interval_table(summaries):
    text = shown(interval_table(summaries))
    assert "…" not in text
    assert len(re.findall(r"\d+ \[\d+, \d+\]", text)) == 8
    assert len(re.findall(r"\d \[\d\.\d\d, \d\.\d\d\]", text)) >= 8
    assert re.search(r"9\.0 ± 10\s+0\.0\s", text)


def test_one_seed_shows_no_spread(episodes):
    summaries = summarise(episodes.select(episodes.seed == 0), BEHAVIOUR)
    text = shown(summary_table([s for s in summaries if s.task == "Toy"]))
    assert text.count("±") == 1  # the one in the note
    beside_the_paper = shown(summary_table(summaries))
    assert re.search(r"CCPO +13 +\d+\.\d ± +–", beside_the_paper)
    assert "nan" not in beside_the_paper + shown(interval_table(summaries))


def test_missing_metrics_are_a_dash(episodes):
    seen_only = episodes.select(episodes.threshold == 20)
    rows = summary_table(summarise(seen_only, BEHAVIOUR)).rows_by_task["Toy"]
    assert [cell.text.strip() for cell in rows[0][-2:]] == ["–", "–"]


@pytest.mark.parametrize("make", [summary_table, interval_table, group_table])
def test_markdown_is_a_well_formed_pipe_table(summaries, make):
    lines = make(summaries).markdown().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({len(line) for line in table}) == 1
    columns = len(make(summaries).headers)
    assert {line.count("|") for line in table} == {columns + 2}
    assert re.fullmatch(rf"\| -+ \| -+ (\| -+: ){{{columns - 1}}}\|", table[1])
    assert table[2].split("|")[1].strip() == "Ball-Circle"
    assert lines[0].startswith("**")


def test_markup_in_names_is_text(episodes):
    renamed = type(episodes)(**{**vars(episodes), "algorithm": [f"[red]{a}|x" for a in episodes.algorithm]})
    table = summary_table(summarise(renamed, BEHAVIOUR))
    assert "[red]ccpo|x" in shown(table, width=120)
    assert "[red]ccpo\\|x" in table.markdown()


def test_empty_tables():
    assert "Algorithm" in shown(summary_table([]))
    assert "Threshold" in threshold_table([]).markdown()
