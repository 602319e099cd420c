"""Studies in miniature: plans that take a second or two, and finished runs that took no training."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ccpo.metrics import EpisodeTable
from ccpo.studies.plan import FinishedRun, RunPlan

TASK = "StaticBudget-T20-C5"
TINY = {"hidden": (4, 4), "batch": 8, "steps": 80, "checkpoint_every": 20, "lanes_per_threshold": 1}


def tiny_plan(seed: int = 0, threshold: float = 20.0, **changes) -> RunPlan:
    """On-policy, under one threshold, four iterations with a checkpoint after each."""
    plan = RunPlan(
        label="PPO-Lag",
        algorithm="ppo_lag",
        task=TASK,
        seed=seed,
        thresholds=(threshold,),
        evaluated=(threshold,),
        episodes=2,
        overrides=TINY,
    )
    return replace(plan, **changes)


def finished_run(
    root: Path, label: str, *, reward: float, excess: float, task: str = "BallCircle", seed: int = 0
) -> FinishedRun:
    """A run whose every episode has this reward, and a cost of its threshold plus the excess."""
    path = root / label.replace("/", "_") / task / str(seed)
    path.mkdir(parents=True)
    thresholds = np.repeat(np.arange(10.0, 71.0, 5.0), 2)
    count = len(thresholds)
    EpisodeTable(
        task=np.full(count, task),
        algorithm=np.full(count, "whatever"),
        seed=np.full(count, seed),
        threshold=thresholds,
        episode=np.tile([0, 1], count // 2),
        reward=np.full(count, reward),
        cost=thresholds + excess,
        length=np.full(count, 200),
    ).write_csv(path / "eval.csv")
    return FinishedRun(label, "whatever", task, seed, (20.0, 40.0, 60.0), path)
