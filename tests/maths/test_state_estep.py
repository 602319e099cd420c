"""The E-step with a multiplier for each state: against bisection and scipy in float64, and by its optimality."""

from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccpo.maths.state_estep import StateEStep, state_estep
from state_estep_oracle import KINDS, Batches, bisection, by_minimiser, by_scipy, nasty_batches, random_batches, tilted


def step_of(p: Batches) -> StateEStep:
    return state_estep(*p[:3], **{name: getattr(p, name) for name in Batches._fields[3:]})


step_all = jax.jit(jax.vmap(step_of))
SHAPES = {(1, 2, 1): 250, (4, 16, 1): 500, (2, 64, 1): 200, (48, 8, 1): 50, (3, 6, 2): 100, (2, 9, 3): 30}
"""How many random batches of each (S, K, M)."""


class Solved(NamedTuple):
    """Random batches, and nasty ones behind them, and what was found."""

    random: int
    batches: Batches
    step: StateEStep
    weights: np.ndarray
    """q* in float64, normalised once more."""

    @property
    def problems(self) -> Batches:
        return self.batches.centred()


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def solved(request) -> Solved:
    random = SHAPES[request.param]
    parts = random_batches(random, *request.param), nasty_batches(2 * KINDS, *request.param)
    problems = Batches(*(np.concatenate(a) for a in zip(*parts, strict=True)))
    step = jax.tree.map(np.asarray, step_all(problems))
    weights = step.weights.astype(np.float64)
    return Solved(random, problems, step, weights / weights.sum(2, keepdims=True))


def kl_of(q: np.ndarray) -> np.ndarray:
    return (q * np.log(np.maximum(q, 1e-300) * q.shape[2])).sum(2).mean(1)


def test_everything_is_finite_and_in_the_box(solved):
    p, step = solved.problems, solved.step
    assert all(np.isfinite(a).all() for a in step)
    assert (step.temperature >= p.temperature_min.astype(np.float32)).all()
    top = p.multiplier_max[:, None, None].astype(np.float32)
    assert ((step.multiplier >= 0) & (step.multiplier <= top)).all()
    np.testing.assert_array_equal(step.at_bound, step.multiplier == top)
    assert (step.weights >= 0).all()
    np.testing.assert_allclose(step.weights.sum(-1), 1.0, atol=1e-5)


def test_no_q_is_better(solved):
    """The value of q is that of the dual at (η, λ), and no q has a higher one than any dual."""
    p, step, q = solved.problems, solved.step, solved.weights
    over = np.maximum((q[..., None] * p.q_cost).sum(2), 0.0).sum(2)
    primal = ((q * p.q_reward).sum(2) - p.multiplier_max[:, None] * over).mean(1)
    temperature, multiplier = np.float64(step.temperature), np.float64(step.multiplier)
    unused = np.where(temperature <= 1.001 * p.temperature_min, temperature * (p.kl_bound - kl_of(q)), 0.0)
    gap = tilted(p, temperature, multiplier).value - unused - primal
    dearest = p.spread(p.multiplier_max[:, None, None])
    # A bound missed by rounding alone already costs λ_max.
    assert (gap <= 1e-6 * p.spread(multiplier) + 2e-7 * dearest + 1e-12).all()


def test_the_trust_region_is_used_and_kept(solved):
    p, step = solved.problems, solved.step
    used = kl_of(solved.weights) / p.kl_bound
    np.testing.assert_allclose(step.kl / p.kl_bound, used, atol=3e-4)
    interior = step.temperature > 1.001 * p.temperature_min
    assert interior.sum() > 20
    np.testing.assert_allclose(used[interior], 1.0, atol=3e-4)
    assert (used <= 1.0 + 3e-4).all()


def test_a_bound_is_met_or_its_multiplier_says_why_not(solved):
    p, step = solved.problems, solved.step
    spread = np.ptp(p.q_cost, 2)
    over = (solved.weights[..., None] * p.q_cost).sum(2)
    tolerance = (1e-6 if spread.shape[2] == 1 else 1e-4) * spread + 1e-30
    inside = (step.multiplier > 0) & ~step.at_bound
    assert min(inside.sum(), step.at_bound.sum(), (step.multiplier == 0).sum()) > 20
    assert (over <= tolerance)[~step.at_bound].all()
    assert (over >= -tolerance)[step.multiplier > 0].all()


def test_weights_are_those_of_the_temperature_and_the_multipliers(solved):
    p, step = solved.problems, solved.step
    temperature, multiplier = np.float64(step.temperature), np.float64(step.multiplier)
    rounding = 1e-6 * (np.ptp(p.q_reward, 2) + (multiplier * np.ptp(p.q_cost, 2)).sum(2)).max(1) / temperature
    error = abs(tilted(p, temperature, multiplier).weights - solved.weights).max((1, 2))
    assert (error <= 2e-6 + rounding).all()
    assert (rounding < 1e-3).sum() > 50


def test_one_constraint_equals_the_slow_version(solved):
    p, step = solved.problems, solved.step
    if p.bound.shape[2] > 1:
        pytest.skip("the slow version knows one constraint")
    temperature, multiplier = bisection(p)
    best = tilted(p, temperature, multiplier)
    reached = tilted(p, np.float64(step.temperature), np.float64(step.multiplier)).value
    assert (abs(reached - best.value) <= 3e-6 * p.spread(multiplier) + 1e-12).all()
    easy = slice(solved.random)
    np.testing.assert_allclose(solved.weights[easy], best.weights[easy], atol=5e-6)
    np.testing.assert_allclose(step.temperature[easy], temperature[easy], rtol=2e-3)


def test_reported_means_are_those_of_the_weights(solved):
    cost = solved.batches.q_cost.astype(np.float64)
    expected = (solved.weights[..., None] * cost).sum(2)
    error = abs(solved.step.mean_cost - expected)
    assert (error <= 1e-6 * np.ptp(cost, 2) + 2e-7 * abs(cost).max(2)).all()
    effective = (1.0 / (solved.weights**2).sum(2)).mean(1)
    np.testing.assert_allclose(solved.step.effective_samples, effective, rtol=1e-5)


def test_one_constraint_equals_scipy():
    batches = random_batches(528, 4, 16, seed=2)
    step, p = jax.tree.map(np.asarray, step_all(batches)), batches.centred()
    for i in range(100):
        temperature, multiplier = by_scipy(p.take(slice(i, i + 1)))
        np.testing.assert_allclose(step.temperature[i], temperature, rtol=2e-3)
        sharpness = np.ptp(p.q_cost[i, ..., 0], 1) / temperature
        np.testing.assert_allclose(step.multiplier[i, :, 0] * sharpness, multiplier * sharpness, atol=1e-3, rtol=1e-3)


def test_two_constraints_equal_scipy():
    batches = random_batches(128, 3, 6, 2, seed=4)
    step, p = jax.tree.map(np.asarray, step_all(batches)), batches.centred()
    multiplier = np.float64(step.multiplier)
    reached = tilted(p, np.float64(step.temperature), multiplier).value
    best = np.array([by_minimiser(p.take(slice(i, i + 1))) for i in range(128)])
    assert (abs(reached - best) <= 1e-6 * p.spread(multiplier)).all()


def assert_same(a: object, b: object, **tolerance: float) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **{"rtol": 1e-4, "atol": 1e-5} | tolerance), a, b)


def test_compiled_or_not_and_batched_or_not():
    batches = random_batches(528, 4, 16, seed=2)
    together, compiled = step_all(batches), jax.jit(step_of)
    singles = [jax.tree.map(jnp.asarray, batches.take(i)) for i in range(5)]
    for i, one in enumerate(singles):
        assert_same(jax.tree.map(lambda a, i=i: a[i], together), compiled(one))
    assert_same(step_of(singles[0]), compiled(singles[0]))


def batch(states: int = 16, actions: int = 8, constraints: int = 1) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(a[0]) for a in random_batches(1, states, actions, constraints, seed=5)[:3])


traces = []


@jax.jit
def _solve(q_reward, q_cost, bound, kl_bound, price):
    traces.append(q_cost.shape)
    return state_estep(q_reward, q_cost, bound, kl_bound=kl_bound, multiplier_max=price)


def solve(q_reward, q_cost, bound, *, kl_bound: float = 0.05, price: float = 3.0) -> StateEStep:
    return _solve(q_reward, q_cost, bound, jnp.float32(kl_bound), jnp.float32(price))


def test_a_higher_price_buys_less_cost_above_the_bounds():
    q = batch()
    over = [float(jnp.maximum(solve(*q, price=x).mean_cost - q[2], 0.0).mean()) for x in (0.0, 0.3, 3.0, 30.0)]
    assert over == sorted(over, reverse=True)
    assert over[-1] < 0.5 * over[0]
    assert traces.count(q[1].shape) == 1


def test_a_bound_out_of_reach_is_a_price():
    q_reward, q_cost, bound = batch()
    step, priced = solve(q_reward, q_cost, bound - 1e3), solve(q_reward - 3.0 * q_cost[..., 0], q_cost, bound + 1e3)
    assert step.at_bound.all()
    np.testing.assert_array_equal(priced.multiplier, 0.0)
    assert_same(step.weights, priced.weights)


def test_a_slack_constraint_changes_nothing_and_one_twice_doubles_the_price():
    q_reward, q_cost, bound = batch()
    one, dear = solve(q_reward, q_cost, bound), solve(q_reward, q_cost, bound, price=6.0)
    slack = solve(q_reward, jnp.concatenate([q_cost, -q_cost], 2), jnp.concatenate([bound, bound + 1e3], 1))
    twice = solve(q_reward, jnp.tile(q_cost, (1, 1, 2)), jnp.tile(bound, (1, 2)))
    assert 0 < one.at_bound.sum() < 16
    assert_same(one.weights, slack.weights)
    assert_same(dear.weights, twice.weights)


def test_offsets_and_units_do_not_matter():
    # Multiples of 1/256, so that float32 adds the offsets without rounding.
    q_reward, q_cost, bound = (jnp.round(a * 256) / 256 for a in batch())
    base = solve(q_reward, q_cost, bound)
    offset = 2.0**10 * jnp.arange(16.0)[:, None]
    moved = solve(0.5 * q_reward + offset, 8.0 * q_cost + offset[..., None], 8.0 * bound + offset, price=3.0 / 16)
    assert_same(base.weights, moved.weights, atol=1e-6)
    assert_same(base.multiplier, 16.0 * moved.multiplier)


def test_constant_q_leaves_the_policy_as_it_is():
    q_reward, q_cost, bound = batch()
    for shift in (-9.0, 9.0):
        step = solve(jnp.full_like(q_reward, 7.0), jnp.full_like(q_cost, 0.1), bound + shift)
        np.testing.assert_allclose(step.weights, 1.0 / 8, atol=1e-7)
        np.testing.assert_array_equal(step.at_bound, shift < 0)


@pytest.mark.parametrize("shape", [(1, 1, 1), (512, 2, 1), (16, 8, 2)])
def test_no_scale_or_shape_breaks_it(shape):
    q_reward, q_cost, bound = batch(*shape)
    for r, c in product((0.0, 1e-30, 1e-8, 1.0, 1e8), repeat=2):
        for offset, price in product((0.0, 1e8), (0.0, 1e-6, 1e6)):
            step = solve(q_reward * r + offset, q_cost * c + offset, bound * c + offset, price=price)
            assert all(np.isfinite(a).all() for a in step)
            np.testing.assert_allclose(step.weights.sum(-1), 1.0, atol=1e-5)


VALUES = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.0, -1.0, 1e-6, 1e4])


@settings(deadline=None, max_examples=300)
@given(st.lists(VALUES, min_size=33, max_size=33), st.floats(1e-3, 0.5), st.sampled_from([0.0, 1e-3, 1.0, 1e4]))
def test_nothing_breaks_it(values, kl_bound, price):
    q = np.array(values, np.float32)
    step = solve(q[:15].reshape(3, 5), q[15:30].reshape(3, 5, 1), q[30:].reshape(3, 1), kl_bound=kl_bound, price=price)
    assert all(np.isfinite(a).all() for a in step)
    np.testing.assert_allclose(step.weights.sum(-1), 1.0, atol=1e-5)
    assert step.kl <= 1.001 * kl_bound + 1e-6


def test_no_gradient_passes_through():
    q = batch()
    gradient = jax.jit(jax.grad(lambda a: (solve(a, *q[1:]).weights * q[0]).sum()))
    np.testing.assert_array_equal(gradient(q[0]), 0.0)
