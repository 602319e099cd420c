"""What CCPO makes of thresholds: what its networks see of them, and which cost the E-step allows."""

import jax.numpy as jnp
import numpy as np
import pytest
from experiences import EPISODE, make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import constraint, model
from ccpo.maths.offpolicy import measured_costs
from ccpo.runtime import PolicyNet

PROBLEM = make_problem()
LOW, *_, HIGH = PROBLEM.behaviour_thresholds
THRESHOLDS = np.array([LOW - 0.5, LOW, (LOW + HIGH) / 2, HIGH, HIGH + 0.5], np.float32)


SHARES = [
    ({"beyond_share": 0.4}, 0.2, 0.2),
    ({"above_share": 0.4}, 0.5, 0.2),
    ({"beyond_share": 0.4, "above_share": 0.0}, 0.2, 0.0),
]


@pytest.mark.parametrize(("shares", "below", "above"), SHARES)
def test_networks_see_a_share_of_what_lies_beyond_the_behaviour_thresholds(shares, below, above):
    config = make_config(ccpo, **shares)
    bottom, top = PROBLEM.threshold_range
    expected = (np.array([LOW - below, *THRESHOLDS[1:4], HIGH + above]) - bottom) / top
    np.testing.assert_allclose(model.seen_threshold(config, PROBLEM, THRESHOLDS), expected, rtol=1e-5)


@pytest.mark.parametrize("shares", [shares for shares, *_ in SHARES])
def test_a_deployed_policy_sees_what_the_learner_sees(shares):
    config = make_config(ccpo, **shares)
    state = make_state(ccpo, config, PROBLEM)
    obs = np.asarray(make_experience(PROBLEM).rollout.obs)[: len(THRESHOLDS), 0]
    acting = ccpo.acting(config, PROBLEM, state)
    expected = ccpo.act(config, PROBLEM, state, obs, jnp.asarray(THRESHOLDS))
    np.testing.assert_allclose(PolicyNet(acting.deploy, acting.net).mean(obs, THRESHOLDS), expected, atol=1e-5)


@pytest.mark.parametrize(("progress", "loose"), [(0.0, EPISODE), (0.1, EPISODE / 2), (0.2, 0.0), (1.0, 0.0)])
def test_the_cost_allowed_comes_down_from_a_whole_episode(progress, loose):
    config = make_config(ccpo, loose_share=0.2, violation_margin=0.0)
    target = constraint.cost_allowed(
        config, PROBLEM, make_state(ccpo, config, PROBLEM), THRESHOLDS, jnp.float32(progress)
    )
    np.testing.assert_allclose(target, THRESHOLDS + loose, rtol=1e-5)


def test_the_cost_allowed_is_epsilon_less_margin_and_what_is_not_granted_and_its_bound_knows_the_bias():
    config = make_config(ccpo, beyond_share=0.4, violation_margin=2.0, constraint="value")
    state = make_state(ccpo, config, PROBLEM)
    count = len(PROBLEM.behaviour_thresholds)
    bias, spread = np.linspace(-0.3, 0.3, count), np.linspace(0.1, 0.5, count)
    state = state._replace(cost_bias=jnp.asarray(bias), cost_variance=jnp.asarray(spread**2))
    allowed = constraint.cost_allowed(config, PROBLEM, state, THRESHOLDS, jnp.float32(0.5))
    inner = np.clip(THRESHOLDS, LOW, HIGH)
    margin, correction = (np.interp(inner, PROBLEM.behaviour_thresholds, x) for x in (spread, bias))
    granted = np.array([*THRESHOLDS[:4], HIGH + 0.2])
    np.testing.assert_allclose(allowed, granted - margin, rtol=1e-5)
    q = jnp.zeros((len(THRESHOLDS), 1, 2))
    bound = constraint.q_threshold(config, PROBLEM, state, THRESHOLDS, q, log_weights=q, allowed=allowed)
    np.testing.assert_allclose(bound * PROBLEM.threshold_range[1], granted - margin + correction, rtol=1e-5)


def test_the_lowest_behaviour_threshold_may_stand_for_all_below():
    """Then its policy, which is also theirs, keeps the lowest of them; the next threshold has its own again."""
    config = make_config(ccpo, beyond_share=0.0, low_margin=1.0, violation_margin=0.0)
    state = make_state(ccpo, config, PROBLEM)
    bottom, (first, second, third) = PROBLEM.threshold_range[0], PROBLEM.behaviour_thresholds
    asked = np.array([bottom, (bottom + first) / 2, first, (first + second) / 2, second, third], np.float32)
    granted = [bottom, bottom, bottom, (bottom + second) / 2, second, third]
    np.testing.assert_allclose(
        constraint.cost_allowed(config, PROBLEM, state, asked, jnp.float32(1.0)), granted, rtol=1e-5
    )
    seen = model.seen_threshold(config, PROBLEM, asked)
    np.testing.assert_allclose(seen[:3], seen[0])


def test_one_behaviour_threshold_has_no_next_one():
    problem = make_problem((4.0,))
    config = make_config(ccpo, low_margin=0.5, violation_margin=0.0)
    target = constraint.cost_allowed(
        config, problem, make_state(ccpo, config, problem), np.float32([4.0, 7.0]), jnp.float32(1)
    )
    np.testing.assert_allclose(target, [2.5, 5.5])


@pytest.mark.parametrize(("predicted", "expected"), [(-0.3, -0.15), (0.3, 0.03), (-100.0, -1.0), (100.0, 0.2)])
def test_measured_costs_correct_the_constraint_quickly_one_way_and_slowly_the_other(predicted, expected):
    """`predicted` is what the critic says beyond what is measured; the correction starts from 0."""
    config = make_config(ccpo, feedback_rate=0.5, trust_share=0.2, feedback_reach=2.0 / LOW)
    experience = make_experience(PROBLEM)
    measured, _ = measured_costs(PROBLEM, experience.statistics)
    state = make_state(ccpo, config, PROBLEM)
    level = jnp.interp(jnp.linspace(*PROBLEM.threshold_range, config.knots), jnp.array([LOW]), measured[:1] + predicted)
    state = state._replace(cost_level=level, updates=jnp.int32(1))
    after, _ = ccpo.observe(config, PROBLEM, state, experience)
    np.testing.assert_allclose(after.cost_bias[0], expected, rtol=1e-4)


def test_the_first_measured_cost_is_no_jump_whenever_it_comes():
    config = make_config(ccpo)
    state = make_state(ccpo, config, PROBLEM)._replace(updates=jnp.int32(1))
    first = make_experience(PROBLEM)
    assert measured_costs(PROBLEM, first.statistics)[0].min() > 0
    state, _ = ccpo.observe(config, PROBLEM, state, first)
    np.testing.assert_array_equal(state.cost_variance, 0.0)
    twice = first._replace(statistics=first.statistics._replace(cost=2.0 * first.statistics.cost))
    state, _ = ccpo.observe(config, PROBLEM, state, twice)
    assert state.cost_variance.min() > 0


def test_cost_beyond_the_threshold_in_a_single_state_counts_more():
    config = make_config(ccpo, state_price=2.0, horizon="finite", discount=1.0)
    unit = model.horizons(config, PROBLEM)["cost"].q_threshold(PROBLEM.threshold_range[1])
    costs = np.array([0.0, 3.0, 4.0, 5.0, 9.0], np.float32)
    counted = constraint.steepened(config, PROBLEM, jnp.asarray(costs / unit)[None, None], jnp.array([4.0]))
    np.testing.assert_allclose(counted[0, 0] * unit, [0.0, 3.0, 4.0, 7.0, 19.0], rtol=1e-5)


@pytest.mark.parametrize(("price", "best"), [(0.0, {0, EPISODE}), (3.0, {0, 4, EPISODE})])
def test_a_threshold_that_no_multiplier_holds_is_held_by_the_price_of_states(price, best):
    """A sprint of n steps earns n²: of all lengths a multiplier prefers none or the longest, and never ε."""
    config = make_config(ccpo, state_price=price, horizon="finite", discount=1.0)
    unit = model.horizons(config, PROBLEM)["cost"].q_threshold(PROBLEM.threshold_range[1])
    lengths = np.arange(EPISODE + 1.0, dtype=np.float32)
    cost = constraint.steepened(config, PROBLEM, jnp.asarray(lengths / unit)[None, None], jnp.array([4.0]))[0, 0] * unit
    preferred = {int(np.argmax(lengths**2 - multiplier * np.asarray(cost))) for multiplier in np.linspace(0, 20, 201)}
    assert preferred == best
