"""What a person sees while something runs: progress with times, reward and cost by threshold, and how it ended."""

import importlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from ccpo import types
from ccpo.outcome import OVER, Reached, cautions, reached
from ccpo.printing import as_html

NEWEST = 20
"""Episodes of each kind that means are taken over."""


class Mirror(Protocol):
    """Where else progress is written."""

    def write(self, progress: types.Progress) -> None: ...
    def close(self) -> None: ...


def tell(console: Console, text: str, *, style: str | None = None) -> None:
    """Print a line as it is: unbroken, so that paths can be copied, and brackets are no markup."""
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)


@dataclass(frozen=True)
class Planned:
    """What is about to be trained in one folder."""

    path: Path
    task: str
    done: int
    """Steps that an earlier part of the run did."""
    total: int
    asked: int | None
    """The steps that were asked for; none: they follow from the episode length."""
    each: int
    """Steps of an iteration."""
    random: int
    """Steps with random actions at the start."""
    episode_length: int
    resumed: bool = False
    note: str = ""
    """What else is worth a line at the start."""

    def lines(self) -> Iterator[str]:
        yield f"run       {self.path}"
        if self.resumed:
            at = f"continues from step {self.done:,} of {self.total:,}" if self.done else "no checkpoint: starts anew"
            yield f"resume    {at}"
        elif self.asked not in (None, self.total):
            iterations = f"{self.total // self.each:,} iterations of {self.each:,}"
            yield f"steps     {self.total:,}: {self.asked:,} rounded up to {iterations}"
        if self.note:
            yield f"note      {self.note}"


class Clock:
    """The time that has passed, and the time that is left at the pace of the newest iterations."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque(maxlen=30)

    def mark(self, steps: int) -> None:
        self._marks.append((time.monotonic(), steps))

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def rate(self) -> float | None:
        """Steps a second; none before the second iteration, for the first one waits for the compiler."""
        if len(self._marks) < 2:
            return None
        (first, before), (last, after) = self._marks[0], self._marks[-1]
        return (after - before) / (last - first) if last > first and after > before else None

    def left(self, total: int) -> float | None:
        if self.rate is None:
            return None
        last, steps = self._marks[-1]
        return max((total - steps) / self.rate - (time.monotonic() - last), 0.0)


def as_time(seconds: float) -> str:
    """
    >>> as_time(79.6), as_time(3750)
    ('1:19', '1:02:30')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _Seen(NamedTuple):
    """What a run has shown so far."""

    episodes: dict[tuple[float, bool], deque[types.Episode]]
    rewards: list[float]


class TrainingDisplay:
    """A live view in a terminal or a notebook; elsewhere a plain line now and then."""

    PLAIN_EVERY = 15.0

    def __init__(self, *, mirrors: Sequence[Mirror] = (), console: Console | None = None) -> None:
        self.console = console or Console()
        self._mirrors = mirrors
        self._planned: Sequence[Planned] = ()
        self._seen: dict[Path, _Seen] = {}
        self._steps: dict[Path, int] = {}
        self._state = "training"
        self._clock = Clock()
        self._last_line = 0.0

    @contextmanager
    def watch(self, planned: Sequence[Planned]) -> Iterator[Callable[[types.Progress], None]]:
        """Show these runs from their start to their end; what is yielded is told of each iteration."""
        self._planned, self._clock, self._last_line = planned, Clock(), time.monotonic()
        self._steps = {plan.path: plan.done for plan in planned}
        self._seen = {plan.path: _Seen(defaultdict(lambda: deque(maxlen=NEWEST)), []) for plan in planned}
        self._state = "training"
        for plan in planned:
            for line in plan.lines():
                tell(self.console, line)
        try:
            with self._view() as refresh:
                yield lambda progress: self._tell(progress, refresh)
        finally:
            for mirror in self._mirrors:
                mirror.close()
        for plan in planned:
            self._close(plan)

    def stopping(self) -> None:
        """Say that Ctrl-C was seen."""
        self._state = "stopping"
        tell(self.console, "stopping after this iteration; Ctrl-C again stops at once")

    def _view(self) -> AbstractContextManager[Callable[[], None]]:
        if self.console.is_jupyter:
            return _notebook_view(self)
        if self.console.is_terminal:
            return _terminal_view(self)
        tell(self.console, "training  compiling …")
        return nullcontext(self._plain)

    def _tell(self, progress: types.Progress, refresh: Callable[[], None]) -> None:
        seen = self._seen[progress.run_path]
        for episode in progress.episodes:
            seen.episodes[episode.threshold, episode.deterministic].append(episode)
        seen.rewards.append(progress.row.get("rollout/ep_rew_mean", float("nan")))
        self._steps[progress.run_path] = progress.steps
        self._clock.mark(self._done)
        for mirror in self._mirrors:
            mirror.write(progress)
        refresh()

    @property
    def _done(self) -> int:
        return sum(self._steps.values())

    @property
    def _total(self) -> int:
        return sum(plan.total for plan in self._planned)

    @property
    def _newest(self) -> list[types.Episode]:
        return [e for seen in self._seen.values() for episodes in seen.episodes.values() for e in episodes]

    def _plain(self) -> None:
        if time.monotonic() - self._last_line > self.PLAIN_EVERY:
            self._last_line = time.monotonic()
            ends = "  ".join(f"{end.threshold:g}: {end.cost:.1f} ({end.reward:.0f})" for end in reached(self._newest))
            line = f"{self._done:>9,} of {self._total:,} steps  {self._times()}  cost (reward) by threshold  {ends}"
            tell(self.console, line)

    def _times(self) -> str:
        rate, left = self._clock.rate, self._clock.left(self._total)
        pace = f"{rate:,.0f} steps/s" if rate else "compiling …"
        until = f" · {as_time(left)} left" if left is not None else ""
        return f"{pace} · {as_time(self._clock.elapsed)} elapsed{until}"

    def __rich__(self) -> Group:
        progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            console=self.console,
            expand=True,
        )
        count = f"{self._done:,} of {self._total:,} steps"
        progress.add_task(self._state, total=self._total, completed=self._done, count=count)
        parts: list[Any] = [progress.get_renderable(), Text(self._times(), "cyan")]
        return Group(*parts, self._table()) if self._newest else Group(*parts)

    def _table(self) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            title=f"latest {NEWEST} episodes by behaviour threshold",
            title_justify="left",
        )
        table.add_column("threshold", justify="right")
        for name in ("cost", "use", "reward"):
            for kind in ("exploring", "deployed"):
                table.add_column(f"{name}\n{kind}", justify="right")
        newest = self._newest
        for threshold in sorted({e.threshold for e in newest}):
            of_threshold = [e for e in newest if e.threshold == threshold]
            kinds = [[e for e in of_threshold if e.deterministic == deployed] for deployed in (False, True)]
            costs = [_mean([e.cost for e in kind]) for kind in kinds]
            uses = [_mean([e.cost / threshold for e in kind] if threshold else [], 2) for kind in kinds]
            rewards = [_mean([e.reward for e in kind]) for kind in kinds]
            table.add_row(f"{threshold:g}", *costs, *uses, *rewards)
        return table

    def _close(self, plan: Planned) -> None:
        """What the newest episodes cost beside their thresholds, and what speaks against the run."""
        seen = self._seen[plan.path]
        ends = reached([e for episodes in seen.episodes.values() for e in episodes])
        if not ends:
            return
        if len(self._planned) > 1:
            tell(self.console, f"run       {plan.path}")
        self.console.print(closing_table(ends))
        told = cautions(
            ends,
            seen.rewards,
            steps=plan.total,
            random_steps=plan.random,
            each=plan.each,
            episode_length=plan.episode_length,
        )
        for caution in told:
            self.console.print(Text("! ", "bold yellow") + Text(caution))


def closing_table(ends: Sequence[Reached]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="how it ended: the newest episodes", title_justify="left")
    for name in ("threshold", "cost", "use", "reward", "episodes"):
        table.add_column(name, justify="right")
    digits = 1 if max(end.threshold for end in ends) >= 10 else 3
    for end in ends:
        style = "bold red" if end.cost > OVER * end.threshold else "green"
        use = "–" if end.use is None else f"{end.use:.2f}"
        cost = Text(f"{end.cost:.{digits}f}", style)
        table.add_row(f"{end.threshold:g}", cost, use, f"{end.reward:.1f}", f"{end.episodes}")
    return table


@contextmanager
def _terminal_view(shown: TrainingDisplay) -> Iterator[Callable[[], None]]:
    """Drawn again four times a second, so that the times go on while something compiles."""
    with Live(shown, console=shown.console, refresh_per_second=4, transient=True):
        yield lambda: None


@contextmanager
def _notebook_view(shown: TrainingDisplay) -> Iterator[Callable[[], None]]:
    """One output of the cell that is replaced after each iteration, twice a second at most."""
    display = importlib.import_module("IPython.display")
    handle: Any = display.display(display.HTML(as_html(shown)), display_id=True)
    last = time.monotonic()

    def refresh() -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            handle.update(display.HTML(as_html(shown)))
            last = time.monotonic()

    yield refresh
    handle.update(display.HTML(""))


def _mean(values: list[float], digits: int = 1) -> str:
    return f"{sum(values) / len(values):.{digits}f}" if values else "–"


class _Times(ProgressColumn):
    """The time that has passed and the time that is left, named as such."""

    def render(self, task: Task) -> Text:
        left = "" if task.time_remaining is None else f" · {as_time(task.time_remaining)} left"
        return Text(f"{as_time(task.elapsed or 0.0)} elapsed{left}", "cyan")


@contextmanager
def episode_bar(console: Console, *, total: int, task: str) -> Iterator[Callable[[int], None]]:
    """A progress bar over evaluation episodes."""
    columns = (
        TextColumn("[bold]evaluating {task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("episodes"),
        _Times(),
    )
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown, expand=True) as progress:
        bar = progress.add_task(task, total=total)
        yield lambda count: progress.advance(bar, count)
