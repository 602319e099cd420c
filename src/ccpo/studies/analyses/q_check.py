"""The appendix's check of Q_c: CCPO's versatile critic beside critics that were each trained for one threshold.

Both value the same pairs (s, a), drawn from the replay of one of the single-threshold agents; values are shown as
the episodic cost that they stand for.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccpo.errors import RunError, require
from ccpo.metrics import is_seen
from ccpo.report.figures import COLOURS, DASHED, DOTTED, GUIDE, INK, STYLE, save_figure
from ccpo.report.paper import display_name
from ccpo.report.tables import SEEN_MARK, Cell, ReportTable, save_tables
from ccpo.studies.analyses import over_seeds, write_csv
from ccpo.studies.analyses.learned import Learned, draw, episodic_q_cost, load, open_loop, single, tasks
from ccpo.studies.plan import FinishedRun

PAIRS = 4000
COLUMNS = 4
NOTES = (
    f"{SEEN_MARK} behaviour threshold of CCPO · Q_c as episodic cost, over {PAIRS} pairs (s, a) of the replay of the "
    "single-threshold agent in the middle · W: Wasserstein distance of the two distributions",
    "correlation: over the same pairs · ±: one standard deviation over seeds",
)


class Check(NamedTuple):
    """Q_c of the same pairs under one threshold, by both critics: [B] each."""

    task: str
    seed: int
    threshold: float
    seen: bool
    versatile: np.ndarray
    reference: np.ndarray

    @property
    def difference(self) -> float:
        return float(np.mean(self.versatile - self.reference))

    @property
    def distance(self) -> float:
        return wasserstein(self.versatile, self.reference)

    @property
    def correlation(self) -> float:
        """Over the pairs; NaN where a critic sees no difference between them."""
        if min(np.std(self.versatile), np.std(self.reference)) == 0.0:
            return math.nan
        return float(np.corrcoef(self.versatile, self.reference)[0, 1])


def wasserstein(a: np.ndarray, b: np.ndarray) -> float:
    """The distance W₁ of two samples of the same size: the mean distance of their order statistics."""
    return float(np.mean(np.abs(np.sort(a) - np.sort(b))))


def report(runs: Sequence[FinishedRun], folder: Path) -> list[Path]:
    """Table, numbers and, for each task, histograms side by side."""
    checks = [check for run in open_loop(runs) for check in checks_of(run, single(runs))]
    if not checks:
        raise RunError(
            "q-check needs a finished CCPO run, in an open loop, and single-threshold runs of its task; run them first"
        )
    rows = [
        {
            "task": check.task,
            "seed": check.seed,
            "threshold": check.threshold,
            "seen": check.seen,
            "versatile_mean": float(check.versatile.mean()),
            "reference_mean": float(check.reference.mean()),
            "mean_difference": check.difference,
            "wasserstein": check.distance,
            "correlation": check.correlation,
        }
        for check in checks
    ]
    paths = [
        write_csv(folder / "q-check.csv", rows),
        *save_tables([_table(checks, _reference_name(runs))], folder / "q-check", title="Q check"),
    ]
    for task in tasks(runs):
        of_task = [check for check in checks if check.task == task]
        if of_task:
            paths += save_figure(histograms(of_task, _reference_name(runs)), folder / f"q-check-{task}")
    return paths


def checks_of(run: FinishedRun, references: Sequence[FinishedRun]) -> list[Check]:
    """A versatile critic against each single-threshold critic of its task, those of its own seed first."""
    ordered = sorted((r for r in references if r.task == run.task), key=lambda r: (r.seed != run.seed, r.seed))
    by_threshold: dict[float, FinishedRun] = {}
    for reference in ordered:
        by_threshold.setdefault(reference.thresholds[0], reference)
    if not by_threshold:
        return []
    thresholds = sorted(by_threshold)
    learned: dict[float, Learned] = {threshold: load(by_threshold[threshold]) for threshold in thresholds}
    pairs = draw(learned[thresholds[len(thresholds) // 2]].steps, PAIRS, seed=run.seed)
    own = load(run)
    return [
        Check(
            run.task,
            run.seed,
            threshold,
            bool(seen),
            episodic_q_cost(own, pairs, threshold),
            episodic_q_cost(learned[threshold], pairs, threshold),
        )
        for threshold, seen in zip(thresholds, is_seen(np.array(thresholds), run.thresholds), strict=True)
    ]


def _reference_name(runs: Sequence[FinishedRun]) -> str:
    return single(runs)[0].label


def _by_threshold(checks: Sequence[Check]) -> list[list[Check]]:
    """The checks of one task, over seeds, for each threshold in turn."""
    thresholds = sorted({check.threshold for check in checks})
    return [[check for check in checks if check.threshold == threshold] for threshold in thresholds]


def _table(checks: Sequence[Check], reference: str) -> ReportTable:
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for task in dict.fromkeys(check.task for check in checks):
        for same in _by_threshold([check for check in checks if check.task == task]):
            texts = (
                f"{SEEN_MARK if same[0].seen else ' '} {same[0].threshold:g}",
                over_seeds([check.versatile.mean() for check in same], 1),
                over_seeds([check.reference.mean() for check in same], 1),
                over_seeds([check.difference for check in same], 1),
                over_seeds([check.distance for check in same], 1),
                over_seeds([check.correlation for check in same], 2),
            )
            rows_by_task.setdefault(display_name(task), []).append(tuple(map(Cell, texts)))
    headers = ("Threshold", "CCPO", reference, "Difference", "W", "Correlation")
    return ReportTable(f"Mean Q_c of CCPO and of single-threshold {reference}", headers, rows_by_task, NOTES)


def histograms(checks: Sequence[Check], reference: str) -> Any:
    """One panel a threshold, seeds pooled, and the means of all of them in a last one, as a matplotlib `Figure`."""
    matplotlib, figure_module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    groups = _by_threshold(checks)
    pooled = [
        (np.concatenate([c.versatile for c in same]), np.concatenate([c.reference for c in same])) for same in groups
    ]
    low, high = np.quantile(np.concatenate([values for pair in pooled for values in pair]), [0.001, 0.999])
    edges = np.linspace(low, high, 41)
    columns = min(COLUMNS, len(groups) + 1)
    rows = math.ceil((len(groups) + 1) / columns)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = figure_module.Figure(figsize=(2.15 * columns + 0.3, 1.75 * rows + 0.6), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis, same, pair in zip(axes, groups, pooled, strict=False):
            _draw_panel(axis, same, pair, edges)
        _draw_means(axes[len(groups)], groups)
        for axis in axes[len(groups) + 1 :]:
            axis.set_visible(False)
        for axis in axes[max(0, len(groups) - columns) : len(groups)]:
            axis.set_xlabel("Q_c, as episodic cost")
        figure.suptitle(display_name(checks[0].task), fontsize=9.5, fontweight="bold")
        _add_legend(figure, reference)
    return figure


def _draw_panel(axis: Any, same: Sequence[Check], pair: tuple[np.ndarray, np.ndarray], edges: np.ndarray) -> None:
    check, distance = same[0], np.mean([check.distance for check in same])
    for values, colour, filled in zip(pair, COLOURS, (True, False), strict=False):
        if filled:
            axis.hist(values, edges, density=True, color=colour, alpha=0.3)
        axis.hist(values, edges, density=True, histtype="step", color=colour, linewidth=1.2)
        axis.axvline(values.mean(), color=colour, linewidth=1.2, linestyle=DASHED)
    axis.axvline(check.threshold, color=INK, linewidth=0.9, linestyle=DOTTED)
    axis.set_title(f"ε = {check.threshold:g}, {'seen' if check.seen else 'unseen'}", fontsize=8.5, fontweight="normal")
    axis.text(0.98, 0.97, f"W {distance:.1f}", transform=axis.transAxes, ha="right", va="top", fontsize=7.5)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_xlim(edges[0], edges[-1])


def _draw_means(axis: Any, groups: Sequence[Sequence[Check]]) -> None:
    thresholds = [same[0].threshold for same in groups]
    axis.plot(thresholds, thresholds, color=INK, linewidth=0.9, linestyle=DOTTED)
    for name, colour in zip(("versatile", "reference"), COLOURS, strict=False):
        means = [np.mean([getattr(check, name).mean() for check in same]) for same in groups]
        axis.plot(thresholds, means, "o-", color=colour, linewidth=1.5, markersize=3.5)
    axis.set_title("mean Q_c over ε", fontsize=8.5, fontweight="normal")
    axis.set_xlabel("Threshold")


def _add_legend(figure: Any, reference: str) -> None:
    line, patch = require("matplotlib.lines", "plot").Line2D, require("matplotlib.patches", "plot").Patch
    handles = [
        patch(facecolor=f"{COLOURS[0]}4D", edgecolor=COLOURS[0], label="CCPO's versatile critic"),
        patch(facecolor="none", edgecolor=COLOURS[1], label=f"{reference}, one agent a threshold"),
        line([], [], color=GUIDE, linewidth=1.2, linestyle=DASHED, label="mean"),
        line([], [], color=INK, linewidth=0.9, linestyle=DOTTED, label="threshold"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
