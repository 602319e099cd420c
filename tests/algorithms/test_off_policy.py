"""SAC-Lag and DDPG-Lag: what they share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import make_config, make_experience, make_problem, make_rollout, make_state

from ccpo.algorithms import ddpg_lag, sac_lag
from ccpo.errors import ConfigError
from ccpo.maths import networks, offpolicy
from ccpo.runtime import PolicyNet
from ccpo.types import LaneStatistics, Transition

MODULES = {"sac_lag": sac_lag, "ddpg_lag": ddpg_lag}
both = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)


def start(module, thresholds=(2.0, 4.0, 6.0), **settings):
    config, problem = make_config(module, **settings), make_problem(thresholds)
    return config, problem, make_state(module, config, problem)


def windows(problem, nstep, seed=1):
    """Every window of n steps of a rollout: Transition of [n, B, …]."""
    rollout = make_rollout(problem, seed=seed)
    starts = range(len(rollout.reward) - nstep + 1)
    return Transition(*(np.concatenate([x[i : i + nstep] for i in starts], axis=1) for x in rollout))


def noise_of(module, key):
    """What the functions of a stochastic actor take besides the deterministic one's."""
    return (key,) if module is sac_lag else ()


@both
@pytest.mark.parametrize("horizon", ["endless", "finite"])
def test_targets_equal_a_plain_loop(module, horizon, key):
    config, problem, state = start(module, horizon=horizon, nstep=3, discount=0.9)
    state = state._replace(signals=state.signals._replace(reward_unit=jnp.float32(2.5)))
    window = windows(problem, 3)

    @jax.jit
    def targets(state, window):
        batch = offpolicy.make_batch(config, problem, state.signals, window)
        return module.critic_targets(state, batch, *noise_of(module, key))

    found = targets(state, window)

    rows = [_plain_target(window, b, config.discount, horizon) for b in range(window.reward.shape[1])]
    reward, cost, discount, obs, to_go, threshold = (np.array(x, np.float32) for x in zip(*rows, strict=True))
    condition = (threshold - 1.0) / 7.0
    obs = np.clip(obs / 1.001, -10.0, 10.0)
    seen = np.concatenate([obs, condition[:, None]], axis=1)
    bonus = 0.0
    if module is sac_lag:
        action, log_density = sac_lag.sample(key, *sac_lag.policy(state.actor, seen))
        bonus = -config.entropy_start * log_density
    else:
        action = jnp.tanh(networks.mlp(state.actor_target, seen))
    columns = (
        [obs, condition[:, None], action] if horizon == "endless" else [obs, to_go / 10, condition[:, None], action]
    )
    inputs = np.concatenate(columns, axis=1)

    def members(critic):
        count = len(critic["joint"][0]["bias"])
        each = [jax.tree.map(lambda x, m=m: x[m], critic["joint"]) for m in range(count)]
        return np.stack([networks.mlp(layers, inputs)[:, 0] for layers in each])

    span = 10.0 if horizon == "endless" else np.mean([(1 - 0.9**h) / 0.1 for h in range(1, 11)])
    q_reward, q_cost = (
        members(state.critics.target["reward"]).min(axis=0),
        members(state.critics.target["cost"]).max(axis=0),
    )
    expected_reward = reward / (2.5 * span) + discount * (q_reward + bonus)
    expected_cost = cost / (7.0 / 10 * span) + discount * q_cost
    np.testing.assert_allclose(found["reward"], expected_reward, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["cost"], expected_cost, rtol=1e-4, atol=1e-5)


def _plain_target(window, b, discount, horizon):
    """Sums, γⁿ (0 where nothing follows), and the state that follows, of one row."""
    reward = cost = 0.0
    for i in range(len(window.reward)):
        reward += discount**i * float(window.reward[i, b])
        cost += discount**i * float(window.cost[i, b, 0])
        if window.terminated[i, b] or window.truncated[i, b]:
            break
    ends = window.terminated[i, b] or (horizon == "finite" and window.truncated[i, b])
    following = 0.0 if ends else discount ** (i + 1)
    to_go = window.time_to_go[i, b] - 1
    return reward, cost, following, window.next_obs[i, b], [to_go], window.threshold[0, b, 0]


@both
def test_the_actor_climbs_reward_or_descends_cost_as_the_multiplier_says(module, key):
    """Both critics say Q = a₀: without a multiplier the action must rise, under a huge one it must fall."""
    config, problem, state = start(module, hidden=(2,))
    size = problem.spec.observation_size + 1
    first = jnp.zeros((size + problem.spec.action_size, 2)).at[size].set(jnp.array([1.0, -1.0]))
    layers = [
        {"weight": first, "bias": jnp.zeros(2)},
        {"weight": jnp.array([[1.0], [-1.0]]), "bias": jnp.zeros(1)},
    ]
    critic = jax.tree.map(lambda x: x[None], {"joint": layers})
    state = state._replace(critics=state.critics._replace(online={"reward": critic, "cost": critic}))
    if module is sac_lag:
        state = state._replace(log_entropy_weight=jnp.float32(-30.0))

    @jax.jit
    def slope(multiplier, window):
        batch = offpolicy.make_batch(config, problem, state.signals, window)
        batch = batch._replace(multiplier=jnp.full_like(batch.multiplier, multiplier))
        grads, _ = jax.grad(module.actor_loss, has_aux=True)(state.actor, state, batch, *noise_of(module, key))
        return grads[-1]["bias"][0]

    slopes = {multiplier: float(slope(multiplier, windows(problem, 2))) for multiplier in (0.0, 1.0, 1e6)}
    assert slopes[0.0] < -0.1
    assert slopes[1.0] == pytest.approx(0.0, abs=1e-6)
    # Divided by 1 + λ, a huge multiplier gives a step of the same size.
    assert slopes[1e6] == pytest.approx(-slopes[0.0], rel=1e-3)


def test_multipliers_move_independently():
    config, problem, state = start(sac_lag)
    count = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    cost = jnp.array([0.0, 5.0, 9.0, 1.0, 9.0, 0.0])[:, None]
    signals, metrics = offpolicy.update_multipliers(config, problem, state.signals, LaneStatistics(count, cost))
    # Only the second lane of each threshold acts as deployed: 5 over 2, 1 under 4, none finished under 6.
    excess = (5.0 - 2.0) / 7.0
    proportional, integral, _ = config.multiplier_gains
    np.testing.assert_allclose(signals.pid.multiplier, [(proportional + integral) * excess, 0.0, 0.0], rtol=1e-5)
    assert metrics["multiplier/cost_excess"] == pytest.approx((excess - 3.0 / 7.0) / 2, abs=1e-6)
    later, _ = offpolicy.update_multipliers(config, problem, signals, LaneStatistics(0 * count, cost))
    np.testing.assert_array_equal(later.pid.multiplier, signals.pid.multiplier)


def test_a_transition_gets_the_multiplier_of_its_threshold():
    multiplier = offpolicy.multiplier_of(make_problem(), jnp.array([1.0, 2.0, 3.0]), jnp.array([6.0, 2.0, 4.0, 6.0]))
    np.testing.assert_array_equal(multiplier, [3.0, 1.0, 2.0, 3.0])


def test_a_new_unit_leaves_rewards_as_they_are():
    """Q_r times its unit is the same before and after the unit has changed."""
    config, problem, state = start(ddpg_lag)
    experience = make_experience(problem)

    @jax.jit
    def observe(state, window):
        signals, critics, _ = offpolicy.observe(
            config, problem, state.signals, state.critics, experience, first=jnp.bool_(False)
        )
        batch = offpolicy.make_batch(config, problem, state.signals, window)
        inputs = batch.critic_inputs, batch.action, batch.condition
        return signals, *(offpolicy.q_ensemble(c.online["reward"], *inputs) for c in (state.critics, critics))

    signals, before, after = observe(state, windows(problem, 2))
    size = np.sqrt(np.mean(np.asarray(experience.rollout.reward) ** 2))
    assert signals.reward_unit == pytest.approx(1.0 + 0.1 * (size - 1.0), rel=1e-5)
    np.testing.assert_allclose(after * signals.reward_unit, before, rtol=1e-4, atol=1e-6)


@both
@pytest.mark.parametrize("thresholds", [(2.0, 4.0, 6.0), (4.0,)])
def test_exploring_lanes_sample_the_learners_policy(module, thresholds, key):
    """One threshold makes a plain actor, which sees none."""
    config, problem, state = start(module, thresholds)
    obs = make_rollout(problem).obs.reshape(-1, 3)
    seen = obs, np.linspace(1.0, 7.0, len(obs)).astype(np.float32)[:, None], np.ones(len(obs), np.float32)
    acting = module.acting(config, problem, state)
    assert acting.net.condition == ("threshold" if len(thresholds) > 1 else "none")
    noise = jax.random.normal(key, (len(obs), 2))
    sampled = jax.jit(partial(module.act, config, problem))(state, *seen, key)
    net = PolicyNet(acting.explore, acting.net)
    np.testing.assert_allclose(net.sample(*seen, np.asarray(noise)), sampled, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"multiplier_gains": (0.1, 0.2)}, "must be three numbers"), ({"discount": 1.0}, "has no endless sum")],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        sac_lag.Config(**settings)
