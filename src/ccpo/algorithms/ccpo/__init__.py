"""CCPO: constraint-conditioned policy optimisation, one policy for every threshold ε.

In a closed loop, the default, the policy π(a | s, b, h) sees the budget b = ε − cost so far and the time to go h. In an
open loop, the paper's setting, π(a | s, ε) sees the threshold only. The method has two parts: versatile value
estimation, Q(s, a | b) = ψ(s, a)ᵀ z(b) (`values`), and conditioned variational inference, a convex E-step and one
supervised M-step over all conditions (`inference`), which keeps a constraint (`constraints`). They meet in `step`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ccpo.algorithms.ccpo import constraints
from ccpo.algorithms.ccpo.inference import update_policy
from ccpo.algorithms.ccpo.model import Critics, State, discount_at, init, policy
from ccpo.algorithms.ccpo.settings import METRICS, Config
from ccpo.algorithms.ccpo.values import update_critics
from ccpo.maths import gaussian, networks, normaliser, offpolicy
from ccpo.maths.returns import Horizon
from ccpo.runtime import NetConfig
from ccpo.types import Acting, Array, Experience, Problem

__all__ = ["CLOSED_LOOP", "METRICS", "Config", "State", "act", "acting", "init", "update"]

CLOSED_LOOP = True
"""Whether it can be conditioned on the budget that is left."""


def act(
    config: Config,
    problem: Problem,
    state: State,
    obs: Array,
    budget: Array,
    time_to_go: Array,
    key: Array | None = None,
) -> Array:
    """The action for observations [N, O], budgets [N, M] and times [N]: as deployed, or a sample if a key is given."""
    params = state.actor if key is not None else state.actor_average
    mean, std = policy(config, problem, params, state.normaliser(obs), budget, time_to_go)
    return mean if key is None else gaussian.sample(key, mean, std, count=1)[..., 0, :]


def update(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Learn from an iteration's experience: take its statistics in, then a scan of gradient updates."""
    state = observe(config, problem, state, experience)
    count = max(1, round(config.updates_per_step * experience.rollout.reward.size))
    body = partial(step, config, problem, experience)
    state, history = jax.lax.scan(body, state, length=count)
    return state, jax.tree.map(jnp.mean, history)


def step(
    config: Config, problem: Problem, experience: Experience, state: State, _: None = None
) -> tuple[State, dict[str, Array]]:
    """One gradient update: critics, E-step, M-step, targets."""
    key, critic_key, policy_key = jax.random.split(state.key, 3)
    state, critic_metrics = update_critics(config, problem, state._replace(key=key), experience, critic_key)
    state, policy_metrics = update_policy(config, problem, state, experience, policy_key)
    return track(config, state), critic_metrics | policy_metrics


def observe(config: Config, problem: Problem, state: State, experience: Experience) -> State:
    """What a new rollout tells once: observation statistics, the reward's unit, the largest cost, finished episodes."""
    rollout = experience.rollout
    rms, _ = offpolicy.follow_reward_unit(state.reward_rms, rollout.reward, first=state.updates == 0)
    discount = discount_at(config, problem, experience.progress)
    unit = rms * Horizon(config.horizon, problem.spec.episode_length, discount).span
    factor = jnp.where(state.updates == 0, 1.0, state.reward_unit / unit)

    def rescale(critic: Critics) -> Critics:
        """Critics keep their values in the environment's unit."""
        return critic._replace(reward=networks.rescale_critic(critic.reward, factor))

    return state._replace(
        normaliser=normaliser.merge(state.normaliser, rollout.obs),
        reward_rms=rms,
        reward_unit=unit,
        discount=discount,
        critic=rescale(state.critic),
        critic_target=rescale(state.critic_target),
        cost_max=jnp.maximum(state.cost_max, rollout.cost.max(axis=(0, 1))),
        constraint=constraints.find(config, problem).observe(problem, state.constraint, experience),
    )


def track(config: Config, state: State) -> State:
    """What follows a gradient update: target critics, the averaged actor, and π_old once in a while."""
    updates = state.updates + 1
    refresh = updates % config.refresh_updates == 0
    return state._replace(
        critic_target=optax.incremental_update(state.critic, state.critic_target, config.target_rate),
        actor_average=optax.incremental_update(state.actor, state.actor_average, config.average_rate),
        actor_old=jax.tree.map(lambda new, old: jnp.where(refresh, new, old), state.actor, state.actor_old),
        updates=updates,
    )


def acting(config: Config, problem: Problem, state: State) -> Acting:
    """The arrays that environments act with: the actor to explore, the averaged one as deployed."""
    low, high = problem.threshold_range
    net = NetConfig(
        distribution="gaussian",
        threshold_low=(low,),
        threshold_high=(high,),
        condition="budget" if problem.closed else "threshold",
        std_min=config.std_min,
        std_max=config.std_max,
    )

    def arrays(actor: list) -> dict[str, Array]:
        return networks.named(actor) | {"obs_mean": state.normaliser.mean, "obs_std": state.normaliser.std}

    explore, deploy = jax.tree.map(np.array, (arrays(state.actor), arrays(state.actor_average)))
    return Acting(net, explore, deploy)
