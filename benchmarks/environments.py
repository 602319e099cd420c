"""Our Bullet environments, the stock package's, and the simulator inside both.

All replay the same actions from the same starts, in turns of one episode, so that a busy machine slows them alike.
The stock environment is made with Gymnasium's checker off, which favours it.
"""

import statistics
import time
from collections.abc import Iterator
from functools import partial

import gymnasium
import numpy as np

from benchmarks.rows import Row, rates, ratio_row
from ccpo.envs.bullet import BULLET_TASKS, BulletEnv, make_bullet

BARS = {"BallCircle": 3.5, "CarCircle": 1.2, "DroneCircle": 3.0, "DroneRun": 3.0, "AntRun": 2.0}
EPISODES = 20


class Clock:
    """Adds up the CPU time of the calls that it wraps."""

    def __init__(self, function) -> None:
        self.function, self.seconds, self.calls = function, 0.0, 0

    def __call__(self, *args):
        start = time.thread_time()
        result = self.function(*args)
        self.seconds += time.thread_time() - start
        self.calls += 1
        return result


def measure() -> Iterator[Row]:
    """Steps/s, ours : stock, for each of the paper's tasks."""
    for task, bar in BARS.items():
        yield compare(task, episodes=EPISODES, bar=bar)


def compare(task: str, *, episodes: int, bar: float) -> Row:
    """Time episodes of a task, after one to warm up; refuses to compare different trajectories."""
    ours, inner = make_bullet(task), make_bullet(task)
    stock = gymnasium.make(BULLET_TASKS[task].stock_id, disable_env_checker=True)
    simulator = Clock(inner._simulate)
    inner._simulate = partial(simulator)
    rng, times = np.random.default_rng(0), []
    for seed in range(episodes + 1):
        actions = smooth_actions(ours, rng)
        our_time, our_return = play(ours, actions, seed=seed)
        stock_time, stock_return = play(stock, actions, seed=seed)
        play(inner, actions, seed=seed)
        times.append((our_time, stock_time))
        if our_return != stock_return:
            raise RuntimeError(f"{task}: our return {our_return} is not the stock package's {stock_return}")
    for env in (ours, inner, stock):
        env.close()
    our_times, stock_times = (list(column) for column in zip(*times[1:], strict=True))
    share = simulator.seconds / simulator.calls / statistics.median(our_times)
    note = f"the simulator is {100 * share:.0f} % of our step"
    what = f"environment steps/s, ours : stock, {task}"
    return ratio_row("env", what, rates(our_times), rates(stock_times), unit="steps/s", bar=bar, note=note)


def smooth_actions(env: BulletEnv, rng: np.random.Generator) -> np.ndarray:
    """Slowly changing random actions [T, A]: robots get somewhere, and drones do not fall at once."""
    actions = rng.uniform(-1.0, 1.0, (env.episode_length, *env.action_space.sample().shape))
    for t in range(1, len(actions)):
        actions[t] = 0.8 * actions[t - 1] + 0.2 * actions[t]
    return actions.astype(np.float32)


def play(env: gymnasium.Env, actions: np.ndarray, *, seed: int) -> tuple[float, float]:
    """One episode: (seconds of this thread a step, return)."""
    np.random.seed(seed)  # the stock package draws from the global generator
    env.reset(seed=seed)
    total, steps, start = 0.0, 0, time.thread_time()
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
        total, steps = total + float(reward), steps + 1
        if terminated or truncated:
            break
    return (time.thread_time() - start) / steps, total
