"""Steps per second of our Bullet environments and of the stock package, on the same trajectories.

Both replay the same actions from the same start, in turns of one episode, so that a busy machine slows both alike;
times are of this thread's own CPU. The stock environment is made with gymnasium's checker off, which favours it.

    python benchmarks/env_speed.py BallCircle AntRun --rounds 10
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from ccpo.envs.bullet import BULLET_TASKS, BulletEnv, make_bullet
from ccpo.errors import EnvError, did_you_mean


class Speed(NamedTuple):
    """Microseconds a step: medians over rounds; `spread` is the interquartile range of the ratio of a round."""

    task: str
    ours: float
    stock: float
    simulator: float
    ratio: float
    spread: float


def actions_of(env: BulletEnv, seed: int) -> np.ndarray:
    """An episode of slowly changing random actions [T, A]: robots move, and drones do not fall at once."""
    rng = np.random.default_rng(seed)
    low_pass, size = 0.1, (env.episode_length, *env.action_space.shape)  # type: ignore[misc]
    noise = rng.uniform(-1.0, 1.0, size).astype(np.float32)
    for t in range(1, len(noise)):
        noise[t] = (1 - low_pass) * noise[t - 1] + low_pass * noise[t]
    return noise


def microseconds_a_step(env: gymnasium.Env, actions: np.ndarray) -> float:
    """Time the steps of one episode, without its reset."""
    steps, start = 0, time.thread_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        steps += 1
        if terminated or truncated:
            break
    return 1e6 * (time.thread_time() - start) / steps


def microseconds_of_simulator(env: BulletEnv, actions: np.ndarray) -> float:
    """The same episode, counting only the time inside the simulator's own step: no environment can be faster."""
    total, steps, simulate = 0.0, 0, env._simulate

    def timed() -> None:
        nonlocal total, steps
        start = time.thread_time()
        simulate()
        total += time.thread_time() - start
        steps += 1

    env._simulate = timed
    microseconds_a_step(env, actions)
    env._simulate = simulate
    return 1e6 * total / steps
