"""A live monitor: does the promise "mean cost ≤ threshold" still hold in operation? NumPy only.

    monitor = policy.monitor(confidence=0.95)
    alarms = monitor.add(threshold=25.0, cost=19.0)      # after each episode
    monitor.report().thresholds[0].cost                  # an interval of the mean cost, valid whenever one looks

**What is told**, by betting (`ccpo.confidence`), from every episode on and after each of them:

- an interval for the mean cost and one for the rate of episodes beyond the threshold, of each threshold. The truth lies
  in it *at all times at once* with probability ≥ `confidence`, each interval taken alone.
- the alarm "refuted": the mean cost is above the threshold. The alarm "drift": it is above what the first `baseline`
  episodes of that threshold can explain. Both are told per threshold and pooled over all of them. If neither is true,
  *any* alarm is ever raised with probability ≤ 1 − `confidence`, however long the monitor runs.

**What is assumed**: given what came before, each episode's mean cost at a threshold is the same (for the intervals) or
no larger than the threshold or the baseline's mean (for the silence of alarms). Episodes need not be independent.
Costs are cut at `cost_max`. A cut cost only makes alarms rarer, so these never depend on it; the upper end of the
interval does, and becomes infinite once an episode was beyond.

A bet begins anew at every episode t with the share w(t) ∝ 1/((t + 1) log²(t + 1)) of its capital, as the change may
come at any time: M ← (M + w(t)) · (1 + f (x/m − 1)) for fractions f of what can be staked. Σ w = 1, so M is bounded by
an e-process, and exceeds 1/δ with probability ≤ δ.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ccpo.confidence import LARGEST_STAKE, TINY, log_gain_above, log_gain_below
from ccpo.errors import ConfigError, FormatError, NumericalError, ThresholdError
from ccpo.policy_file import MAX_HEADER_BYTES, PathLike, is_number, parse_json, write_atomically
from ccpo.types import LARGEST

FORMAT, FORMAT_VERSION = "ccpo-monitor", 1
MAX_THRESHOLDS = 64
"""Thresholds that are told apart; the episodes of others are pooled only."""
BASELINE = 100
GRID = np.linspace(0.0, 1.0, 129) ** 2
"""Means that the intervals are made of: fine where costs are small."""
FRACTIONS = LARGEST_STAKE * 0.5 ** np.arange(8)
ROUNDING = 1e-9
"""By which sums of costs may exceed what they are equal to."""
CEILING = 1e200
"""Capital beyond which counting on would overflow."""
_STARTS_SUM = 2.1097428012368919745
"""Σ 1/(n log² n) over n ≥ 2."""
KINDS = ("refuted", "drift")
_COST, _RATE = 0, 1


class Alarm(NamedTuple):
    """Something that was proved, to the monitor's confidence."""

    kind: str
    """"refuted": the mean cost is above the threshold; "drift": it is above the baseline."""
    threshold: float | None
    """None: pooled over all thresholds."""
    episode: int
    """When it was raised: the number of the episode, of this threshold or of all, from 1."""
    onset: int
    """From which episode on the excess shows most, counted likewise."""


class Interval(NamedTuple):
    """A confidence interval that is valid at all times."""

    low: float
    mean: float
    high: float


class ThresholdReport(NamedTuple):
    """What is known of one threshold."""

    threshold: float
    episodes: int
    cost: Interval
    rate: Interval
    """Of episodes that cost more than the threshold."""


class Report(NamedTuple):
    """What is known after so many episodes."""

    episodes: int
    confidence: float
    alarms: tuple[Alarm, ...]
    thresholds: tuple[ThresholdReport, ...]


class _Bets:
    """Bets against "the mean is at most m", one row for each kind of alarm: capital, and where its best part began."""

    def __init__(self) -> None:
        shape = (len(KINDS), len(FRACTIONS))
        self.count = 0
        self.games = np.zeros((len(KINDS), 1))
        """Of each row, since it has begun."""
        self.capital, self.best = np.zeros(shape), np.zeros(shape)
        self.onset = np.zeros(shape, np.int64)

    def add(self, growth: np.ndarray, begun: np.ndarray) -> list[float]:
        """Capital after a game that grows each stake so; rows that have not `begun` stay as they are."""
        self.count += 1
        self.games += begun
        number = np.maximum(self.games, 1.0) + 1.0
        share = begun / (len(FRACTIONS) * _STARTS_SUM * number * np.log(number) ** 2)
        self.onset[share > self.best] = self.count
        self.best = np.minimum(np.maximum(self.best, share) * growth, CEILING)
        self.capital = np.minimum((self.capital + share) * growth, CEILING)
        return self.capital.sum(axis=1).tolist()

    def began(self, row: int) -> int:
        return int(self.onset[row, self.best[row].argmax()])


class _Watch:
    """One threshold: its intervals, its baseline and its bets."""

    def __init__(self) -> None:
        self.bets = _Bets()
        self.gains = np.zeros((2, 2, len(GRID)))
        """log capital against [cost, rate] × ["the mean is at most m", "the mean is at least m"]."""
        self.total, self.squares = [0.0, 0.0], [0.0, 0.0]
        self.reference: float | None = None
        """The largest mean that the baseline's episodes leave possible, as a share of cost_max."""

    def add(self, values: tuple[float, float], error: float) -> None:
        """Bet on the next cost and on whether it was beyond; the stakes know only of what came before."""
        count, goal = self.bets.count + 1, 2.0 * math.log(2.0 / error)
        shrink = goal / (count * math.log(count + 1.0))
        stakes = np.empty((2, 1))
        for row, value in enumerate(values):
            stakes[row] = math.sqrt(shrink * count / (0.25 + self.squares[row]))
            mean = (0.5 + self.total[row]) / count
            self.total[row] += value
            self.squares[row] += (value - mean) ** 2
        column = np.array(values)[:, None]
        self.gains[:, 0] += log_gain_below(column, GRID, stakes)
        self.gains[:, 1] += log_gain_above(column, GRID, stakes)

    def interval(self, row: int, error: float) -> tuple[float, float, float]:
        """The means that neither bet has refuted, and the mean seen; capital is monotone in m, so it is an interval."""
        return self._low(row, error / 2.0), self.total[row] / self.bets.count, self.high(row, error / 2.0)

    def _low(self, row: int, error: float) -> float:
        refuted = np.flatnonzero(self.gains[row, 0] >= math.log(1.0 / error))
        return float(GRID[refuted[-1]]) if refuted.size else 0.0

    def high(self, row: int, error: float) -> float:
        refuted = np.flatnonzero(self.gains[row, 1] >= math.log(1.0 / error))
        return float(GRID[refuted[0]]) if refuted.size else 1.0


class Monitor:
    """Watches the costs of a policy's episodes; see the module."""

    def __init__(self, *, confidence: float, cost_max: float, baseline: int = BASELINE) -> None:
        if not is_number(confidence) or not 0.5 <= confidence < 1.0:
            raise ConfigError(f"confidence={confidence!r:.60} must be at least 0.5 and below 1, such as 0.95")
        if not is_number(cost_max) or not 0.0 < cost_max <= LARGEST:
            raise ConfigError(f"cost_max={cost_max!r:.60} must be a number above 0 and at most {LARGEST:g}")
        if type(baseline) is not int or not 1 <= baseline <= 10**9:
            raise ConfigError(f"baseline={baseline!r:.60} must be a whole number of episodes ≥ 1, such as {BASELINE}")
        self.confidence, self.cost_max, self.baseline = float(confidence), float(cost_max), baseline
        self.beyond_max = 0
        """Episodes that cost more than `cost_max`."""
        self.alarms: list[Alarm] = []
        self._pooled = _Bets()
        self._watches: dict[float, _Watch] = {}
        self._paid = 0.0

    @property
    def episodes(self) -> int:
        return self._pooled.count

    def pay(self, cost: float) -> None:
        """Account for one step of an episode; `end` closes the episode."""
        self._paid += _checked(cost, NumericalError, "cost")

    def end(self, threshold: float) -> list[Alarm]:
        """The episode that was paid step by step is over."""
        alarms = self.add(threshold, self._paid)
        self._paid = 0.0
        return alarms

    def add(self, threshold: float, cost: float) -> list[Alarm]:
        """Take in a finished episode; the alarms that it raises are returned, and kept in `alarms`."""
        threshold = _checked(threshold, ThresholdError, "threshold")
        cost = _checked(cost, NumericalError, "cost")
        self.beyond_max += cost > self.cost_max
        share = min(cost / self.cost_max, 1.0)
        watch = self._watches.get(threshold)
        if watch is None and len(self._watches) < MAX_THRESHOLDS:
            watch = self._watches[threshold] = _Watch()
        reference = watch.reference if watch else None
        # a promise of nothing at all is tested as one of almost nothing
        claims = np.array([threshold / self.cost_max, 1.0 if reference is None else reference])
        growth = 1.0 + np.multiply.outer(share / np.clip(claims, TINY, 1.0) - 1.0, FRACTIONS)
        begun = np.array([[1.0], [0.0 if reference is None else 1.0]])
        if reference is None:
            growth[1] = 1.0
        raised = self._judge(None, self._pooled, self._pooled.add(growth, begun), 1.0)
        if watch:
            order = 6.0 / (math.pi * (1 + list(self._watches).index(threshold))) ** 2
            watch.add((share, float(cost > threshold * (1.0 + ROUNDING))), 1.0 - self.confidence)
            raised += self._judge(threshold, watch.bets, watch.bets.add(growth, begun), order)
            if watch.bets.count == self.baseline:
                watch.reference = watch.high(_COST, (1.0 - self.confidence) / 4.0 * order)
        self.alarms += raised
        return raised

    def _judge(self, threshold: float | None, bets: _Bets, capital: list[float], order: float) -> list[Alarm]:
        """Half of the error is for refuted promises and half for drift, half of which is for its baselines; half of
        what is left is for the pooled alarms, and half for those of thresholds, shared out by their `order`."""
        error, raised = 1.0 - self.confidence, []
        for row, kind in enumerate(KINDS):
            if capital[row] * error * order < (4.0, 8.0)[row]:
                continue
            if all((alarm.kind, alarm.threshold) != (kind, threshold) for alarm in self.alarms):
                raised.append(Alarm(kind, threshold, bets.count, bets.began(row)))
        return raised

    def report(self) -> Report:
        """Intervals and alarms as they stand; thresholds in rising order."""
        error = 1.0 - self.confidence
        rows = []
        for threshold, watch in sorted(self._watches.items()):
            low, mean, high = (share * self.cost_max for share in watch.interval(_COST, error))
            cost = Interval(low, mean, math.inf if self.beyond_max else high)
            rows.append(ThresholdReport(threshold, watch.bets.count, cost, Interval(*watch.interval(_RATE, error))))
        return Report(self.episodes, self.confidence, tuple(self.alarms), tuple(rows))

    def save(self, path: PathLike) -> None:
        """Write the whole state as JSON; a monitor that was loaded goes on as if it had never stopped."""
        state = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "confidence": self.confidence,
            "cost_max": self.cost_max,
            "baseline": self.baseline,
            "beyond_max": self.beyond_max,
            "paid": self._paid,
            "alarms": [alarm._asdict() for alarm in self.alarms],
            "pooled": _bets_as_dict(self._pooled),
            "thresholds": [
                {
                    "threshold": threshold,
                    "bets": _bets_as_dict(watch.bets),
                    "gains": watch.gains.tolist(),
                    "total": watch.total,
                    "squares": watch.squares,
                    "reference": watch.reference,
                }
                for threshold, watch in self._watches.items()
            ],
        }
        write_atomically(path, json.dumps(state, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: PathLike) -> "Monitor":
        """A monitor as it was saved; anything but an intact file is a FormatError."""
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_THRESHOLDS * MAX_HEADER_BYTES)
            return cls._from_state(parse_json(data, "monitor"))
        except OSError as error:
            raise FormatError(f"cannot load monitor {str(path)!r}: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"cannot load monitor {str(path)!r}: it is damaged or edited ({error!r:.80})") from None

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> "Monitor":
        given = (state["format"], state["format_version"])
        if given != (FORMAT, FORMAT_VERSION):
            raise FormatError(f"format and version are {given!r:.60}, expected {(FORMAT, FORMAT_VERSION)}")
        monitor = cls(confidence=state["confidence"], cost_max=state["cost_max"], baseline=state["baseline"])
        monitor.beyond_max, monitor._paid = _count(state["beyond_max"]), _finite(state["paid"])
        monitor._pooled = _bets_from(state["pooled"])
        for data in state["thresholds"][:MAX_THRESHOLDS]:
            watch = monitor._watches[_checked(data["threshold"], FormatError, "threshold")] = _Watch()
            watch.bets = _bets_from(data["bets"])
            watch.gains = _array(data["gains"], watch.gains.shape)
            watch.total, watch.squares = ([_finite(value) for value in data[name]] for name in ("total", "squares"))
            reference = data["reference"]
            watch.reference = None if reference is None else min(max(_finite(reference), 0.0), 1.0)
            if len(watch.total) != 2 or len(watch.squares) != 2 or min(watch.squares) < 0 or not watch.bets.count:
                raise FormatError("the sums of a threshold do not fit")
        for alarm in state["alarms"]:
            threshold = alarm["threshold"]
            if alarm["kind"] not in KINDS or (threshold is not None and not is_number(threshold)):
                raise FormatError(f"{alarm!r:.60} is no alarm")
            monitor.alarms.append(Alarm(alarm["kind"], threshold, _count(alarm["episode"]), _count(alarm["onset"])))
        return monitor


def _checked(value: Any, error: type[Exception], name: str) -> float:
    if not is_number(value) or not 0.0 <= value <= LARGEST:
        raise error(f"{name} is {value!r:.60}; give a number from 0 to {LARGEST:g}")
    return float(value)


def _finite(value: Any) -> float:
    if not is_number(value):
        raise FormatError(f"{value!r:.40} is no number")
    return float(value)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise FormatError(f"{value!r:.40} is no count")
    return value


def _array(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.array(values, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise FormatError(f"an array has shape {array.shape}, expected finite numbers of {shape}")
    return array


def _bets_as_dict(bets: _Bets) -> dict[str, Any]:
    arrays = {name: getattr(bets, name).tolist() for name in ("games", "capital", "best", "onset")}
    return {"count": bets.count, **arrays}


def _bets_from(data: Mapping[str, Any]) -> _Bets:
    bets = _Bets()
    bets.count = _count(data["count"])
    bets.games = _array(data["games"], bets.games.shape)
    bets.capital, bets.best = (_array(data[name], bets.capital.shape) for name in ("capital", "best"))
    bets.onset = _array(data["onset"], bets.onset.shape).astype(np.int64)
    if (
        min(bets.games.min(), bets.capital.min(), bets.best.min()) < 0
        or not 0 <= bets.onset.min() <= bets.onset.max() <= bets.count
    ):
        raise FormatError("the bets of a monitor do not fit")
    return bets
