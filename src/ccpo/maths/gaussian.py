"""Diagonal Gaussians: sampling, log-density and the decoupled KL divergence of the M-step.

Shapes: `mean`, `std`, `action` are [..., A]; results drop the last axis.
"""

import math

import jax
import jax.numpy as jnp

from ccpo.types import Array


def sample(key: Array, mean: Array, std: Array, *, count: int) -> Array:
    """`count` actions of each Gaussian, a = μ + σ·ξ with ξ ~ N(0, 1): [..., A] → [..., K, A]."""
    shape = (*mean.shape[:-1], count, mean.shape[-1])
    noise = jax.random.normal(key, shape)
    return mean[..., None, :] + std[..., None, :] * noise


def mix(noise: Array, mean: Array, std: Array) -> Array:
    """Actions of the even mixture of the B Gaussians along the third-last axis, made of N(0, 1) noise.

    Samples are dealt out to the Gaussians in turn, so all have the same share: in each state, or, where K is not a
    multiple of B, in each state from another one on.
    noise [..., S, K, A], mean and std [..., B, S, A] → [..., S, K, A].
    """
    components, (states, count) = mean.shape[-3], noise.shape[-3:-1]
    if count % components == 0:
        turns = (*[1] * (mean.ndim - 2), count // components, 1)
        mean, std = (jnp.tile(jnp.swapaxes(x, -3, -2), turns) for x in (mean, std))
        return mean + std * noise
    turn = (jnp.arange(states)[:, None] + jnp.arange(count)[None, :]) % components
    dealt = turn[None] == jnp.arange(components)[:, None, None]
    dealt = dealt.reshape(*[1] * (mean.ndim - 3), *dealt.shape, 1)
    # A masked sum: a gather of so few numbers takes several times as long on CPU.
    mean, std = (jnp.sum(jnp.where(dealt, x[..., None, :], 0.0), axis=-4) for x in (mean, std))
    return mean + std * noise


def mixture_log_weights(action: Array, mean: Array, std: Array) -> Array:
    """log π_b(a) − log (1/B) Σ_j π_j(a), at most log B.

    action [..., S, K, A], mean and std [..., B, S, A] → [..., B, S, K].
    """
    # States stand last, so that reductions over the other axes vectorise: [A, ..., B, K, S].
    action = jnp.swapaxes(jnp.moveaxis(action, -1, 0), -1, -2)[..., None, :, :]
    mean, std = (jnp.moveaxis(x, -1, 0)[..., None, :] for x in (mean, std))
    z, log_std = (action - mean) * (1.0 / std), jnp.log(std)
    # Of log N(a; μ, σ²) what does not cancel, term by term as below; computed once, not at each of its uses.
    density = jax.lax.optimization_barrier(-sum(0.5 * z[j] * z[j] + log_std[j] for j in range(len(z))))
    mixture = jax.nn.logsumexp(density, axis=-3, keepdims=True) - math.log(density.shape[-3])
    return jnp.swapaxes(density - mixture, -1, -2)


def effective_share(log_weights: Array) -> Array:
    """(Σ w)² / (K Σ w²), the effective share of K weighted samples: [..., K] → [...]."""
    weights = jax.nn.softmax(jnp.swapaxes(log_weights, -1, -2), axis=-2)
    return 1.0 / (weights.shape[-2] * jnp.sum(weights**2, axis=-2))


def log_density(action: Array, mean: Array, std: Array) -> Array:
    """log N(a; μ, σ²) = −½ Σ_j [((a_j − μ_j)/σ_j)² + 2 log σ_j + log 2π]."""
    z = (action - mean) / std
    terms = z * z + 2.0 * jnp.log(std) + math.log(2.0 * math.pi)
    # Term by term: a sum along so short an axis takes several times as long on CPU.
    return -0.5 * sum(terms[..., j] for j in range(terms.shape[-1]))


def kl(mean_p: Array, std_p: Array, mean_q: Array, std_q: Array) -> Array:
    """KL(N(μ_p, σ_p²) ‖ N(μ_q, σ_q²)) = Σ_j log(σ_q/σ_p) + (σ_p² + (μ_p − μ_q)²)/(2σ_q²) − ½."""
    terms = jnp.log(std_q / std_p) + (std_p**2 + (mean_p - mean_q) ** 2) / (2.0 * std_q**2) - 0.5
    return jnp.sum(terms, axis=-1)


def decoupled_kl(mean_old: Array, std_old: Array, mean: Array, std: Array) -> tuple[Array, Array]:
    """The two halves of MPO's trust region: the KL of moving the mean alone, and of changing the scale alone."""
    return kl(mean_old, std_old, mean, std_old), kl(mean_old, std_old, mean_old, std)
