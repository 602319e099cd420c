"""What the E-step bounds: the cost that ε allows, in the unit of Q_c, corrected by measured episodes."""

import jax
import jax.numpy as jnp

from ccpo.algorithms.ccpo.model import State, critic_inputs, drawn_in, horizons, judged_actions, policy, pool_q
from ccpo.algorithms.ccpo.sampling import draw_states
from ccpo.algorithms.ccpo.settings import Config
from ccpo.maths import offpolicy
from ccpo.types import Array, Experience, Problem

SPREAD_RATE = 0.1
LEVEL_STATES = 32
UNBOUNDED = 1e6
"""In the critic's unit, in which Q_c is of order one."""


def update_cost_level(config: Config, problem: Problem, state: State, experience: Experience, key: Array) -> State:
    """Follow the mean of Q_c over the states that the policy visits under each of the evenly spaced thresholds."""
    thresholds = _knots(problem, config.knots)
    state_key, action_key = jax.random.split(key)
    condition = jnp.broadcast_to(thresholds[:, None], (config.knots, LEVEL_STATES))
    steps = draw_states(config, problem, experience, condition, state_key)
    obs = state.normaliser(steps.obs)
    action = judged_actions(config, action_key, *policy(config, problem, state.actor, obs, condition), count=1)
    inputs = critic_inputs(config, problem, obs, steps.time_to_go)
    q = pool_q(config, problem, state.critic, inputs, action, thresholds[:, None])["cost"]
    fresh = q.mean(axis=(1, 2)) * problem.threshold_range[1]
    rate = jnp.maximum(config.level_rate, 1.0 / (state.updates + 1.0))
    return state._replace(cost_level=state.cost_level + rate * (fresh - state.cost_level))


def feed_back(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Move the estimates of critic bias and cost spread towards what finished episodes show."""
    measured, count = offpolicy.measured_costs(problem, experience.statistics)
    thresholds = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    predicted = level_at(problem, state, thresholds)
    known = (count > 0) & (state.updates > 0)
    reach = config.feedback_reach * thresholds
    change = jnp.clip(predicted - measured, -reach, reach) - state.cost_bias
    rate = config.feedback_rate * jnp.where(change > 0, config.trust_share, 1.0)
    bias = state.cost_bias + jnp.where(known, rate, 0.0) * change
    # Half the squared difference of successive measurements: a variance that a drifting mean does not inflate.
    before = jnp.where(jnp.isnan(state.cost_measured), measured, state.cost_measured)
    jump = 0.5 * (measured - before) ** 2 * jnp.maximum(count, 1.0)
    variance = state.cost_variance + jnp.where(known, SPREAD_RATE, 0.0) * (jump - state.cost_variance)
    measured = jnp.where(count > 0, measured, state.cost_measured)
    state = state._replace(cost_bias=bias, cost_measured=measured, cost_variance=variance)
    metrics = {
        "feedback/predicted_cost": predicted.mean(),
        "feedback/cost_bias": bias.mean(),
        "feedback/cost_spread": jnp.sqrt(variance).mean(),
    }
    return state, metrics


def level_at(problem: Problem, state: State, thresholds: Array) -> Array:
    """The episodic cost that the critic expects of the policy under each threshold: [C] → [C]."""
    return jnp.interp(thresholds, _knots(problem, state.cost_level.shape[0]), state.cost_level)


def _knots(problem: Problem, count: int) -> Array:
    return jnp.linspace(*problem.threshold_range, count)


def cost_allowed(config: Config, problem: Problem, state: State, thresholds: Array, progress: Array) -> Array:
    """What an episode under each threshold may cost: ε, less the margin: [C] → [C].

    The margin grows with the run's progress: early costs spread widely because the policy still changes. Beyond the
    highest behaviour threshold no cost is measured and no state visited: only a share of what ε has there is granted.
    Below the lowest one, where the same holds, its policy may have to do for all: `low_margin`.
    """
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    spread = jnp.sqrt(state.cost_variance)
    margin = config.violation_margin * progress * jnp.interp(thresholds, behaviour, spread)
    if config.loose_share > 0:
        margin -= problem.spec.episode_length * jnp.maximum(1.0 - progress / config.loose_share, 0.0)
    low = problem.threshold_range[0]
    fading = jnp.interp(thresholds, behaviour[:2], jnp.array([1.0, 0.0])[: len(behaviour)])
    granted = jnp.minimum(thresholds, drawn_in(config, problem, thresholds))
    granted = jnp.maximum(granted - config.low_margin * (behaviour[0] - low) * fading, low)
    return granted - margin


def steepened(config: Config, problem: Problem, q_cost: Array, allowed: Array) -> Array:
    """Q_c [C, S, K], in which what lies beyond the cost allowed [C] in a single state counts more.

    An episode that keeps ε has no state from which it costs more than ε, and the constraint bounds a mean over states.
    """
    if config.state_price == 0:
        return q_cost
    look = horizons(config, problem)["cost"]
    limit = look.q_run(jnp.maximum(allowed, 0.0)) / look.q_threshold(problem.threshold_range[1])
    return q_cost + config.state_price * jnp.maximum(q_cost - limit[:, None, None], 0.0)


def q_threshold(
    config: Config,
    problem: Problem,
    state: State,
    thresholds: Array,
    q_cost: Array,
    *,
    log_weights: Array,
    allowed: Array,
) -> Array:
    """The bound on E_s E_q[Q_c], in the critic's unit, for q_cost [C, S, K] under the old policy: [C] → [C].

    None where the reward pays for overspending. What is allowed [C] is corrected by the critic's bias.
    value: ε_q itself, as in Eq. (8).
    advantage: E_s E_π[Q_c] + gain·(ε_q − level), which bounds the *change* of Q_c; the level is averaged over many
    batches, so that the states a batch happens to hold do not decide what is safe. What a step may be made to lower
    Q_c by is a share of what the trust region can, √(2κ)·σ_a(Q_c) in each state; the rest of it is the reward's.
    """
    if config.overspend_price > 0:
        return jnp.full_like(thresholds, UNBOUNDED)
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    target = allowed + jnp.interp(thresholds, behaviour, state.cost_bias)
    if config.constraint == "value":
        return target / problem.threshold_range[1]
    slack = (target - level_at(problem, state, thresholds)) / problem.threshold_range[1]
    log_weights, q_cost = (jnp.swapaxes(x, 1, 2) for x in (log_weights, q_cost))
    weights = jax.nn.softmax(log_weights, axis=1)
    mean = jnp.sum(weights * q_cost, axis=1)
    variance = jnp.sum(weights * (q_cost - mean[:, None]) ** 2, axis=1)
    reach = jnp.sqrt(2.0 * config.estep_kl_bound * variance.mean(axis=1))
    return mean.mean(axis=1) + jnp.maximum(config.constraint_gain * slack, -config.recovery_share * reach)
