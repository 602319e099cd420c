"""What each constraint of CCPO's E-step keeps."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import make_config, make_experience, make_problem, make_state
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import constraints
from ccpo.algorithms.ccpo.constraints import Samples, closed, paper
from ccpo.algorithms.ccpo.constraints import open as open_loop
from ccpo.algorithms.ccpo.settings import CONSTRAINTS
from ccpo.errors import ConfigError
from ccpo.maths.offpolicy import measured_costs
from ccpo.types import LaneStatistics

CLOSED, OPEN = make_problem(closed=True), make_problem()
LOW, HIGH = OPEN.threshold_range
BEHAVIOUR = np.array(OPEN.behaviour_thresholds)
STATES, ACTIONS, KL = 64, 32, 0.05


def make_samples(problem, thresholds, q_reward, q_cost, *, progress=1.0) -> Samples:
    """Of arrays [C, S, K]; every state of a condition has its budget."""
    budget = np.broadcast_to(np.reshape(thresholds, (-1, 1, 1)), (*q_reward.shape[:2], 1))
    span = problem.spec.episode_length  # a price in the environment's unit is then one in that of Q
    arrays = (jnp.asarray(x, jnp.float32) for x in (q_reward, q_cost[..., None], budget, span, progress))
    return Samples(*arrays)


def uniform(shape, seed=0):
    return np.random.default_rng(seed).uniform(size=shape)


def temperature_of(q, kl_bound):
    """η at which q ∝ exp(Q/η) in each state uses the trust region: [S, K]."""

    def excess(log_temperature):
        z = q / np.exp(log_temperature)
        log_q = z - logsumexp(z, axis=-1, keepdims=True)
        return np.mean(np.sum(np.exp(log_q) * log_q, axis=-1) + np.log(q.shape[-1])) - kl_bound

    return np.exp(brentq(excess, -8.0, 8.0))


def solve_closed(q_reward, q_cost, *, price=1.0):
    config = make_config(ccpo, estep_kl_bound=KL)
    samples = make_samples(CLOSED, [4.0], q_reward[None], q_cost[None])
    state = closed.init(CLOSED)._replace(log_price=jnp.log(jnp.float32(price)))
    solution = closed.solve(config, CLOSED, state, samples)
    return np.asarray(solution.weights[0], np.float64), solution.metrics


def test_where_nothing_is_overspent_the_closed_loop_seeks_reward_only():
    reward = uniform((STATES, ACTIONS))
    weights, metrics = solve_closed(reward, np.zeros_like(reward))
    expected = softmax(reward / temperature_of(reward, KL), axis=-1)
    np.testing.assert_allclose(weights, expected, rtol=1e-2)
    assert metrics["estep/multiplier"] == metrics["estep/multiplier_at_bound"] == 0.0
    assert metrics["estep/kl_over_bound"] == pytest.approx(1.0, rel=1e-2)


def test_the_closed_loop_saves_cost_in_the_states_that_overspend_and_in_no_others():
    reward, cost = uniform((STATES, ACTIONS)), uniform((STATES, ACTIONS), seed=1)
    overspent = np.arange(STATES) % 2 == 0
    cost = cost * overspent[:, None]
    weights, metrics = solve_closed(reward, cost, price=5.0)
    plain = np.exp(reward[~overspent] / float(metrics["estep/temperature"]))
    np.testing.assert_allclose(weights[~overspent], plain / plain.sum(axis=-1, keepdims=True), rtol=1e-3)
    expected_cost = (weights * cost).sum(axis=-1)[overspent]
    assert (expected_cost < cost[overspent].mean(axis=-1)).all()
    assert metrics["estep/multiplier"] == pytest.approx(2.5, rel=1e-3)
    assert metrics["estep/multiplier_at_bound"] == pytest.approx(0.5)
    assert metrics["estep/predicted_cost"] == pytest.approx(HIGH * cost.mean(), rel=1e-4)


def test_a_higher_price_saves_more_and_a_tiny_one_nothing():
    reward, cost = uniform((STATES, ACTIONS)), uniform((STATES, ACTIONS), seed=1)
    reward = reward + cost  # what earns more costs more
    spent = []
    for price in (1e-6, 1.0, 100.0):
        weights, _ = solve_closed(reward, cost, price=price)
        spent.append(float((weights * cost).sum(axis=-1).mean()))
    free = softmax(reward / temperature_of(reward, KL), axis=-1)
    assert spent[0] == pytest.approx((free * cost).sum(axis=-1).mean(), rel=1e-2)
    assert spent[0] > cost.mean() > spent[2]
    assert spent[0] > spent[1] > spent[2]


def observed(costs, *, before=None, progress=closed.PRICE_WAITS + 0.1):
    """What the closed loop's constraint makes of a rollout whose deployed episodes cost this, by threshold: [N]."""
    each = np.repeat(np.asarray(costs, np.float32), CLOSED.lanes_per_threshold)[:, None]
    statistics = LaneStatistics(jnp.ones(CLOSED.lanes), jnp.asarray(each))
    experience = make_experience(CLOSED)._replace(statistics=statistics, progress=jnp.float32(progress))
    return closed.observe(CLOSED, before or closed.init(CLOSED), experience)


def test_the_price_rises_where_any_threshold_is_exceeded_and_falls_where_all_leave_some():
    start = float(closed.init(CLOSED).log_price)
    above, below = BEHAVIOUR * 0.5, BEHAVIOUR * 0.5
    above[1] = BEHAVIOUR[1] + closed.PRICE_REACH * HIGH
    assert observed(above).log_price == pytest.approx(start + closed.PRICE_RATE * 0.1, rel=1e-4)
    assert observed(below).log_price == pytest.approx(start - closed.PRICE_RATE * 0.1, rel=1e-4)
    exact = BEHAVIOUR - closed.LEFT * HIGH
    assert observed(exact).log_price == pytest.approx(start, abs=1e-4)


def test_the_price_stays_in_its_range_and_follows_the_run():
    state = observed(2.0 * BEHAVIOUR)
    for progress in (0.6, 0.8, 1.0):
        state = observed(2.0 * BEHAVIOUR, before=state, progress=progress)
    assert np.exp(state.log_price) == pytest.approx(closed.PRICE_RANGE[1], rel=1e-4)
    assert observed(2.0 * BEHAVIOUR, before=state, progress=1.0).log_price == state.log_price


def test_the_price_waits_until_there_was_time_to_learn():
    state = observed(2.0 * BEHAVIOUR, progress=closed.PRICE_WAITS - 0.05)
    assert state.log_price == closed.init(CLOSED).log_price
    later = observed(2.0 * BEHAVIOUR, before=state, progress=closed.PRICE_WAITS + 0.05)
    assert later.log_price == pytest.approx(float(state.log_price) + closed.PRICE_RATE * 0.05, rel=1e-3)


def test_the_price_waits_for_the_first_episode():
    experience = make_experience(CLOSED)
    silent = experience.statistics._replace(count=jnp.zeros(CLOSED.lanes))
    state = closed.observe(CLOSED, closed.init(CLOSED), experience._replace(statistics=silent))
    assert state.log_price == closed.init(CLOSED).log_price
    assert np.isnan(state.measured).all()


def expected_costs(module, state, thresholds, q_cost, *, progress=1.0, kl_bound=KL):
    """E_s E_q[Q_c] of each threshold as the E-step leaves it, where cost earns: [C], in the environment's unit."""
    config = make_config(ccpo, estep_kl_bound=kl_bound)
    samples = make_samples(OPEN, thresholds, q_cost, q_cost, progress=progress)
    solution = module.solve(config, OPEN, state, samples)
    spent = (np.asarray(solution.weights, np.float64) * q_cost).sum(axis=-1).mean(axis=-1)
    return spent * HIGH, solution


def test_the_papers_bound_is_epsilon_itself():
    """Where cost earns, all of ε is spent and no more, if the trust region reaches that far."""
    thresholds = np.array([2.0, 3.3, 6.0])
    q_cost = uniform((3, STATES, ACTIONS)) - 0.5 + thresholds[:, None, None] / HIGH + 0.02
    spent, solution = expected_costs(paper, paper.init(OPEN), thresholds, q_cost)
    np.testing.assert_allclose(spent, thresholds, rtol=1e-3)
    assert solution.metrics["estep/multiplier"] > 0.0
    assert solution.metrics["estep/multiplier_at_bound"] == 0.0
    assert paper.observe(OPEN, (), make_experience(OPEN)) == ()


def test_the_open_loop_closes_a_share_of_the_distance_that_is_measured():
    """The critic says 4 everywhere; episodes cost that less the bias; a margin of their spread is kept."""
    thresholds = np.array([2.5, 3.5, 5.5])
    q_cost = uniform((3, STATES, ACTIONS))
    q_cost += 4.0 / HIGH - q_cost.mean(axis=(1, 2), keepdims=True)
    bias, spread = np.array([-0.3, 0.0, 0.6]), np.array([0.1, 0.2, 0.3])
    level = open_loop.Level(
        jnp.full(open_loop.KNOTS, 4.0), jnp.asarray(bias), jnp.asarray(BEHAVIOUR), jnp.asarray(spread**2)
    )
    measured = 4.0 - np.interp(thresholds, BEHAVIOUR, bias)
    for progress in (0.0, 1.0):
        margin = open_loop.MARGIN * progress * np.interp(thresholds, BEHAVIOUR, spread)
        expected = 4.0 + open_loop.GAIN * (thresholds - margin - measured)
        spent, _ = expected_costs(open_loop, level, thresholds, q_cost, progress=progress)
        np.testing.assert_allclose(spent, expected, rtol=1e-3)


def test_the_open_loop_asks_no_more_than_a_share_of_what_the_trust_region_reaches():
    """Far above its threshold, cost falls by that share: for small κ the reach is √(2κ) of its spread."""
    kl_bound, q_cost = 1e-4, uniform((1, STATES, ACTIONS))
    spread = np.sqrt(np.mean((q_cost - q_cost.mean(axis=-1, keepdims=True)) ** 2))
    level = open_loop.init(OPEN)._replace(predicted=jnp.full(open_loop.KNOTS, q_cost.mean() * HIGH))
    level = level._replace(bias=jnp.full(3, -1000.0))
    spent, _ = expected_costs(open_loop, level, np.array([2.0]), q_cost, kl_bound=kl_bound)
    saved = q_cost.mean() - spent[0] / HIGH
    assert saved == pytest.approx(open_loop.REACH * np.sqrt(2.0 * kl_bound) * spread, rel=0.02)


def test_the_predicted_level_follows_the_critic_where_it_was_asked():
    level = open_loop.init(OPEN)
    knots = np.linspace(LOW, HIGH, open_loop.KNOTS)
    np.testing.assert_allclose(level.predicted, knots, rtol=1e-6)
    q_cost = np.full((1, STATES, ACTIONS), 9.0 / HIGH)
    _, solution = expected_costs(open_loop, level, knots[2:3], q_cost)
    expected = knots + open_loop.LEVEL_RATE * (9.0 - knots[2]) * (np.arange(len(knots)) == 2)
    np.testing.assert_allclose(solution.state.predicted, expected, rtol=1e-5)


@pytest.mark.parametrize(("beyond", "limited"), [(0.4, 0.4), (-0.3, -0.3), (1000.0, None), (-1000.0, None)])
def test_measured_costs_move_the_bias_by_a_rate_and_within_a_threshold(beyond, limited):
    """`beyond` is what the critic says above what is measured; only lanes that act as deployed are measured."""
    experience = make_experience(OPEN)
    measured, _ = measured_costs(OPEN, experience.statistics)
    deployed = np.asarray(experience.statistics.cost)[OPEN.lane_deployed, 0]
    np.testing.assert_allclose(measured, deployed, rtol=1e-6)
    level = open_loop.init(OPEN)
    knots = np.linspace(LOW, HIGH, open_loop.KNOTS)
    assert set(BEHAVIOUR) <= set(np.round(knots, 6))
    predicted = jnp.asarray(np.interp(knots, BEHAVIOUR, np.asarray(measured) + beyond), jnp.float32)
    after = open_loop.observe(OPEN, level._replace(predicted=predicted), experience)
    distance = np.clip(beyond, -BEHAVIOUR, BEHAVIOUR) if limited is None else np.full(3, limited)
    np.testing.assert_allclose(after.bias, open_loop.FEEDBACK_RATE * distance, rtol=1e-3)
    np.testing.assert_allclose(after.measured, deployed, rtol=1e-6)


def test_the_first_measured_cost_is_no_jump_and_later_ones_are():
    experience = make_experience(OPEN)
    level = open_loop.observe(OPEN, open_loop.init(OPEN), experience)
    np.testing.assert_array_equal(level.variance, 0.0)
    cost = np.asarray(level.measured)
    twice = experience._replace(statistics=experience.statistics._replace(cost=2.0 * experience.statistics.cost))
    level = open_loop.observe(OPEN, level, twice)
    # the mean of two episodes of each deployed lane has half the variance of one
    np.testing.assert_allclose(level.variance, open_loop.SPREAD_RATE * 2.0 * 0.5 * cost**2, rtol=1e-5)


def test_lanes_that_finished_nothing_change_nothing():
    experience = make_experience(OPEN)
    nothing = jax.tree.map(jnp.zeros_like, experience.statistics)
    level = open_loop.observe(OPEN, open_loop.init(OPEN), experience)
    after = open_loop.observe(OPEN, level, experience._replace(statistics=nothing))
    for new, old in zip(after, level, strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    ("name", "loop", "found"), [(None, "closed", closed), (None, "open", open_loop), ("paper", "open", paper)]
)
def test_a_loop_has_its_own_constraint_unless_told(name, loop, found):
    config = make_config(ccpo, constraint=name)
    assert constraints.find(config, replace(OPEN, closed=loop == "closed")) is found


@pytest.mark.parametrize(
    ("name", "loop", "other"), [("closed", "open", "closed"), ("open", "closed", "open"), ("paper", "closed", "open")]
)
def test_a_constraint_of_the_other_loop_is_refused(name, loop, other):
    problem = replace(OPEN, closed=loop == "closed")
    message = f"constraint={name} does not fit loop={loop}; leave constraint out, or set loop={other}"
    with pytest.raises(ConfigError, match=message):
        make_state(ccpo, make_config(ccpo, constraint=name), problem)


def test_each_named_constraint_is_a_file():
    files = {path.stem for path in Path(constraints.__path__[0]).glob("*.py")} - {"__init__"}
    assert files == set(CONSTRAINTS)
