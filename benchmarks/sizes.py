"""What "an update" means in every comparison, and a learner of that size with made-up experience.

An update: 256 transitions for the critics, 256 states × K 16 actions for the E-step with at least 64 states for each
threshold, 256 (state, threshold) pairs in the M-step, networks of 128 × 128, which the critics share but for their
last layers.
"""

import time
from collections.abc import Callable
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
STATES_EACH = 64
"""The fewest states that the E-step of a threshold sees."""
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
)


def update_settings(thresholds: int) -> dict[str, Any]:
    """CCPO's settings for an update of the defined size; thresholds that cannot have states of their own share them."""
    states = max(STATES_EACH, STATES // thresholds)
    return {
        "batch": BATCH,
        "conditions": thresholds,
        "states": states,
        "sharing": max(1, thresholds * states // STATES),
        "action_samples": ACTION_SAMPLES,
        "hidden": HIDDEN,
        "shared_body": True,
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
        LaneStatistics(*(np.full(problem.lanes, x, np.float32) for x in (1.0, 30.0))),
        np.float32(0.9),
    )


def made_up_rollout(problem: Problem) -> Transition:
    """Random steps of every lane: [T, E, …]."""
    rng, rows, spec = np.random.default_rng(0), (ROLLOUT, problem.lanes), problem.spec

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    return Transition(
        obs=normal(*rows, spec.observation_size),
        action=normal(*rows, spec.action_size),
        reward=normal(*rows),
        cost=(normal(*rows) > 1.0).astype(np.float32),
        next_obs=normal(*rows, spec.observation_size),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        threshold=np.broadcast_to(problem.lane_thresholds, rows).astype(np.float32),
        time_to_go=np.full(rows, spec.episode_length, np.float32),
    )
