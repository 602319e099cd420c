"""The frontier of reward and cost: one versatile policy against one agent a threshold, and against the closed form.

The exhaustive reference is a set of single-threshold agents, each evaluated at its own threshold; on the analytic
CMDPs the best return at every threshold is known.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ccpo.envs.analytic import AnalyticEnv
from ccpo.envs.registry import find_task
from ccpo.errors import RunError, require
from ccpo.metrics import EpisodeTable, is_seen, violation
from ccpo.report.figures import COLOURS, DASHED, DOTTED, FORBIDDEN, GUIDE, INK, STYLE, save_figure
from ccpo.report.paper import display_name
from ccpo.report.tables import SAFE, SEEN_MARK, UNSAFE, Cell, ReportTable, save_tables
from ccpo.runs import Run
from ccpo.studies.analyses import over_seeds, write_csv
from ccpo.studies.analyses.learned import single, tasks, versatile
from ccpo.studies.plan import FinishedRun


class Point(NamedTuple):
    """A method at one threshold: reward, cost and violation, one value a seed [S]."""

    reward: np.ndarray
    cost: np.ndarray
    violation: np.ndarray


class Comparison(NamedTuple):
    """One threshold of one task; what there is no run or no closed form for is None."""

    task: str
    threshold: float
    seen: bool
    versatile: Point
    exhaustive: Point | None
    optimal_return: float | None

    def share(self, reference: float | None) -> float | None:
        return None if reference is None else float(self.versatile.reward.mean()) / reference

    @property
    def share_of_exhaustive(self) -> float | None:
        return self.share(None if self.exhaustive is None else float(self.exhaustive.reward.mean()))

    @property
    def share_of_optimum(self) -> float | None:
        return self.share(self.optimal_return)


def report(runs: Sequence[FinishedRun], folder: Path) -> list[Path]:
    """Table and figure of the versatile policy beside its references."""
    comparisons = [found for task in tasks(runs) for found in compare([run for run in runs if run.task == task])]
    if not comparisons:
        raise RunError("frontier needs a finished and evaluated CCPO run; run one first")
    name = versatile(runs)[0].label
    reference = next((run.label for run in single(runs)), "single-threshold agent")
    return [
        write_csv(folder / "frontier.csv", [_plain(comparison) for comparison in comparisons]),
        *save_tables([_table(comparisons, name, reference)], folder / "frontier", title="Frontier"),
        *save_figure(frontier_figure(comparisons, name, reference), folder / "frontier"),
    ]


def compare(runs: Sequence[FinishedRun]) -> list[Comparison]:
    """The runs of one task at every threshold that all versatile ones were evaluated at."""
    curves = [_by_threshold(run) for run in versatile(runs)]
    references: dict[float, list[tuple[float, float, float]]] = {}
    for run in single(runs):
        own, found = run.thresholds[0], _by_threshold(run)
        if own not in found:
            raise RunError(f"'{run.path}' was not evaluated at its own threshold {own:g}; evaluate it there")
        references.setdefault(own, []).append(found[own])
    if not curves:
        return []
    env = closed_form(runs[0].task)
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    seen = is_seen(np.array(shared), versatile(runs)[0].thresholds)
    return [
        Comparison(
            runs[0].task,
            threshold,
            bool(of_training),
            _point([curve[threshold] for curve in curves]),
            _point(references[threshold]) if threshold in references else None,
            env.optimal_return(threshold) if env else None,
        )
        for threshold, of_training in zip(shared, seen, strict=True)
    ]


def closed_form(task: str) -> AnalyticEnv | None:
    """The environment that knows its own optimum, if the task is analytic; no other one is built."""
    found = find_task(task)
    return cast(AnalyticEnv, found.make()) if found.closed_form else None


def _by_threshold(run: FinishedRun) -> dict[float, tuple[float, float, float]]:
    """A run's mean reward, cost and violation at each threshold of its evaluation."""
    episodes = EpisodeTable.read_csv(Run(run.path).eval_path)
    found = {}
    for threshold in np.unique(episodes.threshold):
        here = episodes.select(episodes.threshold == threshold)
        excess = violation(here.cost, here.threshold)
        found[float(threshold)] = (float(here.reward.mean()), float(here.cost.mean()), float(excess.mean()))
    return found


def _point(by_seed: Sequence[tuple[float, float, float]]) -> Point:
    return Point(*np.array(by_seed).T)


def _plain(comparison: Comparison) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(comparison, name) for name in ("task", "threshold", "seen")}
    for name in ("versatile", "exhaustive"):
        point = getattr(comparison, name)
        plain[f"{name}_seeds"] = len(point.reward) if point else 0
        for quantity in Point._fields:
            values = getattr(point, quantity) if point else np.array([])
            plain[f"{name}_{quantity}"] = float(values.mean()) if len(values) else None
            plain[f"{name}_{quantity}_std"] = float(values.std(ddof=1)) if len(values) > 1 else None
    plain["optimal_return"] = comparison.optimal_return
    plain["share_of_exhaustive"] = comparison.share_of_exhaustive
    plain["share_of_optimum"] = comparison.share_of_optimum
    return plain


def _table(comparisons: Sequence[Comparison], name: str, reference: str) -> ReportTable:
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for comparison in comparisons:
        exhaustive, best = comparison.exhaustive, comparison.optimal_return
        row = (
            Cell(f"{SEEN_MARK if comparison.seen else ' '} {comparison.threshold:g}"),
            Cell(over_seeds(comparison.versatile.reward, 1)),
            _cost_cell(comparison.versatile, comparison.threshold),
            Cell(over_seeds(exhaustive.reward, 1) if exhaustive else "–"),
            _cost_cell(exhaustive, comparison.threshold),
            Cell("–" if best is None else f"{best:.1f}"),
            Cell(_percent(comparison.share_of_exhaustive)),
            Cell(_percent(comparison.share_of_optimum)),
        )
        rows_by_task.setdefault(display_name(comparison.task), []).append(row)
    headers = ("Threshold", f"{name} R", "Cost", f"{reference} R", "Cost", "Optimum", f"of {reference}", "of optimum")
    notes = (
        f"{SEEN_MARK} behaviour threshold of {name} · {reference}: one agent a threshold, evaluated at its own",
        "optimum: the closed form, the best return at a mean cost of ε · ±: one standard deviation over seeds",
    )
    return ReportTable("One policy against one agent a threshold", headers, rows_by_task, notes)


def _cost_cell(point: Point | None, threshold: float) -> Cell:
    if point is None:
        return Cell("–")
    return Cell(over_seeds(point.cost, 1), SAFE if point.cost.mean() <= threshold else UNSAFE)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def frontier_figure(comparisons: Sequence[Comparison], name: str, reference: str) -> Any:
    """Above: reward over the cost that was paid. Below: that cost over the threshold. One column a task."""
    matplotlib, figure_module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    names = list(dict.fromkeys(comparison.task for comparison in comparisons))
    with matplotlib.rc_context(STYLE):
        size = (max(3.6, 2.4 * len(names) + 0.5), 4.6)
        figure = figure_module.Figure(figsize=size, layout="constrained")
        axes = figure.subplots(2, len(names), squeeze=False)
        for column, task in enumerate(names):
            of_task = [comparison for comparison in comparisons if comparison.task == task]
            _draw_frontier(axes[0, column], of_task)
            _draw_costs(axes[1, column], of_task)
            axes[0, column].set_title(display_name(task), pad=8)
        axes[0, 0].set_ylabel("Reward")
        axes[1, 0].set_ylabel("Cost")
        figure.align_ylabels(axes[:, 0])
        _add_legend(figure, name, reference, closed_form=any(c.optimal_return is not None for c in comparisons))
    return figure


def _draw_frontier(axis: Any, comparisons: Sequence[Comparison]) -> None:
    env = closed_form(comparisons[0].task)
    if env:
        thresholds = np.linspace(comparisons[0].threshold, comparisons[-1].threshold, 100)
        curve = np.array([(env.optimal_cost(t), env.optimal_return(t)) for t in thresholds])
        axis.plot(*curve.T, color=INK, linewidth=1.0, linestyle=DASHED, zorder=1.5)
    ours = np.array([(c.versatile.cost.mean(), c.versatile.reward.mean()) for c in comparisons])
    axis.plot(*ours.T, color=COLOURS[0], linewidth=1.5)
    _draw_points(axis, ours, [c.seen for c in comparisons])
    points = [(c.exhaustive.cost.mean(), c.exhaustive.reward.mean()) for c in comparisons if c.exhaustive]
    _draw_references(axis, points)
    axis.set_xlabel("Cost")


def _draw_costs(axis: Any, comparisons: Sequence[Comparison]) -> None:
    thresholds = [c.threshold for c in comparisons]
    ours = np.array([(c.threshold, c.versatile.cost.mean()) for c in comparisons])
    points = [(c.threshold, c.exhaustive.cost.mean()) for c in comparisons if c.exhaustive]
    top = 1.06 * max(thresholds[-1], *ours[:, 1], *(cost for _, cost in points))
    margin = 0.04 * (thresholds[-1] - thresholds[0]) or 1.0
    left, right = thresholds[0] - margin, thresholds[-1] + margin
    axis.fill_between([left, right], [left, right], [top, top], color=FORBIDDEN, linewidth=0, zorder=0)
    axis.plot([left, right], [left, right], color=GUIDE, linewidth=0.9, linestyle=DOTTED)
    spread = [c.versatile.cost.std(ddof=1) if len(c.versatile.cost) > 1 else 0.0 for c in comparisons]
    axis.fill_between(thresholds, ours[:, 1] - spread, ours[:, 1] + spread, color=COLOURS[0], alpha=0.16, linewidth=0)
    axis.plot(*ours.T, color=COLOURS[0], linewidth=1.5)
    _draw_points(axis, ours, [c.seen for c in comparisons])
    _draw_references(axis, points)
    axis.set_xlim(left, right)
    axis.set_ylim(0, top)
    axis.set_xlabel("Threshold")


def _draw_points(axis: Any, points: np.ndarray, seen: Sequence[bool]) -> None:
    for point, full in zip(points, seen, strict=True):
        face, size = (COLOURS[0], 5) if full else ("white", 3.5)
        axis.plot(*point, "o", color=face, markeredgecolor=COLOURS[0], markeredgewidth=1, markersize=size)


def _draw_references(axis: Any, points: Sequence[tuple[float, float]]) -> None:
    if points:
        axis.plot(
            *np.array(points).T, "D", color=COLOURS[1], markersize=4, markeredgecolor="white", markeredgewidth=0.6
        )


def _add_legend(figure: Any, name: str, reference: str, *, closed_form: bool) -> None:
    line, patch = require("matplotlib.lines", "plot").Line2D, require("matplotlib.patches", "plot").Patch
    handles = [
        line([], [], color=COLOURS[0], linewidth=1.5, marker="o", markersize=5, label=f"{name}, seen"),
        line(
            [], [], color=COLOURS[0], linewidth=1.5, marker="o", markerfacecolor="white", markersize=3.5, label="unseen"
        ),
        line(
            [], [], color=COLOURS[1], linestyle="none", marker="D", markersize=4, label=f"{reference}, one a threshold"
        ),
        patch(color=FORBIDDEN, label="violation"),
    ]
    if closed_form:
        handles.append(line([], [], color=INK, linewidth=1.0, linestyle=DASHED, label="optimum"))
    columns = max(2, min(len(handles), int(figure.get_figwidth() / 1.3)))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
