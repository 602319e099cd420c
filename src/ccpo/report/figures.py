"""The paper's figure: reward above, cost below, over the threshold, and numbers below; one column for each task."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ccpo.errors import FormatError, require
from ccpo.metrics import GROUPS, EpisodeTable, Summary, ThresholdRow, per_threshold, summarise
from ccpo.policy_file import PathLike, write_atomically
from ccpo.report.paper import display_name
from ccpo.report.tables import constants, number, reward_digits

# Okabe and Ito's palette, which stays apart under colour blindness; the first algorithm gets the strongest.
# Two more follow, for more than seven algorithms.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933", "#000000")
INK, GUIDE, FORBIDDEN = "#262626", "#8C8C8C", "#FBEDEA"
DASHED, DOTTED = (0, (4, 2.5)), (0, (1, 2))
LINE = {"color": INK, "linewidth": 1.6, "solid_capstyle": "butt"}
"""Of cost = threshold."""
MARKERS: dict[str, dict[str, Any]] = dict(
    zip(GROUPS, ({"marker": "o", "markersize": 5.5}, {"marker": "o"}, {"marker": "^", "markersize": 4.5}), strict=True)
)
"""Full where it was trained, hollow elsewhere."""
NUMBERS = ("R", "CV", "use", "worst", "tracking", "constant R / CV")
LINE_HEIGHT = 0.18
"""Of the numbers and of the legend, in inches."""
PLACES = (0.11, 0.25, 0.37, 0.51, 0.71, 1.04)
"""Where their columns end."""
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 8.5,
    "axes.edgecolor": GUIDE,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 1.5,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "svg.hashsalt": "ccpo",
}


def threshold_figure(table: EpisodeTable, behaviour_thresholds: Sequence[float]) -> Any:
    """Mean reward and cost over the threshold with one standard deviation shaded, as a matplotlib `Figure`.

    The solid diagonal is cost = threshold. Full dots on dotted lines: behaviour thresholds; hollow dots: interpolated;
    triangles: extrapolated. Below: the numbers of each algorithm over all thresholds.
    """
    matplotlib, figure_module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    rows = per_threshold(table, behaviour_thresholds)
    if not rows:
        raise FormatError("the table holds no episodes; evaluate a policy first")
    tasks = list(dict.fromkeys(row.task for row in rows))
    algorithms = list(dict.fromkeys(row.algorithm for row in rows))
    colours = {algorithm: COLOURS[i % len(COLOURS)] for i, algorithm in enumerate(algorithms)}
    firsts: dict[tuple[str, str], Summary] = {}
    for summary in summarise(table, behaviour_thresholds):
        firsts.setdefault((summary.task, summary.algorithm), summary)
    with matplotlib.rc_context(STYLE):
        width = max(2.7 * len(tasks) + 0.7, min(6.4, 2.4 + len(algorithms)))
        legend = _legend(colours)
        rows_of_legend = math.ceil(len(legend) / _legend_columns([handle.get_label() for handle in legend], width))
        numbers = LINE_HEIGHT * (len(algorithms) + 1)
        height = 4.4 + numbers + LINE_HEIGHT * rows_of_legend
        figure = figure_module.Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(3, len(tasks), squeeze=False, height_ratios=(1.8, 2.1, numbers))
        for column, task in enumerate(tasks):
            of_task = [row for row in rows if row.task == task]
            axes[0, column].sharex(axes[1, column])
            axes[0, column].tick_params(labelbottom=False)
            for algorithm in reversed(algorithms):  # the first algorithm lies on top
                curve = [row for row in of_task if row.algorithm == algorithm]
                _draw_curve(axes[0, column], curve, "reward", colours[algorithm])
                _draw_curve(axes[1, column], curve, "cost", colours[algorithm])
            _finish_column(axes[:2, column], of_task)
            axes[0, column].set_title(display_name(task), pad=8)
            axes[1, column].set_xlabel("Threshold")
            shown = {colours[name]: firsts[task, name] for name in algorithms if (task, name) in firsts}
            _write_numbers(axes[2, column], shown)
        axes[0, 0].set_ylabel("Reward")
        axes[1, 0].set_ylabel("Cost")
        figure.align_ylabels(axes[:, 0])
        _add_legend(figure, legend)
        _settle(figure)
    return figure


def learning_figure(curves: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> Any:
    """Reward, violation and use of training episodes over environment steps, a thin line for each seed.

    `curves`: for each label its seeds' `steps`, `reward`, `violation` and, if it was kept, `use`.
    """
    matplotlib, figure_module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    quantities = ["reward", "violation", *(["use"] if any(s.get("use") for c in curves.values() for s in c) else [])]
    with matplotlib.rc_context(STYLE):
        figure = figure_module.Figure(
            figsize=(3.2 * len(quantities), 2.4 + LINE_HEIGHT * len(curves) / 2), layout="constrained"
        )
        axes = dict(zip(quantities, figure.subplots(1, len(quantities)), strict=True))
        for index, (label, seeds) in enumerate(curves.items()):
            style = {"color": COLOURS[index % len(COLOURS)], "linewidth": 1.0, "alpha": 0.8}
            for quantity, axis in axes.items():
                for seed in [seed for seed in seeds if seed.get(quantity)]:
                    axis.plot(np.asarray(seed["steps"], float) / 1e3, seed[quantity], **style)
            axes["reward"].plot([], [], label=display_name(label), **style)
        for quantity, axis in axes.items():
            axis.set_xlabel("Thousand environment steps")
            axis.set_ylabel(quantity.capitalize())
        axes["violation"].set_yscale("symlog", linthresh=1.0)
        axes["violation"].set_ylim(bottom=0.0)
        if "use" in axes:
            axes["use"].axhline(1.0, zorder=1.9, **LINE)
            axes["use"].set_ylim(bottom=0.0)
        if curves:
            _add_legend(figure, axes["reward"].get_legend_handles_labels()[0])
        _settle(figure)
    return figure


def _settle(figure: Any) -> None:
    """Lay it out and round the places: the solver's last bits, which an SVG shows, differ from call to call."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis in figure.axes:
        axis.set_position(np.round(axis.get_position().bounds, 4))


def save_figure(figure: Any, stem: PathLike) -> list[Path]:
    """Write `stem.png` and `stem.svg`, atomically, the same bytes for the same figure."""
    matplotlib = require("matplotlib", "plot")
    paths = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        path, data = Path(f"{stem}{suffix}"), io.BytesIO()
        with matplotlib.rc_context(STYLE):
            figure.savefig(data, format=suffix[1:], dpi=200, metadata=metadata)
        write_atomically(path, data.getvalue())
        paths.append(path)
    return paths


def _draw_curve(axis: Any, curve: Sequence[ThresholdRow], quantity: str, colour: str) -> None:
    thresholds = np.array([row.threshold for row in curve])
    mean = np.array([getattr(row, f"{quantity}_mean") for row in curve])
    std = np.array([getattr(row, f"{quantity}_std") for row in curve])
    low = np.maximum(mean - std, 0.0) if quantity == "cost" else mean - std
    axis.fill_between(thresholds, low, mean + std, color=colour, alpha=0.16, linewidth=0)
    axis.plot(thresholds, mean, color=colour, linewidth=1.5)
    for group in GROUPS:
        inside = np.array([row.group == group for row in curve], bool)
        axis.plot(thresholds[inside], mean[inside], linestyle="none", **_point(group, colour))


def _point(group: str, colour: str) -> dict[str, Any]:
    """How a group of thresholds is marked."""
    face = colour if group == GROUPS[0] else "white"
    return {"markersize": 3.5, "markerfacecolor": face, "markeredgecolor": colour, "color": colour} | MARKERS[group]


def _write_numbers(axis: Any, summaries: Mapping[str, Summary]) -> None:
    """A line for each algorithm, in its colour, below the names of the numbers."""
    axis.axis("off")
    digits = reward_digits([summary["R"].mean for summary in summaries.values()])
    decimals = (digits, 2, 2, 2, 2)
    lines: list[tuple[str, Sequence[str]]] = [(INK, NUMBERS)]
    controls = constants(list(summaries.values()), digits)
    for (colour, summary), control in zip(summaries.items(), controls, strict=True):
        texts = [number(summary[name].mean, d) for name, d in zip(NUMBERS[:-1], decimals, strict=True)]
        lines.append((colour, (*texts, control)))
    for line, (colour, texts) in enumerate(lines):
        height = 1.0 - (line + 0.5) / len(lines)
        for right, text in zip(PLACES, texts, strict=True):
            axis.text(
                right, height, text, color=colour, fontsize=6.8, ha="right", va="center", transform=axis.transAxes
            )


def _finish_column(axes: Sequence[Any], rows: Sequence[ThresholdRow]) -> None:
    """Limits, ticks, behaviour thresholds, and what lies above the line cost = threshold."""
    cost_axis = axes[1]
    thresholds = sorted({row.threshold for row in rows})
    margin = 0.04 * (thresholds[-1] - thresholds[0]) or 1.0
    left, right = thresholds[0] - margin, thresholds[-1] + margin
    top = 1.06 * max(thresholds[-1], *(row.cost_mean + row.cost_std for row in rows))
    cost_axis.fill_between([left, right], [left, right], [top, top], color=FORBIDDEN, linewidth=0, zorder=0)
    cost_axis.plot([left, right], [left, right], zorder=1.9, **LINE)
    cost_axis.set_ylim(0, top)
    cost_axis.set_xlim(left, right)
    seen = sorted({row.threshold for row in rows if row.seen})
    for axis in axes:
        axis.yaxis.get_major_locator().set_params(nbins=5, min_n_ticks=4, steps=[1, 2, 2.5, 5, 10])
        for threshold in seen:
            axis.axvline(threshold, color=GUIDE, linewidth=0.7, linestyle=DOTTED, zorder=0.5)
    cost_axis.set_xticks(thresholds, minor=True)
    cost_axis.set_xticks(seen or thresholds[:: math.ceil(len(thresholds) / 4)])


def _legend(colours: Mapping[str, str]) -> list[Any]:
    """Handles for the algorithms, for the line and what lies above it, and for the groups of thresholds."""
    line, patch = require("matplotlib.lines", "plot").Line2D, require("matplotlib.patches", "plot").Patch
    return [
        *(line([], [], color=colour, linewidth=1.8, label=display_name(name)) for name, colour in colours.items()),
        line([], [], label="cost = threshold", **LINE),
        patch(color=FORBIDDEN, label="violation"),
        *(line([], [], linestyle="none", label=group, **_point(group, GUIDE)) for group in GROUPS),
    ]


def _add_legend(figure: Any, handles: Sequence[Any]) -> None:
    columns = _legend_columns([handle.get_label() for handle in handles], figure.get_figwidth())
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """As many columns as fit; matplotlib fills one after the other.

    >>> _legend_columns(["short"] * 4, 4.0), _legend_columns(["a label that is very long indeed"] * 4, 4.0)
    (4, 1)
    """
    for columns in range(len(labels), 1, -1):
        parts = np.array_split(np.array([len(label) for label in labels]), columns)
        if sum(0.55 + 0.064 * part.max() for part in parts) <= width:
            return columns
    return 1
