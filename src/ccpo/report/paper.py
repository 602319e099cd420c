"""The figures of the paper's three tables, as data, and the names that tie our rows to them.

Means and standard deviations over 5 seeds of 50 episodes, behaviour thresholds {20, 40, 60} unless said.
The text evaluates on {10, 15, …, 70}. Four rows of the main table and two more of the ablation are
impossible there: with 10 unseen of 13 thresholds, 13 · CV ≥ 10 · CV-G must hold. On {10, 20, …, 70} every
row is possible.
"""

import re
from typing import NamedTuple

STATS = ("R", "CV", "R-G", "CV-G")


class Value(NamedTuple):
    """A printed figure: the mean, and its standard deviation where one is printed."""

    mean: float
    std: float | None


def _row(*figures: float | None) -> dict[str, Value]:
    """Means and standard deviations in turn, in the order of `STATS`."""
    values = [Value(mean, std) for mean, std in zip(figures[::2], figures[1::2], strict=True) if mean is not None]
    return dict(zip(STATS, values, strict=False))


PAPER_RESULTS: dict[str, dict[str, dict[str, Value]]] = {
    "Ball-Circle": {
        "CCPO": _row(710.86, 20.47, 0.59, 0.31, 699.04, 20.48, 0.83, 0.42),
        "V-SAC-Lag": _row(774.16, 20.34, 5.32, 5.00, 766.52, 22.59, 6.29, 5.72),
        "V-DDPG-Lag": _row(762.61, 58.65, 2.81, 1.12, 756.67, 58.48, 3.53, 1.26),
        "C-PPO-Lag": _row(637.85, 14.03, 3.11, 1.64, 667.89, 12.17, 3.40, 1.75),
        "C-TRPO-Lag": _row(699.38, 1.94, 4.50, 0.08, 699.14, 2.05, 5.59, 0.25),
    },
    "Car-Circle": {
        "CCPO": _row(406.06, 6.30, 1.60, 0.91, 401.53, 5.59, 1.49, 0.38),
        "V-SAC-Lag": _row(331.80, 11.57, 12.18, 4.65, 331.19, 11.00, 12.74, 4.32),
        "V-DDPG-Lag": _row(448.82, 18.65, 14.48, 8.14, 445.32, 17.42, 14.63, 8.69),
        "C-PPO-Lag": _row(440.01, 2.59, 9.09, 1.52, 438.31, 3.03, 11.07, 1.58),
        "C-TRPO-Lag": _row(461.14, 1.39, 7.84, 1.71, 460.72, 1.15, 9.14, 2.01),
    },
    "Drone-Circle": {
        "CCPO": _row(630.55, 40.03, 0.32, 0.38, 625.51, 40.12, 0.47, 0.55),
        "V-SAC-Lag": _row(693.69, 22.37, 13.24, 8.80, 699.14, 24.88, 14.97, 10.10),
        "V-DDPG-Lag": _row(734.58, 49.69, 19.62, 11.15, 730.29, 48.43, 19.44, 10.36),
        "C-PPO-Lag": _row(392.64, 23.13, 0.45, 0.38, 342.77, 19.06, 0.21, 0.09),
        "C-TRPO-Lag": _row(380.77, 18.62, 6.55, 1.95, 291.87, 19.88, 7.23, 2.03),
    },
    "Drone-Run": {
        "CCPO": _row(458.69, 12.98, 0.23, 0.25, 455.64, 11.83, 0.33, 0.37),
        "V-SAC-Lag": _row(355.61, 35.44, 8.66, 4.30, 354.61, 33.34, 9.96, 4.54),
        "V-DDPG-Lag": _row(244.60, 48.29, 11.33, 9.63, 236.61, 43.49, 12.72, 9.91),
        "C-PPO-Lag": _row(398.88, 21.53, 9.46, 5.63, 386.77, 30.09, 11.18, 7.46),
        "C-TRPO-Lag": _row(461.70, 4.91, 47.97, 3.49, 464.07, 6.61, 60.39, 4.32),
    },
    "Ant-Run": {
        "CCPO": _row(660.88, 4.82, 3.13, 1.67, 660.07, 5.26, 3.25, 1.48),
        "V-SAC-Lag": _row(615.73, 91.99, 8.47, 3.55, 626.27, 84.61, 7.76, 11.83),
        "V-DDPG-Lag": _row(594.75, 172.35, 23.69, 30.42, 592.50, 173.01, 22.90, 9.39),
        "C-PPO-Lag": _row(636.06, 6.78, 5.16, 1.59, 620.46, 9.99, 6.73, 2.32),
        "C-TRPO-Lag": _row(629.83, 7.84, 0.22, 0.17, 605.07, 10.63, 0.03, 0.06),
    },
}
"""Main results: task → method → statistic."""

PAPER_EFFICIENCY: dict[str, dict[str, dict[str, Value]]] = {
    "CCPO with {20, 40, 60}": {
        "Ball-Circle": _row(710.86, 20.47, 0.59, 0.31),
        "Car-Circle": _row(406.06, 6.30, 1.60, 0.91),
        "Drone-Circle": _row(630.55, 40.03, 0.32, 0.38),
        "Drone-Run": _row(458.69, 12.98, 0.23, 0.25),
        "Averaged Score": _row(551.54, None, 0.69, None),
    },
    "C-TRPO-Lag with {20, 40, 60}": {
        "Ball-Circle": _row(699.38, 1.94, 4.50, 0.08),
        "Car-Circle": _row(461.14, 1.39, 7.84, 1.71),
        "Drone-Circle": _row(380.77, 18.62, 6.55, 1.95),
        "Drone-Run": _row(461.70, 4.91, 47.97, 3.49),
        "Averaged Score": _row(500.75, None, 16.72, None),
    },
    "C-TRPO-Lag with {20, 30, 40, 50, 60, 70}": {
        "Ball-Circle": _row(682.94, 8.08, 2.66, 0.37),
        "Car-Circle": _row(458.13, 2.22, 11.90, 2.12),
        "Drone-Circle": _row(411.91, 8.95, 5.20, 0.81),
        "Drone-Run": _row(472.89, 2.65, 30.20, 2.47),
        "Averaged Score": _row(506.47, None, 12.49, None),
    },
}
"""Sampling efficiency: method and its behaviour thresholds → task → statistic."""

PAPER_ABLATION: dict[str, dict[str, dict[str, Value]]] = {
    "CCPO": {
        "Ball-Circle": _row(710.86, 20.47, 0.59, 0.31, 699.04, 20.48, 0.83, 0.42),
        "Car-Circle": _row(406.06, 6.30, 1.60, 0.91, 401.53, 5.59, 1.49, 0.38),
        "Drone-Circle": _row(630.55, 40.03, 0.32, 0.38, 625.51, 40.12, 0.47, 0.55),
        "Drone-Run": _row(458.69, 12.98, 0.23, 0.25, 455.64, 11.83, 0.33, 0.37),
        "Ant-Run": _row(660.88, 4.82, 3.13, 1.67, 660.07, 5.26, 3.25, 1.48),
    },
    "CCPO w/o VVE": {
        "Ball-Circle": _row(674.55, 17.81, 0.60, 0.41, 670.61, 14.18, 0.73, 0.36),
        "Car-Circle": _row(370.42, 14.38, 6.42, 0.85, 364.5, 14.51, 5.64, 0.92),
        "Drone-Circle": _row(426.47, 49.30, 8.67, 1.45, 416.83, 47.46, 7.74, 1.36),
        "Drone-Run": _row(417.84, 8.24, 3.28, 2.86, 413.28, 9.04, 3.33, 3.16),
        "Ant-Run": _row(428.59, 88.39, 10.66, 11.81, 434.59, 83.89, 12.01, 10.08),
    },
    "CCPO w/o CVI": {
        "Ball-Circle": _row(641.33, 40.14, 1.44, 0.72, 623.17, 41.42, 1.78, 0.70),
        "Car-Circle": _row(387.31, 5.76, 1.66, 0.79, 383.24, 6.30, 2.17, 1.09),
        "Drone-Circle": _row(520.70, 42.18, 2.36, 2.67, 519.05, 36.31, 2.73, 3.03),
        "Drone-Run": _row(386.81, 39.44, 0.81, 0.76, 388.69, 35.35, 1.15, 1.08),
        "Ant-Run": _row(465.80, 31.78, 3.51, 0.93, 465.36, 32.20, 3.96, 1.01),
    },
}
"""Ablation: variant → task → statistic."""

_NAMES = {
    **{name: name for name in (*PAPER_RESULTS, *PAPER_RESULTS["Ball-Circle"], *PAPER_ABLATION)},
    **{name: name for name in ("CVPO", "PPO-Lag", "TRPO-Lag")},
    # conditioned on the threshold in this package, as the paper's V- baselines are
    "SAC-Lag": "V-SAC-Lag",
    "DDPG-Lag": "V-DDPG-Lag",
}


def display_name(name: str) -> str:
    """The paper's spelling of a task or an algorithm; any other name as it is.

    >>> display_name("BallCircle"), display_name("sac_lag"), display_name("MyTask-v0")
    ('Ball-Circle', 'V-SAC-Lag', 'MyTask-v0')
    """
    return _BY_FOLDED_NAME.get(_fold(name), name)


def paper_results(task: str, algorithm: str) -> dict[str, Value] | None:
    """The paper's figures for a task and an algorithm or ablation; None where there are none."""
    task, algorithm = display_name(task), display_name(algorithm)
    return PAPER_RESULTS.get(task, {}).get(algorithm) or PAPER_ABLATION.get(algorithm, {}).get(task)


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_FOLDED_NAME = {_fold(name): shown for name, shown in _NAMES.items()}
