import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ccpo.maths import networks


@pytest.fixture(params=["own bodies", "shared body", "normalised", "normalised shared body"])
def critics(request, key):
    shape = {"hidden": (8, 8), "features": 5, "embedding_hidden": 4, "normalised": "normalised" in request.param}
    own = {
        name: networks.init_versatile_critic(k, 3, 2, **shape)
        for name, k in zip(("reward", "cost"), jax.random.split(key), strict=True)
    }
    return networks.share_body(own, "feature") if "shared" in request.param else own


def layers_of(critics, name):
    return [*critics.get("body", []), *critics[name]["feature"]]


def inputs(key, batch=7, samples=4):
    obs_key, action_key, condition_key = jax.random.split(key, 3)
    return (
        jax.random.normal(obs_key, (batch, 3)),
        jax.random.normal(action_key, (batch, samples, 2)),
        jax.random.uniform(condition_key, (batch,)),
    )


@pytest.mark.parametrize("name", ["reward", "cost"])
def test_versatile_q_is_the_inner_product_of_feature_and_embedding(critics, name, key):
    obs, action, condition = inputs(key)
    q = networks.versatile_q(critics, obs, action, condition, bound=10.0)
    psi = networks.features(critics, obs, action, bound=10.0)
    z = networks.embedding(critics[name]["embedding"], condition)
    slow = [[float(psi[name][b, k] @ z[b]) for k in range(4)] for b in range(7)]
    np.testing.assert_allclose(q[name], slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["reward", "cost"])
def test_features_are_those_of_a_network_of_both_inputs(critics, name, key):
    obs, action, _ = inputs(key)
    joint = jnp.concatenate([jnp.repeat(obs[:, None], 4, axis=1), action], axis=-1)
    expected = 10.0 * jnp.tanh(networks.mlp(layers_of(critics, name), joint) / 10.0)
    found = networks.features(critics, obs, action, bound=10.0)[name]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_normalised_layer_sees_deviations_in_units_of_their_spread(key):
    layers = networks.init_mlp(key, (3, 8, 2), normalised=True)
    layers[0]["scale"] = jnp.linspace(0.5, 2.0, 8)
    x = np.asarray(jax.random.normal(key, (5, 3)), np.float64)
    hidden, last = ({name: np.asarray(value, np.float64) for name, value in layer.items()} for layer in layers)
    y = x @ hidden["weight"] + hidden["bias"]
    y = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + 1e-5) * hidden["scale"]
    expected = np.maximum(y, 0.0) @ last["weight"] + last["bias"]
    np.testing.assert_allclose(networks.mlp(layers, jnp.asarray(x, jnp.float32)), expected, rtol=1e-4, atol=1e-5)


def test_a_shared_body_is_that_of_the_first_critic_and_is_one(key):
    own = {
        name: networks.init_plain_critic(k, 3, 2, hidden=(8, 8))
        for name, k in zip(("reward", "cost"), jax.random.split(key), strict=True)
    }
    shared = networks.share_body(own, "joint")
    obs, action, condition = inputs(key)
    found, apart = (networks.plain_q(critics, obs, action, condition) for critics in (shared, own))
    np.testing.assert_array_equal(found["reward"], apart["reward"])
    assert np.abs(found["cost"] - apart["cost"]).max() > 1e-3
    count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))  # noqa: E731  # one expression, used twice
    assert count(shared) == count(own) - count(own["cost"]["joint"][:-1])


def test_features_stay_within_their_bound(critics, key):
    obs, action, _ = inputs(key)
    loud = jax.tree.map(lambda x: 100.0 * x, critics)
    for psi in networks.features(loud, obs, action, bound=3.0).values():
        assert np.abs(psi).max() <= 3.0


def test_plain_q_sees_the_threshold(key):
    critics = {"cost": networks.init_plain_critic(key, 3, 2, hidden=(8, 8))}
    obs, action, condition = inputs(key)
    q = networks.plain_q(critics, obs, action, condition)["cost"]
    assert q.shape == (7, 4)
    assert np.abs(q - networks.plain_q(critics, obs, action, condition + 0.5)["cost"]).max() > 1e-4


@pytest.mark.parametrize("kind", ["versatile", "plain"])
def test_rescaling_the_output_scales_every_value(kind, critics, key):
    obs, action, condition = inputs(key)
    if kind == "plain":
        critics = {"reward": networks.init_plain_critic(key, 3, 2, hidden=(8, 8))}

    def q(critics):
        if kind == "plain":
            return networks.plain_q(critics, obs, action, condition)["reward"]
        return networks.versatile_q(critics, obs, action, condition, bound=10.0)["reward"]

    rescaled = {**critics, "reward": networks.rescale_output(critics["reward"], 2.5)}
    np.testing.assert_allclose(q(rescaled), 2.5 * q(critics), rtol=1e-4, atol=1e-5)


def test_the_actor_starts_near_zero_mean_and_middle_scale(key):
    actor = networks.init_actor(key, 4, 2, hidden=(16, 16))
    mean, std = networks.actor(actor, jax.random.normal(key, (5, 3)), jnp.linspace(0.0, 1.0, 5), std_range=(0.2, 1.0))
    assert np.abs(mean).max() < 0.1
    np.testing.assert_allclose(std, 0.6, atol=0.05)


def test_thresholds_are_normalised_as_in_the_paper():
    assert float(networks.normalise_threshold(40.0, (10.0, 70.0))) == pytest.approx(30.0 / 70.0)


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_critics_may_have_few_hidden_layers(hidden, key):
    critics = {
        name: networks.init_plain_critic(k, 3, 2, hidden=hidden)
        for name, k in zip(("reward", "cost"), jax.random.split(key), strict=True)
    }
    obs, action, condition = inputs(key)
    found = networks.plain_q(critics, obs, action, condition)["cost"]
    rows = jnp.concatenate(
        [jnp.broadcast_to(x[:, None], (7, 4, x.shape[-1])) for x in (obs, condition[:, None])] + [action], axis=-1
    )
    np.testing.assert_allclose(found, networks.mlp(critics["cost"]["joint"], rows)[..., 0], rtol=1e-4, atol=1e-5)
    if hidden:
        shared = networks.plain_q(networks.share_body(critics, "joint"), obs, action, condition)
        np.testing.assert_allclose(shared["reward"], networks.plain_q(critics, obs, action, condition)["reward"])
