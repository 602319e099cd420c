"""The multipliers of single states at a given temperature: the inner problem of `maths.state_estep`.

In each state, with actions of weights exp(u_k) before the constraints and costs x_k above their bounds,

    min over low ≤ y ≤ high of  log Σ_k exp(u_k − y·x_k),

whose q ∝ exp(u − y·x) has E_q[x_m] = 0 where y_m lies inside its box. Axes: K action samples, S states,
M constraints. States stand last, because a reduction over the first axes vectorises.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ccpo.types import Array

TOLERANCE = 3e-4
"""Length of the last step, in units of exponents; convergence is quadratic."""
ITERATIONS = 60
"""A bound for the hardest problems; usual ones take two to five."""
LOWEST = -80.0
"""An exponent below which a weight is zero beside the largest."""
NEVER = -1e30
"""The exponent of an action that takes no part."""
TINY = 1e-20
"""Stands for zero where something is divided by it."""
RIDGE = 1e-6
"""What is added to a variance, as a share of it, so that collinear costs have a solution."""
FIRST_RADIUS = 16.0
"""The longest first step of several multipliers."""


class Moments(NamedTuple):
    """q ∝ exp(u) [K, S] and its moments: each [S], of costs [M, S] and [M, M, S]."""

    weights: Array
    kl: Array
    """KL(q‖uniform)."""
    variance: Array
    """Var_q[u]."""
    cost: Array
    covariance: Array
    """Cov_q[u, x]."""
    cost_covariance: Array


class _Root(NamedTuple):
    """A root of a falling function of y [S], sought between `low` and `high`, which were tried."""

    y: Array
    low: Array
    high: Array
    running: Array
    steps: Array


class _Trust(NamedTuple):
    """A point y [M, S] with its first and second derivatives, and how far the next step may go [S]."""

    y: Array
    gradient: Array
    hessian: Array
    radius: Array
    running: Array
    steps: Array


def moments(exponent: Array, cost: Array) -> Moments:
    """The moments under q ∝ exp(exponent) [K, S] of exponent and cost [M, K, S]."""
    actions = exponent.shape[0]
    exponent = jnp.maximum(exponent - jnp.max(exponent, axis=0)[None], LOWEST)
    weights = jnp.exp(exponent)
    total = jnp.sum(weights, axis=0)
    weights = weights / total[None]
    mean = jnp.sum(weights * exponent, axis=0)
    u = exponent - mean[None]
    costs = [jnp.sum(weights * c, axis=0) for c in cost]
    x = [c - m[None] for c, m in zip(cost, costs, strict=True)]
    return Moments(
        weights=weights,
        kl=mean - jnp.log(total / actions),
        variance=jnp.sum(weights * u * u, axis=0),
        cost=jnp.stack(costs),
        covariance=jnp.stack([jnp.sum(weights * u * a, axis=0) for a in x]),
        cost_covariance=jnp.stack([jnp.stack([jnp.sum(weights * a * b, axis=0) for b in x]) for a in x]),
    )


def dot(a: Array, b: Array) -> Array:
    """Σ_m a_m b_m over the first axis, which is short: a reduction would be slow."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def solve(matrix: Array, right: Array, free: Array) -> Array:
    """z [M, S] with matrix z = right in the free components and z = 0 in the others; the matrix is positive."""
    size = right.shape[0]
    rows = [
        [jnp.where(free[i] & free[j], matrix[i, j], 0.0) * (1.0 + RIDGE * (i == j)) for j in range(size)]
        for i in range(size)
    ]
    z = [jnp.where(free[i], right[i], 0.0) for i in range(size)]
    for i in range(size):
        rows[i][i] = jnp.maximum(rows[i][i], TINY)
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            z[j] = z[j] - factor * z[i]
            rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    for i in reversed(range(size)):
        z[i] = (z[i] - sum(rows[i][j] * z[j] for j in range(i + 1, size))) / rows[i][i]
    return jnp.stack(z)


def multipliers(exponent: Array, cost: Array, low: Array, high: Array) -> Array:
    """y [M, S] of u = exponent [K, S] and x = cost [M, K, S], from a start at zero."""
    if cost.shape[0] == 1:
        return _one(exponent, cost[0], low[0], high[0])[None]
    return _many(exponent, cost, low, high)


def _one(exponent: Array, cost: Array, low: Array, high: Array) -> Array:
    """The root of h(y) = log Σ_{x>0} x exp(u − y x) − log Σ_{x<0} |x| exp(u − y x), by safeguarded Newton steps.

    h = 0 says E_q[x] = 0. Unlike E_q[x], h is nowhere flat, and it is a straight line for two actions.
    """
    exponent = jnp.where(cost == 0.0, NEVER, exponent + jnp.log(jnp.where(cost == 0.0, 1.0, abs(cost))))

    def step(root: _Root) -> _Root:
        value, slope = _log_ratio(exponent - root.y[None] * cost, cost)
        tried_low = jnp.where(value > 0.0, root.y, root.low)
        tried_high = jnp.where(value > 0.0, root.high, root.y)
        y = jnp.clip(root.y + value / jnp.maximum(slope, TINY), low, high)
        far = abs(y - root.y) > TOLERANCE
        middle = 0.5 * (jnp.maximum(tried_low, low) + jnp.minimum(tried_high, high))
        y = jnp.where(far & ((y <= tried_low) | (y >= tried_high)), middle, y)
        y = jnp.where(root.running, y, root.y)
        return _Root(y, tried_low, tried_high, abs(y - root.y) > TOLERANCE, root.steps + 1)

    zero = jnp.zeros_like(low)
    root = _Root(jnp.clip(zero, low, high), zero - jnp.inf, zero + jnp.inf, low < high, jnp.int32(0))
    return jax.lax.while_loop(lambda r: jnp.any(r.running) & (r.steps < ITERATIONS), step, root).y


def _log_ratio(exponent: Array, cost: Array) -> tuple[Array, Array]:
    """log Σ_{x>0} exp(v) − log Σ_{x<0} exp(v) of v = exponent [K, S], and how fast it falls with y of v − y x."""
    above, below = cost > 0.0, cost < 0.0
    top_above = jnp.max(jnp.where(above, exponent, NEVER), axis=0)
    top_below = jnp.max(jnp.where(below, exponent, NEVER), axis=0)
    weights = jnp.exp(exponent - jnp.where(above, top_above[None], top_below[None]))
    weights_above, weights_below = jnp.where(above, weights, 0.0), jnp.where(below, weights, 0.0)
    sum_above = jnp.maximum(jnp.sum(weights_above, axis=0), TINY)
    sum_below = jnp.maximum(jnp.sum(weights_below, axis=0), TINY)
    mean_above = jnp.sum(weights_above * cost, axis=0) / sum_above
    mean_below = jnp.sum(weights_below * cost, axis=0) / sum_below
    return top_above - top_below + jnp.log(sum_above / sum_below), mean_above - mean_below


def _many(exponent: Array, cost: Array, low: Array, high: Array) -> Array:
    """Newton steps in the free components, each up to the first bound of the box and within a radius.

    A step is taken if the slope along it has not risen far above zero, which by convexity means descent.
    """

    def derivatives(y: Array) -> tuple[Array, Array]:
        at = moments(exponent - dot(y[:, None], cost), cost)
        return -at.cost, at.cost_covariance

    def step(trust: _Trust) -> _Trust:
        direction = _newton_direction(trust, low, high)
        room = jnp.where(direction > 0.0, high - trust.y, trust.y - low) / jnp.maximum(abs(direction), TINY)
        room = jnp.where(direction == 0.0, jnp.inf, room)
        length = jnp.max(abs(direction), axis=0)
        within = jnp.minimum(1.0, trust.radius / jnp.maximum(length, TINY))
        fraction = jnp.minimum(within, jnp.min(room, axis=0))
        ends = jnp.where(direction > 0.0, high, low)
        y = jnp.where(room <= fraction[None], ends, jnp.clip(trust.y + fraction[None] * direction, low, high))
        gradient, hessian = derivatives(y)
        before, after = dot(trust.gradient, direction), dot(gradient, direction)
        near = -fraction * before <= TOLERANCE**2
        accept = trust.running & (near | (after <= -0.5 * before))
        longer = jnp.where(fraction < 1.0, 8.0 * trust.radius, trust.radius)
        return _Trust(
            y=jnp.where(accept[None], y, trust.y),
            gradient=jnp.where(accept[None], gradient, trust.gradient),
            hessian=jnp.where(accept[None, None], hessian, trust.hessian),
            radius=jnp.where(accept, longer, 0.25 * fraction * length),
            running=trust.running & ~(near & (fraction == 1.0)),
            steps=trust.steps + 1,
        )

    y = jnp.clip(jnp.zeros_like(low), low, high)
    running = jnp.any(low < high, axis=0)
    trust = _Trust(y, *derivatives(y), jnp.full_like(low[0], FIRST_RADIUS), running, jnp.int32(0))
    return jax.lax.while_loop(lambda t: jnp.any(t.running) & (t.steps < ITERATIONS), step, trust).y


def _newton_direction(trust: _Trust, low: Array, high: Array) -> Array:
    """−H⁻¹g [M, S] in the components that can follow it, so that some way lies inside the box; zero in the others."""
    at_low, at_high = trust.y <= low, trust.y >= high
    free = ~((at_low & (trust.gradient >= 0.0)) | (at_high & (trust.gradient <= 0.0)))
    direction = jnp.zeros_like(low)
    for _ in range(len(low)):
        direction = solve(trust.hessian, -trust.gradient, free)
        free = free & ~((at_low & (direction < 0.0)) | (at_high & (direction > 0.0)))
    return jnp.where(free, direction, 0.0)
