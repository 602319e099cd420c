"""What CCPO's critics learn from, against a plain loop over the steps of each window."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import EPISODE, make_config, make_experience, make_problem, make_state

from ccpo import replay as replays
from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import model, values
from ccpo.errors import ConfigError
from ccpo.maths.returns import Horizon

PROBLEM = make_problem()
BOOTSTRAP = {"reward": 0.7, "cost": 0.4}


def constant_critic(critic):
    """Plain critics that say the same everywhere."""

    def constant(layers, value):
        *hidden, last = layers
        return [*hidden, {"weight": jnp.zeros_like(last["weight"]), "bias": jnp.full_like(last["bias"], value)}]

    return {name: {"joint": constant(params["joint"], BOOTSTRAP[name])} for name, params in critic.items()}


@pytest.mark.parametrize("horizon", ["endless", "finite"])
@pytest.mark.parametrize("cost_discount", [None, 0.9])
@pytest.mark.parametrize("relabelled", [False, True])
@pytest.mark.parametrize("end_cost", [0.0, 3.0])
def test_targets_are_those_of_a_plain_loop(horizon, cost_discount, relabelled, end_cost):
    config = make_config(
        ccpo,
        versatile_critic=False,
        nstep=3,
        horizon=horizon,
        discount=0.8,
        cost_discount=cost_discount,
        end_cost=end_cost,
        batch=64,
    )
    state = make_state(ccpo, config, PROBLEM)
    state = state._replace(critic_target=constant_critic(state.critic_target), reward_unit=jnp.float32(2.0))
    replay = make_experience(PROBLEM).replay
    window = replays.sample_windows(replay, jax.random.key(1), batch=config.batch, nstep=config.nstep)
    threshold = window.threshold[0] + relabelled
    found = values.critic_targets(config, PROBLEM, state, window, threshold, key=jax.random.key(2))
    window = jax.tree.map(np.asarray, window)
    for name, gain, discount in (("reward", window.reward, 0.8), ("cost", window.cost, cost_discount or 0.8)):
        span = Horizon(horizon, EPISODE, discount).span
        unit = 2.0 * span if name == "reward" else 7.0 / EPISODE * span
        for i in range(config.batch):
            total, factor = 0.0, 1.0
            for step in range(1 if relabelled else 3):
                total += factor * gain[step, i] / unit
                factor *= discount
                ended = window.terminated[step, i] or (window.truncated[step, i] and horizon == "finite")
                if window.terminated[step, i] or window.truncated[step, i]:
                    break
            expected = total if ended else total + factor * BOOTSTRAP[name]
            if window.terminated[step, i] and name == "cost":
                skipped = int(window.time_to_go[step, i]) - 1 if horizon == "finite" else 1000
                expected += factor * end_cost * sum(discount**t for t in range(skipped)) / span
            assert found[name][i] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("deployed", [False, True])
def test_targets_follow_the_policy_as_it_explores_or_as_it_is_deployed(deployed):
    """Nothing is random in what is deployed; and with critics that see actions, noise changes what they say."""
    config = make_config(ccpo, nstep=1, batch=64, deployed_targets=deployed)
    state = make_state(ccpo, config, PROBLEM)
    window = replays.sample_windows(make_experience(PROBLEM).replay, jax.random.key(1), batch=64, nstep=1)
    first, second = (
        values.critic_targets(config, PROBLEM, state, window, window.threshold[0], key=jax.random.key(key))
        for key in (2, 3)
    )
    for name in first:
        assert np.array_equal(first[name], second[name]) == deployed
    if deployed:
        obs = state.normaliser(window.next_obs[0])
        mean, _ = model.policy(config, PROBLEM, state.actor, obs, window.threshold[0])
        q = model.q_values(config, PROBLEM, state.critic_target, obs, mean[:, None], window.threshold[0])
        alive = ~np.asarray(window.terminated[0])
        unit = 7.0 / EPISODE * Horizon("endless", EPISODE, config.discount).span
        expected = window.cost[0] / unit + config.discount * alive * q["cost"][:, 0]
        np.testing.assert_allclose(first["cost"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("relabelled", [False, True])
def test_cost_beyond_the_budget_is_paid_from_the_reward(relabelled):
    config = make_config(ccpo, versatile_critic=False, nstep=3, discount=0.8, batch=64, overspend_price=5.0)
    problem = replace(PROBLEM, spec=replace(PROBLEM.spec, budget_aware=True, budget_unit=5.0))
    state = make_state(ccpo, config, problem)
    state = state._replace(critic_target=constant_critic(state.critic_target), reward_unit=jnp.float32(2.0))
    window = replays.sample_windows(make_experience(problem).replay, jax.random.key(1), batch=64, nstep=3)
    spent = jax.random.uniform(jax.random.key(3), window.reward.shape)
    window = window._replace(obs=jnp.stack([window.obs[..., 0], spent, window.obs[..., 2]], axis=-1))
    threshold = window.threshold[0] - relabelled
    free = make_config(ccpo, versatile_critic=False, nstep=3, discount=0.8, batch=64)
    found, unpaid = (
        values.critic_targets(c, problem, state, window, threshold, key=jax.random.key(2)) for c in (config, free)
    )
    np.testing.assert_array_equal(found["cost"], unpaid["cost"])
    unit, charged = Horizon("endless", EPISODE, 0.8).span, 0
    window, threshold = jax.tree.map(np.asarray, (window, threshold))
    for i in range(64):
        paid = 0.0
        for step in range(1 if relabelled else 3):
            before = window.obs[step, i, -2] * 5.0
            paid += 0.8**step * 5.0 * (max(before + window.cost[step, i], threshold[i]) - max(before, threshold[i]))
            if window.terminated[step, i] or window.truncated[step, i]:
                break
        charged += paid > 0
        assert unpaid["reward"][i] - found["reward"][i] == pytest.approx(paid / unit, rel=1e-4, abs=1e-5)
    assert 10 < charged < 60


@pytest.mark.parametrize("name", ["discount", "cost_discount"])
def test_an_endless_horizon_needs_a_discount(name):
    with pytest.raises(ConfigError, match="a discount of 1 has no endless horizon; give a smaller one"):
        ccpo.Config(**{name: 1.0})
    ccpo.Config(horizon="finite", **{name: 1.0})


def test_a_price_of_states_needs_a_bound_that_knows_it():
    with pytest.raises(ConfigError, match="give state_price=0, or constraint=advantage"):
        ccpo.Config(constraint="value", state_price=5.0)


@pytest.mark.parametrize("shape", [{}, {"shared_body": True}, {"versatile_critic": False}])
def test_normalised_critics_come_nearer_to_their_targets(shape):
    """Under a short horizon targets hardly move, so that many updates on the same steps must lower the loss."""
    config = make_config(ccpo, normalised_critic=True, discount=0.1, critic_rate=3e-3, batch=64, **shape)
    state, experience = make_state(ccpo, config, PROBLEM), make_experience(PROBLEM)
    learn = jax.jit(partial(values.update_critics, config, PROBLEM))
    losses = []
    for key in jax.random.split(jax.random.key(0), 200):
        state, metrics = learn(state, experience, key)
        losses.append(metrics["critic/cost_loss"])
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    network = "joint" if "versatile_critic" in shape else "feature"
    hidden = state.critic["body"] if "shared_body" in shape else state.critic["cost"][network][:-1]
    for layer in hidden:
        assert (layer["scale"] != 1.0).any()
