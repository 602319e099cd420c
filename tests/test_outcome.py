import numpy as np
import pytest

from ccpo.outcome import Reached, cautions, is_still_rising, reached
from ccpo.types import Episode

CALM = {"steps": 100_000, "random_steps": 5_000, "each": 1_000, "episode_length": 100}


def test_means_are_of_deployed_episodes_where_there_are_any():
    episodes = [
        Episode(20.0, 1.0, 30.0, 9, False),
        Episode(20.0, 3.0, 10.0, 9, True),
        Episode(20.0, 5.0, 20.0, 9, True),
        Episode(10.0, 2.0, 4.0, 9, False),
    ]
    assert reached(episodes) == [Reached(10.0, 4.0, 2.0, 1), Reached(20.0, 15.0, 4.0, 2)]
    assert [end.use for end in reached(episodes)] == [0.4, 0.75]
    assert reached([Episode(0.0, 1.0, 0.0, 9, True)])[0].use is None


def test_a_run_that_has_learned_is_not_doubted():
    assert cautions([Reached(20.0, 19.0, 5.0, 20)], [5.0] * 50, **CALM) == []


@pytest.mark.parametrize(
    ("ends", "rewards", "changed", "expected"),
    [
        ([Reached(20.0, 25.0, 5.0, 20)], [], {}, "cost above the threshold: 25 under 20"),
        ([Reached(20.0, 20.5, 5.0, 20)], [], {}, None),
        ([Reached(20.0, 10.0, 5.0, 20)], [], {}, "much of the budget is left: 10 under 20"),
        ([Reached(0.0, 0.0, 5.0, 20)], [], {}, None),
        ([], list(range(50)), {}, "reward was still rising"),
        ([], [], {"steps": 6_000}, "it has learned nothing"),
        ([], [], {"steps": 15_000}, "150 episodes, which is few"),
    ],
)
def test_what_speaks_against_it_is_said(ends, rewards, changed, expected):
    told = cautions(ends, rewards, **{**CALM, **changed})
    assert [expected in caution for caution in told] == ([True] if expected else [])


def test_rising_is_more_than_noise_and_a_plateau_is_none():
    rng = np.random.default_rng(0)
    steps = np.arange(100)
    assert is_still_rising(steps + rng.normal(0, 3, 100))
    assert not is_still_rising(100 * (1 - np.exp(-steps / 10)) + rng.normal(0, 3, 100))
    assert np.mean([is_still_rising(rng.normal(0, 3, 100)) for _ in range(200)]) < 0.1
    assert not is_still_rising([1.0, 2.0, 3.0])
    assert is_still_rising([float("nan"), *steps.tolist()])
