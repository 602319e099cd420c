"""Which of the policies that acted late in a run is deployed: the one whose own training episodes were best."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ccpo.types import Episode

RATE = 0.2
"""Of the running worth: an iteration shows few episodes, and the policies of neighbouring iterations are alike."""


class Choice(NamedTuple):
    """The best policy so far, what it was worth, and the running worth of those that act now."""

    arrays: dict[str, np.ndarray]
    best: np.float32
    running: np.float32

    @property
    def made(self) -> bool:
        return bool(np.isfinite(self.best))


def init(arrays: dict[str, np.ndarray]) -> Choice:
    """Nothing is chosen yet; `arrays` say what a policy looks like."""
    return Choice(arrays, best=np.float32(-np.inf), running=np.float32(np.nan))


def worth(episode: Episode) -> float:
    """The reward, of which each unit of cost beyond the threshold ε takes the share 1/ε."""
    violation = max(0.0, episode.cost - episode.threshold)
    return episode.reward - abs(episode.reward) * violation / max(episode.threshold, 1.0)


def offer(choice: Choice, arrays: dict[str, np.ndarray], episodes: Sequence[Episode], *, eligible: bool) -> Choice:
    """Judge the policy that acted as deployed in some of these episodes; choose it if none before was worth more."""
    worths = [worth(episode) for episode in episodes if episode.deterministic]
    if not worths:
        return choice
    newest = np.float32(np.mean(worths))
    running = newest if np.isnan(choice.running) else np.float32(choice.running + RATE * (newest - choice.running))
    if eligible and running >= choice.best:
        return Choice(arrays, best=running, running=running)
    return choice._replace(running=running)
