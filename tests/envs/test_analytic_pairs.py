"""The closed forms of two budgets against numerical optimisation over what the environments themselves do."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from ccpo.envs.analytic_pairs import PAIR_ENVS, HalvesBudget, NestedBudget
from ccpo.envs.registry import TASKS, resolve
from ccpo.errors import ThresholdError

HORIZON, SCALE = 5, 2.0
ALL = pytest.mark.parametrize("name", PAIR_ENVS)
SHARES = (0.0, 0.1, 0.3, 0.55, 0.8, 1.3)


def played(env, action, time):
    """(reward, costs) of an action at a time, from the environment."""
    env._time = time
    _, reward, _, _, info = env.step(np.array(action))
    return reward, [info["cost"][name] for name in env.costs]


def rolled(env, actions):
    """(return, costs) of an episode with these actions."""
    env.reset(seed=0)
    rewards, costs = zip(*(played(env, action, t) for t, action in enumerate(actions)), strict=True)
    return sum(rewards), np.sum(costs, axis=0)


@ALL
@pytest.mark.parametrize("shares", list(itertools.product(SHARES, SHARES)))
def test_no_randomised_policy_is_better(name, shares):
    """A linear program over the chances of all actions of a grid at every time: the state tells nothing."""
    env = PAIR_ENVS[name](HORIZON, SCALE)
    env.reset(seed=0)
    thresholds = np.array(shares) * env.max_cost
    grid = list(itertools.product(np.linspace(0.0, 1.0, 201 if env.action_size == 1 else 41), repeat=env.action_size))
    # Costs do not differ within a half, nor rewards at all.
    times = [0, HORIZON - 1]
    weights = [(HORIZON + 1) // 2, HORIZON // 2]
    rewards, costs = [], []
    for time, weight in zip(times, weights, strict=True):
        for action in grid:
            reward, cost = played(env, action, time)
            rewards.append(weight * reward)
            costs.append([weight * each for each in cost])
    sums = np.kron(np.eye(2), np.ones(len(grid)))
    found = linprog(-np.array(rewards), np.transpose(costs), thresholds, sums, np.ones(2), bounds=(0.0, 1.0))
    # From below, since the grid leaves out the best action: by at most an eighth of its spacing squared in a square.
    assert -found.fun <= env.optimal_return(thresholds) + 1e-6
    assert -found.fun == pytest.approx(env.optimal_return(thresholds), rel=0.02, abs=0.03)


@ALL
@pytest.mark.parametrize("shares", [(0.15, 0.3), (0.6, 0.2), (0.35, 0.9), (0.9, 0.05), (0.5, 0.5)])
def test_the_best_deterministic_schedule_is_the_closed_form(name, shares):
    """SLSQP over all actions of an episode, to far more digits."""
    env = PAIR_ENVS[name](HORIZON, SCALE)
    thresholds, size = np.array(shares) * env.max_cost, env.action_size

    def episode(flat):
        return rolled(env, np.clip(flat, 0.0, 1.0).reshape(HORIZON, size))

    within = {"type": "ineq", "fun": lambda flat: thresholds - episode(flat)[1]}
    start = np.full(HORIZON * size, 0.3)
    options = {"ftol": 1e-12, "maxiter": 500}
    found = minimize(
        lambda flat: -episode(flat)[0], start, bounds=[(0.0, 1.0)] * start.size, constraints=within, options=options
    )
    assert found.success
    assert -found.fun == pytest.approx(env.optimal_return(thresholds), rel=1e-5)


@ALL
@pytest.mark.parametrize(("horizon", "cost_scale"), [(20, 100.0), (7, 0.01), (1, 1.0)])
@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.1, 0.7), (0.7, 0.1), (0.5, 0.5), (2.0, 2.0)])
def test_the_optimal_policy_attains_the_closed_form_within_both_budgets(name, horizon, cost_scale, shares):
    env = PAIR_ENVS[name](horizon, cost_scale)
    thresholds = np.array(shares) * env.max_cost
    obs, _ = env.reset(seed=0)
    total, spent, ended = 0.0, np.zeros(2), False
    while not ended:
        obs, reward, terminated, ended, info = env.step(env.optimal_action(obs, thresholds))
        assert not terminated
        total, spent = total + reward, spent + [info["cost"][each] for each in env.costs]
    assert total == pytest.approx(env.optimal_return(thresholds), rel=1e-5)
    assert np.allclose(spent, env.optimal_cost(thresholds), rtol=1e-5)
    assert (spent <= thresholds * (1 + 1e-5)).all()


def test_where_both_bind_and_where_one_does():
    env = NestedBudget(10, 1.0)
    assert env.optimal_cost((8.0, 2.0)).tolist() == [8.0, 2.0]
    assert env.optimal_cost((8.0, 6.0)).tolist() == [8.0, 4.0]
    assert np.allclose(env.optimal_cost((18.0, 3.0)), [13.0, 3.0])
    assert HalvesBudget(9, 2.0).max_cost.tolist() == [10.0, 8.0]


@ALL
def test_more_budget_earns_more_in_either_direction_until_it_is_not_needed(name):
    env = PAIR_ENVS[name]()
    axes = [np.linspace(0.0, 1.0, 9) * cost for cost in env.max_cost]
    returns = np.array([[env.optimal_return((x, y)) for y in axes[1]] for x in axes[0]])
    assert (np.diff(returns, axis=0) >= -1e-9).all()
    assert (np.diff(returns, axis=1) >= -1e-9).all()
    assert env.optimal_return(10.0 * env.max_cost) == pytest.approx(returns[-1, -1])
    low, high = TASKS[name].threshold_range
    assert env.optimal_return(low) < env.optimal_return((high[0], low[1])) < env.optimal_return(high) < returns[-1, -1]


@ALL
def test_thresholds_have_names_or_an_order(name):
    env = PAIR_ENVS[name]()
    first, second = env.costs
    assert env.optimal_return({second: 10.0, first: 30.0}) == env.optimal_return((30.0, 10.0))
    for wrong in ({first: 1.0}, {first: 1.0, "other": 2.0}, (1.0,), (1.0, 2.0, 3.0)):
        with pytest.raises(ThresholdError, match=f"must be two numbers, for {first} and {second}"):
            env.optimal_return(wrong)
    with pytest.raises(ThresholdError, match="must be finite numbers ≥ 0"):
        env.optimal_return((1.0, -1.0))


@ALL
def test_the_adapter_has_both_costs(name):
    env = resolve(name)()
    env.reset(seed=0)
    cost = env.step(np.ones(env.spec.action_size, np.float32))[2]
    assert env.spec.costs == PAIR_ENVS[name].costs
    assert cost.tolist() == {"HalvesBudget": [1.0, 0.0], "NestedBudget": [2.0, 1.0]}[name]
