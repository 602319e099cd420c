"""What CCPO's critics learn from, against a plain loop over the steps of each window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import EPISODE, make_config, make_experience, make_problem, make_state

from ccpo import replay as replays
from ccpo.algorithms import ccpo
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
def test_targets_are_those_of_a_plain_loop(horizon, cost_discount, relabelled):
    config = make_config(
        ccpo, versatile_critic=False, nstep=3, horizon=horizon, discount=0.8, cost_discount=cost_discount, batch=64
    )
    state = make_state(ccpo, config, PROBLEM)
    state = state._replace(critic_target=constant_critic(state.critic_target), reward_unit=jnp.float32(2.0))
    replay = make_experience(PROBLEM).replay
    window = replays.sample_windows(replay, jax.random.key(1), batch=config.batch, nstep=config.nstep)
    threshold = window.threshold[0] + relabelled
    found = ccpo.critic_targets(config, PROBLEM, state, window, threshold, key=jax.random.key(2))
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
            assert found[name][i] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["discount", "cost_discount"])
def test_an_endless_horizon_needs_a_discount(name):
    with pytest.raises(ConfigError, match="a discount of 1 has no endless horizon; give a smaller one"):
        ccpo.Config(**{name: 1.0})
    ccpo.Config(horizon="finite", **{name: 1.0})
