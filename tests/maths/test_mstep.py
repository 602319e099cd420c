import jax
import jax.numpy as jnp
import numpy as np

from ccpo.maths import gaussian, mstep

C, S, K, A = 2, 3, 4, 2


def problem(key):
    keys = jax.random.split(key, 4)
    weights = jax.nn.softmax(jax.random.normal(keys[0], (C, S, K)), axis=-1)
    action = jax.random.normal(keys[1], (C, S, K, A))
    mean_old, std_old = jax.random.normal(keys[2], (C, S, A)), 0.2 + jax.random.uniform(keys[3], (C, S, A))
    return weights, action, mean_old, std_old


def test_weighted_likelihood_is_the_plain_sum(key):
    weights, action, mean_old, std_old = problem(key)
    mean, std = mean_old + 0.1, std_old * 1.2
    result = mstep.weighted_likelihood(weights, action, mean, std, mean_old, std_old)
    for c in range(C):
        total = 0.0
        for s in range(S):
            for k in range(K):
                a = action[c, s, k]
                fit = gaussian.log_density(a, mean[c, s], std_old[c, s]) + gaussian.log_density(
                    a, mean_old[c, s], std[c, s]
                )
                total -= float(weights[c, s, k] * fit) / S
        np.testing.assert_allclose(result[c], total, rtol=1e-4)


def test_the_likelihood_pulls_the_mean_to_the_weighted_actions(key):
    weights, action, mean_old, std_old = problem(key)

    def loss(mean):
        return mstep.weighted_likelihood(weights, action, mean, std_old, mean_old, std_old).sum()

    best = jnp.sum(weights[..., None] * action, axis=2)
    np.testing.assert_allclose(jax.grad(loss)(best), 0.0, atol=1e-4)


def test_each_threshold_pays_for_its_own_divergence(key):
    weights, action, mean_old, std_old = problem(key)
    moved = mean_old.at[1].add(0.3)
    args = {"old_policy": (mean_old, std_old), "multiplier_std": jnp.zeros(C)}
    free = mstep.mstep_loss(weights, action, (moved, std_old), multiplier_mean=jnp.array([5.0, 0.0]), **args)
    paid = mstep.mstep_loss(weights, action, (moved, std_old), multiplier_mean=jnp.array([0.0, 5.0]), **args)
    assert float(free.kl_mean[0]) == 0.0 < float(free.kl_mean[1])
    unit = 1.0 + 5.0 / C
    np.testing.assert_allclose(paid.loss - free.loss, 5.0 * free.kl_mean[1] / C / unit, rtol=1e-4)


def test_large_multipliers_do_not_make_large_gradients(key):
    weights, action, mean_old, std_old = problem(key)

    def largest(multiplier):
        many = jnp.full(C, multiplier)
        args = {"old_policy": (mean_old, std_old), "multiplier_mean": many, "multiplier_std": many}
        gradient = jax.grad(lambda mean: mstep.mstep_loss(weights, action, (mean, std_old), **args).loss)
        return float(jnp.abs(gradient(mean_old + 0.1)).max())

    assert largest(1e5) < 2.0 * largest(10.0)


def test_multipliers_are_interpolated_between_knots():
    log_values = jnp.log(jnp.array([1.0, 3.0, 7.0]))
    values = mstep.multiplier_at(log_values, jnp.array([0.0, 0.25, 0.5, 1.0]))
    np.testing.assert_allclose(values, [1.0, 2.0, 3.0, 7.0], rtol=1e-5)


def test_a_multiplier_rises_where_its_threshold_exceeds_the_bound_and_falls_elsewhere():
    start = jnp.zeros(3)
    new = mstep.update_multipliers(start, jnp.array([0.0, 1.0]), jnp.array([0.02, 0.0]), bound=0.01, rate=0.1)
    np.testing.assert_allclose(new, [0.1, 0.0, -0.1], atol=1e-6)


def test_a_burst_of_divergence_cannot_freeze_a_multiplier():
    values = jnp.zeros(2)
    for kl in [1e6] * 10 + [0.0] * 10:
        values = mstep.update_multipliers(values, jnp.array([0.0, 1.0]), jnp.full(2, kl), bound=0.01, rate=0.1)
    np.testing.assert_allclose(values, 0.0, atol=1e-5)
