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
from ccpo.algorithms.ccpo import model, sampling, values
from ccpo.errors import ConfigError
from ccpo.types import Transition

BATCH, NSTEP, DISCOUNT = 96, 3, 0.8
HIGH = 7.0
REWARD_UNIT, COST_MAX = 2.0, 0.6


def make_windows(seed: int = 0) -> Transition:
    """Windows that end in every way: early, by the time limit, cut by a checkpoint, or not at all; [n, B, …]."""
    rng = np.random.default_rng(seed)
    rows = (NSTEP, BATCH)
    start = rng.integers(1, EPISODE + 1, BATCH)
    time_to_go = np.zeros(rows)
    terminated, truncated = rng.random(rows) < 0.1, rng.random(rows) < 0.1
    for i in range(BATCH):
        left = start[i]
        for t in range(NSTEP):
            time_to_go[t, i] = left
            truncated[t, i] = (truncated[t, i] or left == 1) and not terminated[t, i]
            left = EPISODE if terminated[t, i] or truncated[t, i] else left - 1
    window = Transition(
        obs=rng.normal(size=(*rows, 3)),
        action=rng.normal(size=(*rows, 2)),
        reward=rng.normal(size=rows),
        cost=rng.uniform(0.0, COST_MAX, (*rows, 1)),
        next_obs=rng.normal(size=(*rows, 3)),
        terminated=terminated,
        truncated=truncated,
        threshold=np.broadcast_to(rng.choice([2.0, 4.0, 6.0], (1, BATCH, 1)), (*rows, 1)),
        spent=rng.uniform(0.0, 6.0, (*rows, 1)),
        time_to_go=time_to_go,
    )
    return Transition(*(jnp.asarray(x if x.dtype == bool else x.astype(np.float32)) for x in window))


def greedy(obs, budget, time_to_go):
    return 0.3 * obs[..., :2] + 0.1 * budget + 0.02 * time_to_go


def q_reward(obs, action, budget, time_to_go):
    return obs[..., 0] + 0.5 * action[..., 0] - 0.2 * budget[..., 0] + 0.1 * time_to_go[..., 0]


def q_cost(obs, action, budget, time_to_go):
    """Sometimes below zero, sometimes above what can still be spent."""
    return 0.6 * obs[..., 1] + 0.2 * action[..., 1] - 0.05 * budget[..., 0] + 0.01 * time_to_go[..., 0]


@pytest.fixture
def known_networks(monkeypatch):
    """Formulas in place of networks; they refuse parameters other than those that targets must be made with."""

    def install(state):
        def policy(config, problem, params, obs, budget, time_to_go):
            assert params is state.actor_average
            mean = greedy(obs, budget, time_to_go[:, None])
            return mean, jnp.ones_like(mean)

        def q_values(config, problem, critic, obs, action, budget, time_to_go):
            assert critic is state.critic_target
            inputs = obs[:, None], action, budget[:, None], time_to_go[:, None, None]
            return q_reward(*inputs), q_cost(*inputs)[..., None]

        for function in (policy, q_values):
            monkeypatch.setattr(values, function.__name__, function)

    return install


def start(problem, **settings):
    config = make_config(ccpo, nstep=NSTEP, batch=BATCH, discount=DISCOUNT, **settings)
    state = make_state(ccpo, config, problem)
    units = {"reward_unit": jnp.float32(REWARD_UNIT), "cost_max": jnp.full(1, COST_MAX)}
    return config, state._replace(discount=jnp.float32(DISCOUNT), **units)


def following(window, i, *, drawn):
    """The steps of a row that are summed, and what comes after them: (steps, next obs, time to go, how it ended)."""
    steps = []
    for t in range(1 if drawn else NSTEP):
        steps.append(t)
        if window.terminated[t, i] or window.truncated[t, i]:
            break
    last = steps[-1]
    normalised = np.clip(window.next_obs[last, i] / np.float32(1.001), -10.0, 10.0)
    return steps, normalised, float(window.time_to_go[last, i]) - 1.0, bool(window.terminated[last, i])


@pytest.mark.parametrize("early_end", ["failure", "success"])
def test_closed_targets_are_those_of_a_plain_loop(early_end, known_networks):
    problem = make_problem(closed=True, early_end=early_end)
    config, state = start(problem, horizon="finite")
    known_networks(state)
    window = make_windows()
    own = window.threshold[0] - window.spent[0]
    drawn = jnp.arange(BATCH) % 2 == 0
    budget = jnp.where(drawn[:, None], jnp.linspace(-0.2, 1.02 * HIGH, BATCH)[:, None], own)
    found = values.critic_targets(config, problem, state, window, budget, drawn=drawn)

    window, budget, drawn = jax.tree.map(np.asarray, (window, budget, drawn))
    seen = {"early": 0, "charged": 0, "overspent": 0, "clipped": 0, "cut": 0, "over": 0}
    for i in range(BATCH):
        steps, obs, to_go, terminated = following(window, i, drawn=drawn[i])
        left, reward, overspent = float(budget[i, 0]), 0.0, 0.0
        for k in steps:
            reward += DISCOUNT**k * window.reward[k, i]
            cost = window.cost[k, i, 0]
            overspent += max(0.0, cost - max(0.0, left))
            left -= cost
        reward /= REWARD_UNIT
        overspent /= HIGH
        most = COST_MAX * to_go / HIGH
        after = np.array([left]), np.array([to_go])
        action = greedy(obs, *after)
        if terminated:
            charged = early_end == "failure" and left <= 0.0
            overspent += most if charged else 0.0
            seen["charged"] += charged
        elif to_go > 0:
            reward += DISCOUNT ** len(steps) * q_reward(obs, action, *after)
            q = q_cost(obs, action, *after)
            overspent += min(max(q, 0.0), most)
            seen["clipped"] += not 0.0 <= q <= most
            seen["cut"] += bool(window.truncated[steps[-1], i])
        assert found.reward[i] == pytest.approx(reward, rel=1e-4, abs=1e-5)
        assert found.cost[i, 0] == pytest.approx(overspent, rel=1e-4, abs=1e-5)
        seen["early"] += terminated
        seen["overspent"] += left < 0
        seen["over"] += not terminated and to_go == 0
    assert (seen.pop("charged") > 0) == (early_end == "failure")
    assert min(seen.values()) > 2, seen


@pytest.mark.parametrize("horizon", ["endless", "finite"])
@pytest.mark.parametrize("early_end", ["failure", "success"])
def test_open_targets_are_those_of_a_plain_loop(horizon, early_end, known_networks):
    problem = make_problem(early_end=early_end)
    config, state = start(problem, horizon=horizon)
    known_networks(state)
    window = make_windows()
    drawn = jnp.arange(BATCH) % 2 == 0
    budget = window.threshold[0] + 0.5 * drawn[:, None]
    found = values.critic_targets(config, problem, state, window, budget, drawn=drawn)

    window, budget, drawn = jax.tree.map(np.asarray, (window, budget, drawn))
    sums = [sum(DISCOUNT**t for t in range(h)) for h in range(1, EPISODE + 1)]
    span = 1.0 / (1.0 - DISCOUNT) if horizon == "endless" else np.mean(sums)
    unit = {"reward": REWARD_UNIT, "cost": HIGH / EPISODE * span}
    for i in range(BATCH):
        steps, obs, to_go, terminated = following(window, i, drawn=drawn[i])
        factor = DISCOUNT ** len(steps)
        reward = sum(DISCOUNT**k * window.reward[k, i] for k in steps) / unit["reward"]
        cost = sum(DISCOUNT**k * window.cost[k, i, 0] for k in steps) / unit["cost"]
        after = budget[i], np.array([to_go])
        action = greedy(obs, *after)
        if terminated and early_end == "failure":
            skipped = int(to_go) if horizon == "finite" else 1000
            cost += factor * sum(DISCOUNT**t for t in range(skipped)) * HIGH / EPISODE / unit["cost"]
        elif not terminated and (horizon == "endless" or to_go > 0):
            reward += factor * q_reward(obs, action, *after)
            cost += factor * q_cost(obs, action, *after)
        assert found.reward[i] == pytest.approx(reward, rel=1e-4, abs=1e-5)
        assert found.cost[i, 0] == pytest.approx(cost, rel=1e-4, abs=1e-5)


def test_an_endless_horizon_needs_a_discount_and_an_open_loop():
    with pytest.raises(ConfigError, match="a discount of 1 has no endless horizon; give a smaller one"):
        ccpo.Config(discount=1.0, horizon="endless")
    ccpo.Config(discount=1.0, horizon="finite")
    with pytest.raises(ConfigError, match="horizon=endless needs loop=open"):
        ccpo.init(ccpo.Config(horizon="endless", discount=0.9), make_problem(closed=True), jax.random.key(0))


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize("versatile", [True, False], ids=["versatile", "plain"])
def test_critics_explain_what_can_be_explained(versatile, closed):
    """Reward and cost are functions of state and action, and nothing follows them: most of their variance is learnt."""
    problem = make_problem(closed=closed)
    shape = {"versatile_critic": versatile, "hidden": (32, 32), "features": 16}
    config = make_config(ccpo, critic_rate=3e-3, batch=64, nstep=1, decay=0.0, relabel_share=1.0, **shape)
    rollout = make_experience(problem).rollout
    cost = 5.0 * jax.nn.sigmoid(4.0 * rollout.action[..., :1])
    reward, never = rollout.obs[..., 0] - rollout.action[..., 1], jnp.zeros_like(rollout.terminated)
    rollout = rollout._replace(reward=reward, cost=cost, spent=0.0 * cost, terminated=never)
    replay = replays.insert(replays.init(problem.spec, slots=len(cost), lanes=problem.lanes), rollout)
    experience = make_experience(problem)._replace(rollout=rollout, replay=replay)
    state = ccpo.observe(config, problem, make_state(ccpo, config, problem), experience)
    state = state._replace(critic_target=jax.tree.map(jnp.zeros_like, state.critic_target))
    learn = jax.jit(partial(values.update_critics, config, problem))
    losses = []
    for key in jax.random.split(jax.random.key(0), 300):
        state, metrics = learn(state, experience, key)
        losses.append([metrics[f"critic/{name}_loss"] for name in ("reward", "cost")])
    assert np.mean(losses[-20:], axis=0)[0] < 0.3 * np.var(rollout.reward / state.reward_unit)
    large = replace(config, batch=2000)
    window = replays.sample_windows(replay, jax.random.key(1), batch=2000, nstep=1)
    drawn = sampling.relabel(
        large, problem, model.budget_of(problem, window)[0], experience.progress, jax.random.key(2)
    )
    targets = values.critic_targets(large, problem, state, window, drawn[0], drawn=drawn[1])
    assert np.mean(losses[-20:], axis=0)[1] < 0.5 * np.var(targets.cost)
