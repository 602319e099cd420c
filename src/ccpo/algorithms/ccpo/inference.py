"""CVI: conditioned variational inference, a convex E-step and one supervised M-step over all conditions."""

import jax
import jax.numpy as jnp
import optax

from ccpo.algorithms.ccpo import constraints
from ccpo.algorithms.ccpo.constraints import Samples
from ccpo.algorithms.ccpo.model import State, policy, q_values
from ccpo.algorithms.ccpo.sampling import Pairs, draw_pairs
from ccpo.algorithms.ccpo.settings import Config
from ccpo.maths import gaussian, mstep, offpolicy
from ccpo.types import Array, Experience, Problem

BURST = 8.0
"""KL over its bound, of mean and scale together and averaged over pairs, that an M-step does not go on from."""
MULTIPLIER_RATE = 0.02
"""Rate, in the logarithm, of the multipliers of the M-step's two bounds."""


def update_policy(
    config: Config, problem: Problem, state: State, experience: Experience, key: Array
) -> tuple[State, dict[str, Array]]:
    """The constraint's E-step from actions of π_old in the pairs of this update, then one Adam step of the M-step."""
    pair_key, action_key = jax.random.split(key)
    pairs = draw_pairs(config, problem, state, experience, pair_key)
    old_policy = policy(config, problem, state.actor_old, *pairs)
    action = gaussian.sample(action_key, *old_policy, count=config.action_samples)
    q_reward, q_cost = q_values(config, problem, state.critic_target, pairs.obs, action, pairs.budget, pairs.time_to_go)
    samples = Samples(
        q_reward=q_reward,
        q_cost=q_cost,
        budget=pairs.budget,
        reward_span=state.reward_unit / state.reward_rms,
        progress=experience.progress,
    )
    solution = constraints.find(config, problem).solve(config, problem, state.constraint, samples)
    state = state._replace(constraint=solution.state)
    state, metrics = _mstep(config, problem, state, experience, pairs, action, solution.weights, old_policy)
    return state, solution.metrics | metrics | {"policy/std": old_policy[1].mean()}


def _mstep(
    config: Config,
    problem: Problem,
    state: State,
    experience: Experience,
    pairs: Pairs,
    action: Array,
    weights: Array,
    old_policy: tuple[Array, Array],
) -> tuple[State, dict[str, Array]]:
    """One Adam step of the M-step's Lagrangian."""
    position = _position(problem, pairs)
    multiplier_mean, multiplier_std = (mstep.multiplier_at(log, position) for log in state.kl_multipliers)

    def loss(actor: list) -> tuple[Array, mstep.MStep]:
        result = mstep.mstep_loss(
            weights,
            action,
            policy(config, problem, actor, *pairs),
            old_policy=old_policy,
            multiplier_mean=multiplier_mean,
            multiplier_std=multiplier_std,
        )
        return result.loss, result

    grads, result = jax.grad(loss, has_aux=True)(state.actor)
    scale = offpolicy.rate_scale(config.decay, experience)
    actor, actor_opt = offpolicy.adam_step(config.actor_rate, grads, state.actor_opt, state.actor, scale=scale)
    divergences = (result.kl_mean, result.kl_std)
    bounds = (scale * config.mstep_kl_mean_bound, scale * config.mstep_kl_std_bound)
    multipliers = [
        mstep.update_multipliers(log, position, kl, bound=bound, rate=MULTIPLIER_RATE)
        for log, kl, bound in zip(state.kl_multipliers, divergences, bounds, strict=True)
    ]
    # The multipliers need many updates to answer a burst of KL; going back to π_old stops it at once. Adam loses its
    # momentum, which would lead there again. It keeps what it knew of the size of gradients: its very first step,
    # which knows nothing, is so large that it would be the next burst.
    mean_over, std_over = (kl.mean() / bound for kl, bound in zip(divergences, bounds, strict=True))
    burst = mean_over + std_over > BURST
    at_rest = optax.tree_utils.tree_set(state.actor_opt, mu=jax.tree.map(jnp.zeros_like, state.actor_old))
    restart = (state.actor_old, at_rest)
    actor, actor_opt = jax.tree.map(lambda go, back: jnp.where(burst, back, go), (actor, actor_opt), restart)
    state = state._replace(actor=actor, actor_opt=actor_opt, kl_multipliers=mstep.KLMultipliers(*multipliers))
    metrics = {
        "mstep/kl_mean_over_bound": mean_over,
        "mstep/kl_std_over_bound": std_over,
        "mstep/bursts": burst,
    }
    return state, metrics


def _position(problem: Problem, pairs: Pairs) -> Array:
    """Where the conditions lie in the threshold range, for multipliers that are functions of ε: [C] in [0, 1]."""
    if problem.closed:
        return jnp.zeros(1)
    low, high = problem.threshold_range
    return (pairs.budget[:, 0, 0] - low) / (high - low)
