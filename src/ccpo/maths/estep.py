"""The constraint-conditioned E-step: the dual g(η, λ), its exact solver and the weights q*.

For one threshold, q* maximises E[Q_r] subject to E[Q_c] ≤ q_threshold and KL(q‖π) ≤ κ, from K actions of
π(·|s, ε) in each of S states. Axes: C conditions (thresholds), S states, K action samples.

The solver works with z = (1, λ)/η. There q ∝ π exp(zᵀ(Q_r, −Q_c)) is an exponential family with
log-normaliser Λ(z), and each step minimises g exactly for the quadratic model of Λ at the current q, which
has a closed form. Were Q Gaussian, the first step would be the solution.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ccpo.types import Array

MAX_SHARPNESS = 1e12
"""The largest |z| in units of 1/spread of Q: beyond, q is greedy and squares may overflow."""
RESOLUTION = 1e-6
"""The share of a spread that float32 can still tell from rounding."""
ITERATIONS = 100
"""A bound for the hardest problems (outliers of Q far beyond their spread); usual ones take two to five."""
TOLERANCE = 1e-3
"""Relative length of the last step; convergence is quadratic, so the result is as exact as float32 allows."""
TINY = 1e-20
"""Stands for zero where something is divided by it."""


class Dual(NamedTuple):
    """A point of the dual problem: η, λ and g(η, λ)."""

    temperature: Array
    multiplier: Array
    value: Array


class EStep(NamedTuple):
    """q* of every threshold, and what tells whether it is healthy. All but the weights are [C]."""

    weights: Array
    """q* [C, S, K], normalised over K."""
    temperature: Array
    multiplier: Array
    at_bound: Array
    """Whether λ stands at its bound, so that q* is the cost-minimising step of the trust region."""
    kl: Array
    """KL(q*‖π), mean over states."""
    mean_cost: Array
    """E[Q_c] under q*, mean over states."""
    effective_samples: Array
    """1 / Σ_k q*², mean over states: between 1 and K."""


class _Measure(NamedTuple):
    """The distribution of the samples, p(k|s) = exp(log_action) and p(s) = state; scalars if uniform."""

    log_action: Array
    state: Array

    def mean(self, values: Array) -> Array:
        """E_s[values] of values [S]."""
        return jnp.sum(self.state * values)

    def covariance(self, a: Array, b: Array) -> Array:
        """E_s E_a[a b] of a, b [K, S] that are centred."""
        return self.mean(jnp.sum(jnp.exp(self.log_action) * a * b, axis=0))


class _Box(NamedTuple):
    """η ≥ temperature_min and 0 ≤ λ ≤ multiplier_max."""

    temperature_min: Array
    multiplier_max: Array


class _Point(NamedTuple):
    """A temperature h and a multiplier m in the units of a `_Problem`."""

    temperature: Array
    multiplier: Array


class _Problem(NamedTuple):
    """min over the box of g = m d + h κ + h E_s[log E_a[exp((r − m c)/h)]].

    Reward r and cost c [K, S] are centred in each state, uncorrelated and of spread 1 (or 0): with
    β the regression of Q_r on Q_c, η = reward_unit · h and λ = β + reward_unit / cost_unit · m.
    Actions stand first because a reduction over the first axis vectorises.
    """

    measure: _Measure
    reward: Array
    cost: Array
    budget: Array
    kl_bound: Array
    low: _Point
    multiplier_high: Array
    reward_unit: Array
    cost_unit: Array
    regression: Array


class _Moments(NamedTuple):
    """r and c under q ∝ p exp((r − m c)/h): means over the states."""

    kl: Array
    cost: Array
    reward_variance: Array
    covariance: Array
    cost_variance: Array


class _Search(NamedTuple):
    """A line search from `point`, where g has `slope`, to `target`; the next trial is a `fraction` along."""

    point: _Point
    target: _Point
    slope: Array
    fraction: Array
    running: Array
    steps: Array


def dual(
    temperature: Array,
    multiplier: Array,
    q_reward: Array,
    q_cost: Array,
    q_threshold: Array,
    *,
    kl_bound: float,
    log_weights: Array | None = None,
    state_weights: Array | None = None,
) -> Array:
    """The dual function of the E-step, convex in (η, λ); Eq. (dual_opt) of the paper, corrected.

    g(η, λ) = λ ε_q + η κ + η E_s[log E_a[exp((Q_r − λ Q_c)/η)]]

    Args:
        temperature, multiplier: η > 0 and λ ≥ 0.
        q_reward, q_cost: Q values [S, K] of K actions in S states.
        q_threshold: ε_q, the threshold in the units of Q_c.
        kl_bound: κ > 0.
        log_weights: log importance weights [S, K] of the actions, self-normalised over K; None is uniform.
        state_weights: weights [S] of the states, normalised here; None is uniform.
    """
    measure = _measure(q_reward.shape, log_weights, state_weights)
    reward, reward_anchor, reward_rest = _centre(q_reward, measure)
    cost, cost_anchor, cost_rest = _centre(q_cost, measure)
    log_mean, _, _ = _tilt((reward - multiplier * cost) / temperature, measure)
    budget = (q_threshold - cost_anchor) - cost_rest
    value = reward_rest + multiplier * budget + temperature * (kl_bound + measure.mean(log_mean))
    return reward_anchor + value


def solve_dual(
    q_reward: Array,
    q_cost: Array,
    q_threshold: Array,
    *,
    kl_bound: float,
    multiplier_max: float,
    temperature_min: float,
    log_weights: Array | None = None,
    state_weights: Array | None = None,
    start: Dual | None = None,
    iterations: int = ITERATIONS,
) -> Dual:
    """(η*, λ*) = argmin g(η, λ) over η ≥ temperature_min > 0, 0 ≤ λ ≤ multiplier_max, of one threshold.

    Arguments as of `dual`; `start` is a guess that replaces the closed-form one, such as the last solution;
    `iterations` bounds the evaluations of g, of which only as many are made as are needed.
    """
    measure = _measure(q_reward.shape, log_weights, state_weights)
    box = _Box(temperature_min, multiplier_max)
    problem = _normalise(q_reward, q_cost, q_threshold, measure=measure, kl_bound=kl_bound, box=box)
    first = _gaussian_minimum(problem) if start is None else _to_units(problem, start)
    point = _minimise(problem, first, iterations=iterations)
    temperature, multiplier, _ = _from_units(problem, point, box)
    samples = {"log_weights": log_weights, "state_weights": state_weights}
    value = dual(temperature, multiplier, q_reward, q_cost, q_threshold, kl_bound=kl_bound, **samples)
    return Dual(temperature, multiplier, value)


def estep(
    q_reward: Array,
    q_cost: Array,
    q_threshold: Array,
    *,
    kl_bound: float,
    multiplier_max: float,
    temperature_min: float,
    log_weights: Array | None = None,
    state_weights: Array | None = None,
    iterations: int = ITERATIONS,
) -> EStep:
    """q*(a|s, ε) ∝ π(a|s, ε) exp((Q_r − λ* Q_c)/η*) of every threshold; Eq. (optimalq_theorem) of the paper.

    Where λ* reaches its bound, the constraint cannot be met inside the trust region (g → −∞ along λ); there
    q* ∝ π exp(−Q_c/η_c) is the cost-minimising step, KL(q*‖π) = κ, in which Q_r plays no part.

    Args:
        q_reward, q_cost: Q values [C, S, K].
        q_threshold: [C], in the units of Q_c.
        kl_bound, multiplier_max, temperature_min: κ and the box of the dual, all positive.
        log_weights: log importance weights [C, S, K] of the actions, self-normalised over K; None is uniform.
        state_weights: weights [C, S] of the states, normalised here; None is uniform.
        iterations: as of `solve_dual`.
    """
    box = _Box(temperature_min, multiplier_max)

    def of_threshold(q_r: Array, q_c: Array, q_eps: Array, log_w: Array | None, state_w: Array | None) -> EStep:
        measure = _measure(q_r.shape, log_w, state_w)
        problem = _normalise(q_r, q_c, q_eps, measure=measure, kl_bound=kl_bound, box=box)
        point = _minimise(problem, _gaussian_minimum(problem), iterations=iterations)
        temperature, multiplier, at_bound = _from_units(problem, point, box)
        cost_temperature = _cost_minimum(problem, wanted=at_bound, iterations=iterations)
        exponent = jnp.where(at_bound, -problem.cost / cost_temperature, _exponent(problem, point))
        _, kl, weights = _tilt(exponent, measure)
        return EStep(
            weights=weights.T,
            temperature=temperature,
            multiplier=multiplier,
            at_bound=at_bound,
            kl=measure.mean(kl),
            mean_cost=measure.mean(jnp.sum(weights * q_c.T, axis=0)),
            effective_samples=measure.mean(1.0 / jnp.sum(weights**2, axis=0)),
        )

    # q* is a target of the M-step, not a function to differentiate.
    data = jax.lax.stop_gradient((q_reward, q_cost, q_threshold, log_weights, state_weights))
    return jax.vmap(of_threshold)(*data)


def _measure(shape: tuple[int, ...], log_weights: Array | None, state_weights: Array | None) -> _Measure:
    states, actions = shape
    uniform = jnp.asarray(-math.log(actions), float)
    log_action = uniform if log_weights is None else jax.nn.log_softmax(log_weights.T, axis=0)
    state = jnp.asarray(1.0 / states, float) if state_weights is None else state_weights / jnp.sum(state_weights)
    return _Measure(log_action, state)


def _centre(q: Array, measure: _Measure) -> tuple[Array, Array, Array]:
    """Q [S, K] as deviations [K, S] from the mean of their state, an anchor, and the mean less the anchor.

    Anchor and mean stay apart because float32 would lose a small spread beside a large offset.
    """
    anchor = q[0, 0]
    q = q.T - anchor
    state_mean = jnp.sum(jnp.exp(measure.log_action) * q, axis=0)
    return q - state_mean[None], anchor, measure.mean(state_mean)


def _tilt(exponent: Array, measure: _Measure) -> tuple[Array, Array, Array]:
    """q ∝ p exp(u): log E_a[exp(u)] [S], KL(q‖p) [S] and the weights q [K, S], normalised over actions."""
    top = jnp.max(exponent + measure.log_action, axis=0)
    exponent = exponent - top[None]
    weights = jnp.exp(exponent + measure.log_action)
    total = jnp.sum(weights, axis=0)
    weights, log_total = weights / total[None], jnp.log(total)
    return top + log_total, jnp.sum(weights * exponent, axis=0) - log_total, weights


def _normalise(
    q_reward: Array, q_cost: Array, q_threshold: Array, *, measure: _Measure, kl_bound: float, box: _Box
) -> _Problem:
    reward, _, _ = _centre(q_reward, measure)
    cost, anchor, rest = _centre(q_cost, measure)
    reward_spread = jnp.sqrt(measure.covariance(reward, reward))
    cost_variance = measure.covariance(cost, cost)
    cost_unit = jnp.where(cost_variance > 0.0, jnp.sqrt(cost_variance), 1.0)
    # Reward and cost are often nearly collinear; what of the reward the cost does not explain sets the scale.
    regression = measure.covariance(reward, cost) / cost_unit**2
    reward = reward - regression * cost
    residual_spread = jnp.sqrt(measure.covariance(reward, reward))
    reward_unit = jnp.maximum(residual_spread, jnp.maximum(reward_spread * RESOLUTION, box.temperature_min))
    exchange = cost_unit / reward_unit
    return _Problem(
        measure=measure,
        reward=reward / reward_unit,
        cost=cost / cost_unit,
        budget=((q_threshold - anchor) - rest) / cost_unit,
        kl_bound=jnp.asarray(kl_bound, float),
        low=_Point(box.temperature_min / reward_unit, -regression * exchange),
        multiplier_high=(box.multiplier_max - regression) * exchange,
        reward_unit=reward_unit,
        cost_unit=cost_unit,
        regression=regression,
    )


def _to_units(problem: _Problem, start: Dual) -> _Point:
    temperature = start.temperature / problem.reward_unit
    multiplier = (start.multiplier - problem.regression) * problem.cost_unit / problem.reward_unit
    return _into_box(problem, temperature, multiplier)


def _from_units(problem: _Problem, point: _Point, box: _Box) -> tuple[Array, Array, Array]:
    """η, λ, and whether λ stands at its bound."""
    temperature = jnp.maximum(point.temperature * problem.reward_unit, box.temperature_min)
    multiplier = problem.regression + point.multiplier * problem.reward_unit / problem.cost_unit
    at_bound = point.multiplier >= problem.multiplier_high
    multiplier = jnp.where(point.multiplier <= problem.low.multiplier, 0.0, multiplier)
    multiplier = jnp.where(at_bound, box.multiplier_max, jnp.clip(multiplier, 0.0, box.multiplier_max))
    return temperature, multiplier, at_bound


def _into_box(problem: _Problem, temperature: Array, multiplier: Array) -> _Point:
    multiplier = jnp.clip(multiplier, problem.low.multiplier, problem.multiplier_high)
    floor = jnp.maximum(problem.low.temperature, jnp.sqrt(1.0 + multiplier**2) / MAX_SHARPNESS)
    return _Point(jnp.maximum(temperature, floor), multiplier)


def _exponent(problem: _Problem, point: _Point) -> Array:
    return (problem.reward - point.multiplier * problem.cost) / point.temperature


def _moments(problem: _Problem, point: _Point) -> _Moments:
    measure = problem.measure
    _, kl, weights = _tilt(_exponent(problem, point), measure)
    reward, cost = jnp.sum(weights * problem.reward, axis=0), jnp.sum(weights * problem.cost, axis=0)
    r, c = problem.reward - reward[None], problem.cost - cost[None]
    return _Moments(
        kl=measure.mean(kl),
        cost=measure.mean(cost),
        reward_variance=measure.mean(jnp.sum(weights * r * r, axis=0)),
        covariance=measure.mean(jnp.sum(weights * r * c, axis=0)),
        cost_variance=measure.mean(jnp.sum(weights * c * c, axis=0)),
    )


def _model_minimum(problem: _Problem, point: _Point, moments: _Moments) -> _Point:
    """The minimum in the box if Λ is quadratic: KL = ½zᵀΣz + constant, and E[c] is linear in z.

    The profile min_h g is convex in m, so its free minimum, clipped, is the minimum in the box.
    """
    h, m = point
    a, b, v = moments.reward_variance, moments.covariance, jnp.maximum(moments.cost_variance, TINY)

    def variance(m: Array) -> Array:
        return jnp.maximum(a - 2.0 * b * m + v * m * m, 0.0)

    squared = variance(m) / h**2
    # Where q has saturated, the model knows no way back to the trust region: leave by a factor of 4.
    radius = jnp.maximum(2.0 * (problem.kl_bound - moments.kl) + squared, squared / 16.0 + TINY)
    excess = moments.cost + (v * m - b) / h - problem.budget
    slack = radius - excess**2 / v
    h = jnp.sqrt(jnp.maximum(a - b * b / v, 0.0) / jnp.maximum(slack, TINY))
    h = jnp.maximum(h, problem.low.temperature)
    m = jnp.where(slack > 0.0, (b + excess * h) / v, jnp.where(excess > 0.0, jnp.inf, -jnp.inf))
    m = jnp.clip(m, problem.low.multiplier, problem.multiplier_high)
    return _into_box(problem, jnp.sqrt(variance(m) / radius), m)


def _gaussian_minimum(problem: _Problem) -> _Point:
    """The minimum for Gaussian Q: the model at z = 0, whose moments are known by normalisation."""
    zero, one = jnp.asarray(0.0, float), jnp.asarray(1.0, float)
    return _model_minimum(problem, _Point(jnp.asarray(jnp.inf, float), zero), _Moments(zero, zero, one, zero, one))


def _cost_minimum(problem: _Problem, *, wanted: Array, iterations: int) -> Array:
    """The temperature η_c, in units of the cost, of the cost-minimising step of the trust region, if wanted."""
    zero = jnp.asarray(0.0, float)
    problem = problem._replace(
        reward=-problem.cost,
        cost=jnp.zeros_like(problem.cost),
        budget=zero,
        low=_Point(zero, zero),
        multiplier_high=zero,
    )
    return _minimise(problem, _gaussian_minimum(problem), wanted=wanted, iterations=iterations).temperature


def _minimise(problem: _Problem, start: _Point, *, iterations: int, wanted: Array = True) -> _Point:
    """Minimise the dual by model steps, each with a line search that looks at slopes alone.

    g is convex along the line, so a slope that has not risen far above zero means descent; and unlike the
    difference of two values of g, float32 does not lose it.
    """

    def step(search: _Search) -> _Search:
        trial = jax.tree.map(
            lambda p, t: (1.0 - search.fraction) * p + search.fraction * t, search.point, search.target
        )
        moments = _moments(problem, trial)
        gradient = _Point(problem.kl_bound - moments.kl, problem.budget - moments.cost)

        def slope(origin: _Point, target: _Point) -> Array:
            return gradient.temperature * (target.temperature - origin.temperature) + gradient.multiplier * (
                target.multiplier - origin.multiplier
            )

        ahead = slope(search.point, search.target)
        target = _model_minimum(problem, trial, moments)
        length = jnp.sqrt(1.0 + trial.multiplier**2)
        # A sharp q, of a small h, changes with small changes of m.
        near = jnp.clip(TOLERANCE * trial.temperature, RESOLUTION * length, TOLERANCE * length)
        far = (abs(target.temperature - trial.temperature) > TOLERANCE * trial.temperature) | (
            abs(target.multiplier - trial.multiplier) > near
        )
        steps = search.steps + 1
        onward = _Search(trial, target, slope(trial, target), jnp.ones_like(ahead), far, steps)
        shorter = search._replace(fraction=0.5 * search.fraction, steps=steps)
        accept = ahead <= -0.5 * search.slope
        return jax.tree.map(lambda o, s: jnp.where(accept, o, s), onward, shorter)

    zero = jnp.asarray(0.0, float)
    search = _Search(start, start, zero, zero, jnp.asarray(wanted), jnp.int32(0))
    search = jax.lax.while_loop(lambda s: s.running & (s.steps < iterations), step, search)
    return jax.tree.map(lambda p, t: jnp.where(search.running, p, t), search.point, search.target)
