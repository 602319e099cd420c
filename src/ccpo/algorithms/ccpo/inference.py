"""CVI: conditioned variational inference, an E-step for each threshold and one M-step over all of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccpo.algorithms.ccpo.constraint import cost_allowed, q_threshold, steepened
from ccpo.algorithms.ccpo.model import State, critic_inputs, policy, pool_q
from ccpo.algorithms.ccpo.sampling import draw_states
from ccpo.algorithms.ccpo.settings import Config
from ccpo.maths import gaussian, mstep, offpolicy
from ccpo.maths.estep import EStep, estep
from ccpo.types import Array, Experience, Problem

BURST = 8.0
"""KL over its bound, of mean and scale together and averaged over thresholds, that an M-step does not go on from."""


class Pool(NamedTuple):
    """The samples of an E-step: P pools, each of B neighbouring thresholds with states and actions in common."""

    thresholds: Array
    """[P, B]."""
    mean: Array
    std: Array
    """π_old under each threshold in each state: [P, B, S, A]."""
    action: Array
    """Samples of the mixture of these B policies: [P, S, K, A]."""
    log_weights: Array
    """log π_old(a | s, ε) − log of the mixture's density: [P, B, S, K]."""
    effective: Array
    """Effective samples of these weights, over K: [P]."""


def draw_pool(config: Config, problem: Problem, state: State, thresholds: Array, obs: Array, *, key: Array) -> Pool:
    """Actions for thresholds [P, B] in states obs [P, S, O].

    Where the neighbours' policies differ so much that too few samples would count, one of them, each in its turn,
    takes the place of all.
    """
    mean, std = policy(config, problem, state.actor_old, obs[:, None], thresholds[..., None])
    noise = jax.random.normal(key, (*obs.shape[:2], config.action_samples, mean.shape[-1]))

    def sample(thresholds: Array, mean: Array, std: Array) -> Pool:
        action = gaussian.mix(noise, mean, std)
        log_weights = gaussian.mixture_log_weights(action, mean, std)
        effective = gaussian.effective_share(log_weights).mean(axis=(1, 2))
        return Pool(thresholds, mean, std, action, log_weights, effective)

    pool = sample(thresholds, mean, std)
    if config.sharing == 1:
        return pool
    alone = pool.effective < config.sharing_min

    def settle(x: Array) -> Array:
        one = jax.lax.dynamic_index_in_dim(x, state.updates % config.sharing, axis=1)
        return jnp.where(alone.reshape(-1, *[1] * (x.ndim - 1)), one, x)

    def resample() -> Pool:
        settled = sample(*(settle(x) for x in (thresholds, mean, std)))
        return settled._replace(effective=pool.effective)

    return jax.lax.cond(alone.any(), resample, lambda: pool)


def update_policy(
    config: Config, problem: Problem, state: State, experience: Experience, thresholds: Array, key: Array
) -> tuple[State, dict[str, Array]]:
    """Constraint-conditioned E-step for each threshold [P, B], then one Adam step of the versatile M-step.

    The E-step of a threshold uses all states of its pool, the M-step those that were drawn for this threshold.
    """
    state_key, action_key = jax.random.split(key)
    own = config.states // config.sharing
    steps = draw_states(config, problem, experience, jnp.repeat(thresholds, own, axis=1), state_key)
    obs = state.normaliser(steps.obs)
    pool = draw_pool(config, problem, state, thresholds, obs, key=action_key)
    inputs = critic_inputs(config, problem, obs, steps.time_to_go)
    log_weights = pool.log_weights.reshape(-1, *pool.log_weights.shape[2:])
    conditions = pool.thresholds.reshape(-1)
    critic = state.critic_target if config.steady_critic else state.critic
    q = pool_q(config, problem, critic, inputs, pool.action, pool.thresholds)
    allowed = cost_allowed(config, problem, state, conditions, experience.progress)
    q_cost = steepened(config, problem, q["cost"], allowed)
    bound = q_threshold(config, problem, state, conditions, q_cost, log_weights=log_weights, allowed=allowed)
    solution = estep(
        q["reward"],
        q_cost,
        bound,
        kl_bound=config.estep_kl_bound,
        multiplier_max=config.multiplier_max,
        temperature_min=config.temperature_min,
        log_weights=log_weights,
    )

    state, over_bounds, burst = _mstep(
        config,
        problem,
        state,
        experience,
        obs.reshape(-1, own, *obs.shape[2:]),
        condition=jnp.broadcast_to(conditions[:, None], (config.conditions, own)),
        action=pool.action.reshape(-1, own, *pool.action.shape[2:]),
        weights=_own_states(solution.weights.reshape(pool.log_weights.shape)),
        old_policy=(_own_states(pool.mean), _own_states(pool.std)),
    )
    return state, policy_metrics(config, solution, pool, over_bounds) | {"mstep/bursts": burst}


def _own_states(x: Array) -> Array:
    """Of values in all states of a pool, those in the states drawn for each threshold: [P, B, S, …] → [C, S/B, …]."""
    pools, sharing, states, *rest = x.shape
    own, each = states // sharing, jnp.arange(sharing)
    return x.reshape(pools, sharing, sharing, own, *rest)[:, each, each].reshape(-1, own, *rest)


def _mstep(
    config: Config,
    problem: Problem,
    state: State,
    experience: Experience,
    obs: Array,
    *,
    condition: Array,
    action: Array,
    weights: Array,
    old_policy: tuple[Array, Array],
) -> tuple[State, list[Array], Array]:
    """One Adam step of the M-step's Lagrangian; KL of mean and scale over their bounds; whether it was a burst."""
    low, high = problem.threshold_range
    position = (condition[:, 0] - low) / (high - low)
    multiplier_mean, multiplier_std = (
        mstep.multiplier_at(log, position) for log in (state.kl_multipliers.log_mean, state.kl_multipliers.log_std)
    )

    def loss(actor: list) -> tuple[Array, mstep.MStep]:
        result = mstep.mstep_loss(
            weights,
            action,
            policy(config, problem, actor, obs, condition),
            old_policy=old_policy,
            multiplier_mean=multiplier_mean,
            multiplier_std=multiplier_std,
        )
        return result.loss, result

    grads, result = jax.grad(loss, has_aux=True)(state.actor)
    scale = offpolicy.rate_scale(config.rate_decay, experience)
    actor, actor_opt = offpolicy.adam_step(config.actor_rate, grads, state.actor_opt, state.actor, scale=scale)
    divergences = (result.kl_mean, result.kl_std)
    left = 1.0 - config.bound_decay * experience.progress
    bounds = (left * config.mstep_kl_mean_bound, left * config.mstep_kl_std_bound)
    multipliers = [
        mstep.update_multipliers(log, position, kl, bound=bound, rate=config.mstep_multiplier_rate)
        for log, kl, bound in zip(state.kl_multipliers, divergences, bounds, strict=True)
    ]
    # The multipliers need many updates to answer a burst of KL; going back to π_old stops it at once. Adam loses its
    # momentum, which would lead there again. It keeps what it knew of the size of gradients: its very first step,
    # which knows nothing, is so large that it would be the next burst.
    over_bounds = [kl.mean() / bound for kl, bound in zip(divergences, bounds, strict=True)]
    burst = sum(over_bounds) > BURST
    at_rest = optax.tree_utils.tree_set(state.actor_opt, mu=jax.tree.map(jnp.zeros_like, state.actor_old))
    restart = (state.actor_old, at_rest)
    actor, actor_opt = jax.tree.map(lambda go, back: jnp.where(burst, back, go), (actor, actor_opt), restart)
    state = state._replace(
        actor=actor,
        actor_opt=actor_opt,
        kl_multipliers=mstep.KLMultipliers(*multipliers),
    )
    return state, over_bounds, burst


def policy_metrics(config: Config, solution: EStep, pool: Pool, over_bounds: list[Array]) -> dict[str, Array]:
    """Health of E- and M-step; quantities relative to their bounds read 1.0 when the bound is met exactly."""
    return {
        "estep/kl_over_bound": solution.kl.mean() / config.estep_kl_bound,
        "estep/temperature": solution.temperature.mean(),
        "estep/multiplier": solution.multiplier.mean(),
        "estep/multiplier_at_bound": solution.at_bound.mean(),
        "estep/effective_samples": solution.effective_samples.mean() / config.action_samples,
        "estep/shared_samples": pool.effective.mean(),
        "mstep/kl_mean_over_bound": over_bounds[0],
        "mstep/kl_std_over_bound": over_bounds[1],
        "policy/std": pool.std.mean(),
    }
