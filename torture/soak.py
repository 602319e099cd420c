"""A soak: many short runs in one process, then many pages of one playground; memory, open files and threads over time.

python -m torture.soak --minutes 30 --out results/soak

The page's part opens sessions twenty at a time, plays, and lets half of them vanish without a word.
"""

import argparse
import csv
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ccpo.deploy.session import Session
from ccpo.deploy.watching import Actor, optimal_actor, trained_actor
from torture.cases import SETTINGS, TASK


@dataclass(frozen=True)
class Reading:
    """What a process holds after a round."""

    part: str
    round: int
    minutes: float
    megabytes: float
    files: int
    threads: int


def reading(part: str, index: int, began: float) -> Reading:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    size = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    files = len(list(Path("/proc/self/fd").iterdir()))
    minutes = (time.monotonic() - began) / 60
    return Reading(part, index, round(minutes, 2), round(size, 1), files, threading.active_count())


def trainings(deadline: float) -> Iterator[Reading]:
    """One run after the other, each in a folder that goes again."""
    import ccpo

    began, index = time.monotonic(), 0
    while time.monotonic() < deadline:
        folder = tempfile.mkdtemp(prefix="ccpo-soak-")
        try:
            ccpo.train(TASK, out=folder, seed=index, workers=2 * (index % 2), **SETTINGS)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        yield reading("trainings", index, began)
        index += 1


def pages(actor: Actor, deadline: float, *, at_once: int = 20) -> Iterator[Reading]:
    """Sessions opened, played and closed; every other one restarts a few times first."""
    began, index = time.monotonic(), 0
    while time.monotonic() < deadline:
        sessions = [Session([actor]) for _ in range(at_once)]
        for seed, session in enumerate(sessions):
            session.handle({"type": "open", "actors": [0], "thresholds": [actor.threshold_range[1]], "seed": seed})
            for _ in range(1 + 3 * (seed % 2)):
                session.handle({"type": "restart", "seed": seed})
                session.advance()
                session.advance()
        for session in sessions:
            session.close()
        yield reading("pages", index, began)
        index += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of each part (default: %(default)s)")
    parser.add_argument("--parts", default="trainings,pages")
    parser.add_argument("--actor", default="pretrained/BallCircle", help="whom pages watch; 'optimum' needs no Bullet")
    parser.add_argument("--out", type=Path, default=Path("results/soak"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "soak.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Reading)], lineterminator="\n")
        writer.writeheader()
        for part in options.parts.split(","):
            deadline = time.monotonic() + 60 * options.minutes
            if part == "pages":
                actor = optimal_actor("StaticBudget") if options.actor == "optimum" else trained_actor(options.actor)
                readings = pages(actor, deadline)
            else:
                readings = trainings(deadline)
            for each in readings:
                writer.writerow(asdict(each))
                file.flush()
                print(each, flush=True)


if __name__ == "__main__":
    main()
