"""Names, factories, and the contract that every registered environment keeps."""

import pickle
import subprocess
import sys
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from ccpo.agent import Agent, find_factory, preset_values, task_settings
from ccpo.envs import analytic, registry
from ccpo.envs.analytic import AnalyticEnv, StaticBudget
from ccpo.envs.importing import Source
from ccpo.envs.registry import TASKS, EnvFactory, find_task, list_tasks, make, register_task, resolve
from ccpo.envs.tasks import Scene
from ccpo.errors import ConfigError, EnvError
from ccpo.probing import probe
from deploy.policies import random_policy
from extras import each

EVERY_TASK = each(TASKS.values())


def episode(env, *, seed, steps):
    """The start observation and up to `steps` outcomes under actions drawn from a fixed generator."""
    rng = np.random.default_rng(0)
    trace = [env.reset(seed=seed)]
    for _ in range(steps):
        trace.append(env.step(rng.uniform(-1.2, 1.2, env.spec.action_size).astype(np.float32)))
        if trace[-1][3] or trace[-1][4]:
            break
    return trace


def flat(trace):
    return np.concatenate([np.hstack(step) for step in trace])


@pytest.mark.parametrize("name", EVERY_TASK)
def test_contract(name):
    task, factory = TASKS[name], resolve(name)
    env = factory()
    assert isinstance(env.env.observation_space, spaces.Box)
    assert env.spec == factory.spec
    assert env.spec.episode_length == task.episode_length
    assert env.spec.task == task.name == name

    start, *outcomes = episode(env, seed=1, steps=task.episode_length)
    assert start.dtype == np.float32
    for obs, reward, cost, terminated, truncated in outcomes:
        assert obs.shape == (env.spec.observation_size,)
        assert obs.dtype == np.float32
        assert [type(v) for v in (reward, terminated, truncated)] == [float, bool, bool]
        assert type(cost) is float if len(task.costs) == 1 else cost.shape == (len(task.costs),)
        assert ((np.asarray(cost) >= 0.0) & (np.asarray(cost) < np.inf)).all()
    assert [any(outcome[3:]) for outcome in outcomes[:-1]] == [False] * (len(outcomes) - 1)
    terminated, truncated = outcomes[-1][3:]
    assert terminated != truncated
    assert truncated == (not terminated and len(outcomes) == task.episode_length)
    env.close()


@pytest.mark.parametrize("name", EVERY_TASK)
def test_seeds_decide_the_episode(name):
    def start_of(seed):
        env = resolve(name)()
        trace = flat(episode(env, seed=seed, steps=20))
        env.close()
        return trace

    first, again, other = start_of(3), start_of(3), start_of(4)
    np.testing.assert_array_equal(first, again)
    assert first.shape != other.shape or (first != other).any()


@pytest.mark.parametrize("name", EVERY_TASK)
def test_thresholds_are_in_order(name):
    task = TASKS[name]
    low, high = np.array(task.threshold_range).reshape(2, len(task.costs))
    inner = np.array(task.behaviour_thresholds).reshape(-1, len(task.costs))
    assert ((low > 0.0) & (low < inner) & (inner < high) & (high < np.inf)).all()
    assert len(np.unique(inner, axis=0)) == len(inner) >= 3
    assert task.description


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.closed_form])
def test_the_constraint_of_an_analytic_task_is_active_over_the_whole_range(name):
    env = TASKS[name].make()
    assert isinstance(env, AnalyticEnv)
    low, high = TASKS[name].threshold_range
    assert env.min_cost < low
    assert high < env.max_cost
    assert env.optimal_return(low) < env.optimal_return(high) < env.optimal_return(env.max_cost)


def test_the_five_tasks_of_the_paper_have_its_thresholds():
    for name, length in {
        "BallCircle": 200,
        "CarCircle": 300,
        "DroneCircle": 300,
        "DroneRun": 200,
        "AntRun": 200,
    }.items():
        task = TASKS[name]
        assert task.behaviour_thresholds == (20.0, 40.0, 60.0)
        assert task.threshold_range == (10.0, 70.0)
        assert (task.episode_length, task.extra) == (length, "bullet")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("BallCircle", "BallCircle"),
        ("Ball-Circle", "BallCircle"),
        ("ball_circle", "BallCircle"),
        ("SafetyBallCircle-v0", "BallCircle"),
        ("drone-run", "DroneRun"),
        ("ccpo/StaticBudget-v0", "StaticBudget"),
        ("staticbudget-t20", "StaticBudget-T20"),
        ("StaticBudget-T33", "StaticBudget-T33"),
        ("Late-Budget-T33-C0.5", "LateBudget-T33-C0.5"),
        ("DriftBudget-C1e-2", "DriftBudget-C0.01"),
    ],
)
def test_spellings(spelling, name):
    assert find_task(spelling).name == name


def test_variants_have_their_parameters_and_thresholds_without_rounding_noise():
    task = find_task("LateBudget-T30-C0.1")
    assert task.behaviour_thresholds == (0.6, 1.2, 1.8)
    assert task.threshold_range == (0.3, 2.1)
    assert task.episode_length == 30
    assert task.make().cost_scale == 0.1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BalCircle", r"unknown task 'BalCircle'; did you mean 'BallCircle'\?"),
        ("xyz", r"unknown task 'xyz'; choose from: AntCircle, AntRun"),
        ("", r"unknown task ''; choose from: AntCircle"),
        ("BallCircle-T50", r"unknown task 'BallCircle-T50'; did you mean 'BallCircle'\?"),
        ("StaticBudget-T0", r"horizon=0 is not allowed"),
        ("StaticBudget-C0", r"cost_scale=0.0 is not allowed"),
    ],
)
def test_unknown_tasks_are_errors(name, message):
    with pytest.raises(ConfigError, match=message):
        find_task(name)


def test_list_tasks():
    assert list_tasks() == list(TASKS)


class Plain(gymnasium.Env):
    """Without spec, cost and length."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Box(-2.0, 2.0, (1,))
    closed = False

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {}

    def close(self):
        self.closed = True


def plain_cost(obs, action, reward, next_obs, info):
    return float(abs(action[0]))


def make_plain():
    return Plain()


def check_step(factory, *, episode_length, cost):
    env = factory()
    env.reset(seed=0)
    assert env.step(np.ones(env.spec.action_size, np.float32))[2] == cost
    assert factory.spec.episode_length == episode_length


def test_resolve_a_task_name():
    factory = resolve("Static-Budget")
    assert (factory.name, factory.task) == ("StaticBudget", TASKS["StaticBudget"])
    assert (factory.sendable, factory.single_instance) == (True, False)
    check_step(factory, episode_length=100, cost=1.0)
    assert resolve("StaticBudget", episode_length=30).spec.episode_length == 30
    check_step(resolve("StaticBudget", cost_fn=plain_cost, episode_length=5), episode_length=5, cost=1.0)


@pytest.mark.parametrize("env", ["StaticBudget", lambda: make("StaticBudget"), make("StaticBudget")])
def test_what_an_early_end_means_reaches_every_kind_of_environment(env):
    assert resolve(env).spec.early_end == "failure"
    assert resolve(env, early_end="success").spec.early_end == "success"


def test_resolve_a_gymnasium_id_with_a_cost_function():
    factory = resolve("Pendulum-v1", cost_fn=plain_cost)
    assert (factory.name, factory.task) == ("Pendulum-v1", None)
    assert (factory.sendable, factory.single_instance) == (True, False)
    check_step(factory, episode_length=200, cost=2.0)
    with pytest.raises(EnvError, match=r"Pendulum-v1: no cost at step 1 of episode 1"):
        check_step(resolve("Pendulum-v1"), episode_length=200, cost=2.0)


def test_resolve_a_gymnasium_id_with_its_module(tmp_path, monkeypatch):
    (tmp_path / "brings_plain.py").write_text(
        "import gymnasium\n"
        "entry_point = 'ccpo.envs.analytic:StaticBudget'\n"
        "gymnasium.register('brought/Plain-v3', entry_point=entry_point, kwargs={'horizon': 9})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    factory = resolve("brings_plain:brought/Plain-v3")
    assert factory.name == "brought-Plain-v3"
    check_step(factory, episode_length=9, cost=1.0)
    with pytest.raises(EnvError, match=r"cannot import 'no_such_module' for 'no_such_module:X-v0'"):
        resolve("no_such_module:X-v0")


def test_resolve_an_instance():
    env = Plain()
    factory = resolve(env, cost_fn=plain_cost, episode_length=4)
    assert (factory.name, factory.task) == ("Plain", None)
    assert (factory.sendable, factory.single_instance) == (False, True)
    check_step(factory, episode_length=4, cost=2.0)
    assert factory().env is env
    assert not env.closed
    made = gymnasium.make("Pendulum-v1")
    assert resolve(made).name == "Pendulum-v1"


@pytest.mark.parametrize(
    ("make", "name", "sendable"),
    [
        (make_plain, "make_plain", True),
        (Plain, "Plain", True),
        (lambda: Plain(), "lambda", False),
        (partial(StaticBudget, horizon=5), "StaticBudget", True),
        (partial(lambda n: Plain(), 1), "lambda", False),
    ],
)
def test_resolve_a_factory(make, name, sendable):
    factory = resolve(make, cost_fn=plain_cost, episode_length=4)
    assert (factory.name, factory.sendable, factory.single_instance) == (name, sendable, False)
    check_step(factory, episode_length=4, cost=float(factory.spec.action_high[0]))
    assert factory().env is not factory().env


def test_a_cost_function_that_cannot_be_pickled_keeps_the_factory_here():
    assert not resolve("StaticBudget", cost_fn=lambda *_: 0.0).sendable


def test_sendable_factories_survive_pickling_with_and_without_their_cached_spec():
    factory = resolve("LateBudget-T30")
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(factory))
        assert isinstance(copy, EnvFactory)
        assert copy.spec == factory.spec
        np.testing.assert_array_equal(flat(episode(copy(), seed=0, steps=5)), flat(episode(factory(), seed=0, steps=5)))


def test_nothing_is_built_before_it_is_needed():
    def explode():
        raise AssertionError

    factory = resolve(explode)
    assert factory.name == "explode"
    with pytest.raises(AssertionError):
        _ = factory.spec


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (
            "Pendulm-v1",
            ConfigError,
            r"'Pendulm-v1' is neither a task nor a registered Gymnasium id; did you mean 'Pendulum",
        ),
        ("BalCircle", ConfigError, r"neither a task nor .*; did you mean 'BallCircle'\?"),
        ("xyz", ConfigError, r"neither a task nor a registered Gymnasium id; choose from: AntCircle"),
        ("StaticBudget-T0", ConfigError, r"horizon=0 is not allowed"),
        (
            3,
            EnvError,
            r"3 is not an environment; give a task name, a Gymnasium id, an environment or a factory",
        ),
    ],
)
def test_what_cannot_be_resolved_is_an_error(env, error, message):
    with pytest.raises(error, match=message):
        resolve(env)


def test_vector_environments_are_errors():
    analytic.register()
    vector = gymnasium.vector.SyncVectorEnv([StaticBudget] * 2)
    with pytest.raises(EnvError, match="give a single one or a factory"):
        resolve(vector)
    vector.close()


def test_an_environment_that_cannot_be_made_is_an_error():
    gymnasium.register("ccpo-test/Broken-v0", entry_point="ccpo.envs.analytic:StaticBudget", kwargs={"horizon": 0})
    with pytest.raises(EnvError, match=r"gymnasium cannot make 'ccpo-test/Broken-v0': horizon=0 is not allowed"):
        resolve("ccpo-test/Broken-v0")()


def test_what_is_typed_at_a_prompt_stays_in_its_process():
    code = (
        "from ccpo.envs.registry import resolve\n"
        "from ccpo.envs.analytic import StaticBudget\n"
        "def make(): return StaticBudget()\n"
        "print(resolve(make).sendable, resolve(StaticBudget).sendable)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "True"]


def test_importing_the_registry_stays_light():
    code = "import sys, ccpo.envs.registry; print({'jax', 'pybullet', 'matplotlib'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "set()"


def test_an_id_is_found_again_by_the_name_of_its_run_folder(monkeypatch):
    spec = GymnasiumSpec("somewhere/Else-v3", entry_point="nowhere:Env")
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    name = resolve("somewhere/Else-v3").name
    assert name == "somewhere-Else-v3"
    assert resolve(name).make.args == (spec,)


def test_a_foreign_environment_has_no_preset_and_no_thresholds_of_ours(monkeypatch):
    """Its name is its own, although a task of ours is called AntRun and has a number of steps."""
    spec = GymnasiumSpec("AntRun-v3", entry_point="ccpo.envs.analytic:StaticBudget")
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    factory = resolve("AntRun-v3")
    assert (factory.name, factory.task) == ("AntRun-v3", None)
    assert task_settings(factory) == {}
    assert "steps" in preset_values(find_task("AntRun"), "ccpo", "tuned")
    assert "steps" not in preset_values(factory.task, "ccpo", "tuned")


def test_variants_have_the_preset_of_their_task():
    ours = preset_values(find_task("DroneRun"), "ccpo", "tuned")
    assert ours == preset_values(find_task("DroneRun-TwoCosts"), "ccpo", "tuned")
    assert ours["steps"] == 598_800


OWN = {"behaviour_thresholds": (1, 2), "threshold_range": (0.5, 2.5), "episode_length": 5}


@pytest.fixture
def own_tasks(monkeypatch):
    monkeypatch.setattr(registry, "TASKS", dict(TASKS))


@pytest.mark.usefixtures("own_tasks")
def test_a_task_of_ones_own_is_a_task_like_ours():
    scene = Scene("above", ((0.0, 1.0), (0.0, 1.0)))
    task = register_task(
        *("SlowRun", partial(StaticBudget, horizon=5)),
        **OWN,
        description="slowly",
        early_end="success",
        scene=scene,
        steps=7000,
        max_step_cost=0.25,
    )
    assert find_task("slow-run") is task
    assert "SlowRun" in list_tasks()
    factory = resolve("slow_run")
    assert factory.spec.early_end == "success"
    assert resolve("SlowRun", early_end="failure").spec.early_end == "failure"
    assert factory.max_step_cost == 0.25
    assert resolve("SlowRun", cost_fn=plain_cost).max_step_cost is None
    assert task_settings(factory) == {"behaviour_thresholds": (1.0, 2.0), "threshold_range": (0.5, 2.5)}
    assert task.scene() == scene
    assert factory.sendable
    check_step(factory, episode_length=5, cost=1.0)


@pytest.mark.usefixtures("own_tasks")
@pytest.mark.parametrize(
    ("algorithm", "preset", "steps"),
    [("ccpo", "tuned", 7000), ("ppo_lag", "tuned", 7000), ("ccpo", "faithful", 7000), ("ccpo", "demo", 120_000)],
)
def test_the_steps_of_a_task_stand_where_its_table_would(algorithm, preset, steps):
    task = register_task("SlowRun", StaticBudget, **OWN, steps=7000)
    assert preset_values(task, algorithm, preset)["steps"] == steps
    elsewhere = preset_values(None, algorithm, preset)
    assert {**elsewhere, "steps": steps} == preset_values(task, algorithm, preset)


@pytest.mark.usefixtures("own_tasks")
def test_a_task_may_be_registered_again_but_not_over_ours():
    register_task("SlowRun", StaticBudget, **OWN)
    assert register_task("SlowRun", StaticBudget, **{**OWN, "episode_length": 9}).episode_length == 9
    assert find_task("SlowRun").episode_length == 9
    for name, taken in (("BallCircle", "BallCircle"), ("ball-circle", "BallCircle"), ("slow-run", "SlowRun")):
        with pytest.raises(ConfigError, match=f"task name '{name}' is taken by '{taken}'; choose another one"):
            register_task(name, StaticBudget, **OWN)


@pytest.mark.usefixtures("own_tasks")
def test_a_task_with_several_costs_has_thresholds_for_each():
    task = register_task(
        *("Two", StaticBudget),
        behaviour_thresholds=[(1, 4), [2, 5]],
        threshold_range=((0, 3), (3, 9)),
        costs=["a", "b"],
        episode_length=5,
    )
    assert task.behaviour_thresholds == ((1.0, 4.0), (2.0, 5.0))
    assert resolve("Two").spec.costs == ("a", "b")
    assert resolve("Two", cost_fn=plain_cost).spec.costs == ("cost",)
    with pytest.raises(ConfigError, match=r"'Two' has 2 costs \(a, b\), and training takes one; give a cost_fn"):
        task_settings(resolve("Two"))
    with pytest.raises(ConfigError, match="'Two' has 2 costs"):
        Agent(random_policy("StaticBudget")).factory("Two")
    with pytest.raises(ConfigError, match="'Two' has 2 costs"):
        probe("Two")
    assert task_settings(resolve("Two", cost_fn=plain_cost)) == {}


@pytest.mark.usefixtures("own_tasks")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "my task"}, "task name 'my task' is not allowed; use letters, digits"),
        ({"episode_length": 0}, "episode_length=0 is not allowed; give a whole number"),
        ({"steps": 1.5}, r"steps=1.5 is not allowed; give a whole number"),
        ({"early_end": "maybe"}, "early_end='maybe' is not allowed; give failure or success"),
        ({"max_step_cost": 0.0}, r"max_step_cost=0.0 is not allowed; give a finite number > 0"),
        ({"make": 3}, "make=3 must be a function without arguments"),
        ({"costs": ()}, r"costs=\(\) must be different names"),
        ({"costs": ("a", "a")}, r"costs=\('a', 'a'\) must be different names"),
        (
            {"costs": ("a", "b")},
            "the threshold 1 is not allowed; each must be finite numbers ≥ 0, one for each of a, b",
        ),
        ({"behaviour_thresholds": (1, "x")}, "the threshold 'x' is not allowed; each must be a finite number"),
        ({"behaviour_thresholds": (1, -1)}, "the threshold -1 is not allowed"),
        ({"behaviour_thresholds": ()}, "needs behaviour_thresholds such as"),
        (
            {"behaviour_thresholds": (1, 3)},
            r"must lie within its range, and this must rise: \[1.0, 3.0\] in 0.5 to 2.5",
        ),
        ({"threshold_range": (2.5, 0.5)}, "this must rise"),
    ],
)
def test_a_task_that_makes_no_sense_is_an_error(changed, message):
    given = {"name": "Own", "make": StaticBudget, **OWN, **changed}
    with pytest.raises(ConfigError, match=message):
        register_task(given.pop("name"), given.pop("make"), **given)
    assert "Own" not in registry.TASKS


@pytest.fixture
def task_module(tmp_path, monkeypatch):
    """The name of a module that registers a task, not yet imported."""
    (tmp_path / "plugged_tasks.py").write_text(
        "import ccpo\nfrom ccpo.envs.analytic import StaticBudget\n"
        "ccpo.register_task('Plugged', StaticBudget, behaviour_thresholds=(20,), threshold_range=(10, 30),"
        " episode_length=100)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plugged_tasks", raising=False)
    registry._load_plugins.cache_clear()
    yield "plugged_tasks"
    registry._load_plugins.cache_clear()


@pytest.mark.usefixtures("own_tasks")
def test_a_task_is_found_in_the_module_that_registers_it(task_module):
    with pytest.raises(ConfigError, match="unknown task 'Plugged'"):
        find_task("Plugged")
    assert resolve(f"{task_module}:Plugged").name == "Plugged"
    assert find_task(f"{task_module}:plugged") is find_task("Plugged")


@pytest.mark.usefixtures("own_tasks")
def test_a_run_on_a_task_of_a_file_finds_it_again_from_another_folder(task_module, monkeypatch):
    monkeypatch.chdir(Path(sys.path[0]))
    factory = resolve(f"{task_module}.py:Plugged")
    assert factory.source == Source(f"{task_module}:Plugged", sys.path[0])
    monkeypatch.chdir("/")
    monkeypatch.delitem(registry.TASKS, "Plugged")
    monkeypatch.delitem(sys.modules, task_module)
    settings = {"task": "Plugged", "env": factory.source.as_dict()}
    assert find_factory(settings, "a run").task == find_task("Plugged")


def test_a_class_is_not_taken_for_a_task_of_ours_of_the_same_name(tmp_path, monkeypatch):
    (tmp_path / "own_ants.py").write_text(
        "from ccpo.envs.analytic import StaticBudget\nclass AntRun(StaticBudget): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    factory = resolve("own_ants:AntRun")
    assert (factory.name, factory.task) == ("AntRun", None)


@pytest.mark.usefixtures("own_tasks")
@pytest.mark.parametrize("named_in", ["variable", "package"])
def test_tasks_of_other_modules_are_found_and_listed(task_module, monkeypatch, named_in):
    if named_in == "variable":
        monkeypatch.setenv("CCPO_TASKS", f" {task_module},")
    else:
        plugin = EntryPoint("mine", task_module, "ccpo.tasks")
        monkeypatch.setattr(registry, "entry_points", lambda group: [plugin] if group == "ccpo.tasks" else [])
    assert find_task("plugged").name == "Plugged"
    assert "Plugged" in list_tasks()
    assert resolve("Plugged").spec.episode_length == 100


@pytest.mark.usefixtures("own_tasks")
def test_a_module_of_tasks_that_fails_is_an_error(task_module, monkeypatch):
    monkeypatch.setenv("CCPO_TASKS", f"{task_module},no_such_tasks")
    with pytest.raises(
        EnvError, match=r"tasks of 'no_such_tasks': cannot import .*No module .*; install or correct it, or remove"
    ):
        list_tasks()


def test_another_version_of_an_id_is_asked_of_another_gymnasium():
    with pytest.raises(ConfigError, match=r"'Pendulum-v7' is not in Gymnasium .*, which has Pendulum-v1; to update it"):
        resolve("Pendulum-v7")
