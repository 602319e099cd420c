"""What both sides of a comparison need to answer requests; standard library only, for two environments use it."""

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable

# Whatever a library prints, from C too, is no answer: it goes to the errors.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


_waited = 0.0
"""Seconds on the clock in which there was nothing to do but to wait for the other end."""


class Stopped(Exception):  # noqa: N818 — nothing is wrong
    """The training in progress is not needed any more."""


def stay_on_cores(count: int) -> None:
    """Keep this process, and those it starts, to the first cores that it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def usage() -> dict[str, float]:
    """Seconds on the clock without waiting, CPU seconds and peak memory [MB] of this process."""
    mine, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(who.ru_utime + who.ru_stime for who in (mine, children))
    return {"wall": time.monotonic() - _waited, "cpu": cpu, "memory": mine.ru_maxrss / 1024}


def answer(**content: object) -> None:
    _answers.write(json.dumps(content) + "\n")
    _answers.flush()


def next_request() -> dict:
    """The next request; ends the process when there will be none."""
    global _waited
    start = time.monotonic()
    line = sys.stdin.readline()
    _waited += time.monotonic() - start
    if not line:
        sys.exit()
    return json.loads(line)


def serve(handlers: dict[str, Callable[..., dict]]) -> None:
    """Answer each request by the handler that its `do` names, with the rest as arguments."""
    stay_on_cores(int(os.environ.get("BENCHMARK_CORES", "1")))
    while True:
        request = next_request()
        try:
            answer(**handlers[request.pop("do")](**request))
        except Stopped:
            answer(stopped=True)
        except Exception:
            answer(error=traceback.format_exc())


def report_stretch(steps: int) -> None:
    """In the middle of a training: answer with the use of resources so far, and go on or stop as asked to."""
    answer(steps=steps, **usage())
    if next_request().get("stop"):
        raise Stopped
