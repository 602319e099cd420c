import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ccpo.maths import networks

BATCH, SAMPLES, FEATURES = 7, 4, 5


@pytest.fixture(params=[1, 2])
def conditions(request, key):
    """What z sees: a normalised threshold, or two numbers of a budget; [B, D]."""
    return jax.random.uniform(jax.random.fold_in(key, 1), (BATCH, request.param))


@pytest.fixture
def critic(conditions, key):
    size = conditions.shape[-1]
    shape = {"hidden": (8, 8), "features": FEATURES, "embedding_hidden": 4, "condition_size": size}
    return networks.init_versatile_critic(key, 3, 2, **shape)


@pytest.fixture
def pairs(key):
    obs_key, action_key = jax.random.split(key)
    return jax.random.normal(obs_key, (BATCH, 3)), jax.random.normal(action_key, (BATCH, SAMPLES, 2))


def test_versatile_q_is_the_inner_product_of_feature_and_embedding(critic, pairs, conditions):
    q = networks.versatile_q(critic, *pairs, conditions, bound=10.0)
    psi = networks.features(critic["feature"], *pairs, bound=10.0)
    z = networks.mlp(critic["embedding"], conditions) / np.sqrt(FEATURES)
    slow = [[float(psi[b, k] @ z[b]) for k in range(SAMPLES)] for b in range(BATCH)]
    np.testing.assert_allclose(q, slow, rtol=1e-4, atol=1e-5)


def test_features_are_those_of_a_network_of_both_inputs(critic, pairs):
    obs, action = pairs
    joint = jnp.concatenate([jnp.repeat(obs[:, None], SAMPLES, axis=1), action], axis=-1)
    expected = 10.0 * jnp.tanh(networks.mlp(critic["feature"], joint) / 10.0)
    np.testing.assert_allclose(networks.features(critic["feature"], *pairs, bound=10.0), expected, rtol=1e-4, atol=1e-5)


def test_a_normalised_layer_sees_deviations_in_units_of_their_spread(key):
    layers = networks.init_mlp(key, (3, 8, 2), normalised=True)
    layers[0]["scale"] = jnp.linspace(0.5, 2.0, 8)
    x = np.asarray(jax.random.normal(key, (5, 3)), np.float64)
    hidden, last = ({name: np.asarray(value, np.float64) for name, value in layer.items()} for layer in layers)
    y = x @ hidden["weight"] + hidden["bias"]
    y = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + 1e-5) * hidden["scale"]
    expected = np.maximum(y, 0.0) @ last["weight"] + last["bias"]
    np.testing.assert_allclose(networks.mlp(layers, jnp.asarray(x, jnp.float32)), expected, rtol=1e-4, atol=1e-5)


def test_features_stay_within_their_bound(critic, pairs):
    loud = jax.tree.map(lambda x: 100.0 * x, critic["feature"])
    assert np.abs(networks.features(loud, *pairs, bound=3.0)).max() <= 3.0


@pytest.mark.parametrize("hidden", [(), (8,), (8, 8)])
def test_plain_q_is_a_network_of_state_condition_and_action(hidden, pairs, conditions, key):
    critic = networks.init_plain_critic(key, 3, 2, condition_size=conditions.shape[-1], hidden=hidden)
    obs, action = pairs
    rows = [jnp.broadcast_to(x[:, None], (BATCH, SAMPLES, x.shape[-1])) for x in (obs, conditions)]
    expected = networks.mlp(critic["joint"], jnp.concatenate([*rows, action], axis=-1))[..., 0]
    np.testing.assert_allclose(networks.plain_q(critic, *pairs, conditions), expected, rtol=1e-4, atol=1e-5)


def test_plain_q_sees_the_condition(pairs, conditions, key):
    critic = networks.init_plain_critic(key, 3, 2, condition_size=conditions.shape[-1], hidden=(8, 8))
    q, other = (networks.plain_q(critic, *pairs, c) for c in (conditions, conditions + 0.5))
    assert np.abs(q - other).max() > 1e-4


@pytest.mark.parametrize("kind", ["versatile", "plain"])
def test_rescaling_a_critic_scales_every_value(kind, critic, pairs, conditions, key):
    if kind == "plain":
        critic = networks.init_plain_critic(key, 3, 2, condition_size=conditions.shape[-1], hidden=(8, 8))

    def q(critic):
        if kind == "plain":
            return networks.plain_q(critic, *pairs, conditions)
        return networks.versatile_q(critic, *pairs, conditions, bound=10.0)

    np.testing.assert_allclose(q(networks.rescale_critic(critic, 2.5)), 2.5 * q(critic), rtol=1e-4, atol=1e-5)


def test_the_actor_sees_observation_and_condition_side_by_side(conditions, key):
    actor = networks.init_actor(key, 3 + conditions.shape[-1], 2, hidden=(16, 16))
    obs = jax.random.normal(key, (BATCH, 3))
    mean, std = networks.actor(actor, obs, conditions, std_range=(0.2, 1.0))
    out = np.asarray(networks.mlp(actor, jnp.concatenate([obs, conditions], axis=-1)))
    np.testing.assert_allclose(mean, np.tanh(out[:, :2]), atol=1e-6)
    np.testing.assert_allclose(std, 0.2 + 0.8 / (1.0 + np.exp(-out[:, 2:])), atol=1e-6)


def test_the_actor_starts_near_zero_mean_and_middle_scale(key):
    actor = networks.init_actor(key, 4, 2, hidden=(16, 16))
    condition = jnp.linspace(0.0, 1.0, 5)[:, None]
    mean, std = networks.actor(actor, jax.random.normal(key, (5, 3)), condition, std_range=(0.2, 1.0))
    assert np.abs(mean).max() < 0.1
    np.testing.assert_allclose(std, 0.6, atol=0.05)


def test_thresholds_are_normalised_as_in_the_paper():
    assert float(networks.normalise_threshold(40.0, (10.0, 70.0))) == pytest.approx(30.0 / 70.0)
