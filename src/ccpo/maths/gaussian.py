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
