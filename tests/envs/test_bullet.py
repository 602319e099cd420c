"""The lean Bullet environments against the stock package, bit for bit."""

import subprocess
import sys
import warnings
from contextlib import redirect_stdout

import gymnasium
import numpy as np
import pytest

from ccpo.envs.bullet import BULLET_TASKS, BulletEnv, _packages, make_bullet, scene
from ccpo.envs.registry import resolve
from ccpo.envs.tasks import Scene
from ccpo.errors import ConfigError, EnvError, MissingExtraError, NumericalError
from extras import NEEDS_BULLET

pytestmark = NEEDS_BULLET
TWO_COSTS = [name for name, task in BULLET_TASKS.items() if len(task.costs) == 2]
ALL_TASKS = pytest.mark.parametrize("task", [name for name in BULLET_TASKS if name not in TWO_COSTS])


@pytest.fixture
def make():
    """Environments that are closed at the end of the test."""
    opened = []

    def open_env(task: str) -> BulletEnv:
        opened.append(make_bullet(task))
        return opened[-1]

    yield open_env
    for env in opened:
        env.close()


@pytest.fixture
def stock(task):
    """The stock environment, which cannot be made where pytest stands in for stdout."""
    make_bullet("BallRun").close()  # imports the packages quietly
    with warnings.catch_warnings(), redirect_stdout(sys.__stdout__):
        warnings.simplefilter("ignore")
        env = gymnasium.make(BULLET_TASKS[task].stock_id, disable_env_checker=True)
    yield env
    env.close()


def random_actions(env: BulletEnv, *, seed: int, scale: float = 1.0, steps: int | None = None) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(-scale, scale, (steps or env.episode_length, *env.action_space.shape)).astype(np.float32)


def structured_actions(env: BulletEnv) -> np.ndarray:
    """A strong push that swings slowly: circle robots meet the walls, the drone climbs and does not tip over."""
    time, joints = np.arange(env.episode_length)[:, None], np.arange(env.action_space.shape[0])
    phase = 0 * joints if env.task.startswith("Drone") else joints
    return (0.7 + 0.3 * np.sin(0.05 * time + phase)).astype(np.float32)


def record(env: gymnasium.Env, actions: np.ndarray, seed: int | None = None) -> list[tuple]:
    """One episode as plain data: the first observation, then every step."""
    observation, _ = env.reset(seed=seed)
    steps = [(observation.tolist(),)]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append((observation.tolist(), float(reward), terminated, truncated, float(info["cost"])))
        if terminated or truncated:
            break
    return steps


@ALL_TASKS
def test_the_table_is_the_stock_registry(task):
    make_bullet("BallRun").close()
    stock_id, episode_length, *_ = BULLET_TASKS[task]
    assert gymnasium.spec(stock_id).max_episode_steps == episode_length


def test_every_circle_and_run_task_is_there():
    make_bullet("BallRun").close()
    stock = [
        name for name in gymnasium.registry if name.startswith("Safety") and name.endswith(("Circle-v0", "Run-v0"))
    ]
    assert sorted(stock) == sorted({task.stock_id for task in BULLET_TASKS.values()})


@ALL_TASKS
def test_same_numbers_as_the_stock_package(task, stock, make):
    ours = make(task)
    assert ours.observation_space == stock.observation_space
    assert ours.action_space == stock.action_space
    episodes = [
        structured_actions(ours),
        random_actions(ours, seed=1),
        random_actions(ours, seed=2, scale=0.1, steps=200),
        random_actions(ours, seed=3, scale=1.5, steps=50).astype(np.float64),
    ]
    np.random.seed(5)
    steps = 0
    for number, actions in enumerate(episodes):
        expected = record(stock, actions)
        steps += len(expected) - 1
        # a list of steps, so that a failure shows the first step that differs
        assert record(ours, actions, seed=5 if number == 0 else None) == expected
    assert steps > 300


@ALL_TASKS
def test_fresh_environment_and_seed_determine_the_episodes_whatever_else_runs(task, make):
    alone, busy, other = make(task), make(task), make(task)
    actions = random_actions(alone, seed=0, steps=30)
    expected = [record(alone, actions, seed=11), record(alone, actions)]

    np.random.seed(0)
    other.reset(seed=12)
    assert record(other, actions) != expected[0]
    disturbed = []
    for seed in (11, None):
        np.random.uniform(size=3)
        observation, _ = busy.reset(seed=seed)
        other.reset()
        steps = [(observation.tolist(),)]
        for action in actions[: len(expected[len(disturbed)]) - 1]:
            observation, reward, terminated, truncated, info = busy.step(action)
            other.step(-action)
            steps.append((observation.tolist(), reward, terminated, truncated, info["cost"]))
        disturbed.append(steps)
    assert disturbed == expected
    assert expected[0][0] != expected[1][0]


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_the_users_global_generator_is_left_alone(make, distribution):
    def draw(between) -> list[float]:
        np.random.seed(3)
        first = getattr(np.random, distribution)()  # a normal leaves the second of its pair behind
        between()
        return [first, np.random.normal(), np.random.uniform()]

    def use_ours():
        env = make("BallRun")
        record(env, random_actions(env, seed=0, steps=2), seed=1)
        record(env, random_actions(env, seed=0, steps=2))

    assert draw(use_ours) == draw(lambda: None)


def test_an_ant_that_was_just_reset_feels_no_ground(make):
    env = make("AntRun")
    env.reset(seed=0)
    for _ in range(30):
        env.step(np.zeros(8))
    assert sum(env._robot.sense(env._motion).observation[-4:]) > 0
    assert sum(env._robot.sense(env._motion, at_rest=True).observation[-4:]) == 0


def test_unseeded_environments_differ(make):
    assert make("BallCircle").reset()[0].tolist() != make("BallCircle").reset()[0].tolist()


def test_time_limit_truncates_and_does_not_terminate(make):
    env = make("BallRun")
    steps = record(env, np.zeros((1000, 2), np.float32), seed=0)[1:]
    assert len(steps) == BULLET_TASKS["BallRun"].episode_length
    assert [(terminated, truncated) for _, _, terminated, truncated, _ in steps[-2:]] == [
        (False, False),
        (False, True),
    ]


def test_a_fall_terminates_and_does_not_truncate(make):
    env = make("DroneRun")
    steps = record(env, np.tile(np.float32([1, 1, -1, -1]), (200, 1)), seed=0)
    assert len(steps) < 150
    assert steps[-1][2:4] == (True, False)


def test_costs_are_where_the_scene_says(make):
    circle, run = make("BallCircle"), make("BallRun")
    seen = set()
    for env, action in ((circle, (1.0, 0.0)), (run, (0.3, 0.0)), (run, (0.0, 1.0))):
        limits = scene(env.task)
        env.reset(seed=0)
        for _ in range(env.episode_length):
            cost = env.step(np.float32(action))[4]["cost"]
            view = env.top_view()
            (x, y), speed = view["position"], np.hypot(*view["velocity"])
            if env is circle:
                assert cost == (abs(x) > limits.x_limit)
            else:
                assert cost == (abs(y) > limits.y_limit or speed > limits.speed_limit)
            seen.add((env.task, cost))
    assert len(seen) == 4


@pytest.mark.parametrize("task", TWO_COSTS)
def test_two_costs_are_the_old_one_taken_apart(task, make):
    """The same episode; their union is the cost of before, and each is where the scene says."""
    pb, limits, seen = _packages()[0], scene(task), set()
    one, two = make(task.partition("-")[0]), make(task)
    for start in ("as it is", "fast", "aside"):
        first = []
        for env in (one, two):
            first.append(env.reset(seed=0)[0].tolist())
            body, client = env._stock.agent.body_id, env._stock.bullet_client_id
            (x, y, z), quaternion = pb.getBasePositionAndOrientation(body, client)
            if start == "fast":
                pb.resetBaseVelocity(body, (2.0, 0.0, 0.0), physicsClientId=client)
            elif start == "aside":
                pb.resetBasePositionAndOrientation(body, (x, y + 2.5, z), quaternion, physicsClientId=client)
        assert first[0] == first[1]
        for action in random_actions(one, seed=0, steps=20):
            *expected, info = one.step(action)
            *found, named = two.step(action)
            assert [found[0].tolist(), *found[1:]] == [expected[0].tolist(), *expected[1:]]
            costs, view = named["cost"], two.top_view()
            assert float(any(costs.values())) == info["cost"]
            speed, beside = np.hypot(*view["velocity"]), abs(view["position"][1])
            assert costs == {"speed": float(speed > limits.speed_limit), "boundary": float(beside > limits.y_limit)}
            seen.add(tuple(costs.values()))
            if expected[2]:
                break
    assert {(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)} <= seen
    assert resolve(task).spec.costs == ("speed", "boundary")


@ALL_TASKS
def test_scene_describes_the_task(task):
    view = scene(task)
    limits = {"circle_radius": 7.0, "x_limit": 6.0}
    if task.endswith("Run"):
        limits = {"y_limit": 2.0, "speed_limit": 2.5 if task == "BallRun" else 1.5}
    assert view == Scene("above", view.bounds, **limits)
    (x_low, x_high), (y_low, y_high) = view.bounds
    assert x_low < 0 < x_high
    assert y_low < -2 < 2 < y_high


def test_making_and_closing_leaves_no_client_behind():
    clients = set()
    for _ in range(20):
        env = make_bullet("BallRun")
        env.reset(seed=0)
        clients.add(env._stock.bullet_client_id)
        env.close()
        env.close()
    assert len(clients) == 1


def test_errors_say_what_to_do(make):
    with pytest.raises(EnvError, match="unknown Bullet task 'BalCircle'; did you mean 'BallCircle'"):
        make_bullet("BalCircle")
    env = make("BallRun")
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.zeros(2))
    with pytest.raises(EnvError, match="call reset"):
        env.top_view()
    with pytest.raises(ConfigError, match="seed -1 is not allowed; choose one from 0 to"):
        env.reset(seed=-1)
    env.reset(seed=2**32 - 1)
    with pytest.raises(EnvError, match=r"shape \(3,\); it must be \(2,\)"):
        env.step(np.zeros(3))
    with pytest.raises(NumericalError, match="not finite"):
        env.step(np.array([0.0, np.nan]))
    env.close()
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.zeros(2))
    with pytest.raises(EnvError, match="was closed; make a new one"):
        env.reset()


def test_a_missing_package_names_its_extra(monkeypatch):
    _packages.cache_clear()
    monkeypatch.setitem(sys.modules, "pybullet", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ccpo\[bullet\]'"):
        make_bullet("BallRun")


def test_gymnasium_finds_nothing_to_say(make):
    from gymnasium.utils.env_checker import check_env

    check_env(make("BallRun"), skip_render_check=True)


def test_import_is_cheap_and_everything_is_silent():
    code = (
        "import sys, ccpo.envs.bullet as b; assert 'pybullet' not in sys.modules;"
        "e = b.make_bullet('DroneRun'); e.reset(seed=0); e.step([0.0] * 4); e.close(); print('mine')"
    )
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("mine\n", "")
