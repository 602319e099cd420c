"""Tables for the terminal, Markdown and LaTeX: by threshold, and in summary beside the paper's figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from ccpo.metrics import Estimate, Summary, ThresholdRow
from ccpo.policy_file import PathLike, write_atomically
from ccpo.report.paper import STATS, display_name, paper_results

SEEN_MARK = "●"
SAFE, UNSAFE, PAPER, SHADED = "green", "bold red", "dim italic", "bold green"
_PAPER_NOTE = (
    "paper: 5 seeds; its text names the 13 thresholds {10, 15, …, 70}, its figures fit only the 7 of {10, 20, …, 70}"
)
_LATEX = {letter: f"\\{letter}" for letter in "%_&#{}"} | {
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "√": r"$\surd$",
    "Σ": r"$\sum$",
    "²": "$^2$",
    "½": r"$\frac{1}{2}$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "σ": r"$\sigma$",
    "ψ": r"$\psi$",
    "…": r"\dots{}",
    SEEN_MARK: r"$\bullet$",
}


@dataclass(frozen=True)
class Cell:
    """A text and the style it has in the terminal."""

    text: str
    style: str = ""

    def markdown(self) -> str:
        return f"**{self.text.strip()}**" if self.style == SHADED else self.text

    def latex(self) -> str:
        text = "".join(_LATEX.get(letter, letter) for letter in self.text.strip())
        return {SHADED: rf"\cellcolor[gray]{{0.9}}{text}", PAPER: rf"\textit{{{text}}}"}.get(self.style, text)


@dataclass(frozen=True)
class ReportTable:
    """A table with rows by task, for the terminal (the task above its rows), Markdown or LaTeX (in a column)."""

    title: str
    headers: tuple[str, ...]
    rows_by_task: dict[str, list[tuple[Cell, ...]]]
    notes: tuple[str, ...]
    by: str = "Task"
    """What the rows are grouped by, where it is not the task."""

    def rich(self) -> Table:
        """For `rich.print`: names to the left and not repeated, numbers to the right."""
        table = Table(
            title=self.title,
            caption="\n".join(self.notes),
            box=box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
            title_style="bold",
            header_style="bold",
            padding=(0, 1, 0, 0),
        )
        for index, header in enumerate(self.headers):
            table.add_column(Text(header), justify="right" if index else "left", no_wrap=True)
        for number, (task, rows) in enumerate(self.rows_by_task.items()):
            if number:
                table.add_row()
            table.add_row(Text(task, "bold cyan"))
            previous = None
            for first, *rest in rows:
                name = "" if first.text == previous else f"  {first.text}"
                table.add_row(Text(name, first.style), *(Text(cell.text, cell.style) for cell in rest))
                previous = first.text
        return table

    def markdown(self) -> str:
        """A pipe table whose source is aligned too."""
        lines = [(self.by, *self.headers)]
        for task, rows in self.rows_by_task.items():
            lines += [(task, *(cell.markdown() for cell in row)) for row in rows]
        lines = [[text.strip().replace("|", "\\|") for text in line] for line in lines]
        widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(lines[0]))]
        pad = [str.ljust, str.ljust] + [str.rjust] * (len(widths) - 2)
        texts = [" | ".join(pad[i](text, widths[i]) for i, text in enumerate(line)) for line in lines]
        rule = " | ".join("-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths))
        rows = [f"| {text} |" for text in (texts[0], rule, *texts[1:])]
        return "\n".join([f"**{self.title}**\n", *rows, *(f"\n{note}" for note in self.notes)]) + "\n"

    def latex(self) -> str:
        """A `tabular` for a paper that uses the packages booktabs and colortbl; the title and the notes around it."""
        head = " & ".join(Cell(text).latex() for text in (self.by, *self.headers))
        lines = [
            rf"\textbf{{{Cell(self.title).latex()}}}\par",
            rf"\begin{{tabular}}{{ll{'r' * (len(self.headers) - 1)}}}",
        ]
        lines += [r"\toprule", rf"{head} \\"]
        for task, rows in self.rows_by_task.items():
            lines.append(r"\midrule")
            names = [Cell(task).latex(), *[""] * (len(rows) - 1)]
            cells = [" & ".join((name, *(cell.latex() for cell in row))) for name, row in zip(names, rows, strict=True)]
            lines += [rf"{text} \\" for text in cells]
        lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*lines, *(rf"\par{{\footnotesize {Cell(note).latex()}\par}}" for note in self.notes)]) + "\n"


def save_tables(tables: Sequence[ReportTable], stem: PathLike, *, title: str) -> list[Path]:
    """Write the tables, atomically, as a page of Markdown, `stem.md`, and as LaTeX, `stem.tex`."""
    page, source = Path(f"{stem}.md"), Path(f"{stem}.tex")
    write_atomically(
        page, "\n\n".join([f"# {title}", *(table.markdown().strip() for table in tables)]).encode() + b"\n"
    )
    write_atomically(source, "\n\\bigskip\n\n".join(table.latex() for table in tables))
    return [page, source]


def threshold_table(rows: Sequence[ThresholdRow]) -> ReportTable:
    """Reward, cost and violation under each threshold; spreads are standard deviations over episodes."""
    digits = reward_digits([row.reward_mean for row in rows])
    columns = [
        _aligned([(row.reward_mean, row.reward_std) for row in rows], digits),
        _aligned([(row.cost_mean, row.cost_std) for row in rows], 1),
        _aligned([(row.violation_mean, row.violation_std) for row in rows], 2),
    ]
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for row, reward, cost, violation in zip(rows, *columns, strict=True):
        cells = (
            Cell(display_name(row.algorithm)),
            Cell(f"{SEEN_MARK if row.seen else ' '} {row.threshold:g}"),
            Cell(reward),
            Cell(cost, SAFE if row.cost_mean <= row.threshold else UNSAFE),
            Cell(f"{100 * row.cost_mean / row.threshold:.0f} %" if row.threshold else "–"),
            Cell(violation),
        )
        rows_by_task.setdefault(display_name(row.task), []).append(cells)
    headers = ("Algorithm", "Threshold", "Reward", "Cost", "Used", "Violation")
    counts = one_or_range([row.episodes for row in rows])
    notes = (
        f"{SEEN_MARK} seen in training · used: cost / threshold",
        f"±: one standard deviation over {counts} episodes a threshold",
    )
    return ReportTable("Evaluation by threshold", headers, rows_by_task, notes)


def summary_table(summaries: Sequence[Summary]) -> ReportTable:
    """R, CV, R-G, CV-G on each grid, the paper's row below ours where there is one."""
    labels: list[tuple[str, str, str, str]] = []
    figures: list[list[tuple[float, float | None]]] = []
    for (task, algorithm), same in groupby(summaries, key=lambda summary: (summary.task, summary.algorithm)):
        names = display_name(task), display_name(algorithm)
        for summary in same:
            labels.append((*names, summary.grid, ""))
            figures.append([(summary.metrics[stat].mean, summary.metrics[stat].std) for stat in STATS])
        printed = paper_results(task, algorithm)
        if printed:
            labels.append((*names, "paper", PAPER))
            figures.append([printed[stat] for stat in STATS])
    digits = reward_digits([row[0][0] for row in figures])
    decimals = [2 if "CV" in stat else digits for stat in STATS]
    columns = [_aligned([row[i] for row in figures], decimals[i]) for i in range(len(STATS))]
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for (task, algorithm, grid, style), *cells in zip(labels, *columns, strict=True):
        rows_by_task.setdefault(task, []).append(tuple(Cell(text, style) for text in (algorithm, grid, *cells)))
    seeds = one_or_range([s.seeds for s in summaries])
    episodes = one_or_range([s.episodes // (s.seeds * s.thresholds) for s in summaries])
    notes = [f"ours: seeds {seeds}, episodes {episodes} a threshold · ±: one standard deviation over seeds"]
    if any(style == PAPER for *_, style in labels):
        notes.append(_PAPER_NOTE)
    headers = ("Algorithm", "Grid", "R ↑", "CV ↓", "R-G ↑", "CV-G ↓")
    return ReportTable("Summary over thresholds", headers, rows_by_task, tuple(notes))


def interval_table(summaries: Sequence[Summary]) -> ReportTable:
    """Interquartile means over seeds with 95 % bootstrap intervals, and how far the curves fall."""
    digits = reward_digits([summary.metrics["R"].mean for summary in summaries])
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for summary in summaries:
        metrics = summary.metrics
        texts = (
            display_name(summary.algorithm),
            summary.grid,
            interval(metrics["R"], digits - 1),
            interval(metrics["CV"], 2),
            dip(metrics, "reward inversion", digits),
            dip(metrics, "cost inversion", 1),
        )
        rows_by_task.setdefault(display_name(summary.task), []).append(tuple(Cell(text) for text in texts))
    headers = ("Algorithm", "Grid", "R [95 %]", "CV [95 %]", "R dip", "Cost dip")
    notes = (
        "interquartile mean over seeds and its bootstrap interval",
        "dip: largest fall while the threshold rises ± its standard error, means over seeds",
    )
    return ReportTable("Intervals and monotonicity", headers, rows_by_task, notes)


def dip(metrics: Mapping[str, Estimate], name: str, digits: int) -> str:
    """An inversion with its error, in one digit less if it has two; no error where nothing falls."""
    fall, error = metrics[name].mean, metrics[f"{name} error"].mean
    return number(fall, digits) if fall == 0 else f"{number(fall, digits)} ± {number(error, digits - (error >= 10))}"


def _aligned(pairs: Sequence[tuple[float, float | None]], digits: int) -> list[str]:
    """`mean ± std` with the signs below each other; no ± at all if no row has a spread."""
    stds = [number(math.nan if std is None else std, digits) for _, std in pairs]
    width = max(map(len, stds), default=0)
    tails = [f" ± {std:>{width}}" for std in stds] if any(std != "–" for std in stds) else [""] * len(stds)
    return [
        "–" if math.isnan(mean) else number(mean, digits) + tail for (mean, _), tail in zip(pairs, tails, strict=True)
    ]


def interval(estimate: Estimate, digits: int) -> str:
    if math.isnan(estimate.low):
        return number(estimate.iqm, digits)
    return f"{estimate.iqm:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def one_or_range(counts: Sequence[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low}" if low == high else f"{low} to {high}"


def number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def reward_digits(rewards: Sequence[float]) -> int:
    """One decimal for rewards in the hundreds, two for small ones."""
    return 1 if max((abs(reward) for reward in rewards), default=0.0) >= 100 else 2
