"""A made-up evaluation: one algorithm that keeps its thresholds and one that does not."""

import numpy as np
import pytest

from ccpo.metrics import GRIDS, EpisodeTable


@pytest.fixture
def episodes():
    rng = np.random.default_rng(0)
    rows = [
        {
            "task": task,
            "algorithm": algorithm,
            "seed": seed,
            "threshold": threshold,
            "episode": episode,
            "reward": 600 + 2 * threshold + rng.normal(scale=10),
            "cost": share * threshold + rng.uniform(0, 0.5),
            "length": 200,
        }
        for task in ("BallCircle", "Toy")
        for algorithm, share in (("ccpo", 0.8), ("sac_lag", 1.5))
        for seed in range(3)
        for threshold in GRIDS["13"]
        for episode in range(2)
    ]
    return EpisodeTable.from_rows(rows)
