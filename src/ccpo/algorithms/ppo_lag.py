"""PPO-Lag: proximal policy optimisation with a Lagrange multiplier, at one threshold.

What it shares with TRPO-Lag, and where both deviate from public code, stands in `ccpo.maths.onpolicy`. One more:

5. The KL that stops the policy's steps is the exact one of a minibatch, and values go on learning after it.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccpo.config import setting
from ccpo.maths import gaussian, onpolicy
from ccpo.maths.onpolicy import Batch, Learner, OnPolicySettings
from ccpo.types import Acting, Array, Experience, Problem

ON_POLICY = True
METRICS = onpolicy.METRICS | {"policy/steps_taken": "share of the policy's gradient steps before the KL stopped them"}


@dataclass(frozen=True)
class Config(OnPolicySettings):
    """Every choice of the method."""

    actor_rate: float = setting(5e-4, "Adam's rate for the policy", above=0)
    clip: float = setting(0.2, "how far the policy's ratio may usefully leave 1", above=0, high=1)
    kl_stop: float = setting(0.02, "mean KL at which an update stops to change the policy", above=0)


class State(NamedTuple):
    """Everything that learning changes."""

    learner: Learner
    actor_opt: optax.OptState


def init(config: Config, problem: Problem, key: Array) -> State:
    """The state before the first step."""
    learner = onpolicy.init(config, problem, key)
    return State(learner, jax.tree.map(jnp.copy, optax.adam(config.actor_rate).init(learner.actor)))


def act(
    config: Config,
    problem: Problem,
    state: State,
    obs: Array,
    budget: Array,
    time_to_go: Array,
    key: Array | None = None,
) -> Array:
    """The deployed action for observations [N, O], or a sample of π if a key is given; the threshold has no effect."""
    return onpolicy.act(state.learner, obs, key)


def acting(config: Config, problem: Problem, state: State) -> Acting:
    """The arrays that lanes act with."""
    return onpolicy.acting(problem, state.learner)


def update(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Learn from the newest rollout: multiplier, advantages, then steps of policy and values over its minibatches."""
    learner, batch, metrics = onpolicy.observe(config, problem, state.learner, experience)
    key, shuffle_key = jax.random.split(learner.key)
    state = state._replace(learner=learner._replace(key=key))
    centre = onpolicy.policy(learner.actor, batch.obs)
    body = partial(step, config, batch, centre)
    indices = minibatches(shuffle_key, batch.advantage.shape[0], config.batch, repeats=config.repeats)
    (state, _), history = jax.lax.scan(body, (state, jnp.ones((), bool)), indices)
    metrics |= jax.tree.map(jnp.mean, history)
    divergence = gaussian.kl(*centre, *onpolicy.policy(state.learner.actor, batch.obs)).mean()
    metrics["policy/kl_over_bound"] = divergence / config.kl_stop
    metrics["policy/std"] = jnp.exp(state.learner.actor["log_std"]).mean()
    return state, metrics


def minibatches(key: Array, samples: int, size: int, *, repeats: int) -> Array:
    """Indices of equal minibatches, each sample in at most one of each repeat: [repeats · minibatches, size]."""
    size = min(size, samples)
    count = samples // size
    orders = [jax.random.permutation(k, samples)[: count * size] for k in jax.random.split(key, repeats)]
    return jnp.concatenate(orders).reshape(repeats * count, size)


def step(
    config: Config, batch: Batch, centre: tuple[Array, Array], carry: tuple[State, Array], index: Array
) -> tuple[tuple[State, Array], dict[str, Array]]:
    """One minibatch: a step of the policy while its KL from the centre allows one, and a step of the values."""
    state, running = carry
    part = onpolicy.take(batch, index)
    state, running = improve(config, state, part, onpolicy.take(centre, index), running=running)
    learner, metrics = onpolicy.fit_values(config, state.learner, part)
    return (state._replace(learner=learner), running), metrics | {"policy/steps_taken": running.astype(jnp.float32)}


def improve(
    config: Config, state: State, batch: Batch, centre: tuple[Array, Array], *, running: Array
) -> tuple[State, Array]:
    """One Adam step up the clipped surrogate, unless the policy has left the trust region around the centre."""
    log_centre = gaussian.log_density(batch.action, *centre)
    weight = onpolicy.importance(log_centre, batch.log_acted)

    def loss(actor: dict) -> tuple[Array, Array]:
        current = onpolicy.policy(actor, batch.obs)
        log_ratio = gaussian.log_density(batch.action, *current) - log_centre
        gain = onpolicy.surrogate(log_ratio, weight, batch.advantage, clip=config.clip)
        return -gain, gaussian.kl(*centre, *current).mean()

    grads, divergence = jax.grad(loss, has_aux=True)(state.learner.actor)
    running &= divergence <= config.kl_stop
    change, opt = optax.adam(config.actor_rate).update(grads, state.actor_opt)
    moved, stayed = (optax.apply_updates(state.learner.actor, change), opt), (state.learner.actor, state.actor_opt)
    actor, opt = jax.tree.map(lambda new, old: jnp.where(running, new, old), moved, stayed)
    return State(state.learner._replace(actor=actor), opt), running
