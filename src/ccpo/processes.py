"""Worker processes: they never outlive this one, and it is noticed when one dies or no longer moves."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

STEP_SECONDS = 60.0
"""After which a step of an environment in a worker counts as hung, unless told otherwise."""
POLL_SECONDS = 0.5
CLOSE_SECONDS = 2.0
_BUSY = -1
_PLACES = 1 << 32
_SIGKILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class WorkerLostError(Exception):
    """A worker process ended before it replied; says how."""


class WorkerStuckError(Exception):
    """A worker process has been at the same place for too long: (major, minor), as `at` numbers them."""

    def __init__(self, major: int, minor: int) -> None:
        super().__init__(major, minor)
        self.major, self.minor = major, minor


Pulse = MutableSequence[int]
"""One number that a worker changes as it moves; nothing is timed while it is negative."""


def at(major: int, minor: int) -> int:
    """The pulse of a place, such as step `minor` of lane `major`."""
    return major * _PLACES + minor


class Worker:
    """A spawned process that runs `target(connection, pulse, *args)`, and this side of its pipe."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.pulse = context.RawArray("q", [_BUSY])
        self.process = context.Process(target=_live, args=(target, theirs, self.pulse, args))
        self.owes, self._seen, self._still = False, _BUSY, 0.0
        with _interrupts_held():  # Ctrl-C is for this process, which then ends its workers in good order
            self.process.start()
        theirs.close()
        # before multiprocessing's own exit handler, which would wait for a worker that waits for us
        self._close = weakref.finalize(self, _end, self.process, self.connection)

    def send(self, order: Any) -> None:
        self.owes, self._seen, self._still = True, _BUSY, 0.0
        try:
            self.connection.send(order)
        except OSError:
            raise self._lost() from None

    def receive(self) -> Any:
        self.owes = False
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None

    def check(self, waited: float, limit: float) -> None:
        """Note that it was waited for; it is stuck after `limit` seconds at one place (0: never)."""
        if self.process.exitcode is not None and not self.connection.poll():
            raise self._lost()
        now = self.pulse[0]
        self._still = self._still + waited if now == self._seen and now >= 0 else 0.0
        self._seen = now
        if limit and self._still >= limit:
            self.process.kill()
            raise WorkerStuckError(*divmod(now, _PLACES))

    def close(self) -> None:
        self._close()

    def _lost(self) -> WorkerLostError:
        self.process.join(timeout=1)
        code = self.process.exitcode
        name = signal.Signals(-code).name if code is not None and -code in set(signal.Signals) else None
        return WorkerLostError(f"exit code {code}" + (f", {name}" if name else ""))


def replies(workers: Sequence[Worker], *, limit: float) -> Iterator[tuple[Worker, Any]]:
    """The replies to all orders, as they come; the caller may send a worker its next order in between.

    Raises `WorkerLostError` if one dies, `WorkerStuckError` if one is in the same place for `limit` seconds.
    """
    while owing := {worker.connection: worker for worker in workers if worker.owes}:
        began = time.monotonic()
        ready = wait([*owing, *(worker.process.sentinel for worker in owing.values())], POLL_SECONDS)
        for connection in ready:
            if isinstance(connection, Connection):
                worker = owing.pop(connection)
                yield worker, worker.receive()
        # at most a poll is counted: a machine that slept meanwhile was not stuck
        waited = min(time.monotonic() - began, POLL_SECONDS)
        for worker in owing.values():
            worker.check(waited, limit)


def close_all(workers: Sequence[Worker]) -> None:
    for worker in workers:  # all pipes first, so that they end side by side
        worker.connection.close()
    for worker in workers:
        worker.close()


def end_with_parent() -> None:
    """From now on this process ends when its parent does, whatever it is doing."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":  # a step that hangs inside C code may keep Python's threads from running
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_SIGKILL_WITH_PARENT, signal.SIGKILL)
    threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _live(target: Callable[..., None], connection: Connection, pulse: Pulse, args: tuple) -> None:
    end_with_parent()
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        target(connection, pulse, *args)


def _end(process: BaseProcess, connection: Connection) -> None:
    """Close the pipe, which ends an idle worker; kill one that does not end."""
    connection.close()
    process.join(timeout=CLOSE_SECONDS if process.exitcode is None else 0)
    if process.is_alive():
        process.kill()
        process.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process that is started inside never sees Ctrl-C; this one sees it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
