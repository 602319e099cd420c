"""Safe velocity: Gymnasium's own MuJoCo robots run for reward, and a step costs 1 when it is faster than a limit.

The limits are those of Safety-Gymnasium's Velocity-v1 tasks. Robots, rewards and dynamics are the `v5` ones of
Gymnasium; nearly all of a step's time is the simulator's, so its classes are stepped as they are, without wrappers.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ccpo.envs.tasks import Scene, Span, Task, corners_and_centre
from ccpo.errors import EnvError, MissingExtraError, did_you_mean, require

EPISODE_LENGTH, STEPS = 1000, 1_000_000
OLDEST = (1, 1)
"""The first Gymnasium whose `v5` robots are right."""
HOW_TO_UPDATE = (
    "to update it: pip install --no-warn-conflicts 'ccpo[mujoco]' "
    "(bullet-safety-gym asks for Gymnasium 0.28, yet runs on the newest)"
)


class VelocityTask(NamedTuple):
    """A robot, its limit, and how it is drawn."""

    stock_id: str
    limit: float
    """In m/s."""
    robot: str
    bounds: tuple[Span, Span]
    """What a picture shows around its first body, in m."""
    in_plane: bool = False
    """Whether its speed is ‖(v_x, v_y)‖, and not v_x."""
    up: int = 2
    """The axis that is up in a picture: z, or y for what lies on the ground."""
    options: tuple[tuple[str, Any], ...] = ()
    """For Gymnasium's class."""


# 27 numbers are observed of the ant, as in Safety-Gymnasium: its contact forces, 78 more, are rarely not zero.
_ANT = (("include_cfrc_ext_in_observation", False),)
_STANDING = ((-1.5, 1.5), (-0.1, 1.9))
VELOCITY_TASKS: dict[str, VelocityTask] = {
    "HalfCheetahVelocity": VelocityTask("HalfCheetah-v5", 3.2096, "a half cheetah", ((-1.5, 1.5), (-0.3, 1.7))),
    "HopperVelocity": VelocityTask("Hopper-v5", 0.7402, "a hopper", _STANDING),
    "SwimmerVelocity": VelocityTask("Swimmer-v5", 0.2282, "a swimmer", ((-3.0, 3.0), (-2.0, 2.0)), up=1),
    "Walker2dVelocity": VelocityTask("Walker2d-v5", 2.3415, "a walker", _STANDING),
    "AntVelocity": VelocityTask("Ant-v5", 2.6222, "an ant", ((-1.8, 1.8), (-0.2, 2.2)), in_plane=True, options=_ANT),
    "HumanoidVelocity": VelocityTask("Humanoid-v5", 1.4149, "a humanoid", _STANDING, in_plane=True),
}
TWO_COSTS = "-TwoCosts"


class VelocityEnv(gymnasium.Env):
    """One robot whose `info["cost"]` says whether the step was too fast.

    A fall ends the episode of all but the half cheetah and the swimmer. With `two_costs` it is a mapping: "speed" is
    that cost, and "effort" the mean of the squared actions.
    """

    max_step_cost = 1.0

    def __init__(self, task: str, *, two_costs: bool = False) -> None:
        if task not in VELOCITY_TASKS:
            raise EnvError(f"unknown velocity task '{task}'; {did_you_mean(task, VELOCITY_TASKS)}")
        self.task, self._known = task, VELOCITY_TASKS[task]
        self.episode_length, self._two_costs = EPISODE_LENGTH, two_costs
        with _without_remarks(_simulator(task)):
            made = gymnasium.make(self._known.stock_id, disable_env_checker=True, **dict(self._known.options))
        self._stock: Any = made.unwrapped
        self.observation_space: gymnasium.Space = self._stock.observation_space
        self.action_space: gymnasium.Space = self._stock.action_space
        self._speed, self._elapsed = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._speed, self._elapsed = 0.0, 0
        return self._stock.reset(seed=seed)[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Apply an action of the robot's own box: (observation, reward, terminated, truncated, {"cost": cost})."""
        obs, reward, fallen, _, found = self._stock.step(action)
        self._elapsed += 1
        speed = found["x_velocity"]
        self._speed = math.hypot(speed, found["y_velocity"]) if self._known.in_plane else float(speed)
        cost: Any = 1.0 if self._speed > self._known.limit else 0.0
        if self._two_costs:
            cost = {"speed": cost, "effort": float(np.mean(np.square(action)))}
        return obs, float(reward), bool(fallen), self._elapsed >= self.episode_length, {"cost": cost}

    def close(self) -> None:
        self._stock.close()

    def side_view(self) -> dict[str, Any]:
        """The robot from the side, now: its speed, and each of its bodies as a rod (x₀, z₀, x₁, z₁, radius)."""
        model, data, up = self._stock.model, self._stock.data, self._known.up
        shown = np.flatnonzero(model.geom_bodyid > 0)  # body 0 is the ground
        centres, sizes = data.geom_xpos[shown], model.geom_size[shown]
        # A capsule lies along its own z axis; a sphere is one without length, whatever else its size may hold.
        half = np.where(model.geom_type[shown] == _CAPSULE, sizes[:, 1], 0.0)[:, None] * data.geom_xmat[shown][:, 2::3]
        ends = [(centres + side * half)[:, [0, up]] for side in (-1.0, 1.0)]
        return {"speed": self._speed, "bodies": np.column_stack([*ends, sizes[:, 0]]).tolist()}


_CAPSULE = 3


def _simulator(task: str) -> ModuleType:
    """The simulator, beside a Gymnasium that has its robots: it may be older, since bullet-safety-gym asks for that."""
    if tuple(int(part) for part in gymnasium.__version__.split(".")[:2]) < OLDEST:
        raise MissingExtraError(
            f"{task} needs Gymnasium {OLDEST[0]}.{OLDEST[1]} or newer, and this environment has "
            f"{gymnasium.__version__}; {HOW_TO_UPDATE}"
        )
    return require("mujoco", "mujoco")


@contextmanager
def _without_remarks(simulator: ModuleType) -> Iterator[None]:
    """The compiler's remarks on Gymnasium's models would go to the terminal and into a file in the current folder."""
    simulator.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        simulator.set_mju_user_warning(None)


def scene(task: str) -> Scene:
    """The task from the side."""
    known = VELOCITY_TASKS[task]
    return Scene("side", known.bounds, speed_limit=known.limit)


def _task(name: str, known: VelocityTask) -> Task:
    return Task(
        name=name,
        description=f"{known.robot} runs, and pays above {known.limit:g} m/s",
        behaviour_thresholds=(20.0, 40.0, 60.0),
        threshold_range=(10.0, 70.0),
        episode_length=EPISODE_LENGTH,
        extra="mujoco",
        make=partial(VelocityEnv, name),
        scene=partial(scene, name),
        steps=STEPS,
    )


def _with_effort(name: str) -> Task:
    thresholds = corners_and_centre((20.0, 40.0, 60.0), (100.0, 200.0, 300.0))
    return Task(
        name=name + TWO_COSTS,
        description=f"{VELOCITY_TASKS[name].robot} runs, and pays for speed and for effort, each on its own",
        behaviour_thresholds=thresholds,
        threshold_range=((10.0, 50.0), (70.0, 350.0)),
        episode_length=EPISODE_LENGTH,
        extra="mujoco",
        make=partial(VelocityEnv, name, two_costs=True),
        costs=("speed", "effort"),
        scene=partial(scene, name),
        steps=STEPS,
        preset=name,
    )


TASKS = (*(_task(name, known) for name, known in VELOCITY_TASKS.items()), _with_effort("HalfCheetahVelocity"))
