"""CCPO: constraint-conditioned policy optimisation, one policy π(a | s, ε) for every threshold ε.

Two parts (docs/algorithms/ccpo.md): versatile value estimation, Q(s, a | ε) = ψ(s, a)ᵀ z(ε) (`values`), and conditioned
variational inference, a convex E-step for each of a set of thresholds and one supervised M-step over all of them
(`inference`), which keeps what `constraint` says. `step` is where they meet.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ccpo.algorithms.ccpo.constraint import feed_back, update_cost_level
from ccpo.algorithms.ccpo.inference import update_policy
from ccpo.algorithms.ccpo.model import State, above_share, deployed_actor, init, policy
from ccpo.algorithms.ccpo.sampling import draw_conditions
from ccpo.algorithms.ccpo.settings import METRICS, Config
from ccpo.algorithms.ccpo.values import update_critics
from ccpo.maths import gaussian, networks, normaliser, offpolicy
from ccpo.runtime import NetConfig
from ccpo.types import Acting, Array, Experience, Problem, Transition

__all__ = ["METRICS", "Config", "State", "act", "acting", "init", "update"]


def act(
    config: Config, problem: Problem, state: State, obs: Array, threshold: Array, key: Array | None = None
) -> Array:
    """The action for observations [N, O] under thresholds [N]: as deployed, or a sample of π if a key is given."""
    params = state.actor if key is not None else deployed_actor(config, state)
    mean, std = policy(config, problem, params, state.normaliser(obs), threshold)
    return mean if key is None else gaussian.sample(key, mean, std, count=1)[..., 0, :]


def update(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Learn from an iteration's experience: take its statistics in, then a scan of gradient updates."""
    state, metrics = observe(config, problem, state, experience)
    count = max(1, round(config.updates_per_step * experience.rollout.reward.size))
    body = partial(step, config, problem, experience)
    state, history = jax.lax.scan(body, state, length=count)
    return state, metrics | jax.tree.map(jnp.mean, history)


def step(
    config: Config, problem: Problem, experience: Experience, state: State, _: None = None
) -> tuple[State, dict[str, Array]]:
    """One gradient update: critics, E-step for a set of thresholds, M-step over all of them, targets."""
    key, *keys = jax.random.split(state.key, 5)
    state = state._replace(key=key)
    state, critic_metrics = update_critics(config, problem, state, experience, keys[0])
    state = update_cost_level(config, problem, state, experience, keys[1])
    conditions = draw_conditions(config, problem, experience, keys[2])
    state, policy_metrics = update_policy(config, problem, state, experience, conditions, keys[3])
    return track(config, state), critic_metrics | policy_metrics


def observe(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """What a new rollout tells once: observation statistics, the reward's unit, how far predicted costs are off."""
    rollout = experience.rollout
    if config.normalise_observations:
        state = state._replace(normaliser=normaliser.merge(state.normaliser, rollout.obs))
    return feed_back(config, problem, _rescale_reward(state, rollout), experience)


def _rescale_reward(state: State, rollout: Transition) -> State:
    """Follow the reward's root mean square; critics keep their values in the environment's unit."""
    unit, factor = offpolicy.follow_reward_unit(state.reward_unit, rollout.reward, first=state.updates == 0)

    def rescale(critic: dict) -> dict:
        return {**critic, "reward": networks.rescale_output(critic["reward"], factor)}

    return state._replace(reward_unit=unit, critic=rescale(state.critic), critic_target=rescale(state.critic_target))


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
    """The arrays that lanes act with: the actor to explore, the averaged one (if any) as deployed."""
    low, high = problem.threshold_range
    first, last = problem.behaviour_thresholds[0], problem.behaviour_thresholds[-1]
    below, above = config.beyond_share, above_share(config)
    seen = {low: first + below * (low - first), high: last + above * (high - last), first: first, last: last}
    asked = tuple(sorted(seen)) if min(below, above) < 1.0 else ()
    net = NetConfig(
        activation="relu",
        distribution="gaussian",
        std_min=config.std_min,
        std_max=config.std_max,
        conditioned=True,
        threshold_low=low,
        threshold_high=high,
        asked=asked,
        shown=tuple(seen[threshold] for threshold in asked),
    )

    def arrays(actor: list) -> dict[str, Array]:
        return networks.named(actor) | {"obs_mean": state.normaliser.mean, "obs_std": state.normaliser.std}

    explore, deploy = jax.tree.map(np.array, (arrays(state.actor), arrays(deployed_actor(config, state))))
    return Acting(net, explore, deploy)
