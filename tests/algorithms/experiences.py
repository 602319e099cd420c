"""A small problem and random experience of it, for tests that learn without an environment."""

from dataclasses import fields
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ccpo import replay as replays
from ccpo.training import compiled_init, use_compilation_cache
from ccpo.types import EnvSpec, Experience, LaneStatistics, Problem, Transition
from helpers import TINY

EPISODE = 10
# Fixed here, so that golden traces follow the code and not the tuning of its defaults.
FIXED = {"updates_per_step": 1e-3, "multiplier_gains": (0.3, 0.05, 0.3), "normalise_observations": True}
use_compilation_cache()


def make_problem(
    thresholds: tuple[float, ...] = (2.0, 4.0, 6.0),
    *,
    deployed_lanes: int = 1,
    closed: bool = False,
    early_end: str = "failure",
) -> Problem:
    return Problem(
        spec=EnvSpec("toy", 3, (-1.0, -1.0), (1.0, 1.0), EPISODE, early_end=early_end),
        behaviour_thresholds=thresholds,
        threshold_range=(1.0, 7.0),
        lanes_per_threshold=2,
        deployed_lanes=deployed_lanes,
        closed=closed,
    )


def make_config(module: ModuleType, **settings: Any) -> Any:
    """The tiny settings as far as the algorithm knows them; an iteration is one gradient update."""
    known = {f.name for f in fields(module.Config)}
    chosen = TINY | FIXED | settings
    return module.Config(**{name: value for name, value in chosen.items() if name in known})


def make_state(module: ModuleType, config: Any, problem: Problem, *, seed: int = 0) -> Any:
    return compiled_init(module, config, problem)(jax.random.key(seed))


def make_rollout(problem: Problem, *, seed: int = 0, steps: int = 2 * EPISODE) -> Transition:
    """Episodes of ten steps, some of which end early; [T, E, …]."""
    rng = np.random.default_rng(seed)
    rows, spec = (steps, problem.lanes), problem.spec
    obs = rng.normal(size=(steps + 1, problem.lanes, spec.observation_size)).astype(np.float32)
    within = np.broadcast_to((np.arange(steps) % EPISODE)[:, None], rows)
    action = rng.uniform(-1.2, 1.2, (*rows, spec.action_size)).astype(np.float32)
    reward = rng.normal(size=rows).astype(np.float32)
    cost = rng.uniform(0.0, 1.0, rows).astype(np.float32)
    terminated, truncated = rng.random(rows) < 0.1, within == EPISODE - 1
    spent = np.zeros_like(cost)
    for t in range(1, steps):
        spent[t] = np.where(terminated[t - 1] | truncated[t - 1], 0.0, spent[t - 1] + cost[t - 1])
    return Transition(
        obs=obs[:-1],
        action=action,
        reward=reward,
        cost=cost[..., None],
        next_obs=obs[1:],
        terminated=terminated,
        truncated=truncated,
        threshold=np.broadcast_to(problem.lane_thresholds, (*rows, 1)).copy(),
        spent=spent[..., None],
        time_to_go=(EPISODE - within).astype(np.float32),
    )


def make_experience(problem: Problem, *, seed: int = 0) -> Experience:
    """A rollout that is also all that the replay holds, late enough in the run for its second stage."""
    rollout = make_rollout(problem, seed=seed)
    replay = replays.insert(replays.init(problem.spec, slots=len(rollout.reward), lanes=problem.lanes), rollout)
    cost = rollout.cost.sum(axis=0) / 2
    statistics = LaneStatistics(np.full(problem.lanes, 2.0, np.float32), cost)
    return Experience(jnp_tree(rollout), jnp_tree(statistics), replay, jnp.float32(0.6))


def jnp_tree(values: Any) -> Any:
    return type(values)(*(jnp.asarray(x) for x in values))
