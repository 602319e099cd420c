"""Environments that go wrong in one way each, after a number of steps; importable, so that workers can make them."""

import os
import signal
import time
from functools import partial

import gymnasium
import numpy as np
from gymnasium import spaces

EPISODE = 10


class Misbehaving(gymnasium.Env):
    """Well-behaved for `good` steps, then what `fault` says."""

    observation_space = spaces.Box(-10.0, 10.0, (3,))
    action_space = spaces.Box(-1.0, 1.0, (1,))
    max_step_cost = 1.0

    def __init__(self, fault="", good=0):
        self.fault, self.good, self.taken = fault, good, 0
        self.max_episode_steps = EPISODE
        if fault == "make":
            raise OSError("no licence")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.taken > self.good:
            if self.fault == "reset raises":
                raise OSError("no simulator")
            if self.fault == "reset hangs":
                time.sleep(3600)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.taken += 1
        obs, reward, info = self.np_random.normal(size=3), 0.1, {"cost": 0.1}
        if self.taken > self.good:
            match self.fault:
                case "hang":
                    time.sleep(3600)
                case "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "slow":
                    time.sleep(0.02)
                case "raise":
                    raise ZeroDivisionError("the road ends")
                case "nan":
                    obs[1] = np.nan
                case "huge":
                    obs[1] = 1e30
                case "reward":
                    reward = 1e39
                case "shape":
                    obs = obs[:1]
                case "negative":
                    info = {"cost": -0.1}
                case "renamed":
                    info = {"costs": 0.1}
        return obs, reward, False, False, info


def factory(fault="", good=0):
    """A factory that can be sent to another process."""
    return partial(Misbehaving, fault, good)
