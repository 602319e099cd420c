"""Bullet-Safety-Gym's Circle and Run tasks with lean steps: the same numbers bit for bit, in less time.

The installed package builds the world and resets it; in between, `BulletEnv` talks to the simulator itself.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from ccpo.envs.bullet_parts import GOALS, ROBOTS, Circle, Motion, Robot, Run
from ccpo.envs.tasks import Scene, Task, corners_and_centre
from ccpo.errors import ConfigError, EnvError, did_you_mean, require


class BulletTask(NamedTuple):
    """A task of the package: its id there, its number of steps, and what it is about."""

    stock_id: str
    episode_length: int
    description: str
    costs: tuple[str, ...] = ("cost",)


BULLET_TASKS: dict[str, BulletTask] = {
    "BallCircle": BulletTask("SafetyBallCircle-v0", 200, "a ball circles, and pays beyond |x| = 6"),
    "CarCircle": BulletTask("SafetyCarCircle-v0", 300, "a car circles, and pays beyond |x| = 6"),
    "DroneCircle": BulletTask("SafetyDroneCircle-v0", 300, "a drone circles, and pays beyond |x| = 6"),
    "DroneRun": BulletTask("SafetyDroneRun-v0", 200, "a drone runs, and pays beyond |y| = 2 and above its speed limit"),
    "AntRun": BulletTask("SafetyAntRun-v0", 200, "an ant runs, and pays beyond |y| = 2 and above its speed limit"),
    "AntCircle": BulletTask("SafetyAntCircle-v0", 500, "an ant circles, and pays beyond |x| = 6"),
    "BallRun": BulletTask("SafetyBallRun-v0", 100, "a ball runs, and pays beyond |y| = 2 and above its speed limit"),
    "CarRun": BulletTask("SafetyCarRun-v0", 200, "a car runs, and pays beyond |y| = 2 and above its speed limit"),
}
for _name in ("DroneRun", "AntRun"):
    BULLET_TASKS[f"{_name}-TwoCosts"] = BULLET_TASKS[_name]._replace(
        description=f"{_name} with the speed limit and the lane's boundary as two costs", costs=("speed", "boundary")
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing on stdout and stderr, neither from Python nor from C, and no warnings."""
    # A stream without a name: the package looks up a named one in the C library.
    with os.fdopen(os.open(os.devnull, os.O_WRONLY), "w") as void:
        saved = {fd: os.dup(fd) for fd in (1, 2)}
        try:
            for fd in saved:
                os.dup2(void.fileno(), fd)
            with redirect_stdout(void), redirect_stderr(void), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            for fd, original in saved.items():
                os.dup2(original, fd)
                os.close(original)


@contextmanager
def _as_global_generator(stream: np.random.MT19937) -> Iterator[None]:
    """Let NumPy's global generator, from which the package draws, continue `stream`; then hand it back."""
    users, users_state = get_bit_generator(), np.random.get_state(legacy=False)
    set_bit_generator(stream)
    try:
        yield
    finally:
        set_bit_generator(users)
        # Exchanging the generator forgets the second of a pair of normal numbers.
        if users_state["has_gauss"]:
            np.random.set_state(users_state)


@cache
def _packages() -> tuple[ModuleType, type]:
    """Pybullet, and the package's builder of environments, told not to do what is only looked at or not needed."""
    with _quiet():
        pb = require("pybullet", "bullet")
        require("bullet_safety_gym", "bullet")
        builder = require("bullet_safety_gym.envs.builder", "bullet")
    clients = builder.bullet_client

    class LeanClient(clients.BulletClient):
        """A physics client for a dozen bodies: comparing each with each finds the same contacts sooner than a tree."""

        def __init__(self, connection_mode: int) -> None:
            super().__init__(connection_mode)
            self.resetSimulation(pb.RESET_USE_SIMPLE_BROADPHASE)

    def invisible(load: Any, client: int) -> Any:
        return lambda *args, flags=0, **kwargs: load(
            *args, flags=flags | pb.URDF_IGNORE_VISUAL_SHAPES, physicsClientId=client, **kwargs
        )

    class LeanBuilder(builder.EnvironmentBuilder):
        def _setup_client_and_physics(self, graphics: bool = False) -> Any:
            stock_client, clients.BulletClient = clients.BulletClient, LeanClient
            try:
                client = super()._setup_client_and_physics(graphics)
            finally:
                clients.BulletClient = stock_client
            client.loadURDF = invisible(pb.loadURDF, client._client)
            client.loadMJCF = invisible(pb.loadMJCF, client._client)
            return client

    return pb, LeanBuilder


class BulletEnv(gymnasium.Env):
    """One Circle or Run task in a physics client of its own; `info["cost"]` is the cost of a step.

    `reset(seed=s)` starts this environment's own stream of random numbers, `reset()` continues it; NumPy's
    global generator is left as it was. A *fresh* environment and a seed determine every later number.
    A reset does not restore all that is inside the simulator: the same instance, reset again with the same
    seed, may differ in the last bits (seen with the car and the drone), and the car soon by much more. Who
    needs the same numbers again makes a new environment.
    """

    max_step_cost = 1.0

    def __init__(self, task: str) -> None:
        if task not in BULLET_TASKS:
            raise EnvError(f"unknown Bullet task '{task}'; {did_you_mean(task, BULLET_TASKS)}")
        self.task = task
        stock_id, self.episode_length, *_ = BULLET_TASKS[task]
        pb, builder = _packages()
        # Building draws random numbers, which have no effect in these tasks.
        with _quiet(), _as_global_generator(np.random.MT19937(0)):
            self._stock = stock = builder(**gymnasium.spec(stock_id).kwargs)
        self.observation_space: gymnasium.Space = stock.observation_space
        self.action_space: gymnasium.Space = stock.action_space
        self._action_shape = (stock.agent.act_dim,)

        kind = next(kind for kind in GOALS if task.endswith(kind))
        self._robot: Robot = ROBOTS[task.removesuffix(kind)](stock, pb)
        self._goal: Circle | Run = GOALS[kind](stock)
        client, body = stock.bullet_client_id, stock.agent.body_id
        self._pose = partial(pb.getBasePositionAndOrientation, body, client)
        self._velocity = partial(pb.getBaseVelocity, body, client)
        self._simulate = partial(pb.stepSimulation, client)
        self._save = partial(pb.saveState, client)
        self._restore = partial(pb.restoreState, physicsClientId=client)
        # The lines, the disc and the halo are for the eye only, yet cost time in each step.
        for marker in (*self._goal.markers, stock.agent.violation_body_id):
            pb.removeBody(marker, client)
        # Ground and walls never move; asleep, they stop what runs into them all the same.
        for scenery in {pb.getBodyUniqueId(i, client) for i in range(pb.getNumBodies(client))} - {body}:
            pb.changeDynamics(scenery, -1, activationState=pb.ACTIVATION_STATE_SLEEP, physicsClientId=client)

        self._stream = np.random.MT19937()
        self._first_state: int | None = None
        self._motion: Motion | None = None
        self._elapsed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode; `seed` starts the stream of random numbers anew."""
        if self._stock.bullet_client_id < 0:
            raise EnvError(f"{self.task} was closed; make a new one with make_bullet('{self.task}')")
        if seed is not None:
            if not 0 <= seed < 2**32:
                raise ConfigError(f"the seed {seed} is not allowed; choose one from 0 to 2**32 - 1")
            super().reset(seed=int(seed))
            np.random.RandomState(self._stream).seed(seed)
        if self._first_state is not None:
            self._restore(self._first_state)
        with _as_global_generator(self._stream):
            self._stock.task.specific_reset()
        if self._first_state is None:
            self._first_state = self._save()
        self._simulate()
        self._elapsed = 0
        self._motion = motion = self._read_motion()
        sense = self._robot.sense(motion, at_rest=True)
        judgement = self._goal.judge(motion, sense.bonus)
        self._goal.restart()
        return np.array(sense.observation + judgement.observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Apply an action in [−1, 1]ᴬ: (observation, reward, terminated, truncated, {"cost": cost})."""
        if self._motion is None:
            raise EnvError(f"{self.task} was stepped before its first reset or after close; call reset() first")
        action = np.asarray(action)
        if action.shape != self._action_shape:
            raise EnvError(f"{self.task} got an action of shape {action.shape}; it must be {self._action_shape}")
        self._robot.act(action, self._motion)
        self._simulate()
        self._elapsed += 1
        self._motion = motion = self._read_motion()
        observation, bonus, alive = self._robot.sense(motion)
        more_observation, reward, cost = self._goal.judge(motion, bonus)
        truncated = self._elapsed >= self.episode_length
        return np.array(observation + more_observation), reward, not alive, truncated, {"cost": cost}

    def close(self) -> None:
        """Disconnect from the simulator; closing twice does no harm."""
        self._motion = None
        self._stock.close()

    def top_view(self) -> dict[str, tuple[float, float]]:
        """The robot from above, now: its position and its velocity."""
        if self._motion is None:
            raise EnvError(f"{self.task} has no position before its first reset or after close; call reset() first")
        x, y, _ = self._motion.position
        vx, vy, _ = self._motion.velocity
        return {"position": (x, y), "velocity": (vx, vy)}

    def _read_motion(self) -> Motion:
        return Motion._make(self._pose() + self._velocity())


def make_bullet(task: str) -> BulletEnv:
    """A fresh environment of the task, for example "BallCircle"; `BULLET_TASKS` names them all."""
    return BulletEnv(task)


def scene(task: str) -> Scene:
    """The task from above: Circle tasks have a circle and a limit of x, Run tasks limits of y and of speed."""
    env = make_bullet(task)
    try:
        return env._goal.scene(seconds=env.episode_length * env._stock.dt)
    finally:
        env.close()


def _task(name: str, known: BulletTask) -> Task:
    axis, count = (20.0, 40.0, 60.0), len(known.costs)
    return Task(
        name=name,
        description=known.description,
        behaviour_thresholds=axis if count == 1 else corners_and_centre(*[axis] * count),
        threshold_range=(10.0, 70.0) if count == 1 else ((10.0,) * count, (70.0,) * count),
        episode_length=known.episode_length,
        extra="bullet",
        make=partial(make_bullet, name),
        costs=known.costs,
        scene=partial(scene, name),
        preset=name.partition("-")[0],
    )


TASKS = tuple(_task(name, known) for name, known in BULLET_TASKS.items())
