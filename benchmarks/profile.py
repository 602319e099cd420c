"""Where the time goes: of an update by kind of operation, of TRPO-Lag by what a step of training consists of.

The first reads the runtime's own record of every operation (`jax.profiler`); shares are of the time recorded, without
what lies between operations. The second times TRPO-Lag's pieces one by one, and beside them the simulator's own step,
which no training can go below.
"""

import gzip
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.learner import config
from benchmarks.peers import ON_POLICY_EPISODES
from benchmarks.rows import Row, take_turns, value_row
from benchmarks.sizes import (
    BATCH,
    HIDDEN,
    PROBLEM,
    ROLLOUT,
    learn_and_material,
    learner,
    made_up_rollout,
    made_up_statistics,
)
from ccpo import replay as replays
from ccpo.algorithms import trpo_lag
from ccpo.envs.registry import resolve
from ccpo.envs.workers import Collector, Order
from ccpo.maths import onpolicy
from ccpo.types import Experience, Problem

PRODUCTS, RANDOM_NUMBERS, LOOPS, COPIES, ELEMENTWISE = KINDS = (
    "matrix products, with what is fused into them",
    "random numbers",
    "loops: the dual, searches",
    "copies and transposes",
    "activations, sums, optimiser and other elementwise work",
)
REPEATS = 3


def measure() -> Iterator[Row]:
    """Shares of an update by kind of operation, then microseconds of TRPO-Lag a step of training."""
    learn, material = learn_and_material(config(), PROBLEM)
    kinds = kinds_of_operations(learn.lower(*material).compile().as_text())
    update = learner(config())
    update()
    samples = [_shares(update, kinds) for _ in range(REPEATS)]
    for kind in KINDS:
        yield value_row("profile", f"of an update: {kind}", [100 * shares[kind] for shares in samples], unit="%")
    yield from _trpo()


def _shares(update: Callable[[], float], kinds: dict[str, str]) -> Counter:
    """Of the time that the runtime records for operations, the share of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            update()
        [file] = Path(folder).rglob("perfetto_trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    spent = own_time([event for event in events if event.get("args", {}).get("hlo_module") == "jit_learn"])
    shares: Counter = Counter()
    for operation, microseconds in spent.items():
        shares[kinds.get(operation, ELEMENTWISE)] += microseconds / spent.total()
    return shares


def kinds_of_operations(program: str) -> dict[str, str]:
    """Of a compiled program's text: each instruction's kind."""
    with_product, computation = set(), ""
    for line in program.splitlines():
        if line.endswith("{"):
            computation = line.split()[0]
        elif re.search(r"\b(dot|convolution)\(", line):
            with_product.add(computation)
    kinds = {}
    for line in program.splitlines():
        found = re.match(r"\s+(?:ROOT )?%?(\S+) = .*?\b([a-z][a-z-]*)\(", line)
        if not found:
            continue
        name, opcode = found.groups()
        origin = re.search(r'op_name="([^"]*)"', line)
        called = re.search(r"calls=(%\S+?),", line)
        if opcode == "dot" or (called and called[1] in with_product):
            kinds[name] = PRODUCTS
        elif origin and re.search(r"threefry|_uniform|_normal|random_bits", origin[1]):
            kinds[name] = RANDOM_NUMBERS
        elif opcode == "while":
            kinds[name] = LOOPS
        elif re.match(r"(wrapped_)?(copy|transpose)", name):
            kinds[name] = COPIES
        else:
            kinds[name] = ELEMENTWISE
    return kinds


def own_time(events: list[dict[str, Any]]) -> Counter:
    """Microseconds of each operation, without those that ran inside it."""
    spent: Counter = Counter()
    for thread in {event["tid"] for event in events}:
        running: list[tuple[float, str]] = []
        own = sorted((e for e in events if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"]))
        for event in own:
            while running and running[-1][0] <= event["ts"]:
                running.pop()
            name = event["args"]["hlo_op"]
            spent[name] += event["dur"]
            if running:
                spent[running[-1][1]] -= event["dur"]
            running.append((event["ts"] + event["dur"], name))
    return spent


def _trpo() -> Iterator[Row]:
    factory = resolve("BallCircle")
    problem = Problem(factory.spec, (20.0,), PROBLEM.threshold_range, ON_POLICY_EPISODES, 0)
    settings = trpo_lag.Config(hidden=HIDDEN, batch=BATCH)
    steps = ROLLOUT * problem.lanes
    pieces = _update_pieces(settings, problem)
    sides = {
        "the simulator's own step": _simulator(factory().env.unwrapped),
        "collecting, with the simulator": _collecting(factory, settings, problem),
        "an update's advantages": pieces["advantages"],
        "an update's steps of the policy": pieces["policy"],
        "an update's steps of the values": pieces["values"],
    }
    for (name, _), samples in zip(sides.items(), take_turns(*sides.values(), repeats=REPEATS), strict=True):
        scale = 1e6 if name.startswith("the simulator") else 1e6 / steps
        what = f"of a step of training with TRPO-Lag: {name}"
        yield value_row("profile", what, [scale * x for x in samples], unit="µs")


def _simulator(env: Any) -> Callable[[], float]:
    def seconds_each() -> float:
        env.reset(seed=0)
        start = time.process_time()
        for _ in range(env.episode_length):
            env._simulate()
        return (time.process_time() - start) / env.episode_length

    return seconds_each


def _collecting(factory: Any, settings: trpo_lag.Config, problem: Problem) -> Callable[[], float]:
    acting = trpo_lag.acting(settings, problem, trpo_lag.init(settings, problem, jax.random.key(0)))
    collector = Collector(factory, problem, seed=0, steps=ROLLOUT, workers=0)
    iteration = 0

    def seconds() -> float:
        nonlocal iteration
        collector.start(Order(iteration, acting, random=False, fresh=iteration == 0, cut=False, correlation=0.0))
        iteration += 1
        start = time.process_time()
        collector.wait()
        return time.process_time() - start

    return seconds


def _update_pieces(settings: trpo_lag.Config, problem: Problem) -> dict[str, Callable[[], float]]:
    state = trpo_lag.init(settings, problem, jax.random.key(0))
    statistics = made_up_statistics(problem)
    replay = replays.init(problem.spec, slots=ROLLOUT, lanes=problem.lanes)
    experience = Experience(made_up_rollout(problem), statistics, replay, np.float32(0.5))
    observe = jax.jit(lambda state: onpolicy.observe(settings, problem, state, experience)[:2])
    state, batch = observe(state)
    rows = jax.random.randint(jax.random.key(0), (settings.value_steps, settings.batch), 0, len(batch.advantage))

    def fit(state: onpolicy.Learner, index: jax.Array) -> tuple[onpolicy.Learner, Any]:
        return onpolicy.fit_values(settings, state, onpolicy.take(batch, index))

    def timed(function: Callable, times: int) -> Callable[[], float]:
        def seconds() -> float:
            start = time.process_time()
            for _ in range(times):
                jax.block_until_ready(function(state))
            return time.process_time() - start

        return seconds

    return {
        "advantages": timed(observe, 1),
        "policy": timed(jax.jit(lambda state: trpo_lag.improve(settings, state, batch)), settings.repeats),
        "values": timed(jax.jit(lambda state: jax.lax.scan(fit, state, rows)), settings.repeats),
    }
