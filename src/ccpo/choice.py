"""Which of a run's late policies is deployed, and how its dial is set: finalists play fresh training episodes, and the
worse half leaves."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ccpo.metrics import violation
from ccpo.runtime import NetConfig
from ccpo.types import Episode

STOPS = 4
"""Parts of the dial between two behaviour thresholds."""


class Choice(NamedTuple):
    """The finalists so far, which of them won, and what their episodes took."""

    finalists: dict[str, np.ndarray]
    """The arrays of all of them, one behind the other: [F, …]."""
    winner: np.int32
    """−1 until the final has been played."""
    dial: np.ndarray
    """The setting of the dial at each stop: [D]."""
    steps: np.int32
    cost: np.float32

    @property
    def made(self) -> bool:
        return bool(self.winner >= 0)

    def finalist(self, index: int | np.integer) -> dict[str, np.ndarray]:
        return {name: array[index] for name, array in self.finalists.items()}


def init(arrays: dict[str, np.ndarray], finalists: int, thresholds: Sequence[float]) -> Choice:
    """Room for finalists; `arrays` say what a policy looks like."""
    room = {name: np.zeros((finalists, *array.shape), array.dtype) for name, array in arrays.items()}
    dial = stops(thresholds).astype(np.float32)
    return Choice(room, winner=np.int32(-1), dial=dial, steps=np.int32(0), cost=np.float32(0.0))


def enter(choice: Choice, index: int, arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        choice.finalists[name][index] = array


def rounds(finalists: int, episodes: int) -> list[tuple[int, range]]:
    """Sequential halving: how many play in each round, and which episodes; half as many play twice as long."""
    plan, first = [], 0
    while finalists > 1:
        plan.append((finalists, range(first, first + episodes)))
        finalists, first, episodes = (finalists + 1) // 2, first + episodes, 2 * episodes
    return plan


def decide(
    plan: Sequence[tuple[int, range]],
    play: Callable[[int, range], list[Episode]],
    judge: Callable[[list[Episode]], float],
) -> tuple[int, list[Episode]]:
    """The finalist whose episodes are judged best, and these; `play` returns those of one finalist in a round."""
    if not plan:
        return 0, []
    played: dict[int, list[Episode]] = {index: [] for index in range(plan[0][0])}
    ranking = list(played)
    for players, episodes in plan:
        ranking = ranking[:players]
        for index in ranking:
            played[index] += play(index, episodes)
        ranking.sort(key=lambda index: judge(played[index]), reverse=True)
    return ranking[0], played[ranking[0]]


def worth(episode: Episode, threshold: float, net: NetConfig, *, price: float) -> float:
    """The reward, of which each unit of cost beyond ε takes the share price/ε; the mean over all ε that it serves.

    An episode under ε is one under all thresholds that the net is shown as ε is.
    """
    seen = np.interp(threshold, net.asked, net.shown) if net.asked else threshold
    alike = [threshold, *(asked for asked, shown in zip(net.asked, net.shown, strict=True) if shown == seen)]
    served = np.linspace(min(alike), max(alike), 5)
    lost = np.mean(violation(np.asarray(episode.cost), served) / np.maximum(served, 0.01 * net.threshold_high))
    return episode.reward - price * abs(episode.reward) * float(lost)


def keep(
    episodes: Sequence[Episode], thresholds: Sequence[float], net: NetConfig, *, price: float
) -> tuple[np.ndarray, np.ndarray]:
    """The stops themselves as settings of the dial [D], and what episodes under each threshold are worth [C]."""
    worths = [
        [worth(episode, t, net, price=price) for episode in episodes if episode.threshold == t] for t in thresholds
    ]
    return stops(thresholds).astype(np.float32), np.array([np.mean(each) for each in worths])


def stops(thresholds: Sequence[float]) -> np.ndarray:
    """Where the dial has a setting of its own: at the behaviour thresholds, and evenly between each two of them.

    >>> stops((20.0, 40.0)).tolist()
    [20.0, 25.0, 30.0, 35.0, 40.0]
    """
    count = len(thresholds)
    return np.interp(np.arange(STOPS * (count - 1) + 1) / STOPS, np.arange(count), thresholds)


def dial_range(net: NetConfig) -> tuple[float, float]:
    """The settings of the dial that the net has been trained with."""
    return (net.shown[0], net.shown[-1]) if net.asked else (net.threshold_low, net.threshold_high)


def untouched(net: NetConfig) -> NetConfig:
    """The net, shown the very setting that it is asked for."""
    return replace(net, asked=(), shown=())


def settings(net: NetConfig, indices: range) -> list[float]:
    """Settings of the dial that cover its range ever more densely: the van der Corput sequence, a little stretched.

    >>> settings(NetConfig("gaussian", 20.0, 60.0), range(5))
    [20.0, 40.0, 29.0, 51.0, 23.5]
    """
    bits = [f"{index:b}" for index in indices]
    unit = np.array([int(each[::-1], 2) / 2 ** len(each) for each in bits])
    low, high = dial_range(net)
    return (low + (high - low) * np.clip(1.1 * unit - 0.05, 0.0, 1.0)).tolist()


def turn(
    episodes: Sequence[Episode], thresholds: Sequence[float], net: NetConfig, *, price: float
) -> tuple[np.ndarray, np.ndarray]:
    """From episodes at many settings: settings for all stops [D], and what the thresholds' own are worth [C].

    A threshold has the setting that serves it best. A setting is worth the mean of about √N episodes around it, so that
    neither luck nor a place beside a jump wins. A higher threshold never has a lower setting.
    """
    episodes = sorted(episodes, key=lambda episode: episode.threshold)
    reach = int(0.5 * np.sqrt(len(episodes)))

    def around(values: np.ndarray) -> np.ndarray:
        return np.array([values[max(0, i - reach) : i + reach + 1].mean(axis=0) for i in range(len(values))])

    worths = around(np.array([[worth(episode, t, net, price=price) for t in thresholds] for episode in episodes]))
    costs = around(np.array([episode.cost for episode in episodes]))
    best = np.maximum.accumulate(np.argmax(worths, axis=0))
    chosen = [i for lower, upper in pairwise(best) for i in _even(costs, lower, upper)] + [best[-1]]
    dial = np.array([episodes[i].threshold for i in chosen], np.float32)
    return dial, worths[best, np.arange(len(best))]


def _even(costs: np.ndarray, lower: int, upper: int) -> list[int]:
    """Places from `lower` on, `upper` excluded, at which the highest cost so far has risen by equal parts at most."""
    highest = np.maximum.accumulate(costs[lower : upper + 1])
    parts = np.linspace(costs[lower], costs[upper], STOPS + 1)[1:-1]
    return [lower, *(lower + np.maximum(np.searchsorted(highest, parts, side="right") - 1, 0)).tolist()]


def turned(net: NetConfig, thresholds: Sequence[float], dial: np.ndarray) -> NetConfig:
    """The net with these settings at the stops; beyond the thresholds, settings as far from theirs as before."""
    asked = stops(thresholds)
    if np.array_equal(dial, asked.astype(np.float32)):
        return net
    low, high = dial_range(net)
    found = np.clip(dial.astype(float), low, high).tolist()
    line = {
        net.threshold_low: max(found[0] - (thresholds[0] - low), low),
        net.threshold_high: min(found[-1] + (high - thresholds[-1]), high),
        **dict(zip(asked.tolist(), found, strict=True)),
    }
    return replace(net, asked=tuple(sorted(line)), shown=tuple(line[threshold] for threshold in sorted(line)))
