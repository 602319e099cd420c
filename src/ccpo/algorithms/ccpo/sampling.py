"""Which conditions an update is for, and in which states.

A closed loop pairs recent states with the budgets they were visited under, or with budgets drawn from all that an
episode may meet. An open loop pairs a threshold with states that the policy visits near it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ccpo import replay as replays
from ccpo.algorithms.ccpo.model import State, budget_of
from ccpo.algorithms.ccpo.settings import Config
from ccpo.types import Array, Experience, Problem, Transition

BUDGET_SPAN = (-0.03, 1.02)
"""Drawn budgets, in units of the highest threshold: a little more than all that may be left."""


class Pairs(NamedTuple):
    """States and what the policy is conditioned on in them: C conditions with S states each."""

    obs: Array
    """Normalised: [C, S, O]."""
    budget: Array
    """[C, S, M]."""
    time_to_go: Array
    """[C, S]."""


def relabel(config: Config, problem: Problem, budget: Array, progress: Array, key: Array) -> tuple[Array, Array]:
    """A share of the budgets [B, M] is drawn anew, once the first stage is over; and which: [B]."""
    choice_key, place_key = jax.random.split(key)
    share = jnp.where(_fine_tuning(config, progress), config.relabel_share, 0.0)
    chosen = jax.random.uniform(choice_key, budget.shape[:1]) < share
    drawn = _spread(problem, jax.random.uniform(place_key, budget.shape))
    return jnp.where(chosen[:, None], drawn, budget), chosen


def draw_pairs(config: Config, problem: Problem, state: State, experience: Experience, key: Array) -> Pairs:
    """The pairs of an update."""
    state_key, condition_key = jax.random.split(key)
    if problem.closed:
        unit = jax.random.uniform(state_key, (2, config.states))
        lane = replays.whole(unit[1], problem.lanes)
        steps = replays.recent_steps(experience.replay, unit[0], lane, recent=_recent(config, problem))
        budget = budget_of(problem, steps)
        if config.versatile_policy:
            budget, _ = relabel(config, problem, budget, experience.progress, condition_key)
        pairs = Pairs(state.normaliser(steps.obs), budget, steps.time_to_go)
        return jax.tree.map(lambda x: x[None], pairs)
    thresholds = _draw_thresholds(config, problem, experience, condition_key)
    thresholds = jnp.broadcast_to(thresholds[:, None], (config.conditions, config.states // config.conditions))
    steps = _states_near(config, problem, experience, thresholds, state_key)
    return Pairs(state.normaliser(steps.obs), thresholds[..., None], steps.time_to_go)


def _fine_tuning(config: Config, progress: Array) -> Array:
    """Whether the second stage, with unseen conditions, has begun."""
    return (progress >= config.pretrain_share) & config.versatile_policy


def _recent(config: Config, problem: Problem) -> int:
    return max(1, round(config.recent_episodes * problem.spec.episode_length))


def _spread(problem: Problem, unit: Array) -> Array:
    """Uniform numbers in [0, 1] as budgets, or as thresholds of which a share falls on the ends of the range."""
    low, high = problem.threshold_range
    if problem.closed:
        return high * (BUDGET_SPAN[0] + (BUDGET_SPAN[1] - BUDGET_SPAN[0]) * unit)
    return low + (high - low) * jnp.clip(1.1 * unit - 0.05, 0.0, 1.0)


def _draw_thresholds(config: Config, problem: Problem, experience: Experience, key: Array) -> Array:
    """The thresholds of an update: behaviour thresholds and, in fine-tuning, a share from the whole range: [C]."""
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    count = config.conditions
    first, choice, place = jnp.split(jax.random.uniform(key, (1 + 2 * count,)), (1, 1 + count))
    seen = behaviour[(jnp.arange(count) + replays.whole(first, len(behaviour))) % len(behaviour)]
    unseen = _spread(problem, (jnp.arange(count) + place) / count)
    share = jnp.where(_fine_tuning(config, experience.progress), config.relabel_share, 0.0)
    return jnp.where(choice < share, unseen, seen)


def _states_near(config: Config, problem: Problem, experience: Experience, thresholds: Array, key: Array) -> Transition:
    """A step that the policy visits near each threshold: a newest one of the two nearest behaviour thresholds, in the
    proportion that interpolates between them: [...] → Transition of [...]."""
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    position = jnp.interp(thresholds, behaviour, jnp.arange(len(behaviour), dtype=jnp.float32))
    rounding, place, age = jax.random.uniform(key, (3, *thresholds.shape))
    lower = jnp.floor(position)
    index = lower.astype(jnp.int32) + (rounding < position - lower)
    lane = index * problem.lanes_per_threshold + replays.whole(place, problem.lanes_per_threshold)
    return replays.recent_steps(experience.replay, age, lane, recent=_recent(config, problem))
