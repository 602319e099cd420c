import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ccpo.maths import gaussian, onpolicy


def test_the_surrogate_is_clipped_where_more_change_would_not_pay():
    ratio, advantage = np.array([0.5, 0.5, 1.5, 1.5]), np.array([1.0, -1.0, 1.0, -1.0])
    gains = [
        float(onpolicy.surrogate(jnp.log(jnp.array([r])), jnp.ones(1), jnp.array([a]), clip=0.2))
        for r, a in zip(ratio, advantage, strict=True)
    ]
    np.testing.assert_allclose(gains, [0.5, -0.8, 1.2, -1.5], rtol=1e-5)
    plain = onpolicy.surrogate(jnp.log(jnp.asarray(ratio)), jnp.full(4, 2.0), jnp.asarray(advantage))
    assert float(plain) == pytest.approx(0.0, abs=1e-6)


def test_weighted_samples_of_another_policy_give_the_gradient_of_this_one(key):
    """E over the policy that acted of w·∇ρ·A is the policy gradient of the centre: d/dμ E[a] = 1, for A = a."""
    acted, centre = (jnp.full((100_000, 1), 0.2), jnp.full((100_000, 1), 0.6)), (0.3, 0.5)
    action = gaussian.sample(key, *acted, count=1)[:, 0]
    log_acted = gaussian.log_density(action, *acted)

    def objective(mean):
        shape = action.shape
        std = jnp.full(shape, centre[1])
        log_centre = gaussian.log_density(action, jnp.full(shape, centre[0]), std)
        log_ratio = gaussian.log_density(action, jnp.broadcast_to(mean, shape), std) - log_centre
        return onpolicy.surrogate(log_ratio, onpolicy.importance(log_centre, log_acted), action[:, 0])

    assert float(jax.grad(objective)(jnp.float32(centre[0]))) == pytest.approx(1.0, abs=0.02)


def test_weights_are_bounded():
    np.testing.assert_allclose(onpolicy.importance(jnp.array([100.0, 0.0]), jnp.zeros(2)), [5.0, 1.0], rtol=1e-5)


def test_standardise_survives_equal_entries():
    np.testing.assert_array_equal(onpolicy.standardise(jnp.full(4, 3.0)), np.zeros(4))
    assert float(onpolicy.standardise(jnp.array([1.0, 3.0]))[1]) == pytest.approx(1.0)
