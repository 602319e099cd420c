"""The faults: each is done once to a run of its own, and raises `BrokenPromiseError` if a promise was broken.

A fault returns what happened in a few words; faults that this machine does not allow return None.
"""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ccpo.runs import Run
from torture.cases import (
    BrokenPromiseError,
    Command,
    check_one_line,
    check_same,
    complete,
    outcome,
    run_folder,
    train_arguments,
    wait_for,
)

Fault = Callable[["Setting", Path, np.random.Generator], str | None]


class Setting:
    """What every fault compares with: a run that was not interrupted, by number of workers, and how long it took."""

    def __init__(self, folder: Path) -> None:
        self.reference: dict[int, dict[str, np.ndarray]] = {}
        self.seconds: dict[int, float] = {}
        for workers in (0, 2):
            complete(folder / f"warm-{workers}", workers=workers)  # fills the compilation cache
            began = time.monotonic()
            run = complete(folder / f"reference-{workers}", workers=workers)
            self.seconds[workers] = time.monotonic() - began
            self.reference[workers] = outcome(run)
        self.finished = run


def _hit(
    setting: Setting, folder: Path, rng: np.random.Generator, *, kind: signal.Signals, workers: int, phase: str
) -> tuple[Command, str]:
    """Start a training and send it a signal in a phase; what it was doing."""
    command = Command(*train_arguments(folder, workers=workers))

    def checkpoints(pattern: str) -> list[Path]:
        run = run_folder(folder)
        return list((run / "checkpoints").glob(pattern)) if run else []

    wanted = int(rng.integers(1, 4))
    if phase == "random":
        time.sleep(float(rng.uniform(0.0, setting.seconds[workers])))
    elif phase == "writing":
        wait_for(command, lambda: checkpoints(".step_*.tmp"))
    else:  # right after the renaming: the policy file is next
        wait_for(command, lambda: len(checkpoints("step_*")) >= wanted)
    done = command.process.poll() is not None
    if not done:
        command.process.send_signal(kind)
    run = run_folder(folder)
    where = (
        "finished" if done else "collecting and learning" if run and checkpoints("step_*") else "start-up or compiling"
    )
    return command, where if phase == "random" else phase


def kill_main(setting: Setting, folder: Path, rng: np.random.Generator) -> str:
    workers, phase = int(rng.choice([0, 2])), str(rng.choice(["random", "random", "writing", "renamed"]))
    command, where = _hit(setting, folder, rng, kind=signal.SIGKILL, workers=workers, phase=phase)
    command.finish()
    check_same(outcome(complete(folder, workers=workers)), setting.reference[workers])
    return where


def kill_worker(setting: Setting, folder: Path, rng: np.random.Generator) -> str:
    command = Command(*train_arguments(folder, workers=2))
    if not wait_for(command, lambda: run_folder(folder) and len(command.descendants()) >= 3):
        raise BrokenPromiseError("no workers were seen")
    time.sleep(float(rng.uniform(0.0, 0.7 * setting.seconds[2])))
    victims = command.descendants()
    for pid in [int(rng.choice(victims))] if victims else []:
        subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)
    code, _, complaint = command.finish()
    check_one_line(code, complaint, (0, 2))
    check_same(outcome(complete(folder, workers=2)), setting.reference[2])
    return "told in one line" if code else "finished"


def _stop(setting: Setting, folder: Path, rng: np.random.Generator, kind: signal.Signals) -> str:
    workers = int(rng.choice([0, 2]))
    command, where = _hit(setting, folder, rng, kind=kind, workers=workers, phase="renamed")
    code, _, complaint = command.finish()
    check_one_line(code, complaint, (0, 128 + kind))
    if code and "ccpo train --resume" not in complaint:
        raise BrokenPromiseError(f"it does not say how to go on: {complaint.strip()[-300:]}")
    ended, reference = outcome(complete(folder, workers=workers)), setting.reference[workers]
    if kind == signal.SIGTERM:
        check_same(ended, reference)
    elif ended["counters"][0] != reference["counters"][0]:  # after Ctrl-C it may be another run, of the same length
        raise BrokenPromiseError(f"it ended after {ended['counters'][0]:g} iterations")
    return where


def interrupt(setting: Setting, folder: Path, rng: np.random.Generator) -> str:
    return _stop(setting, folder, rng, signal.SIGINT)


def terminate(setting: Setting, folder: Path, rng: np.random.Generator) -> str:
    return _stop(setting, folder, rng, signal.SIGTERM)


def kill_command(setting: Setting, folder: Path, rng: np.random.Generator) -> str:
    """kill −9 of what reads a finished run; done again, it gives what it gives undisturbed."""
    run = folder / "run"
    shutil.copytree(setting.finished, run)
    name = str(rng.choice(["evaluate", "calibrate", "export"]))
    arguments: dict[str, list[str | Path]] = {
        "evaluate": ["evaluate", run, "--episodes", "40", "--thresholds", "4:12:2", "--workers", "2"],
        "calibrate": ["calibrate", run, "--episodes", "200", "--thresholds", "10,14", "--workers", "2"],
        "export": ["export", run, "--out", folder / "policy.safetensors"],
    }
    command = Command(*arguments[name])
    time.sleep(float(rng.uniform(0.2, 6.0)))
    command.process.kill()
    command.finish()
    code, _, complaint = Command(*arguments[name]).finish()
    check_one_line(code, complaint, (0, 2) if name == "calibrate" else (0,))
    check_same(outcome(run), setting.reference[2])
    return name


def damage_checkpoint(setting: Setting, folder: Path, rng: np.random.Generator) -> str:
    command, _ = _hit(setting, folder, rng, kind=signal.SIGKILL, workers=0, phase="renamed")
    command.finish()
    path = run_folder(folder)
    steps = Run(path).steps() if path else []
    if path is None or len(steps) < 2:
        complete(folder)
        return "too early for two checkpoints"
    files = sorted(Run(path).checkpoint_path(steps[-1]).iterdir())
    file = files[int(rng.integers(len(files)))]
    data = bytearray(file.read_bytes())
    kind = str(rng.choice(["cut off", "bits flipped", "gone"]))
    place = int(rng.integers(len(data)))
    if kind == "gone":
        file.unlink()
    elif kind == "cut off":
        file.write_bytes(data[:place])
    else:
        data[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)
    code, _, complaint = Command("train", "--resume", path).finish()
    check_one_line(code, complaint, (0,))
    if "the checkpoint before it is used" not in complaint:
        raise BrokenPromiseError(f"{file.name} {kind}: no warning: {complaint.strip()[-300:]}")
    check_same(outcome(path), setting.reference[0])
    return kind


def resume_twice(setting: Setting, folder: Path, rng: np.random.Generator) -> str:
    command, _ = _hit(setting, folder, rng, kind=signal.SIGKILL, workers=0, phase="renamed")
    command.finish()
    run = run_folder(folder)
    assert run is not None
    both = [Command("train", "--resume", run) for _ in range(2)]
    codes = []
    for each in both:
        code, _, complaint = each.finish()
        check_one_line(code, complaint, (0, 2))
        codes.append(code)
    if 0 not in codes:
        raise BrokenPromiseError("neither of two resumed")
    check_same(outcome(run), setting.reference[0])
    return "one waited its turn" if codes.count(0) == 1 else "one after the other"


@contextmanager
def _small_disk(folder: Path, kilobytes: int):
    """A small file system of its own at a folder; yields whether this machine allows it."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    allowed = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def full_disk(setting: Setting, folder: Path, rng: np.random.Generator) -> str | None:
    disk = folder / "disk"
    with _small_disk(disk, int(rng.integers(60, 700))) as allowed:
        if not allowed:
            return None
        code, _, complaint = Command(*train_arguments(disk)).finish()
        check_one_line(code, complaint, (0, 2))
        if code:
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            check_same(outcome(complete(disk)), setting.reference[0])
    return "told in one line" if code else "had room"


def read_only(setting: Setting, folder: Path, rng: np.random.Generator) -> str | None:
    disk = folder / "disk"
    with _small_disk(disk, 64_000) as allowed:
        if not allowed:
            return None
        command = Command(*train_arguments(disk))
        wait_for(command, lambda: (run := run_folder(disk)) and (run / "progress.csv").exists())
        time.sleep(float(rng.uniform(0.0, 1.0)))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False, capture_output=True)
        code, _, complaint = command.finish()
        check_one_line(code, complaint, (0, 2))
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        check_same(outcome(complete(disk)), setting.reference[0])
    return "told in one line" if code else "finished"


def folder_deleted(setting: Setting, folder: Path, rng: np.random.Generator) -> str:
    command = Command(*train_arguments(folder))
    wait_for(command, lambda: (run := run_folder(folder)) and (run / "progress.csv").exists())
    time.sleep(float(rng.uniform(0.0, 0.5)))
    run = run_folder(folder)
    done = command.process.poll() is not None
    if run is not None:
        shutil.rmtree(run, ignore_errors=True)
    code, _, complaint = command.finish()
    check_one_line(code, complaint, (0, 2) if done else (2,))
    return "told in one line" if code else "finished"


FAULTS: dict[str, tuple[Fault, int]] = {
    "kill −9 of training, at any moment and in every phase of a checkpoint": (kill_main, 60),
    "kill −9 of a worker process": (kill_worker, 15),
    "kill −9 of evaluate, calibrate, export": (kill_command, 25),
    "Ctrl-C": (interrupt, 10),
    "SIGTERM": (terminate, 10),
    "newest checkpoint damaged: bits flipped, cut off, a file gone": (damage_checkpoint, 20),
    "two processes resume one run": (resume_twice, 5),
    "disk full": (full_disk, 10),
    "disk becomes read-only": (read_only, 10),
    "run folder deleted": (folder_deleted, 5),
}
"""Each with how often a whole campaign does it."""
