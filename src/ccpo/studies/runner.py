"""Doing the runs of a study: each once, however many processes take part and however often they are killed.

Beside a run's folder lies a lock that dies with its holder, on this machine or on another with the same files. A run
is finished when its `eval.csv` is there; what was killed continues, bit for bit.
"""

import fcntl
import os
import shutil
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ccpo import agent, launch
from ccpo.combination import combine
from ccpo.errors import RunError
from ccpo.policy_file import write_atomically
from ccpo.runs import FORMAT_VERSION, Run, manifest
from ccpo.sealed import read_json, write_json, write_sealed
from ccpo.studies.plan import FinishedRun, RunPlan

PLAN_FILE, ERROR_FILE = "plan.json", "error.txt"


@dataclass(frozen=True)
class Place:
    """A planned run in its folder: how it stands there, who holds it, and how it is done."""

    plan: RunPlan
    root: Path
    """The folder of the scale: runs below `runs`, reports below the names of the studies."""

    @property
    def path(self) -> Path:
        return self.root / "runs" / self.plan.name

    @property
    def lock_path(self) -> Path:
        return self.path.with_name(f".{self.path.name}.lock")

    @property
    def finished(self) -> bool:
        return (self.path / "eval.csv").is_file()

    @property
    def error(self) -> str | None:
        """The traceback of its failure, if it failed."""
        try:
            return (self.path / ERROR_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    @property
    def members(self) -> list["Place"]:
        return [Place(member, self.root) for member in self.plan.members]

    def check(self) -> None:
        """Refuse a folder that was made by another plan: reports would mix what does not belong together."""
        path = self.path / PLAN_FILE
        if not path.is_file():
            return
        found, expected = read_json(path), self.plan.identity()
        for name in sorted({*found, *expected}):
            if found.get(name) != expected.get(name):
                raise RunError(
                    f"'{self.path}' was made with {name} = {found.get(name)}, the study now says "
                    f"{expected.get(name)}; choose another --out, or delete the folder to do the run again"
                )

    def fail(self, text: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / ERROR_FILE, text)

    def result(self) -> FinishedRun:
        plan = self.plan
        return FinishedRun(plan.label, plan.algorithm, plan.task, plan.seed, plan.thresholds, self.path)

    def perform(self) -> None:
        """Train or combine, evaluate, and write `eval.csv` at the very end."""
        self.check()
        trained = self._combine() if self.plan.members else self._train()
        # one process: the others of this machine have their own runs, and the table does not depend on it
        table = trained.evaluate(self.plan.evaluated, self.plan.episodes, workers=1)
        table.write_csv(self.path / "eval.csv")

    def _train(self) -> agent.Agent:
        plan = self.plan
        if Run(self.path).config_path.is_file():
            return launch.resume(self.path, progress=False)
        self._start_anew()
        settings = {**plan.overrides, "seed": plan.seed, "behaviour_thresholds": plan.thresholds}
        return launch.train(plan.task, plan.algorithm, preset=plan.preset, folder=self.path, progress=False, **settings)

    def _combine(self) -> agent.Agent:
        """The policy of the finished members, with a config and a manifest like those of a trained run."""
        plan = self.plan
        self._start_anew()
        policy = combine([agent.load(member.path).policy for member in self.members])
        settings = {
            "task": plan.task,
            "algorithm": plan.algorithm,
            "preset": plan.preset,
            "seed": plan.seed,
            "behaviour_thresholds": list(plan.thresholds),
            "steps": policy.manifest["training"]["steps_done"],
            "members": [member.name for member in plan.members],
        }
        write_sealed(self.path / "config.json", {"format_version": FORMAT_VERSION, **settings})
        write_json(self.path / "manifest.json", manifest())
        policy.save(self.path / agent.POLICY_FILE)
        return agent.load(self.path)

    def _start_anew(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        write_json(self.path / PLAN_FILE, self.plan.identity())

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Hold the run, if nobody else does; the lock dies with its process."""
        self.lock_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.lock_path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True

    def is_claimed(self) -> bool:
        """Whether a living process holds the run."""
        try:
            with open(self.lock_path) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def attempts(self) -> list[str]:
        """Who took the run so far, the latest last: lines of session, machine and process."""
        try:
            return self.lock_path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def sign(self, session: str) -> None:
        with open(self.lock_path, "a", encoding="utf-8") as file:
            file.write(f"{session} {process_name(os.getpid())}\n")


def process_name(pid: int) -> str:
    return f"{socket.gethostname()}-{pid}"


def new_session() -> str:
    """A name for one `ccpo study run` with all of its processes."""
    return f"{process_name(os.getpid())}-{time.time_ns()}"


def attempt(place: Place, session: str) -> bool:
    """Do the run if it is there to be done; whether it was settled here, well or badly.

    A run whose process died in this very session has failed: to try it at once would cost the next process too.
    """
    with place.claim() as mine:
        if not mine or place.finished or place.error:
            return False
        died = [line for line in place.attempts() if line.startswith(f"{session} ")]
        if died:
            place.fail(f"its process died: {died[-1].split()[-1]}\n")
            return True
        place.sign(session)
        try:
            place.perform()
        except Exception:  # whatever goes wrong in one run is not to stop the others
            place.fail(traceback.format_exc())
        return True


def remaining(places: Sequence[Place]) -> list[Place]:
    """What is neither finished nor failed, nor waits for a member that failed."""
    return [
        place
        for place in places
        if not (place.finished or place.error or any(member.error for member in place.members))
    ]


def work(places: Sequence[Place], session: str, *, poll_seconds: float = 1.0) -> None:
    """Do all runs that nobody else does, and take over from whoever dies, until nothing remains."""
    while left := remaining(places):
        ready = (place for place in left if all(member.finished for member in place.members))
        if not any(attempt(place, session) for place in ready):
            time.sleep(poll_seconds)


def begin(places: Sequence[Place]) -> None:
    """Before the work: refuse folders of other plans, and give failed runs another chance."""
    for place in places:
        place.check()
    for place in places:
        if place.error and not place.is_claimed():
            (place.path / ERROR_FILE).unlink(missing_ok=True)
