"""The paper's three tables and its figure, from finished runs: methods side by side, the paper's figures below ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ccpo.errors import MissingExtraError, RunError
from ccpo.metrics import BY_GROUP, DIAL, METRICS, EpisodeTable, Estimate, estimate, summarise
from ccpo.report.figures import save_figure, threshold_figure
from ccpo.report.paper import PAPER_EFFICIENCY, STATS, Value, display_name, paper_results
from ccpo.report.statistics import Score, average_over_tasks, rank, safest
from ccpo.report.tables import (
    DIAL_NOTES,
    GROUPS_NOTE,
    PAPER,
    SHADED,
    Cell,
    ReportTable,
    interval,
    number,
    one_or_range,
    reward_digits,
    save_tables,
)
from ccpo.studies.analyses import write_csv
from ccpo.studies.plan import FinishedRun

AVERAGED = "Averaged Score"
_ARROWS = {"R": "R ↑", "CV": "CV ↓", "R-G": "R-G ↑", "CV-G": "CV-G ↓"}
_EFFICIENCY_NAMES = {
    "CCPO": "CCPO with {20, 40, 60}",
    "C-TRPO-Lag": "C-TRPO-Lag with {20, 40, 60}",
    "C-TRPO-Lag (six)": "C-TRPO-Lag with {20, 30, 40, 50, 60, 70}",
}

SeedValues = dict[str, np.ndarray]
"""A method's metrics on one grid, by name: one value per seed [S]."""
Estimates = dict[str, dict[str, dict[str, dict[str, Estimate]]]]
"""Task → grid → method → metric."""


@dataclass(frozen=True)
class Comparison:
    """How to compare: which of the paper's statistics, how many of the safest are shaded, where its figures are."""

    stats: tuple[str, ...] = STATS
    shaded: int = 2
    paper: Callable[[str, str], Mapping[str, Value] | None] = paper_results
    averaged: bool = False
    """Whether the average over tasks stands beside the tasks."""

    def __call__(self, runs: Sequence[FinishedRun], folder: Path) -> list[Path]:
        """Write `tables.md`, `tables.tex`, `numbers.csv` and the figure into the folder; only files are read."""
        if not runs:
            raise RunError("no run is finished yet; there is nothing to report")
        episodes = {run: episodes_of(run) for run in runs}
        values = seed_values(episodes)
        estimates = _estimates(values, averaged=self.averaged)
        seeds = one_or_range([len({r.seed for r in runs if (r.task, r.label) == key}) for key in _keys(runs)])
        marked = "safest method" if self.shaded == 1 else f"{self.shaded} safest methods"
        by = "CV for R and CV, by CV-G for R-G and CV-G" if "CV-G" in self.stats else "CV"
        note = f"ours: seeds {seeds} · marked: the {marked}, by {by}"
        tables = [
            self._table("Mean over thresholds", (*self.stats, *DIAL), estimates, notes=(note, *DIAL_NOTES)),
            self._table("By group of thresholds", BY_GROUP, estimates, notes=(GROUPS_NOTE,)),
            self._interval_table(estimates),
        ]
        return [
            *save_tables(tables, folder / "tables", title="Methods side by side"),
            write_csv(folder / "numbers.csv", self._rows(estimates)),
            *_figures(episodes, folder),
        ]

    def _table(self, title: str, stats: Sequence[str], estimates: Estimates, *, notes: tuple[str, ...]) -> ReportTable:
        """Mean ± std over seeds, on each grid, with the paper's figures below where it has them."""
        methods = _methods(estimates)
        rows_by_task = {}
        for task, grids in estimates.items():
            digits = reward_digits([e["R"].mean for of_grid in grids.values() for e in of_grid.values()])
            printed = {method: self.paper(task, method) or {} for method in methods}
            rows = []
            for stat in stats:
                decimals, name = _decimals(stat, digits), _ARROWS.get(stat, stat)
                for grid, of_grid in grids.items():
                    shaded = self._shaded(of_grid, stat)
                    cells = [
                        Cell(_spread(of_grid[m][stat], decimals), SHADED if m in shaded else "")
                        if m in of_grid
                        else Cell("–")
                        for m in methods
                    ]
                    rows.append((Cell(name), Cell(grid), *cells))
                if any(stat in of_method for of_method in printed.values()):
                    figures = [printed[m].get(stat) for m in methods]
                    texts = [_spread(figure, decimals) if figure else "–" for figure in figures]
                    rows.append((Cell(name), Cell("paper", PAPER), *(Cell(text, PAPER) for text in texts)))
            rows_by_task[display_name(task)] = rows
        spread = "±: one standard deviation over seeds · grid: the thresholds averaged over, 13 or 7 of them"
        return ReportTable(title, ("Stat", "Grid", *methods), rows_by_task, (*notes, spread))

    def _shaded(self, of_grid: Mapping[str, Mapping[str, Estimate]], stat: str) -> list[str]:
        """R and CV are shaded where CV is lowest, R-G and CV-G where CV-G is; of equals, the better ranked."""
        if stat not in STATS:
            return []
        violation = "CV-G" if stat.endswith("-G") else "CV"
        return safest({method: of_grid[method][violation].mean for method in _ranking(of_grid)}, self.shaded)

    def _interval_table(self, estimates: Estimates) -> ReportTable:
        """Interquartile means with bootstrap intervals, and the rank by the paper's rule."""
        stats = (*self.stats, *DIAL)
        rows_by_task = {}
        for task, grids in estimates.items():
            rows = []
            for grid, of_grid in grids.items():
                digits = reward_digits([e["R"].mean for e in of_grid.values()])
                for place, method in enumerate(_ranking(of_grid), start=1):
                    cells = [interval(of_grid[method][stat], _decimals(stat, digits)) for stat in stats]
                    rows.append(tuple(Cell(text) for text in (method, grid, str(place), *cells)))
            rows_by_task[display_name(task)] = rows
        headers = ("Method", "Grid", "Rank", *(_ARROWS.get(stat, stat) for stat in stats))
        notes = (
            "interquartile mean over seeds and its 95 % bootstrap interval",
            "rank: the safer is better; of those without violation, the one that earns more",
        )
        return ReportTable("Interquartile means and ranks", headers, rows_by_task, notes)

    def _rows(self, estimates: Estimates) -> list[dict[str, Any]]:
        """Every number of the tables, with all digits."""
        return [
            {
                "task": task,
                "grid": grid,
                "method": method,
                "rank": place,
                "stat": stat,
                **vars(of_grid[method][stat]),
                "shaded": method in self._shaded(of_grid, stat),
                "paper_mean": printed[stat].mean if stat in printed else "",
                "paper_std": printed[stat].std if stat in printed else "",
            }
            for task, grids in estimates.items()
            for grid, of_grid in grids.items()
            for place, method in enumerate(_ranking(of_grid), start=1)
            for printed in [self.paper(task, method) or {}]
            for stat in (*self.stats, *DIAL, *BY_GROUP)
        ]


def _paper_efficiency(task: str, method: str) -> Mapping[str, Value] | None:
    return PAPER_EFFICIENCY[_EFFICIENCY_NAMES[method]].get(display_name(task))


table_1 = Comparison()
table_2 = Comparison(stats=("R", "CV"), shaded=1, paper=_paper_efficiency, averaged=True)
table_3 = Comparison(shaded=1)


def episodes_of(run: FinishedRun) -> EpisodeTable:
    """A run's evaluation under the name that the method has in the study."""
    table = EpisodeTable.read_csv(run.path / "eval.csv")
    return replace(table, algorithm=np.full(len(table), run.label))


def seed_values(episodes: Mapping[FinishedRun, EpisodeTable]) -> dict[tuple[str, str, str], SeedValues]:
    """Each statistic for each seed, by (task, grid, method); what is unseen is each run's own affair."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for run, table in episodes.items():
        for summary in summarise(table, run.thresholds):
            values = found.setdefault((run.task, summary.grid, run.label), {name: [] for name in METRICS})
            for name in METRICS:
                values[name].append(summary[name].mean)
    return {key: {stat: np.array(column) for stat, column in values.items()} for key, values in found.items()}


def _estimates(values: Mapping[tuple[str, str, str], SeedValues], *, averaged: bool) -> Estimates:
    found: Estimates = {}
    for (task, grid, method), by_stat in values.items():
        of_method = {stat: estimate(by_seed) for stat, by_seed in by_stat.items()}
        found.setdefault(task, {}).setdefault(grid, {})[method] = of_method
    tasks = list(found)
    if averaged and len(tasks) > 1:
        for _, grid, method in list(values):
            of_tasks = {task: values[task, grid, method] for task in tasks if (task, grid, method) in values}
            if len(of_tasks) == len(tasks):  # an average over fewer tasks would not compare
                found.setdefault(AVERAGED, {}).setdefault(grid, {})[method] = {
                    stat: average_over_tasks({task: by_stat[stat] for task, by_stat in of_tasks.items()})
                    for stat in METRICS
                }
    return found


def _keys(runs: Sequence[FinishedRun]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((run.task, run.label) for run in runs))


def _methods(estimates: Estimates) -> list[str]:
    names = (method for grids in estimates.values() for of_grid in grids.values() for method in of_grid)
    return list(dict.fromkeys(names))


def _ranking(of_grid: Mapping[str, Mapping[str, Estimate]]) -> list[str]:
    scores = [Score(method, e["R"].mean, e["CV"].mean) for method, e in of_grid.items()]
    return [score.name for score in rank(scores)]


def _decimals(stat: str, reward_decimals: int) -> int:
    return reward_decimals if stat.split(" ")[0] in ("R", "R-G") or stat == "constant R" else 2


def _spread(value: Estimate | Value, digits: int) -> str:
    std = number(value.std, digits) if value.std is not None else "–"
    return number(value.mean, digits) + (f" ± {std}" if std != "–" else "")


def _figures(episodes: Mapping[FinishedRun, EpisodeTable], folder: Path) -> list[Path]:
    """Reward and cost over the threshold; tasks that differ in their behaviour thresholds have a figure each."""
    by_thresholds: dict[tuple[float, ...], list[str]] = {}
    for task in dict.fromkeys(run.task for run in episodes):
        first = next(run for run in episodes if run.task == task)
        by_thresholds.setdefault(first.thresholds, []).append(task)
    paths = []
    for thresholds, tasks in by_thresholds.items():
        table = EpisodeTable.concatenate([table for run, table in episodes.items() if run.task in tasks])
        name = "figure" if len(by_thresholds) == 1 else f"figure-{tasks[0]}"
        try:
            paths += save_figure(threshold_figure(table, thresholds), folder / name)
        except MissingExtraError:
            break  # tables need no drawing
    return paths
