"""What CCPO learns, and how its networks are asked: the policy π(a | s, ε) and the critics Q(s, a | ε)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccpo.algorithms.ccpo.settings import Config
from ccpo.errors import ConfigError
from ccpo.maths import gaussian, mstep, networks, normaliser, offpolicy
from ccpo.maths.returns import Horizon
from ccpo.types import Array, Problem


class State(NamedTuple):
    """Everything that learning changes."""

    actor: list
    actor_old: list
    actor_average: list
    critic: dict
    critic_target: dict
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    kl_multipliers: mstep.KLMultipliers
    normaliser: normaliser.Normaliser
    reward_unit: Array
    cost_level: Array
    """At evenly spaced thresholds: the mean of Q_c over visited states under the policy, times ε_H."""
    cost_bias: Array
    """By behaviour threshold: predicted minus measured episodic cost."""
    cost_measured: Array
    cost_variance: Array
    """By behaviour threshold: the latest measured episodic cost, NaN before the first, and the running variance around
    its slow drift."""
    updates: Array
    key: Array


def init(config: Config, problem: Problem, key: Array) -> State:
    """The state before the first step."""
    spec = problem.spec
    if config.overspend_price > 0 and not spec.budget_aware:
        raise ConfigError(
            f"overspend_price={config.overspend_price:g} needs to see what an episode has cost so far, which "
            f"'{spec.task}' does not show; give a budget-aware task, such as DroneRun-BudgetAware"
        )
    actor_key, reward_key, cost_key, key = jax.random.split(key, 4)
    actor = networks.init_actor(actor_key, spec.observation_size + 1, spec.action_size, hidden=config.hidden)
    critic: networks.Critics = {
        "reward": _init_critic(config, problem, reward_key),
        "cost": _init_critic(config, problem, cost_key),
    }
    if config.shared_body:
        critic = networks.share_body(critic, "feature" if config.versatile_critic else "joint")
    multipliers = mstep.init_multipliers(config.knots, value=10.0)
    per_threshold = jnp.zeros(len(problem.behaviour_thresholds))
    state = State(
        actor=actor,
        actor_old=actor,
        actor_average=actor,
        critic=critic,
        critic_target=critic,
        actor_opt=optax.adam(config.actor_rate).init(actor),
        critic_opt=optax.adam(config.critic_rate).init(critic),
        kl_multipliers=multipliers,
        normaliser=normaliser.init(spec.observation_size),
        reward_unit=jnp.ones(()),
        cost_level=jnp.zeros(config.knots),
        cost_bias=per_threshold,
        cost_measured=jnp.full_like(per_threshold, jnp.nan),
        cost_variance=per_threshold,
        updates=jnp.zeros((), jnp.int32),
        key=key,
    )
    return jax.tree.map(jnp.copy, state)


def _init_critic(config: Config, problem: Problem, key: Array) -> dict:
    spec = problem.spec
    inputs = spec.observation_size + int(horizons(config, problem)["cost"].sees_time)
    if config.versatile_critic:
        high = problem.threshold_range[1]
        return networks.init_versatile_critic(
            key,
            inputs,
            spec.action_size,
            hidden=config.hidden,
            features=config.features,
            embedding_hidden=config.embedding_hidden,
            kinks_upto=networks.normalise_threshold(high, problem.threshold_range) if config.spread_embedding else 0.0,
            normalised=config.normalised_critic,
        )
    return networks.init_plain_critic(
        key, inputs, spec.action_size, hidden=config.hidden, normalised=config.normalised_critic
    )


def horizons(config: Config, problem: Problem) -> dict[str, Horizon]:
    """What each critic sums up."""
    cost_discount = config.discount if config.cost_discount is None else config.cost_discount
    discounts = {"reward": config.discount, "cost": cost_discount}
    return {name: Horizon(config.horizon, problem.spec.episode_length, value) for name, value in discounts.items()}


def deployed_actor(config: Config, state: State) -> list:
    return state.actor_average if config.average_rate > 0 else state.actor


def drawn_in(config: Config, problem: Problem, thresholds: Array) -> Array:
    """Thresholds with only a share of what they have beyond the behaviour thresholds: [...] → [...].

    Nothing is collected out there, so what networks make of such an input is a guess; a near input is a near guess.
    """
    below = jnp.minimum(thresholds - problem.behaviour_thresholds[0], 0.0)
    above = jnp.maximum(thresholds - problem.behaviour_thresholds[-1], 0.0)
    return thresholds - (1.0 - config.beyond_share) * below - (1.0 - above_share(config)) * above


def above_share(config: Config) -> float:
    return config.beyond_share if config.above_share is None else config.above_share


def seen_threshold(config: Config, problem: Problem, thresholds: Array) -> Array:
    """Thresholds as the networks see them: drawn in and normalised, [...] → [...]."""
    return networks.normalise_threshold(drawn_in(config, problem, thresholds), problem.threshold_range)


def policy(config: Config, problem: Problem, params: list, obs: Array, threshold: Array) -> tuple[Array, Array]:
    """Mean and scale of π(· | s, ε) for normalised observations [..., O] and thresholds [...]."""
    condition = seen_threshold(config, problem, threshold)
    return networks.actor(params, obs, condition, std_range=(config.std_min, config.std_max))


def critic_inputs(config: Config, problem: Problem, obs: Array, time_to_go: Array) -> Array:
    """Normalised observations, with the share of the episode still to go where the critics' horizon is finite."""
    return offpolicy.critic_inputs(horizons(config, problem)["cost"], obs, time_to_go)


def q_values(
    config: Config, problem: Problem, critic: networks.Critics, inputs: Array, action: Array, threshold: Array
) -> dict[str, Array]:
    """Q_r and Q_c(s, a | ε): critic inputs [..., I], actions [..., K, A], thresholds [...] → {name: [..., K]}."""
    condition = seen_threshold(config, problem, threshold)
    action = jnp.clip(action, -1.0, 1.0)
    if config.versatile_critic:
        return networks.versatile_q(critic, inputs, action, condition, bound=config.feature_bound)
    return networks.plain_q(critic, inputs, action, condition)


def pool_q(
    config: Config, problem: Problem, critic: networks.Critics, inputs: Array, action: Array, thresholds: Array
) -> dict[str, Array]:
    """Q of the actions of pools under each of their thresholds: ψ once for all thresholds, z once for all states.

    inputs [P, S, I], action [P, S, K, A], thresholds [P, B] → {name: [P·B, S, K]}.
    """
    samples = (*thresholds.shape, *action.shape[1:3])
    if config.versatile_critic:
        condition = seen_threshold(config, problem, thresholds)
        psi = networks.features(critic, inputs, jnp.clip(action, -1.0, 1.0), bound=config.feature_bound)
        q = {
            name: jnp.einsum("pskf,pbf->pbsk", psi[name], networks.embedding(critic[name]["embedding"], condition))
            for name in psi
        }
    else:
        inputs, action = (jnp.broadcast_to(x[:, None], (*samples[:2], *x.shape[1:])) for x in (inputs, action))
        thresholds = jnp.broadcast_to(thresholds[..., None], samples[:3])
        q = q_values(config, problem, critic, inputs, action, thresholds)
    return {name: values.reshape(-1, *samples[2:]) for name, values in q.items()}


def judged_actions(config: Config, key: Array, mean: Array, std: Array, *, count: int) -> Array:
    """Actions of the policy that the critics judge, mean and scale [..., A] → [..., K, A].

    The mean alone as deployed, else `count` samples, in antithetic pairs if there are several.
    """
    if config.deployed_targets:
        return mean[..., None, :]
    action = gaussian.sample(key, mean, std, count=(count + 1) // 2)
    return action if count == 1 else jnp.concatenate([action, 2.0 * mean[..., None, :] - action], axis=-2)
