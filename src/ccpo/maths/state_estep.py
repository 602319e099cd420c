"""The elastic E-step with a multiplier for each state and constraint: its dual, an exact solver and the weights q*.

    max over q of  mean_j ( E_q[Q_r(s_j, ·)] − λ_max Σ_m max(0, E_q[Q_c,m(s_j, ·)] − B_jm) )
    subject to  mean_j KL(q_j‖π(·|s_j)) ≤ κ

from K actions of π in each of S states. The price λ_max of a unit of cost above its bound makes every problem
feasible. The dual has one temperature η and a multiplier λ_jm ∈ [0, λ_max] of each state and constraint:

    min over η of  η κ + mean_j min over λ_j of  λ_j·B_j + η log mean_k exp((Q_r − λ_j·Q_c)/η)

The outer problem in η is solved by safeguarded steps on KL = κ, the inner one by `maths.state_multipliers`.
Axes: S states, K action samples, M constraints.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ccpo.maths.state_multipliers import TINY, Moments, dot, moments, multipliers, solve
from ccpo.types import Array

TOLERANCE = 1e-4
"""Relative length of the last step of η; convergence is quadratic, but for kinks where a bound comes into force."""
ITERATIONS = 60
"""A bound for the hardest problems; usual ones take three to six."""
FARTHEST = 1.0 / 16.0
"""A step that changes 1/η² by a smaller factor is not trusted."""


class StateEStep(NamedTuple):
    """q* and what tells whether it is healthy."""

    weights: Array
    """q* [S, K], normalised over K."""
    temperature: Array
    """η, a scalar."""
    multiplier: Array
    """λ [S, M]."""
    at_bound: Array
    """Whether λ stands at λ_max [S, M]: at this price the trust region does not hold the bound."""
    kl: Array
    """KL(q*‖π), mean over states."""
    mean_cost: Array
    """E[Q_c] under q* [S, M]."""
    effective_samples: Array
    """1 / Σ_k q*², mean over states: between 1 and K."""


class _Problem(NamedTuple):
    """Reward [K, S] from its mean; costs x [M, K, S] from their bounds (or the nearest cost), in units [M, S].

    `low` and `high` [M, S] bound λ: they agree where every action keeps a bound, or none does.
    """

    reward: Array
    cost: Array
    origin: Array
    unit: Array
    low: Array
    high: Array


class _Search(NamedTuple):
    """η, sought between temperatures that were tried, λ [M, S], and the q of the last η."""

    temperature: Array
    low: Array
    high: Array
    multiplier: Array
    moments: Moments
    settled: Array
    """Whether η is the last one, for which λ and q are still to be found."""
    running: Array
    steps: Array


def state_estep(
    q_reward: Array,
    q_cost: Array,
    bound: Array,
    *,
    kl_bound: Array | float,
    multiplier_max: Array | float,
    temperature_min: Array | float = 1e-6,
) -> StateEStep:
    """q*(a|s_j) ∝ π(a|s_j) exp((Q_r − λ_j·Q_c)/η), the solution of the elastic E-step.

    λ_jm = 0 where E_q[Q_c,m] < B_jm, and λ_jm = λ_max where E_q[Q_c,m] > B_jm. KL = κ, unless q is as greedy as
    it can be before (η = temperature_min).

    Args:
        q_reward: Q_r [S, K] of K actions of π in S states.
        q_cost: Q_c [S, K, M].
        bound: B [S, M], in the units of Q_c.
        kl_bound, multiplier_max, temperature_min: κ > 0, λ_max ≥ 0 and the least η > 0.
    """
    # q* is a target of the M-step, not a function to differentiate.
    data = jax.lax.stop_gradient((q_reward, q_cost, bound, kl_bound, multiplier_max, temperature_min))
    q_reward, q_cost, bound, kl_bound, multiplier_max, temperature_min = data
    problem = _normalise(q_reward, q_cost, bound, multiplier_max)
    temperature, multiplier, found = _minimise(problem, kl_bound, temperature_min)
    return StateEStep(
        weights=found.weights.T,
        temperature=temperature,
        multiplier=multiplier.T,
        at_bound=(multiplier >= multiplier_max).T,
        kl=jnp.mean(found.kl),
        mean_cost=(problem.origin + problem.unit * found.cost).T,
        effective_samples=jnp.mean(1.0 / jnp.sum(found.weights**2, axis=0)),
    )


def _normalise(q_reward: Array, q_cost: Array, bound: Array, multiplier_max: Array) -> _Problem:
    """Differences come first, because float32 would lose a small spread beside a large offset."""
    reward = (q_reward - q_reward[:, :1]).T
    cost, bound = jnp.transpose(q_cost, (2, 1, 0)), bound.T
    least, most = jnp.min(cost, axis=1), jnp.max(cost, axis=1)
    origin = jnp.clip(bound, least, most)
    unit = jnp.where(most > least, most - least, 1.0)
    always, never = bound >= most, bound <= least
    zero = jnp.zeros_like(bound)
    return _Problem(
        reward=reward - jnp.mean(reward, axis=0)[None],
        cost=(cost - origin[:, None]) / unit[:, None],
        origin=origin,
        unit=unit,
        low=jnp.where(never & ~always, multiplier_max, zero),
        high=jnp.where(always, zero, multiplier_max),
    )


def _minimise(problem: _Problem, kl_bound: Array, temperature_min: Array) -> tuple[Array, Array, Moments]:
    """η, λ and the moments of q."""

    def step(search: _Search) -> _Search:
        temperature = search.temperature
        multiplier, found = _at_temperature(problem, temperature, search.multiplier)
        regression = _regression(problem, multiplier, found)
        slope = jnp.mean(found.variance - dot(regression, found.covariance))
        search = _next_temperature(search, jnp.mean(found.kl), slope, kl_bound, temperature_min)
        # Where a bound stays met, (λ − β)/η is constant, with β the regression of Q_r on Q_c under q.
        change = (temperature - search.temperature) * regression / problem.unit
        multiplier = jnp.clip(multiplier + change, problem.low, problem.high)
        return search._replace(multiplier=multiplier, moments=found)

    first, high = _temperatures(problem, kl_bound, temperature_min)
    search = _Search(
        temperature=first,
        low=jnp.zeros_like(first),
        high=high,
        multiplier=problem.low,
        moments=moments(jnp.zeros_like(problem.reward), problem.cost),
        settled=jnp.asarray(False),
        running=jnp.asarray(True),
        steps=jnp.int32(0),
    )
    search = jax.lax.while_loop(lambda s: s.running & (s.steps < ITERATIONS), step, search)
    return search.temperature, search.multiplier, search.moments


def _temperatures(problem: _Problem, kl_bound: Array, temperature_min: Array) -> tuple[Array, Array]:
    """A first η, right for Gaussian Q without constraints, and one that is not too low: KL ≤ (range of u)²/8."""
    spread = 2.0 * jnp.max(abs(problem.reward), axis=0) + dot(problem.high, problem.unit)
    high = jnp.maximum(jnp.max(spread) / jnp.sqrt(8.0 * kl_bound), temperature_min)
    gain = problem.reward - dot((problem.low * problem.unit)[:, None], problem.cost)
    deviation = jnp.mean(abs(gain - jnp.mean(gain, axis=0)[None]))
    return jnp.clip(deviation / jnp.sqrt(kl_bound), temperature_min, high), high


def _next_temperature(search: _Search, kl: Array, slope: Array, kl_bound: Array, temperature_min: Array) -> _Search:
    """A step on KL(η) = κ as if KL were linear in 1/η², as it is for Gaussian Q. `slope` is −dKL/dlog η."""
    temperature = search.temperature
    low = jnp.where(kl > kl_bound, temperature, search.low)
    high = jnp.where(kl > kl_bound, search.high, temperature)
    ratio = 1.0 + 2.0 * (kl_bound - kl) / jnp.maximum(slope, TINY)
    target = jnp.maximum(temperature / jnp.sqrt(jnp.maximum(ratio, TINY)), temperature_min)
    far = abs(target - temperature) > TOLERANCE * temperature
    # Where q has saturated, or every bound is met, the slope says little.
    lost = (ratio < FARTHEST) | (target <= low) | (target >= high)
    middle = jnp.sqrt(jnp.maximum(low, temperature_min)) * jnp.sqrt(high)
    target = jnp.where(far & lost, middle, target)
    return search._replace(
        temperature=jnp.where(search.settled, temperature, target),
        low=low,
        high=high,
        settled=abs(target - temperature) <= TOLERANCE * temperature,
        running=~search.settled,
        steps=search.steps + 1,
    )


def _regression(problem: _Problem, multiplier: Array, found: Moments) -> Array:
    """The regression [M, S] of u on the costs whose multipliers are free to keep their bounds met."""
    free = (multiplier > problem.low) & (multiplier < problem.high)
    return solve(found.cost_covariance, found.covariance, free)


def _at_temperature(problem: _Problem, temperature: Array, multiplier: Array) -> tuple[Array, Moments]:
    """λ and the moments of q, from a first λ.

    What is sought is the difference from it, in units of exponents: a sharp q changes with changes of λ that are
    too small for λ itself.
    """
    scale = problem.unit / temperature
    exponent = problem.reward / temperature - dot((multiplier * scale)[:, None], problem.cost)
    exponent = exponent - jnp.max(exponent, axis=0)[None]
    low, high = (problem.low - multiplier) * scale, (problem.high - multiplier) * scale
    y = multipliers(exponent, problem.cost, low, high)
    found = moments(exponent - dot(y[:, None], problem.cost), problem.cost)
    multiplier = jnp.clip(multiplier + y / scale, problem.low, problem.high)
    multiplier = jnp.where(y <= low, problem.low, jnp.where(y >= high, problem.high, multiplier))
    return multiplier, found
