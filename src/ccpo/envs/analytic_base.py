"""What all analytic CMDPs share: the clock, the random numbers, the checks of their parameters."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from ccpo.errors import ConfigError


class ClockedEnv(gymnasium.Env[np.ndarray, np.ndarray], ABC):
    """An environment of a fixed length, whose steps a subclass says; its actions are clipped to [−1, 1]."""

    question: ClassVar[str]
    observation_high: ClassVar[tuple[float, ...]]
    action_size: ClassVar[int] = 1

    def __init__(self, horizon: int = 100, cost_scale: float = 1.0):
        if not (isinstance(horizon, int) and horizon >= 1):
            raise ConfigError(f"horizon={horizon!r} is not allowed; give a whole number of steps ≥ 1")
        if not (math.isfinite(cost_scale) and cost_scale > 0.0):
            raise ConfigError(f"cost_scale={cost_scale!r} is not allowed; give a finite number > 0")
        self.episode_length = horizon
        self.cost_scale = float(cost_scale)
        high = np.array(self.observation_high, np.float32)
        self.observation_space = Box(-high, high)
        self.action_space = Box(-1.0, 1.0, (self.action_size,))
        self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._start()
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        # In this order NaN survives the clipping, and is found.
        reward, cost, terminated = self._advance([min(max(a, -1.0), 1.0) for a in np.asarray(action).tolist()])
        self._time += 1
        truncated = not terminated and self._time >= self.episode_length
        return self._observe(), reward, terminated, truncated, {"cost": cost}

    def _start(self) -> None:
        """Draw the start state."""

    @abstractmethod
    def _observe(self) -> np.ndarray:
        """The observation, float32[O]."""

    @abstractmethod
    def _advance(self, action: list[float]) -> tuple[float, Any, bool]:
        """Move the state by one step; returns (reward, cost, terminated), the cost a mapping if there are several."""

    def _uniform(self) -> float:
        """w ~ U(−1, 1)."""
        return 2.0 * self.np_random.random() - 1.0

    def _progress(self) -> float:
        """2t/T − 1: −1 at the start, just below 1 at the last step, 1 after it."""
        return 2.0 * self._time / self.episode_length - 1.0

    def _time_of(self, progress: float) -> int:
        """The step t that an observed progress belongs to."""
        return min(round((progress + 1.0) / 2.0 * self.episode_length), self.episode_length - 1)
