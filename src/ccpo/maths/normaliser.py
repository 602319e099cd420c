"""Running mean and variance of observations, merged one rollout at a time."""

from typing import NamedTuple

import jax.numpy as jnp

from ccpo.types import Array


class Normaliser(NamedTuple):
    mean: Array
    variance: Array
    count: Array

    @property
    def std(self) -> Array:
        return jnp.sqrt(self.variance) + 1e-3

    def __call__(self, obs: Array) -> Array:
        """(s − mean)/std, clipped to ±10: [..., O] → [..., O]."""
        shape = obs.shape
        centred = obs - jnp.broadcast_to(self.mean, shape)
        return jnp.clip(centred / jnp.broadcast_to(self.std, shape), -10.0, 10.0)


def init(size: int) -> Normaliser:
    return Normaliser(jnp.zeros(size), jnp.ones(size), jnp.zeros(()))


def merge(normaliser: Normaliser, obs: Array) -> Normaliser:
    """The statistics after a rollout [T, E, O], by the parallel form of Welford's algorithm."""
    rows = obs.reshape(-1, obs.shape[-1])
    fresh = jnp.asarray(rows.shape[0], jnp.float32)
    mean, variance = rows.mean(axis=0), rows.var(axis=0)
    total = normaliser.count + fresh
    delta = mean - normaliser.mean
    spread = normaliser.variance * normaliser.count + variance * fresh + delta**2 * normaliser.count * fresh / total
    return Normaliser(normaliser.mean + delta * fresh / total, spread / total, total)
