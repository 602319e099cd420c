"""The four robots and the two tasks of Bullet-Safety-Gym, as what one step needs and no more.

Each reads its constants off the objects that the installed package has built, and repeats the package's
arithmetic in its order and precision: the car amplifies the last bit of a number within an episode.
Therefore scalar products stay with NumPy (its BLAS may fuse multiply and add), sines too (its own are not
the C library's), and an action keeps its data type for as long as it does in the package.
"""

import math
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from ccpo.envs.tasks import Scene
from ccpo.errors import NumericalError

Vector = tuple[float, ...]

_ORIGIN = (0.0, 0.0, 0.0)
_NEAR_LIMIT = float(np.float32(0.99))


class Motion(NamedTuple):
    """What the base of a robot does, in world coordinates."""

    position: Vector
    quaternion: Vector
    velocity: Vector
    spin: Vector


class Sense(NamedTuple):
    """What a robot knows after a step. `bonus` is its own term of the reward, in the action's precision."""

    observation: Vector
    bonus: Any
    alive: bool


class Robot(Protocol):
    """A robot turns an action into commands for the simulator, and its state into what it senses.

    `at_rest` marks the sensing after a reset: no action was taken, and the package looks at no contacts.
    """

    def act(self, action: np.ndarray, motion: Motion) -> None: ...

    def sense(self, motion: Motion, *, at_rest: bool = False) -> Sense: ...


def clip(action: np.ndarray) -> np.ndarray:
    """Clip to [−1, 1]; an action within, as most are, is handed back as it is."""
    for value in action.tolist():
        if not -1.0 <= value <= 1.0:
            if not np.isfinite(action).all():
                raise NumericalError(f"the action {action} is not finite; actions lie in [−1, 1], check the policy")
            return np.clip(action, -1.0, 1.0)
    return action


def dot(left: Vector, right: Vector) -> np.float64:
    """⟨left, right⟩, rounded as NumPy rounds it."""
    return np.array(left).dot(np.array(right))


def norm(vector: Vector) -> float:
    """‖vector‖₂, rounded as NumPy rounds it."""
    array = np.array(vector)
    return math.sqrt(array.dot(array))


class Ball:
    """A sphere pushed by a horizontal force."""

    def __init__(self, stock: Any, pb: ModuleType) -> None:
        agent = stock.agent
        self._push, self._base = pb.applyExternalForce, (agent.body_id, -1)
        self._frame = (pb.WORLD_FRAME, stock.bullet_client_id)
        self._max_force = agent.max_force
        self._action = np.zeros(agent.act_dim)

    def act(self, action: np.ndarray, motion: Motion) -> None:
        self._action = clip(action)
        x, y = self._action.tolist()
        self._push(*self._base, (x * self._max_force, y * self._max_force, 0.0), motion.position, *self._frame)

    def sense(self, motion: Motion, *, at_rest: bool = False) -> Sense:
        (x, y, _), (vx, vy, _), (wx, wy, wz) = motion.position, motion.velocity, motion.spin
        power = self._action.dot(self._action)
        effort = math.sqrt(power)  # in the action's precision the same bits as NumPy's root, which takes far longer
        if power.dtype.kind == "f":
            effort = type(power)(effort)
        return Sense((0.1 * x, 0.1 * y, 0.2 * vx, 0.2 * vy, 0.1 * wx, 0.1 * wy, 0.1 * wz), -0.5 * effort, True)


class Car:
    """A race car with a target speed of its wheels and a target angle of its steering."""

    def __init__(self, stock: Any, pb: ModuleType) -> None:
        agent, client = stock.agent, stock.bullet_client_id
        wheels, steering = agent.motorized_wheels, agent.steering_links
        self._drive = partial(
            pb.setJointMotorControlArray,
            agent.body_id,
            wheels,
            pb.VELOCITY_CONTROL,
            forces=[agent.max_force] * len(wheels),
            physicsClientId=client,
        )
        self._steer = partial(
            pb.setJointMotorControlArray, agent.body_id, steering, pb.POSITION_CONTROL, physicsClientId=client
        )
        self._euler = pb.getEulerFromQuaternion
        self._speed, self._angle = agent.speed_multiplier, agent.steering_multiplier

    def act(self, action: np.ndarray, motion: Motion) -> None:
        throttle, wheel = clip(action)
        speed, angle = float(throttle * self._speed), float(wheel * self._angle)
        self._drive(targetVelocities=(speed, speed))
        self._steer(targetPositions=(angle, angle))

    def sense(self, motion: Motion, *, at_rest: bool = False) -> Sense:
        (x, y, _), (vx, vy, _) = motion.position, motion.velocity
        yaw = self._euler(motion.quaternion)[2]
        return Sense((0.1 * x, 0.1 * y, vx, vy, np.sin(yaw), np.cos(yaw), 0.1 * motion.spin[2]), 0.0, True)


class Drone:
    """A quadcopter whose rotors turn near their hovering speed ω.

    A rotor of area A, diameter d and pitch p lifts with ρA·(u² − u·v)·(k₁d/p)^k₂, where u = p·ω/2π is the speed of
    its air and v the speed at which the drone moves along its own axis.
    """

    def __init__(self, stock: Any, pb: ModuleType) -> None:
        agent, client = stock.agent, stock.bullet_client_id
        body, rotors = agent.body_id, [motor.index for motor in agent.motor_list]
        self._spin_rotors = partial(
            pb.setJointMotorControlArray,
            body,
            rotors,
            pb.VELOCITY_CONTROL,
            forces=[motor.max_force for motor in agent.motor_list],
            physicsClientId=client,
        )
        self._lift, self._frame = pb.applyExternalForce, (_ORIGIN, pb.LINK_FRAME, client)
        self._rotor_states = partial(pb.getJointStates, body, rotors, physicsClientId=client)
        self._ground_contacts = partial(pb.getContactPoints, body, stock.world.plane_id, physicsClientId=client)
        self._matrix, self._euler = pb.getMatrixFromQuaternion, pb.getEulerFromQuaternion
        self._quaternion = pb.getQuaternionFromEuler
        self._body, self._range, self._pitch = body, agent.action_range, agent.propeller_pitch
        diameter = (4.0 * agent.area / math.pi) ** 0.5
        self._density = agent.air_density * agent.area
        self._blade = (agent.k1 * diameter / agent.propeller_pitch) ** agent.k2
        self._hover = agent.hover_velocities
        self._hover_list = self._hover.tolist()
        self._rotors = list(zip(rotors, agent.propeller_directions.tolist(), strict=True))

    def act(self, action: np.ndarray, motion: Motion) -> None:
        targets = (self._hover * (1 + self._range * clip(action))).tolist()
        self._spin_rotors(targetVelocities=targets)
        rise = float(dot(motion.velocity, self._matrix(motion.quaternion)[2::3]))
        for (rotor, direction), target in zip(self._rotors, targets, strict=True):
            air = target * direction / (2 * math.pi) * self._pitch
            thrust = self._density * (air**2 - air * rise) * self._blade
            self._lift(self._body, rotor, (0.0, 0.0, thrust), *self._frame)

    def sense(self, motion: Motion, *, at_rest: bool = False) -> Sense:
        (x, y, z), (vx, vy, vz), (wx, wy, wz) = motion.position, motion.velocity, motion.spin
        euler = self._euler(motion.quaternion)
        rotors = [
            2.5e-3 * (state[1] - hover) for state, hover in zip(self._rotor_states(), self._hover_list, strict=True)
        ]
        observation = (
            *(0.1 * x, 0.1 * y, 0.1 * z, 0.2 * vx, 0.2 * vy, 0.2 * vz),
            *self._quaternion(euler),
            *(0.1 * wx, 0.1 * wy, 0.1 * wz),
            *rotors,
        )
        if at_rest:
            return Sense(observation, 0.0, True)
        alive = abs(euler[1]) <= 0.5 * math.pi and abs(euler[0]) <= 0.5 * math.pi
        touching = len({point[3] for point in self._ground_contacts()})
        return Sense(observation, (1.0 if alive else -10.0) - 0.01 * norm(motion.spin) ** 2 - touching, alive)


class Ant:
    """A four-legged walker with a torque at each of its eight joints."""

    def __init__(self, stock: Any, pb: ModuleType) -> None:
        agent, client, motors = stock.agent, stock.bullet_client_id, stock.agent.motor_list
        body, joints = agent.body_id, [motor.index for motor in motors]
        self._turn = partial(pb.setJointMotorControlArray, body, joints, pb.TORQUE_CONTROL, physicsClientId=client)
        self._joint_states = partial(pb.getJointStates, body, joints, physicsClientId=client)
        self._ground_contacts = partial(pb.getContactPoints, body, stock.world.plane_id, physicsClientId=client)
        self._torques = [agent.max_force * motor.power_coefficient for motor in motors]
        self._ranges = [
            (0.5 * (motor.lower_limit + motor.upper_limit), motor.upper_limit - motor.lower_limit) for motor in motors
        ]
        self._feet = [foot.index for foot in agent.feet]
        self._electricity, self._stall = agent.electricity_factor, agent.stall_torque_factor
        self._at_limit, self._collision = agent.joints_at_limit_factor, agent.feet_collision_reward
        self._action = np.zeros(agent.act_dim)

    def act(self, action: np.ndarray, motion: Motion) -> None:
        self._action = action
        self._turn(forces=[float(t * a) for t, a in zip(self._torques, clip(action), strict=True)])

    def sense(self, motion: Motion, *, at_rest: bool = False) -> Sense:
        relative = [
            value
            for (angle, speed, _, _), (middle, span) in zip(self._joint_states(), self._ranges, strict=True)
            for value in (2 * (angle - middle) / span, 0.1 * speed)
        ]
        joints = np.array(relative, np.float32)
        touching = () if at_rest else {point[3] for point in self._ground_contacts()}
        (x, y, z), (vx, vy, vz), (wx, wy, wz) = motion.position, motion.velocity, motion.spin
        observation = (
            *(0.1 * x, 0.1 * y, 0.1 * z, 0.3 * vx, 0.3 * vy, 0.3 * vz),
            *motion.quaternion,
            *(0.15 * wx, 0.15 * wy, 0.15 * wz),
            *(0.5 * joints).tolist(),
            *[1.0 if foot in touching else 0.0 for foot in self._feet],
        )
        alive = z > 0.26
        return Sense(observation, 0.0 if at_rest else self._bonus(joints, alive), alive)

    def _bonus(self, joints: np.ndarray, alive: bool) -> float:
        """Alive or not, less the power that the motors take and the joints stuck at their limits."""
        action = self._action
        # Sums are rounded in the action's precision; dividing them by the eight joints is exact in any.
        power = float(np.add.reduce(np.abs(action * joints[1::2]))) / len(action)
        current = float(np.add.reduce(np.square(action))) / len(action)
        effort = self._electricity * power + self._stall * current
        stuck = len([angle for angle in joints[0::2].tolist() if abs(angle) > _NEAR_LIMIT])
        return sum((effort, self._collision, self._at_limit * stuck, 1.0 if alive else -1))


class Judgement(NamedTuple):
    """What a task says about a step: its own part of the observation, the reward and the cost."""

    observation: Vector
    reward: float
    cost: Any
    """A number, or a mapping of names to numbers."""


class Circle:
    """Run round the circle: 0.1·⟨p, (−v_y, v_x)⟩ / (1 + |‖p‖ − r|) + 0.01·bonus; cost 1 where |x| > limit."""

    def __init__(self, stock: Any) -> None:
        task = stock.task
        self.markers = [marker.body_id for marker in (task.circle, task.bound_1, task.bound_2)]
        self._radius: float = task.circle.radius
        self._x_limit: float = task.x_lim
        self._size: float = stock.world.env_dim
        self._place, self._turn = np.zeros(2), np.zeros(2)

    def restart(self) -> None:
        """Nothing is carried from step to step."""

    def scene(self, seconds: float) -> Scene:
        edge = 1.2 * self._size
        return Scene("above", ((-edge, edge), (-edge, edge)), circle_radius=self._radius, x_limit=self._x_limit)

    def judge(self, motion: Motion, bonus: Any) -> Judgement:
        (x, y, _), (vx, vy, _) = motion.position, motion.velocity
        place, turn = self._place, self._turn  # filling arrays takes a fraction of the time of making them
        place[0], place[1], turn[0], turn[1] = x, y, -vy, vx
        offset = math.sqrt(place.dot(place)) - self._radius
        reward = 0.1 * float(place.dot(turn)) / (1 + abs(offset)) + float(0.01 * bonus)
        return Judgement((offset / self._size,), reward, 1.0 if abs(x) > self._x_limit else 0.0)


class Run:
    """Run along x: 60·progress + bonus; cost 1 where |y| > limit or the speed is above its limit."""

    def __init__(self, stock: Any) -> None:
        self._task = task = stock.task
        self.markers = [marker.body_id for marker in (task.bound_1, task.bound_2)]
        self._y_limit: float = task.y_lim
        self._speed_limit: float = stock.agent.velocity_constraint
        self._potential = 0.0

    def restart(self) -> None:
        """Progress counts from where the package's reset put the robot, before the simulator settles it."""
        self._potential = self._task.old_potential

    def scene(self, seconds: float) -> Scene:
        """The plot reaches somewhat farther than a robot gets at the speed limit."""
        far, side = 1.5 * seconds * self._speed_limit, 2 * self._y_limit
        bounds = ((-0.1 * far, far), (-side, side))
        return Scene("above", bounds, y_limit=self._y_limit, speed_limit=self._speed_limit)

    def judge(self, motion: Motion, bonus: Any) -> Judgement:
        (x, y, _), (vx, vy, _) = motion.position, motion.velocity
        potential = -norm((x - 1e3, y)) * 60
        reward = float(potential - self._potential) + float(bonus)
        self._potential = potential
        return Judgement((), reward, self._cost(y, (vx, vy)))

    def _cost(self, y: float, velocity: Vector) -> Any:
        return 1.0 if abs(y) > self._y_limit or norm(velocity) > self._speed_limit else 0.0


class RunTwoCosts(Run):
    """The two reasons for which a step of `Run` costs, each as a cost of its own."""

    def _cost(self, y: float, velocity: Vector) -> Any:
        return {"speed": float(norm(velocity) > self._speed_limit), "boundary": float(abs(y) > self._y_limit)}


ROBOTS: dict[str, Any] = {"Ball": Ball, "Car": Car, "Drone": Drone, "Ant": Ant}
GOALS: dict[str, Any] = {"Circle": Circle, "Run": Run, "Run-TwoCosts": RunTwoCosts}
