"""DDPG-Lag: deterministic policy gradients with a Lagrange multiplier for each behaviour threshold.

Under several behaviour thresholds it is the paper's V-DDPG-Lag: the networks see [s; ε], and nothing but the data of
these thresholds is learned from. Under one it is plain DDPG-Lag.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccpo.config import setting
from ccpo.maths import networks, offpolicy
from ccpo.maths.offpolicy import Batch, Critics, OffPolicySettings, Signals
from ccpo.types import Acting, Array, Experience, Problem

METRICS = offpolicy.METRICS | {
    "policy/saturation": "share of the actor's actions beyond 0.99 of the box, where its gradient fades",
}


@dataclass(frozen=True)
class Config(OffPolicySettings):
    """Every choice of the method."""

    exploration_noise: float = setting(0.1, "scale of the Gaussian noise of exploring lanes", low=0)


class State(NamedTuple):
    """Everything that learning changes."""

    actor: list
    actor_target: list
    actor_opt: optax.OptState
    critics: Critics
    signals: Signals
    updates: Array
    key: Array


def init(config: Config, problem: Problem, key: Array) -> State:
    """The state before the first step."""
    spec = problem.spec
    actor_key, critic_key, key = jax.random.split(key, 3)
    inputs = spec.observation_size + offpolicy.conditioned(problem)
    actor = networks.init_mlp(actor_key, (inputs, *config.hidden, spec.action_size), last_gain=0.01)
    state = State(
        actor=actor,
        actor_target=actor,
        actor_opt=optax.adam(config.actor_rate).init(actor),
        critics=offpolicy.init_critics(config, problem, critic_key, members=1),
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
    """The deployed action for observations [N, O] under thresholds [N, 1]; with exploration noise if a key is given."""
    action = policy(state.actor, offpolicy.actor_inputs(problem, state.signals.normaliser(obs), budget[..., 0]))
    if key is None:
        return action
    return action + config.exploration_noise * jax.random.normal(key, action.shape)


def policy(actor: list, inputs: Array) -> Array:
    """The action, in (−1, 1): inputs [..., I] → [..., A]."""
    return jnp.tanh(networks.mlp(actor, inputs))


def update(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Learn from an iteration's experience: take its statistics in, then a scan of gradient updates."""
    return offpolicy.scan_steps(partial(step, config, problem, experience), config, problem, state, experience)


def step(config: Config, problem: Problem, experience: Experience, state: State) -> tuple[State, dict[str, Array]]:
    """One gradient update: critics, actor, and the targets of both."""
    key, batch_key = jax.random.split(state.key)
    batch = offpolicy.sample_batch(config, problem, state.signals, experience, batch_key)
    scale, targets = offpolicy.rate_scale(config.rate_decay, experience), critic_targets(state, batch)
    critics, critic_metrics = offpolicy.fit_critics(config, state.critics, batch, targets, scale=scale)
    state = state._replace(critics=critics, key=key, updates=state.updates + 1)
    state, actor_metrics = update_actor(config, state, batch, scale=scale)
    return state, critic_metrics | actor_metrics


def critic_targets(state: State, batch: Batch) -> dict[str, Array]:
    """y = Σ γⁱ f_i + γⁿ Q_target(s_n, π_target(s_n, ε)) for reward and cost: {name: [B]}."""
    action = policy(state.actor_target, batch.next_actor_inputs)
    following = offpolicy.cautious_q(state.critics.target, batch.next_critic_inputs, action, batch.condition)
    return {name: batch.returns[name] + batch.discount * following[name] for name in following}


def actor_loss(actor: list, state: State, batch: Batch) -> tuple[Array, dict[str, Array]]:
    """−E[(Q_r − λ(ε) Q_c)/(1 + λ(ε))] at the actor's own actions, and its metrics."""
    action = policy(actor, batch.actor_inputs)
    q = offpolicy.cautious_q(state.critics.online, batch.critic_inputs, action, batch.condition)
    loss = -offpolicy.lagrangian(q["reward"], q["cost"], batch.multiplier).mean()
    return loss, {
        "actor/q_reward": q["reward"].mean(),
        "actor/q_cost": q["cost"].mean(),
        "policy/saturation": jnp.mean(jnp.abs(action) > 0.99),
    }


def update_actor(config: Config, state: State, batch: Batch, *, scale: Array) -> tuple[State, dict[str, Array]]:
    """One Adam step of the actor; its slow copy follows."""
    grads, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch)
    actor, opt = offpolicy.adam_step(config.actor_rate, grads, state.actor_opt, state.actor, scale=scale)
    target = optax.incremental_update(actor, state.actor_target, config.target_rate)
    return state._replace(actor=actor, actor_target=target, actor_opt=opt), metrics


def acting(config: Config, problem: Problem, state: State) -> Acting:
    """The arrays that lanes act with: the same with and without exploration noise."""
    return offpolicy.acting(
        problem,
        state.actor,
        state.signals,
        distribution="deterministic",
        exploration_noise=config.exploration_noise,
    )
