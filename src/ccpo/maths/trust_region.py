"""The trust-region step of TRPO: Fisher-vector products, conjugate gradients, a backtracking line search.

Shapes: P parameters as one vector.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ccpo.maths import gaussian
from ccpo.types import Array

Product = Callable[[Array], Array]
"""A symmetric matrix as what it does to a vector."""

Gaussian = tuple[Array, Array]
"""Mean and scale in each state, [..., A]."""


def fisher_product(policy: Callable[[Array], Gaussian], params: Array, *, damping: float = 0.0) -> Product:
    """v ↦ (F + damping·I)·v, where F is the Hessian at `params` of the mean KL from the policy there: [P] → [P].

    At the centre F = JᵀGJ, with J the Jacobian of mean and scale and G = diag(1/σ², 2/σ²) a state: no second
    derivative is taken, and what does not depend on v is computed once.
    """
    (mean, std), pull = jax.vjp(policy, params)
    push = jax.linear_transpose(pull, (mean, std))
    weight = std.shape[-1] / (std.size * std**2)

    def product(vector: Array) -> Array:
        [(mean_change, std_change)] = push((vector,))
        return pull((weight * mean_change, 2.0 * weight * std_change))[0] + damping * vector

    return product


def conjugate_gradients(product: Product, vector: Array, *, iterations: int) -> Array:
    """x with A·x ≈ v for the symmetric positive definite A behind `product`: [P] → [P]."""

    def step(carry: tuple) -> tuple:
        count, x, residual, direction, square = carry
        image = product(direction)
        length = square / (direction @ image)
        residual = residual - length * image
        following = residual @ residual
        return count + 1, x + length * direction, residual, residual + following / square * direction, following

    start = vector @ vector
    carry = (0, jnp.zeros_like(vector), vector, vector, start)
    return jax.lax.while_loop(lambda c: (c[0] < iterations) & (c[4] > 1e-12 * start), step, carry)[1]


class TrustRegionStep(NamedTuple):
    """The new parameters, their KL from the old ones, and the accepted share of the full step (0: none)."""

    params: Any
    divergence: Array
    fraction: Array


def trust_region_step(
    objective: Callable[[Any], Array],
    policy: Callable[[Any], Gaussian],
    params: Any,
    *,
    bound: float,
    damping: float,
    iterations: int,
    shrink: float,
    tries: int,
) -> TrustRegionStep:
    """Raise the objective subject to mean KL ≤ bound: θ + f·√(2·bound / xᵀFx)·x with x = F⁻¹∇objective.

    f is the first of 1, shrink, shrink², … at which the objective rises and the bound holds; after `tries` of them, 0.
    """
    centre, unravel = ravel_pytree(params)
    old_policy = policy(params)
    value, gradient = jax.value_and_grad(lambda x: objective(unravel(x)))(centre)
    product = fisher_product(lambda x: policy(unravel(x)), centre, damping=damping)
    direction = conjugate_gradients(product, gradient, iterations=iterations)
    step = direction * jnp.sqrt(2.0 * bound / jnp.maximum(direction @ product(direction), 1e-12))

    def attempt(carry: tuple) -> tuple:
        count, fraction, _, _ = carry
        fraction = shrink**count
        candidate = unravel(centre + fraction * step)
        kl = gaussian.kl(*old_policy, *policy(candidate)).mean()
        return count + 1, fraction, kl, (objective(candidate) > value) & (kl <= bound)

    start = (jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), jnp.zeros((), bool))
    _, fraction, kl, accepted = jax.lax.while_loop(lambda c: (c[0] < tries) & ~c[3], attempt, start)
    fraction, kl = jnp.where(accepted, fraction, 0.0), jnp.where(accepted, kl, 0.0)
    return TrustRegionStep(unravel(jnp.where(accepted, centre + fraction * step, centre)), kl, fraction)
