"""Networks as plain pytrees: MLPs, the conditioned actor, and the critics Q(s, a | ε).

A layer is `{"weight": [in, out], "bias": [out]}`, a network a list of layers, so that a parameter's path
(`layers.0.weight`) is also its name in checkpoints and in the deployed policy file. A hidden layer with a third
parameter, `scale` [out], is normalised.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ccpo.types import Array

Layer = dict[str, Array]

Critic = dict[str, list[Layer]]
"""The network of [s; a] `feature` and `embedding`, or the network `joint` of [s; ε; a] alone."""


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
    """Mean and scale of π(· | s, ε) or π(· | s, b, h): μ = tanh(m), σ between the ends of `std_range`.

    obs [..., O], condition [..., D] (a normalised threshold, or what is seen of a budget) → two arrays [..., A].
    """
    pre_mean, pre_std = jnp.split(mlp(layers, jnp.concatenate([obs, condition], axis=-1)), 2, axis=-1)
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
    condition_size: int,
    hidden: Sequence[int],
    features: int,
    embedding_hidden: int,
) -> Critic:
    """ψ: [s; a] → ℝ^F with normalised hidden layers, and z: ε or b → ℝ^F."""
    feature_key, embedding_key = jax.random.split(key)
    return {
        "feature": init_mlp(feature_key, (input_size + action_size, *hidden, features), normalised=True),
        "embedding": init_mlp(embedding_key, (condition_size, embedding_hidden, features)),
    }


def embedding(layers: Sequence[Layer], condition: Array) -> Array:
    """z: condition [..., D] → [..., F], scaled by 1/√F so that ψᵀz has the scale of one feature."""
    z = mlp(layers, condition)
    return z / math.sqrt(z.shape[-1])


def init_plain_critic(
    key: Array,
    input_size: int,
    action_size: int,
    *,
    condition_size: int = 1,
    hidden: Sequence[int],
    normalised: bool = False,
) -> Critic:
    """One network of [s; ε; a], or of [s; b; a]: what critics are without VVE."""
    return {"joint": init_mlp(key, (input_size + condition_size + action_size, *hidden, 1), normalised=normalised)}


def features(layers: Sequence[Layer], obs: Array, action: Array, *, bound: float) -> Array:
    """ψ(s, a) with ‖ψ‖∞ ≤ K enforced as K·tanh(x/K) (Assumption 1): obs [..., I], action [..., K, A] → [..., K, F]."""
    return bound * jnp.tanh(_joint_mlp(layers, obs, action) / bound)


def versatile_q(critic: Critic, obs: Array, action: Array, condition: Array, *, bound: float) -> Array:
    """Q(s, a | ε) = ψ(s, a)ᵀ z(ε), Eq. (3): obs [..., I], action [..., K, A], condition [..., D] → [..., K]."""
    psi = features(critic["feature"], obs, action, bound=bound)
    return jnp.einsum("...kf,...f->...k", psi, embedding(critic["embedding"], condition))


def plain_q(critic: Critic, obs: Array, action: Array, condition: Array) -> Array:
    """Q(s, a, ε) of a plain critic with the condition concatenated; shapes as in `versatile_q`."""
    return _joint_mlp(critic["joint"], jnp.concatenate([obs, condition], axis=-1), action)[..., 0]


def rescale_output(layers: Sequence[Layer], factor: Array) -> list[Layer]:
    """The network whose every output is `factor` times as large."""
    return [*layers[:-1], jax.tree.map(lambda x: x * factor, layers[-1])]


def rescale_critic(critic: Critic, factor: Array) -> Critic:
    """The critic whose every Q value is `factor` times as large."""
    name = "embedding" if "embedding" in critic else "joint"
    return {**critic, name: rescale_output(critic[name], factor)}
