"""Collecting beside learning: lanes of environments that act by themselves on a snapshot of the policy.

A lane is one environment under one behaviour threshold. A worker process holds several lanes, acts in NumPy, and writes
its transitions into shared memory: one message a rollout, none a step. Everything random in a rollout is a function of
(seed, lane, iteration), so timing has no say in it.
"""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ccpo.envs.adapter import CostEnv
from ccpo.envs.registry import EnvFactory
from ccpo.errors import CCPOError, EnvError, RunError
from ccpo.processes import STEP_SECONDS, Pulse, Worker, WorkerLostError, WorkerStuckError, at, close_all, replies
from ccpo.runtime import PolicyNet
from ccpo.types import Acting, Episode, LaneStatistics, Problem, Transition


@dataclass(frozen=True)
class Order:
    """What to collect: the iteration, the policy, whether to act at random, start afresh, cut episodes at the end."""

    iteration: int
    acting: Acting
    random: bool
    fresh: bool
    cut: bool
    correlation: float
    """Of exploration noise from one step to the next."""


class Rollout(NamedTuple):
    transition: Transition
    statistics: LaneStatistics
    episodes: list[Episode]


def episode_seed(*entropy: int, evaluation: bool = False) -> int:
    """A seed for `reset`; those of evaluation are odd, those of training even, so that the two never coincide."""
    word = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    return (word >> 2) * 2 + int(evaluation)


class Lanes:
    """Some lanes of a problem, stepped in this process."""

    def __init__(
        self, factory: EnvFactory, problem: Problem, *, lanes: range, seed: int, pulse: Pulse | None = None
    ) -> None:
        self.factory, self.problem, self.lanes, self.seed = factory, problem, lanes, seed
        self.pulse = [0] if pulse is None else pulse
        self.thresholds = problem.lane_thresholds[lanes.start : lanes.stop]
        self.deployed = problem.lane_deployed[lanes.start : lanes.stop]
        self.envs: list[CostEnv] = []

    def collect(self, order: Order, out: Transition) -> list[tuple[int, Episode]]:
        """Fill `out`, arrays of [T, lanes, …], and return the episodes that finished, with their lanes."""
        with np.errstate(over="ignore"):  # the adapter refuses what is too large for float32, with a better message
            return self._collect(order, out)

    def _collect(self, order: Order, out: Transition) -> list[tuple[int, Episode]]:
        if order.fresh:
            self._rebuild()
        self.resets = [0] * len(self.lanes)
        out.terminated[:] = out.truncated[:] = False
        noise = self._noise(order, steps=len(out.reward))
        nets = PolicyNet(order.acting.explore, order.acting.net), PolicyNet(order.acting.deploy, order.acting.net)
        finished: list[tuple[int, Episode]] = []
        for turn in self._turns():
            if order.fresh or self.factory.single_instance:
                for lane in turn:
                    self.pulse[0] = at(self.lanes[lane], 0)
                    self._reset(lane, order.iteration)
            together, lanes = slice(turn.start, turn.stop), np.array(turn)
            rows, greedy = lanes[~self.deployed[lanes]], lanes[self.deployed[lanes]]
            for t in range(len(out.reward)):
                out.obs[t, together] = self.obs[together]
                out.spent[t, together] = self.spent[together]
                out.time_to_go[t, together] = self.time_to_go[together]
                if order.random:
                    out.action[t, together] = noise[t, together]
                else:
                    self._act(out.action[t], rows, greedy, noise=noise[t], nets=nets)
                last = t == len(out.reward) - 1 and (order.cut or self.factory.single_instance)
                for lane in turn:
                    self.pulse[0] = at(self.lanes[lane], t + 1)
                    episode = self._step(lane, out, t, last=last, order=order)
                    if episode is not None:
                        finished.append((self.lanes[lane], episode))
        return finished

    def _turns(self) -> list[range]:
        """Lanes that are stepped together: all of them, or one after the other if they share one environment."""
        count = len(self.lanes)
        return [range(i, i + 1) for i in range(count)] if self.factory.single_instance else [range(count)]

    def _act(
        self,
        action: np.ndarray,
        rows: np.ndarray,
        greedy: np.ndarray,
        *,
        noise: np.ndarray,
        nets: tuple[PolicyNet, PolicyNet],
    ) -> None:
        """Write the actions of exploring lanes (`rows`) and of those that act as deployed (`greedy`)."""
        explore, deploy = nets
        budget = self.thresholds - self.spent if self.problem.closed else self.thresholds
        to_go = self.time_to_go / np.float32(self.problem.spec.episode_length)
        if rows.size:
            action[rows] = explore.sample(self.obs[rows], budget[rows], to_go[rows], noise[rows])
        if greedy.size:
            action[greedy] = deploy.mean(self.obs[greedy], budget[greedy], to_go[greedy])

    def close(self) -> None:
        if not self.factory.single_instance:  # the user's own environment stays open
            for env in self.envs:
                env.close()
        self.envs = []

    def _rebuild(self) -> None:
        self.close()
        env = self.factory() if self.factory.single_instance else None
        self.envs = [env or self.factory() for _ in self.lanes]
        count, size = len(self.lanes), self.problem.spec.observation_size
        self.obs = np.zeros((count, size), np.float32)
        self.reward, self.spent = [0.0] * count, np.zeros((count, len(self.problem.spec.costs)), np.float32)
        self.time_to_go = np.zeros(count, np.float32)

    def _noise(self, order: Order, *, steps: int) -> np.ndarray:
        """Gaussian noise, or uniform actions for a random rollout, from each lane's own stream: [T, lanes, A]."""
        shape = (steps, self.problem.spec.action_size)
        streams = [np.random.default_rng([self.seed, lane, order.iteration]) for lane in self.lanes]
        if order.random:
            return np.stack([rng.uniform(-1.0, 1.0, shape) for rng in streams], axis=1).astype(np.float32)
        noise = np.stack([rng.standard_normal(shape, np.float32) for rng in streams], axis=1)
        if order.correlation:
            kept, fresh = np.float32(order.correlation), np.float32(np.sqrt(1.0 - order.correlation**2))
            for t in range(1, steps):
                noise[t] = kept * noise[t - 1] + fresh * noise[t]
        return noise

    def _reset(self, lane: int, iteration: int) -> None:
        self.resets[lane] += 1
        seed = episode_seed(self.seed, self.lanes[lane], iteration, self.resets[lane])
        self.obs[lane] = self.envs[lane].reset(seed)
        self.time_to_go[lane], self.reward[lane], self.spent[lane] = self.problem.spec.episode_length, 0.0, 0.0

    def _step(self, lane: int, out: Transition, t: int, *, last: bool, order: Order) -> Episode | None:
        """Step one lane; an episode that ends is returned and the next begins. `last` cuts it: truncated, not ended."""
        obs, reward, cost, terminated, truncated = self.envs[lane].step(out.action[t, lane])
        self.time_to_go[lane] -= 1
        self.reward[lane] += reward
        self.spent[lane] += cost
        out.next_obs[t, lane] = obs
        out.reward[t, lane], out.cost[t, lane] = reward, cost
        if terminated or truncated or last:
            out.terminated[t, lane], out.truncated[t, lane] = terminated, not terminated
        if not (terminated or truncated):
            self.obs[lane] = obs
            return None
        length = self.problem.spec.episode_length - int(self.time_to_go[lane])
        totals = (self.reward[lane], float(self.spent[lane, 0]), length)
        self._reset(lane, order.iteration)
        deployed = bool(self.deployed[lane]) and not order.random
        return Episode(float(self.thresholds[lane, 0]), *totals, deterministic=deployed)


def _shapes(problem: Problem, steps: int) -> dict[str, tuple[tuple[int, ...], type]]:
    rows, spec = (steps, problem.lanes), problem.spec
    wide = {"obs": spec.observation_size, "next_obs": spec.observation_size, "action": spec.action_size}
    wide |= dict.fromkeys(("cost", "threshold", "spent"), len(spec.costs))
    flags = {"terminated", "truncated"}
    return {
        name: ((*rows, wide[name]) if name in wide else rows, np.bool_ if name in flags else np.float32)
        for name in Transition._fields
    }


class SharedRollouts:
    """Two rollouts in shared memory, written and read in turn: the learner never copies what a worker writes."""

    def __init__(self, problem: Problem, steps: int, *, names: Sequence[str] | None = None) -> None:
        shapes = _shapes(problem, steps)
        sizes = {k: int(np.prod(s)) * np.dtype(d).itemsize for k, (s, d) in shapes.items()}
        padded = {k: -(-size // 64) * 64 for k, size in sizes.items()}
        self._owner = names is None
        self._blocks: list[shared_memory.SharedMemory] = []
        self.rollouts = []
        try:
            for index in range(2):
                self._blocks.append(_new_block(sum(padded.values())) if names is None else _block(names[index]))
        except BaseException:
            self.close()
            raise
        for block in self._blocks:
            offsets = np.cumsum([0, *padded.values()])
            arrays = {
                k: np.ndarray(shape, dtype, block.buf, int(offset))
                for (k, (shape, dtype)), offset in zip(shapes.items(), offsets, strict=False)
            }
            self.rollouts.append(Transition(**arrays))

    @property
    def names(self) -> tuple[str, str]:
        return self._blocks[0].name, self._blocks[1].name

    def close(self) -> None:
        self.rollouts = []
        for block in self._blocks:
            block.close()
            if self._owner:
                block.unlink()


def _block(name: str) -> shared_memory.SharedMemory:
    return shared_memory.SharedMemory(name=name)


def _new_block(size: int) -> shared_memory.SharedMemory:
    """Shared memory that is really there: without room, Linux would kill whoever writes into it."""
    try:
        block = shared_memory.SharedMemory(create=True, size=size)
    except OSError as error:
        raise _no_room(size, error) from None
    file = Path("/dev/shm", block.name)
    if file.exists():
        try:
            with file.open("r+b") as held:
                os.posix_fallocate(held.fileno(), 0, size)
        except OSError as error:
            block.close()
            block.unlink()
            raise _no_room(size, error) from None
    return block


def _no_room(size: int, error: OSError) -> RunError:
    return RunError(
        f"no {size / 1e6:,.1f} MB of shared memory for the workers' rollouts ({error.strerror}); "
        "free some in /dev/shm, give a smaller rollout_length, or workers=0"
    )


def _lanes_of(rollout: Transition, lanes: range) -> Transition:
    return Transition(*(x[:, lanes.start : lanes.stop] for x in rollout))


def _serve(
    connection: Connection,
    pulse: Pulse,
    factory: EnvFactory,
    problem: Problem,
    lanes: range,
    seed: int,
    steps: int,
    names: Sequence[str],
) -> None:
    """A worker's life: collect what is ordered until the connection ends, which it does when the parent dies."""
    memory = SharedRollouts(problem, steps, names=names)
    group = Lanes(factory, problem, lanes=lanes, seed=seed, pulse=pulse)
    try:
        while True:
            order = connection.recv()
            try:
                reply = group.collect(order, _lanes_of(memory.rollouts[order.iteration % 2], lanes))
            except CCPOError as error:
                reply = error
            except Exception as error:  # such as of an environment's constructor
                reply = EnvError(f"{factory.name}: making it failed with {type(error).__name__}: {error}; correct it")
            pulse[0] = -1
            connection.send(reply)
    finally:
        group.close()
        memory.close()


class Collector:
    """All lanes of a problem, in worker processes or, with `workers=0`, in this one."""

    def __init__(
        self,
        factory: EnvFactory,
        problem: Problem,
        *,
        seed: int,
        steps: int,
        workers: int,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        self._problem, self._step_seconds = problem, step_seconds
        workers = min(workers, problem.lanes) if factory.sendable else 0
        self._memory: SharedRollouts | None = None
        self._workers: list[Worker] = []
        if workers == 0:
            self._lanes = Lanes(factory, problem, lanes=range(problem.lanes), seed=seed)
            shapes = _shapes(problem, steps)
            self._rollouts = [Transition(**{k: np.zeros(s, d) for k, (s, d) in shapes.items()}) for _ in range(2)]
            return
        self._memory = SharedRollouts(problem, steps)
        self._rollouts = self._memory.rollouts
        edges = np.linspace(0, problem.lanes, workers + 1).astype(int)
        try:
            for start, stop in itertools.pairwise(edges):
                lanes = range(int(start), int(stop))
                self._workers.append(Worker(_serve, factory, problem, lanes, seed, steps, self._memory.names))
        except BaseException:
            self.close()
            raise

    def start(self, order: Order) -> None:
        """Begin to collect. In-process lanes collect in `wait`, while the compiled update runs beside them."""
        self._order = order
        try:
            for worker in self._workers:
                worker.send(order)
        except WorkerLostError as lost:
            raise self._ended(lost) from None

    def wait(self) -> Rollout:
        """The rollout that was started. Its arrays are valid until the rollout after the next is started."""
        out = self._rollouts[self._order.iteration % 2]
        out.threshold[:] = self._problem.lane_thresholds
        finished = self._replies() if self._workers else self._lanes.collect(self._order, out)
        learned = [] if self._order.random else finished  # random actions tell nothing of the policy
        return Rollout(out, _statistics(learned, self._problem.lanes), [episode for _, episode in finished])

    def _replies(self) -> list[tuple[int, Episode]]:
        """The episodes that finished, in the order of lanes however the workers came in."""
        came = {}
        try:
            for worker, reply in replies(self._workers, limit=self._step_seconds):
                if isinstance(reply, Exception):
                    raise reply
                came[worker] = reply
        except WorkerLostError as lost:
            raise self._ended(lost) from None
        except WorkerStuckError as stuck:
            raise EnvError(
                f"{self._problem.spec.task}: lane {stuck.major} hangs in step {stuck.minor} of its rollout, or in the "
                f"reset after it, for {self._step_seconds:g} s; correct the environment, or give a larger step_seconds "
                "(0: no limit), and continue with: ccpo train --resume RUN"
            ) from None
        return [episode for worker in self._workers for episode in came[worker]]

    def _ended(self, lost: WorkerLostError) -> EnvError:
        return EnvError(
            f"{self._problem.spec.task}: a worker process ended unexpectedly ({lost}): the environment crashed, or "
            "memory ran out; continue with: ccpo train --resume RUN"
        )

    def close(self) -> None:
        close_all(self._workers)
        if self._memory:
            self._rollouts = []
            self._memory.close()
        else:
            self._lanes.close()

    def __enter__(self) -> "Collector":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _statistics(finished: list[tuple[int, Episode]], lanes: int) -> LaneStatistics:
    count, cost = np.zeros(lanes, np.float32), np.zeros((lanes, 1), np.float32)
    for lane, episode in finished:
        count[lane] += 1
        cost[lane] += episode.cost
    return LaneStatistics(count, cost / np.maximum(count, 1)[:, None])
