"""The velocity tasks against Gymnasium's own robots, bit for bit, and against the simulator's state."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from ccpo.envs.mujoco import EPISODE_LENGTH, VELOCITY_TASKS, VelocityEnv, _simulator, _without_remarks
from ccpo.envs.registry import find_task, resolve
from ccpo.errors import EnvError, MissingExtraError
from ccpo.studies.catalogue import evenly
from extras import HAS_MUJOCO

pytestmark = pytest.mark.skipif(not HAS_MUJOCO, reason="needs the extra 'mujoco'")
ALL_TASKS = pytest.mark.parametrize("task", VELOCITY_TASKS)
FALLS = ("HopperVelocity", "Walker2dVelocity", "AntVelocity", "HumanoidVelocity")
IN_PLANE = ("AntVelocity", "HumanoidVelocity")
LIMITS = {  # of Safety-Gymnasium's Velocity-v1 tasks
    "AntVelocity": 2.6222,
    "HalfCheetahVelocity": 3.2096,
    "HopperVelocity": 0.7402,
    "HumanoidVelocity": 1.4149,
    "SwimmerVelocity": 0.2282,
    "Walker2dVelocity": 2.3415,
}


@pytest.fixture
def make():
    """Environments that are closed at the end of the test."""
    opened = []

    def open_env(task: str, **options) -> VelocityEnv:
        opened.append(VelocityEnv(task, **options))
        return opened[-1]

    yield open_env
    for env in opened:
        env.close()


def random_actions(env, *, steps, seed=0):
    box = env.action_space
    return np.random.default_rng(seed).uniform(box.low, box.high, (steps, *box.shape)).astype(np.float32)


def record(env, actions, seed=None):
    """One episode as plain data, and the information of its steps beside it."""
    trace, infos = [env.reset(seed=seed)[0].tolist()], []
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action)
        trace.append((obs.tolist(), float(reward), bool(terminated)))
        infos.append(info)
        if terminated or truncated:
            break
    return trace, infos


@ALL_TASKS
def test_same_numbers_as_gymnasiums_own_and_cost_1_above_the_limit(task, make):
    ours, known = make(task), VELOCITY_TASKS[task]
    with _without_remarks(_simulator(task)):
        stock = gymnasium.make(known.stock_id, disable_env_checker=True, **dict(known.options))
    assert ours.observation_space == stock.observation_space
    assert ours.action_space == stock.action_space
    costs = []
    for seed in (3, None, None):
        actions = random_actions(ours, steps=100, seed=seed or 0)
        expected, found = record(stock, actions, seed=seed)
        trace, infos = record(ours, actions, seed=seed)
        assert trace == expected
        for info, theirs in zip(infos, found, strict=True):
            speed = theirs["x_velocity"]
            if task in IN_PLANE:
                speed = np.hypot(speed, theirs["y_velocity"])
            assert info == {"cost": float(speed > LIMITS[task])}
            costs.append(info["cost"])
    stock.close()
    assert 0.0 in costs


@pytest.mark.parametrize("task", ["SwimmerVelocity", "HopperVelocity", *IN_PLANE])
def test_a_push_beyond_the_limit_costs_and_one_below_does_not(task, make):
    """The speed is set in the simulator itself; a step starts from there."""
    env, limit = make(task), LIMITS[task]
    for factor, cost in ((0.5, 0.0), (1.5, 1.0)):
        env.reset(seed=0)
        stock = env._stock
        velocity = np.zeros_like(stock.data.qvel)
        # Mostly sideways where the norm in the plane counts: the x-velocity alone would be below the limit.
        velocity[:2] = factor * limit * (np.array([0.3, 0.95]) if task in IN_PLANE else np.array([1.0, 0.0]))
        stock.set_state(stock.data.qpos.copy(), velocity)
        assert env.step(np.zeros(env.action_space.shape, np.float32))[4] == {"cost": cost}


def test_every_task_is_there_with_its_limit():
    assert {name: known.limit for name, known in VELOCITY_TASKS.items()} == LIMITS
    for name in LIMITS:
        task = find_task(name)
        assert (task.behaviour_thresholds, task.threshold_range) == ((20.0, 40.0, 60.0), (10.0, 70.0))
        assert (task.episode_length, task.extra, task.early_end) == (1000, "mujoco", "failure")
        assert (task.scene().kind, task.scene().speed_limit) == ("side", LIMITS[name])
        assert 0 < task.steps <= 1_000_000
        assert 25.0 in evenly(task, count=13)  # the limit of published results


@pytest.mark.parametrize("task", FALLS)
def test_a_fall_ends_the_episode_as_a_failure(task, make):
    env = make(task)
    trace, _ = record(env, random_actions(env, steps=EPISODE_LENGTH), seed=1)
    assert len(trace) < 300
    assert trace[-1][2]
    assert resolve(task).spec.early_end == "failure"


def test_time_limit_truncates_and_does_not_terminate(make):
    env = make("SwimmerVelocity")
    env.reset(seed=0)
    for number in range(1, EPISODE_LENGTH + 1):
        _, _, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
        assert (terminated, truncated) == (False, number == EPISODE_LENGTH)
    env.reset()
    assert not env.step(np.zeros(2, np.float32))[3]


@ALL_TASKS
def test_a_reset_with_a_seed_determines_the_episode(task, make):
    env, fresh = make(task), make(task)
    actions = random_actions(env, steps=30)
    first, again, other = record(env, actions, seed=7), record(env, actions, seed=7), record(env, actions, seed=8)
    assert first == again == record(fresh, actions, seed=7)
    assert first != other


def test_two_costs_are_the_old_one_and_the_effort(make):
    one, two = make("HalfCheetahVelocity"), make("HalfCheetahVelocity", two_costs=True)
    actions = random_actions(one, steps=20)
    (trace, single), (also, named) = record(one, actions, seed=0), record(two, actions, seed=0)
    assert trace == also
    for action, old, new in zip(actions, single, named, strict=True):
        assert new["cost"] == {"speed": old["cost"], "effort": pytest.approx(np.mean(np.float64(action) ** 2))}
    env = resolve("HalfCheetahVelocity-TwoCosts")()
    env.reset(seed=0)
    assert env.step(actions[0])[2].tolist() == [0.0, np.float32(named[0]["cost"]["effort"])]


@ALL_TASKS
def test_the_side_view_is_the_simulators_bodies(task, make):
    env, up = make(task), VELOCITY_TASKS[task].up
    env.reset(seed=0)
    for action in random_actions(env, steps=5):
        env.step(action)
    view, (model, data) = env.side_view(), (env._stock.model, env._stock.data)
    solid = [i for i in range(model.ngeom) if model.geom_bodyid[i]]
    assert len(view["bodies"]) == len(solid) >= 3
    for i, (x0, z0, x1, z1, radius) in zip(solid, view["bodies"], strict=True):
        assert radius == model.geom_size[i][0]
        assert np.allclose(((x0 + x1) / 2, (z0 + z1) / 2), data.geom_xpos[i][[0, up]])
        axis = data.geom_xmat[i].reshape(3, 3) @ (0.0, 0.0, 1.0)
        length = 2 * model.geom_size[i][1] * (model.geom_type[i] == 3)
        assert np.allclose((x1 - x0, z1 - z0), length * axis[[0, up]])


@ALL_TASKS
def test_a_robot_fits_into_its_picture(task, make):
    env = make(task)
    env.reset(seed=0)
    bodies = np.array(env.side_view()["bodies"])
    (left, right), (low, high) = VELOCITY_TASKS[task].bounds
    x, z = bodies[:, [0, 2]] - bodies[0, 0], bodies[:, [1, 3]]
    assert left < x.min() < x.max() < right
    assert low < z.min() < z.max() < high


def test_errors_say_what_to_do(monkeypatch):
    with pytest.raises(EnvError, match="unknown velocity task 'AntVelocty'; did you mean 'AntVelocity'"):
        VelocityEnv("AntVelocty")
    monkeypatch.setattr(gymnasium, "__version__", "0.28.1")
    with pytest.raises(MissingExtraError, match=r"AntVelocity needs Gymnasium 1.1 or newer, .* has 0.28.1; to update"):
        VelocityEnv("AntVelocity")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ccpo\[mujoco\]'"):
        VelocityEnv("AntVelocity")


# Gymnasium's own robots declare observations without bounds.
@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is -?infinity:UserWarning")
def test_gymnasium_finds_nothing_to_say_of_ours(make):
    from gymnasium.utils.env_checker import check_env

    check_env(make("HalfCheetahVelocity"), skip_render_check=True)


def test_import_is_cheap_and_everything_is_silent(tmp_path):
    code = (
        "import sys, ccpo.envs.mujoco as m; assert 'mujoco' not in sys.modules;"
        "e = m.VelocityEnv('HalfCheetahVelocity'); e.reset(seed=0); e.step([0.0] * 6); e.close(); print('mine')"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.stdout, result.stderr) == ("mine\n", "")
    assert not list(tmp_path.iterdir())
