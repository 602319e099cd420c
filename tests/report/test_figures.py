"""The figure's axes, curves and files; how it looks is for eyes."""

import sys

import numpy as np
import pytest

from ccpo.errors import FormatError, MissingExtraError
from ccpo.metrics import GROUPS, EpisodeTable, per_threshold, summarise
from ccpo.report.figures import COLOURS, NUMBERS, save_figure, threshold_figure

BEHAVIOUR = [20, 40, 60]


def test_one_column_for_each_task_and_two_rows(episodes):
    pytest.importorskip("matplotlib")
    figure = threshold_figure(episodes, BEHAVIOUR)
    axes = np.array(figure.axes).reshape(3, 2)
    assert [axis.get_title() for axis in axes[0]] == ["Ball-Circle", "Toy"]
    assert [axis.get_ylabel() for axis in axes[:2, 0]] == ["Reward", "Cost"]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["CCPO", "V-SAC-Lag", "cost = threshold", "violation", *GROUPS]


def test_the_numbers_stand_below_the_curves_in_the_colour_of_their_algorithm(episodes):
    pytest.importorskip("matplotlib")
    strip = threshold_figure(episodes, BEHAVIOUR).axes[5]
    assert [text.get_text() for text in strip.texts[: len(NUMBERS)]] == list(NUMBERS)
    summary = next(s for s in summarise(episodes, BEHAVIOUR) if (s.task, s.algorithm, s.grid) == ("Toy", "ccpo", "13"))
    shown = [" ".join(text.get_text().split()) for text in strip.texts if text.get_color() == COLOURS[0]]
    expected = [f"{summary['R'].mean:.1f}", *(f"{summary[name].mean:.2f}" for name in NUMBERS[1:5])]
    assert shown == [*expected, f"{summary['constant R'].mean:.1f} / {summary['constant CV'].mean:.2f}"]


def test_curves_marks_and_diagonal(episodes):
    pytest.importorskip("matplotlib")
    toy_cost = threshold_figure(episodes, BEHAVIOUR).axes[3]
    rows = [r for r in per_threshold(episodes, BEHAVIOUR) if (r.task, r.algorithm) == ("Toy", "ccpo")]
    lines = [line for line in toy_cost.lines if line.get_color() == COLOURS[0]]
    np.testing.assert_allclose(lines[0].get_xydata(), [(r.threshold, r.cost_mean) for r in rows])
    np.testing.assert_allclose(lines[1].get_xdata(), BEHAVIOUR)
    np.testing.assert_allclose(lines[2].get_xdata(), [25, 30, 35, 45, 50, 55])
    np.testing.assert_allclose(lines[3].get_xdata(), [10, 15, 65, 70])
    looks = [(line.get_marker(), line.get_markerfacecolor()) for line in lines[1:4]]
    assert looks == [("o", COLOURS[0]), ("o", "white"), ("^", "white")]
    diagonals = [line for line in toy_cost.lines if np.array_equal(line.get_xdata(), line.get_ydata())]
    assert len(diagonals) == 1
    bands = [path.vertices for band in toy_cost.collections for path in band.get_paths()]
    highest = max(r.cost_mean + r.cost_std for r in rows)
    assert any(np.isclose(vertices[:, 1], highest).any() for vertices in bands)
    assert toy_cost.get_ylim()[0] == 0.0


def test_files_are_reproducible(episodes, tmp_path):
    pytest.importorskip("matplotlib")
    toy = episodes.select(episodes.task == "Toy")
    first = save_figure(threshold_figure(toy, BEHAVIOUR), tmp_path / "a")
    second = save_figure(threshold_figure(toy, BEHAVIOUR), tmp_path / "b")
    assert [path.name for path in first] == ["a.png", "a.svg"]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in first[1].read_bytes()
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_one_threshold_is_enough(episodes):
    pytest.importorskip("matplotlib")
    axes = threshold_figure(episodes.select(episodes.threshold == 25), BEHAVIOUR).axes
    assert list(axes[3].get_xticks()) == [25.0]


def test_an_empty_table_is_refused():
    pytest.importorskip("matplotlib")
    with pytest.raises(FormatError, match="no episodes"):
        threshold_figure(EpisodeTable.from_rows([]), BEHAVIOUR)


def test_without_matplotlib_the_extra_is_named(episodes, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ccpo\[plot\]"):
        threshold_figure(episodes, BEHAVIOUR)
