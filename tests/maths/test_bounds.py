"""Theorem 1 and Proposition 1 against closed forms, explicit inverses, numpy's least squares and simulation."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from ccpo.errors import ConfigError
from ccpo.maths import bounds
from ccpo.maths.returns import Horizon

SEEN = (20.0, 40.0, 60.0)
RANGE = (10.0, 70.0)
COUNTS = (5, 10, 20, 40, 80)


def slow_leverage(at, seen, degree):
    """The formula as it stands, with ε normalised as in the paper."""
    normalise = lambda e: (np.asarray(e, np.float64) - RANGE[0]) / RANGE[1]  # noqa: E731 one expression, used twice
    x, rows = (np.stack([normalise(e) ** k for k in range(degree + 1)], axis=-1) for e in (at, seen))
    return np.einsum("ci,ij,cj->c", x, np.linalg.inv(rows.T @ rows), x)


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_leverage_is_the_formula(degree):
    at = np.linspace(*RANGE, 13)
    np.testing.assert_allclose(bounds.leverage(at, SEEN, degree), slow_leverage(at, SEEN, degree), rtol=1e-8)


@settings(deadline=None)
@given(st.floats(-50, 50), st.floats(0.1, 100), st.integers(1, 4), st.integers(5, 12))
def test_leverage_knows_no_unit(shift, scale, degree, count):
    seen, at = bounds.even_thresholds(count), np.linspace(-0.2, 1.2, 7)
    moved = bounds.leverage(shift + scale * at, shift + scale * seen, degree)
    np.testing.assert_allclose(moved, bounds.leverage(at, seen, degree), rtol=1e-6)


@pytest.mark.parametrize(
    ("degree", "known"),
    [
        (1, (0.775, 0.588, 0.431, 0.310, 0.222)),
        (2, (0.941, 0.786, 0.609, 0.452, 0.327)),
        (3, (0.993, 0.908, 0.750, 0.578, 0.427)),
    ],
)
def test_worst_leverage_of_evenly_spaced_thresholds(degree, known):
    worst = [
        bounds.worst_leverage(bounds.even_thresholds(n), degree, threshold_range=(0.0, 1.0)) ** 0.5 for n in COUNTS
    ]
    np.testing.assert_allclose(worst, known, atol=5e-4)


def test_the_behaviour_thresholds_of_the_paper():
    """h at the ends of [10, 70] by hand: 1/3 + 30²/800 for a line; inside [20, 60] it is at most 1."""
    ends = np.sqrt(bounds.leverage(RANGE, SEEN, 1))
    np.testing.assert_allclose(ends, np.sqrt(1 / 3 + 900 / 800))
    np.testing.assert_allclose(np.sqrt(bounds.leverage(RANGE, SEEN, 2)), 2.28, atol=5e-3)
    for degree in (1, 2):
        assert bounds.leverage(np.linspace(20, 60, 81), SEEN, degree).max() <= 1 + 1e-12
    np.testing.assert_array_equal(bounds.even_thresholds(3, *RANGE, spacing="midpoints"), SEEN)


@pytest.mark.parametrize("spacing", ["ends", "midpoints"])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_the_rate_tends_to_one_half_and_the_factor_to_p_plus_one(spacing, degree):
    far = (10_000, 20_000, 40_000)
    assert bounds.rate(far, degree, spacing=spacing) == pytest.approx(0.5, abs=0.002)
    seen = bounds.even_thresholds(far[-1], spacing=spacing)
    worst = bounds.worst_leverage(seen, degree, threshold_range=(0.0, 1.0)) ** 0.5
    assert worst * far[-1] ** 0.5 == pytest.approx(degree + 1, rel=0.002)


def test_the_rate_is_the_slope_of_the_known_numbers():
    slope = scipy.stats.linregress(np.log(COUNTS), np.log([0.775, 0.588, 0.431, 0.310, 0.222])).slope
    assert bounds.rate(COUNTS, 1) == pytest.approx(-slope, abs=1e-3)


def test_a_higher_degree_has_the_larger_bound_and_its_slope_depends_on_the_spacing():
    for spacing, direction in (("ends", -1), ("midpoints", 1)):
        designs = [bounds.even_thresholds(n, spacing=spacing) for n in COUNTS]
        worst = [[bounds.worst_leverage(seen, p, threshold_range=(0.0, 1.0)) for seen in designs] for p in (1, 2, 3)]
        assert (np.diff(worst, axis=0) > 0).all()
        rates = [bounds.rate(COUNTS, degree, spacing=spacing) for degree in (1, 2, 3)]
        assert (direction * np.diff(rates) > 0).all()


@pytest.mark.parametrize(("seen", "degree"), [((40.0,), 1), ((20.0, 40.0), 2), ((20.0, 20.0, 40.0), 2), (SEEN, -1)])
def test_too_few_thresholds_are_refused(seen, degree):
    with pytest.raises(ConfigError, match="XᵀX singular; a degree must be ≥ 0 and less than their number"):
        bounds.leverage([30.0], seen, degree)


def test_intervals_are_those_of_ordinary_least_squares():
    """The textbook's intervals from numpy's least squares: the fitted mean's variance by error propagation."""
    seen, at, sigma, alpha = bounds.even_thresholds(9, *RANGE), 33.0, 0.3, 0.1
    fits = np.linalg.lstsq(bounds.design(seen, 2), np.eye(9), rcond=None)[0]  # the fit is linear in the observations
    by_observation = bounds.design([at], 2) @ fits
    deviation = sigma * np.sqrt(np.sum(by_observation**2))
    level = bounds.leverage([at], seen, 2)
    quantile = scipy.stats.norm.ppf(1 - alpha / 2)
    np.testing.assert_allclose(bounds.error_bound(level, sigma, alpha=alpha), quantile * deviation)
    predicted = bounds.error_bound(level, sigma, alpha=alpha, prediction=True)
    np.testing.assert_allclose(predicted, quantile * np.hypot(deviation, sigma))


def test_noise_of_q():
    """√(σ² M K_f²) is reached where every feature is at its bound and every component has the same noise."""
    rng = np.random.default_rng(4)
    sigma, psi = rng.uniform(0.1, 0.3, 16), rng.uniform(-2, 2, size=(50, 3, 16))
    slow = max(np.sqrt(sum((p * s) ** 2 for p, s in zip(row, sigma, strict=True))) for row in psi.reshape(-1, 16))
    assert bounds.largest_noise(psi, sigma) == pytest.approx(slow)
    assert bounds.worst_noise(sigma, 2.0) == pytest.approx(sigma.max() * 2.0 * 4.0)
    assert bounds.largest_noise(psi, sigma) < bounds.worst_noise(sigma, 2.0)
    level = np.full(16, 0.2)
    assert bounds.largest_noise(np.full((1, 16), -2.0), level) == pytest.approx(bounds.worst_noise(level, 2.0))


def test_the_printed_interval_covers_73_of_its_nominal_95_percent():
    rng = np.random.default_rng(1)
    at, runs, sigma = 50.0, 40_000, 0.7
    coefficients = rng.normal(size=(2, runs))
    observed = bounds.design(SEEN, 1) @ coefficients + sigma * rng.normal(size=(3, runs))
    fitted = bounds.design([at], 1) @ np.linalg.lstsq(bounds.design(SEEN, 1), observed, rcond=None)[0]
    truth = bounds.design([at], 1) @ coefficients + sigma * rng.normal(size=runs)
    level = bounds.leverage([at], SEEN, 1)
    covered = [
        np.mean(np.abs(fitted - truth) <= bounds.error_bound(level, sigma, alpha=0.05, prediction=prediction))
        for prediction in (False, True)
    ]
    assert covered == pytest.approx([0.73, 0.95], abs=0.01)
    np.testing.assert_allclose(bounds.printed_coverage(level, 0.05), covered[0], atol=0.01)


def test_a_prediction_covers_the_error_of_q():
    """Q̂ − Q* = ψᵀ(ẑ − z*) for features inside their bound stays within the bound at least 1 − α of the time."""
    rng = np.random.default_rng(2)
    features, sigma, runs, seen, at = 8, 0.2, 4000, bounds.even_thresholds(5, *RANGE), 65.0
    shape = (runs, features)
    coefficients = rng.normal(size=(3, *shape))
    spread = sigma * np.linspace(0.2, 1.0, features)  # σ is the largest of the components'
    observed = np.tensordot(bounds.design(seen, 2), coefficients, 1) + spread * rng.normal(size=(5, *shape))
    fit = np.linalg.lstsq(bounds.design(seen, 2), observed.reshape(5, -1), rcond=None)[0]
    fitted = (bounds.design([at], 2) @ fit).reshape(shape)
    truth = np.tensordot(bounds.design([at], 2), coefficients, 1)[0] + spread * rng.normal(size=shape)
    psi = rng.uniform(-3, 3, size=shape)
    level, noise = bounds.leverage([at], seen, 2), bounds.worst_noise(spread, 3.0)
    bound = bounds.error_bound(level, noise, alpha=0.05, prediction=True)
    assert np.mean(np.abs(np.sum(psi * (fitted - truth), axis=1)) <= bound) >= 0.95


def test_noise_of_a_polynomial_with_noise():
    rng = np.random.default_rng(3)
    thresholds, sigma = np.linspace(*RANGE, 400), np.array([0.0, 0.1, 2.0])
    exact = bounds.design((thresholds - 40) / 30, 2) @ rng.normal(size=(3, 3))
    noise = bounds.polynomial_noise(exact + sigma * rng.normal(size=(400, 3)), thresholds, 2)
    np.testing.assert_allclose(noise, sigma, rtol=0.1, atol=1e-12)
    values = rng.normal(size=(20, 4))
    for degree in (0, 1, 3):
        fit = np.polynomial.Polynomial.fit
        at = np.linspace(0, 1, 20)
        slow = [np.sum((v - fit(at, v, degree)(at)) ** 2) / (20 - degree - 1) for v in values.T]
        np.testing.assert_allclose(bounds.polynomial_noise(values, at, degree) ** 2, slow)


def test_noise_needs_more_thresholds_than_coefficients():
    with pytest.raises(ConfigError, match="3 thresholds leave no residual beside a polynomial of degree 2"):
        bounds.polynomial_noise(np.zeros((3, 1)), np.arange(3.0), 2)


@pytest.mark.parametrize("name", ["endless", "finite"])
def test_discounted_costs_return_to_episodic_ones(name):
    horizon = Horizon(name, 200, 0.97)
    np.testing.assert_allclose(bounds.episodic_cost(horizon.q_threshold(np.array([0.0, 40.0])), horizon), [0.0, 40.0])
    assert bounds.episodic_cost(np.array(1.0), Horizon("endless", 200, 0.97)) == pytest.approx(200 * 0.03)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1])
def test_a_confidence_level_is_a_probability(alpha):
    with pytest.raises(ConfigError, match="must lie between 0 and 1"):
        bounds.normal_quantile(alpha)
