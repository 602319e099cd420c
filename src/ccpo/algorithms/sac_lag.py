"""SAC-Lag: soft actor-critic with a Lagrange multiplier for each behaviour threshold.

Under several behaviour thresholds it is the paper's V-SAC-Lag: the networks see [s; ε], and nothing but the data of
these thresholds is learned from. Under one it is plain SAC-Lag.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccpo.config import setting
from ccpo.maths import gaussian, networks, offpolicy
from ccpo.maths.offpolicy import Batch, Critics, OffPolicySettings, Signals
from ccpo.runtime import LOG_STD_MAX, LOG_STD_MIN
from ccpo.types import Acting, Array, Experience, Problem

METRICS = offpolicy.METRICS | {
    "policy/std": "mean scale of the Gaussian before it is squashed",
    "entropy/weight": "α: what a unit of entropy is worth, in units of Q",
    "entropy/over_target": "mean entropy less its target; 0 when the weight has settled",
}


@dataclass(frozen=True)
class Config(OffPolicySettings):
    """Every choice of the method."""

    entropy_start: float = setting(0.01, "α at the start", above=0)
    entropy_rate: float = setting(1e-3, "Adam's rate for the logarithm of α", above=0)
    entropy_target: float = setting(-1.0, "the entropy that α is tuned to, for each dimension of the action")


class State(NamedTuple):
    """Everything that learning changes."""

    actor: list
    actor_opt: optax.OptState
    critics: Critics
    log_entropy_weight: Array
    entropy_opt: optax.OptState
    signals: Signals
    updates: Array
    key: Array


def init(config: Config, problem: Problem, key: Array) -> State:
    """The state before the first step."""
    spec = problem.spec
    actor_key, critic_key, key = jax.random.split(key, 3)
    inputs = spec.observation_size + offpolicy.conditioned(problem)
    actor = networks.init_actor(actor_key, inputs, spec.action_size, hidden=config.hidden)
    log_entropy_weight = jnp.log(jnp.float32(config.entropy_start))
    state = State(
        actor=actor,
        actor_opt=optax.adam(config.actor_rate).init(actor),
        critics=offpolicy.init_critics(config, problem, critic_key, members=2),
        log_entropy_weight=log_entropy_weight,
        entropy_opt=optax.adam(config.entropy_rate).init(log_entropy_weight),
        signals=offpolicy.init_signals(config, problem),
        updates=jnp.zeros((), jnp.int32),
        key=key,
    )
    return jax.tree.map(jnp.copy, state)


def act(
    config: Config,
    problem: Problem,
    state: State,
    obs: Array,
    budget: Array,
    time_to_go: Array,
    key: Array | None = None,
) -> Array:
    """The deployed action tanh(μ) for observations [N, O] and thresholds [N, 1], or a sample of π if a key is given."""
    mean, std = policy(state.actor, offpolicy.actor_inputs(problem, state.signals.normaliser(obs), budget[..., 0]))
    return jnp.tanh(mean) if key is None else sample(key, mean, std)[0]


def policy(actor: list, inputs: Array) -> tuple[Array, Array]:
    """Mean and scale of the Gaussian before it is squashed: inputs [..., I] → two [..., A]."""
    mean, log_std = jnp.split(networks.mlp(actor, inputs), 2, axis=-1)
    return mean, jnp.exp(jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))


def sample(key: Array, mean: Array, std: Array) -> tuple[Array, Array]:
    """A sample a = tanh(u), u ~ N(μ, σ²), and log π(a) = log N(u; μ, σ²) − Σ_j log(1 − tanh² u_j): [..., A], [...]."""
    latent = gaussian.sample(key, mean, std, count=1)[..., 0, :]
    return jnp.tanh(latent), gaussian.log_density(latent, mean, std) - log_slope(latent)


def log_slope(latent: Array) -> Array:
    """Σ_j log(1 − tanh² u_j) = Σ_j 2·(log 2 − u_j − softplus(−2u_j)), exact for large |u| too: [..., A] → [...]."""
    return jnp.sum(2.0 * (math.log(2.0) - latent - jax.nn.softplus(-2.0 * latent)), axis=-1)


def update(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Learn from an iteration's experience: take its statistics in, then a scan of gradient updates."""
    return offpolicy.scan_steps(partial(step, config, problem, experience), config, problem, state, experience)


def step(config: Config, problem: Problem, experience: Experience, state: State) -> tuple[State, dict[str, Array]]:
    """One gradient update: critics and their targets, actor, weight of the entropy."""
    key, batch_key, target_key, actor_key = jax.random.split(state.key, 4)
    batch = offpolicy.sample_batch(config, problem, state.signals, experience, batch_key)
    scale, targets = offpolicy.rate_scale(config.rate_decay, experience), critic_targets(state, batch, target_key)
    critics, critic_metrics = offpolicy.fit_critics(config, state.critics, batch, targets, scale=scale)
    state = state._replace(critics=critics, key=key, updates=state.updates + 1)
    state, entropy, actor_metrics = update_actor(config, state, batch, actor_key, scale=scale)
    state, entropy_metrics = tune_entropy(config, problem, state, entropy)
    return state, critic_metrics | actor_metrics | entropy_metrics


def critic_targets(state: State, batch: Batch, key: Array) -> dict[str, Array]:
    """y_r = Σ γⁱ r_i + γⁿ (min Q_r(s_n, a') − α log π(a')), y_c = Σ γⁱ c_i + γⁿ max Q_c(s_n, a'): {name: [B]}.

    a' ~ π(· | s_n, ε); the entropy of the steps between s and s_n is left out.
    """
    action, log_density = sample(key, *policy(state.actor, batch.next_actor_inputs))
    following = offpolicy.cautious_q(state.critics.target, batch.next_critic_inputs, action, batch.condition)
    following["reward"] -= jnp.exp(state.log_entropy_weight) * log_density
    return {name: batch.returns[name] + batch.discount * following[name] for name in following}


def actor_loss(actor: list, state: State, batch: Batch, key: Array) -> tuple[Array, dict[str, Array]]:
    """−E[(Q_r − α log π − λ(ε) Q_c)/(1 + λ(ε))], and the metrics of the actor."""
    mean, std = policy(actor, batch.actor_inputs)
    action, log_density = sample(key, mean, std)
    q = offpolicy.cautious_q(state.critics.online, batch.critic_inputs, action, batch.condition)
    soft = q["reward"] - jnp.exp(state.log_entropy_weight) * log_density
    loss = -offpolicy.lagrangian(soft, q["cost"], batch.multiplier).mean()
    metrics = {"actor/q_reward": q["reward"].mean(), "actor/q_cost": q["cost"].mean(), "policy/std": std.mean()}
    return loss, metrics | {"entropy": -log_density.mean()}


def update_actor(
    config: Config, state: State, batch: Batch, key: Array, *, scale: Array
) -> tuple[State, Array, dict[str, Array]]:
    """One Adam step of the actor; also returns its mean entropy."""
    grads, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, key)
    actor, opt = offpolicy.adam_step(config.actor_rate, grads, state.actor_opt, state.actor, scale=scale)
    entropy = metrics.pop("entropy")
    return state._replace(actor=actor, actor_opt=opt), entropy, metrics


def tune_entropy(config: Config, problem: Problem, state: State, entropy: Array) -> tuple[State, dict[str, Array]]:
    """One Adam step of log α down the slope H − H_target: α falls while the entropy is above its target."""
    excess = entropy - config.entropy_target * problem.spec.action_size
    change, opt = optax.adam(config.entropy_rate).update(excess, state.entropy_opt)
    weight = state.log_entropy_weight + change
    metrics = {"entropy/weight": jnp.exp(weight), "entropy/over_target": excess}
    return state._replace(log_entropy_weight=weight, entropy_opt=opt), metrics


def acting(config: Config, problem: Problem, state: State) -> Acting:
    """The arrays that lanes act with: a sample of π to explore, tanh(μ) as deployed."""
    return offpolicy.acting(problem, state.actor, state.signals, distribution="squashed")
