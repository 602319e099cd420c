"""Networks as plain pytrees: MLPs, the conditioned actor, and the critics Q(s, a | ε).

A layer is `{"weight": [in, out], "bias": [out]}`, a network a list of layers, so that a parameter's path
(`layers.0.weight`) is also its name in checkpoints and in the deployed policy file. A hidden layer with a third
parameter, `scale` [out], is normalised.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ccpo.types import Array

Layer = dict[str, Array]

Critics = dict[str, Any]
"""Critics by name, each with the network of [s; a] `feature` and with `embedding`, or with the network `joint` alone.

Where they share the hidden layers of these networks, those stand under `body`, and a critic has its last layer only.
"""

BODY = "body"


def init_mlp(key: Array, sizes: Sequence[int], *, last_gain: float = 1.0, normalised: bool = False) -> list[Layer]:
    """Orthogonal weights with gain √2 (ReLU) and `last_gain` at the end, zero biases."""
    keys = jax.random.split(key, len(sizes) - 1)
    gains = [math.sqrt(2.0)] * (len(sizes) - 2) + [last_gain]
    layers = [
        {"weight": jax.nn.initializers.orthogonal(gain)(k, (n_in, n_out)), "bias": jnp.zeros(n_out)}
        for k, gain, n_in, n_out in zip(keys, gains, sizes[:-1], sizes[1:], strict=True)
    ]
    if normalised:
        layers[:-1] = [{**layer, "scale": jnp.ones_like(layer["bias"])} for layer in layers[:-1]]
    return layers


@jax.custom_vjp
def matmul(x: Array, weight: Array) -> Array:
    """x W, whose gradient xᵀg is the product of an explicit transpose: faster on CPU than a transposed product."""
    return x @ weight


def _matmul_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, weight = saved
    rows, columns = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    return g @ weight.T, jax.lax.optimization_barrier(rows.T) @ columns


matmul.defvjp(lambda x, weight: (x @ weight, (x, weight)), _matmul_backward)


def dense(layer: Layer, x: Array) -> Array:
    """x W + b; of a normalised layer, the deviations from the mean of its units."""
    layer = _centred(layer)
    y = matmul(x, layer["weight"])
    return y + jnp.broadcast_to(layer["bias"], y.shape)


def _centred(layer: Layer) -> Layer:
    """A normalised layer whose units have mean zero: taking the mean off the weights spares taking it off each row."""
    if "scale" not in layer:
        return layer
    weight, bias = (layer[name] - layer[name].mean(axis=-1, keepdims=True) for name in ("weight", "bias"))
    return {**layer, "weight": weight, "bias": bias}


def mlp(layers: Sequence[Layer], x: Array) -> Array:
    """ReLU network with a linear last layer."""
    for layer in layers[:-1]:
        x = _activate(layer, dense(layer, x))
    return dense(layers[-1], x)


def _activate(layer: Layer, x: Array) -> Array:
    """ReLU; where the layer is normalised, in units of the spread of its units, whose mean is zero."""
    if "scale" in layer:
        variance = jnp.mean(x**2, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(variance + 1e-5) * jnp.broadcast_to(layer["scale"], x.shape)
    return jax.nn.relu(x)


def named(layers: Sequence[Layer]) -> dict[str, Array]:
    """The layers of a network under the names that they have in the policy file."""
    return {f"layers.{i}.{name}": x for i, layer in enumerate(layers) for name, x in layer.items()}


def normalise_threshold(threshold: Array, threshold_range: tuple[float, float]) -> Array:
    """(ε − ε_L) / ε_H, the form in which every network sees a threshold (below Theorem 1)."""
    low, high = threshold_range
    return (threshold - low) / high


def init_actor(key: Array, input_size: int, action_size: int, *, hidden: Sequence[int]) -> list[Layer]:
    """An actor with outputs for mean and scale; its small last layer starts near zero mean and middle scale."""
    return init_mlp(key, (input_size, *hidden, 2 * action_size), last_gain=0.01)


def actor(
    layers: Sequence[Layer], obs: Array, condition: Array, *, std_range: tuple[float, float]
) -> tuple[Array, Array]:
    """Mean and scale of π(· | s, ε): μ = tanh(m), σ between the ends of `std_range`.

    obs [..., O], condition [...] (a normalised threshold) → two arrays [..., A]. Leading axes broadcast, and the first
    layer sees each observation once, however many conditions stand beside it.
    """
    first, size = layers[0], obs.shape[-1]
    from_obs = dense({"weight": first["weight"][:size], "bias": first["bias"]}, obs)
    out = from_obs + condition[..., None] * first["weight"][size].reshape(*[1] * condition.ndim, -1)
    out = mlp(layers[1:], _activate(first, out)) if layers[1:] else out
    pre_mean, pre_std = jnp.split(out, 2, axis=-1)
    low, high = std_range
    return jnp.tanh(pre_mean), low + (high - low) * jax.nn.sigmoid(pre_std)


def _joint_mlp(layers: Sequence[Layer], obs: Array, action: Array) -> Array:
    """An MLP of [s; a] whose first layer sees each observation once, however many actions stand beside it.

    obs [..., I], action [..., K, A] → [..., K, out].
    """
    first, rest = _centred(layers[0]), layers[1:]
    size = obs.shape[-1]
    from_obs = dense({"weight": first["weight"][:size], "bias": first["bias"]}, obs)
    out = from_obs[..., None, :] + matmul(action, first["weight"][size:])
    return mlp(rest, _activate(first, out)) if rest else out


def init_versatile_critic(
    key: Array,
    input_size: int,
    action_size: int,
    *,
    hidden: Sequence[int],
    features: int,
    embedding_hidden: int,
    kinks_upto: float = 0.0,
    normalised: bool = False,
) -> dict[str, list[Layer]]:
    """ψ: [s; a] → ℝ^F and z: ε → ℝ^F; the hidden units of z have their kinks at conditions in [0, kinks_upto]."""
    feature_key, embedding_key = jax.random.split(key)
    first, *rest = init_mlp(embedding_key, (1, embedding_hidden, features))
    kinks = jax.random.uniform(jax.random.fold_in(embedding_key, 1), (embedding_hidden,), maxval=kinks_upto)
    return {
        "feature": init_mlp(feature_key, (input_size + action_size, *hidden, features), normalised=normalised),
        "embedding": [{**first, "bias": -first["weight"][0] * kinks}, *rest],
    }


def embedding(layers: Sequence[Layer], condition: Array) -> Array:
    """z(ε): condition [...] → [..., F], scaled by 1/√F so that ψᵀz has the scale of one feature."""
    z = mlp(layers, condition[..., None])
    return z / math.sqrt(z.shape[-1])


def init_plain_critic(
    key: Array, input_size: int, action_size: int, *, hidden: Sequence[int], normalised: bool = False
) -> dict[str, list[Layer]]:
    """The ablation without VVE: one network of [s; ε; a]."""
    return {"joint": init_mlp(key, (input_size + 1 + action_size, *hidden, 1), normalised=normalised)}


def share_body(critics: Critics, network: str) -> Critics:
    """The same critics with the hidden layers of the first one's `network`, feature or joint, in common."""
    first = next(iter(critics.values()))
    heads = {name: {**critic, network: critic[network][-1:]} for name, critic in critics.items()}
    return {**heads, BODY: first[network][:-1]}


def features(critics: Critics, obs: Array, action: Array, *, bound: float) -> dict[str, Array]:
    """ψ(s, a) of each critic with ‖ψ‖∞ ≤ K enforced as K·tanh(x/K) (Assumption 1).

    obs [..., I], action [..., K, A] → {name: [..., K, F]}.
    """
    return {name: bound * jnp.tanh(x / bound) for name, x in _outputs(critics, "feature", obs, action).items()}


def versatile_q(critics: Critics, obs: Array, action: Array, condition: Array, *, bound: float) -> dict[str, Array]:
    """Q(s, a | ε) = ψ(s, a)ᵀ z(ε), Eq. (3): obs [..., I], action [..., K, A], condition [...] → {name: [..., K]}."""
    return {
        name: jnp.einsum("...kf,...f->...k", psi, embedding(critics[name]["embedding"], condition))
        for name, psi in features(critics, obs, action, bound=bound).items()
    }


def plain_q(critics: Critics, obs: Array, action: Array, condition: Array) -> dict[str, Array]:
    """Q(s, a, ε) of plain critics with the threshold concatenated; shapes as in `versatile_q`."""
    inputs = jnp.concatenate([obs, condition[..., None]], axis=-1)
    return {name: q[..., 0] for name, q in _outputs(critics, "joint", inputs, action).items()}


def _outputs(critics: Critics, network: str, obs: Array, action: Array) -> dict[str, Array]:
    """What each critic's network of [s; a] says; hidden layers in common are computed once."""
    own = {name: critic[network] for name, critic in critics.items() if name != BODY}
    if BODY not in critics:
        return {name: _joint_mlp(layers, obs, action) for name, layers in own.items()}
    hidden = _activate(critics[BODY][-1], _joint_mlp(critics[BODY], obs, action))
    return {name: mlp(layers, hidden) for name, layers in own.items()}


def rescale_output(critic: dict[str, list[Layer]], factor: Array) -> dict[str, list[Layer]]:
    """The critic whose every Q value is `factor` times as large."""
    name = "embedding" if "embedding" in critic else "joint"
    last = jax.tree.map(lambda x: x * factor, critic[name][-1])
    return {**critic, name: [*critic[name][:-1], last]}
