import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import make_config, make_problem, make_state
from scipy import stats

from ccpo.algorithms import sac_lag


def test_the_density_is_the_slope_of_the_distribution(key):
    """P(tanh u ≤ a) = Φ((artanh a − μ)/σ) for each dimension: its slope is the density."""
    mean, std = jnp.tile(jnp.array([[0.3, -0.8]]), (200, 1)), jnp.tile(jnp.array([[0.5, 1.2]]), (200, 1))
    action, log_density = sac_lag.sample(key, mean, std)
    a, step = np.asarray(action, np.float64), 1e-6 * (1.0 - np.asarray(action, np.float64) ** 2)
    above, below = (stats.norm.cdf(np.arctanh(a + s), mean, std) for s in (step, -step))
    expected = np.log((above - below) / (2 * step)).sum(axis=1)
    assert np.abs(a).max() < 1.0
    np.testing.assert_allclose(log_density, expected, rtol=2e-3, atol=2e-3)


def test_the_density_survives_saturation():
    """1 − tanh² u underflows in float32 long before its logarithm, 2 log 2 − 2|u|, is unusual."""
    latent = jnp.array([[30.0], [-30.0], [0.0]])
    expected = [2 * np.log(2) - 60, 2 * np.log(2) - 60, 0.0]
    np.testing.assert_allclose(sac_lag.log_slope(latent), expected, rtol=1e-6, atol=1e-6)
    slope = jax.grad(lambda u: sac_lag.log_slope(u).sum())(latent)
    np.testing.assert_allclose(slope[:, 0], [-2.0, 2.0, 0.0], atol=1e-6)


@pytest.mark.parametrize(("entropy", "direction"), [(0.0, -1.0), (-5.0, 1.0)])
def test_the_weight_of_the_entropy_drives_it_to_its_target(entropy, direction):
    """The target is −1 for each of two dimensions."""
    config, problem = make_config(sac_lag), make_problem()
    state = make_state(sac_lag, config, problem)
    after, metrics = sac_lag.tune_entropy(config, problem, state, jnp.float32(entropy))
    assert np.sign(after.log_entropy_weight - state.log_entropy_weight) == direction
    assert metrics["entropy/over_target"] == entropy + 2.0
