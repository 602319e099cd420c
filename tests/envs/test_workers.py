"""What lanes act with, and what they write down."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ccpo.envs import workers
from ccpo.envs.registry import resolve
from ccpo.envs.workers import Collector, Lanes, Order
from ccpo.types import Acting, Problem

LENGTH, ROLLOUT = 7, 10


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


class Counting(gymnasium.Env):
    """Observes (episode, step); costs a random amount; some episodes end after three or five steps."""

    observation_space = spaces.Box(0.0, 1e6, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,))
    max_episode_steps = LENGTH

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.taken = int(self.np_random.integers(1, 100_000)), 0
        self.length = int(self.np_random.choice([3, 5, LENGTH + 1]))
        return np.float32([self.episode, 0.0]), {}

    def step(self, action):
        self.taken += 1
        info = {"cost": float(self.np_random.uniform())}
        return np.float32([self.episode, self.taken]), 1.0, self.taken >= self.length, False, info


class Recorder:
    """In place of a policy: it acts at zero and writes down what it was shown."""

    shown: list[tuple[np.ndarray, ...]]

    def __init__(self, arrays, config):
        self.deployed = "deployed" in arrays

    def mean(self, obs, budget, to_go):
        assert self.deployed
        return self._record(obs, budget, to_go)

    def sample(self, obs, budget, to_go, noise):
        assert not self.deployed
        return self._record(obs, budget, to_go)

    def _record(self, obs, budget, to_go):
        self.shown += zip(obs.copy(), budget.copy(), np.array(to_go), strict=True)
        return np.zeros((len(obs), 1), np.float32)


@pytest.mark.parametrize("single", [False, True], ids=["an environment each", "one for all"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_lanes_write_down_what_was_spent_and_act_on_what_is_left(closed, single, monkeypatch):
    """Across early ends, time limits, and rollouts of which every second one is cut at its end."""
    monkeypatch.setattr(workers, "PolicyNet", Recorder)
    monkeypatch.setattr(Recorder, "shown", [], raising=False)
    factory = resolve(Counting() if single else Counting, episode_length=LENGTH)
    problem = Problem(factory.spec, (2.0, 5.0), (1.0, 6.0), lanes_per_threshold=2, deployed_lanes=1, closed=closed)
    acting = Acting(None, {}, {"deployed": np.zeros(1)})
    spent, to_go = np.zeros(problem.lanes), np.full(problem.lanes, LENGTH)
    ends = {"early": 0, "in time": 0, "cut": 0}
    acted, finished = {}, []
    with Collector(factory, problem, seed=0, steps=ROLLOUT, workers=0) as collector:
        for iteration in range(6):
            cut = iteration % 2 == 1
            collector.start(Order(iteration, acting, random=False, fresh=iteration % 2 == 0, cut=cut, correlation=0.0))
            rollout = collector.wait()
            steps = rollout.transition
            np.testing.assert_array_equal(steps.threshold[..., 0], np.tile([2.0, 2.0, 5.0, 5.0], (ROLLOUT, 1)))
            finished += rollout.episodes
            for t in range(ROLLOUT):
                np.testing.assert_allclose(steps.spent[t, :, 0], spent, atol=1e-5)
                np.testing.assert_array_equal(steps.time_to_go[t], to_go)
                for lane in range(problem.lanes):
                    episode, step = steps.obs[t, lane]
                    left = steps.threshold[t, lane, 0] - spent[lane] if closed else steps.threshold[t, lane, 0]
                    acted[episode, step] = left, to_go[lane] / LENGTH
                    spent[lane] += steps.cost[t, lane, 0]
                    to_go[lane] -= 1
                    last = t == ROLLOUT - 1 and (cut or single)
                    over = steps.terminated[t, lane] or to_go[lane] == 0
                    assert steps.truncated[t, lane] == (not steps.terminated[t, lane] and (over or last))
                    ends["early"] += bool(steps.terminated[t, lane])
                    ends["in time"] += to_go[lane] == 0
                    ends["cut"] += last and not over
                    if over or last:
                        spent[lane], to_go[lane] = 0.0, LENGTH
    assert min(ends.values()) > 3, ends
    assert len(Recorder.shown) == 6 * ROLLOUT * problem.lanes
    for (episode, step), budget, share in Recorder.shown:
        left, time_left = acted[episode, step]
        assert budget[0] == pytest.approx(left, abs=1e-5)
        assert share == pytest.approx(time_left, rel=1e-6)
    assert len(finished) == ends["early"] + ends["in time"]
    assert all(episode.length <= LENGTH for episode in finished)
