"""What CCPO's networks see."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import EPISODE, make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import model
from ccpo.maths import networks

LOW, HIGH = make_problem().threshold_range
LOOPS = {"closed": True, "open": False}


def condition_of(closed: bool, budget: np.ndarray) -> np.ndarray:
    """[N, D]; small budgets are told apart by an exponential, far ones are not told apart at all."""
    if not closed:
        return (budget - LOW) / HIGH
    share = np.clip(budget / HIGH, -0.3, 1.2)
    return np.concatenate([share, np.exp(-8.0 * np.maximum(share, 0.0))], axis=-1)


def mlp(layers, x):
    return np.asarray(networks.mlp(layers, jnp.asarray(x, jnp.float32)))


@pytest.fixture(params=LOOPS)
def case(request):
    """A problem in each loop, with budgets from overspent to more than there is, and times."""
    problem = make_problem(closed=LOOPS[request.param])
    first = jax.tree.map(lambda x: np.asarray(x[0]), make_experience(problem).rollout)
    count = len(first.obs)
    budget = np.linspace(-0.5 * HIGH, 1.5 * HIGH, count).astype(np.float32)[:, None]
    time_to_go = np.linspace(1, EPISODE, count).astype(np.float32)
    return problem, first.obs, first.action, budget, time_to_go


def test_the_policy_sees_the_budget_and_the_time_or_the_threshold(case):
    problem, obs, _, budget, time_to_go = case
    config = make_config(ccpo, std_min=0.1, std_max=0.5)
    state = make_state(ccpo, config, problem)
    inputs = [obs, condition_of(problem.closed, budget)]
    inputs += [time_to_go[:, None] / EPISODE] if problem.closed else []
    out = mlp(state.actor, np.concatenate(inputs, axis=-1))
    mean, std = model.policy(config, problem, state.actor, obs, budget, time_to_go)
    np.testing.assert_allclose(mean, np.tanh(out[:, :2]), atol=1e-5)
    np.testing.assert_allclose(std, 0.1 + 0.4 / (1.0 + np.exp(-out[:, 2:])), atol=1e-5)


@pytest.mark.parametrize("horizon", ["finite", "endless"])
@pytest.mark.parametrize("versatile", [True, False])
def test_critics_see_actions_as_they_are_taken_and_the_time_if_their_horizon_ends(case, versatile, horizon):
    problem, obs, action, budget, time_to_go = case
    if problem.closed and horizon == "endless":
        return
    config = make_config(ccpo, versatile_critic=versatile, horizon=horizon)
    critic = make_state(ccpo, config, problem).critic
    action = 1.5 * action
    found = model.q_values(config, problem, critic, obs, action[:, None], budget, time_to_go)
    state = [obs, time_to_go[:, None] / EPISODE] if horizon == "finite" else [obs]
    condition, clipped = condition_of(problem.closed, budget), np.clip(action, -1.0, 1.0)
    for q, each in zip((found[0][:, 0], found[1][:, 0, 0]), (critic.reward, critic.cost[0]), strict=True):
        if versatile:
            psi = np.tanh(mlp(each["feature"], np.concatenate([*state, clipped], axis=-1)) / 10.0) * 10.0
            z = mlp(each["embedding"], condition) / np.sqrt(config.features)
            expected = np.sum(psi * z, axis=-1)
        else:
            expected = mlp(each["joint"], np.concatenate([*state, condition, clipped], axis=-1))[:, 0]
        np.testing.assert_allclose(q, expected, rtol=1e-4, atol=1e-5)


def test_steps_were_taken_under_the_threshold_less_what_was_spent(case):
    problem = case[0]
    rollout = make_experience(problem).rollout
    expected = rollout.threshold - rollout.spent * problem.closed
    np.testing.assert_array_equal(model.budget_of(problem, rollout), expected)
    assert (np.asarray(rollout.spent) > 0).any()


@pytest.mark.parametrize(("given", "length", "expected"), [(0.9, 10, 0.9), (None, 10, 0.6), (None, 3, 0.0)])
def test_unless_told_the_discount_looks_a_quarter_of_an_episode_ahead(given, length, expected):
    problem = make_problem()
    problem = replace(problem, spec=replace(problem.spec, episode_length=length))
    assert model.horizon(make_config(ccpo, discount=given), problem).discount == pytest.approx(expected)


@pytest.mark.parametrize(("progress", "ahead"), [(0.0, 1 / 5), (0.8, 1 / 3), (1.0, 1 / 3)])
def test_in_a_closed_loop_the_discount_looks_farther_as_the_run_goes_on(progress, ahead):
    problem = make_problem(closed=True)
    problem = replace(problem, spec=replace(problem.spec, episode_length=200))
    found = model.discount_at(make_config(ccpo), problem, jnp.float32(progress))
    assert 1.0 / (1.0 - float(found)) == pytest.approx(200 * ahead, rel=1e-3)
    assert model.discount_at(make_config(ccpo, discount=0.9), problem, jnp.float32(progress)) == pytest.approx(0.9)
