"""Confidence by betting: what calibration promises, and what the monitor watches, rests on the bets in here.

The mean is bounded by betting. Whoever claims "the mean is at least m" must accept every bet that is fair under the
claim: with x ∈ [0, 1] and a stake λ ∈ [0, 1/(1 − m)) that is fixed before the episodes are seen, the capital
W(m) = Π (1 + λ (m − xᵢ)) is positive and does not grow on average. By Markov's inequality P(W(m) ≥ 1/δ) ≤ δ: a claim
against which the capital reached 1/δ is refuted with error δ. Nothing is assumed of the shape of the distribution.
By Ville's inequality the same holds at all times at once if each stake is fixed before the episode it is for: then one
may look after every episode, which is what the monitor does.
"""

import math

import numpy as np

from ccpo.types import Array

LARGEST_STAKE = 0.9
"""Of what can be staked at all: an episode of the largest cost then leaves a tenth of the capital."""
TINY = 1e-12
_TOLERANCE = 1e-9


def log_gain_above(values: Array, mean: Array, stake: Array) -> Array:
    """What a bet against "the mean is at least m" gains: log(1 + λ (m − x)), λ = min(stake, 0.9/(1 − m))."""
    return np.log1p(np.minimum(stake, LARGEST_STAKE / np.maximum(1.0 - mean, TINY)) * (mean - values))


def log_gain_below(values: Array, mean: Array, stake: Array) -> Array:
    """What a bet against "the mean is at most m" gains: that of 1 − x against "the mean is at least 1 − m"."""
    return log_gain_above(1.0 - values, 1.0 - mean, stake)


def mean_upper_bound(values: np.ndarray, *, error: float, variance: float, episodes: int | None = None) -> float:
    """The smallest refuted mean: U = min {m : Σ log(1 + λ (m − xᵢ)) ≥ log(1/δ)}, 1 if none is; values xᵢ ∈ [0, 1].

    λ(m) = min(√(2 log(1/δ) / (n σ²)), 0.9/(1 − m)) is the best stake for a variance σ² within what can be staked.
    `variance` must come from elsewhere than `values`. P(mean > U) ≤ δ for independent values of equal mean. W grows
    with m for every x: so U is found by bisection, and U ≤ m says exactly that "the mean is at least m" is refuted.
    With `episodes`, the bound that so many episodes would give if they were distributed as `values` are.
    """
    count = len(values) if episodes is None else episodes
    goal = math.log(1.0 / error) / count
    stake = math.sqrt(2.0 * goal / variance) if variance > 0.0 else math.inf
    low, high = float(np.mean(values)), 1.0
    while high - low > _TOLERANCE:
        mean = 0.5 * (low + high)
        if log_gain_above(values, mean, stake).mean() >= goal:
            high = mean
        else:
            low = mean
    return high


def episodes_for_bound(values: np.ndarray, limit: float, *, error: float, variance: float) -> int | None:
    """About how many episodes, distributed as `values` are, would bring the bound down to the limit, or None.

    Rounded up to a power of two times a hundred, for it is a forecast.
    """
    if float(np.mean(values)) >= limit:
        return None
    for count in (100 * 2**power for power in range(15)):
        if mean_upper_bound(values, error=error, variance=variance, episodes=count) <= limit:
            return count
    return None


def probability_upper_bound(hits: int, trials: int, *, error: float) -> float:
    """Clopper and Pearson: the largest p with P(Binomial(n, p) ≤ hits) ≥ δ, found by bisection."""
    if hits >= trials:
        return 1.0
    low, high = hits / trials, 1.0
    while high - low > _TOLERANCE:
        p = 0.5 * (low + high)
        if binomial_tail(hits, trials, p) >= error:
            low = p
        else:
            high = p
    return high


def binomial_tail(hits: int, trials: int, p: float) -> float:
    """P(Binomial(n, p) ≤ hits) for 0 < p < 1."""
    k = np.arange(hits + 1)
    log_choose = math.lgamma(trials + 1) - np.array([math.lgamma(i + 1) + math.lgamma(trials - i + 1) for i in k])
    return float(np.exp(log_choose + k * math.log(p) + (trials - k) * math.log1p(-p)).sum())
