"""The paper's two-row figure: reward above, cost below, over the threshold; one column for each task."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ccpo.errors import FormatError, require
from ccpo.metrics import EpisodeTable, ThresholdRow, per_threshold
from ccpo.policy_file import PathLike, write_atomically
from ccpo.report.paper import display_name

# Okabe and Ito's palette, which stays apart under colour blindness; the first algorithm gets the strongest.
# Two more follow, for more than seven algorithms.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#999933")
INK, GUIDE, FORBIDDEN = "#262626", "#8C8C8C", "#FBEDEA"
DASHED, DOTTED = (0, (4, 2.5)), (0, (1, 2))
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

    Dashed: cost = threshold. Full dots on dotted lines: behaviour thresholds; hollow dots: unseen.
    """
    matplotlib, figure_module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    rows = per_threshold(table, behaviour_thresholds)
    if not rows:
        raise FormatError("the table holds no episodes; evaluate a policy first")
    tasks = list(dict.fromkeys(row.task for row in rows))
    algorithms = list(dict.fromkeys(row.algorithm for row in rows))
    colours = {algorithm: COLOURS[i % len(COLOURS)] for i, algorithm in enumerate(algorithms)}
    with matplotlib.rc_context(STYLE):
        width = max(3.2 + 0.2 * len(algorithms), 2.15 * len(tasks) + 0.5)
        figure = figure_module.Figure(figsize=(width, 4.3), layout="constrained")
        axes = figure.subplots(2, len(tasks), sharex="col", squeeze=False)
        for column, task in enumerate(tasks):
            of_task = [row for row in rows if row.task == task]
            for algorithm in reversed(algorithms):  # the first algorithm lies on top
                curve = [row for row in of_task if row.algorithm == algorithm]
                _draw_curve(axes[0, column], curve, "reward", colours[algorithm])
                _draw_curve(axes[1, column], curve, "cost", colours[algorithm])
            _finish_column(axes[:, column], of_task)
            axes[0, column].set_title(display_name(task), pad=8)
            axes[1, column].set_xlabel("Threshold")
        axes[0, 0].set_ylabel("Reward")
        axes[1, 0].set_ylabel("Cost")
        figure.align_ylabels(axes[:, 0])
        _add_legend(figure, colours)
    return figure


def learning_figure(curves: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> Any:
    """Reward and violation of training episodes over environment steps, a thin line for each seed.

    `curves`: for each label its seeds' `steps`, `reward` and `violation`.
    """
    matplotlib, figure_module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    with matplotlib.rc_context(STYLE):
        figure = figure_module.Figure(figsize=(5.6, 2.4), layout="constrained")
        axes = figure.subplots(1, 2)
        for number, (label, seeds) in enumerate(curves.items()):
            for index, seed in enumerate(seeds):
                for axis, quantity in zip(axes, ("reward", "violation"), strict=True):
                    thousands = np.asarray(seed["steps"], float) / 1e3
                    style = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.0, "alpha": 0.8}
                    axis.plot(thousands, seed[quantity], label=None if index else display_name(label), **style)
        for axis, quantity in zip(axes, ("Reward", "Violation"), strict=True):
            axis.set_xlabel("Thousand environment steps")
            axis.set_ylabel(quantity)
        axes[1].set_yscale("symlog", linthresh=1.0)
        axes[1].set_ylim(bottom=0.0)
        if curves:
            figure.legend(
                *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8
            )
    return figure


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
    seen = np.array([row.seen for row in curve], bool)
    mean = np.array([getattr(row, f"{quantity}_mean") for row in curve])
    std = np.array([getattr(row, f"{quantity}_std") for row in curve])
    low = np.maximum(mean - std, 0.0) if quantity == "cost" else mean - std
    axis.fill_between(thresholds, low, mean + std, color=colour, alpha=0.16, linewidth=0)
    axis.plot(thresholds, mean, color=colour, linewidth=1.5)
    axis.plot(
        thresholds[~seen],
        mean[~seen],
        "o",
        color="white",
        markeredgecolor=colour,
        markeredgewidth=1,
        markersize=3,
    )
    axis.plot(thresholds[seen], mean[seen], "o", color=colour, markersize=5)


def _finish_column(axes: Sequence[Any], rows: Sequence[ThresholdRow]) -> None:
    """Limits, ticks, behaviour thresholds, and what lies above the line cost = threshold."""
    cost_axis = axes[1]
    thresholds = sorted({row.threshold for row in rows})
    margin = 0.04 * (thresholds[-1] - thresholds[0]) or 1.0
    left, right = thresholds[0] - margin, thresholds[-1] + margin
    top = 1.06 * max(thresholds[-1], *(row.cost_mean + row.cost_std for row in rows))
    cost_axis.fill_between([left, right], [left, right], [top, top], color=FORBIDDEN, linewidth=0, zorder=0)
    cost_axis.plot([left, right], [left, right], color=INK, linewidth=0.9, linestyle=DASHED, zorder=1.5)
    cost_axis.set_ylim(0, top)
    cost_axis.set_xlim(left, right)
    seen = sorted({row.threshold for row in rows if row.seen})
    for axis in axes:
        axis.yaxis.get_major_locator().set_params(nbins=5, min_n_ticks=4, steps=[1, 2, 2.5, 5, 10])
        for threshold in seen:
            axis.axvline(threshold, color=GUIDE, linewidth=0.7, linestyle=DOTTED, zorder=0.5)
    cost_axis.set_xticks(thresholds, minor=True)
    cost_axis.set_xticks(seen or thresholds[:: math.ceil(len(thresholds) / 4)])


def _add_legend(figure: Any, colours: dict[str, str]) -> None:
    line, patch = require("matplotlib.lines", "plot").Line2D, require("matplotlib.patches", "plot").Patch
    handles = [
        line([], [], color=colour, linewidth=1.8, label=display_name(algorithm))
        for algorithm, colour in colours.items()
    ]
    handles += [
        line([], [], color=INK, linewidth=0.9, linestyle=DASHED, label="cost = threshold"),
        patch(color=FORBIDDEN, label="violation"),
        line([], [], color=GUIDE, linewidth=0.7, linestyle=DOTTED, marker="o", markersize=5, label="seen"),
        line([], [], color="white", marker="o", markeredgecolor=GUIDE, markersize=3.5, label="unseen"),
    ]
    columns = min(len(handles), max(1, int(figure.get_figwidth() / 1.3)))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
