"""The settings of the loop, and which iteration does what.

All of it follows from the settings and the environment, none of it from the clock.
"""

import math
from dataclasses import dataclass

import numpy as np

from ccpo.config import Settings, setting
from ccpo.envs.workers import Order
from ccpo.errors import ConfigError
from ccpo.processes import STEP_SECONDS
from ccpo.types import LARGEST, Acting, EnvSpec, Problem

LOOPS = ("closed", "open")
EPISODES = 600
"""How many episodes a run has unless told otherwise."""
LEAST_STEPS = 60_000
WARMUP_SHARE = 0.05


@dataclass(frozen=True)
class LoopConfig(Settings):
    """The settings of the loop, the same for every algorithm."""

    steps: int | None = setting(
        None, f"environment steps; none: {EPISODES} episodes, and {LEAST_STEPS:,} at least", low=1
    )
    seed: int = setting(0, "seed of everything random in the run", low=0, high=2**31 - 1)
    loop: str = setting(
        "closed",
        "closed: the policy sees the budget that is left and the time to go; open: the threshold only, as in the paper",
        choices=LOOPS,
    )
    behaviour_thresholds: tuple[float, ...] = setting(
        (), "thresholds under which data is collected; empty: the task's own", low=0, high=LARGEST
    )
    threshold_range: tuple[float, ...] = setting(
        (), "lowest and highest threshold to serve; empty: the task's own", low=0, high=LARGEST
    )
    lanes_per_threshold: int = setting(2, "environments for each behaviour threshold", low=1, high=1000)
    deployed_lanes: int = setting(1, "how many of these act as deployed (deterministic); the rest explore", low=0)
    rollout_length: int = setting(0, "steps of each environment per iteration; 0: one episode", low=0)
    noise_correlation: float = setting(
        0.8,
        "correlation of exploration noise from one step to the next, each step's law staying the same",
        low=0,
        high=0.999,
    )
    warmup_steps: int = setting(
        5_000, f"steps with random actions at the start, at most {WARMUP_SHARE:.0%} of the run", low=0
    )
    replay_steps: int = setting(1_000_000, "environment steps that the replay holds, at most those of the run", low=1)
    checkpoint_every: int = setting(20_000, "environment steps between checkpoints; an episode at least", low=1)
    keep_checkpoints: int = setting(2, "how many checkpoints are kept", low=1)
    workers: int = setting(
        0, "worker processes; 0: collect in this process, beside the compiled learner", low=0, high=256
    )
    step_seconds: float = setting(
        STEP_SECONDS, "seconds after which a step in a worker process counts as hung; 0: never", low=0
    )

    def validate(self) -> None:
        thresholds, limits = self.behaviour_thresholds, self.threshold_range
        if list(thresholds) != sorted(set(thresholds)):
            raise ConfigError(f"behaviour_thresholds={thresholds} must rise strictly, such as 20,40,60")
        if limits and (len(limits) != 2 or limits[0] >= limits[1]):
            raise ConfigError(f"threshold_range={limits} must be two rising numbers, such as 10,70")
        if thresholds and limits and not (limits[0] <= thresholds[0] and thresholds[-1] <= limits[1]):
            raise ConfigError(f"behaviour_thresholds={thresholds} must lie in threshold_range={limits}")
        if self.deployed_lanes > self.lanes_per_threshold:
            raise ConfigError(
                f"deployed_lanes={self.deployed_lanes} exceeds lanes_per_threshold={self.lanes_per_threshold}"
            )


def default_steps(episode_length: int) -> int:
    """How many environment steps a run has unless told otherwise."""
    return max(EPISODES * episode_length, LEAST_STEPS)


def make_problem(spec: EnvSpec, loop: LoopConfig) -> Problem:
    if len(spec.costs) > 1:
        raise ConfigError(
            f"'{spec.task}' has {len(spec.costs)} costs, and training takes one; add them up in a cost_fn"
        )
    return Problem(
        spec=spec,
        behaviour_thresholds=loop.behaviour_thresholds,
        threshold_range=(loop.threshold_range[0], loop.threshold_range[1]),
        lanes_per_threshold=loop.lanes_per_threshold,
        deployed_lanes=loop.deployed_lanes,
        closed=loop.loop == "closed",
    )


class Schedule:
    """Which iteration does what."""

    def __init__(self, loop: LoopConfig, problem: Problem) -> None:
        length = problem.spec.episode_length
        steps = loop.steps or default_steps(length)
        self.rollout = loop.rollout_length or length
        self.steps_each = self.rollout * problem.lanes
        self.iterations = math.ceil(steps / self.steps_each)
        self.slots = self.rollout * max(1, min(loop.replay_steps // self.steps_each, self.iterations))
        # checkpoints cut episodes: one must fit between
        self._every = max(math.ceil(length / self.rollout), round(loop.checkpoint_every / self.steps_each))
        self._warmup = math.ceil(min(loop.warmup_steps, WARMUP_SHARE * steps) / self.steps_each)
        self.random_steps = self._warmup * self.steps_each
        self._correlation = loop.noise_correlation

    def progress_after(self, iteration: int) -> np.float32:
        """The share of the run that is over."""
        return np.float32((iteration + 1) / self.iterations)

    def checkpoints_after(self, iteration: int) -> bool:
        return (iteration + 1) % self._every == 0 or iteration + 1 == self.iterations

    def order(self, iteration: int, acting: Acting) -> Order:
        return Order(
            iteration=iteration,
            acting=acting,
            random=iteration < self._warmup,
            fresh=iteration == 0 or self.checkpoints_after(iteration - 1),
            cut=self.checkpoints_after(iteration),
            correlation=self._correlation,
        )
