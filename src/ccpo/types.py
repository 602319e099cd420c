"""The data that flows through the package, and its axes.

Axes: B batch, U updates, K action samples, S states, T time, E environments, C conditions (thresholds),
F features (the paper's M), O observation, A action, M constraints (named costs; one is the common case).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = Any
"""A NumPy or JAX array; shapes stand in the docstrings."""

LARGEST = 1e12
"""Of observations, rewards, costs and thresholds: float32 can square these, and sum the squares up."""

EARLY_ENDS = ("failure", "success")
"""What an end before the episode's time may mean; a failure must not be a way to save cost."""


@dataclass(frozen=True)
class EnvSpec:
    """What a learner must know of an environment. Actions of a policy lie in [−1, 1] and are scaled to the box."""

    task: str
    observation_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    episode_length: int
    costs: tuple[str, ...] = ("cost",)
    """The names of its constraints."""
    early_end: str = "failure"
    """What it means that an episode ends before its time: one of `EARLY_ENDS`."""
    observation_layout: str = ""
    """How observations are made flat, as `observations.encode` writes it; empty if they are flat already."""

    @property
    def action_size(self) -> int:
        return len(self.action_low)


class Transition(NamedTuple):
    """One step of every environment; arrays of shape [T, E, …]. `action` is the policy's, before clipping."""

    obs: Array
    action: Array
    reward: Array
    cost: Array
    """[T, E, M]."""
    next_obs: Array
    terminated: Array
    truncated: Array
    threshold: Array
    """Of the whole episode: [T, E, M]."""
    spent: Array
    """What the episode has cost before this step: [T, E, M]."""
    time_to_go: Array
    """Steps left in the episode before this one is taken: the episode length at the start, 1 at the last step."""


class Episode(NamedTuple):
    """A finished episode, as training and evaluation report it."""

    threshold: float
    reward: float
    cost: float
    length: int
    deterministic: bool


@dataclass(frozen=True)
class Problem:
    """A task together with the thresholds it is trained under. Lane e of a rollout belongs to environment e."""

    spec: EnvSpec
    behaviour_thresholds: tuple[float, ...]
    threshold_range: tuple[float, float]
    lanes_per_threshold: int
    deployed_lanes: int
    """How many of a threshold's lanes act as the policy is deployed: deterministic, with averaged weights."""
    closed: bool = False
    """Whether the policy sees the budget that is left and the time to go, or the threshold only."""

    @property
    def lanes(self) -> int:
        return len(self.behaviour_thresholds) * self.lanes_per_threshold

    @property
    def lane_thresholds(self) -> np.ndarray:
        """The threshold of each lane: [E, M]."""
        thresholds = np.asarray(self.behaviour_thresholds, np.float32)[:, None]
        return np.repeat(thresholds, self.lanes_per_threshold, axis=0)

    @property
    def lane_deployed(self) -> np.ndarray:
        """Which lanes act as deployed: the last ones of each threshold."""
        within = np.arange(self.lanes) % self.lanes_per_threshold
        return within >= self.lanes_per_threshold - self.deployed_lanes


class LaneStatistics(NamedTuple):
    """Episodes that finished in a rollout, by lane: how many [E], and the mean of their costs [E, M]."""

    count: Array
    cost: Array


class Experience(NamedTuple):
    """What an algorithm's `update` learns from: the newest rollout, and everything stored if it is off-policy."""

    rollout: Transition
    statistics: LaneStatistics
    replay: Any
    progress: Array
    """The share of the run's environment steps that is behind us, in [0, 1]."""


class Acting(NamedTuple):
    """The policy as lanes act with it: arrays to explore with, arrays as deployed, and what the arrays mean."""

    net: Any
    explore: dict[str, np.ndarray]
    deploy: dict[str, np.ndarray]


class Progress(NamedTuple):
    """What a display is told after each iteration."""

    steps: int
    total: int
    episodes: list[Episode]
    row: dict[str, float]
    """The row of `progress.csv`."""
    run_path: Path
