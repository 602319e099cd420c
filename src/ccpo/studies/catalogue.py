"""The studies, as data: which methods on which tasks, at which scale, and who reports them."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ccpo.algorithms import COMBINATIONS
from ccpo.envs.registry import Task, find_task
from ccpo.errors import ConfigError, did_you_mean
from ccpo.report.paper import display_name
from ccpo.studies.comparison import table_1, table_2, table_3
from ccpo.studies.plan import FinishedRun, Report, RunPlan


@dataclass(frozen=True)
class Scale:
    """How large: seeds, evaluation episodes, settings on top of the presets' for each algorithm."""

    description: str
    seeds: tuple[int, ...]
    episodes: int
    overrides: Mapping[str, Mapping[str, Any]]


_SMALL = {"hidden": (8, 8), "batch": 16}
_SMALL_OFF_POLICY = _SMALL | {
    "steps": 480,
    "checkpoint_every": 240,
    "warmup_steps": 120,
    "replay_steps": 1200,
    "updates_per_step": 0.05,
}
_SMALL_INFERENCE = _SMALL_OFF_POLICY | {"states": 4, "action_samples": 4}
_SMALL_ON_POLICY = _SMALL | {"steps": 160, "checkpoint_every": 80, "lanes_per_threshold": 2}

SCALES = {
    "smoke": Scale(
        "does all of it work? Tiny networks, a few hundred steps, nothing is learned",
        seeds=(0, 1),
        episodes=2,
        overrides={
            "ccpo": _SMALL_INFERENCE | {"features": 4, "conditions": 2},
            "cvpo": _SMALL_INFERENCE,
            "sac_lag": _SMALL_OFF_POLICY,
            "ddpg_lag": _SMALL_OFF_POLICY,
            "ppo_lag": _SMALL_ON_POLICY,
            "trpo_lag": _SMALL_ON_POLICY | {"fisher_states": 16},
        },
    ),
    # most presets are tuned on other seeds than these; each names its own
    "quick": Scale("one task with the presets' own steps, two seeds", seeds=(90, 91), episodes=50, overrides={}),
    "paper": Scale("the paper's tasks, five seeds", seeds=(90, 91, 92, 93, 94), episodes=50, overrides={}),
}

_PAPER_TASKS = ("BallCircle", "CarCircle", "DroneCircle", "DroneRun", "AntRun")
_TASKS = {"smoke": ("StaticBudget-T20-C5",), "quick": ("BallCircle",), "paper": _PAPER_TASKS}


def evenly(task: Task, *, count: int) -> tuple[float, ...]:
    """So many thresholds over the task's range, both ends included; 7 and 13 are the paper's two grids."""
    return tuple(round(float(t), 12) for t in np.linspace(*task.threshold_range, count))


def own(task: Task) -> tuple[float, ...]:
    """Ẽ: the behaviour thresholds, {20, 40, 60} in the paper."""
    return task.behaviour_thresholds


def twice_as_many(task: Task) -> tuple[float, ...]:
    """Ẽ′: {20, 30, 40, 50, 60, 70} in the paper."""
    return evenly(task, count=7)[1:]


@dataclass(frozen=True)
class Method:
    """A row or column of a table: an algorithm with its preset and thresholds.

    It trains under all of its thresholds together, or makes one run for each of them (`each`); a combination is made
    of one such run for each.
    """

    label: str
    algorithm: str
    preset: str = "tuned"
    thresholds: Callable[[Task], tuple[float, ...]] = own
    each: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """On top of the preset's; those of a scale win."""
    arm: str = ""
    """What names its runs where it has settings of its own."""

    def plans(self, task: Task, seed: int, scale: Scale) -> list[RunPlan]:
        thresholds = self.thresholds(task)
        together = RunPlan(
            label=self.label,
            algorithm=self.algorithm,
            task=task.name,
            seed=seed,
            thresholds=thresholds,
            evaluated=evenly(task, count=13),
            episodes=scale.episodes,
            preset=self.preset,
            overrides={**self.settings, **scale.overrides.get(self.algorithm, {})},
            arm=self.arm,
        )
        if self.each:
            return [replace(together, thresholds=(t,), evaluated=(t,)) for t in thresholds]
        if self.algorithm in COMBINATIONS:
            trained = self.algorithm.removeprefix("c_")
            single = replace(self, label=display_name(trained), algorithm=trained, each=True)
            return [replace(together, members=tuple(single.plans(task, seed, scale)))]
        return [together]


@dataclass(frozen=True)
class Study:
    """An experiment of the paper: methods × tasks × seeds, and the report on them."""

    name: str
    title: str
    methods: tuple[Method, ...]
    report: Report
    tasks: Mapping[str, tuple[str, ...]]
    """By scale."""

    def plans(
        self,
        scale: str,
        *,
        tasks: Iterable[str] | None = None,
        methods: Iterable[str] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[RunPlan]:
        """The runs of the study, by task, method and seed; other tasks or seeds than the scale's may be given."""
        chosen = self.methods if methods is None else [self._find_method(name) for name in methods]
        found = [find_task(name) for name in (self.tasks[scale] if tasks is None else tasks)]
        several = [task.name for task in found if len(task.costs) > 1]
        if several:
            raise ConfigError(f"{', '.join(several)}: studies compare tasks of one cost; leave out those of several")
        sized = SCALES[scale]
        return [
            plan
            for task in found
            for method in chosen
            for seed in (sized.seeds if seeds is None else seeds)
            for plan in method.plans(task, seed, sized)
        ]

    def _find_method(self, name: str) -> Method:
        by_label = {method.label: method for method in self.methods}
        for label, method in by_label.items():
            if _fold(label) == _fold(name):
                return method
        raise ConfigError(f"study '{self.name}' has no method '{name}'; {did_you_mean(name, by_label)}")


def _fold(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _analysis(module: str) -> Report:
    """A report that is imported when it is made: it may look into trained networks, and then needs JAX."""

    def make(runs: Sequence[FinishedRun], folder: Path) -> list[Path]:
        return importlib.import_module(f"ccpo.studies.analyses.{module}").report(runs, folder)

    return make


def _taken_back(number: int, settings: Mapping[str, Any]) -> str:
    return f"D{number}: " + ", ".join(f"{name}={value}" for name, value in settings.items())


_CCPO = Method("CCPO", "ccpo")
_CVPO = Method("CVPO", "cvpo", thresholds=partial(evenly, count=7), each=True)
_OPEN = Method("CCPO", "ccpo", preset="open")
DEVIATIONS: tuple[tuple[int, Mapping[str, Any]], ...] = (
    (8, {"relabel_share": 0.0}),
    (13, {"average_rate": 1.0}),
    (14, {"deployed_lanes": 0}),
    (17, {"decay": 0.0}),
)
"""What takes a deviation back, by its number in docs/algorithms/ccpo.md."""
_SHORT = {"steps": 120_000}
_ANALYTIC = ("StaticBudget", "DriftBudget", "LateBudget", "MomentumBudget", "BalanceBudget")
_CAR_CIRCLE = {**_TASKS, "quick": ("CarCircle",), "paper": ("CarCircle",)}

STUDIES = {
    study.name: study
    for study in (
        Study(
            "main",
            "Table 1 and its figure: CCPO against four baselines",
            (
                _CCPO,
                Method("V-SAC-Lag", "sac_lag"),
                Method("V-DDPG-Lag", "ddpg_lag"),
                Method("C-PPO-Lag", "c_ppo_lag"),
                Method("C-TRPO-Lag", "c_trpo_lag"),
            ),
            table_1,
            _TASKS,
        ),
        Study(
            "ablation",
            "Table 3: CCPO without versatile values (VVE), without conditioned inference (CVI)",
            (
                _CCPO,
                Method("CCPO w/o VVE", "ccpo", preset="without-vve"),
                Method("CCPO w/o CVI", "ccpo", preset="without-cvi"),
            ),
            table_3,
            _TASKS,
        ),
        Study(
            "efficiency",
            "Table 2: CCPO with Ẽ against C-TRPO-Lag with Ẽ and with twice as many thresholds, Ẽ′",
            (
                _CCPO,
                Method("C-TRPO-Lag", "c_trpo_lag"),
                Method("C-TRPO-Lag (six)", "c_trpo_lag", thresholds=twice_as_many),
            ),
            table_2,
            {**_TASKS, "paper": _PAPER_TASKS[:4]},
        ),
        Study(
            "q-check",
            "the appendix's check of Q_c against single-threshold CVPO",
            (_OPEN, _CVPO),
            _analysis("q_check"),
            _CAR_CIRCLE,
        ),
        Study("bound", "Theorem 1 and Proposition 1 as numbers", (_OPEN,), _analysis("bound"), _TASKS),
        Study(
            "frontier",
            "CCPO at each threshold against one CVPO agent for each, and against closed forms",
            (_CCPO, _CVPO),
            _analysis("frontier"),
            {
                "smoke": _TASKS["smoke"],
                "quick": ("BallCircle", *_ANALYTIC[:2]),
                "paper": (*_PAPER_TASKS, *_ANALYTIC),
            },
        ),
        Study(
            "deviations",
            "what each deviation from the paper does, one taken back at a time, and all of them",
            (
                Method("CCPO", "ccpo", preset="demo"),
                *(
                    Method(_taken_back(number, settings), "ccpo", preset="demo", settings=settings, arm=f"D{number}")
                    for number, settings in DEVIATIONS
                ),
                Method("open loop", "ccpo", preset="open", settings=_SHORT, arm="demo"),
                Method("faithful", "ccpo", preset="faithful", settings=_SHORT, arm="demo"),
            ),
            _analysis("deviations"),
            {**_TASKS, "paper": ("BallCircle", "DroneRun")},
        ),
    )
}


def find_study(name: str) -> Study:
    """The study of that name, or an error with a suggestion."""
    if name not in STUDIES:
        raise ConfigError(f"unknown study '{name}'; {did_you_mean(name, STUDIES)}")
    return STUDIES[name]
