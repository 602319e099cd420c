"""CVPO is CCPO with one threshold: what it leaves to CCPO, and what it refuses."""

from functools import partial

import jax
import numpy as np
import pytest
from experiences import make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo, cvpo
from ccpo.algorithms.ccpo import inference, values
from ccpo.algorithms.ccpo.constraints import open as constraint
from ccpo.errors import ConfigError
from ccpo.maths import networks
from ccpo.runtime import PolicyNet


def start(**settings):
    config, problem = make_config(cvpo, conditions=1, **settings), make_problem((4.0,))
    return config, problem, make_state(cvpo, config, problem)


def test_no_threshold_but_its_own_is_ever_learned_from(monkeypatch):
    """Late in the run too, every E-step and every critic target is at the one behaviour threshold."""
    config, problem, state = start()
    experience, seen = make_experience(problem), []

    def spy(function):
        def spied(config, problem, params, obs, budget, time_to_go):
            seen.append(budget)
            return function(config, problem, params, obs, budget, time_to_go)

        return spied

    for module in (values, inference):
        monkeypatch.setattr(module, "policy", spy(module.policy))
    for update in (values.update_critics, inference.update_policy):
        update(config, cvpo.narrowed(problem), state, experience, jax.random.key(0))
    assert len(seen) >= 3  # critic targets, the old policy, the new one
    for budget in seen:
        np.testing.assert_array_equal(budget, np.full(budget.shape, 4.0))


def test_the_deployed_net_acts_at_its_own_threshold_whatever_it_is_asked_for(key):
    config, problem, state = start()
    acting = cvpo.acting(config, problem, state)
    assert acting.net.condition == "none"
    obs = np.asarray(make_experience(problem).rollout.obs).reshape(-1, 3)
    own, other = (np.full((len(obs), 1), t, np.float32) for t in (4.0, 6.5))
    time_to_go = np.ones(len(obs), np.float32)
    noise = np.asarray(jax.random.normal(key, (len(obs), 2)))
    net = PolicyNet(acting.explore, acting.net)
    sampled = jax.jit(partial(ccpo.act, config, cvpo.narrowed(problem)))(state, obs, own, time_to_go, key)
    np.testing.assert_allclose(net.sample(obs, other, time_to_go, noise), sampled, atol=1e-5)
    np.testing.assert_allclose(cvpo.act(config, problem, state, obs, other, time_to_go, key), sampled, atol=1e-6)


def test_the_level_of_cost_is_kept_at_the_threshold_itself():
    """A network that saw its input for the threshold elsewhere than in training would predict anything."""
    config, problem, state = start()
    state, _ = cvpo.update(config, problem, state, make_experience(problem))
    moved = state.constraint.predicted - constraint.init(cvpo.narrowed(problem)).predicted
    assert abs(moved[0]) > 1e-3
    np.testing.assert_allclose(moved[1:], 0.0, atol=1e-5)
    assert networks.normalise_threshold(4.0, cvpo.narrowed(problem).threshold_range) == 0.0


def test_several_thresholds_are_refused():
    with pytest.raises(ConfigError, match=r"2,4,6, but cvpo trains at one .*--behaviour-thresholds 4\), or train ccpo"):
        cvpo.init(cvpo.Config(), make_problem(), jax.random.key(0))


@pytest.mark.parametrize("switch", ["versatile_critic", "versatile_policy"])
def test_what_would_make_it_versatile_is_refused(switch):
    with pytest.raises(ConfigError, match=f"{switch}=true, but cvpo is plain; set it to false, or train ccpo"):
        cvpo.Config(**{switch: True})
