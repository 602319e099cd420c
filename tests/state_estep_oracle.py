"""The E-step with a multiplier for each state in float64, slowly and by scipy; random and nasty problems for it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize

KINDS = 14
"""The kinds of nasty batches."""


class Batches(NamedTuple):
    """N batches of S states, each batch with its own bounds of the dual."""

    q_reward: np.ndarray
    q_cost: np.ndarray
    bound: np.ndarray
    kl_bound: np.ndarray
    multiplier_max: np.ndarray
    temperature_min: np.ndarray

    def cast(self, dtype: type) -> "Batches":
        return Batches(*(np.asarray(a, dtype) for a in self))

    def take(self, index: np.ndarray | slice) -> "Batches":
        return Batches(*(a[index] for a in self))

    def centred(self) -> "Batches":
        """The same problems in float64 and without offsets, where nothing is lost."""
        r, c, b, *rest = self.cast(np.float64)
        return Batches(r - r.mean(2, keepdims=True), c - b[:, :, None], np.zeros_like(b), *rest)

    def spread(self, multiplier: np.ndarray) -> np.ndarray:
        """The range of Q_r and of λ·Q_c, mean over states."""
        return (np.ptp(self.q_reward, 2) + (multiplier * np.ptp(self.q_cost, 2)).sum(2)).mean(1)


class Tilted(NamedTuple):
    """q at (η, λ), its mean KL, its costs, and g(η, λ)."""

    weights: np.ndarray
    kl: np.ndarray
    cost: np.ndarray
    value: np.ndarray


def tilted(p: Batches, temperature: np.ndarray, multiplier: np.ndarray) -> Tilted:
    """Written from the definitions, for float64."""
    u = (p.q_reward - (multiplier[:, :, None] * p.q_cost).sum(3)) / temperature[:, None, None]
    top = u.max(2, keepdims=True)
    weights = np.exp(u - top)
    log_mean = np.log(weights.mean(2))
    weights = weights / weights.sum(2, keepdims=True)
    kl = (weights * (u - top)).sum(2) - log_mean
    of_state = (multiplier * p.bound).sum(2) + temperature[:, None] * (top[..., 0] + log_mean)
    value = temperature * p.kl_bound + of_state.mean(1)
    return Tilted(weights, kl.mean(1), (weights[..., None] * p.q_cost).sum(2), value)


def bisect(passed: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The least x of each element that has `passed`, between low and high."""
    for _ in range(46):
        middle = 0.5 * (low + high)
        far = passed(middle)
        low, high = np.where(far, low, middle), np.where(far, middle, high)
    return high


def log_temperatures(p: Batches) -> tuple[np.ndarray, np.ndarray]:
    """log η between which the solution lies: KL ≤ (range of the exponents)²/8."""
    price = p.multiplier_max[:, None] * np.ptp(p.q_cost, 2).sum(2)
    spread = (np.ptp(p.q_reward, 2) + price).max(1)
    return np.log(p.temperature_min), np.log(p.temperature_min + spread / np.sqrt(8.0 * p.kl_bound))


def bisection(p: Batches) -> tuple[np.ndarray, np.ndarray]:
    """η [N] and λ [N, S, 1] of one constraint by nested bisection: slow, but nothing can go wrong."""
    zero, top = np.zeros_like(p.bound), np.broadcast_to(p.multiplier_max[:, None, None], p.bound.shape)

    def multiplier_at(temperature: np.ndarray) -> np.ndarray:
        def kept(multiplier: np.ndarray) -> np.ndarray:
            return tilted(p, temperature, multiplier).cost <= p.bound

        return np.where(kept(zero), 0.0, np.where(kept(top), bisect(kept, zero, top), top))

    def trusted(log_temperature: np.ndarray) -> np.ndarray:
        temperature = np.exp(log_temperature)
        return tilted(p, temperature, multiplier_at(temperature)).kl <= p.kl_bound

    low, high = log_temperatures(p)
    temperature = np.where(trusted(low), p.temperature_min, np.exp(bisect(trusted, low, high)))
    return temperature, multiplier_at(temperature)


def by_scipy(p: Batches) -> tuple[float, np.ndarray]:
    """η and λ [S] of one batch with one constraint by scipy's root finder, state by state."""
    r, c, b, (kl_bound,), (top,), _ = p
    r, c, b = r[0], c[0, ..., 0], b[0, :, 0]

    def weights(j: int, temperature: float, multiplier: float) -> np.ndarray:
        u = (r[j] - multiplier * c[j]) / temperature
        w = np.exp(u - u.max())
        return w / w.sum()

    def multiplier(j: int, temperature: float) -> float:
        def over(x: float) -> float:
            return float(weights(j, temperature, x) @ c[j] - b[j])

        if over(0.0) <= 0.0:
            return 0.0
        return top if over(top) >= 0.0 else brentq(over, 0.0, top, xtol=1e-14)

    def too_far(log_temperature: float) -> float:
        q = np.array(
            [weights(j, np.exp(log_temperature), multiplier(j, np.exp(log_temperature))) for j in range(len(r))]
        )
        return float((q * np.log(np.maximum(q, 1e-300) * q.shape[1])).sum(1).mean() - kl_bound)

    (low,), (high,) = log_temperatures(p)
    temperature = np.exp(low if too_far(low) <= 0.0 else brentq(too_far, low, high + 1e-3, xtol=1e-14))
    return temperature, np.array([multiplier(j, temperature) for j in range(len(r))])


def by_minimiser(p: Batches) -> float:
    """g* of one batch by scipy's L-BFGS-B over (log η, λ), from two starts, because it may stop early."""
    shape = p.bound.shape

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        temperature, multiplier = np.exp(x[:1]), x[1:].reshape(shape)
        at = tilted(p, temperature, multiplier)
        over_multiplier = (p.bound - at.cost).ravel() / shape[1]
        return at.value[0], np.concatenate([temperature * (p.kl_bound - at.kl), over_multiplier])

    (low,), (high,) = log_temperatures(p)
    box = [(low, high), *[(0.0, p.multiplier_max[0])] * (shape[1] * shape[2])]
    starts = [np.array([x, *np.zeros(len(box) - 1)]) for x in (np.clip(0.0, low, high), high)]
    options = {"maxiter": 5000, "maxfun": 5000, "ftol": 1e-15, "gtol": 1e-12}
    found = [minimize(value, x, jac=True, bounds=box, method="L-BFGS-B", options=options).fun for x in starts]
    return min(found)


def random_batches(n: int, states: int, actions: int, constraints: int = 1, seed: int = 0) -> Batches:
    """Reward and cost of all correlations; some bounds slack, some met, some too dear."""
    rng = np.random.default_rng([seed, n, states, actions, constraints])
    reward = rng.normal(size=(n, states, actions))
    mix = rng.uniform(-1, 1, (n, 1, 1, constraints))
    cost = mix * reward[..., None] + np.sqrt(1 - mix**2) * rng.normal(size=(n, states, actions, constraints))
    cost += rng.normal(size=(n, states, 1, constraints))
    kl_bound = 10 ** rng.uniform(-3, np.log10(0.5), n)
    bound = cost.mean(2) + np.sqrt(2.0 * kl_bound)[:, None, None] * rng.normal(size=(n, states, constraints))
    price = 10 ** rng.uniform(-1, 2, n)
    return Batches(reward, cost, bound, kl_bound, price, np.full(n, 1e-6)).cast(np.float32)


def nasty_batches(n: int, states: int, actions: int, constraints: int = 1, seed: int = 1) -> Batches:
    """Scales 1e-3 … 1e4, offsets, constants, ties, outliers, collinear Q, slack, infeasible, bounds at a cost."""
    p, rng, kind = (
        random_batches(n, states, actions, constraints, seed),
        np.random.default_rng(seed),
        np.arange(n) % KINDS,
    )
    r, c, b = (a.astype(np.float64) for a in p[:3])
    some = rng.uniform(size=(n, states)) < 0.4
    r[kind == 0] = 0.0
    c[kind == 1] = 0.0
    r[kind == 2], c[kind == 2] = 0.0, 0.0
    c[some & (kind == 3)[:, None]] = 0.0
    r[some & (kind == 4)[:, None]] = 0.0
    r[kind == 5], c[kind == 5] = (rng.uniform(size=a[kind == 5].shape) < 0.3 for a in (r, c))
    r[kind == 6], c[kind == 6] = (rng.standard_t(1.2, size=a[kind == 6].shape) for a in (r, c))
    c[kind == 7] = r[kind == 7][..., None]
    c[kind == 8] = 1e-3 * c[kind == 8] - r[kind == 8][..., None]
    b[kind == 9] += 10.0
    b[kind == 10] -= 10.0
    at_cost = np.where(rng.uniform(size=b.shape) < 0.5, c.min(2), c.max(2))
    b[kind == 11] = at_cost[kind == 11]
    r[kind == 12], c[kind == 12] = np.exp(4.0 * r[kind == 12]), np.exp(4.0 * c[kind == 12])
    b[kind == 12] = np.median(c[kind == 12], axis=2)
    r[kind == 13] *= 10 ** rng.uniform(-3, 3, r[kind == 13][..., :1].shape)
    reward_scale, cost_scale = 10 ** rng.uniform(-3, 4, (2, n, 1, 1))
    offset = rng.choice([0.0, 0.0, 1e2, 1e4], (2, n, 1, 1))
    r, c = (r + offset[0]) * reward_scale, (c + offset[1, ..., None]) * cost_scale[..., None]
    b = (b + offset[1]) * cost_scale
    price = 10 ** rng.uniform(-2, 3, n) * (reward_scale / cost_scale)[:, 0, 0]
    return p._replace(q_reward=r, q_cost=c, bound=b, multiplier_max=price).cast(np.float32)
