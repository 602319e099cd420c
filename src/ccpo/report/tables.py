"""Tables for the terminal, Markdown and LaTeX: by threshold, and in summary beside the paper's figures."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ccpo.metrics import DIAL, GROUPS, Estimate, Summary, ThresholdRow
from ccpo.policy_file import PathLike, write_atomically
from ccpo.report.paper import STATS, display_name, paper_results

SEEN_MARK = "●"
GROUP_MARKS = dict(zip(GROUPS, (SEEN_MARK, "○", "△"), strict=True))
GROUPS_NOTE = "behaviour: trained at · interpolated: between these · extrapolated: beyond these"
_TRACKING_NOTE = "tracking: |cost − threshold| / threshold, by episode"
DIAL_NOTES = (
    "use: cost / threshold · worst: the largest of these",
    _TRACKING_NOTE,
    "constant: R / CV of the best single setting for all thresholds with no more CV",
)
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
    "○": r"$\circ$",
    "△": r"$\triangle$",
    "|": r"$|$",
}


LEADING = 2
"""Columns that say what a row is about."""


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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        """For `rich.print`: columns that do not fit beside each other come below, with the leading columns again."""
        parts: list[list[int]] = [[]]
        for column in range(LEADING, len(self.headers)):
            wider = [*parts[-1], column]
            fits = Measurement.get(console, options.update(width=1000), self._rich(wider)).maximum <= options.max_width
            if fits or not parts[-1]:
                parts[-1] = wider
            else:
                parts.append([column])
        for part in parts:
            table = self._rich(part)
            table.title = self._heading() if part is parts[0] else None
            yield table
        yield Text("\n".join((*self.notes, "")), "dim italic")

    def _heading(self) -> Text:
        """The title, with the task if all rows are of one: it then needs no line among them."""
        only = [task for task in self.rows_by_task if task] if len(self.rows_by_task) == 1 else []
        return Text(" · ").join([Text(self.title), *(Text(task, "cyan") for task in only)])

    def _rich(self, columns: Sequence[int]) -> Table:
        """The leading columns and these: names to the left and not repeated, numbers to the right."""
        chosen = [*range(LEADING), *columns]
        table = Table(
            box=box.SIMPLE_HEAD,
            title_justify="left",
            title_style="bold",
            header_style="bold",
            padding=(0, 1, 0, 0),
        )
        for index in chosen:
            table.add_column(Text(self.headers[index]), justify="right" if index else "left", no_wrap=True)
        several = len(self.rows_by_task) > 1
        for number, (task, rows) in enumerate(self.rows_by_task.items()):
            if number:
                table.add_row()
            if several:
                table.add_row(Text(task, "bold cyan"))
            previous = None
            for row in rows:
                first, *rest = (row[index] for index in chosen)
                name = "" if first.text == previous else "  " * several + first.text
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


def facts_table(title: str, facts: Mapping[str, str]) -> Table:
    """Names and what is known under them, for the terminal."""
    table = Table(box=None, title=title, title_justify="left", title_style="bold", show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        table.add_row(name, Text(fact))
    return table


def threshold_table(rows: Sequence[ThresholdRow]) -> ReportTable:
    """Reward, cost and violation under each threshold; spreads are standard deviations over episodes."""
    digits = reward_digits([row.reward_mean for row in rows])
    columns = {
        "Reward": _aligned([(row.reward_mean, row.reward_std) for row in rows], digits),
        "Cost": _aligned([(row.cost_mean, row.cost_std) for row in rows], 1),
        "Use": [number(row.use, 2) for row in rows],
        "Tracking": [number(row.tracking, 2) for row in rows],
        "Violation": [number(row.violation_mean, 2) for row in rows],
    }
    marks, used = GROUP_MARKS, f"use: cost / threshold · {_TRACKING_NOTE}"
    if rows and not any(row.group for row in rows):  # of a policy file from before groups and distances were kept
        del columns["Tracking"]
        marks, used = {GROUPS[0]: SEEN_MARK}, "use: cost / threshold"
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for row, *texts in zip(rows, *columns.values(), strict=True):
        mark = GROUP_MARKS.get(row.group, SEEN_MARK if row.seen else " ")
        style = {"Cost": SAFE if row.cost_mean <= row.threshold else UNSAFE}
        cells = [Cell(text, style.get(name, "")) for name, text in zip(columns, texts, strict=True)]
        names = Cell(display_name(row.algorithm)), Cell(f"{mark} {row.threshold:g}")
        rows_by_task.setdefault(display_name(row.task), []).append((*names, *cells))
    counts = one_or_range([row.episodes for row in rows])
    notes = (
        " · ".join(f"{mark} {group}" for group, mark in marks.items()) + " (behaviour: trained at)",
        used,
        f"±: one standard deviation over {counts} episodes per threshold",
    )
    return ReportTable("Evaluation by threshold", ("Algorithm", "Threshold", *columns), rows_by_task, notes)


def summary_table(summaries: Sequence[Summary], methods: Mapping[str, str] | None = None) -> ReportTable:
    """R and CV, the numbers of the dial, R-G and CV-G on each grid, the paper's row below ours where there is one.

    `methods`: the paper's name of an algorithm, where that is not its own; variants that share one stand together.
    """
    methods = methods or {}
    labels: list[tuple[str, str, str, str]] = []
    figures: list[Mapping[str, tuple[float, float | None]]] = []
    for (task, method), same in groupby(summaries, key=lambda s: (s.task, methods.get(s.algorithm, s.algorithm))):
        for summary in same:
            labels.append((display_name(task), display_name(summary.algorithm), summary.grid, ""))
            figures.append({name: (summary[name].mean, summary[name].std) for name in (*STATS, *DIAL)})
        printed = paper_results(task, method)
        if printed:
            labels.append((display_name(task), display_name(method), "paper", PAPER))
            figures.append({**{stat: printed[stat] for stat in STATS}, **dict.fromkeys(DIAL, (math.nan, None))})
    digits = reward_digits([row["R"][0] for row in figures])
    spreads = {stat: _aligned([row[stat] for row in figures], 2 if "CV" in stat else digits) for stat in STATS}
    dial = {name: [number(row[name][0], 2) for row in figures] for name in ("use", "worst", "tracking")}
    columns = {
        "R ↑": spreads["R"],
        "CV ↓": spreads["CV"],
        "Use": dial["use"],
        "Worst": dial["worst"],
        "Tracking": dial["tracking"],
        "Constant R / CV": _pairs([(row["constant R"][0], row["constant CV"][0]) for row in figures], digits),
        "R-G ↑": spreads["R-G"],
        "CV-G ↓": spreads["CV-G"],
    }
    notes = [_seeds_note(summaries)]
    if not summaries or any(set(DIAL) & set(summary.metrics) for summary in summaries):
        notes += DIAL_NOTES
    else:  # of a policy file from before these were measured
        columns = {header: texts for header, texts in columns.items() if texts in spreads.values()}
    if any(style == PAPER for *_, style in labels):
        notes.append(_PAPER_NOTE)
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for (task, algorithm, grid, style), *cells in zip(labels, *columns.values(), strict=True):
        rows_by_task.setdefault(task, []).append(tuple(Cell(text, style) for text in (algorithm, grid, *cells)))
    return ReportTable("Summary over thresholds", ("Algorithm", "Grid", *columns), rows_by_task, tuple(notes))


def group_table(summaries: Sequence[Summary]) -> ReportTable:
    """R, CV and use of behaviour, interpolated and extrapolated thresholds, on each algorithm's first grid."""
    firsts = [next(same) for _, same in groupby(summaries, key=lambda summary: (summary.task, summary.algorithm))]
    digits = reward_digits([summary["R"].mean for summary in firsts])
    decimals = {"R": digits, "CV": 2, "use": 2}
    columns = {
        name: _aligned([(s[f"{name} {group}"].mean, s[f"{name} {group}"].std) for s in firsts for group in GROUPS], d)
        for name, d in decimals.items()
    }
    labels = [(summary, group) for summary in firsts for group in GROUPS]
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for (summary, group), *texts in zip(labels, *columns.values(), strict=True):
        cells = (display_name(summary.algorithm), f"{group} {GROUP_MARKS[group]}", *texts)
        rows_by_task.setdefault(display_name(summary.task), []).append(tuple(Cell(text) for text in cells))
    grids = ", ".join(dict.fromkeys(summary.grid for summary in firsts))
    notes = (
        GROUPS_NOTE,
        f"grid {grids}",
        _seeds_note(firsts),
    )
    return ReportTable("By group of thresholds", ("Algorithm", "Thresholds", "R ↑", "CV ↓", "Use"), rows_by_task, notes)


def interval_table(summaries: Sequence[Summary]) -> ReportTable:
    """Interquartile means over seeds with 95 % bootstrap intervals, and how far the curves fall."""
    digits = reward_digits([summary["R"].mean for summary in summaries])
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for summary in summaries:
        texts = (
            display_name(summary.algorithm),
            summary.grid,
            interval(summary["R"], digits - 1),
            interval(summary["CV"], 2),
            interval(summary["use"], 2),
            dip(summary.metrics, "reward inversion", digits),
            dip(summary.metrics, "cost inversion", 1),
        )
        rows_by_task.setdefault(display_name(summary.task), []).append(tuple(Cell(text) for text in texts))
    headers = ("Algorithm", "Grid", "R [95 %]", "CV [95 %]", "Use [95 %]", "R dip", "Cost dip")
    notes = (
        "interquartile mean over seeds and its bootstrap interval",
        "dip: largest fall while the threshold rises ± its standard error, means over seeds",
    )
    return ReportTable("Intervals and monotonicity", headers, rows_by_task, notes)


def _seeds_note(summaries: Sequence[Summary]) -> str:
    seeds = one_or_range([s.seeds for s in summaries])
    episodes = one_or_range([s.episodes // (s.seeds * s.thresholds) for s in summaries])
    return f"ours: seeds {seeds}, episodes {episodes} per threshold · ±: one standard deviation over seeds"


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


def constants(summaries: Sequence[Summary], digits: int) -> list[str]:
    """R and CV of the best constant setting of each, as one text."""
    return _pairs([(summary["constant R"].mean, summary["constant CV"].mean) for summary in summaries], digits)


def _pairs(pairs: Sequence[tuple[float, float]], digits: int) -> list[str]:
    """`R / CV` with the strokes below each other."""
    violations = [number(violation, 2) for _, violation in pairs]
    width = max(map(len, violations), default=0)
    return [
        "–" if math.isnan(reward) else f"{number(reward, digits)} / {text:>{width}}"
        for (reward, _), text in zip(pairs, violations, strict=True)
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
