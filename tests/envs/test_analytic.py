"""The closed forms between two independent bounds.

From above: the Lagrangian dual of the CMDP, solved by dynamic programming on a grid, bounds the return of
every policy. From below: the optimal policy is rolled out in the environment and must attain the closed form.
"""

import gymnasium
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.sparse import csr_array

from ccpo.envs import analytic
from ccpo.envs.analytic import ANALYTIC_ENVS, spend_budget
from ccpo.errors import ConfigError, ThresholdError

HORIZON, SCALE = 6, 2.5
SHARES = [0.1, 0.4, 0.7, 0.95, 1.5]
NOISE, NOISE_WEIGHTS = np.polynomial.legendre.leggauss(5)
LINE = np.linspace(-1.0, 1.0, 201)[:, None]
PLANE = np.stack(np.meshgrid(np.linspace(-1, 1, 81), np.linspace(-1, 1, 21), indexing="ij"), -1).reshape(-1, 2)


def static(t, x, a, w):
    return x, a[..., 0], SCALE * a[..., 0] ** 2, True


def drift(t, x, a, w):
    v = np.clip(0.8 * x + 1.96 * a[..., 0], -1.0, 1.0) + 0.2 * w
    return v, v, SCALE * v**2, True


def late(t, x, a, w):
    phases = np.arange(1, HORIZON + 1) / HORIZON
    reward_weight = HORIZON * phases[t] ** 3 / sum(phases**3)
    return (
        x,
        reward_weight * a[..., 0],
        SCALE * HORIZON * phases[t] ** 4 / sum(phases**4) * a[..., 0] ** 2,
        True,
    )


def momentum(t, x, a, w):
    v = 0.9 * x + 0.1 * a[..., 0] + 0.02 * w
    return v, v, SCALE * a[..., 0] ** 2, True


def balance(t, x, a, w):
    y = 1.25 * x + a[..., 1] + 0.3 * a[..., 0] + 0.2 * w
    return y, a[..., 0], SCALE * a[..., 0] ** 2, abs(y) <= 1.0


# model, grid of states, start states (uniform), grid of actions
MODELS = {
    "StaticBudget": (static, np.zeros(1), np.zeros(1), LINE),
    "DriftBudget": (drift, np.linspace(-1.2, 1.2, 25), np.linspace(-1, 1, 11), LINE),
    "LateBudget": (late, np.zeros(1), np.zeros(1), LINE),
    "MomentumBudget": (momentum, np.linspace(-1.2, 1.2, 25), np.linspace(-1, 1, 11), LINE),
    "BalanceBudget": (balance, np.linspace(-1, 1, 41), np.linspace(-0.5, 0.5, 11), PLANE),
}


def tabulate(model, t, grid, actions):
    """E reward [X, A], E cost [X, A] and the interpolating transition matrix [X·A, X] of one step."""
    x, a, w = grid[:, None, None], actions[None, :, None, :], NOISE[None, None, :]
    shape = (len(grid), len(actions), len(NOISE))
    next_x, reward, cost, alive = (np.broadcast_to(np.asarray(v, float), shape) for v in model(t, x, a, w))
    mean = NOISE_WEIGHTS / 2.0
    position = np.interp(next_x, grid, np.arange(len(grid)))
    lower = np.minimum(position.astype(int), max(len(grid) - 2, 0))
    share = position - lower
    rows = np.broadcast_to(np.arange(shape[0] * shape[1]).reshape(shape[:2])[..., None], shape)
    entries = [(alive * mean * (1 - share), rows, lower)]
    if len(grid) > 1:
        entries.append((alive * mean * share, rows, lower + 1))
    values, rows, columns = (np.concatenate([part.ravel() for part in parts]) for parts in zip(*entries, strict=True))
    matrix = csr_array((values, (rows, columns)), shape=(shape[0] * shape[1], shape[0]))
    return reward @ mean, cost @ mean, matrix


def dual_bounds(name, thresholds):
    """min over λ ≥ 0 of max over policies of E[Σ reward] − λ(E[Σ cost] − ε), for each ε."""
    model, grid, starts, actions = MODELS[name]
    steps = [tabulate(model, t, grid, actions) for t in range(HORIZON)]

    def dual(multiplier, threshold):
        value = np.zeros(len(grid))
        for reward, cost, matrix in reversed(steps):
            value = (reward - multiplier * cost + (matrix @ value).reshape(reward.shape)).max(axis=1)
        return np.interp(starts, grid, value).mean() + multiplier * threshold

    options = {"xatol": 1e-4}
    return [minimize_scalar(dual, bounds=(0, 5), args=(e,), method="bounded", options=options).fun for e in thresholds]


@pytest.mark.parametrize("name", ANALYTIC_ENVS)
def test_the_models_of_these_tests_are_the_environments(name):
    env, (model, *_) = ANALYTIC_ENVS[name](HORIZON, SCALE), MODELS[name]
    shows_state = name in ("DriftBudget", "MomentumBudget", "BalanceBudget")
    rng = np.random.default_rng(0)
    for _ in range(20):
        obs, _ = env.reset()
        for t in range(HORIZON):
            action, noise = rng.uniform(-1.0, 1.0, env.action_size), rng.uniform(-1.0, 1.0)
            env._uniform = lambda noise=noise: noise
            expected = [float(v) for v in model(t, float(obs[-1]), action, noise)]
            obs, reward, terminated, truncated, info = env.step(action)
            assert (reward, info["cost"]) == pytest.approx(expected[1:3], abs=1e-5)
            assert not shows_state or obs[-1] == pytest.approx(expected[0], abs=1e-5)
            assert terminated == (not expected[3])
            assert truncated == (not terminated and t == HORIZON - 1)
            if terminated:
                break


@pytest.mark.parametrize(("name", "half_width"), [("DriftBudget", 1), ("MomentumBudget", 1), ("BalanceBudget", 0.5)])
def test_start_states_are_uniform(name, half_width):
    env = ANALYTIC_ENVS[name]()
    starts = np.array([env.reset(seed=seed)[0][-1] for seed in range(1000, 1300)]) / half_width
    quantiles = np.quantile(starts, [0.0, 0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(quantiles, [-1.0, -0.5, 0.0, 0.5, 1.0], atol=0.15)


@pytest.mark.parametrize("name", ANALYTIC_ENVS)
def test_no_policy_is_better_than_the_closed_form(name):
    env = ANALYTIC_ENVS[name](HORIZON, SCALE)
    thresholds = [share * env.max_cost for share in SHARES]
    closed_form = [env.optimal_return(threshold) for threshold in thresholds]
    np.testing.assert_allclose(closed_form, dual_bounds(name, thresholds), rtol=2e-3)


def roll(env, threshold, seed):
    """(return, cost) of an episode of the optimal policy."""
    obs, _ = env.reset(seed=seed)
    total_reward = total_cost = 0.0
    terminated = truncated = False
    while not (terminated or truncated):
        obs, reward, terminated, truncated, info = env.step(env.optimal_action(obs, threshold))
        total_reward, total_cost = total_reward + reward, total_cost + info["cost"]
    assert not terminated
    return total_reward, total_cost


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 1.5])
@pytest.mark.parametrize(("horizon", "cost_scale"), [(20, 100.0), (100, 0.01)])
@pytest.mark.parametrize("name", ANALYTIC_ENVS)
def test_the_optimal_policy_attains_the_closed_form(name, horizon, cost_scale, share):
    env = ANALYTIC_ENVS[name](horizon, cost_scale)
    threshold = share * env.max_cost
    is_noisy = name in ("DriftBudget", "MomentumBudget")
    episodes = np.array([roll(env, threshold, seed) for seed in range(50 if is_noisy else 2)])
    expected = np.array([env.optimal_return(threshold), env.optimal_cost(threshold)])
    standard_error = episodes.std(axis=0) / np.sqrt(len(episodes))
    assert (abs(episodes.mean(axis=0) - expected) <= 4.0 * standard_error + 1e-5 * expected).all()
    assert env.optimal_cost(threshold) == pytest.approx(min(threshold, env.max_cost))


@pytest.mark.parametrize("name", ANALYTIC_ENVS)
def test_returns_grow_with_the_threshold_and_saturate(name):
    env = ANALYTIC_ENVS[name](30, 0.5)
    thresholds = np.linspace(env.min_cost, env.max_cost, 50)
    returns = np.array([env.optimal_return(threshold) for threshold in thresholds])
    assert (np.diff(returns) > 0.0).all()
    assert (np.diff(returns, 2) < 1e-9).all()
    assert returns[0] == pytest.approx(0.0)
    assert env.optimal_return(10.0 * env.max_cost) == pytest.approx(returns[-1])


@pytest.mark.parametrize("name", ANALYTIC_ENVS)
def test_the_cost_scale_is_a_mere_unit(name):
    one, other = ANALYTIC_ENVS[name](40, 1.0), ANALYTIC_ENVS[name](40, 100.0)
    assert other.max_cost == pytest.approx(100.0 * one.max_cost)
    assert other.optimal_return(1000.0) == pytest.approx(one.optimal_return(10.0))


@pytest.mark.parametrize("seed", range(5))
def test_spend_budget_solves_its_problem(seed):
    rng = np.random.default_rng(seed)
    r, k = rng.uniform(0.1, 2.0, 8), rng.uniform(0.1, 2.0, 8)
    budget = rng.uniform(0.05, 0.95) * k.sum()
    numerical = minimize(
        lambda a: -r @ a,
        np.full(8, 0.1),
        jac=lambda a: -r,
        bounds=[(-1.0, 1.0)] * 8,
        constraints={"type": "ineq", "fun": lambda a: budget - k @ a**2},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    actions = spend_budget(r, k, budget)
    assert k @ actions**2 == pytest.approx(budget)
    np.testing.assert_allclose(actions, numerical.x, atol=1e-4)


def test_spend_budget_at_its_limits():
    r, k = np.array([1.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0])
    assert spend_budget(r, k, 0.0).tolist() == [0.0, 0.0, 0.0]
    assert spend_budget(r, k, 3.0).tolist() == [1.0, 1.0, 1.0]
    assert spend_budget(r, k, 1e9).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("threshold", [10.0, 40.0, 70.0])
def test_late_budget_spends_late(threshold):
    env = analytic.LateBudget()
    spending = env.cost_weights * env.optimal_schedule(threshold) ** 2
    assert spending[80:].sum() > 0.48 * threshold
    # A policy that spends the same share of every step's maximum overspends only at the end.
    assert (env.cost_weights * threshold / env.max_cost)[:50].sum() < 0.04 * threshold


def test_balance_budget_ends_early_when_it_falls_even_at_the_last_step():
    for horizon in (50, 5):
        env = analytic.BalanceBudget(horizon)
        env._uniform = lambda: 0.5
        env.reset()
        outcomes = [env.step(np.array([0.5, -0.2])) for _ in range(5)]
        assert [outcome[2:4] for outcome in outcomes] == [(False, False)] * 4 + [(True, False)]
        assert outcomes[-1][1] == 0.5
        assert outcomes[-1][4] == {"cost": 0.25}


def test_the_optimal_balance_stays_within_the_noise():
    env = analytic.BalanceBudget()
    obs, _ = env.reset(seed=0)
    for _ in range(100):
        obs = env.step(env.optimal_action(obs, 60.0))[0]
        assert abs(obs[0]) <= 0.2 + 1e-6


def test_falling_over_costs_more_return_than_it_saves_cost():
    env = analytic.BalanceBudget()
    # Full throttle for 20 steps, then an intended fall, is within the threshold of 20 and far from the best.
    assert env.optimal_return(20.0) > 2.0 * 20.0


def test_the_noise_alone_costs_and_a_smaller_threshold_is_refused():
    env = analytic.DriftBudget()
    assert env.min_cost == pytest.approx(100 * 0.2**2 / 3)
    with pytest.raises(ThresholdError, match=r"threshold 1.0 cannot be met in DriftBudget: .* at least 1.33333"):
        env.optimal_return(1.0)
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ThresholdError, match="cannot be met in StaticBudget"):
            analytic.StaticBudget().optimal_action(np.zeros(2), bad)


def test_actions_beyond_the_box_are_clipped_and_nan_stays_visible():
    env = analytic.StaticBudget()
    env.reset(seed=0)
    assert env.step(np.array([3.0]))[1] == 1.0
    assert env.step(np.array([-3.0]))[1] == -1.0
    assert np.isnan(env.step(np.array([np.nan]))[1])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"horizon": 0}, "horizon=0 is not allowed; give a whole number of steps ≥ 1"),
        ({"cost_scale": -1.0}, "cost_scale=-1.0 is not allowed; give a finite number > 0"),
    ],
)
def test_impossible_parameters_are_refused(parameters, message):
    with pytest.raises(ConfigError, match=message):
        analytic.StaticBudget(**parameters)


@pytest.mark.parametrize("name", ANALYTIC_ENVS)
def test_gymnasium_makes_and_checks_them(name):
    analytic.register()
    analytic.register()
    env = gymnasium.make(f"ccpo/{name}-v0", horizon=7)
    obs, _ = env.reset(seed=0)
    for step in range(1, 8):
        obs, _, terminated, truncated, _ = env.step(env.unwrapped.optimal_action(obs, 3.0))
        assert (terminated, truncated) == (False, step == 7)
