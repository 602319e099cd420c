"""Time of a step of our Bullet environments, of the stock package's, and of the simulator inside both.

All replay the same actions from the same starts, in turns of one episode, so that a busy machine slows them
alike; times are of this thread's own CPU. The stock environment is made with Gymnasium's checker off, which
favours it.

    python benchmarks/env_speed.py BallCircle AntRun --rounds 20
"""

import argparse
import statistics
import time
from typing import NamedTuple

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from ccpo.envs.bullet import BULLET_TASKS, BulletEnv, make_bullet

PAPER_TASKS = ("BallCircle", "CarCircle", "DroneCircle", "DroneRun", "AntRun")


class Speed(NamedTuple):
    """Microseconds a step, medians over rounds; `ratio` has its lower and upper quartile beside it."""

    task: str
    stock: float
    ours: float
    simulator: float
    ratio: float
    ratio_low: float
    ratio_high: float


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

    def microseconds(self) -> float:
        """The mean of a call since the last reading."""
        mean = 1e6 * self.seconds / self.calls
        self.seconds, self.calls = 0.0, 0
        return mean


def smooth_actions(env: BulletEnv, rng: np.random.Generator) -> np.ndarray:
    """Slowly changing random actions [T, A]: robots get somewhere, and drones do not fall at once."""
    actions = rng.uniform(-1.0, 1.0, (env.episode_length, *env.action_space.sample().shape))
    for t in range(1, len(actions)):
        actions[t] = 0.8 * actions[t - 1] + 0.2 * actions[t]
    return actions.astype(np.float32)


def play(env: gymnasium.Env, actions: np.ndarray, *, seed: int) -> tuple[float, float]:
    """One episode: (microseconds a step, return)."""
    np.random.seed(seed)  # the stock package draws from the global generator
    env.reset(seed=seed)
    total, steps, start = 0.0, 0, time.thread_time()
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
        total, steps = total + float(reward), steps + 1
        if terminated or truncated:
            break
    return 1e6 * (time.thread_time() - start) / steps, total


def measure(task: str, rounds: int = 20) -> Speed:
    """Time `rounds` episodes of a task, after one to warm up; refuses to compare different trajectories."""
    ours, floor = make_bullet(task), make_bullet(task)
    stock = gymnasium.make(BULLET_TASKS[task].stock_id, disable_env_checker=True)
    simulator = floor._simulate = Clock(floor._simulate)
    rng, times = np.random.default_rng(0), []
    for seed in range(rounds + 1):
        actions = smooth_actions(ours, rng)
        stock_time, stock_return = play(stock, actions, seed=seed)
        our_time, our_return = play(ours, actions, seed=seed)
        play(floor, actions, seed=seed)
        times.append((stock_time, our_time, simulator.microseconds()))
        if our_return != stock_return:
            raise RuntimeError(f"{task}: our return {our_return} is not the stock package's {stock_return}")
    for env in (ours, floor, stock):
        env.close()
    ratios = [s / o for s, o, _ in times[1:]]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    return Speed(task, *(statistics.median(column) for column in zip(*times[1:], strict=True)), ratio, low, high)


def table(speeds: list[Speed]) -> Table:
    """The measurements as an aligned table."""
    result = Table(title="µs a step (one thread, medians)")
    result.add_column("task", no_wrap=True)
    for name in ("stock", "ours", "simulator", "our steps/s", "ratio", "quartiles"):
        result.add_column(name, justify="right", no_wrap=True)
    for s in speeds:
        numbers = (f"{s.stock:.0f}", f"{s.ours:.0f}", f"{s.simulator:.0f}", f"{1e6 / s.ours:,.0f}")
        result.add_row(s.task, *numbers, f"{s.ratio:.2f}", f"{s.ratio_low:.2f}–{s.ratio_high:.2f}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Our Bullet environments against the stock package's.")
    parser.add_argument("tasks", nargs="*", default=PAPER_TASKS, help="e.g. BallCircle; default: the paper's five")
    parser.add_argument("--rounds", type=int, default=20, help="episodes a task (at least 2)")
    args = parser.parse_args()
    Console().print(table([measure(task, args.rounds) for task in args.tasks]))


if __name__ == "__main__":
    main()
