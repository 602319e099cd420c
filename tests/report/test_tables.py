"""What stands in the tables, where, and that nothing is cut off at 80 columns."""

import io
import re

import pytest
from rich.console import Console

from ccpo.metrics import per_threshold, summarise
from ccpo.report.tables import interval_table, summary_table, threshold_table

BEHAVIOUR = [20, 40, 60]


def shown(table, width=80, colour=False):
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="truecolor" if colour else None
    )
    console.print(table.rich())
    return console.file.getvalue()  # type: ignore[attr-defined] it is the StringIO above


@pytest.fixture
def summaries(episodes):
    return summarise(episodes, BEHAVIOUR)


def test_threshold_table(episodes):
    table = threshold_table(per_threshold(episodes, BEHAVIOUR))
    text = shown(table)
    assert "…" not in text
    assert "over 6 episodes a threshold" in text
    ball = text[text.index("Ball-Circle") : text.index("Toy")].splitlines()
    rows = [line.split() for line in ball if "±" in line]
    assert len(rows) == 2 * 13
    assert rows[0][:2] == ["CCPO", "10"]
    assert rows[13][:2] == ["V-SAC-Lag", "10"]
    assert [row[1] for row in rows[:13] if row[0] == "●"] == ["20", "40", "60"]


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
    assert " ".join(lines[ball + 3].split()) == "paper 710.9 ± 20.5 0.59 ± 0.31 699.0 ± 20.5 0.83 ± 0.42"
    toy = next(i for i, line in enumerate(lines) if line.strip() == "Toy")
    assert not any("paper" in line for line in lines[toy : toy + 5])
    assert "seeds 3, episodes 2 a threshold" in "\n".join(lines)


def test_plus_minus_signs_are_aligned(summaries):
    lines = [line for line in shown(summary_table(summaries)).splitlines() if line.count("±") == 4]
    assert len(lines) == 2 * 4 + 2
    assert len({tuple(i for i, c in enumerate(line) if c == "±") for line in lines}) == 1


def test_no_note_on_the_paper_without_its_rows(summaries):
    text = shown(summary_table([s for s in summaries if s.task == "Toy"]))
    assert "paper" not in text


def test_interval_table(summaries):
    text = shown(interval_table(summaries))
    assert "…" not in text
    assert len(re.findall(r"\d+ \[\d+, \d+\]", text)) == 8
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


@pytest.mark.parametrize("make", [summary_table, interval_table])
def test_markdown_is_a_well_formed_pipe_table(summaries, make):
    lines = make(summaries).markdown().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({len(line) for line in table}) == 1
    assert {line.count("|") for line in table} == {8}
    assert re.fullmatch(r"\| -+ \| -+ (\| -+: ){5}\|", table[1])
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
