"""Parts run one after the other, each in a process of its own that is stopped when its time is over."""

import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from benchmarks.answering import stay_on_cores
from benchmarks.rows import Row


@dataclass(frozen=True)
class Part:
    """A generator of rows, named by where it stands, and the seconds that it may take."""

    module: str
    function: str
    seconds: float
    summary: str
    prepare: Callable[[], object] | None = None
    """What must be installed first; that does not count as the part's time."""
    one_core: bool = False
    """Whether its process stays on one core; others say it of the processes that they start."""


@dataclass
class Outcome:
    """The rows of all parts, how long each part took, and what went wrong in which."""

    rows: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def run_parts(
    parts: Mapping[str, Part],
    *,
    patience: float = 1.0,
    announce: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run parts in order. What a part measured before it failed or ran out of time is kept."""
    outcome = Outcome()
    for name, part in parts.items():
        announce(f"{name}: {part.summary}")
        if part.prepare:
            part.prepare()
        start = time.monotonic()
        failure = _run_part(part, part.seconds * patience, outcome.rows)
        outcome.seconds[name] = round(time.monotonic() - start, 1)
        if failure:
            outcome.failures[name] = failure
            announce(f"{name}: {failure.splitlines()[-1]}")
    return outcome


def _run_part(part: Part, seconds: float, rows: list[Row]) -> str:
    """Append the part's rows as they come; returns what went wrong, or nothing."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(part, sender))
    process.start()
    sender.close()
    deadline = time.monotonic() + seconds
    try:
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            message = receiver.recv()
            if not isinstance(message, Row):
                return message
            rows.append(message)
        return f"stopped after {seconds:.0f} s; what it had measured is kept"
    except EOFError:
        return "the process ended without a word"
    finally:
        _end(process)


def _end(process: BaseProcess) -> None:
    """Wait for the process, or stop it together with those it started."""
    process.join(1.0)
    if process.is_alive() and process.pid:
        with suppress(ProcessLookupError):  # it may not lead a group yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def _measure(part: Part, sender: Connection) -> None:
    """In the part's process: send each row, then an empty text, or the traceback if it failed."""
    os.setsid()
    if part.one_core:
        stay_on_cores(1)
    try:
        for row in getattr(importlib.import_module(part.module), part.function)():
            sender.send(row)
    except Exception:
        sender.send(traceback.format_exc())
    else:
        sender.send("")
