"""The versatile M-step: weighted maximum likelihood under a KL bound for each threshold, Eq. (11).

The bound on KL(π_old ‖ π) is decoupled into mean and scale. Its multipliers are functions of the threshold:
positive values at evenly spaced knots of the normalised range, interpolated linearly, so that *every* threshold has its
own however thresholds are drawn.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ccpo.maths import gaussian
from ccpo.types import Array


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
    return KLMultipliers(jnp.full(knots, jnp.log(value)), jnp.full(knots, jnp.log(value)))


def multiplier_at(log_values: Array, position: Array) -> Array:
    """The multiplier at a position in [0, 1] of the threshold range: linear between knots, [G] × [C] → [C]."""
    knots = jnp.linspace(0.0, 1.0, log_values.shape[0])
    return jnp.interp(position, knots, jnp.exp(log_values))


def weighted_likelihood(weights: Array, action: Array, mean: Array, std: Array, mean_old: Array, std_old: Array) -> Array:
    """−E_s[Σ_k q*_k log π(a_k | s, ε)], decoupled: once with the old scale, once with the old mean.

    weights [C, S, K], action [C, S, K, A], the rest [C, S, A] → [C].
    """
    fit_mean = gaussian.log_density(action, mean[..., None, :], std_old[..., None, :])
    fit_std = gaussian.log_density(action, mean_old[..., None, :], std[..., None, :])
    return -jnp.mean(jnp.sum(weights * (fit_mean + fit_std), axis=-1), axis=-1)


def mstep_loss(
    weights: Array,
    action: Array,
    policy: tuple[Array, Array],
    *,
    old_policy: tuple[Array, Array],
    multiplier_mean: Array,
    multiplier_std: Array,
) -> MStep:
    """The Lagrangian of Eq. (11), averaged over thresholds: likelihood + α_μ(ε)·KL_μ + α_σ(ε)·KL_σ."""
    mean, std = policy
    mean_old, std_old = old_policy
    fit = weighted_likelihood(weights, action, mean, std, mean_old, std_old)
    kl_mean, kl_std = (x.mean(axis=-1) for x in gaussian.decoupled_kl(mean_old, std_old, mean, std))
    loss = jnp.mean(fit + multiplier_mean * kl_mean + multiplier_std * kl_std)
    return MStep(loss, kl_mean, kl_std)


def multiplier_loss(multipliers: KLMultipliers, position: Array, divergences: tuple[Array, Array], *, bounds: tuple[float, float]) -> Array:
    """Dual loss, minimised over the multipliers: Σ α(ε)·(bound − KL(ε)), for mean and scale."""
    kl_mean, kl_std = jax.lax.stop_gradient(divergences)
    slack_mean = multiplier_at(multipliers.log_mean, position) * (1.0 - kl_mean / bounds[0])
    slack_std = multiplier_at(multipliers.log_std, position) * (1.0 - kl_std / bounds[1])
    return jnp.mean(slack_mean + slack_std)
