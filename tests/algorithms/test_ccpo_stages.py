"""The two stages, and what follows a gradient update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import sampling

PROBLEM = make_problem()


def drawn(progress: float, **settings) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds of many updates, and those of many relabelled targets whose data is of threshold 4."""
    config = make_config(ccpo, conditions=4, pretrain_share=0.3, unseen_share=0.5, relabel_share=0.5, **settings)
    experience = make_experience(PROBLEM)._replace(progress=jnp.float32(progress))
    keys = jax.random.split(jax.random.key(0), 200)
    conditions = jax.vmap(lambda key: sampling.draw_conditions(config, PROBLEM, experience, key))(keys)
    labels = sampling.relabel(config, PROBLEM, jnp.full(2000, 4.0), experience.progress, keys[0])
    return np.asarray(conditions).ravel(), np.asarray(labels)


@pytest.mark.parametrize(("progress", "settings"), [(0.29, {}), (1.0, {"versatile_policy": False})])
def test_behaviour_thresholds_only_in_the_first_stage_and_without_cvi(progress, settings):
    conditions, labels = drawn(progress, **settings)
    assert set(conditions) == set(PROBLEM.behaviour_thresholds)
    assert set(labels) == {4.0}


def test_the_second_stage_draws_its_shares_from_the_whole_range():
    for thresholds in drawn(0.3):
        low, high = PROBLEM.threshold_range
        assert (thresholds.min(), thresholds.max()) == (low, high)
        unseen = ~np.isin(thresholds, PROBLEM.behaviour_thresholds)
        assert unseen.mean() == pytest.approx(0.5, abs=0.05)
        below, between, above = np.histogram(thresholds[unseen], [low, 3.0, 5.0, high])[0] / unseen.sum()
        assert [below, between, above] == pytest.approx([0.35, 0.3, 0.35], abs=0.05)


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
