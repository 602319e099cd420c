"""What lanes act with."""

import numpy as np

from ccpo.envs.registry import resolve
from ccpo.envs.workers import Lanes, Order
from ccpo.types import Acting, Problem


def noise(correlation: float, *, steps: int) -> np.ndarray:
    factory = resolve("BalanceBudget-T20")
    problem = Problem(factory.spec, (4.0, 8.0), (2.0, 10.0), lanes_per_threshold=2, deployed_lanes=1)
    order = Order(0, Acting(None, {}, {}), random=False, fresh=True, cut=False, correlation=correlation)
    return Lanes(factory, problem, lanes=range(problem.lanes), seed=0)._noise(order, steps=steps)


def test_lasting_noise_has_the_law_of_plain_noise_at_each_step():
    lasting = noise(0.8, steps=20_000)
    flat = lasting.reshape(len(lasting), -1)
    np.testing.assert_allclose(flat.std(axis=0), 1.0, atol=0.05)
    for lag, expected in ((1, 0.8), (3, 0.8**3)):
        np.testing.assert_allclose((flat[lag:] * flat[:-lag]).mean(axis=0), expected, atol=0.08)
    between = np.corrcoef(flat.T)[np.triu_indices(flat.shape[1], k=1)]
    assert np.abs(between).max() < 0.1


def test_plain_noise_does_not_last():
    flat = noise(0.0, steps=20_000).reshape(20_000, -1)
    assert np.abs((flat[1:] * flat[:-1]).mean(axis=0)).max() < 0.03
