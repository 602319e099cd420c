"""Three environments as a user would write them: a point mass, a cost for Pendulum, observations in a Dict."""

import gymnasium
import numpy as np
from gymnasium import spaces


class SpeedEnv(gymnasium.Env):
    """A point mass on a line: it earns by going fast, and pays for it."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,))
    episode_length = 50
    max_step_cost = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.speed, self.steps = 0.0, float(self.np_random.uniform(-0.1, 0.1)), 0
        return self.observe(), {}

    def step(self, action):
        self.speed = float(np.clip(0.8 * self.speed + 0.2 * action[0], -1.0, 1.0))
        self.position += 0.1 * self.speed
        self.steps += 1
        return self.observe(), self.speed, False, self.steps >= self.episode_length, {"cost": self.speed**2}

    def observe(self):
        return np.array([np.sin(self.position), self.speed], np.float32)


def height_cost(obs, action, reward, next_obs, info):
    """For Pendulum: a step costs as much as the pendulum is high, from 0 to 1."""
    return 0.5 * (1.0 + float(next_obs[0]))


class CartEnv(gymnasium.Env):
    """A cart with observations in a Dict; leaving the track ends the episode early, and going near its end costs."""

    observation_space = spaces.Dict(
        {"cart": spaces.Box(-np.inf, np.inf, (2,)), "side": spaces.Discrete(2), "time": spaces.Box(0.0, 1.0, (1,))}
    )
    action_space = spaces.Box(-2.0, 2.0, (1,))
    episode_length = 60
    max_step_cost = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed, self.steps = float(self.np_random.uniform(-0.2, 0.2)), 0.0, 0
        return self.observe(), {}

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.05 * float(action[0])
        self.place += 0.1 * self.speed
        self.steps += 1
        left = abs(self.place) > 2.0
        info = {"cost": min(abs(self.speed), 1.0)}
        return self.observe(), abs(self.speed), left, self.steps >= self.episode_length, info

    def observe(self):
        return {
            "cart": np.array([self.place, self.speed], np.float32),
            "side": int(self.place > 0.0),
            "time": np.array([self.steps / self.episode_length], np.float32),
        }
