"""Returns, and the pair of critic horizon and constraint that must agree.

The E-step compares E_s E_q[Q_c] with a number derived from the episodic threshold ε. Which number is right depends on
what the critic sums up and on the states that are averaged; `Horizon` fixes both, so that they cannot disagree.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ccpo.types import Array

HORIZONS = ("endless", "finite")


class Horizon(NamedTuple):
    """How far critics look, for episodes of `length` steps.

    endless: discounted, bootstraps through the time limit; averaged over visited states.
    finite: the time to go is an input of the critics, the time limit is an end; averaged over visited states.
    """

    name: str
    length: int
    discount: Array | float

    @property
    def sees_time(self) -> bool:
        return self.name == "finite"

    @property
    def span(self) -> Array | float:
        """The mean over visited states of Σ γᵗ over the steps that a critic counts: Q of one unit a step.

        endless: 1/(1 − γ); finite: mean over h = 1…T of (1 − γʰ)/(1 − γ).
        """
        if self.name == "endless":
            return 1.0 / (1.0 - self.discount)
        steps_to_go = np.arange(1.0, self.length + 1.0)
        if isinstance(self.discount, float) and self.discount == 1.0:
            return float(steps_to_go.mean())
        return ((1.0 - self.discount**steps_to_go) / (1.0 - self.discount)).mean()

    def rest(self, steps_to_go: Array) -> Array:
        """Σ γᵗ over so many steps that are left, in units of `span`: Q of the rest of an episode of one unit a step."""
        if self.name == "endless":
            return jnp.ones_like(steps_to_go)
        return self.q_run(steps_to_go) / self.span

    def q_threshold(self, threshold: Array) -> Array:
        """ε_q = ε/T · span: the mean Q_c of a policy whose episodes cost ε, spread evenly."""
        return threshold * (self.span / self.length)

    def q_run(self, steps: Array) -> Array:
        """Q_c of a state from which so many steps cost one each, at once: Σ γᵗ over them."""
        return steps if self.discount == 1.0 else (1.0 - self.discount**steps) / (1.0 - self.discount)


class NStep(NamedTuple):
    """`value` Σ γⁱ f_i, `last` the index of the last step summed, `discount` γ to the number of steps: all [B]."""

    value: Array
    last: Array
    discount: Array


def nstep_return(values: Array, ended: Array, discount: Array | float, *, limit: Array | None = None) -> NStep:
    """Sum of discounted values up to the first step that ends an episode, and of at most `limit` [B] steps if given.

    values [n, B, …] and ended [n, B] → a value [B, …] and two arrays [B].
    """
    index = jnp.arange(values.shape[0])[:, None]
    counted = jnp.cumsum(ended, axis=0) - ended == 0
    if limit is not None:
        counted &= index < limit[None, :]
    last = counted.sum(axis=0).astype(jnp.int32) - 1
    weight = counted * discount ** index.astype(values.dtype)
    value = jnp.sum(values * weight.reshape(*weight.shape, *[1] * (values.ndim - 2)), axis=0)
    return NStep(value, last, discount ** (last + 1.0))


def gae(
    gains: Array,
    value: Array,
    next_value: Array,
    *,
    terminated: Array,
    truncated: Array,
    discount: float,
    decay: float,
) -> Array:
    """Generalised advantages Aₜ = δₜ + γ·decay·Aₜ₊₁, δₜ = gₜ + γ·V(s′ₜ) − V(sₜ), of gains g that are rewards or costs.

    A termination has no V(s′), a truncation bootstraps from it; neither looks beyond its episode. All arrays [T, E].
    """
    delta = gains + discount * jnp.where(terminated, 0.0, next_value) - value
    carries = discount * decay * ~(terminated | truncated)

    def step(following: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = row[0] + row[1] * following
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, carries), reverse=True)[1]
