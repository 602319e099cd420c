"""The monitor against simulated deployments whose truth is known: coverage, false alarms, delay, and its file."""

import json
import math
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ccpo.confidence import binomial_tail
from ccpo.errors import CCPOError, ConfigError, FormatError, NumericalError, ThresholdError
from ccpo.monitor import _STARTS_SUM, FRACTIONS, MAX_THRESHOLDS, Monitor, _Bets
from deploy.policies import random_policy

STEPS = 200


def costs(rng: np.random.Generator, mean: float, count: int) -> np.ndarray:
    """Beta-binomial costs of 200 steps."""
    share = mean / STEPS
    return rng.binomial(STEPS, rng.beta(10 * share, 10 * (1 - share), count)).astype(float)


def new(**settings) -> Monitor:
    return Monitor(**{"confidence": 0.95, "cost_max": STEPS, **settings})


def play(monitor: Monitor, rng: np.random.Generator, mean: float, *, threshold: float, episodes: int) -> Monitor:
    for cost in costs(rng, mean, episodes):
        monitor.add(threshold, cost)
    return monitor


def no_more_than(failures: int, trials: int, error: float) -> bool:
    """Whether so many failures are no proof that each has more than this probability."""
    return 1.0 - binomial_tail(failures - 1, trials, error) > 1e-3 if failures else True


def test_intervals_hold_the_truth_at_all_times_at_once():
    """Checked after every tenth episode; one miss spoils a deployment."""
    missed, trials, threshold, mean = 0, 60, 25.0, 20.0
    beyond = np.mean(costs(np.random.default_rng(10**6), mean, 400_000) > threshold)
    for seed in range(trials):
        monitor, rng = new(), np.random.default_rng(seed)
        held = True
        for _ in range(25):
            play(monitor, rng, mean, threshold=threshold, episodes=10)
            (row,) = monitor.report().thresholds
            held &= row.cost.low <= mean <= row.cost.high
            held &= row.rate.low <= beyond <= row.rate.high
        missed += not held
    assert no_more_than(missed, trials, 0.1), missed  # two intervals of 95 % each


def test_intervals_shrink_to_the_truth():
    monitor = play(new(), np.random.default_rng(0), 20.0, threshold=25.0, episodes=3000)
    (row,) = monitor.report().thresholds
    assert row.episodes == 3000
    assert row.cost.low < row.cost.mean < row.cost.high
    assert row.cost.high - row.cost.low < 5.0
    assert row.rate.high - row.rate.low < 0.15


def test_alarms_are_rarely_false_however_long_it_runs():
    """The hardest case that is no breach: the mean cost *is* the threshold, at three thresholds in turn."""
    false, trials = 0, 60
    for seed in range(trials):
        monitor, rng = new(), np.random.default_rng(seed)
        for _ in range(40):
            for threshold in (10.0, 25.0, 60.0):
                play(monitor, rng, threshold, threshold=threshold, episodes=6)
        false += bool(monitor.alarms)
    assert no_more_than(false, trials, 0.05), false


def test_a_breach_is_proved_and_its_beginning_found():
    monitor, rng = new(), np.random.default_rng(1)
    play(monitor, rng, 20.0, threshold=25.0, episodes=300)
    assert monitor.alarms == []
    play(monitor, rng, 50.0, threshold=25.0, episodes=100)
    assert {(alarm.kind, alarm.threshold) for alarm in monitor.alarms} == {
        (kind, where) for kind in ("refuted", "drift") for where in (25.0, None)
    }
    for alarm in monitor.alarms:
        assert 300 < alarm.episode < 400
        assert 290 < alarm.onset < 330


def test_drift_that_keeps_the_promise_is_drift_only():
    monitor, rng = new(), np.random.default_rng(2)
    play(monitor, rng, 10.0, threshold=60.0, episodes=200)
    play(monitor, rng, 40.0, threshold=60.0, episodes=200)
    assert {alarm.kind for alarm in monitor.alarms} == {"drift"}


def test_pooling_proves_what_no_threshold_alone_can():
    monitor, rng = new(), np.random.default_rng(3)
    for episode in range(240):
        play(monitor, rng, 32.0 + episode % 8, threshold=25.0 + episode % 8, episodes=1)
    assert [alarm.threshold for alarm in monitor.alarms if alarm.kind == "refuted"] == [None]


def test_capital_does_not_grow_on_average_under_a_true_claim():
    """Exactly: the expected capital after n fair games is the sum of the shares given out, below 1."""
    bets, mean = _Bets(), 0.25
    for _ in range(200):
        outcomes = [1.0 + np.tile(FRACTIONS * (x / mean - 1.0), (2, 1)) for x in (0.0, 1.0)]
        bets.add((1 - mean) * outcomes[0] + mean * outcomes[1], np.ones((2, 1)))
    shares = sum(1.0 / (n * math.log(n) ** 2) for n in range(2, 202)) / _STARTS_SUM
    np.testing.assert_allclose(bets.capital.sum(axis=1), shares, rtol=1e-9)
    assert shares < 1.0
    tail = 1.0 / math.log(10**6 + 0.5)  # ∫ dn / (n log² n) from there on
    assert sum(1.0 / (n * math.log(n) ** 2) for n in range(2, 10**6 + 1)) + tail == pytest.approx(_STARTS_SUM, abs=1e-7)


def test_costs_beyond_cost_max_cost_the_upper_end_only():
    monitor = new(cost_max=50.0)
    for _ in range(50):
        monitor.add(30.0, 20.0)
    assert monitor.report().thresholds[0].cost.high < 50.0
    monitor.add(30.0, 51.0)
    assert monitor.beyond_max == 1
    assert monitor.report().thresholds[0].cost.high == math.inf


def test_a_threshold_of_nothing_is_refuted_by_the_first_costs():
    monitor = new()
    for _ in range(3):
        monitor.add(0.0, 5.0)
    assert ("refuted", 0.0) in {(alarm.kind, alarm.threshold) for alarm in monitor.alarms}


def test_steps_add_up_to_episodes():
    by_step, by_episode = new(), new()
    for cost in (3.0, 7.0):
        for _ in range(10):
            by_step.pay(cost / 10)
        by_step.end(25.0)
        by_episode.add(25.0, round(cost, 6))
    assert by_step.report().thresholds[0].cost.mean == pytest.approx(by_episode.report().thresholds[0].cost.mean)


def test_thresholds_beyond_many_are_pooled_only():
    monitor = new()
    for threshold in range(MAX_THRESHOLDS + 10):
        monitor.add(float(threshold), 0.0)
    report = monitor.report()
    assert (report.episodes, len(report.thresholds)) == (MAX_THRESHOLDS + 10, MAX_THRESHOLDS)


def test_a_monitor_that_was_saved_goes_on_as_if_it_had_not_stopped(tmp_path):
    rng, file = np.random.default_rng(4), tmp_path / "monitor.json"
    one = play(play(new(), rng, 20.0, threshold=25.0, episodes=150), rng, 40.0, threshold=50.0, episodes=50)
    one.pay(3.0)
    one.save(file)
    other = Monitor.load(file)
    assert other.report() == one.report()
    for monitor in (one, other):
        rng = np.random.default_rng(5)
        monitor.end(25.0)
        play(monitor, rng, 45.0, threshold=25.0, episodes=150)
    assert other.alarms
    assert other.report() == one.report()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ConfigError, lambda: new(confidence=0.3)),
        (ConfigError, lambda: new(confidence=math.nan)),
        (ConfigError, lambda: new(cost_max=0.0)),
        (ConfigError, lambda: new(baseline=0)),
        (NumericalError, lambda: new().add(25.0, -1.0)),
        (NumericalError, lambda: new().add(25.0, math.nan)),
        (NumericalError, lambda: new().pay("1")),
        (ThresholdError, lambda: new().add(math.inf, 1.0)),
    ],
)
def test_what_makes_no_sense_is_refused(error, call):
    with pytest.raises(error):
        call()


def test_a_policy_makes_its_monitor():
    policy = random_policy("StaticBudget")
    assert policy.monitor().cost_max == policy.env.episode_length
    assert policy.monitor(0.9, cost_max=7.0).confidence == 0.9


def mutations(state: dict, rng: np.random.Generator, count: int) -> Iterator[str]:
    """The state with one value replaced, one member gone, or its text cut or flipped."""
    odd = [None, -1, 1e308, 10**400, "x", [], {}, True, [[1.0]], 2**63]
    for _ in range(count):
        copy = json.loads(json.dumps(state))
        text = json.dumps(copy)
        kind = rng.integers(4)
        if kind == 0:
            yield text[: rng.integers(len(text))]
            continue
        if kind == 1:
            place = rng.integers(len(text))
            yield text[:place] + chr(rng.integers(32, 127)) + text[place + 1 :]
            continue
        node, key = copy, None
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = keys[rng.integers(len(keys))]
            if not isinstance(node[key], dict | list) or rng.random() < 0.3:
                break
            node = node[key]
        if key is not None and kind == 2:
            node[key] = odd[rng.integers(len(odd))]
        elif key is not None:
            del node[key]
        yield json.dumps(copy)


def test_damaged_monitors_are_refused_or_harmless(tmp_path):
    file, rng = tmp_path / "monitor.json", np.random.default_rng(6)
    play(new(baseline=5), rng, 30.0, threshold=10.0, episodes=20).save(file)
    state = json.loads(file.read_text())
    refused = 0
    for text in mutations(state, rng, 300):
        file.write_text(text)
        try:
            monitor = Monitor.load(file)
            monitor.add(10.0, 5.0)
            monitor.report()
        except CCPOError:
            refused += 1
    assert refused > 150
    with pytest.raises(FormatError, match="No such file"):
        Monitor.load(tmp_path / "none.json")


def test_an_episode_costs_little():
    """50 µs on an idle core; processor time, and twice that, since this machine may be busy."""
    monitor, rng = new(), np.random.default_rng(7)
    values = costs(rng, 20.0, 1000).tolist()
    play(monitor, rng, 20.0, threshold=25.0, episodes=200)
    began = time.process_time()
    for value in values:
        monitor.add(25.0, value)
    assert (time.process_time() - began) / len(values) < 100e-6
