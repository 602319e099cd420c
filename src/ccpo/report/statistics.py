"""How methods compare: the paper's ranking rule, the safest ones, the average over tasks.

What the seeds of one task say (mean ± std, interquartile mean and its bootstrap interval) is `metrics.estimate`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ccpo.errors import FormatError
from ccpo.metrics import Estimate, bootstrap_interval, iqm


@dataclass(frozen=True)
class Score:
    """A method's average reward and violation, as they are ranked by."""

    name: str
    reward: float
    violation: float


def rank(scores: Sequence[Score], *, tolerance: float = 0.0) -> list[Score]:
    """The best first, by the paper's rule: the safer is better; of those that keep their constraints, the one that
    earns more.

    A method keeps its constraints if its violation is at most the tolerance. What is not known (NaN) comes last.

    >>> [s.name for s in rank([Score("bold", 9, 3), Score("safe", 5, 0), Score("timid", 1, 0)])]
    ['safe', 'timid', 'bold']
    """

    def order(score: Score) -> tuple[bool, float, float]:
        if math.isnan(score.violation) or math.isnan(score.reward):
            return True, 0.0, 0.0
        excess = score.violation if score.violation > tolerance else 0.0
        return False, excess, -score.reward

    return sorted(scores, key=order)


def safest(violations: Mapping[str, float], count: int = 2) -> list[str]:
    """The names of the lowest violations, the safest first: what the paper's tables shade.

    >>> safest({"a": 3.0, "b": 0.2, "c": 1.0, "d": float("nan")})
    ['b', 'c']
    """
    known = {name: violation for name, violation in violations.items() if not math.isnan(violation)}
    return sorted(known, key=lambda name: known[name])[:count]


def average_over_tasks(values_by_task: Mapping[str, np.ndarray]) -> Estimate:
    """The paper's Averaged Score: the mean over tasks of the seeds' means [S], every task counting alike.

    std is that of the average over tasks, one seed of each; the interquartile mean is taken within each task; the
    interval is a bootstrap of that average with seeds resampled within their task.
    """
    if not values_by_task:
        raise FormatError("no task was given to average over; give at least one")
    values = [np.asarray(of_task, np.float64) for of_task in values_by_task.values()]
    ends = np.cumsum([of_task.size for of_task in values])[:-1]

    def average(joined: np.ndarray) -> np.ndarray:
        return np.mean([iqm(of_task) for of_task in np.split(joined, ends, axis=-1)], axis=0)

    several = all(of_task.size > 1 for of_task in values)
    std = math.sqrt(sum(of_task.var(ddof=1) for of_task in values)) / len(values) if several else math.nan
    mean = float(np.mean([of_task.mean() for of_task in values]))
    return Estimate(mean, std, float(average(np.concatenate(values))), *bootstrap_interval(values, average))
