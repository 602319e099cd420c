"""Which thresholds an update is for, and which states: behaviour thresholds first, the whole range in fine-tuning."""

import jax
import jax.numpy as jnp

from ccpo import replay as replays
from ccpo.algorithms.ccpo.settings import Config
from ccpo.types import Array, Experience, Problem, Transition


def fine_tuning(config: Config, progress: Array) -> Array:
    """Whether the second stage, with unseen thresholds, has begun."""
    return (progress >= config.pretrain_share) & config.versatile_policy


def relabel(config: Config, problem: Problem, threshold: Array, progress: Array, key: Array) -> Array:
    """In fine-tuning, a share of the transitions serves thresholds drawn from the whole range: [B] → [B]."""
    choice, place = jax.random.uniform(key, (2, *threshold.shape))
    share = jnp.where(fine_tuning(config, progress), config.relabel_share, 0.0)
    return jnp.where(choice < share, _spread(problem, place), threshold)


def draw_conditions(config: Config, problem: Problem, experience: Experience, key: Array) -> Array:
    """The thresholds of an update: behaviour thresholds and, in fine-tuning, a share from the whole range.

    [P, B]: the B of a pool are neighbours, which share states and action samples.
    """
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    count, pools = config.conditions, config.conditions // config.sharing
    first, choice, place = jnp.split(jax.random.uniform(key, (1 + pools + count,)), (1, 1 + pools))
    seen = behaviour[(jnp.arange(pools) + replays.whole(first, len(behaviour))) % len(behaviour)]
    unseen = _spread(problem, (jnp.arange(count) + place) / count).reshape(pools, config.sharing)
    share = jnp.where(fine_tuning(config, experience.progress), config.unseen_share, 0.0)
    return jnp.where((choice < share)[:, None], unseen, seen[:, None])


def _spread(problem: Problem, unit: Array) -> Array:
    """Uniform numbers in [0, 1] as thresholds; a share falls on the ends, which have neighbours on one side only."""
    low, high = problem.threshold_range
    return low + (high - low) * jnp.clip(1.1 * unit - 0.05, 0.0, 1.0)


def draw_states(config: Config, problem: Problem, experience: Experience, thresholds: Array, key: Array) -> Transition:
    """A step that the policy visits near each threshold: a newest one of the two nearest behaviour thresholds, in the
    proportion that interpolates between them: [...] → Transition of [...]."""
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    position = jnp.interp(thresholds, behaviour, jnp.arange(len(behaviour), dtype=jnp.float32))
    rounding, place, age = jax.random.uniform(key, (3, *thresholds.shape))
    lower = jnp.floor(position)
    index = lower.astype(jnp.int32) + (rounding < position - lower)
    lanes = problem.lanes_per_threshold
    lane = index * lanes + replays.whole(place, lanes)
    recent = max(1, round(config.recent_episodes * problem.spec.episode_length))
    return replays.recent_steps(experience.replay, age, lane, recent=recent)
