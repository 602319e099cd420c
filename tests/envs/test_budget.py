"""Budget-aware tasks: what they show, by which name they go, and where they refuse."""

import numpy as np
import pytest
from gymnasium import Env, spaces

import ccpo
from ccpo.envs.adapter import CostEnv
from ccpo.envs.budget import BudgetAware
from ccpo.envs.registry import find_task, resolve
from ccpo.errors import ConfigError, EnvError


class Meter(Env):
    """Costs what the action says."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.full(2, 0.5, np.float32), 1.0, False, False, {"cost": float(action[0])}


def test_observations_end_with_the_cost_so_far_and_the_time_gone():
    env = BudgetAware(Meter(), highest_threshold=4.0, episode_length=10)
    for _ in range(2):
        obs, _ = env.reset(seed=0)
        np.testing.assert_array_equal(obs, [0, 0, 0, 0])
        env.step(np.array([1.0]))
        obs, reward, *_ = env.step(np.array([0.5]))
        np.testing.assert_allclose(obs, [0.5, 0.5, 1.5 / 4.0, 0.2])
        assert obs.dtype == np.float32
        assert env.observation_space.contains(obs)
        assert reward == 1.0


def test_the_rest_of_the_task_is_unchanged():
    plain, aware = resolve("DriftBudget"), resolve("DriftBudget-BudgetAware")
    assert aware.name == "DriftBudget-BudgetAware"
    assert aware.spec.budget_aware
    assert not plain.spec.budget_aware
    assert aware.spec.observation_size == plain.spec.observation_size + 2
    envs, spent = (plain(), aware()), 0.0
    for env in envs:
        env.reset(seed=3)
    for step in range(1, 6):
        (obs, *rest), (seen, *same) = (env.step(np.float32([0.3])) for env in envs)
        spent += rest[1]
        assert rest == same
        np.testing.assert_array_equal(obs, seen[:-2])
        np.testing.assert_allclose(seen[-2:], [spent / 70.0, step / 100], rtol=1e-5)


@pytest.mark.parametrize("name", ["DriftBudget-BudgetAware", "drift-budget-budget-aware", "driftbudgetbudgetaware"])
def test_spellings(name):
    assert find_task(name).name == "DriftBudget-BudgetAware"


def test_variants_of_variants():
    task = find_task("StaticBudget-T20-C100-BudgetAware")
    assert (task.episode_length, task.threshold_range) == (20, (200.0, 1400.0))


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown task 'Nothing-BudgetAware'"):
        find_task("Nothing-BudgetAware")


def test_a_wrapper_of_the_users_is_found_below_others():
    env = BudgetAware(Meter(), highest_threshold=4.0, episode_length=10)
    spec = CostEnv(env, "Meter", episode_length=10).spec
    assert (spec.budget_aware, spec.budget_unit) == (True, 4.0)


def test_what_cannot_be_seen_is_refused():
    meter = Meter()
    meter.observation_space = spaces.Discrete(3)
    with pytest.raises(EnvError, match="observations in a Box, not Discrete"):
        BudgetAware(meter, highest_threshold=4.0, episode_length=10)


def test_a_step_without_cost_is_refused():
    meter = Meter()
    meter.step = lambda action: (np.zeros(2, np.float32), 0.0, False, False, {})
    env = BudgetAware(meter, highest_threshold=4.0, episode_length=10)
    env.reset()
    with pytest.raises(EnvError, match=r'needs info\["cost"\]'):
        env.step(np.zeros(1))


def test_a_price_needs_a_budget_aware_task(tmp_path):
    with pytest.raises(ConfigError, match="'StaticBudget' does not show; give a budget-aware task"):
        ccpo.train("StaticBudget", out=tmp_path, steps=1_000, overspend_price=2.0)
