"""Whole trainings: against FSRL at the same sizes, by method and task, over cores, and up to a finished policy.

Steps/s are of iterations after the first, which compiles. On one core they are steps a CPU second, so that other work
on the machine does not count; over cores they are steps a second on the clock.
"""

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import sides
from benchmarks.output import machine
from benchmarks.rows import Row, rates, ratio_row, take_turns, value_row
from benchmarks.sizes import BATCH, EVALUATED, HIDDEN, UPDATES_PER_STEP, update_settings

FULL_RUN = Path(__file__).parents[1] / "results" / "bench" / "fsrl_full.json"
FULL_STEPS = 100_000
STOCK_BALL_CIRCLE = "SafetyBallCircle-v0"
TASKS = ("BallCircle", "CarCircle", "DroneCircle", "DroneRun", "AntRun")
FSRL_NAMES = {
    "ccpo": "cvpo",
    "sac_lag": "sac_lag",
    "ddpg_lag": "ddpg_lag",
    "ppo_lag": "ppo_lag",
    "trpo_lag": "trpo_lag",
}
BARS = {"ccpo": 2.0, "sac_lag": 2.0, "ddpg_lag": 2.0, "ppo_lag": 3.0, "trpo_lag": 5.0}
ON_POLICY = ("ppo_lag", "trpo_lag")
OFF_POLICY_EPISODES, ON_POLICY_EPISODES = 6, 20
"""Episodes that both sides collect before they learn."""
REPEATS = 3
TASKS_SECONDS = 135
"""After so many seconds no further pair of method and task is begun."""


def our_request(
    algorithm: str, *, sizes: dict[str, Any] | None = None, task: str = "BallCircle", preset: str = "tuned"
) -> dict[str, Any]:
    """A training of ours, long enough never to end while it is timed."""
    settings: dict[str, Any] = {"steps": 1_000_000, "warmup_steps": 0, **(sizes or {})}
    if algorithm in ON_POLICY:
        settings["behaviour_thresholds"] = (20.0,)
    return {"task": task, "algorithm": algorithm, "preset": preset, "settings": settings}


def same_sizes(algorithm: str) -> dict[str, Any]:
    """The sizes that FSRL's methods have too."""
    if algorithm in ON_POLICY:
        return {"hidden": HIDDEN, "batch": BATCH}
    if algorithm == "ccpo":
        return {"updates_per_step": UPDATES_PER_STEP, **update_settings()}
    return {"hidden": HIDDEN, "batch": BATCH, "updates_per_step": UPDATES_PER_STEP}


def fsrl_request(algorithm: str) -> dict[str, Any]:
    episodes = ON_POLICY_EPISODES if algorithm in ON_POLICY else OFF_POLICY_EPISODES
    return {"task": STOCK_BALL_CIRCLE, "method": FSRL_NAMES[algorithm], "episodes": episodes, "steps": 10 * FULL_STEPS}


def measure_fsrl() -> Iterator[Row]:
    """Updates/s and training steps/s, ours : FSRL, at the same sizes."""
    from benchmarks.learner import config
    from benchmarks.sizes import OPEN, learner

    with sides.fsrl() as theirs, sides.ours() as ours:
        closed, opened, fsrl = take_turns(
            learner(config()),
            learner(config(8), OPEN),
            lambda: theirs.ask(do="update", count=30)["seconds"],
            repeats=2 * REPEATS,
        )
        what = "updates/s, ours for all budgets : FSRL CVPO with one threshold"
        yield ratio_row("fsrl", what, rates(closed), rates(fsrl), unit="/s", bar=2.0)
        what = "updates/s, ours in an open loop with 8 thresholds : FSRL CVPO with one"
        yield ratio_row("fsrl", what, rates(opened), rates(fsrl), unit="/s", bar=2.0)
        for algorithm, bar in BARS.items():
            # Faithful on-policy methods collect as many episodes as FSRL's.
            preset = "faithful" if algorithm in ON_POLICY else "tuned"
            request = our_request(algorithm, sizes=same_sizes(algorithm), preset=preset)
            our_seconds, their_seconds = take_turns(
                ours.train(**request), theirs.train(**fsrl_request(algorithm)), repeats=REPEATS
            )
            ours.stop()
            theirs.stop()
            what = f"training steps/s on Ball-Circle, one core, {algorithm} : FSRL {FSRL_NAMES[algorithm]}"
            yield ratio_row("fsrl", what, rates(our_seconds), rates(their_seconds), unit="steps/s", bar=bar)


def measure_memory() -> Iterator[Row]:
    """Peak memory of a training of some iterations."""
    peaks = []
    for side, request in (
        (sides.ours(), our_request("ccpo", sizes=same_sizes("ccpo"))),
        (sides.fsrl(), fsrl_request("ccpo")),
    ):
        with side:
            side.ask(do="train", turns=True, **request)
            peaks.append(side.ask()["memory"])
    what = "peak memory of a training, CCPO : FSRL CVPO"
    yield ratio_row("memory", what, peaks[:1], peaks[1:], unit="MB", note="two iterations; imports and compilation in")


def measure_cores() -> Iterator[Row]:
    """CCPO end to end on Car-Circle, on the clock."""
    request = our_request("ccpo", task="CarCircle")
    with sides.ours(cores=2) as two, sides.ours(cores=1) as one:
        seconds = take_turns(two.train(clock="wall", **request), one.train(clock="wall", **request), repeats=REPEATS)
    what = "training steps/s on Car-Circle, CCPO, two cores : one"
    yield ratio_row("cores", what, *map(rates, seconds), unit="steps/s", bar=1.5, note="on the clock")


def measure_tasks() -> Iterator[Row]:
    """Training steps/s of each method on each task at our own sizes: the most asked for first, while time lasts."""
    others = [name for name in BARS if name != "ccpo"]
    pairs = [("ccpo", task) for task in TASKS] + [(name, task) for task in TASKS for name in others]
    start = time.monotonic()
    with sides.ours() as side:
        for algorithm, task in pairs:
            if time.monotonic() - start > TASKS_SECONDS:
                return
            [seconds] = take_turns(side.train(**our_request(algorithm, task=task)), repeats=2)
            side.stop()
            what = f"training steps/s, one core, {algorithm} on {task}"
            yield value_row("end_to_end", what, rates(seconds), unit="steps/s")


def measure_policy() -> Iterator[Row]:
    """From nothing to one policy for 13 thresholds, against 13 trainings of FSRL's CVPO."""
    with sides.ours(cache="off") as side:
        run = side.ask(
            do="train",
            task="BallCircle",
            algorithm="ccpo",
            preset="demo",
            settings={},
            turns=False,
            thresholds=EVALUATED,
        )
    with sides.fsrl() as side:
        [seconds] = take_turns(side.train(**fsrl_request("ccpo")), repeats=REPEATS)
    yield value_row("policy", "Avg. R over 13 thresholds, preset demo", [run["R"]], unit="", bar=640.0, at_least=True)
    yield value_row("policy", "CV over 13 thresholds, preset demo", [run["CV"]], unit="", bar=1.0)
    fsrl_cpu, source = full_run_cpu(seconds)
    what = "CPU time of 13 FSRL CVPO runs of 100,000 steps : of ours for all 13 thresholds"
    note = f"ours from start to end, nothing cached; FSRL {source}"
    yield ratio_row("policy", what, [len(EVALUATED) * fsrl_cpu], [run["cpu"]], unit="s", bar=20.0, note=note)
    first = run["first"]
    our_rate = (run["steps"] - first["steps"]) / (run["cpu"] - first["cpu"])
    what = "training steps/s on Ball-Circle, sizes free, CCPO with preset demo : FSRL CVPO"
    yield ratio_row("policy", what, len(seconds) * [our_rate], rates(seconds), unit="steps/s", bar=3.5)


def full_run_cpu(seconds_each: Sequence[float]) -> tuple[float, str]:
    """CPU seconds of a whole run of FSRL's CVPO, and whether they were measured or extrapolated."""
    if FULL_RUN.is_file():
        found = json.loads(FULL_RUN.read_text())
        if found["machine"]["processor"] == machine()["processor"]:
            return found["cpu"], f"measured once, {found['date'][:10]}"
    middle = sorted(seconds_each)[len(seconds_each) // 2]
    return FULL_STEPS * middle, f"extrapolated from {len(seconds_each)} stretches, without its start-up"


def measure_fsrl_full() -> Iterator[Row]:
    """One whole run of FSRL's CVPO, kept in a file that `measure_policy` uses."""
    with sides.fsrl() as side:
        request = fsrl_request("ccpo") | {"episodes": 10, "steps": FULL_STEPS}
        found = side.ask(do="train", turns=False, test_episodes=50, **request)
    found |= {"machine": machine(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    FULL_RUN.parent.mkdir(parents=True, exist_ok=True)
    FULL_RUN.write_text(json.dumps(found, indent=2) + "\n")
    note = f"one threshold, {found['threshold']:g}: reward {found['reward']:.0f}, cost {found['cost']:.1f}"
    yield value_row(
        "fsrl_full", "CPU time of FSRL CVPO, 100,000 steps on Ball-Circle", [found["cpu"]], unit="s", note=note
    )
