"""What a named task is, and how it is drawn. Each family of environments exports its own as `TASKS`."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium

Span = tuple[float, float]


@dataclass(frozen=True)
class Scene:
    """How a task is drawn.

    - "above": the path of the environment's `top_view()["position"]`, an (x, y).
    - "side": the bodies of its `side_view()["bodies"]`, each a rod (x₀, z₀, x₁, z₁, radius), and its "speed".
    - "timeline": the actions and the observation over time; it needs nothing from the environment.

    `bounds` is what the picture shows at least: the ground from above, or the surroundings of the first body.
    """

    kind: Literal["above", "side", "timeline"] = "timeline"
    bounds: tuple[Span, Span] | None = None
    """((x_low, x_high), (y_low, y_high)); needed for every kind but "timeline"."""
    circle_radius: float | None = None
    x_limit: float | None = None
    y_limit: float | None = None
    speed_limit: float | None = None


@dataclass(frozen=True)
class Task:
    """An environment with the thresholds that it is trained and evaluated at."""

    name: str
    description: str
    behaviour_thresholds: tuple[Any, ...]
    """Numbers; for a task of several costs, tuples with a number for each of `costs`."""
    threshold_range: tuple[Any, Any]
    """The lowest and the highest threshold: numbers, or such tuples."""
    episode_length: int
    make: Callable[[], gymnasium.Env]
    extra: str | None = None
    """The extra that brings what it needs."""
    costs: tuple[str, ...] = ("cost",)
    """The names of its constraints; an environment of several reports a mapping of these as its cost."""
    early_end: str = "failure"
    """What an end before the episode's time means: "failure" or "success"."""
    scene: Callable[[], Scene] = Scene
    """Called when it is first drawn, since it may have to build a world."""
    steps: int | None = None
    """For how long it is trained, unless a preset says so."""
    preset: str | None = None
    """The name of its table in the presets, if that is not its own."""
    max_step_cost: float | None = None
    """The largest cost of a step, unless the environment itself says so in an attribute of this name."""
    closed_form: bool = False
    """Whether its environment is an `AnalyticEnv` of one cost, which knows the best return at every threshold."""


def corners_and_centre(*axes: tuple[float, float, float]) -> tuple[tuple[float, ...], ...]:
    """Thresholds of several costs, each with its (low, middle, high): every corner of their box, and its centre.

    >>> corners_and_centre((1, 2, 3), (4, 5, 6))
    ((1, 4), (1, 6), (3, 4), (3, 6), (2, 5))
    """
    corners = itertools.product(*((low, high) for low, _, high in axes))
    return (*corners, tuple(middle for _, middle, _ in axes))
