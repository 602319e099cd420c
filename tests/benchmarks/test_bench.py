"""The harness on parts that take no time: table, ratios, bars, --only, saving; and the floor's list of products."""

import csv
import json
import math
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.__main__ import EXTRA, PARTS, main
from benchmarks.output import cells, markdown
from benchmarks.rows import quartiles, take_turns, value_row
from benchmarks.running import Part, run_parts
from fake_parts import good

from benchmarks import floor, profile, sizes
from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import model

FAKE = {name: Part("fake_parts", name, 20.0, "fake") for name in ("good", "broken", "endless")}


def test_quartiles_and_ratios():
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    speed, latency = good()
    # pairs first, then the median: what both sides met at the same time is compared
    assert (speed.value, speed.low, speed.high) == (4.0, 3.0, 5.0)
    assert (speed.first, speed.second) == (8.0, 2.0)
    assert speed.met
    assert speed.margin == pytest.approx(4.0 / 3.5)
    assert latency.met is False
    assert latency.margin == pytest.approx(40.0 / 50.0)
    assert value_row("policy", "CV", [0.0], unit="", bar=1.0).margin == math.inf


def test_sides_take_turns_and_the_first_turn_does_not_count():
    calls = []

    def side(name):
        return lambda: calls.append(name) or float(len(calls))

    assert take_turns(side("a"), side("b"), repeats=2) == [[3.0, 5.0], [4.0, 6.0]]
    assert calls == ["a", "b", "a", "b", "a", "b"]


def test_failures_keep_what_was_measured():
    outcome = run_parts({"broken": FAKE["broken"]})
    assert [row.what for row in outcome.rows] == ["before"]
    assert "no luck" in outcome.failures["broken"]


def test_a_part_that_takes_too_long_is_stopped():
    start = time.monotonic()
    outcome = run_parts({"endless": FAKE["endless"]}, patience=0.1)
    assert time.monotonic() - start < 30
    assert "stopped after 2 s" in outcome.failures["endless"]


def test_command_prints_and_saves(tmp_path, capsys):
    assert main(["--only", "good", "--out", str(tmp_path)], FAKE) == 0
    printed = capsys.readouterr().out
    assert "ours : theirs" in printed
    assert "missed" in printed
    with (tmp_path / "bench-good.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(float(row["value"]), row["met"]) for row in rows] == [(4.0, "True"), (50.0, "False")]
    saved = json.loads((tmp_path / "bench-good.json").read_text())
    assert saved["machine"]["cores"] > 0
    assert saved["versions"]["python"]
    assert len(saved["rows"]) == 2
    assert (tmp_path / "bench-good.md").read_text() == markdown(list(good()))
    assert (tmp_path / "bench-good.png").stat().st_size > 1000


def test_unknown_parts_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "good,speed"], FAKE)
    assert "unknown parts: speed" in capsys.readouterr().err


def test_cells_say_what_the_bar_is():
    speed, latency = good()
    assert cells(speed) == ("good", "ours : theirs", "8 steps/s", "2 steps/s", "4 ×", "3–5", "≥ 3.5", "met")
    assert cells(latency) == ("good", "latency", "", "", "50 µs", "one run", "≤ 40", "missed")


def test_the_whole_benchmark_is_bounded_to_20_minutes():
    assert sum(part.seconds for part in PARTS.values()) <= 20 * 60
    assert not PARTS.keys() & EXTRA.keys()


@pytest.mark.parametrize("thresholds", [1, 4, 8, 16, 64])
def test_an_update_has_the_same_size_for_any_number_of_thresholds(thresholds):
    config = ccpo.Config(**sizes.update_settings(thresholds))
    assert (config.conditions, config.states) == (thresholds, sizes.STATES)
    flops = [_flops(sizes.OPEN, **sizes.update_settings(count)) for count in (1, thresholds)]
    assert flops[0] == flops[1]


def _flops(problem, **settings):
    pieces = floor.products(ccpo.Config(**(sizes.update_settings() | settings)), problem)
    return sum(product.flops for piece in pieces.values() for product in piece)


def test_floor_counts_the_products_of_an_mlp():
    wanted = floor.forwards(7, (3, 5, 2)) + floor.backwards(7, (3, 5, 2))
    forward = 2 * 7 * (3 * 5 + 5 * 2)
    # backwards: every weight once more, every input but the first once more
    assert sum(product.flops for product in wanted) == 2 * forward + 2 * 7 * 5 * 2


def test_floor_follows_the_settings():
    hidden, features, action = 128, 32, 2
    shape = {"hidden": (hidden, hidden), "features": features, "horizon": "finite"}
    rows = sizes.STATES * sizes.ACTION_SAMPLES
    one = action * hidden + hidden * hidden + hidden * features + features
    for problem in (sizes.PROBLEM, sizes.OPEN):
        assert _flops(problem, action_samples=32, **shape) - _flops(problem, **shape) == 2 * 2 * rows * one
        assert _flops(problem, batch=512, **shape) > _flops(problem, **shape)
    # A closed loop: two numbers more for the actor, one more for z and V̄, and V̄ in the targets too.
    batch, states, small = sizes.BATCH, sizes.STATES, model.EMBEDDING_HIDDEN
    actor = 2 * hidden * (batch + 3 * states)  # targets forwards; pairs twice forwards, weights once backwards
    embedding = small * 2 * (2 * batch + batch + states)
    mean_value = small * 2 * batch + batch * (3 * small + small * small + small)
    assert _flops(sizes.PROBLEM, **shape) - _flops(sizes.OPEN, **shape) == 2 * (actor + embedding + mean_value)


@pytest.mark.parametrize("problem", [sizes.PROBLEM, sizes.OPEN], ids=["closed", "open"])
def test_floor_runs(problem):
    config = ccpo.Config(batch=4, conditions=2, states=4, action_samples=2, hidden=(4,), features=2)
    for wanted in floor.products(config, problem).values():
        assert floor.floor(wanted, repetitions=2)() > 0


@pytest.mark.parametrize("problem", [sizes.PROBLEM, sizes.OPEN], ids=["closed", "open"])
def test_an_update_of_made_up_experience_runs(problem):
    config = ccpo.Config(
        batch=4, conditions=2, states=4, action_samples=2, hidden=(4,), features=2, updates_per_step=1e-3
    )
    assert sizes.learner(config, problem)() > 0


def test_an_operation_s_own_time_is_without_what_ran_inside_it():
    def event(name, start, duration, thread=0):
        return {"tid": thread, "ts": start, "dur": duration, "args": {"hlo_op": name}}

    loop = [event("while", 0, 10), event("dot", 1, 3), event("dot", 5, 2), event("add", 12, 1), event("dot", 0, 4, 1)]
    assert profile.own_time(loop) == {"while": 5, "dot": 9, "add": 1}


def test_operations_are_told_apart_by_what_they_do():
    program = """
%fused_1 (p: f32[2,2]) -> f32[2,2] {
  ROOT %dot.1 = f32[2,2]{1,0} dot(%p, %p), lhs_contracting_dims={1}
}
ENTRY %main (p: f32[2,2]) -> f32[2,2] {
  %ynn.1 = f32[2,2]{1,0} fusion(%p), kind=kCustom, calls=%fused_1, metadata={op_name="jit(learn)/dot"}
  %while.1 = (s32[], u32[4]{0}) while(%t), condition=%c, body=%b, metadata={op_name="jit(learn)/jit(_uniform)/while"}
  %while.2 = (f32[8]{0}) while(%u), condition=%c, body=%b, metadata={op_name="jit(learn)/vmap()/while"}
  %copy.3 = f32[2,2]{0,1} copy(%ynn.1)
  ROOT %add.1 = f32[2,2]{1,0} add(%copy.3, %ynn.1)
}
"""
    products, randoms, loops, copies, rest = profile.KINDS
    found = profile.kinds_of_operations(program)
    expected = {"ynn.1": products, "while.1": randoms, "while.2": loops, "copy.3": copies, "add.1": rest}
    assert {name: found[name] for name in expected} == expected
