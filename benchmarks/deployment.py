"""What a user of a policy waits for: an action, an evaluation, the first step of a training."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import sides
from benchmarks.rows import Row, ratio_row, take_turns, value_row
from benchmarks.sizes import EVALUATED, PROBLEM, update_settings

CALLS = 2000


def untrained_agent():
    """An agent of the usual size; how well it acts does not matter here."""
    import jax

    from ccpo.agent import Agent
    from ccpo.algorithms import ccpo
    from ccpo.runs import versions
    from ccpo.runtime import Policy

    config = ccpo.Config()
    acting = ccpo.acting(config, PROBLEM, ccpo.init(config, PROBLEM, jax.random.key(0)))
    policy = Policy.create(
        acting.deploy,
        acting.net,
        PROBLEM.spec,
        algorithm="ccpo",
        behaviour_thresholds=PROBLEM.behaviour_thresholds,
        versions=versions(),
        training={},
    )
    return Agent(policy)


def measure_latency() -> Iterator[Row]:
    """`predict` of one observation, and what FSRL's actor takes for it."""
    agent, obs = untrained_agent(), np.zeros(PROBLEM.spec.observation_size, np.float32)

    def predict() -> float:
        start = time.process_time()
        for _ in range(CALLS):
            agent.predict(obs, 25.0)
        return 1e6 * (time.process_time() - start) / CALLS

    with sides.fsrl() as theirs:
        ours, fsrl = take_turns(predict, lambda: 1e6 * theirs.ask(do="act", count=500)["seconds"], repeats=9)
    yield value_row("latency", "predict, one observation", ours, unit="µs", bar=40.0)
    yield ratio_row("latency", "one observation, FSRL's actor : predict", fsrl, ours, unit="µs", bar=5.0)


def measure_evaluation() -> Iterator[Row]:
    """13 thresholds × 50 episodes on two cores, on the clock, with the start of the processes."""
    agent = untrained_agent()

    def evaluate() -> float:
        start = time.monotonic()
        agent.evaluate(EVALUATED, episodes=50, workers=2)
        return time.monotonic() - start

    what = "evaluation of 13 thresholds × 50 episodes, Ball-Circle, two cores"
    yield value_row("evaluation", what, [evaluate(), evaluate()], unit="s", bar=20.0, note="on the clock")


def measure_startup() -> Iterator[Row]:
    """`ccpo --help`; then from the start of a process to the end of the first update, cold and with a warm cache."""
    command = [str(Path(sys.executable).with_name("ccpo")), "--help"]

    def show_help() -> float:
        start = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - start

    [seconds] = take_turns(show_help, repeats=9)
    yield value_row("startup", "ccpo --help", seconds, unit="s", bar=0.5, note="on the clock")
    with tempfile.TemporaryDirectory() as cache:
        (cold, cold_cpu), *warm = [first_update(cache) for _ in range(4)]
    what, (seconds, cpu) = "first training step after start", zip(*warm, strict=True)
    note = f"on the clock; CPU time {min(cpu):.1f} s"
    yield value_row("startup", f"{what}, warm cache", seconds, unit="s", bar=5.0, note=note)
    note = f"on the clock; CPU time {cold_cpu:.1f} s"
    yield value_row("startup", f"{what}, nothing cached", [cold], unit="s", note=note)


def first_update(cache: str) -> tuple[float, float]:
    """From the start of a process until an iteration of 60 steps and one update is done: seconds, CPU seconds."""
    settings = {**update_settings(8), "rollout_length": 10, "updates_per_step": 1 / 60, "warmup_steps": 0}
    start = time.monotonic()
    with sides.ours(cache=cache) as side:
        used = side.ask(do="train", task="BallCircle", algorithm="ccpo", preset="tuned", settings=settings, turns=True)
        return time.monotonic() - start, used["cpu"]
