"""The learner by itself: an update and its pieces against their floors, and over the number of thresholds."""

from collections.abc import Iterator

from benchmarks.floor import Product, floor, products
from benchmarks.rows import Row, ratio_row, take_turns, value_row
from benchmarks.sizes import OPEN, PROBLEM, ROLLOUT, learner, piece, update_settings
from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import inference, values

UPDATES = 60
"""Long enough to time, short enough to take turns."""
UPDATES_PER_STEP = UPDATES / (ROLLOUT * PROBLEM.lanes)
THRESHOLDS = (1, 4, 16, 64)
REPEATS = 7


def config(thresholds: int = 1) -> ccpo.Config:
    return ccpo.Config(updates_per_step=UPDATES_PER_STEP, **update_settings(thresholds))


def _critics(config, problem, state, experience, key):
    return values.update_critics(config, problem, state, experience, key)[0]


def _policy(config, problem, state, experience, key):
    return inference.update_policy(config, problem, state, experience, key)[0]


def measure_update(thresholds: int = 8) -> Iterator[Row]:
    """Update time : floor, both in this process; the same for its two large pieces alone, and for the open loop."""
    settings, of_open = config(), config(thresholds)
    pieces = products(settings, PROBLEM)
    whole = ("update time : its floor", learner(settings), _together(pieces), 1.4)
    what = f"update time : its floor, open loop with {thresholds} thresholds"
    opened = (what, learner(of_open, OPEN), _together(products(of_open, OPEN)), 1.4)
    alone = [
        (f"{name} alone : {their} floor", piece(settings, body, repetitions=UPDATES), pieces[name], None)
        for name, body, their in (("critics", _critics, "their"), ("policy", _policy, "its"))
    ]
    for what, ours, wanted, bar in (whole, *alone, opened):
        took, bound = take_turns(
            _milliseconds(ours), _milliseconds(floor(wanted, repetitions=UPDATES)), repeats=REPEATS
        )
        flops = sum(product.flops for product in wanted) / 1e6
        note = f"the floor is {flops:.0f} MFLOP at {flops / min(bound):.0f} GFLOP/s at best"
        yield ratio_row("update", what, took, bound, unit="ms", bar=bar, at_least=False, note=note)


def _together(pieces: dict[str, list[Product]]) -> list[Product]:
    return [product for group in pieces.values() for product in group]


def measure_thresholds() -> Iterator[Row]:
    """Update time of the open loop with several numbers of thresholds, pairs staying the same in number."""
    sides = [_milliseconds(learner(config(count), OPEN)) for count in THRESHOLDS]
    samples = dict(zip(THRESHOLDS, take_turns(*sides, repeats=REPEATS), strict=True))
    fewest, most = THRESHOLDS[0], THRESHOLDS[-1]
    for count in THRESHOLDS:
        yield value_row("thresholds", f"update with {count} thresholds", samples[count], unit="ms")
    what = f"update time with {most} thresholds : with {fewest}"
    yield ratio_row("thresholds", what, samples[most], samples[fewest], unit="ms", bar=1.5, at_least=False)


def measure_seeds(seeds: int = 4) -> Iterator[Row]:
    """Several seeds in one program against as many alone, with networks as defined and with small ones."""
    small = {"hidden": (32, 32), "batch": 32, "states": 32, "action_samples": 4}
    for name, settings in (("defined sizes", update_settings()), ("small networks", small)):
        each = ccpo.Config(updates_per_step=UPDATES_PER_STEP, **settings)
        alone, together = take_turns(
            _milliseconds(learner(each)), _milliseconds(learner(each, seeds=seeds)), repeats=REPEATS
        )
        what = f"update of {seeds} seeds alone : in one program, {name}"
        yield ratio_row("seeds", what, [seeds * x for x in alone], together, unit="ms", note="one core")


def _milliseconds(seconds):
    return lambda: 1e3 * seconds()
