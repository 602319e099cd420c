import jax
import numpy as np

from ccpo import replay
from ccpo.types import EnvSpec, Transition

SPEC = EnvSpec("x", 2, (-1.0,), (1.0,), 4)
LANES, STEPS, SLOTS = 3, 4, 12


def rollout(start):
    """Every number says where it stands: time in the hundreds, lane in the units."""
    time = np.arange(start, start + STEPS, dtype=np.float32)[:, None] * 100 + np.arange(LANES, dtype=np.float32)
    flags = np.zeros((STEPS, LANES), bool)
    wide = np.repeat(time[..., None], 2, axis=-1)
    one = time[..., None]
    return Transition(wide, one, time, one, wide + 100, flags, flags, threshold=one, spent=one, time_to_go=time)


def filled(count):
    ring = replay.init(SPEC, slots=SLOTS, lanes=LANES)
    for i in range(count):
        ring = replay.insert(ring, rollout(i * STEPS))
    return ring


def test_windows_are_consecutive_steps_of_one_lane_and_only_of_what_is_stored(key):
    for count, oldest in ((1, 0), (2, 0), (5, 8)):
        window = replay.sample_windows(filled(count), key, batch=500, nstep=3)
        time, lane = np.divmod(np.asarray(window.reward), 100)
        assert (np.diff(time, axis=0) == 1).all()
        assert (lane == lane[0]).all()
        assert time.min() == oldest
        assert time.max() == count * STEPS - 1
        np.testing.assert_array_equal(window.next_obs[..., 0], window.reward + 100)
        for part in (window.cost, window.threshold, window.spent):
            np.testing.assert_array_equal(part[..., 0], window.reward)


def test_recent_steps_are_of_the_lane_asked_for_and_new(key):
    lane = jax.numpy.array([[0, 1, 2]] * 200)
    steps = replay.recent_steps(filled(5), jax.random.uniform(key, lane.shape), lane, recent=5)
    time, found = np.divmod(np.asarray(steps.reward), 100)
    np.testing.assert_array_equal(found, lane)
    assert time.min() == 15
    assert time.max() == 19


def test_whole_numbers_are_even_and_never_beyond_the_last(key):
    drawn = np.asarray(replay.whole(jax.random.uniform(key, (30_000,)), 3))
    np.testing.assert_allclose(np.bincount(drawn), 10_000, rtol=0.05)
    assert int(replay.whole(np.float32(1.0) - np.float32(2.0**-24), 2**24 - 1)) == 2**24 - 2
