"""Theorem 1 and Proposition 1 as numbers: least-squares intervals of z(ε) between the behaviour thresholds.

With x = [1, ε, …, εᵖ] and X its rows at the N behaviour thresholds, everything rests on the leverage
h(ε) = xᵀ(XᵀX)⁻¹x. It does not change when ε is shifted or scaled, so thresholds may be given in any unit.
docs/theory.md says what follows and what does not. Axes: N behaviour thresholds, C conditions, F features.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np

from ccpo.errors import ConfigError
from ccpo.maths.returns import Horizon

Spacing = Literal["ends", "midpoints"]
SPACINGS: tuple[Spacing, ...] = ("ends", "midpoints")
RANGE_POINTS = 2001


def even_thresholds(count: int, low: float = 0.0, high: float = 1.0, *, spacing: Spacing = "ends") -> np.ndarray:
    """N thresholds that divide a range evenly: with both of its ends, or the midpoints of N equal parts.

    >>> even_thresholds(3, 10, 70), even_thresholds(3, 10, 70, spacing="midpoints")
    (array([10., 40., 70.]), array([20., 40., 60.]))
    """
    if spacing == "ends":
        return np.linspace(low, high, count)
    return low + (high - low) * (np.arange(count) + 0.5) / count


def design(thresholds: Sequence[float] | np.ndarray, degree: int) -> np.ndarray:
    """X with the rows [1, ε, …, εᵖ]: [N] → [N, p + 1]."""
    return np.vander(np.asarray(thresholds, np.float64), degree + 1, increasing=True)


def leverage(
    at: Sequence[float] | np.ndarray, behaviour_thresholds: Sequence[float] | np.ndarray, degree: int
) -> np.ndarray:
    """h(ε) = xᵀ(XᵀX)⁻¹x, the variance of the fitted mean at ε in units of σ²: [C], [N] → [C]."""
    seen = np.asarray(behaviour_thresholds, np.float64)
    distinct = len(np.unique(seen))
    if degree < 0 or distinct <= degree:
        raise ConfigError(
            f"degree {degree} with {distinct} different behaviour thresholds makes XᵀX singular; "
            f"a degree must be ≥ 0 and less than their number: give more thresholds or a smaller degree"
        )
    # XᵀX = RᵀR, and on [−1, 1] the powers of ε stay well conditioned.
    centre, scale = (seen.max() + seen.min()) / 2, np.ptp(seen) / 2 or 1.0
    _, triangle = np.linalg.qr(design((seen - centre) / scale, degree))
    x = design((np.asarray(at, np.float64) - centre) / scale, degree)
    return np.sum(np.linalg.solve(triangle.T, x.T) ** 2, axis=0)


def worst_leverage(
    behaviour_thresholds: Sequence[float] | np.ndarray, degree: int, *, threshold_range: tuple[float, float]
) -> float:
    """sup of h(ε) over the range, on a fine grid with both ends."""
    return float(leverage(np.linspace(*threshold_range, RANGE_POINTS), behaviour_thresholds, degree).max())


def error_bound(leverage: np.ndarray, noise: float, *, alpha: float, prediction: bool = False) -> np.ndarray:
    """z_{α/2} · noise · √h(ε): how far Q̂(s, a | ε) is from Q*, at confidence 1 − α (Theorem 1, Eq. (4)).

    This is the interval of the fitted *mean*. z* = poly + e is not that mean: its interval, the one of a
    `prediction`, has 1 + h(ε) under the root.
    """
    variance = leverage + 1.0 if prediction else leverage
    return normal_quantile(alpha) * noise * np.sqrt(variance)


def worst_noise(sigma: np.ndarray, feature_bound: float) -> float:
    """√(σ² M K_f²), with σ the largest σ_j: the theorem's bound on the standard deviation of ψᵀe; [F] → a number."""
    return float(np.max(sigma) * feature_bound * np.sqrt(len(sigma)))


def largest_noise(features: np.ndarray, sigma: np.ndarray) -> float:
    """max over (s, a) of √(Σ ψ_j² σ_j²): that standard deviation as it is, at most `worst_noise`; [..., F], [F]."""
    return float(np.sqrt(np.max(np.square(features) @ np.square(sigma))))


def normal_quantile(alpha: float) -> float:
    """z_{α/2}: a standard normal lies within ±z with probability 1 − α."""
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha={alpha} must lie between 0 and 1; 0.05 stands for 95 % confidence")
    return NormalDist().inv_cdf(1.0 - alpha / 2.0)


def printed_coverage(leverage: np.ndarray, alpha: float) -> np.ndarray:
    """How often the printed interval holds z*(ε) = poly + e: 2Φ(z_{α/2}·√(h/(1 + h))) − 1, below 1 − α."""
    reach = normal_quantile(alpha) * np.sqrt(leverage / (1.0 + leverage))
    return np.vectorize(lambda x: 2.0 * NormalDist().cdf(x) - 1.0, otypes=[float])(reach)


def rate(
    counts: Sequence[int], degree: int, *, spacing: Spacing = "ends", threshold_range: tuple[float, float] = (0.0, 1.0)
) -> float:
    """β: minus the slope of log sup √h over log N, for N evenly spaced thresholds.

    For large N, sup h → (p + 1)²/N (the reproducing kernel of degree p at an end of the range): β → ½ whatever
    the degree, with the factor B = p + 1.
    """
    worst = [
        worst_leverage(even_thresholds(n, *threshold_range, spacing=spacing), degree, threshold_range=threshold_range)
        for n in counts
    ]
    return float(-np.polyfit(np.log(counts), 0.5 * np.log(worst), 1)[0])


def polynomial_noise(values: np.ndarray, thresholds: np.ndarray, degree: int) -> np.ndarray:
    """σ_j: the standard deviation of what a polynomial of degree p leaves of each component of z (Assumption 2).

    values [C, F] at thresholds [C] → [F]; the residuals' sum of squares over C − p − 1.
    """
    count = len(thresholds)
    if count <= degree + 1:
        raise ConfigError(
            f"{count} thresholds leave no residual beside a polynomial of degree {degree}; give at least {degree + 2}"
        )
    basis, _ = np.linalg.qr(design((thresholds - np.mean(thresholds)) / (np.ptp(thresholds) or 1.0), degree))
    residual = values - basis @ (basis.T @ values)
    return np.sqrt(np.sum(residual**2, axis=0) / (count - degree - 1))


def episodic_cost(discounted: np.ndarray, horizon: Horizon) -> np.ndarray:
    """A discounted cost, as Proposition 1 has it, as the episodic cost that it stands for: V · T/span.

    The inverse of `Horizon.q_threshold`; exact for cost that is spread evenly over the episode.
    """
    return discounted * (horizon.length / horizon.span)
