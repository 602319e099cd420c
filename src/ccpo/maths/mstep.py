"""The versatile M-step: weighted maximum likelihood under a KL bound for each threshold, Eq. (12).

The bound on KL(π_old ‖ π) is decoupled into mean and scale. Its multipliers are functions of the threshold:
positive values at evenly spaced knots of the normalised range, interpolated linearly, so that *every* threshold has its
own however thresholds are drawn.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from ccpo.maths import gaussian
from ccpo.types import Array

LOG_LIMITS = (-7.0, 12.0)
KNOTS = 7
"""Evenly spaced thresholds at which functions of the threshold are kept."""


class KLMultipliers(NamedTuple):
    """Logarithms of the multipliers at the knots: two arrays [G]."""

    log_mean: Array
    log_std: Array


class MStep(NamedTuple):
    """The loss and, for each threshold, the two KL divergences: scalars and [C]."""

    loss: Array
    kl_mean: Array
    kl_std: Array


def init_multipliers(knots: int, *, value: float) -> KLMultipliers:
    start = jnp.full(knots, math.log(value), jnp.float32)
    return KLMultipliers(start, start)


def hats(knots: int, position: Array) -> Array:
    """How much each knot counts at each position in [0, 1]: piecewise linear, rows sum to one, [C] → [C, G]."""
    distance = position[:, None] * (knots - 1) - jnp.arange(knots, dtype=position.dtype)[None, :]
    return jnp.maximum(0.0, 1.0 - jnp.abs(distance))


def multiplier_at(log_values: Array, position: Array) -> Array:
    """The multiplier at a position in [0, 1] of the threshold range: linear between knots, [G] × [C] → [C]."""
    return hats(log_values.shape[0], position) @ jnp.exp(log_values)


def update_multipliers(log_values: Array, position: Array, divergence: Array, *, bound: float, rate: float) -> Array:
    """Dual ascent in the logarithm: the knots around each threshold rise by rate·(KL/bound − 1), clipped to ±rate.

    The step does not depend on the multiplier's size, so one burst of KL cannot freeze the policy for long after it.
    log_values [G], position and divergence [C] → [G].
    """
    near = hats(log_values.shape[0], position)
    excess = jnp.clip(divergence / bound - 1.0, -1.0, 1.0)
    change = excess @ near / jnp.maximum(near.sum(axis=0), 1.0)
    return jnp.clip(log_values + rate * change, *LOG_LIMITS)


def weighted_likelihood(
    weights: Array, action: Array, mean: Array, std: Array, mean_old: Array, std_old: Array
) -> Array:
    """−E_s[Σ_k q*_k log π(a_k | s, ε)], decoupled: once with the old scale, once with the old mean.

    weights [C, S, K], action [C, S, K, A], the rest [C, S, A] → [C].
    """
    # Gaussians need no more of the samples than two moments, here around the old mean; gradients then have no axis K.
    distance = action - mean_old[..., None, :]
    first, second = (jnp.einsum("csk,cska->csa", weights, x) for x in (distance, distance**2))
    total = jnp.sum(weights, axis=-1)[..., None]
    moved = mean - mean_old
    fit_mean = (second - 2.0 * first * moved + total * moved**2) / std_old**2 + total * jnp.log(std_old**2)
    fit_std = second / std**2 + total * jnp.log(std**2)
    each = 0.5 * (fit_mean + fit_std) + total * math.log(2.0 * math.pi)
    return jnp.mean(jnp.sum(each, axis=-1), axis=-1)


def mstep_loss(
    weights: Array,
    action: Array,
    policy: tuple[Array, Array],
    *,
    old_policy: tuple[Array, Array],
    multiplier_mean: Array,
    multiplier_std: Array,
) -> MStep:
    """The Lagrangian of Eq. (12), averaged over thresholds: likelihood + α_μ(ε)·KL_μ + α_σ(ε)·KL_σ.

    It is in units of 1 + α_μ + α_σ, of their means over thresholds: else multipliers that have grown leave gradients in
    Adam's memory that stop the policy long after they have fallen again.
    """
    mean, std = policy
    mean_old, std_old = old_policy
    fit = weighted_likelihood(weights, action, mean, std, mean_old, std_old)
    kl_mean, kl_std = (x.mean(axis=-1) for x in gaussian.decoupled_kl(mean_old, std_old, mean, std))
    loss = jnp.mean(fit + multiplier_mean * kl_mean + multiplier_std * kl_std)
    return MStep(loss / (1.0 + jnp.mean(multiplier_mean + multiplier_std)), kl_mean, kl_std)
