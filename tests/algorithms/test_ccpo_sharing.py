"""Neighbouring thresholds that share states and action samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import inference, model, sampling
from ccpo.errors import ConfigError
from ccpo.maths.estep import estep

PROBLEM = make_problem()
THRESHOLDS = jnp.array([[1.5, 2.5], [5.0, 6.5]])


def pool_of(*, spread: float = 0.0, **settings):
    """A pool of two pairs of neighbours, the actor's answer to the threshold made `spread` times as strong."""
    config = make_config(ccpo, conditions=4, sharing=2, **settings)
    state = make_state(ccpo, config, PROBLEM)
    obs = jax.random.normal(jax.random.key(1), (2, config.states, PROBLEM.spec.observation_size))
    actor = jax.tree.map(lambda x: x, state.actor_old)
    actor[0]["weight"] = actor[0]["weight"].at[-1].mul(spread)
    actor[-1]["weight"] = actor[-1]["weight"] * max(spread, 1.0)
    state = state._replace(actor_old=actor)
    return config, state, obs, inference.draw_pool(config, PROBLEM, state, THRESHOLDS, obs, key=jax.random.key(2))


def test_policies_that_ignore_the_threshold_share_exactly():
    _, _, _, pool = pool_of()
    np.testing.assert_allclose(pool.log_weights, 0.0, atol=1e-5)
    np.testing.assert_allclose(pool.effective, 1.0, rtol=1e-5)
    np.testing.assert_array_equal(pool.thresholds, THRESHOLDS)


def test_policies_too_far_apart_fall_back_to_plain_samples_of_one():
    _, _, _, pool = pool_of(spread=60.0, sharing_min=0.9)
    alone = np.asarray(pool.effective) < 0.9
    assert alone.any()
    for one in np.flatnonzero(alone):
        assert pool.thresholds[one, 0] == pool.thresholds[one, 1]
        assert pool.thresholds[one, 0] in THRESHOLDS[one]
        np.testing.assert_allclose(pool.log_weights[one], 0.0, atol=1e-5)


@pytest.mark.parametrize("versatile", [True, False])
def test_shared_q_values_are_those_of_each_threshold_alone(versatile):
    config, state, obs, pool = pool_of(spread=2.0, sharing_min=0.0, versatile_critic=versatile)
    shared = model.pool_q(config, PROBLEM, state.critic, obs, pool.action, pool.thresholds)["cost"]
    for c, threshold in enumerate(THRESHOLDS.reshape(-1)):
        condition = jnp.full(config.states, threshold)
        each = model.q_values(config, PROBLEM, state.critic, obs[c // 2], pool.action[c // 2], condition)["cost"]
        np.testing.assert_allclose(shared[c], each, rtol=2e-5, atol=1e-6)


def test_shared_samples_converge_to_the_estep_of_each_policy():
    """For Gaussian π and Q_r = a, Q_c = 0, q* moves the mean by √(2κ)·σ, whatever the proposal was."""
    kappa, reach = 0.02, np.sqrt(2 * 0.02)
    errors = {}
    for count in (16, 4096):
        config, _, _, pool = pool_of(spread=3.0, sharing_min=0.0, states=8, action_samples=count)
        action = jnp.repeat(pool.action, config.sharing, axis=0)
        log_weights = pool.log_weights.reshape(action.shape[:-1])
        solution = estep(
            action[..., 0],
            jnp.zeros(action.shape[:-1]),
            jnp.ones(4),
            kl_bound=kappa,
            multiplier_max=10.0,
            temperature_min=1e-6,
            log_weights=log_weights,
        )
        moved = jnp.sum(solution.weights * action[..., 0], axis=-1)
        mean, std = (x.reshape(4, config.states, -1)[..., 0] for x in (pool.mean, pool.std))
        errors[count] = float(jnp.abs((moved - mean) / std - reach).mean())
    assert errors[4096] < 0.03 < errors[16]


def test_an_update_with_sharing_serves_every_threshold():
    config = make_config(ccpo, conditions=4, sharing=2)
    state = make_state(ccpo, config, PROBLEM)
    state, metrics = jax.jit(ccpo.update, static_argnums=(0, 1))(config, PROBLEM, state, make_experience(PROBLEM))
    assert set(metrics) == set(ccpo.METRICS)
    assert 0.5 < float(metrics["estep/shared_samples"]) <= 1.0
    assert all(np.isfinite(float(x)) for x in metrics.values())


def test_neighbours_stand_side_by_side():
    config = make_config(ccpo, conditions=8, sharing=4, states=4, unseen_share=1.0)
    drawn = sampling.draw_conditions(config, PROBLEM, make_experience(PROBLEM), jax.random.key(0))
    assert drawn.shape == (2, 4)
    assert float(drawn[0].max()) <= float(drawn[1].min())


def test_sharing_must_divide_what_is_shared():
    with pytest.raises(ConfigError, match="sharing=3 must divide conditions=4"):
        make_config(ccpo, conditions=4, sharing=3)
