"""Evaluation: thresholds × episodes → a table of episodes.

Each threshold is one job: a fresh environment, its episodes one after the other, seeds that are a function of
(seed, threshold, episode) and never training's. What a job returns does not depend on how
jobs share processes.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np

from ccpo.envs.adapter import CostEnv
from ccpo.envs.registry import EnvFactory
from ccpo.envs.workers import episode_seed
from ccpo.errors import RunError
from ccpo.runtime import CombinedNet, NetConfig, PolicyNet, make_net
from ccpo.types import Episode


class _Job(NamedTuple):
    threshold: float
    episodes: range
    seed: int
    stochastic: bool


def evaluate_episodes(
    factory: EnvFactory,
    arrays: dict[str, np.ndarray],
    net: NetConfig,
    *,
    thresholds: Sequence[float],
    episodes: range,
    seed: int = 0,
    stochastic: bool = False,
    workers: int | None = 1,
    advance: Callable[[int], None] = lambda _: None,
) -> list[list[Episode]]:
    """The episodes of each threshold, in order. `advance` is told of each number of finished episodes."""
    jobs = [_Job(float(t), episodes, seed, stochastic) for t in thresholds]
    workers = min(len(jobs), os.cpu_count() or 1 if workers is None else workers)
    results: list[list[Episode]] = [[] for _ in jobs]
    for index, result in _run(factory, arrays, net, jobs, workers):
        results[index] = result
        advance(len(result))
    return results


def _run(
    factory: EnvFactory, arrays: dict[str, np.ndarray], net: NetConfig, jobs: list[_Job], workers: int
) -> Iterable[tuple[int, list[Episode]]]:
    if workers <= 1 or not factory.sendable:
        for index, job in enumerate(jobs):
            yield index, _run_job(factory, arrays, net, job)
        return
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            futures = {pool.submit(_run_job, factory, arrays, net, job): index for index, job in enumerate(jobs)}
            for future in as_completed(futures):
                yield futures[future], future.result()
    except BrokenProcessPool:
        raise RunError(
            f"one of {workers} worker processes ended before its episodes did; a script that uses them needs its "
            'statements under if __name__ == "__main__":, since each imports it; or give workers=1'
        ) from None


def _run_job(factory: EnvFactory, arrays: dict[str, np.ndarray], net: NetConfig, job: _Job) -> list[Episode]:
    """All episodes of one threshold in a fresh environment."""
    policy, env = make_net(arrays, net), factory()
    millis = round(job.threshold * 1000)
    try:
        return [_run_episode(policy, env, job, (job.seed, millis, index)) for index in job.episodes]
    finally:
        if not factory.single_instance:  # the user's own environment stays open
            env.close()


def _run_episode(policy: PolicyNet | CombinedNet, env: CostEnv, job: _Job, entropy: tuple[int, ...]) -> Episode:
    rng = np.random.default_rng(entropy)
    obs = env.reset(episode_seed(*entropy, evaluation=True))
    closed = policy.config.condition == "budget"
    reward, cost, length, ended = 0.0, 0.0, 0, False
    while not ended:
        budget = np.float32([job.threshold - cost if closed else job.threshold])
        to_go = np.float32(1.0 - length / env.spec.episode_length)
        if job.stochastic:
            action = policy.sample(obs, budget, to_go, rng.standard_normal(env.spec.action_size, np.float32))
        else:
            action = policy.mean(obs, budget, to_go)
        obs, step_reward, step_cost, terminated, truncated = env.step(action)
        reward += step_reward
        cost += step_cost
        length += 1
        ended = terminated or truncated
    return Episode(job.threshold, float(reward), float(cost), length, not job.stochastic)
