"""Small problems that compile in seconds, shared by the tests that train."""

from typing import Any

import numpy as np

from ccpo import agent, config
from ccpo.algorithms import find_algorithm
from ccpo.envs.registry import resolve
from ccpo.runs import Run
from ccpo.schedule import LoopConfig
from ccpo.training import Trainer
from ccpo.types import EnvSpec

TINY: dict[str, Any] = {
    "steps": 720,
    "rollout_length": 20,
    "warmup_steps": 240,
    "checkpoint_every": 240,
    "replay_steps": 1200,
    "hidden": (8, 8),
    "features": 4,
    "batch": 16,
    "conditions": 3,
    "states": 12,
    "action_samples": 4,
    "updates_per_step": 0.05,
    "refresh_updates": 3,
    "average_rate": 0.1,
}
TASK = "BalanceBudget-T20"


def make_trainer(path, algorithm="ccpo", task=TASK, **settings) -> Trainer:
    factory, module = resolve(task), find_algorithm(algorithm)
    loop, algorithm_config = config.build((LoopConfig, module.Config), agent.task_settings(factory), TINY, settings)
    run = Run.create(path, algorithm=algorithm, task=factory.name, seed=loop.seed, config={})
    return Trainer(run, module, factory, loop=loop, config=algorithm_config)


def scaled(spec: EnvSpec, action: np.ndarray) -> np.ndarray:
    """A policy's action clipped to [−1, 1] and mapped to the environment's box."""
    low, high = np.float32(spec.action_low), np.float32(spec.action_high)
    return low + 0.5 * (np.clip(action, -1.0, 1.0) + 1.0) * (high - low)
