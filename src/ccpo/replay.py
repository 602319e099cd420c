"""Replay: a ring of whole rollouts, one lane for each environment, on the learner's device.

Lanes belong to behaviour thresholds: environment e always acts under the same one, so drawing a lane is drawing a
threshold, and the newest steps of a lane are what the policy visits near that threshold now.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ccpo.types import Array, EnvSpec, Transition


class Replay(NamedTuple):
    """`data`: Transition of [N, E, …]; `head`: the next slot to write; `filled`: slots written so far."""

    data: Transition
    head: Array
    filled: Array


def init(spec: EnvSpec, *, slots: int, lanes: int) -> Replay:
    """An empty ring. `slots` must be a multiple of the rollout length, so that a rollout never wraps around."""
    rows = (slots, lanes)
    data = Transition(
        obs=jnp.zeros((*rows, spec.observation_size)),
        action=jnp.zeros((*rows, spec.action_size)),
        reward=jnp.zeros(rows),
        cost=jnp.zeros((*rows, len(spec.costs))),
        next_obs=jnp.zeros((*rows, spec.observation_size)),
        terminated=jnp.zeros(rows, bool),
        truncated=jnp.zeros(rows, bool),
        threshold=jnp.zeros((*rows, len(spec.costs))),
        spent=jnp.zeros((*rows, len(spec.costs))),
        time_to_go=jnp.ones(rows),
    )
    return Replay(data, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def insert(replay: Replay, rollout: Transition) -> Replay:
    """Write a rollout [T, E, …] at the head."""
    slots, steps = replay.data.reward.shape[0], rollout.reward.shape[0]
    data = jax.tree.map(
        lambda ring, new: jax.lax.dynamic_update_slice_in_dim(ring, new, replay.head, axis=0),
        replay.data,
        rollout,
    )
    return Replay(data, (replay.head + steps) % slots, jnp.minimum(replay.filled + steps, slots))


def cut(replay: Replay) -> Replay:
    """The newest step of every lane marked as the last of its episode: what comes next does not follow from it."""
    newest = (replay.head - 1) % replay.data.reward.shape[0]
    truncated = replay.data.truncated.at[newest].set(~replay.data.terminated[newest])
    return replay._replace(data=replay.data._replace(truncated=truncated))


def sample_windows(replay: Replay, key: Array, *, batch: int, nstep: int) -> Transition:
    """Uniform windows of n steps over everything stored: Transition of [n, B, …]."""
    slots, lanes = replay.data.reward.shape
    unit = jax.random.uniform(key, (2, batch))
    age = nstep + whole(unit[0], replay.filled + 1 - nstep)
    lane = whole(unit[1], lanes)
    slot = (replay.head - age[None, :] + jnp.arange(nstep)[:, None]) % slots
    return jax.tree.map(lambda ring: ring[slot, lane[None, :]], replay.data)


def recent_steps(replay: Replay, unit: Array, lane: Array, *, recent: int) -> Transition:
    """One step for each entry of `lane`, among the newest `recent` of that lane: [...] → Transition of [...].

    `unit` [...] in [0, 1) says which; uniform numbers draw uniformly.
    """
    slots = replay.data.reward.shape[0]
    age = 1 + whole(unit, jnp.minimum(recent, replay.filled))
    slot = (replay.head - age) % slots
    return jax.tree.map(lambda ring: ring[slot, lane], replay.data)


def whole(unit: Array, count: Array | int) -> Array:
    """Numbers in [0, 1) as whole ones in [0, count): for drawing, a third of the time that `randint` takes."""
    count = jnp.asarray(count, jnp.int32)
    return jnp.minimum((unit * count).astype(jnp.int32), count - 1)
