"""Budget-aware tasks: observations that also tell what an episode has cost so far and how much of it is over.

With both, a policy under a threshold can spend what is left of it, and stop; and since the threshold itself is not in
them, it can be changed in the middle of an episode.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ccpo.errors import EnvError


class BudgetAware(gymnasium.Wrapper):
    """An environment with `info["cost"]` whose observations, a Box, end with two more numbers: the cost so far in units
    of the highest threshold, and the share of the episode that is over."""

    def __init__(self, env: gymnasium.Env, *, highest_threshold: float, episode_length: int):
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise EnvError(f"a budget-aware task needs observations in a Box, not {space}; convert them in a wrapper")
        low, high = np.append(space.low, (0.0, 0.0)), np.append(space.high, (np.inf, 1.0))
        self.observation_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.unit, self._length = highest_threshold, episode_length
        self._spent, self._steps = 0.0, 0

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        self._spent, self._steps = 0.0, 0
        return self._with_budget(obs), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if "cost" not in info:
            raise EnvError('a budget-aware task needs info["cost"] at every step; put it there in a wrapper below')
        self._spent += float(info["cost"])
        self._steps += 1
        return self._with_budget(obs), float(reward), terminated, truncated, info

    def _with_budget(self, obs: Any) -> np.ndarray:
        seen = (self._spent / self.unit, self._steps / self._length)
        return np.append(obs, seen).astype(np.float32)
