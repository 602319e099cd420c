import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


def neighbours(distance: float, count: int = 8) -> tuple[jax.Array, jax.Array]:
    """`count` Gaussians in one state, their means `distance` scales apart in all: two of [B, 1, 2]."""
    mean = jnp.linspace(0.0, 0.3 * distance, count)[:, None, None] * jnp.ones((1, 1, 2))
    return mean, jnp.full(mean.shape, 0.3)


def noise(key: jax.Array, mean: jax.Array, count: int) -> jax.Array:
    return jax.random.normal(key, (mean.shape[1], count, mean.shape[2]))


@pytest.mark.parametrize("count", [4, 6])
def test_mixture_deals_samples_out_evenly(count):
    """Three policies, some samples in each of 30 states: as many of each, and in every state one at least."""
    mean = jnp.broadcast_to(jnp.arange(3.0)[:, None, None], (3, 30, 1))
    action = np.asarray(gaussian.mix(jnp.zeros((30, count, 1)), mean, jnp.ones_like(mean)))[..., 0]
    assert [int((action == i).sum()) for i in range(3)] == [10 * count] * 3
    assert all(set(row) == {0.0, 1.0, 2.0} for row in action)


def test_each_sample_of_a_mixture_is_its_states_own(key):
    """Four policies whose means tell policy and state, eight samples without spread."""
    mean = (10.0 * jnp.arange(4.0)[:, None, None] + jnp.arange(5.0)[None, :, None]) + jnp.zeros((4, 5, 2))
    action = np.asarray(gaussian.mix(jax.random.normal(key, (5, 8, 2)), mean, jnp.zeros_like(mean)))
    np.testing.assert_array_equal(action % 10, np.broadcast_to(np.arange(5.0)[:, None, None], (5, 8, 2)))


def test_mixture_of_equal_policies_is_plain_sampling(key):
    mean, std = neighbours(0.0)
    action = gaussian.mix(noise(key, mean, 16), mean, std)
    log_weights = gaussian.mixture_log_weights(action, mean, std)
    assert action.shape == (1, 16, 2)
    np.testing.assert_allclose(log_weights, 0.0, atol=1e-5)
    np.testing.assert_allclose(gaussian.effective_share(log_weights), 1.0, rtol=1e-5)


def test_mixture_weights_are_bounded_and_give_each_policy_its_own_mean(key):
    mean, std = neighbours(4.0)
    errors = {}
    for count in (64, 65_536):
        action = gaussian.mix(noise(key, mean, count), mean, std)
        log_weights = gaussian.mixture_log_weights(action, mean, std)
        assert float(log_weights.max()) <= np.log(len(mean)) + 1e-5
        weights = jax.nn.softmax(log_weights, axis=-1)
        estimate = jnp.einsum("bsk,ska->bsa", weights, action)
        errors[count] = float(jnp.max(jnp.abs(estimate - mean)))
    assert errors[65_536] < 0.01 < errors[64]


def test_mixture_leaves_several_effective_samples_where_one_policy_would_not(key):
    """Means 4 scales apart in each of two actions, K = 16: the mixture serves the far end, samples of one do not."""
    mean, std = neighbours(4.0)
    mean, std = (jnp.broadcast_to(x, (8, 200, 2)) for x in (mean, std))
    mixed = gaussian.mixture_log_weights(gaussian.mix(noise(key, mean, 16), mean, std), mean, std)
    action = gaussian.sample(key, mean[0], std[0], count=16)
    far = gaussian.log_density(action, mean[-1][:, None], std[-1][:, None])
    near = gaussian.log_density(action, mean[0][:, None], std[0][:, None])
    alone = 16 * float(gaussian.effective_share(far - near).mean())
    together = 16 * float(gaussian.effective_share(mixed[-1]).mean())
    assert alone < 3.0 < 4.0 < together
