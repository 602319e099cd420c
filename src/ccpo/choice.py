"""Which of a run's late policies is deployed: finalists play fresh training episodes, and the worse half leaves."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ccpo.metrics import violation
from ccpo.runtime import NetConfig
from ccpo.types import Episode


class Choice(NamedTuple):
    """The finalists so far, which of them won, and what their episodes took."""

    finalists: dict[str, np.ndarray]
    """The arrays of all of them, one behind the other: [F, …]."""
    winner: np.int32
    """−1 until the final has been played."""
    steps: np.int32
    cost: np.float32

    @property
    def made(self) -> bool:
        return bool(self.winner >= 0)

    def finalist(self, index: int | np.integer) -> dict[str, np.ndarray]:
        return {name: array[index] for name, array in self.finalists.items()}


def init(arrays: dict[str, np.ndarray], finalists: int) -> Choice:
    """Room for finalists; `arrays` say what a policy looks like."""
    room = {name: np.zeros((finalists, *array.shape), array.dtype) for name, array in arrays.items()}
    return Choice(room, winner=np.int32(-1), steps=np.int32(0), cost=np.float32(0.0))


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


def decide(plan: Sequence[tuple[int, range]], play: Callable[[int, range], Sequence[float]]) -> int:
    """The finalist whose episodes were worth most; `play` returns what those of one finalist in a round were worth."""
    if not plan:
        return 0
    worths: dict[int, list[float]] = {index: [] for index in range(plan[0][0])}
    ranking = list(worths)
    for players, episodes in plan:
        ranking = ranking[:players]
        for index in ranking:
            worths[index] += play(index, episodes)
        ranking.sort(key=lambda index: float(np.mean(worths[index])), reverse=True)
    return ranking[0]


def worth(episode: Episode, net: NetConfig, *, price: float) -> float:
    """The reward, of which each unit of cost beyond ε takes the share price/ε; the mean over all ε that it serves.

    Where nothing beyond the behaviour thresholds reaches the policy (`beyond_share` 0), an episode under the lowest
    or the highest of them is one under all that lie out there.
    """
    low = high = episode.threshold
    if net.beyond_share == 0.0:
        low = min(low, net.threshold_low) if low <= net.inner_low else low
        high = max(high, net.threshold_high) if high >= net.inner_high else high
    served = np.linspace(low, high, 5)
    lost = np.mean(violation(np.asarray(episode.cost), served) / np.maximum(served, 0.01 * net.threshold_high))
    return episode.reward - price * abs(episode.reward) * float(lost)
