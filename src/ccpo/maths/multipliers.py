"""Lagrange multipliers as (init, update) pairs: one multiplier for each behaviour threshold, all updated at once.

Shapes: N thresholds; every array is [N].
"""

from typing import NamedTuple

import jax.numpy as jnp

from ccpo.types import Array


class PIDState(NamedTuple):
    """The sum of errors, the latest error and the multiplier that follows from them: three arrays [N]."""

    integral: Array
    error: Array
    multiplier: Array


class PID(NamedTuple):
    """A controller of the episodic cost c (Stooke et al., 2020), with gains K_P, K_I, K_D and error e = c − ε:

    λ = clip(K_P·e + K_I·I + K_D·max(0, e − e_old), 0, λ_max),  I = clip(I + e, 0, λ_max/K_I).

    Bounding I is the anti-windup: neither long safe nor long unsafe times delay the answer to a change.

    >>> pid = PID((0.05, 0.0005, 0.1))
    >>> state, multiplier = pid.update(pid.init(2), jnp.array([50.0, 10.0]), jnp.array([40.0, 20.0]))
    >>> [round(float(x), 3) for x in multiplier]
    [0.505, 0.0]
    """

    gains: tuple[float, ...]
    multiplier_max: float = 100.0

    def init(self, count: int) -> PIDState:
        """No multiplier yet; the infinite error means that the first measurement is no rise."""
        return PIDState(jnp.zeros(count), jnp.full(count, jnp.inf, jnp.float32), jnp.zeros(count))

    def update(
        self, state: PIDState, cost: Array, threshold: Array, *, known: Array | None = None
    ) -> tuple[PIDState, Array]:
        """The state and the multipliers after measured costs; where `known` is false there was none, and all stays."""
        proportional, integral_gain, derivative = self.gains
        error = cost - threshold
        integral_max = self.multiplier_max / integral_gain if integral_gain > 0 else jnp.inf
        integral = jnp.clip(state.integral + error, 0.0, integral_max)
        rise = jnp.maximum(0.0, error - state.error)
        multiplier = proportional * error + integral_gain * integral + derivative * rise
        fresh = PIDState(integral, error, jnp.clip(multiplier, 0.0, self.multiplier_max))
        if known is not None:
            fresh = PIDState(*(jnp.where(known, new, old) for new, old in zip(fresh, state, strict=True)))
        return fresh, fresh.multiplier
