"""What a study asks for: plans of runs. A plan says all that decides a run's result, and names its folder.

Runs lie in `<out>/<scale>/runs/<algorithm>/<Task>/<preset>/seed-<n>`, shared by all studies of a scale: what one
study has finished, another does not repeat.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ccpo import agent
from ccpo.envs.registry import find_task


@dataclass(frozen=True)
class RunPlan:
    """One run: trained under its thresholds, or combined of finished members, then evaluated."""

    label: str
    """The paper's name of the method, such as `CCPO w/o VVE`."""
    algorithm: str
    task: str
    seed: int
    thresholds: tuple[float, ...]
    """The behaviour thresholds."""
    evaluated: tuple[float, ...]
    """The thresholds of the evaluation."""
    episodes: int
    """Evaluation episodes for each of these."""
    preset: str = "tuned"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings on top of the preset's."""
    arm: str = ""
    """What tells the run from others of its preset whose overrides differ: a part of its folder's name."""
    members: tuple["RunPlan", ...] = ()
    """The single-threshold runs that a combination is made of; it is not trained."""

    @cached_property
    def name(self) -> str:
        """The folder below `runs`; thresholds are named where they are not the task's own."""
        own = self.thresholds == find_task(self.task).behaviour_thresholds
        thresholds = () if own else (f"{t:g}" for t in self.thresholds)
        variant = "-".join(filter(None, [self.preset, self.arm, *thresholds]))
        return f"{self.algorithm}/{self.task}/{variant}/seed-{self.seed}"

    def settings(self) -> dict[str, Any]:
        """What the training is given on top of the defaults, the preset's values included."""
        preset = agent.preset_values(find_task(self.task), self.algorithm, self.preset)
        return {**preset, **self.overrides, "seed": self.seed, "behaviour_thresholds": self.thresholds}

    def identity(self) -> dict[str, Any]:
        """All that decides the result, as plain JSON: a folder made by another identity is another run."""
        made_of = {"members": [member.name for member in self.members]} if self.members else self.settings()
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in made_of.items()}
        evaluation = {"evaluated": list(self.evaluated), "episodes": self.episodes}
        return {"algorithm": self.algorithm, "task": self.task, "preset": self.preset, **plain, **evaluation}


@dataclass(frozen=True)
class FinishedRun:
    """A run that a report reads: a folder with `policy.safetensors`, `eval.csv` and, unless combined, checkpoints."""

    label: str
    algorithm: str
    task: str
    seed: int
    thresholds: tuple[float, ...]
    path: Path


Report = Callable[[Sequence[FinishedRun], Path], list[Path]]
"""Writes a study's tables and figures into a folder, from files only, and returns their paths."""


def with_members(plans: Iterable[RunPlan]) -> list[RunPlan]:
    """All runs that the plans need, members before what is made of them, each once."""
    ordered = (run for plan in plans for run in (*plan.members, plan))
    return list({run.name: run for run in ordered}.values())
