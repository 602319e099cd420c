"""The E-step against scipy in float64, on random and on nasty problems."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import elementwise, minimize

from ccpo.maths.estep import Dual, dual, estep, solve_dual

BOX = {"kl_bound": 0.02, "multiplier_max": 100.0, "temperature_min": 1e-3}


class Problems(NamedTuple):
    """N problems, each with its own bounds; `log_weights` of −∞ cut the K actions of a problem to fewer."""

    q_reward: np.ndarray
    q_cost: np.ndarray
    q_threshold: np.ndarray
    kl_bound: np.ndarray
    multiplier_max: np.ndarray
    temperature_min: np.ndarray
    log_weights: np.ndarray | None = None
    state_weights: np.ndarray | None = None

    def float64(self) -> "Problems":
        """The same problems for the oracle, with probabilities in the place of the weights."""
        n, s, k = self.q_reward.shape
        log_weights = np.zeros((n, s, k)) if self.log_weights is None else self.log_weights
        state_weights = np.ones((n, s)) if self.state_weights is None else self.state_weights
        action = np.exp(log_weights.astype(np.float64))
        action, state = action / action.sum(2, keepdims=True), state_weights.astype(np.float64)
        state = state / state.sum(1, keepdims=True)
        return Problems(*(np.asarray(a, np.float64) for a in self[:6]), action, state)

    def take(self, index: np.ndarray) -> "Problems":
        return Problems(*(a[index] for a in self if a is not None))


def tilted(p: Problems, temperature: np.ndarray, multiplier: np.ndarray) -> tuple[np.ndarray, ...]:
    """g, KL(q‖π) and E[Q_c] at (η, λ), written from the definitions. `p` is in float64."""
    u = (p.q_reward - multiplier[:, None, None] * p.q_cost) / temperature[:, None, None]
    action = p.log_weights
    top = np.where(action > 0, u, -np.inf).max(2, keepdims=True)
    weights = action * np.exp(np.minimum(u - top, 0.0))
    total = weights.sum(2, keepdims=True)
    weights = weights / total
    log_mean = (top + np.log(total))[..., 0]

    def mean(x: np.ndarray) -> np.ndarray:
        return (p.state_weights * x).sum(1)

    g = multiplier * p.q_threshold + temperature * (p.kl_bound + mean(log_mean))
    kl = mean((weights * (u - top)).sum(2) - np.log(total)[..., 0])
    return g, kl, mean((weights * p.q_cost).sum(2))


def best_temperature(p: Problems, multiplier: np.ndarray) -> np.ndarray:
    """argmin_η g(η, λ): KL(q‖π) = κ, or the bound."""
    index = np.arange(len(multiplier))

    def too_far(log_temperature, i):
        return tilted(p.take(i), np.exp(log_temperature), multiplier[i])[1] / p.kl_bound[i] - 1.0

    spread = np.ptp(p.q_reward - multiplier[:, None, None] * p.q_cost, axis=2).max(1)
    low, high = np.log(p.temperature_min), np.log(p.temperature_min + 10.0 * spread / np.sqrt(p.kl_bound))
    at_bound = too_far(low, index) <= 0
    root = elementwise.find_root(too_far, (np.where(at_bound, high, low), high + 1e-9), args=(index,)).x
    return np.where(at_bound, p.temperature_min, np.exp(root))


def oracle(p: Problems) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(η*, λ*, g*) by scipy's root finder on the derivative of the convex profile min_η g(η, ·)."""
    index = np.arange(len(p.q_threshold))

    def room(multiplier, i):
        q = p.take(i)
        return q.q_threshold - tilted(q, best_temperature(q, multiplier), multiplier)[2]

    zero, bound = np.zeros(len(index)), p.multiplier_max
    slack, infeasible = room(zero, index) >= 0, room(bound, index) <= 0
    multiplier = np.where(slack, zero, bound)
    inside = index[~slack & ~infeasible]
    multiplier[inside] = elementwise.find_root(room, (zero[inside], bound[inside]), args=(inside,)).x
    temperature = best_temperature(p, multiplier)
    return temperature, multiplier, tilted(p, temperature, multiplier)[0]


def lowest_cost(p: Problems) -> np.ndarray:
    """E[Q_c] of the cost-minimising step of the trust region."""
    p = p._replace(q_reward=-p.q_cost, temperature_min=1e-9 * np.ptp(p.q_cost, axis=(1, 2)) + 1e-12)
    zero = np.zeros_like(p.kl_bound)
    return tilted(p, best_temperature(p, zero), zero)[2]


def random_problems(n: int = 1000, states: int = 4, actions: int = 16, seed: int = 0) -> Problems:
    rng = np.random.default_rng(seed)
    kl_bound = 10 ** rng.uniform(-2.5, -0.5, n)
    q = rng.normal(size=(2, n, states, actions)) + rng.normal(size=(2, n, states, 1))
    mix = rng.uniform(-1, 1, (n, 1, 1))
    q[1] = mix * q[0] + np.sqrt(1 - mix**2) * q[1]
    threshold = q[1].mean((1, 2)) + np.sqrt(kl_bound) * rng.normal(size=n)
    f = np.float32
    return Problems(*q.astype(f), threshold.astype(f), kl_bound.astype(f), np.full(n, 100, f), np.full(n, 1e-3, f))


def nasty_problems(n: int = 300, states: int = 3, actions: int = 64, seed: int = 1) -> Problems:
    """Scales 1e-3 … 1e4, offsets, constants, ties, outliers, collinear Q, slack, infeasible, K = 1 … 64."""
    rng, kind = np.random.default_rng(seed), np.arange(n) % 10
    q = rng.normal(size=(2, n, states, actions))
    q[0, kind == 0] = 0.0
    q[1, kind == 1] = 0.0
    q[:, kind == 2] = 0.0
    q[:, kind == 3] = rng.uniform(size=q[:, kind == 3].shape) < 0.2
    q[:, kind == 4] = rng.standard_t(2, size=q[:, kind == 4].shape)
    q[1, kind == 5] = q[0, kind == 5]
    q[1, kind == 6] = -q[0, kind == 6] + 1e-3 * q[1, kind == 6]
    size = np.where(rng.uniform(size=n) < 0.5, 1 + np.arange(n) % 4, rng.integers(1, 65, n))
    log_weights = np.where(np.arange(actions) < size[:, None, None], 0.0, -np.inf) + np.zeros((n, states, 1))
    q = (q + 30.0 * rng.normal(size=(2, n, states, 1))) * 10 ** rng.uniform(-3, 4, (2, n, 1, 1))
    kl_bound, f = 10 ** rng.uniform(-3, 0, n), np.float32
    scale, used = np.abs(q[1]).max((1, 2)), np.exp(log_weights) / size[:, None, None]
    state_mean = (q[1] * used).sum(2, keepdims=True)
    mean, spread = state_mean.mean((1, 2)), np.sqrt(((q[1] - state_mean) ** 2 * used).sum(2).mean(1))
    # Neither slack nor infeasible by a rounding error alone.
    step = rng.choice([-1, 1], n) * (1e-4 * scale + np.sqrt(kl_bound) * spread * rng.uniform(size=n))
    step = np.where(kind == 8, 10 * scale, np.where(kind == 9, -10 * scale, step))
    bounds = (kl_bound, 10 ** rng.uniform(0, 4, n), 10 ** rng.uniform(-6, -1, n))
    return Problems(*q.astype(f), (mean + step).astype(f), *(b.astype(f) for b in bounds), log_weights.astype(f))


def outlier_problems(n: int = 1000) -> Problems:
    """Q of which single actions lie far beyond the spread of the others: a Newton step alone diverges."""
    p, rng = random_problems(n, seed=8), np.random.default_rng(9)
    q = np.exp(3.0 * rng.normal(size=(2, *p.q_reward.shape)))
    threshold = q[1].mean((1, 2)) - q[1].std(2).mean(1) * rng.uniform(-0.3, 1.0, n)
    kl_bound, f = 10 ** rng.uniform(-2, 0.3, n), np.float32
    return p._replace(
        q_reward=q[0].astype(f),
        q_cost=q[1].astype(f),
        q_threshold=threshold.astype(f),
        kl_bound=kl_bound.astype(f),
        multiplier_max=np.full(n, 1e4, f),
    )


def weighted_problems() -> Problems:
    """Importance weights of actions and of states."""
    p, rng = random_problems(100, seed=2), np.random.default_rng(3)
    weights = rng.normal(size=p.q_reward.shape), rng.exponential(size=p.q_reward.shape[:2])
    return p._replace(log_weights=weights[0].astype(np.float32), state_weights=weights[1].astype(np.float32))


@jax.jit
def solve_all(p: Problems):
    def one(p: Problems):
        bounds = {name: getattr(p, name) for name in BOX}
        extra = {"log_weights": p.log_weights, "state_weights": p.state_weights}
        solved = solve_dual(p.q_reward, p.q_cost, p.q_threshold, **bounds, **extra)
        batch = jax.tree.map(lambda a: a[None], (p.q_reward, p.q_cost, p.q_threshold, extra))
        return solved, jax.tree.map(lambda a: a[0], estep(*batch[:3], **bounds, **batch[3]))

    return jax.vmap(one)(p)


@pytest.fixture(scope="module", params=[random_problems, nasty_problems, outlier_problems, weighted_problems])
def solved(request):
    problems = request.param()
    solution, step = jax.tree.map(np.asarray, solve_all(problems))
    return problems.float64(), solution, step


def scale_of(p: Problems, multiplier: np.ndarray) -> np.ndarray:
    return np.abs(p.q_reward).max((1, 2)) + multiplier * np.abs(p.q_cost).max((1, 2))


def test_everything_is_finite_and_in_the_box(solved):
    p, solution, step = solved
    assert all(np.isfinite(a).all() for a in (*solution, *step))
    assert (solution.temperature >= p.temperature_min).all()
    assert ((solution.multiplier >= 0) & (solution.multiplier <= p.multiplier_max)).all()
    assert (step.weights >= 0).all()
    np.testing.assert_allclose(step.weights.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(step.weights[p.log_weights == 0], 0.0)


def test_the_objective_is_optimal(solved):
    p, solution, _ = solved
    _, multiplier, best = oracle(p)
    reached = tilted(p, *(np.float64(a) for a in solution[:2]))[0]
    spread = np.ptp(p.q_reward, axis=2).max(1) + multiplier * np.ptp(p.q_cost, axis=2).max(1)
    assert (reached - best <= 1e-4 * spread + 1e-6 * (np.abs(best) + scale_of(p, multiplier))).all()
    assert (np.abs(solution.value - best) <= 1e-4 * (np.abs(best) + scale_of(p, multiplier))).all()


def test_the_trust_region_is_used_and_kept(solved):
    p, solution, step = solved
    q = step.weights.astype(np.float64)
    ratio = np.where(q > 0, q / np.where(q > 0, p.log_weights, 1.0), 1.0)
    kl = (p.state_weights * (q * np.log(ratio)).sum(2)).sum(1) / p.kl_bound
    np.testing.assert_allclose(step.kl / p.kl_bound, kl, atol=5e-3)
    assert (kl <= 1.01).all()
    interior = (solution.temperature > p.temperature_min * 1.001) & ~step.at_bound
    assert interior.sum() > 20
    np.testing.assert_allclose(kl[interior], 1.0, rtol=1e-2)


def test_the_constraint_holds_where_it_can(solved):
    p, solution, step = solved
    cost = (p.state_weights * (step.weights * p.q_cost).sum(2)).sum(1)
    tolerance = 1e-3 * np.ptp(p.q_cost, axis=2).max(1) + 1e-5 * np.abs(p.q_cost).max((1, 2))
    np.testing.assert_array_less(np.abs(step.mean_cost - cost), tolerance + 1e-12)
    assert (cost <= p.q_threshold + tolerance)[~step.at_bound].all()
    active = (solution.multiplier > 0) & ~step.at_bound
    assert active.sum() > 10
    assert (np.abs(cost - p.q_threshold) <= tolerance)[active].all()


def test_at_the_bound_cost_is_the_lowest_of_the_trust_region(solved):
    p, solution, step = solved
    np.testing.assert_array_equal(step.at_bound, solution.multiplier == p.multiplier_max)
    assert step.at_bound.sum() > 10
    bound = p.take(np.flatnonzero(step.at_bound))
    tolerance = 1e-4 * np.ptp(bound.q_cost, axis=2).max(1) + 1e-5 * np.abs(bound.q_cost).max((1, 2))
    assert (np.abs(step.mean_cost[step.at_bound] - lowest_cost(bound)) <= tolerance).all()


def test_the_oracle_is_not_beaten_by_a_minimiser():
    p = random_problems(8, seed=4).float64()
    best = oracle(p)[2]
    for i, g in enumerate(best):
        one = p.take(np.array([i]))
        found = minimize(
            lambda x, one=one: tilted(one, np.exp(x[:1]), x[1:])[0][0],
            [0.0, 0.1],
            bounds=[(np.log(1e-3), 10.0), (0.0, 100.0)],
            method="L-BFGS-B",
        )
        assert found.fun >= g - 1e-9
        assert found.fun <= g + 1e-3


def batch(conditions: int = 16, states: int = 5, actions: int = 8, seed: int = 5):
    rng = np.random.default_rng(seed)
    q_reward, q_cost = rng.normal(size=(2, conditions, states, actions)).astype(np.float32)
    return jnp.asarray(q_reward), jnp.asarray(q_cost), jnp.linspace(-0.4, 0.4, conditions)


def assert_same(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **{"rtol": 1e-4, "atol": 1e-5} | tolerance), a, b)


jitted = jax.jit(lambda *q, **extra: estep(*q, **BOX, **extra))


def test_dual_is_the_formula():
    p = weighted_problems()
    rng = np.random.default_rng(6)
    temperature, multiplier = rng.uniform(0.1, 2, 100), rng.uniform(0, 3, 100)
    args = (temperature.astype(np.float32), multiplier.astype(np.float32), *p[:3], p.kl_bound, *p[6:])
    g = jax.vmap(lambda *a: dual(*a[:5], kl_bound=a[5], log_weights=a[6], state_weights=a[7]))(*args)
    np.testing.assert_allclose(g, tilted(p.float64(), temperature, multiplier)[0], rtol=1e-5, atol=1e-5)


def test_a_batch_equals_its_thresholds_one_by_one():
    q = batch()
    together = jitted(*q)
    singles = [jax.tree.map(lambda a: a[0], jitted(*(a[i : i + 1] for a in q))) for i in range(16)]
    assert 0 < together.at_bound.sum() < 16
    assert_same(together, jax.tree.map(lambda *a: jnp.stack(a), *singles))


def test_uniform_weights_change_nothing():
    q = batch()
    weights = {
        "log_weights": jnp.full((16, 5, 8), 0.7, jnp.float32),
        "state_weights": jnp.full((16, 5), 3.0, jnp.float32),
    }
    assert_same(jitted(*q), jitted(*q, **weights), rtol=1e-3)


def test_a_state_of_weight_two_is_a_state_twice():
    q_reward, q_cost, threshold = batch()
    state_weights = jnp.tile(jnp.array([2.0, 1.0, 1.0, 1.0, 0.0], jnp.float32), (16, 1))
    weighted = jitted(*batch(), log_weights=jnp.zeros((16, 5, 8), jnp.float32), state_weights=state_weights)
    index = jnp.array([0, 0, 1, 2, 3])
    twice = jitted(q_reward[:, index], q_cost[:, index], threshold)
    weighted = weighted._replace(weights=weighted.weights[:, index])
    assert_same(weighted, twice, rtol=1e-3)


def test_offsets_and_units_do_not_matter():
    # Multiples of 1/256, so that float32 adds the offsets without rounding.
    q_reward, q_cost, threshold = (jnp.round(a * 256) / 256 for a in batch())
    base = jitted(q_reward, q_cost, threshold)
    by_state = 16.0 * jnp.array([0.0, 1.0, 2.0, 3.0, 4.0])[None, :, None]
    for offset in (by_state, jnp.full_like(by_state, 2.0**14)):
        moved = jitted(0.5 * q_reward + offset, q_cost + offset, threshold + offset.mean())
        assert_same(base.weights, moved.weights, atol=1e-4, rtol=0)


def test_compiled_or_not_and_once_for_all_thresholds():
    traces = []

    @jax.jit
    def counted(q_reward, q_cost, threshold):
        traces.append(1)
        return estep(q_reward, q_cost, threshold, **BOX)

    q_reward, q_cost, threshold = batch(2)
    for shift in (-1.0, 1.0, 0.1):
        compiled = counted(q_reward, q_cost, threshold + shift)
    assert len(traces) == 1
    assert_same(compiled, estep(q_reward, q_cost, threshold + 0.1, **BOX))


def test_a_warm_start_needs_one_evaluation():
    q = tuple(a[0] for a in batch(1, seed=7))
    solve = jax.jit(lambda n, start=None: solve_dual(q[0], q[1], q[2] + 0.35, **BOX, iterations=n, start=start))
    best, cold = solve(30), solve(1)
    assert 0 < best.multiplier < 100
    assert abs(cold.multiplier - best.multiplier) > 1e-3 * best.multiplier
    assert_same(solve(1, best), best)
    assert_same(solve(30, Dual(jnp.float32(1e6), jnp.float32(1e6), jnp.float32(0.0))), best)


def test_at_the_bound_reward_plays_no_part():
    q_reward, q_cost, threshold = batch()
    one, other = (jitted(q, q_cost, threshold - 9.0) for q in (q_reward, 3.0 - q_reward**2))
    assert one.at_bound.all()
    assert other.at_bound.all()
    assert_same(one.weights, other.weights)


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (5, 1), (5, 8)])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1e8])
def test_no_scale_or_shape_breaks_it(shape, scale):
    q_reward, q_cost, threshold = batch(16, *shape)
    for r, c in ((scale, 1.0), (1.0, scale), (scale, scale)):
        for offset in (0.0, 1e8):
            step = jitted(q_reward * r + offset, q_cost * c + offset, threshold * c + offset)
            assert all(np.isfinite(a).all() for a in step)
            np.testing.assert_allclose(step.weights.sum(-1), 1.0, atol=1e-5)
            if 1 in shape[1:] or (r == c == 0.0):
                np.testing.assert_allclose(step.weights, 1.0 / shape[1], atol=1e-6)
                np.testing.assert_allclose(step.effective_samples, shape[1], rtol=1e-5)


def test_no_gradient_passes_through():
    q_reward, q_cost, threshold = batch(2)
    gradient = jax.jit(jax.grad(lambda q: (estep(q, q_cost, threshold, **BOX).weights * q_cost).sum()))(q_reward)
    np.testing.assert_array_equal(gradient, 0.0)
