"""The data that flows through the package, and its axes.

Axes: B batch, U updates, K action samples, S states, T time, E environments, C conditions (thresholds),
F features (the paper's M), O observation, A action.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = Any
"""A NumPy or JAX array; shapes stand in the docstrings."""


@dataclass(frozen=True)
class EnvSpec:
    """What a learner must know of an environment. Actions of a policy lie in [−1, 1] and are scaled to the box."""

    task: str
    observation_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    episode_length: int

    @property
    def action_size(self) -> int:
        return len(self.action_low)

    def scale_action(self, action: np.ndarray) -> np.ndarray:
        """Clip to [−1, 1] and map to the environment's box."""
        low, high = np.asarray(self.action_low, np.float32), np.asarray(self.action_high, np.float32)
        return low + 0.5 * (np.clip(action, -1.0, 1.0) + 1.0) * (high - low)


class Transition(NamedTuple):
    """One step of every environment; arrays of shape [T, E, …]. `action` is the policy's, before clipping."""

    obs: Array
    action: Array
    reward: Array
    cost: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    threshold: Array
    time_to_go: Array
    """Steps left in the episode before this one is taken: the episode length at the start, 1 at the last step."""


class Episode(NamedTuple):
    """A finished episode, as training and evaluation report it."""

    threshold: float
    reward: float
    cost: float
    length: int
    deterministic: bool
