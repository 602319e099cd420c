"""TRPO-Lag: trust-region policy optimisation with a Lagrange multiplier, at one threshold.

What it shares with PPO-Lag, and where both deviate from public code, stands in `ccpo.maths.onpolicy`. Two more:

5. The Fisher matrix is the mean over evenly spaced states of the rollout, not over all.
6. A step of the values sees a minibatch, not the whole rollout.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from ccpo.config import setting
from ccpo.maths import gaussian, onpolicy
from ccpo.maths.onpolicy import Batch, Learner, OnPolicySettings
from ccpo.maths.trust_region import TrustRegionStep, trust_region_step
from ccpo.types import Acting, Array, Experience, Problem

ON_POLICY = True
METRICS = onpolicy.METRICS | {"policy/step_fraction": "share of the full step that the line search accepted"}


@dataclass(frozen=True)
class Config(OnPolicySettings):
    """Every choice of the method."""

    kl_bound: float = setting(0.001, "trust region of a step of the policy: mean KL from where it begins", above=0)
    fisher_states: int = setting(400, "about how many states the Fisher matrix is averaged over", low=1)
    damping: float = setting(0.1, "what is added to the Fisher matrix's diagonal", above=0)
    conjugate_iterations: int = setting(10, "iterations of conjugate gradients", low=1)
    backtrack: float = setting(0.8, "factor by which the line search shortens a step that is refused", above=0, high=1)
    backtracks: int = setting(10, "lengths that the line search tries", low=1)
    value_steps: int = setting(20, "gradient steps of the values in each repeat", low=1)


State = Learner


def init(config: Config, problem: Problem, key: Array) -> State:
    """The state before the first step."""
    return onpolicy.init(config, problem, key)


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
    return onpolicy.act(state, obs, key)


def acting(config: Config, problem: Problem, state: State) -> Acting:
    """The arrays that lanes act with."""
    return onpolicy.acting(problem, state)


def update(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Learn from the newest rollout: multiplier, advantages, then natural steps of the policy and steps of values."""
    state, batch, metrics = onpolicy.observe(config, problem, state, experience)
    state, history = jax.lax.scan(partial(step, config, batch), state, length=config.repeats)
    metrics |= jax.tree.map(jnp.mean, history)
    return state, metrics | {"policy/std": jnp.exp(state.actor["log_std"]).mean()}


def step(config: Config, batch: Batch, state: State, _: None = None) -> tuple[State, dict[str, Array]]:
    """One step of the policy within its trust region, then the values' steps on random minibatches."""
    result = improve(config, state, batch)
    key, draw_key = jax.random.split(state.key)
    samples = batch.advantage.shape[0]
    indices = jax.random.randint(draw_key, (config.value_steps, min(config.batch, samples)), 0, samples)
    state, history = jax.lax.scan(
        lambda learner, index: onpolicy.fit_values(config, learner, onpolicy.take(batch, index)),
        state._replace(actor=result.params, key=key),
        indices,
    )
    metrics = {
        "policy/kl_over_bound": result.divergence / config.kl_bound,
        "policy/step_fraction": result.fraction,
    }
    return state, metrics | jax.tree.map(jnp.mean, history)


def improve(config: Config, state: State, batch: Batch) -> TrustRegionStep:
    """max E[w·ρ·A] subject to mean KL ≤ bound, both around the current policy."""
    log_centre = gaussian.log_density(batch.action, *onpolicy.policy(state.actor, batch.obs))
    weight = onpolicy.importance(log_centre, batch.log_acted)
    sparse_obs = batch.obs[:: max(1, batch.obs.shape[0] // config.fisher_states)]

    def objective(actor: dict) -> Array:
        log_ratio = gaussian.log_density(batch.action, *onpolicy.policy(actor, batch.obs)) - log_centre
        return onpolicy.surrogate(log_ratio, weight, batch.advantage)

    return trust_region_step(
        objective,
        lambda actor: onpolicy.policy(actor, sparse_obs),
        state.actor,
        bound=config.kl_bound,
        damping=config.damping,
        iterations=config.conjugate_iterations,
        shrink=config.backtrack,
        tries=config.backtracks,
    )
