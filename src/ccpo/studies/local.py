"""Several processes of this machine at work on one study, each on its share of the cores."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from ccpo.errors import ConfigError, RunError
from ccpo.processes import end_with_parent
from ccpo.studies.runner import Place, begin, new_session, process_name, remaining, work
from ccpo.threads import use_one_thread


def share_of_cores(cores: Sequence[int], jobs: int) -> list[list[int]]:
    """The cores of each job: neighbours, as even as can be; with more jobs than cores, they take turns.

    >>> share_of_cores([0, 1, 2, 3, 4], 2), share_of_cores([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    if jobs >= len(cores):
        return [[cores[job % len(cores)]] for job in range(jobs)]
    return [list(cores[job * len(cores) // jobs : (job + 1) * len(cores) // jobs]) for job in range(jobs)]


def run_here(
    places: Sequence[Place],
    *,
    jobs: int = 1,
    watch: Callable[[], None] = lambda: None,
    poll_seconds: float = 1.0,
) -> None:
    """Let so many processes, but no more than runs, work until nothing remains; `watch` is called now and then.

    A process that dies takes only its run with it, which counts as failed; another takes its place.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs} must be at least 1")
    begin(places)
    use_one_thread()
    session = new_session()
    shares = share_of_cores(_cores(), min(jobs, len(remaining(places))))
    workers = [_start(places, session, share) for share in shares]
    try:
        while any(worker.exitcode != 0 for worker in workers):
            for index, worker in enumerate(workers):
                if worker.exitcode:
                    _check_took_a_run(worker, places)
                    workers[index] = _start(places, session, shares[index])
            watch()
            time.sleep(poll_seconds)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    watch()


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _start(places: Sequence[Place], session: str, cores: Sequence[int]) -> BaseProcess:
    worker = multiprocessing.get_context("spawn").Process(target=_serve, args=(list(places), session, list(cores)))
    worker.start()
    return worker


def _serve(places: Sequence[Place], session: str, cores: Sequence[int]) -> None:
    end_with_parent()
    if hasattr(os, "sched_setaffinity"):  # not everywhere; it only helps the speed
        os.sched_setaffinity(0, cores)
    log = _log_path(places[0].root, os.getpid())
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", buffering=1) as sys.stdout:
        sys.stderr = sys.stdout
        os.dup2(sys.stdout.fileno(), 2)  # what compiled code writes
        work(places, session)


def _check_took_a_run(worker: BaseProcess, places: Sequence[Place]) -> None:
    """A process that dies before its first run would die again, for ever."""
    name = process_name(worker.pid or 0)
    if not any(line.endswith(f" {name}") for place in places for line in place.attempts()):
        log = _log_path(places[0].root, worker.pid or 0)
        raise RunError(f"a process ended with exit code {worker.exitcode} before it took a run; see {log}")


def _log_path(root: Path, pid: int) -> Path:
    return root / "logs" / f"{process_name(pid)}.log"
