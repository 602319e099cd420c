import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from ccpo.maths import gaussian

MEAN, STD = jnp.array([[0.3, -0.5]]), jnp.array([[0.2, 0.7]])


def test_log_density_is_that_of_scipy():
    action = jnp.array([[0.1, 0.9]])
    expected = stats.norm.logpdf(np.asarray(action, np.float64), MEAN, STD).sum(axis=-1)
    np.testing.assert_allclose(gaussian.log_density(action, MEAN, STD), expected, rtol=1e-5)


def test_samples_have_the_mean_and_the_scale(key):
    samples = gaussian.sample(key, MEAN, STD, count=200_000)
    assert samples.shape == (1, 200_000, 2)
    np.testing.assert_allclose(samples.mean(axis=1), MEAN, atol=5e-3)
    np.testing.assert_allclose(samples.std(axis=1), STD, atol=5e-3)


def test_kl_is_the_mean_log_ratio(key):
    other_mean, other_std = jnp.array([[0.1, -0.2]]), jnp.array([[0.3, 0.6]])
    samples = gaussian.sample(key, MEAN, STD, count=400_000)[0]
    ratio = gaussian.log_density(samples, MEAN, STD) - gaussian.log_density(samples, other_mean, other_std)
    np.testing.assert_allclose(gaussian.kl(MEAN, STD, other_mean, other_std)[0], ratio.mean(), rtol=2e-2)


def test_decoupled_kl_moves_one_thing_at_a_time():
    kl_mean, kl_std = gaussian.decoupled_kl(MEAN, STD, MEAN + 0.1, STD)
    np.testing.assert_allclose(kl_mean, 0.5 * jnp.sum((0.1 / STD) ** 2, axis=-1), rtol=1e-5)
    np.testing.assert_allclose(kl_std, 0.0, atol=1e-6)
    kl_mean, kl_std = gaussian.decoupled_kl(MEAN, STD, MEAN, 2.0 * STD)
    np.testing.assert_allclose(kl_mean, 0.0, atol=1e-6)
    np.testing.assert_allclose(kl_std, 2 * (np.log(2.0) + 1 / 8 - 0.5), rtol=1e-5)


def test_kl_has_zero_gradient_where_the_policies_agree():
    gradient = jax.grad(lambda m: gaussian.kl(MEAN, STD, m, STD).sum())(MEAN)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)
