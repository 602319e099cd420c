"""`ccpo study`: what it prints, and a whole study from the command line, killed on the way."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ccpo.cli import main
from ccpo.studies.catalogue import STUDIES
from ccpo.studies.plan import with_members
from ccpo.studies.runner import Place

RUN = ("study", "run", "main", "--scale", "smoke", "--out")


PLANS = with_members(STUDIES["main"].plans("smoke"))


def places(out: Path) -> list[Place]:
    return [Place(plan, out / "smoke") for plan in PLANS]


def start(out: Path) -> subprocess.Popen:
    program = "from ccpo.cli import main; raise SystemExit(main())"
    return subprocess.Popen([sys.executable, "-c", program, *RUN, str(out)], stdout=subprocess.PIPE, text=True)


def kill_when_begun(out: Path, count: int) -> None:
    """Kill a study -9 when its so manieth run has begun."""
    with start(out) as process:
        deadline = time.monotonic() + 600
        while sum(bool(place.attempts()) for place in places(out)) < count:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    assert not all(place.finished for place in places(out))


def finish(out: Path) -> str:
    with start(out) as process:
        printed, _ = process.communicate(timeout=1200)
    assert process.returncode == 0
    return printed


def results(out: Path) -> dict[str, bytes]:
    """Everything that a study ends with: evaluations, tables and figures."""
    files = [*(out / "smoke" / "main").iterdir(), *(out / "smoke" / "runs").rglob("eval.csv")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def study(capsys, action: str, out: Path, *options: str) -> str:
    assert main(["study", action, "main", "--scale", "smoke", "--out", str(out), *options]) == 0
    return capsys.readouterr().out


def test_a_study_that_is_killed_twice_ends_with_a_complete_report(tmp_path, capsys):
    kill_when_begun(tmp_path, 2)
    kill_when_begun(tmp_path, 9)
    assert "22 done" in finish(tmp_path)
    assert all(place.finished for place in places(tmp_path))
    report = tmp_path / "smoke" / "main"
    names = {"README.md", "tables.md", "tables.tex", "numbers.csv", "figure.png", "figure.svg"}
    assert {file.name for file in report.iterdir()} == names
    assert "10 of 10 runs" in (report / "README.md").read_text("utf-8")
    tables = (report / "tables.md").read_text("utf-8")
    assert all(method.label in tables for method in STUDIES["main"].methods)

    # what is finished is not repeated
    before = results(tmp_path), [(place.path / "eval.csv").stat().st_mtime_ns for place in places(tmp_path)]
    assert "10 done; left: 0 s" in study(capsys, "run", tmp_path, "--methods", "ccpo", "C-PPO-Lag")
    study(capsys, "report", tmp_path)
    assert before == (results(tmp_path), [(p.path / "eval.csv").stat().st_mtime_ns for p in places(tmp_path)])
    assert "22 done; time left: 0 s" in study(capsys, "status", tmp_path)

    # and a report without all of its runs says so
    assert "not complete: 5 of 10 runs are missing" in study(capsys, "report", tmp_path, "--seeds", "0", "5")
    assert "- `ccpo/StaticBudget-T20-C5/tuned/seed-5`" in (report / "README.md").read_text("utf-8")


@pytest.mark.long
def test_killing_a_study_twice_changes_nothing_in_the_result(tmp_path):
    kill_when_begun(tmp_path / "killed", 4)
    kill_when_begun(tmp_path / "killed", 15)
    finish(tmp_path / "killed")
    finish(tmp_path / "whole")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_status_names_what_failed(tmp_path, capsys):
    places(tmp_path)[0].fail("Traceback\nValueError: too bad\n")
    printed = study(capsys, "status", tmp_path)
    assert "1 failed, 21 waiting; time left: not known yet" in printed
    assert "ValueError: too bad" in printed


def test_list_shows_studies_and_scales(capsys):
    assert main(["study", "list"]) == 0
    printed = capsys.readouterr().out
    for name in (*STUDIES, "smoke", "quick", "paper"):
        assert name in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "mian"], "unknown study 'mian'; did you mean 'main'?"),
        (["status", "main", "--methods", "SAC"], "study 'main' has no method 'SAC'"),
        (["run", "main", "--tasks", "BalCircle"], "unknown task 'BalCircle'; did you mean 'BallCircle'?"),
        (["report", "main"], "no run is finished yet"),
        (["run", "main", "--jobs", "0"], "--jobs 0 must be at least 1"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path, capsys):
    assert main(["study", *arguments, "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
