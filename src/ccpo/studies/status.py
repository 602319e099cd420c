"""How a study stands, read from its files: what is done, running, failed or waiting, and the time left."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ccpo.schedule import default_steps
from ccpo.studies.runner import Place

STATES = ("done", "running", "failed", "stopped", "waiting")
"""Stopped: begun, and nobody works on it now; the next `ccpo study run` continues it."""


@dataclass(frozen=True)
class Standing:
    """A run's state, the share of its steps that is done, and the seconds it has taken so far."""

    place: Place
    state: str
    share: float
    seconds: float
    error: str = ""
    """The last line of the traceback, if it failed."""


def standing_of(place: Place) -> Standing:
    steps, total, seconds = _progress(place.path)
    share = min(1.0, steps / total)
    if place.finished:
        return Standing(place, "done", 1.0, seconds)
    if place.is_claimed():
        return Standing(place, "running", share, seconds)
    if error := place.error:
        return Standing(place, "failed", share, seconds, error.strip().splitlines()[-1])
    return Standing(place, "stopped" if steps else "waiting", share, seconds)


def counts(rows: Sequence[Standing]) -> dict[str, int]:
    """How many runs are in each state, in the order of `STATES`."""
    found = Counter(row.state for row in rows)
    return {state: found[state] for state in STATES}


def seconds_left(rows: Sequence[Standing]) -> float | None:
    """An estimate for the processes at work: a run takes as long as its own pace, or runs of its kind, suggest.

    None as long as nothing of a like kind has made progress. A combination takes no time to speak of.
    """
    paces = [(row.place.plan, row.seconds / row.share) for row in rows if row.seconds and row.share]
    left = 0.0
    for row in rows:
        plan = row.place.plan
        if row.state in ("done", "failed") or plan.members:
            continue
        kinds = (
            [pace for other, pace in paces if other.name == plan.name],
            [pace for other, pace in paces if (other.algorithm, other.task) == (plan.algorithm, plan.task)],
            [pace for other, pace in paces if other.task == plan.task],
        )
        known = next((kind for kind in kinds if kind), None)
        if known is None:
            return None
        left += (1.0 - row.share) * sum(known) / len(known)
    return left / max(1, counts(rows)["running"])


def _progress(path: Path) -> tuple[float, float, float]:
    """Steps done, steps in all and seconds taken."""
    try:
        settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0.0, 1.0, 0.0
    row = _newest_row(path / "progress.jsonl")
    return row["steps"], settings["steps"] or default_steps(settings["episode_length"]), row["time/seconds"]


def _newest_row(log: Path) -> dict[str, float]:
    """The newest complete row of a log, if there is one; its last line may still be in the making."""
    for line in reversed(_tail(log).splitlines()[-2:]):
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            continue
    return {"steps": 0.0, "time/seconds": 0.0}


def _tail(path: Path, size: int = 20_000) -> bytes:
    """The end of a file, if it is there: hundreds of long logs are looked at every second."""
    if not path.exists():
        return b""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read()
