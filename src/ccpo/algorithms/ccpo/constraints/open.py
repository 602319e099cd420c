"""The constraint of the open loop that works: the E-step bounds the *change* of Q_c, and measured episodes correct it.

A critic is biased, and the states that a batch happens to hold decide its mean of Q_c. So the level of Q_c under each
threshold is averaged over many batches, its distance to what episodes really cost is measured at the behaviour
thresholds and interpolated between them, and one E-step closes a share of the distance to the threshold.
"""

from typing import NamedTuple

import jax.numpy as jnp

from ccpo.algorithms.ccpo.constraints import Samples, Solution
from ccpo.algorithms.ccpo.constraints.paper import solve_thresholds
from ccpo.algorithms.ccpo.settings import Config
from ccpo.maths import offpolicy
from ccpo.maths.mstep import KNOTS, hats
from ccpo.types import Array, Experience, Problem

GAIN = 0.1
"""The share of the distance to the threshold that one E-step may close."""
REACH = 0.7
"""The share of the trust region's reach in Q_c that one E-step may be made to use; the rest is the reward's."""
LEVEL_RATE = 0.02
FEEDBACK_RATE = 0.1
SPREAD_RATE = 0.1
MARGIN = 1.3
"""In standard deviations of measured episodic cost; it grows with the run, for early costs spread since π changes."""


class Level(NamedTuple):
    """All in the environment's unit of cost."""

    predicted: Array
    """The running mean of Q_c at evenly spaced thresholds: [G]."""
    bias: Array
    """Predicted minus measured episodic cost, by behaviour threshold: [N]."""
    measured: Array
    """The latest measured one, NaN before the first: [N]."""
    variance: Array
    """Of measured costs around their slow drift: [N]."""


def init(problem: Problem) -> Level:
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    return Level(
        predicted=jnp.linspace(*problem.threshold_range, KNOTS),
        bias=jnp.zeros_like(behaviour),
        measured=jnp.full_like(behaviour, jnp.nan),
        variance=jnp.zeros_like(behaviour),
    )


def observe(problem: Problem, state: Level, experience: Experience) -> Level:
    """Move the estimates of critic bias and cost spread towards what finished episodes show."""
    measured, count = offpolicy.measured_costs(problem, experience.statistics)
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    known = count > 0
    predicted = jnp.interp(behaviour, jnp.linspace(*problem.threshold_range, KNOTS), state.predicted)
    change = jnp.clip(predicted - measured, -behaviour, behaviour) - state.bias
    # Half the squared difference of successive measurements: a variance that a drifting mean does not inflate.
    before = jnp.where(jnp.isnan(state.measured), measured, state.measured)
    jump = 0.5 * (measured - before) ** 2 * jnp.maximum(count, 1.0)
    return Level(
        predicted=state.predicted,
        bias=state.bias + jnp.where(known, FEEDBACK_RATE, 0.0) * change,
        measured=jnp.where(known, measured, state.measured),
        variance=state.variance + jnp.where(known, SPREAD_RATE, 0.0) * (jump - state.variance),
    )


def solve(config: Config, problem: Problem, state: Level, samples: Samples) -> Solution:
    """E_s E_q[Q_c] ≤ E_s E_π[Q_c] + gain·(ε − margin − level), but no further down than a share of the reach."""
    low, high = problem.threshold_range
    thresholds, q_cost = samples.budget[:, 0, 0], samples.q_cost[..., 0]
    mean = q_cost.mean(axis=(1, 2))
    state = state._replace(predicted=_follow(state.predicted, (thresholds - low) / (high - low), mean * high))
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    margin = MARGIN * samples.progress * jnp.interp(thresholds, behaviour, jnp.sqrt(state.variance))
    level = jnp.interp(thresholds, jnp.linspace(low, high, KNOTS), state.predicted)
    level -= jnp.interp(thresholds, behaviour, state.bias)
    variance = jnp.mean((q_cost - q_cost.mean(axis=-1, keepdims=True)) ** 2, axis=(1, 2))
    reach = jnp.sqrt(2.0 * config.estep_kl_bound * variance)
    bound = mean + jnp.maximum(GAIN * (thresholds - margin - level) / high, -REACH * reach)
    weights, metrics = solve_thresholds(config, problem, samples, bound)
    return Solution(weights, state, metrics)


def _follow(level: Array, position: Array, fresh: Array) -> Array:
    """Move the knots [G] around positions [C] towards fresh values [C]."""
    near = hats(KNOTS, position)
    error = fresh - near @ level
    return level + LEVEL_RATE * (error @ near)
