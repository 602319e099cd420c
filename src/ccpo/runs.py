"""The run folder: resolved settings, manifest, progress, evaluation and checkpoints.

All is written atomically, but for progress, which grows by a row per iteration.

runs/ccpo-BallCircle/seed-000-20260101-120000/
    config.json  manifest.json  progress.csv  progress.jsonl  policy.safetensors  eval.csv
    checkpoints/step_000012000/
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ccpo.errors import FormatError, NumericalError, RunError, RunWarning
from ccpo.policy_file import MAX_HEADER_BYTES, writing
from ccpo.progress import read_rows
from ccpo.sealed import read_sealed, write_json, write_sealed

FORMAT_VERSION = 1
POLICY_FILE = "policy.safetensors"


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
        with writing(run.path):
            run.checkpoints_path.mkdir(parents=True, exist_ok=True)
        write_json(run.manifest_path, manifest())
        # last, since it is what makes a folder a run
        write_sealed(run.config_path, {"format_version": FORMAT_VERSION, **config})
        return run

    def discard(self) -> None:
        """Take back what `create` made, of a run that came to nothing; no file or folder of others goes with it."""
        own = (self.config_path, self.manifest_path, self.progress_path, self.rows_path, self._lock_path)
        for path in own:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            for folder in (self.checkpoints_path, *self._made):
                folder.rmdir()

    def discard_evaluations(self) -> None:
        """Take away what tells of weights that are replaced."""
        with writing(self.path):
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

    def config(self, *, texts: Sequence[str] = ()) -> dict[str, Any]:
        """The settings that the run began with, of which `texts` must be there and be text."""
        content = read_sealed(self.config_path)
        if content.pop("format_version", None) != FORMAT_VERSION:
            raise FormatError(
                f"'{self.config_path}' has another format version than {FORMAT_VERSION}; use a matching ccpo"
            )
        for name in texts:
            if not isinstance(content.get(name), str):
                raise FormatError(f"'{self.config_path}' has no '{name}'; restore it or start a new run")
        return content

    def has_begun(self) -> bool:
        """Whether there is anything to go on from."""
        return bool(self.progress())

    def progress(self) -> list[dict[str, Any]]:
        """The rows logged so far."""
        return read_rows(self.rows_path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for writing; the lock dies with the process."""
        with writing(self._lock_path):
            file = open(self._lock_path, "w")  # noqa: SIM115 closed below, outside of what `writing` answers for
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"'{self.path}' is in use by another process; wait for it or stop it first") from None
            yield

    def steps(self) -> list[int]:
        """Environment steps of the complete checkpoints, oldest first."""
        names = (path.name.removeprefix("step_") for path in self.checkpoints_path.glob("step_*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_path / f"step_{step:09d}"

    def save_checkpoint(
        self,
        step: int,
        groups: Mapping[str, dict[str, np.ndarray]],
        info: Mapping[str, Any],
        *,
        keep: int,
        unknown: Iterable[str] = (),
    ) -> None:
        """Write `<group>.safetensors` for each group and `checkpoint.json`, then drop all but the newest `keep`.

        No array may hold NaN or infinity, but for the `unknown`, which may stand for what was not measured yet.
        """
        spoilt = min(not_finite(groups) - {*unknown}, default=None)
        if spoilt:
            kept = [each for each in self.steps() if each != step]
            advice = f"the checkpoint at step {kept[-1]} is kept" if kept else "there is no checkpoint yet"
            raise NumericalError(
                f"'{spoilt}' holds NaN or infinity after {step} steps and is not saved; {advice}; "
                "try a smaller learning rate, or bound what the environment returns"
            )
        if not self.config_path.is_file():
            raise RunError(f"'{self.path}' was deleted or moved while it was being written; start a new run")
        final = self.checkpoint_path(step)
        temporary, replaced = (self.checkpoints_path / f".{final.name}.{end}" for end in ("tmp", "old"))
        with writing(final, then=f"; then: ccpo train --resume {self.path}"):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            try:
                digests = {}
                for name, arrays in groups.items():
                    file = temporary / f"{name}.safetensors"
                    save_file({k: np.require(v, requirements="C") for k, v in arrays.items()}, file)
                    digests[name] = _digest(file)
                content = {"format_version": FORMAT_VERSION, "sha256": digests, "unknown": sorted(unknown), **info}
                write_sealed(temporary / "checkpoint.json", content)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)  # half a checkpoint only takes up room
                raise
            if final.exists():
                os.replace(final, replaced)
            os.replace(temporary, final)
            shutil.rmtree(replaced, ignore_errors=True)
            for old in self.steps()[:-keep]:
                shutil.rmtree(self.checkpoint_path(old))

    def load_checkpoint(
        self, step: int | None = None, *, largest: Mapping[str, int] | None = None
    ) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
        """The arrays and the info of a checkpoint: by default the newest that is intact, with a warning of others.

        `largest` says which groups there must be, and how many bytes each may have.
        """
        steps = self.steps()[::-1] if step is None else [step]
        if not steps:
            raise RunError(f"'{self.path}' holds no checkpoint; continue it with: ccpo train --resume {self.path}")
        for each, older in pairwise(steps):
            try:
                return self._read_checkpoint(each, largest)
            except FormatError as error:
                warnings.warn(f"{error}; the checkpoint before it is used, at step {older}", RunWarning, stacklevel=2)
        try:
            return self._read_checkpoint(steps[-1], largest)
        except FormatError as error:
            advice = f"no checkpoint is left; delete '{self.checkpoints_path}' to begin anew"
            raise FormatError(f"{error}; {advice}") from None

    def _read_checkpoint(
        self, step: int, largest: Mapping[str, int] | None
    ) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
        """One checkpoint; any damage is a FormatError."""
        folder = self.checkpoint_path(step)
        info = read_sealed(folder / "checkpoint.json")
        if info.get("format_version") != FORMAT_VERSION:
            raise FormatError(f"'{folder}' has format version {info.get('format_version')}, expected {FORMAT_VERSION}")
        digests, unknown = info.get("sha256"), info.get("unknown")  # files from before there was a list have none
        if (
            not isinstance(digests, dict)
            or not isinstance(unknown, list | type(None))
            or (largest is not None and digests.keys() != largest.keys())
        ):
            raise FormatError(f"'{folder / 'checkpoint.json'}' does not name the checkpoint's files")
        groups = {}
        for name, digest in digests.items():
            file = folder / f"{Path(name).name}.safetensors"
            try:
                if largest is not None and file.stat().st_size > largest[name] + MAX_HEADER_BYTES:
                    raise FormatError(f"'{file}' is larger than this run's can be")
                if _digest(file) != digest:
                    raise FormatError(f"'{file}' is missing, truncated or changed")
                groups[name] = load_file(file)
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                if isinstance(error, FormatError):
                    raise
                raise FormatError(f"'{file}' is missing, truncated or changed ({error})") from None
        spoilt = None if unknown is None else min((n for n in not_finite(groups) if n not in unknown), default=None)
        if spoilt:
            raise FormatError(f"'{spoilt}' in '{folder}' holds NaN or infinity")
        return groups, info | {"step": step}


def not_finite(groups: Mapping[str, Mapping[str, np.ndarray]]) -> set[str]:
    """The arrays that hold NaN or infinity."""
    return {
        f"{group}.{name}"
        for group, arrays in groups.items()
        for name, array in arrays.items()
        if array.dtype.kind == "f" and not np.isfinite(array).all()
    }


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
