"""What a person sees while a study runs: how many runs stand where, those at work, the time left."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ccpo.studies.status import Standing, counts, seconds_left

STATE_STYLES = {"done": "green", "running": "cyan", "failed": "red", "stopped": "yellow", "waiting": "dim"}


@contextmanager
def study_display(console: Console) -> Iterator[Callable[[Sequence[Standing]], None]]:
    """A study at work: a live view in a terminal; elsewhere a plain line when something changed."""
    columns = (TextColumn("[bold]runs"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    overall = Progress(*columns, TimeElapsedColumn(), console=console)
    bar = overall.add_task("", total=None)
    last_line = ""

    def show(rows: Sequence[Standing]) -> None:
        nonlocal last_line
        numbers = counts(rows)
        others = "  ".join(f"[{STATE_STYLES[s]}]{n} {s}[/]" for s, n in numbers.items() if n and s != "done")
        left = f"{others}  left: {time_left(seconds_left(rows))}"
        overall.update(bar, completed=numbers["done"], total=len(rows), description=left)
        at_work = [row for row in rows if row.state == "running"]
        lines = [f"  [cyan]{row.place.plan.name}[/]  {100 * row.share:.0f} %" for row in at_work]
        live.update(Group(overall, *lines))
        line = ", ".join(f"{count} {state}" for state, count in numbers.items() if count)
        if not console.is_terminal and line != last_line:
            last_line = line
            console.print(f"study: {line}; left: {time_left(seconds_left(rows))}", highlight=False)

    live = Live(Group(overall), console=console, refresh_per_second=4, transient=True)
    if console.is_terminal:
        live.start()
    try:
        yield show
    finally:
        live.stop()


def time_left(seconds: float | None) -> str:
    """
    >>> time_left(None), time_left(40.0), time_left(600.0), time_left(90_000.0)
    ('not known yet', '40 s', '10 min', '25.0 h')
    """
    if seconds is None:
        return "not known yet"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
