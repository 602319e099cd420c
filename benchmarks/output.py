"""The results as a table in the terminal, and as CSV, JSON, Markdown and a chart in a folder."""

import csv
import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.rows import Row
from benchmarks.running import Outcome
from ccpo.runs import processor, versions

HEADERS = ("part", "what", "first", "second", "result", "quartiles", "bar", "")
NUMBERS = ("first", "second", "result", "quartiles", "bar")
MET, MISSED, INK = "#009E73", "#D55E00", "#262626"
FARTHEST = 32.0
"""Bars of the chart end here, and at its inverse."""


def number(value: float | None) -> str:
    """Three significant digits, thousands in full."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cells(row: Row) -> tuple[str, ...]:
    """The row as texts under `HEADERS`."""
    sides = [f"{number(x)} {row.side_unit}" if x is not None else "" for x in (row.first, row.second)]
    spread = f"{number(row.low)}–{number(row.high)}" if row.repeats > 1 else "one run"
    bar = "" if row.bar is None else f"{'≥' if row.at_least else '≤'} {number(row.bar)}"
    verdict = {None: "", True: "met", False: "missed"}[row.met]
    return row.part, row.what, *sides, f"{number(row.value)} {row.unit}", spread, bar, verdict


def table(rows: Sequence[Row]) -> Table:
    """For the terminal; notes stand below the rows they belong to."""
    result = Table(title="Speed (medians; one thread and CPU time unless said)")
    for name in HEADERS:
        result.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for row in rows:
        *texts, verdict = cells(row)
        texts[1] += f"\n[dim]{row.note}[/]" if row.note else ""
        result.add_row(*texts, {"met": "[green]met", "missed": "[bold red]missed"}.get(verdict, ""))
    return result


def markdown(rows: Sequence[Row]) -> str:
    """The same table for a document, notes in a column."""
    headers = (*HEADERS[:-1], "met", "note")
    lines = [headers, tuple("--:" if name in NUMBERS else "---" for name in headers)]
    lines += [(*cells(row), row.note) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def save(outcome: Outcome, folder: Path, *, stem: str) -> Path:
    """Write `stem`.csv, .json, .md and .png into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [dataclasses.asdict(row) | {"met": row.met} for row in outcome.rows]
    names = [field.name for field in dataclasses.fields(Row)] + ["met"]
    with (folder / f"{stem}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "seconds": outcome.seconds,
        "failures": outcome.failures,
        "rows": rows,
    }
    (folder / f"{stem}.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    (folder / f"{stem}.md").write_text(markdown(outcome.rows))
    if any(row.bar is not None for row in outcome.rows):
        _chart(outcome.rows, folder / f"{stem}.png")
    return folder / stem


def _chart(rows: Sequence[Row], path: Path) -> None:
    """How far each result lies from its bar, on a logarithmic axis: right of 1 is better than asked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter

    judged = [row for row in rows if row.bar is not None][::-1]
    margins = [min(max(row.margin or 0.0, 1 / FARTHEST), FARTHEST) for row in judged]
    figure = Figure(figsize=(8.5, 0.8 + 0.32 * len(judged)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.barh(
        range(len(judged)), [m - 1.0 for m in margins], left=1.0, color=[MET if r.met else MISSED for r in judged]
    )
    axes.axvline(1.0, color=INK, linewidth=1.0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_xlim(min(0.5, *margins) / 1.3, max(2.0, *margins) * 2.2)
    axes.set_yticks(range(len(judged)), [row.what for row in judged], fontsize=7.5)
    for y, (row, margin) in enumerate(zip(judged, margins, strict=True)):
        _, _, _, _, value, _, bar, verdict = cells(row)
        axes.text(max(margin, 1.0) * 1.05, y, f"{value} ({bar}) {verdict}", va="center", fontsize=7)
    axes.set_xlabel("times better than the bar asks (1 is the bar)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
