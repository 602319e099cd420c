"""One small run, and how to start, watch, hurt and compare it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ccpo.runs import Run

TASK = "BalanceBudget-T20"
SETTINGS = {
    "steps": 1440,
    "rollout_length": 20,
    "warmup_steps": 240,
    "checkpoint_every": 240,
    "replay_steps": 1200,
    "hidden": "8,8",
    "features": 4,
    "batch": 16,
    "conditions": 3,
    "states": 12,
    "action_samples": 4,
    "updates_per_step": 0.05,
    "refresh_updates": 3,
    "average_rate": 0.1,
}
PATIENCE = 300.0
"""Seconds after which a command counts as hung."""
MARK = "CCPO_TORTURE"
_PROGRAM = "import sys; from ccpo.cli import main; sys.exit(main())"


class BrokenPromiseError(Exception):
    """Something was lost, left behind, or not told in one line."""


class Command:
    """A `ccpo` command in a process of its own; all that it starts carries the same mark."""

    def __init__(self, *arguments: str | Path) -> None:
        self.mark = uuid.uuid4().hex
        self.blocks = _orphans()
        environment = {**os.environ, MARK: self.mark}
        command = [sys.executable, "-c", _PROGRAM, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def descendants(self) -> list[int]:
        """The living processes that it started, without itself."""
        own = f"{MARK}={self.mark}".encode()
        return [pid for pid, environment in _environments() if own in environment and pid != self.process.pid]

    def finish(self) -> tuple[int, str, str]:
        """Exit code, what was printed and what was complained of; nothing may be left behind afterwards."""
        try:
            printed, complaint = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise BrokenPromiseError(f"it did not end within {PATIENCE:g} s") from None
        deadline = time.monotonic() + 15
        while (left := self.descendants() or _orphans() - self.blocks) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            raise BrokenPromiseError(f"left behind: {sorted(map(str, left))}")
        return self.process.returncode, printed, complaint


def _orphans() -> set[str]:
    """Blocks of shared memory that no living process holds; those of other programs that are at work do not count."""
    folder = Path("/dev/shm")
    blocks = {path.name for path in folder.iterdir() if path.name.startswith("psm_")} if folder.is_dir() else set()
    for maps in Path("/proc").glob("[0-9]*/maps") if blocks else ():
        with contextlib.suppress(OSError):
            text = maps.read_text()
            blocks = {block for block in blocks if f"/dev/shm/{block}" not in text}
    return blocks


def _environments() -> Iterator[tuple[int, bytes]]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                yield int(path.name), (path / "environ").read_bytes()


def train_arguments(folder: Path, *, workers: int = 0) -> list[str | Path]:
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    return ["train", "--task", TASK, "--out", folder, "--workers", str(workers), *settings]


def run_folder(folder: Path) -> Path | None:
    """The run that a training made below a folder, once there is one."""
    return next((path.parent for path in folder.glob("*/*/config.json")), None)


def complete(folder: Path, *, workers: int = 0) -> Path:
    """Go on, or begin anew, until the run is finished; its folder."""
    run = run_folder(folder)
    code, _, complaint = Command(
        *(["train", "--resume", run] if run else train_arguments(folder, workers=workers))
    ).finish()
    if code:
        raise BrokenPromiseError(f"it does not resume: {complaint.strip()[-300:]}")
    run = run_folder(folder)
    if run is None:
        raise BrokenPromiseError("there is no run")
    return run


def outcome(run: Path) -> dict[str, np.ndarray]:
    """All that a finished run has learned and logged, without what depends on the clock."""
    groups, info = Run.open(run).load_checkpoint()
    arrays = {f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()}
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    kept = [[(name, value) for name, value in row.items() if not name.startswith("time/")] for row in rows]
    return arrays | {"counters": np.array([info["iteration"], info["cumulative_cost"]]), "rows": np.array(repr(kept))}


def check_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    different = sorted(name for name in first.keys() | second.keys() if not _same(first.get(name), second.get(name)))
    if different:
        raise BrokenPromiseError(f"the end is not the uninterrupted one: {different[:3]} differ")


def _same(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    return first is not None and second is not None and first.tobytes() == second.tobytes()


def check_one_line(code: int, complaint: str, expected: Sequence[int]) -> None:
    """It ended with an exit code that says so and without a traceback."""
    if code not in expected or "Traceback" in complaint:
        raise BrokenPromiseError(f"exit code {code}, expected {list(expected)}: {complaint.strip()[-300:]}")


def wait_for(command: Command, happens: Callable[[], object]) -> bool:
    """Until something happens, looked for as often as can be; false if the command ends before."""
    while command.process.poll() is None:
        if happens():
            return True
    return False
