"""What each deviation from the paper does: the full method, and the same with one deviation taken back at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ccpo.errors import RunError
from ccpo.metrics import violation
from ccpo.report.paper import display_name
from ccpo.report.tables import Cell, ReportTable, save_tables
from ccpo.studies.analyses import over_seeds, write_csv
from ccpo.studies.analyses.learned import tasks
from ccpo.studies.comparison import episodes_of
from ccpo.studies.plan import FinishedRun

FULL = "CCPO"


def report(runs: Sequence[FinishedRun], folder: Path) -> list[Path]:
    """A table of R and CV, with the difference to the full method on the same seeds."""
    rows = [row for task in tasks(runs) for row in compare([run for run in runs if run.task == task])]
    if not rows:
        raise RunError("deviations needs a finished and evaluated CCPO run; run one first")
    return [
        write_csv(folder / "deviations.csv", rows),
        *save_tables([_table(rows)], folder / "deviations", title="Deviations, one at a time"),
    ]


def compare(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """The runs of one task: a row for each variant and seed that the full method has too."""
    found = {(run.label, run.seed): _numbers(run) for run in runs}
    rows = []
    for (label, seed), numbers in found.items():
        if (FULL, seed) in found:
            change = {f"{stat} change": value - found[FULL, seed][stat] for stat, value in numbers.items()}
            rows.append({"task": runs[0].task, "variant": label, "seed": seed, **numbers, **change})
    return rows


def _numbers(run: FinishedRun) -> dict[str, float]:
    """R and CV over all thresholds of the evaluation."""
    episodes = episodes_of(run)
    return {"R": float(episodes.reward.mean()), "CV": float(violation(episodes.cost, episodes.threshold).mean())}


def _table(rows: Sequence[dict[str, Any]]) -> ReportTable:
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for task, variant in dict.fromkeys((row["task"], row["variant"]) for row in rows):
        of_variant = [row for row in rows if (row["task"], row["variant"]) == (task, variant)]
        texts = [
            over_seeds([row[name] for row in of_variant], digits)
            for name, digits in (("R", 1), ("R change", 1), ("CV", 2), ("CV change", 2))
        ]
        texts = [variant, *(text if variant != FULL or i % 2 == 0 else "–" for i, text in enumerate(texts))]
        rows_by_task.setdefault(display_name(task), []).append(tuple(Cell(text) for text in texts))
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    notes = (f"change: against {FULL} with the same seed · seeds {seeds} · ±: one standard deviation over seeds",)
    return ReportTable(
        "One deviation taken back at a time", ("Variant", "R ↑", "change", "CV ↓", "change"), rows_by_task, notes
    )
