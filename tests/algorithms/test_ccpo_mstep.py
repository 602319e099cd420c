"""What the versatile M-step does when it has gone too far."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from experiences import make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import inference
from ccpo.errors import ConfigError

PROBLEM = make_problem()
both_loops = pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])


@both_loops
@pytest.mark.parametrize(("distance", "expected"), [(0.0, False), (1.0, True)])
def test_the_actor_goes_back_to_the_old_policy_after_a_burst_of_kl(distance, expected, closed):
    config, problem = make_config(ccpo), make_problem(closed=closed)
    state = make_state(ccpo, config, problem)
    away = jax.tree.map(lambda x: x + distance, state.actor_old)
    moments = jax.tree.map(lambda x: x + 1, state.actor_opt)
    state = state._replace(actor=away, actor_opt=moments)
    experience = make_experience(problem)
    after, metrics = inference.update_policy(config, problem, state, experience, jax.random.key(2))
    assert bool(metrics["mstep/bursts"]) == expected
    went_back = [
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (after.actor, state.actor_old)), strict=True)
    ]
    assert all(went_back) if expected else not any(went_back)
    momentum, sizes = (optax.tree_utils.tree_get(after.actor_opt, name) for name in ("mu", "nu"))
    assert all(not np.any(x) for x in jax.tree.leaves(momentum)) == expected
    assert all(np.all(x == 1.0) for x in jax.tree.leaves(sizes)) == expected


def test_the_step_after_a_burst_is_no_burst():
    config = make_config(
        ccpo, hidden=(128, 128), std_min=0.05, std_max=0.06, mstep_kl_mean_bound=0.0005, refresh_updates=100, decay=0.0
    )
    state = make_state(ccpo, config, PROBLEM)
    experience = make_experience(PROBLEM)
    step = jax.jit(lambda state: ccpo.step(config, PROBLEM, experience, state))
    for _ in range(20):
        state, _ = step(state)
    state = state._replace(actor=jax.tree.map(lambda x: x + 1.0, state.actor_old))
    bursts = []
    for _ in range(4):
        state, metrics = step(state)
        bursts.append(bool(metrics["mstep/bursts"]))
    assert bursts == [True, False, False, False]


def test_trust_regions_shrink_over_the_run():
    """Decayed by half at the end, bounds act as half the bounds do, on multipliers and in what KL is compared with."""
    halved = {"mstep_kl_mean_bound": 0.005, "mstep_kl_std_bound": 0.0005, "decay": 0.0}
    experience = make_experience(PROBLEM)._replace(progress=jnp.float32(1.0))
    after, over_bounds = [], []
    for settings in ({"mstep_kl_mean_bound": 0.01, "mstep_kl_std_bound": 0.001, "decay": 0.5}, halved):
        config = make_config(ccpo, **settings)
        state = make_state(ccpo, config, PROBLEM)
        state = state._replace(actor=jax.tree.map(lambda x: x + 0.01, state.actor_old))
        state, metrics = ccpo.step(config, PROBLEM, experience, state)
        after.append(state.kl_multipliers)
        over_bounds.append([metrics[f"mstep/kl_{part}_over_bound"] for part in ("mean", "std")])
    np.testing.assert_allclose(*over_bounds, rtol=1e-6)
    for decayed, smaller in zip(*after, strict=True):
        np.testing.assert_allclose(decayed, smaller, rtol=1e-6)
    assert np.abs(after[0].log_mean - np.log(10.0)).max() > 0


def test_not_all_trust_may_decay():
    with pytest.raises(ConfigError, match=r"decay=1.* too large"):
        make_config(ccpo, decay=1.0)
