"""The floor of an update: its matrix products and nothing else, no bias, activation, sampling, dual or optimiser.

What counts is what the definition of an update (`benchmarks.sizes`) needs:

| piece | products |
|---|---|
| critics | ψ and z of both critics and V̄ on the batch, forwards and backwards |
| targets | the actor, ψ and z of both target critics and, in a closed loop, V̄ on the batch, forwards |
| E-step | the actor on the pairs, ψ of both critics on pairs × K actions, z, and ψᵀz for all, forwards |
| M-step | the actor on the pairs, forwards and backwards |

With several actions, observations go through the first layer of ψ once.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import model
from ccpo.types import Problem


class Product(NamedTuple):
    """The shapes of a matrix product's factors; the right one may stand transposed."""

    left: tuple[int, int]
    right: tuple[int, int]
    transposed: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.left[0] * self.left[1] * self.right[0 if self.transposed else 1]


Sizes = Sequence[int]


def forwards(rows: int, sizes: Sizes) -> list[Product]:
    """x W of every layer of an MLP with these sizes."""
    return [Product((rows, i), (i, o)) for i, o in pairwise(sizes)]


def backwards(rows: int, sizes: Sizes) -> list[Product]:
    """∂W = xᵀ ∂y of every layer, with xᵀ laid out as is fastest, and ∂x = ∂y Wᵀ of all but the first."""
    layers = list(pairwise(sizes))
    weights = [Product((i, rows), (rows, o)) for i, o in layers]
    inputs = [Product((rows, o), (i, o), transposed=True) for i, o in layers[1:]]
    return weights + inputs


def products(config: ccpo.Config, problem: Problem) -> dict[str, list[Product]]:
    """All matrix products of one update: those of the critics and those of the policy's E- and M-step."""
    critic_inputs = problem.spec.observation_size + int(config.horizon == "finite")
    action, condition = problem.spec.action_size, 2 if problem.closed else 1
    actor = (problem.spec.observation_size + condition + int(problem.closed), *config.hidden, 2 * action)
    feature = (critic_inputs + action, *config.hidden, config.features)
    embedding = (condition, model.EMBEDDING_HIDDEN, config.features)
    mean_value = (condition + 1, model.EMBEDDING_HIDDEN, model.EMBEDDING_HIDDEN, 1)
    batch, pairs, count = config.batch, config.states, config.states * config.action_samples

    def both_ways(rows: int, sizes: Sizes) -> list[Product]:
        return forwards(rows, sizes) + backwards(rows, sizes)

    critics = 2 * (both_ways(batch, feature) + both_ways(batch, embedding)) + both_ways(batch, mean_value)
    targets = forwards(batch, actor) + 2 * (forwards(batch, feature) + forwards(batch, embedding))
    targets += forwards(batch, mean_value) if problem.closed else []
    first = config.hidden[0]
    features = forwards(pairs, (critic_inputs, first)) + forwards(count, (action, first)) + forwards(count, feature[1:])
    reading = Product((count, config.features), (config.features, 1))
    estep = forwards(pairs, actor) + 2 * [*features, *forwards(pairs, embedding), reading]
    return {"critics": critics + targets, "policy": estep + both_ways(pairs, actor)}


def floor(wanted: Sequence[Product], *, repetitions: int) -> Callable[[], float]:
    """A function that does all these products many times and returns the CPU seconds of each time."""
    # Each product has a left factor of its own: of two equal products the compiler would do one.
    rng = np.random.default_rng(0)
    lefts = [jnp.asarray(rng.standard_normal(product.left, np.float32)) for product in wanted]
    shapes = {product.right for product in wanted}
    rights = {shape: jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes}

    def once(token: jax.Array, operands: tuple[list, dict]) -> jax.Array:
        # The barriers keep the compiler from moving products out of the loop, and from computing only what is read.
        (lefts, rights), token = jax.lax.optimization_barrier((operands, token))
        results = [
            left @ (rights[p.right].T if p.transposed else rights[p.right])
            for left, p in zip(lefts, wanted, strict=True)
        ]
        return token + sum(r[0, 0] for r in jax.lax.optimization_barrier(results))

    @jax.jit
    def many(operands: tuple[list, dict]) -> jax.Array:
        return jax.lax.fori_loop(0, repetitions, lambda _, token: once(token, operands), jnp.float32(0.0))

    def seconds_each() -> float:
        start = time.process_time()
        many((lefts, rights)).block_until_ready()
        return (time.process_time() - start) / repetitions

    return seconds_each
