import io
import re
import sys
import time
import types as modules
from pathlib import Path

import pytest
from rich.console import Console

from ccpo.display import Clock, Planned, TrainingDisplay, as_time, closing_table
from ccpo.outcome import Reached
from ccpo.types import Episode, Progress

RUN = Path("runs/ccpo-Task/seed-000")
PLAN = Planned(path=RUN, task="Task", done=0, total=30_000, asked=None, each=1200, random=1200, episode_length=200)


def show(*, terminal, width=120, plan=PLAN, steps=(1200, 2400), cost=12.0):
    out = io.StringIO()
    display = TrainingDisplay(console=Console(file=out, force_terminal=terminal, width=width))
    display.PLAIN_EVERY = 0.0
    with display.watch([plan]) as tell:
        time.sleep(0.5 if terminal else 0)
        for done in steps:
            episodes = [Episode(20.0, 400.0, cost, 200, False), Episode(20.0, 420.0, 10.0, 200, True)]
            tell(Progress(done, plan.total, episodes, {"steps": done, "rollout/ep_rew_mean": 410.0}, plan.path))
        time.sleep(0.5 if terminal else 0)
    return out.getvalue()


def without_colours(text):
    return re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", text).splitlines()  # a carriage return ends a line too


def test_a_terminal_sees_the_folder_then_compiling_then_progress_and_thresholds():
    shown = show(terminal=True)
    assert shown.index(f"run       {RUN}") < shown.index("compiling") < shown.index("2,400 of 30,000 steps")
    assert "420.0" in shown


def test_a_file_gets_plain_lines_and_the_end():
    shown = show(terminal=False)
    assert "\x1b" not in shown
    assert "2,400 of 30,000 steps" in shown
    assert "20: 10.0 (420)" in shown
    assert re.search(r"elapsed · \d+:\d\d left", shown)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_and_the_use_of_each_budget_is_shown(width):
    long = Planned(
        path=RUN, task="Task", done=0, total=1_398_600, asked=None, each=1800, random=1800, episode_length=300
    )
    lines = without_colours(show(terminal=True, width=width, plan=long, steps=(1_200_000, 1_201_800)))
    assert max(map(len, lines)) <= width
    row = next(line.split() for line in reversed(lines) if line.split()[:1] == ["20"] and len(line.split()) == 7)
    assert row == ["20", "12.0", "10.0", "0.60", "0.50", "400.0", "420.0"]
    assert any(re.fullmatch(r"training .* 1,201,800 of 1,398,600 steps *", line) for line in lines)
    assert any(re.fullmatch(r"[\d,]+ steps/s · \d+:\d\d elapsed · [\d:]+ left *", line) for line in lines)


def test_steps_that_are_rounded_are_said():
    rounded = Planned(**{**vars(PLAN), "asked": 29_000})
    assert "steps     30,000: 29,000 rounded up to 25 iterations of 1,200" in show(terminal=False, plan=rounded)
    assert "rounded" not in show(terminal=False, plan=Planned(**{**vars(PLAN), "asked": 30_000}))


@pytest.mark.parametrize(
    ("done", "expected"), [(12_000, "continues from step 12,000 of 30,000"), (0, "no checkpoint: starts anew")]
)
def test_a_resumed_run_says_where_it_goes_on(done, expected):
    resumed = Planned(**{**vars(PLAN), "done": done, "resumed": True})
    assert f"resume    {expected}" in show(terminal=False, plan=resumed, steps=(done + 1200,))


def test_it_ends_with_costs_beside_thresholds_and_what_speaks_against_it():
    few = Planned(**{**vars(PLAN), "total": 2400})
    lines = show(terminal=False, plan=few).splitlines()
    assert ["20", "10.0", "0.50", "420.0", "2"] in [line.split() for line in lines]
    assert any("random actions" in line for line in lines)


def test_a_cost_above_its_threshold_stands_out():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system="standard")
    console.print(closing_table([Reached(20.0, 30.0, 1.0, 5), Reached(40.0, 30.0, 1.0, 5), Reached(0.0, 0.0, 1.0, 5)]))
    over, under, zero = [line for line in out.getvalue().splitlines() if " 5" in line]
    assert "1;31m" in over
    assert "32m" in under
    assert "–" in zero


def test_time_left_does_not_count_the_compiler(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ccpo.display.time.monotonic", lambda: now[0])
    clock = Clock()
    now[0] = 60.0  # compiling
    clock.mark(1000)
    assert clock.left(10_000) is None
    now[0] = 61.0
    clock.mark(2000)
    assert clock.rate == pytest.approx(1000.0)
    assert clock.left(10_000) == pytest.approx(8.0)
    now[0] = 62.5
    assert clock.left(10_000) == pytest.approx(6.5)
    assert clock.elapsed == 62.5


def test_times_are_short():
    assert [as_time(seconds) for seconds in (0, 59.9, 60, 3600, 7325)] == ["0:00", "0:59", "1:00", "1:00:00", "2:02:05"]


def test_mirrors_are_told_and_closed_even_when_training_fails():
    told = []
    mirror = modules.SimpleNamespace(write=lambda progress: told.append(progress.steps), close=lambda: told.append("x"))
    display = TrainingDisplay(mirrors=[mirror], console=Console(file=io.StringIO()))

    def fail():
        with display.watch([PLAN]) as tell:
            tell(Progress(1200, 30_000, [], {}, RUN))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert told == [1200, "x"]


def test_a_notebook_gets_one_output_that_is_replaced(monkeypatch):
    """With a stand-in for IPython, which is no dependency."""
    shown = []

    class Handle:
        def update(self, content):
            shown.append(content)

    def display(content, display_id):
        assert display_id
        shown.append(content)
        return Handle()

    stub = modules.SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", stub)
    console = Console(file=io.StringIO(), width=100)
    console.is_jupyter = True
    monkeypatch.setattr(console, "print", lambda *parts, **options: None)
    with TrainingDisplay(console=console).watch([PLAN]) as tell:
        time.sleep(0.6)
        tell(Progress(1200, 30_000, [Episode(20.0, 400.0, 12.0, 200, True)], {}, RUN))
    first, later, last = shown
    assert "compiling" in first
    assert "1,200 of 30,000 steps" in re.sub(r"<[^>]+>", "", later)
    assert last == ""
