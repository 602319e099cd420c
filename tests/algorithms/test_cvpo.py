"""CVPO is CCPO with one threshold: what it leaves to CCPO, and what it refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo, cvpo
from ccpo.algorithms.ccpo import constraint, sampling, values
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
    plain_policy = values.policy

    def spy(config, problem, params, obs, threshold):
        seen.append(threshold)
        return plain_policy(config, problem, params, obs, threshold)

    monkeypatch.setattr(values, "policy", spy)
    key = jax.random.key(0)
    conditions = sampling.draw_conditions(config, cvpo.narrowed(problem), experience, key)
    np.testing.assert_array_equal(conditions, np.full(conditions.shape, 4.0))
    values.update_critics(config, cvpo.narrowed(problem), state, experience, key)
    assert seen
    for threshold in seen:
        np.testing.assert_array_equal(threshold, np.full(threshold.shape, 4.0))


def test_the_deployed_net_acts_at_its_own_threshold_whatever_it_is_asked_for(key):
    config, problem, state = start()
    acting = cvpo.acting(config, problem, state)
    assert not acting.net.conditioned
    obs = np.asarray(make_experience(problem).rollout.obs).reshape(-1, 3)
    own, other = (np.full(len(obs), t, np.float32) for t in (4.0, 6.5))
    noise = np.asarray(jax.random.normal(key, (len(obs), 2)))
    net = PolicyNet(acting.explore, acting.net)
    sampled = jax.jit(partial(ccpo.act, config, cvpo.narrowed(problem)))(state, obs, own, key)
    np.testing.assert_allclose(net.sample(obs, other, noise), sampled, atol=1e-5)
    np.testing.assert_allclose(cvpo.act(config, problem, state, obs, other, key), sampled, atol=1e-6)


def test_the_level_of_cost_is_kept_at_the_threshold_itself():
    """A network that saw its input for the threshold elsewhere than in training would predict anything."""
    _, problem, state = start()
    problem = cvpo.narrowed(problem)
    state = state._replace(cost_level=jnp.array([3.0, 100.0]))
    assert constraint.level_at(problem, state, jnp.array([4.0])) == pytest.approx(3.0)
    assert networks.normalise_threshold(4.0, problem.threshold_range) == 0.0


def test_several_thresholds_are_refused():
    with pytest.raises(ConfigError, match=r"2,4,6, but cvpo trains at one .*--behaviour-thresholds 4\), or train ccpo"):
        cvpo.init(cvpo.Config(), make_problem(), jax.random.key(0))


@pytest.mark.parametrize("switch", ["versatile_critic", "versatile_policy"])
def test_what_would_make_it_versatile_is_refused(switch):
    with pytest.raises(ConfigError, match=f"{switch}=true, but cvpo is plain; set it to false, or train ccpo"):
        cvpo.Config(**{switch: True})
