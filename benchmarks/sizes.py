"""What "an update" means in every comparison, and a learner of that size with made-up experience.

An update: 256 transitions for the critics, 256 pairs of a state and a condition for E- and M-step, K 16 actions in each
of them, networks of 128 × 128. In a closed loop every pair has a budget of its own; in an open one they belong to
a number of thresholds.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ccpo import replay as replays
from ccpo.algorithms import ccpo, find_algorithm
from ccpo.training import compiled_init, compiled_learn, use_compilation_cache
from ccpo.types import EnvSpec, Experience, LaneStatistics, Problem, Transition

BATCH = 256
STATES = 256
ACTION_SAMPLES = 16
HIDDEN = (128, 128)
UPDATES_PER_STEP = 0.2
ROLLOUT = 200
EVALUATED = tuple(float(t) for t in range(10, 75, 5))
"""The thresholds that a policy is evaluated at."""
PROBLEM = Problem(
    spec=EnvSpec("BallCircle", 8, (-1.0, -1.0), (1.0, 1.0), 200),
    behaviour_thresholds=(20.0, 40.0, 60.0),
    threshold_range=(10.0, 70.0),
    lanes_per_threshold=2,
    deployed_lanes=1,
    closed=True,
)
OPEN = replace(PROBLEM, closed=False)


def update_settings(thresholds: int = 1) -> dict[str, Any]:
    """CCPO's settings for an update of the defined size, in an open loop with so many thresholds."""
    return {
        "batch": BATCH,
        "conditions": thresholds,
        "states": STATES,
        "action_samples": ACTION_SAMPLES,
        "hidden": HIDDEN,
    }


def learner(config: ccpo.Config, problem: Problem = PROBLEM, *, seeds: int | None = None) -> Callable[[], float]:
    """A function that runs an iteration's updates and returns the CPU seconds of each, on made-up experience.

    Of several seeds in one program: the seconds of an update of all of them.
    """
    learn, material = learn_and_material(config, problem, together=seeds is not None)
    if seeds is not None:
        material = jax.tree.map(lambda x: jnp.stack([x] * seeds), material)
    state, replay, *rest = material
    updates = max(1, round(config.updates_per_step * ROLLOUT * problem.lanes))

    def seconds_each() -> float:
        nonlocal state, replay
        start = time.process_time()
        state, replay, metrics = learn(state, replay, *rest)
        jax.block_until_ready((state, metrics))
        return (time.process_time() - start) / updates

    return seconds_each


def learn_and_material(config: ccpo.Config, problem: Problem, *, together: bool = False) -> tuple[Any, tuple]:
    """The compiled iteration, and what it takes; of several seeds together, what each of them takes."""
    return compiled_learn(find_algorithm("ccpo"), config, problem, together=together), _material(config, problem)


def piece(config: ccpo.Config, body: Callable, problem: Problem = PROBLEM, *, repetitions: int) -> Callable[[], float]:
    """The same for a piece of the update alone: body(config, problem, state, experience, key) → the new state."""
    state, replay, rollout, statistics, progress = _material(config, problem)
    experience = Experience(rollout, statistics, replays.insert(replay, rollout), progress)

    def once(experience: Experience, state: ccpo.State, _: None) -> tuple[ccpo.State, None]:
        key, own = jax.random.split(state.key)
        return body(config, problem, state._replace(key=key), experience, own), None

    @jax.jit
    def many(state: ccpo.State, experience: Experience) -> ccpo.State:
        return jax.lax.scan(partial(once, experience), state, length=repetitions)[0]

    def seconds_each() -> float:
        start = time.process_time()
        jax.block_until_ready(many(state, experience))
        return (time.process_time() - start) / repetitions

    return seconds_each


def _material(config: ccpo.Config, problem: Problem) -> tuple:
    """State, replay, rollout, statistics and progress, as an iteration has them."""
    use_compilation_cache()
    return (
        compiled_init(find_algorithm("ccpo"), config, problem)(jax.random.key(0)),
        replays.init(problem.spec, slots=10 * ROLLOUT, lanes=problem.lanes),
        made_up_rollout(problem),
        made_up_statistics(problem),
        np.float32(0.9),
    )


def made_up_statistics(problem: Problem) -> LaneStatistics:
    """An episode of cost 30 in every lane."""
    return LaneStatistics(np.ones(problem.lanes, np.float32), np.full((problem.lanes, 1), 30.0, np.float32))


def made_up_rollout(problem: Problem) -> Transition:
    """Random steps of every lane: [T, E, …]."""
    rng, rows, spec = np.random.default_rng(0), (ROLLOUT, problem.lanes), problem.spec

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    return Transition(
        obs=normal(*rows, spec.observation_size),
        action=normal(*rows, spec.action_size),
        reward=normal(*rows),
        cost=(normal(*rows, 1) > 1.0).astype(np.float32),
        next_obs=normal(*rows, spec.observation_size),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        threshold=np.broadcast_to(problem.lane_thresholds, (*rows, 1)).astype(np.float32),
        spent=np.abs(10.0 * normal(*rows, 1)),
        time_to_go=np.full(rows, spec.episode_length, np.float32),
    )
