"""Small policies with random weights, for tests that need a policy but not a good one."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from ccpo.envs.registry import resolve
from ccpo.runtime import NetConfig, Policy


def random_policy(task: str, *, seed: int = 0, condition: str = "budget", evaluation: object = None) -> Policy:
    """One hidden layer; its actions depend on the observation and on its condition."""
    spec, rng = resolve(task).spec, np.random.default_rng(seed)
    config = NetConfig("gaussian", threshold_low=(10.0,), threshold_high=(70.0,), condition=condition)
    sizes = (spec.observation_size + config.condition_size, 16, 2 * spec.action_size)
    arrays = {
        "obs_mean": np.zeros(spec.observation_size, np.float32),
        "obs_std": np.ones(spec.observation_size, np.float32),
    }
    for i, (rows, columns) in enumerate(pairwise(sizes)):
        arrays[f"layers.{i}.weight"] = rng.normal(size=(rows, columns)).astype(np.float32)
        arrays[f"layers.{i}.bias"] = np.zeros(columns, np.float32)
    return Policy.create(
        arrays,
        config,
        spec,
        algorithm="ccpo",
        behaviour_thresholds=(20.0, 40.0, 60.0),
        versions={},
        training={"seed": 0},
        evaluation=evaluation,
    )


def save_random_policy(folder: Path, task: str, **options) -> Path:
    path = folder / f"{task}.safetensors"
    random_policy(task, **options).save(path)
    return path
