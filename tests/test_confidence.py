"""The bounds against scipy, closed forms, a slow version, and their own promise."""

import math

import numpy as np
import pytest
import scipy.stats

from ccpo.confidence import (
    LARGEST_STAKE,
    binomial_tail,
    episodes_for_bound,
    mean_upper_bound,
    probability_upper_bound,
)


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (3, 20), (19, 20), (20, 20), (0, 1), (60, 200), (199, 1000)])
@pytest.mark.parametrize("error", [0.05, 0.004])
def test_probability_bound_is_clopper_pearson(hits, trials, error):
    expected = scipy.stats.beta.ppf(1 - error, hits + 1, trials - hits) if hits < trials else 1.0
    assert probability_upper_bound(hits, trials, error=error) == pytest.approx(expected, abs=1e-7)


def test_binomial_tail_equals_scipy():
    for hits, trials, p in [(0, 1, 0.3), (190, 200, 0.95), (200, 200, 0.95), (5, 1000, 0.01)]:
        assert binomial_tail(hits, trials, p) == pytest.approx(scipy.stats.binom.cdf(hits, trials, p), rel=1e-8)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("count", [20, 200])
def test_mean_bound_of_equal_values_has_a_closed_form(value, count):
    """(1 + s (m − x)/(1 − m))ⁿ = 1/δ, solved for m."""
    gain = 0.05 ** (-1 / count) - 1
    expected = (gain + LARGEST_STAKE * value) / (gain + LARGEST_STAKE)
    assert mean_upper_bound(np.full(count, value), error=0.05, variance=0.0) == pytest.approx(expected, abs=1e-8)


def test_mean_bound_is_the_first_refuted_mean_of_a_fine_grid():
    values, error, variance = np.random.default_rng(0).beta(2, 8, 300), 0.02, 0.05

    def capital(mean):
        stake = min(math.sqrt(2 * math.log(1 / error) / (300 * variance)), LARGEST_STAKE / (1 - mean))
        return math.prod(1 + stake * (mean - x) for x in values)

    grid = np.arange(0.0, 1.0, 1e-3)
    capitals = np.array([capital(mean) for mean in grid])
    assert (np.diff(capitals) >= 0).all()  # the bisection rests on this
    first = grid[np.argmax(capitals >= 1 / error)]
    assert first - 1e-3 <= mean_upper_bound(values, error=error, variance=variance) <= first


def test_mean_bound_at_the_ends():
    assert mean_upper_bound(np.ones(50), error=0.05, variance=0.1) == 1.0
    assert mean_upper_bound(np.array([0.0, 1.0]), error=0.05, variance=0.25) == 1.0
    many = np.full(10, 0.3)
    assert mean_upper_bound(many, error=0.05, variance=0.01, episodes=1000) == pytest.approx(
        mean_upper_bound(np.full(1000, 0.3), error=0.05, variance=0.01)
    )


@pytest.mark.parametrize("variance", [0.0, 0.01, 0.25])
@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda rng, n: (rng.random(n) < 0.02).astype(float), 0.02),
        (lambda rng, n: rng.beta(0.5, 4.5, n), 0.1),
        (lambda rng, n: np.where(rng.random(n) < 0.01, 1.0, 0.1 * rng.random(n)), 0.01 + 0.99 * 0.05),
    ],
)
def test_mean_bound_is_missed_no_more_often_than_promised(draw, mean, variance):
    rng, error, repeats = np.random.default_rng(1), 0.1, 400
    missed = sum(mean_upper_bound(draw(rng, 100), error=error, variance=variance) < mean for _ in range(repeats))
    assert scipy.stats.binom.sf(missed - 1, repeats, error) > 0.001


def test_mean_bound_is_useful_at_a_few_hundred_episodes():
    """Range 200, standard deviation 5, δ a third of 5 %: about 200 log(1/δ)/n, below which no bound can be."""
    rng = np.random.default_rng(2)
    for episodes, margin in [(50, 19.0), (200, 5.0), (1000, 1.3)]:
        costs = rng.normal(30.0, 5.0, episodes)
        bound = 200 * mean_upper_bound(costs / 200, error=0.05 / 3, variance=(5 / 200) ** 2)
        assert 0.0 < bound - costs.mean() < margin


def test_the_forecast_of_episodes_is_the_least_of_its_kind_that_brings_the_bound_down():
    values = np.random.default_rng(0).uniform(0.0, 0.4, 200)
    options = {"error": 0.02, "variance": float(values.var())}
    mean = float(values.mean())
    count = episodes_for_bound(values, mean + 0.03, **options)
    assert count is not None
    assert mean_upper_bound(values, episodes=count, **options) <= mean + 0.03
    assert count == 100 or mean_upper_bound(values, episodes=count // 2, **options) > mean + 0.03
    more = episodes_for_bound(values, mean + 0.01, **options)
    assert more is not None
    assert more > count
    assert episodes_for_bound(values, mean - 0.01, **options) is None
