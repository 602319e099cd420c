"""What lanes act with, and what they write down."""

import os
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ccpo.envs import workers
from ccpo.envs.registry import resolve
from ccpo.envs.workers import Collector, Lanes, Order, SharedRollouts
from ccpo.errors import CCPOError, EnvError, RunError
from ccpo.runtime import NetConfig
from ccpo.types import Acting, Problem
from envs.misbehaving import EPISODE, factory

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


def small_policy() -> Acting:
    """A linear policy for three observations and one action, open loop."""
    net = NetConfig("deterministic", (1.0,), (6.0,), "threshold")
    arrays = {"obs_mean": np.zeros(3), "obs_std": np.ones(3)}
    arrays |= {"layers.0.weight": np.zeros((4, 1)), "layers.0.bias": np.zeros(1)}
    return Acting(net, arrays, arrays)


def collect(fault: str, *, good: int, processes: int, step_seconds: float = 60.0) -> tuple[np.ndarray, list]:
    """Observations and episodes of the second rollout of an environment with a fault."""
    made = resolve(factory(fault, good))
    problem = Problem(resolve(factory()).spec, (2.0, 5.0), (1.0, 6.0), lanes_per_threshold=2, deployed_lanes=1)
    with Collector(made, problem, seed=0, steps=ROLLOUT, workers=processes, step_seconds=step_seconds) as collector:
        for iteration in range(2):
            order = Order(iteration, small_policy(), random=False, fresh=iteration == 0, cut=False, correlation=0.0)
            collector.start(order)
            rollout = collector.wait()
        return rollout.transition.obs.copy(), rollout.episodes  # the shared memory goes away


FAULTS = {
    "raise": r"step\(\) failed at step 4 of episode 2 with ZeroDivisionError: the road ends",
    "reset raises": r"reset\(\) failed at step 0 of episode 3 with OSError: no simulator",
    "nan": r"observation\[1\] is nan at step 4 of episode 2",
    "huge": r"observation\[1\] is 1e\+30 at step 4 of episode 2",
    "reward": r"reward is 1e\+39 at step 4 of episode 2",
    "shape": r"observation at step 4 of episode 2 has 1 numbers",
    "negative": r"cost -0.1 at step 4 of episode 2 is negative",
    "renamed": r"no cost at step 4 of episode 2",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_environment_is_one_error_that_says_where(fault):
    with pytest.raises(CCPOError, match=FAULTS[fault]):
        collect(fault, good=EPISODE + 3, processes=0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("hang", r"lane [02] hangs in step 4 of its rollout, or in the reset after it, for 1 s; .*step_seconds"),
        ("reset hangs", r"lane [02] hangs in step 10 of its rollout, or in the reset after it"),
        ("crash", r"a worker process ended unexpectedly \(exit code -11, SIGSEGV\)"),
        ("make", r"making it failed with OSError: no licence"),
        ("raise", FAULTS["raise"]),
    ],
)
def test_a_worker_that_hangs_or_dies_is_one_error_and_nothing_is_left_of_it(fault, message):
    before = set(Path("/dev/shm").iterdir())
    with pytest.raises(EnvError, match=message):
        collect(fault, good=EPISODE + 3, processes=2, step_seconds=1.0)
    assert set(Path("/dev/shm").iterdir()) <= before


def test_a_slow_environment_is_waited_for():
    slow = collect("slow", good=0, processes=2, step_seconds=0.5)
    quick = collect("", good=0, processes=0)
    np.testing.assert_array_equal(slow[0], quick[0])
    assert slow[1] == quick[1]


def test_no_room_for_shared_memory_is_an_error_and_not_the_end_of_a_process():
    """Linux promises more than there is, and ends whoever writes into what is missing."""
    problem = Problem(resolve(factory()).spec, (2.0,), (1.0, 6.0), lanes_per_threshold=2, deployed_lanes=1)
    room = os.statvfs("/dev/shm")
    steps = room.f_bavail * room.f_frsize // 20
    before = set(Path("/dev/shm").iterdir())
    with pytest.raises(RunError, match=r"of shared memory for the workers' rollouts .*; free some in /dev/shm"):
        SharedRollouts(problem, steps)
    assert set(Path("/dev/shm").iterdir()) <= before
