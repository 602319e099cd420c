"""Episodes of random actions, and searches for reward and for low cost."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ccpo.envs.adapter import CostEnv
from ccpo.envs.workers import episode_seed
from ccpo.types import EnvSpec

RANDOM, SAVING, SEEKING = "random", "avoiding cost", "seeking reward"
KINDS = (RANDOM, SAVING, SEEKING)
SHARES = {RANDOM: 0.2, SAVING: 0.4, SEEKING: 0.4}
POPULATION, ELITE = 12, 4
TENTHS = 10


class Try(NamedTuple):
    """An episode of a probe."""

    kind: str
    reward: float
    cost: float
    length: int
    ended_early: bool
    largest_cost: float
    largest_observation: float
    by_tenth: np.ndarray
    """Cost in each tenth of the episode's full time."""


def tries_of(env: CostEnv, episodes: int, seed: int) -> Iterator[Try]:
    """Random episodes first, whose observations are the unit of the searches."""
    rng = np.random.default_rng(seed)
    counts = {kind: max(round(share * episodes), POPULATION) for kind, share in SHARES.items()}
    moments = _Moments(env.spec.observation_size)
    tries = []
    for index in range(counts[RANDOM]):
        tries.append(
            _run(env, RANDOM, (seed, 0, index), lambda _: rng.uniform(-1.0, 1.0, env.spec.action_size), moments)
        )
        yield tries[-1]
    mean, std = moments.mean, moments.std
    largest = max(each.largest_cost for each in tries)
    for stream, kind in enumerate((SAVING, SEEKING), start=1):
        search = _Search(env.spec, rng)
        for index in range(counts[kind]):
            weights, bias = search.ask()
            done = _run(
                env,
                kind,
                (seed, stream, index),
                lambda obs, w=weights, b=bias: w @ np.clip((obs - mean) / std, -5.0, 5.0) + b,
            )
            largest = max(largest, done.largest_cost)
            search.tell(score(done, env.spec, largest))
            yield done


def score(done: Try, spec: EnvSpec, largest_cost: float) -> float:
    """What a search maximises; a failure that ends an episode early is no way to save cost."""
    if done.kind != SAVING:
        return done.reward
    skipped = (spec.episode_length - done.length) if done.ended_early and spec.early_end == "failure" else 0
    return -done.cost - largest_cost * skipped


class _Moments:
    """Mean and scale of observations."""

    def __init__(self, size: int) -> None:
        self.count, self.total, self.squares = 0, np.zeros(size), np.zeros(size)

    def add(self, obs: np.ndarray) -> None:
        self.count += 1
        self.total += obs
        self.squares += np.square(obs, dtype=np.float64)

    @property
    def mean(self) -> np.ndarray:
        return self.total / self.count

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(np.maximum(self.squares / self.count - self.mean**2, 1e-8))


class _Search:
    """The cross-entropy method: ask for a policy, tell what it scored."""

    def __init__(self, spec: EnvSpec, rng: np.random.Generator) -> None:
        self.shape, self.rng = (spec.action_size, spec.observation_size + 1), rng
        self.mean = np.zeros(self.shape)
        self.std = np.full(self.shape, 1.0 / math.sqrt(spec.observation_size))
        self.std[:, -1] = 1.0
        self.asked: list[np.ndarray] = []
        self.scores: list[float] = []

    def ask(self) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append(self.mean + self.std * self.rng.standard_normal(self.shape))
        return self.asked[-1][:, :-1], self.asked[-1][:, -1]

    def tell(self, score: float) -> None:
        self.scores.append(score)
        if len(self.scores) == POPULATION:
            best = np.array(self.asked)[np.argsort(self.scores)[-ELITE:]]
            self.mean, self.std = best.mean(axis=0), best.std(axis=0) + 0.1 * self.std
            self.asked, self.scores = [], []


def _run(
    env: CostEnv,
    kind: str,
    entropy: tuple[int, ...],
    act: Callable[[np.ndarray], np.ndarray],
    moments: _Moments | None = None,
) -> Try:
    obs, ended, terminated = env.reset(episode_seed(*entropy)), False, False
    rewards, costs, largest = 0.0, [], 0.0
    while not ended:
        if moments is not None:
            moments.add(obs)
        obs, reward, cost, terminated, truncated = env.step(np.clip(act(obs), -1.0, 1.0).astype(np.float32))
        rewards += reward
        costs.append(cost)
        largest = max(largest, float(np.abs(obs).max()))
        ended = terminated or truncated
    tenth = np.minimum(np.arange(len(costs)) * TENTHS // env.spec.episode_length, TENTHS - 1)
    by_tenth = np.bincount(tenth, costs, minlength=TENTHS)
    early = len(costs) < env.spec.episode_length
    return Try(kind, rewards, float(sum(costs)), len(costs), early, max(costs), largest, by_tenth)
