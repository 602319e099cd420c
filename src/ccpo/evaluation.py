"""Evaluation: thresholds × episodes → a table of episodes.

Each threshold is one job: a fresh environment, its episodes one after the other, seeds that are a function of
(seed, threshold, episode) and never training's. What a job returns does not depend on how
jobs share processes.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from ccpo.envs.adapter import CostEnv
from ccpo.envs.registry import EnvFactory
from ccpo.envs.workers import episode_seed
from ccpo.errors import CCPOError, ConfigError, EnvError, RunError
from ccpo.processes import STEP_SECONDS, Pulse, Worker, WorkerLostError, WorkerStuckError, at, close_all, replies
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
    step_seconds: float = STEP_SECONDS,
    advance: Callable[[int], None] = lambda _: None,
) -> list[list[Episode]]:
    """The episodes of each threshold, in order. `advance` is told of each number of finished episodes.

    In worker processes, an environment whose step takes longer than `step_seconds` (0: no limit) is an error.
    """
    if workers is not None and workers < 0:
        raise ConfigError(f"workers={workers} must be at least 0: 0 or 1 for this process, more for so many others")
    jobs = [_Job(float(t), episodes, seed, stochastic) for t in thresholds]
    workers = min(len(jobs), os.cpu_count() or 1 if workers is None else workers)
    results: list[list[Episode]] = [[] for _ in jobs]
    if workers <= 1 or not factory.sendable:
        done = ((index, _run_job(factory, arrays, net, job, [0])) for index, job in enumerate(jobs))
    else:
        done = _in_workers(factory, arrays, net, jobs, workers=workers, limit=step_seconds)
    for index, result in done:
        results[index] = result
        advance(len(result))
    return results


def _in_workers(
    factory: EnvFactory,
    arrays: dict[str, np.ndarray],
    net: NetConfig,
    jobs: list[_Job],
    *,
    workers: int,
    limit: float,
) -> Iterable[tuple[int, list[Episode]]]:
    """Each job's place and episodes, as they come; a process gets its next job when it has done one."""
    crew: list[Worker] = []
    pending, doing = list(enumerate(jobs))[::-1], {}
    try:
        for _ in range(workers):
            crew.append(Worker(_serve, factory, arrays, net))
            doing[crew[-1]] = pending.pop()
            crew[-1].send(doing[crew[-1]][1])
        for worker, reply in replies(crew, limit=limit):
            if isinstance(reply, Exception):
                raise reply
            index, _ = doing[worker]
            if pending:
                doing[worker] = pending.pop()
                worker.send(doing[worker][1])
            yield index, reply
    except WorkerLostError as lost:
        raise RunError(
            f"one of {workers} worker processes ended before its episodes did ({lost}): the environment crashed, or "
            'memory ran out; or a script that uses them needs its statements under if __name__ == "__main__":, since '
            "each imports it; or give workers=1"
        ) from None
    except WorkerStuckError as stuck:
        raise EnvError(
            f"{factory.name}: step {stuck.minor} of evaluation episode {stuck.major} hangs for {limit:g} s; correct "
            "the environment, or give a larger step_seconds (0: no limit)"
        ) from None
    finally:
        close_all(crew)


def _serve(
    connection: Connection, pulse: Pulse, factory: EnvFactory, arrays: dict[str, np.ndarray], net: NetConfig
) -> None:
    """A worker's life: one job after the other until the connection ends."""
    while True:
        job = connection.recv()
        try:
            reply = _run_job(factory, arrays, net, job, pulse)
        except CCPOError as error:
            reply = error
        except Exception as error:  # such as of an environment's constructor
            reply = EnvError(f"{factory.name}: making it failed with {type(error).__name__}: {error}; correct it")
        pulse[0] = -1
        connection.send(reply)


def _run_job(
    factory: EnvFactory, arrays: dict[str, np.ndarray], net: NetConfig, job: _Job, pulse: Pulse
) -> list[Episode]:
    """All episodes of one threshold in a fresh environment."""
    policy, env = make_net(arrays, net), factory()
    millis = round(job.threshold * 1000)
    try:
        with np.errstate(over="ignore"):  # as in `Lanes.collect`
            return [_run_episode(policy, env, job, (job.seed, millis, index), pulse) for index in job.episodes]
    finally:
        if not factory.single_instance:  # the user's own environment stays open
            env.close()


def _run_episode(
    policy: PolicyNet | CombinedNet, env: CostEnv, job: _Job, entropy: tuple[int, ...], pulse: Pulse
) -> Episode:
    rng = np.random.default_rng(entropy)
    start = at(entropy[-1], 0)
    pulse[0] = start
    obs = env.reset(episode_seed(*entropy, evaluation=True))
    closed = policy.config.condition == "budget"
    reward, cost, length, ended = 0.0, 0.0, 0, False
    while not ended:
        budget = np.array([job.threshold - cost if closed else job.threshold], np.float32)
        to_go = np.float32(1.0 - length / env.spec.episode_length)
        if job.stochastic:
            action = policy.sample(obs, budget, to_go, rng.standard_normal(env.spec.action_size, np.float32))
        else:
            action = policy.mean(obs, budget, to_go)
        pulse[0] = start + length + 1
        obs, step_reward, step_cost, terminated, truncated = env.step(action)
        reward += step_reward
        cost += step_cost
        length += 1
        ended = terminated or truncated
    return Episode(job.threshold, float(reward), float(cost), length, not job.stochastic)
