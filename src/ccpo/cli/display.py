"""What a person sees while something runs: progress with rate and time left, reward and cost by threshold."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ccpo import types
from ccpo.cli.mirrors import Mirror


def tell(console: Console, text: str, *, style: str | None = None) -> None:
    """Print a line as it is: unbroken, so that paths can be copied, and brackets are no markup."""
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)


class TrainingDisplay:
    """A live view in a terminal; elsewhere a plain line now and then."""

    PLAIN_EVERY = 15.0

    def __init__(self, *, mirrors: Sequence[Mirror] = (), console: Console | None = None) -> None:
        self.console = console or Console()
        self._mirrors = mirrors
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TextColumn("[cyan]{task.fields[rate]}"),
            *_times(),
            console=self.console,
            expand=True,
        )
        self._bar = self._progress.add_task("training", total=None, count="", rate="compiling …")
        self._recent: dict[float, deque] = defaultdict(lambda: deque(maxlen=20))
        self._live = Live(self._view(), console=self.console, refresh_per_second=4, transient=True)
        self._last_line = self._began = time.monotonic()
        self._first_steps: int | None = None

    def __enter__(self) -> "TrainingDisplay":
        if self.console.is_terminal:
            self._live.start(refresh=True)
        else:
            self.console.print("training: compiling …")
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        for mirror in self._mirrors:
            mirror.close()

    def __call__(self, progress: types.Progress) -> None:
        final = not progress.row
        for episode in () if final else progress.episodes:  # a final's are of other policies, perhaps all over the dial
            self._recent[episode.threshold].append(episode)
        if self._first_steps is None:
            self._first_steps, self._began = progress.steps, time.monotonic()
        elapsed = time.monotonic() - self._began
        done = progress.steps - self._first_steps
        rate = f"{done / elapsed:,.0f} steps/s" if done and elapsed else "…"
        count = f"{progress.steps:,} of {progress.total:,} steps"
        self._progress.update(
            self._bar,
            description="final" if final else "training",
            completed=progress.steps,
            total=progress.total,
            count=count,
            rate=rate,
        )
        self._live.update(self._view())
        for mirror in self._mirrors:
            mirror.write(progress)
        if not self.console.is_terminal and time.monotonic() - self._last_line > self.PLAIN_EVERY:
            self._last_line = time.monotonic()
            left = (progress.total - progress.steps) * elapsed / done if done else 0.0
            tell(self.console, self._line(progress, rate, left))

    def finish(self, run_path: Path) -> None:
        """The closing lines: where things are and what to type next."""
        tell(self.console, f"trained   {run_path}")
        tell(self.console, f"next      ccpo evaluate {run_path}")

    def _line(self, progress: types.Progress, rate: str, left: float) -> str:
        parts = [
            f"{threshold:g}: {sum(e.cost for e in episodes) / len(episodes):.1f} "
            f"({sum(e.reward for e in episodes) / len(episodes):.0f})"
            for threshold, episodes in sorted(self._recent.items())
        ]
        head = f"{progress.steps:>9,} of {progress.total:,} steps  {rate}  {left / 60:.1f} min left"
        return f"{head}  cost (reward) by threshold  {'  '.join(parts)}"

    def _view(self) -> Group:
        table = Table(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            title="latest 20 episodes by behaviour threshold",
            title_justify="left",
        )
        table.add_column("threshold", justify="right")
        for name in ("cost", "use", "reward"):
            for kind in ("exploring", "deployed"):
                table.add_column(f"{name}\n{kind}", justify="right")
        for threshold, episodes in sorted(self._recent.items()):
            kinds = [[e for e in episodes if e.deterministic == deployed] for deployed in (False, True)]
            costs = [_mean([e.cost for e in kind]) for kind in kinds]
            uses = [_mean([e.cost / threshold for e in kind] if threshold else [], 2) for kind in kinds]
            rewards = [_mean([e.reward for e in kind]) for kind in kinds]
            table.add_row(f"{threshold:g}", *costs, *uses, *rewards)
        return Group(self._progress, table) if self._recent else Group(self._progress)


def _mean(values: list[float], digits: int = 1) -> str:
    return f"{sum(values) / len(values):.{digits}f}" if values else "–"


def _times() -> list[ProgressColumn]:
    """The time that has passed and, named as such, the time that is left."""
    return [TimeElapsedColumn(), TextColumn("·"), TimeRemainingColumn(), TextColumn("left")]


@contextmanager
def episode_bar(console: Console, *, total: int, task: str) -> Iterator[Callable[[int], None]]:
    """A progress bar over evaluation episodes."""
    columns = (
        TextColumn("[bold]evaluating {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes"),
        *_times(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(task, total=total)
        yield lambda count: progress.advance(bar, count)
