"""What a rollout tells once, and what follows a gradient update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import EPISODE, make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import model

PROBLEM = make_problem()


@pytest.mark.parametrize(("updates", "refreshed"), [(6, False), (7, True), (8, False)])
def test_targets_and_average_follow_and_the_old_policy_is_renewed_now_and_then(updates, refreshed):
    config = make_config(ccpo, target_rate=0.2, average_rate=0.1, refresh_updates=8)
    start = make_state(ccpo, config, PROBLEM)
    moved = jax.tree.map(lambda x: x + 1.0, (start.actor, start.critic))
    state = start._replace(actor=moved[0], critic=moved[1], updates=jnp.int32(updates))
    after = ccpo.track(config, state)
    assert after.updates == updates + 1

    for name, distance in (("critic_target", 0.2), ("actor_average", 0.1), ("actor_old", float(refreshed))):
        for new, old in zip(*(jax.tree.leaves(getattr(each, name)) for each in (after, start)), strict=True):
            np.testing.assert_allclose(new - old, distance, atol=1e-6)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_a_new_unit_of_reward_leaves_values_as_they_are(closed):
    """Q_r times its unit is the same before and after the unit has changed."""
    config, problem = make_config(ccpo), make_problem(closed=closed)
    before, experience = make_state(ccpo, config, problem)._replace(updates=jnp.int32(1)), make_experience(problem)
    after = ccpo.observe(config, problem, before, experience)
    size = np.sqrt(np.mean(np.asarray(experience.rollout.reward) ** 2))
    assert after.reward_rms == pytest.approx(1.0 + 0.1 * (size - 1.0), rel=1e-5)
    sums = [sum(float(after.discount) ** t for t in range(h)) for h in range(1, EPISODE + 1)]
    assert after.reward_unit == pytest.approx(float(after.reward_rms) * np.mean(sums), rel=1e-4)
    first = jax.tree.map(lambda x: x[0], experience.rollout)
    inputs = first.obs, first.action[:, None], model.budget_of(problem, first), first.time_to_go

    def values_of(state, critic):
        q, _ = model.q_values(config, problem, critic, *inputs)
        return state.reward_unit * q[:, 0]

    for name in ("critic", "critic_target"):
        new, old = (values_of(s, getattr(s, name)) for s in (after, before))
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-6)


def test_the_largest_cost_of_a_step_is_remembered():
    config, experience = make_config(ccpo), make_experience(PROBLEM)
    state = ccpo.observe(config, PROBLEM, make_state(ccpo, config, PROBLEM), experience)
    largest = np.asarray(experience.rollout.cost).max()
    np.testing.assert_allclose(state.cost_max, [largest])
    cheap = experience._replace(rollout=experience.rollout._replace(cost=0.1 * experience.rollout.cost))
    np.testing.assert_allclose(ccpo.observe(config, PROBLEM, state, cheap).cost_max, [largest])
