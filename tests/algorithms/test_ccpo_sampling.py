"""Which conditions CCPO learns for, and in which states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import make_config, make_experience, make_problem, make_state

from ccpo.algorithms import ccpo
from ccpo.algorithms.ccpo import sampling

CLOSED, OPEN = make_problem(closed=True), make_problem()
LOW, HIGH = OPEN.threshold_range
SPAN = sampling.BUDGET_SPAN[0] * HIGH, sampling.BUDGET_SPAN[1] * HIGH
MANY = {"states": 2000, "conditions": 4, "recent_episodes": 100.0}
STAGES = {"pretrain_share": 0.3, "relabel_share": 0.5}


def draw_pairs(problem, progress: float, **settings):
    """The pairs of an update, as NumPy arrays, and the rollout that they come from."""
    config = make_config(ccpo, **MANY | STAGES | settings)
    experience = make_experience(problem)._replace(progress=jnp.float32(progress))
    state = make_state(ccpo, config, problem)
    pairs = sampling.draw_pairs(config, problem, state, experience, jax.random.key(0))
    return jax.tree.map(np.asarray, (pairs, state.normaliser(experience.rollout.obs), experience.rollout))


def rows_of(obs, stored):
    """The step and lane that each observation was made at; stored ones all differ."""
    flat = stored.reshape(-1, stored.shape[-1])
    place = {tuple(row): i for i, row in enumerate(flat.tolist())}
    return np.unravel_index([place[tuple(row)] for row in obs.reshape(-1, obs.shape[-1]).tolist()], stored.shape[:2])


@pytest.mark.parametrize(("progress", "settings"), [(0.29, {}), (1.0, {"versatile_policy": False}), (0.3, {})])
def test_a_closed_loop_pairs_states_with_what_was_left_in_them_or_with_drawn_budgets(progress, settings):
    pairs, stored, rollout = draw_pairs(CLOSED, progress, **settings)
    assert pairs.obs.shape == (1, 2000, 3)
    step, lane = rows_of(pairs.obs, stored)
    np.testing.assert_array_equal(pairs.time_to_go[0], rollout.time_to_go[step, lane])
    own = (rollout.threshold - rollout.spent)[step, lane]
    drawn = (pairs.budget[0] != own)[:, 0]
    if progress < 0.3 or settings:
        assert not drawn.any()
        return
    assert drawn.mean() == pytest.approx(0.5, abs=0.05)
    budgets = pairs.budget[0, drawn, 0]
    assert SPAN[0] <= budgets.min() < SPAN[0] + 0.02 * HIGH
    assert SPAN[1] - 0.02 * HIGH < budgets.max() <= SPAN[1]
    shares = np.histogram(budgets, np.linspace(*SPAN, 6))[0] / len(budgets)
    np.testing.assert_allclose(shares, 0.2, atol=0.04)
    assert set(lane) == set(range(CLOSED.lanes))


@pytest.mark.parametrize("problem", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize(("progress", "share"), [(0.29, 0.0), (0.3, 0.5), (1.0, 0.5)])
def test_critics_learn_for_drawn_conditions_from_the_second_stage_on(problem, progress, share):
    config = make_config(ccpo, **STAGES)
    given = jnp.full((4000, 1), 3.21)
    budget, drawn = sampling.relabel(config, problem, given, jnp.float32(progress), jax.random.key(0))
    budget, drawn = np.asarray(budget)[:, 0], np.asarray(drawn)
    np.testing.assert_array_equal(budget[~drawn], np.float32(3.21))
    assert drawn.mean() == pytest.approx(share, abs=0.03)
    if share:
        low, high = SPAN if problem.closed else (LOW, HIGH)
        assert low <= budget[drawn].min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < budget[drawn].max() <= high
        on_ends = np.isin(budget[drawn], (LOW, HIGH)).mean()
        assert on_ends == pytest.approx(0.0 if problem.closed else 0.09, abs=0.02)


def test_without_cvi_critics_learn_for_the_conditions_of_the_data_only():
    config = make_config(ccpo, versatile_policy=False, relabel_share=1.0, pretrain_share=0.0)
    _, drawn = sampling.relabel(config, CLOSED, jnp.ones((500, 1)), jnp.float32(1.0), jax.random.key(0))
    assert not np.any(drawn)


@pytest.mark.parametrize(("progress", "settings"), [(0.29, {}), (1.0, {"versatile_policy": False})])
def test_an_open_loop_has_behaviour_thresholds_only_in_the_first_stage_and_without_cvi(progress, settings):
    pairs, *_ = draw_pairs(OPEN, progress, **settings)
    assert pairs.budget.shape == (4, 500, 1)
    assert set(pairs.budget.ravel()) <= set(OPEN.behaviour_thresholds)


def test_the_second_stage_of_an_open_loop_draws_its_share_from_the_whole_range():
    config = make_config(ccpo, conditions=4, states=4, **STAGES)
    experience = make_experience(OPEN)._replace(progress=jnp.float32(0.3))
    state = make_state(ccpo, config, OPEN)
    keys = jax.random.split(jax.random.key(0), 300)
    draw = jax.vmap(lambda key: sampling.draw_pairs(config, OPEN, state, experience, key).budget)
    thresholds = np.asarray(draw(keys)).ravel()
    assert (thresholds.min(), thresholds.max()) == (LOW, HIGH)
    unseen = ~np.isin(thresholds, OPEN.behaviour_thresholds)
    assert unseen.mean() == pytest.approx(0.5, abs=0.05)
    below, between, above = np.histogram(thresholds[unseen], [LOW, 3.0, 5.0, HIGH])[0] / unseen.sum()
    assert [below, between, above] == pytest.approx([0.35, 0.3, 0.35], abs=0.06)


def test_an_open_loop_pairs_a_threshold_with_states_of_the_nearest_behaviour_thresholds():
    """In the proportion that interpolates between them; beyond the ends, the outermost one's."""
    pairs, stored, rollout = draw_pairs(OPEN, 1.0, relabel_share=1.0, states=8000)
    for obs, budget, time_to_go in zip(*pairs, strict=True):
        step, lane = rows_of(obs, stored)
        np.testing.assert_array_equal(time_to_go, rollout.time_to_go[step, lane])
        used = rollout.threshold[step, lane, 0]
        nearest = np.interp(budget[0, 0], OPEN.behaviour_thresholds, OPEN.behaviour_thresholds)
        assert used.mean() == pytest.approx(nearest, abs=0.1)
        assert np.abs(used - nearest).max() < 2.0


@pytest.mark.parametrize("problem", [CLOSED, OPEN], ids=["closed", "open"])
def test_states_are_recent(problem):
    pairs, stored, _ = draw_pairs(problem, 1.0, recent_episodes=0.5)
    step, _ = rows_of(pairs.obs, stored)
    assert (step.min(), step.max()) == (len(stored) - 5, len(stored) - 1)
