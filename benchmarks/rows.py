"""What a measurement is: a median with its quartiles, and the bar that it should reach."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table. A ratio is `first` over `second`, medians of samples that were taken in turns."""

    part: str
    what: str
    value: float
    low: float
    high: float
    """Quartiles of the value."""
    unit: str
    repeats: int
    bar: float | None = None
    at_least: bool = True
    """Whether the value should be at least the bar, or at most."""
    first: float | None = None
    second: float | None = None
    side_unit: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the bar; None where there is no bar."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    @property
    def margin(self) -> float | None:
        """How many times better than the bar asks; 1 is the bar itself."""
        if self.bar is None:
            return None
        if self.at_least:
            return self.value / self.bar
        return self.bar / self.value if self.value else math.inf


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; all the same for one sample."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, median, high


def value_row(
    part: str,
    what: str,
    samples: Sequence[float],
    *,
    unit: str,
    bar: float | None = None,
    at_least: bool = False,
    note: str = "",
) -> Row:
    """A row about one quantity."""
    low, median, high = quartiles(samples)
    return Row(part, what, median, low, high, unit, len(samples), bar=bar, at_least=at_least, note=note)


def ratio_row(
    part: str,
    what: str,
    first: Sequence[float],
    second: Sequence[float],
    *,
    unit: str,
    bar: float | None = None,
    at_least: bool = True,
    note: str = "",
) -> Row:
    """A row about `first` : `second`, taken in turns, so that each pair of samples met the same noise."""
    low, median, high = quartiles([a / b for a, b in zip(first, second, strict=True)])
    return Row(
        part,
        what,
        median,
        low,
        high,
        "×",
        len(first),
        bar=bar,
        at_least=at_least,
        first=statistics.median(first),
        second=statistics.median(second),
        side_unit=unit,
        note=note,
    )


def take_turns(*sides: Callable[[], float], repeats: int) -> list[list[float]]:
    """The samples of each side, called in turns; the first turn warms up and does not count."""
    turns = [[side() for side in sides] for _ in range(repeats + 1)][1:]
    return [list(samples) for samples in zip(*turns, strict=True)]


def rates(seconds: Sequence[float]) -> list[float]:
    """Per second, from seconds each."""
    return [1.0 / s for s in seconds]
