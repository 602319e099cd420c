import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ccpo.maths import networks


@pytest.fixture
def critic(key):
    return networks.init_versatile_critic(key, 3, 2, hidden=(8, 8), features=5, embedding_hidden=4)


def inputs(key, batch=7, samples=4):
    obs_key, action_key, condition_key = jax.random.split(key, 3)
    return (
        jax.random.normal(obs_key, (batch, 3)),
        jax.random.normal(action_key, (batch, samples, 2)),
        jax.random.uniform(condition_key, (batch,)),
    )


def test_versatile_q_is_the_inner_product_of_feature_and_embedding(critic, key):
    obs, action, condition = inputs(key)
    q = networks.versatile_q(critic, obs, action, condition, bound=10.0)
    psi = networks.feature(critic["feature"], obs, action, bound=10.0)
    z = networks.embedding(critic["embedding"], condition)
    slow = [[float(psi[b, k] @ z[b]) for k in range(4)] for b in range(7)]
    np.testing.assert_allclose(q, slow, rtol=1e-4, atol=1e-5)


def test_splitting_the_first_layer_equals_concatenation(critic, key):
    obs, action, _ = inputs(key)
    joint = jnp.concatenate([jnp.repeat(obs[:, None], 4, axis=1), action], axis=-1)
    expected = 10.0 * jnp.tanh(networks.mlp(critic["feature"], joint) / 10.0)
    np.testing.assert_allclose(
        networks.feature(critic["feature"], obs, action, bound=10.0), expected, rtol=1e-4, atol=1e-5
    )


def test_features_stay_within_their_bound(critic, key):
    obs, action, _ = inputs(key)
    loud = jax.tree.map(lambda x: 100.0 * x, critic["feature"])
    assert np.abs(networks.feature(loud, obs, action, bound=3.0)).max() <= 3.0


def test_plain_q_sees_the_threshold(key):
    critic = networks.init_plain_critic(key, 3, 2, hidden=(8, 8))
    obs, action, condition = inputs(key)
    q = networks.plain_q(critic, obs, action, condition)
    assert q.shape == (7, 4)
    assert np.abs(q - networks.plain_q(critic, obs, action, condition + 0.5)).max() > 1e-4


@pytest.mark.parametrize("kind", ["versatile", "plain"])
def test_rescaling_the_output_scales_every_value(kind, critic, key):
    obs, action, condition = inputs(key)
    if kind == "versatile":
        params, q = critic, lambda p: networks.versatile_q(p, obs, action, condition, bound=10.0)
    else:
        params = networks.init_plain_critic(key, 3, 2, hidden=(8, 8))
        q = lambda p: networks.plain_q(p, obs, action, condition)  # noqa: E731  # one expression, used once
    np.testing.assert_allclose(q(networks.rescale_output(params, 2.5)), 2.5 * q(params), rtol=1e-4, atol=1e-5)


def test_the_actor_starts_near_zero_mean_and_middle_scale(key):
    actor = networks.init_actor(key, 4, 2, hidden=(16, 16))
    mean, std = networks.actor(actor, jax.random.normal(key, (5, 3)), jnp.linspace(0.0, 1.0, 5), std_range=(0.2, 1.0))
    assert np.abs(mean).max() < 0.1
    np.testing.assert_allclose(std, 0.6, atol=0.05)


def test_thresholds_are_normalised_as_in_the_paper():
    assert float(networks.normalise_threshold(40.0, (10.0, 70.0))) == pytest.approx(30.0 / 70.0)
