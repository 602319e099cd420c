"""The run folder: resolved settings, manifest, progress, evaluation and checkpoints.

All is written atomically, but for progress, which grows by a row per iteration.

runs/ccpo-BallCircle/seed-000-20260101-120000/
    config.json  manifest.json  progress.csv  progress.jsonl  policy.safetensors  eval.csv
    checkpoints/step_000012000/
"""

import csv
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ccpo.errors import FormatError, RunError
from ccpo.policy_file import write_atomically

FORMAT_VERSION = 1
POLICY_FILE = "policy.safetensors"
STARTS = "starts"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of ours, or a FormatError that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"'{path}' is missing; the folder is not a complete run") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FormatError(f"'{path}' cannot be read ({error}); restore it or start a new run") from None
    if not isinstance(content, dict):
        raise FormatError(f"'{path}' holds no JSON object; restore it or start a new run")
    return content


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    names = ("ccpo", "jax", "jaxlib", "numpy", "optax", "gymnasium", "bullet-safety-gym", "pybullet", "mujoco")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def manifest() -> dict[str, Any]:
    """What made a result: the source, the date (UTC), the machine and the versions."""
    return {
        **_own_source_state(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "versions": versions(),
    }


@cache  # once per process: a commit made while it runs is not what it runs
def _own_source_state() -> dict[str, Any]:
    return source_state(Path(__file__).parent)


def source_state(package: Path) -> dict[str, Any]:
    """The git commit of a package's folder, and whether files in it differ from that; None if it is no checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        if not git("ls-files", "."):  # installed inside somebody else's checkout
            return {"commit": None, "dirty": None}
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "."))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def processor() -> str:
    """The processor's name; its numbers too, since rented machines of several generations share a name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    if "model name" not in told:
        return platform.processor() or platform.machine()
    numbers = ", ".join(f"{name} {told[name]}" for name in ("cpu family", "model", "stepping") if name in told)
    return f"{told['model name']} ({numbers})"


class Run:
    """One run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path, self.manifest_path = path / "config.json", path / "manifest.json"
        self.progress_path, self.rows_path = path / "progress.csv", path / "progress.jsonl"
        self.eval_path, self.policy_path = path / "eval.csv", path / POLICY_FILE
        self.checkpoints_path = path / "checkpoints"
        self._lock_path = path / ".lock"
        self._made: list[Path] = []  # by `create`, innermost first

    @classmethod
    def create(
        cls,
        out: str | Path,
        *,
        algorithm: str,
        task: str,
        seed: int,
        config: Mapping[str, Any],
        folder: str | Path | None = None,
    ) -> "Run":
        """A new run with its config and manifest, in `folder` or in `OUT/<algorithm>-<task>/seed-000-<time>`."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        given = Path(folder) if folder else Path(out) / f"{algorithm}-{task}"
        missing = [path for path in (given, *given.parents) if not os.path.exists(path)]
        run = cls(given if folder else _new_folder(given, f"seed-{seed:03d}-{stamp}"))
        run._made = missing if folder else [run.path, *missing]
        if run.config_path.exists():
            raise RunError(f"'{run.path}' already holds a run; continue it with: ccpo train --resume {run.path}")
        run.checkpoints_path.mkdir(parents=True, exist_ok=True)
        write_json(run.manifest_path, manifest())
        # last, since it is what makes a folder a run
        write_json(run.config_path, {"format_version": FORMAT_VERSION, **config})
        return run

    def discard(self) -> None:
        """Take back what `create` made, of a run that came to nothing; no file or folder of others goes with it."""
        own = (self.config_path, self.manifest_path, self.progress_path, self.rows_path, self._lock_path)
        for path in own:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path / STARTS, ignore_errors=True)
        with suppress(OSError):  # something else is in it
            for folder in (self.checkpoints_path, *self._made):
                folder.rmdir()

    def discard_evaluations(self) -> None:
        """Take away what tells of weights that are replaced."""
        for pattern in ("eval.*", "eval-*.*", "calibration.csv"):
            for path in self.path.glob(pattern):
                path.unlink()

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """An existing run folder."""
        run = cls(Path(path))
        if not run.config_path.is_file():
            raise RunError(f"'{path}' is not a run folder (no config.json); give a folder that 'ccpo train' made")
        return run

    def config(self) -> dict[str, Any]:
        content = read_json(self.config_path)
        if content.pop("format_version", None) != FORMAT_VERSION:
            raise FormatError(
                f"'{self.config_path}' has another format version than {FORMAT_VERSION}; use a matching ccpo"
            )
        return content

    def start(self, index: int) -> "Run":
        """The folder, inside this run's, of one of several starts."""
        run = Run(self.path / STARTS / str(index))
        run.path.mkdir(parents=True, exist_ok=True)
        return run

    def starts(self) -> list["Run"]:
        """The starts that there are so far, in order."""
        return [Run(path) for path in sorted((self.path / STARTS).glob("*"), key=lambda path: int(path.name))]

    def has_begun(self) -> bool:
        """Whether there is anything to go on from."""
        return any(run.progress() for run in (self, *self.starts()))

    def progress(self) -> list[dict[str, Any]]:
        """The rows logged so far; what comes after a line cut by a crash is left out."""
        rows: list[dict[str, Any]] = []
        if not self.rows_path.exists():
            return rows
        for line in self.rows_path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for writing; the lock dies with the process."""
        with open(self._lock_path, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"'{self.path}' is in use by another process; wait for it or stop it first") from None
            yield

    def steps(self) -> list[int]:
        """Environment steps of the complete checkpoints, oldest first."""
        return sorted(int(p.name.removeprefix("step_")) for p in self.checkpoints_path.glob("step_*"))

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_path / f"step_{step:09d}"

    def save_checkpoint(
        self, step: int, groups: Mapping[str, dict[str, np.ndarray]], info: Mapping[str, Any], *, keep: int
    ) -> None:
        """Write `<group>.safetensors` for each group and `checkpoint.json`, then drop all but the newest `keep`."""
        final = self.checkpoint_path(step)
        temporary = self.checkpoints_path / f".{final.name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        digests = {}
        for name, arrays in groups.items():
            file = temporary / f"{name}.safetensors"
            save_file({k: np.require(v, requirements="C") for k, v in arrays.items()}, file)
            digests[name] = _digest(file)
        write_json(temporary / "checkpoint.json", {"format_version": FORMAT_VERSION, "sha256": digests, **info})
        replaced = self.checkpoints_path / f".{final.name}.old"
        if final.exists():
            os.replace(final, replaced)
        os.replace(temporary, final)
        shutil.rmtree(replaced, ignore_errors=True)
        for old in self.steps()[:-keep]:
            shutil.rmtree(self.checkpoint_path(old))

    def load_checkpoint(self, step: int | None = None) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
        """The arrays and the info of a checkpoint, by default the newest; any damage is a FormatError."""
        steps = self.steps()
        if not steps:
            raise RunError(f"'{self.path}' holds no checkpoint; continue it with: ccpo train --resume {self.path}")
        folder = self.checkpoint_path(steps[-1] if step is None else step)
        info = read_json(folder / "checkpoint.json")
        if info.get("format_version") != FORMAT_VERSION:
            raise FormatError(f"'{folder}' has format version {info.get('format_version')}, expected {FORMAT_VERSION}")
        groups = {}
        for name, digest in info["sha256"].items():
            file = folder / f"{name}.safetensors"
            advice = f"delete '{folder}' to use the checkpoint before it"
            if not file.is_file() or _digest(file) != digest:
                raise FormatError(f"'{file}' is missing, truncated or changed; {advice}")
            try:
                groups[name] = load_file(file)
            except SafetensorError as error:
                raise FormatError(f"'{file}' cannot be read ({error}); {advice}") from None
        return groups, info


def _new_folder(parent: Path, name: str) -> Path:
    for attempt in range(1000):
        path = parent / (name + (f"-{attempt}" if attempt else ""))
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.is_dir():
                raise RunError(f"cannot make '{path}': a file is in the way; choose another --out") from None
        except OSError as error:
            raise RunError(f"cannot write to '{parent}' ({error.strerror}); choose another --out") from None
        else:
            return path
    raise RunError(f"'{parent}' already holds a thousand runs of this second; choose another --out")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ProgressLog:
    """`progress.csv` and `progress.jsonl`: one row per iteration, flushed as it comes, cut back when a run resumes."""

    def __init__(self, run: Run, *, upto_step: int) -> None:
        self._csv_path, self._jsonl_path = run.progress_path, run.rows_path
        rows = [row for row in run.progress() if row["steps"] <= upto_step]
        write_atomically(self._jsonl_path, "".join(json.dumps(row) + "\n" for row in rows))
        self._columns: list[str] = list(rows[0]) if rows else []
        self._csv_path.unlink(missing_ok=True)
        for row in rows:
            self._write_csv(row)

    def _write_csv(self, row: Mapping[str, Any]) -> None:
        new = not self._csv_path.exists()
        self._columns = self._columns or list(row)
        with open(self._csv_path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            if new:
                writer.writeheader()
            writer.writerow(row)

    def write(self, row: Mapping[str, Any]) -> None:
        self._write_csv(row)
        with open(self._jsonl_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
