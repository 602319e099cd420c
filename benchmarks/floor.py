"""The floor of an update: its matrix products and nothing else, no bias, activation, sampling, dual or optimiser.

What counts is what the definition of an update (`benchmarks.sizes`) needs:

| piece | products |
|---|---|
| critics | ψ and z of both critics on the batch, forwards and backwards |
| targets | the actor on the batch, ψ of both target critics on batch × target actions, z, forwards |
| E-step | ψ of both critics on states × K actions, z, and ψᵀz for all |
| sampling | the actor on each state under each threshold that shares it, forwards |
| M-step | the actor on the (state, threshold) pairs, forwards and backwards |

With several actions, observations go through the first layer of ψ once; a body that both critics share is there once.
The running level of cost, which the update also computes, is not in it: it could be had without products.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ccpo.algorithms import ccpo
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
    observation, action = problem.spec.observation_size, problem.spec.action_size
    actor = (observation + 1, *config.hidden, 2 * action)
    feature = (observation + action, *config.hidden, config.features)
    embedding = (1, config.embedding_hidden, config.features)
    pools = config.conditions // config.sharing
    states = pools * config.states
    batch = config.batch

    def features(rows: int, actions: int = 1) -> list[Product]:
        """ψ of both critics, forwards; observations go through the first layer once for all actions."""
        count, first, body, head = rows * actions, config.hidden[0], feature[1:-1], feature[-2:]
        inputs = [*forwards(rows, (observation, first)), *forwards(count, (action, first))]
        hidden = [*(inputs if actions > 1 else forwards(rows, feature[:2])), *forwards(count, body)]
        return (1 if config.shared_body else 2) * hidden + 2 * forwards(count, head)

    def gradients(rows: int) -> list[Product]:
        """ψ of both critics, backwards."""
        if not config.shared_body:
            return 2 * backwards(rows, feature)
        return backwards(rows, feature[:-1]) + 2 * backwards(rows, feature[-3:])[1:]

    critics = features(batch) + gradients(batch) + 2 * (forwards(batch, embedding) + backwards(batch, embedding))
    targets = features(batch, config.target_samples) + 2 * forwards(batch, embedding)
    reading = Product((config.states * config.action_samples, config.features), (config.features, config.sharing))
    estep = features(states, config.action_samples) + 2 * [*forwards(config.conditions, embedding), *pools * [reading]]
    sampling = forwards(config.conditions * config.states, actor)
    mstep = forwards(states, actor) + backwards(states, actor)
    return {
        "critics": critics + forwards(batch, actor) + targets,
        "policy": estep + sampling + mstep,
    }


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
