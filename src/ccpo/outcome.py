"""How a run ended: what its newest episodes cost beside their thresholds, and signs that it has not learned."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ccpo.types import Episode

OVER = 1.05
"""A mean cost above this share of its threshold is told."""
UNDER = 0.7
"""A mean cost below this share of its threshold is told."""
PARTS = 5
"""A run is looked at in fifths."""
STEEP = 0.15
"""Of the reward's range over the fifths: a last rise above it is told."""
FEW_EPISODES = 200


class Reached(NamedTuple):
    """The newest episodes under one threshold."""

    threshold: float
    cost: float
    reward: float
    episodes: int

    @property
    def use(self) -> float | None:
        return self.cost / self.threshold if self.threshold else None


def reached(episodes: Sequence[Episode]) -> list[Reached]:
    """Means by threshold, of episodes as deployed where there are any."""
    found = []
    for threshold in sorted({e.threshold for e in episodes}):
        of_threshold = [e for e in episodes if e.threshold == threshold]
        chosen = [e for e in of_threshold if e.deterministic] or of_threshold
        cost, reward = np.mean([(e.cost, e.reward) for e in chosen], axis=0).tolist()
        found.append(Reached(threshold, cost, reward, len(chosen)))
    return found


def cautions(
    ends: Sequence[Reached], rewards: Sequence[float], *, steps: int, random_steps: int, each: int, episode_length: int
) -> list[str]:
    """Why the run may not have learned, one sentence each; `rewards` are the means of its iterations [I]."""
    told = []
    learned = steps - random_steps
    if learned <= each:
        told.append(
            f"of {steps:,} steps {random_steps:,} were random actions: it has learned nothing; give more --steps"
        )
    elif steps < FEW_EPISODES * episode_length:
        told.append(
            f"{steps:,} steps are {steps // episode_length:,} episodes, which is few; several hundred are usual"
        )
    over = [end for end in ends if end.cost > OVER * end.threshold]
    if over:
        listed = ", ".join(f"{end.cost:.3g} under {end.threshold:g}" for end in over)
        told.append(f"cost above the threshold: {listed}; train longer, or raise the lowest threshold")
    under = [end for end in ends if end.use is not None and end.use < UNDER]
    if under and not is_still_rising(rewards):
        listed = ", ".join(f"{end.cost:.3g} under {end.threshold:g}" for end in under)
        told.append(f"much of the budget is left: {listed}; train longer, or choose lower thresholds, which bind")
    if is_still_rising(rewards):
        told.append("reward was still rising at the end; more steps will probably earn more")
    return told


def is_still_rising(rewards: Sequence[float]) -> bool:
    """Whether the last fifth earned more than the one before, by a large part of all that the fifths differ by.

    It must also be more than chance would do: two standard errors.
    """
    known = np.array([reward for reward in rewards if reward == reward])
    if len(known) < 2 * PARTS:
        return False
    parts = np.array_split(known, PARTS)
    means = [part.mean() for part in parts]
    rise = means[-1] - means[-2]
    error = np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts[-2:]))
    return bool(rise > STEEP * (max(means) - min(means)) and rise > 2 * error)
