import io
import re
import time
from pathlib import Path

from rich.console import Console

from ccpo.cli.display import TrainingDisplay
from ccpo.types import Episode, Progress


def show(*, terminal, final=False, width=120):
    out = io.StringIO()
    with TrainingDisplay(console=Console(file=out, force_terminal=terminal, width=width)) as display:
        time.sleep(0.5 if terminal else 0)
        display.PLAIN_EVERY = 0.0
        for steps in (1200, 2400):
            episodes = [Episode(20.0, 400.0, 12.0, 200, False), Episode(20.0, 420.0, 10.0, 200, True)]
            display(Progress(steps, 30_000, episodes, {"steps": steps}, Path("run")))
        if final:
            display(Progress(3600, 30_000, [Episode(33.3, 500.0, 30.0, 200, True)], {}, Path("run")))
        display.finish(Path("run"))
    return out.getvalue()


def test_a_terminal_sees_compiling_then_progress_and_thresholds():
    shown = show(terminal=True)
    assert "compiling" in shown
    assert "2,400 of 30,000 steps" in shown
    assert "420.0" in shown


def test_the_policies_of_a_final_are_not_in_the_table_of_the_one_that_trains():
    shown = show(terminal=True, final=True)
    assert "final" in shown
    assert "420.0" in shown
    assert "33.3" not in shown


def test_a_file_gets_plain_lines():
    shown = show(terminal=False)
    assert "\x1b" not in shown
    assert "2,400 of 30,000 steps" in shown
    assert "20: 11.0 (410)" in shown
    assert "ccpo evaluate run" in shown


def test_nothing_is_cut_at_80_columns_and_the_use_of_each_budget_is_shown():
    shown = show(terminal=True, width=80)
    lines = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", shown).splitlines()  # a carriage return ends one too
    assert max(map(len, lines)) <= 80
    row = next(line.split() for line in reversed(lines) if line.split()[:1] == ["20"])
    assert row == ["20", "12.0", "10.0", "0.60", "0.50", "400.0", "420.0"]
    bar = next(line for line in reversed(lines) if "30,000 steps" in line)
    assert re.fullmatch(r"training .* steps/s .* · .* left *", bar)
