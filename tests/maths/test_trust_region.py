import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from ccpo.maths import gaussian, onpolicy
from ccpo.maths.trust_region import conjugate_gradients, fisher_product, trust_region_step


def test_fisher_product_equals_the_explicit_hessian():
    actor = onpolicy.init_policy(jax.random.key(1), (3, 4, 2), std=0.5)
    actor["layers"][-1]["weight"] *= 30.0
    obs = jax.random.normal(jax.random.key(2), (20, 3))
    centre, unravel = ravel_pytree(actor)
    old = onpolicy.policy(actor, obs)
    hessian = jax.hessian(lambda x: gaussian.kl(*old, *onpolicy.policy(unravel(x), obs)).mean())(centre)
    hessian = np.asarray(hessian, np.float64)
    assert np.abs(hessian).max() > 0.1
    vector = jax.random.normal(jax.random.key(3), centre.shape)
    product = fisher_product(lambda x: onpolicy.policy(unravel(x), obs), centre, damping=0.1)
    np.testing.assert_allclose(product(vector), hessian @ vector + 0.1 * vector, rtol=1e-4, atol=1e-5)


def test_conjugate_gradients_solve_a_linear_system():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(8, 8))
    matrix, vector = root @ root.T + np.eye(8), rng.normal(size=8)
    solution = conjugate_gradients(lambda x: jnp.asarray(matrix, jnp.float32) @ x, jnp.asarray(vector), iterations=20)
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, vector), rtol=1e-3, atol=1e-4)


def test_conjugate_gradients_of_nothing_are_nothing():
    np.testing.assert_array_equal(conjugate_gradients(lambda x: 2.0 * x, jnp.zeros(3), iterations=5), np.zeros(3))


def step(objective, **settings):
    """From the origin, under ½‖x‖² ≤ 0.02: the trust region is a ball of radius 0.2."""
    settings = {"bound": 0.02, "damping": 0.0, "iterations": 5, "shrink": 0.5, "tries": 4} | settings
    return trust_region_step(objective, lambda p: (p["x"], jnp.ones(2)), {"x": jnp.zeros(2)}, **settings)


def test_a_linear_objective_is_followed_to_the_edge_of_the_trust_region():
    slope = jnp.array([3.0, 4.0])
    result = step(lambda p: p["x"] @ slope, damping=0.01)
    np.testing.assert_allclose(result.params["x"], np.sqrt(2 * 0.02 / 1.01) * np.array([0.6, 0.8]), rtol=1e-4)
    assert result.fraction == 1.0
    assert result.divergence == pytest.approx(0.02 / 1.01, rel=1e-4)


def test_the_line_search_goes_back_until_the_objective_rises_and_gives_up_in_the_end():
    def peak(at):
        return lambda p: p["x"][0] - p["x"][0] ** 2 / (2 * at)

    result = step(peak(0.03))  # it rises up to 0.06, after two halvings of 0.2
    assert result.fraction == 0.25
    assert result.params["x"][0] == pytest.approx(0.05, rel=1e-4)
    refused = step(peak(0.01))  # it would take a fourth halving
    assert refused.fraction == 0.0
    np.testing.assert_array_equal(refused.params["x"], np.zeros(2))
