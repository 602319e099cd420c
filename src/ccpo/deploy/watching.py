"""A policy at work, step by step: what the pictures and the playground look at.

A task's `Scene` says how it is seen; an environment that is no task is seen as a timeline.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from ccpo import agent
from ccpo.envs.analytic import AnalyticEnv
from ccpo.envs.registry import TASKS, EnvFactory, resolve
from ccpo.envs.tasks import Scene
from ccpo.envs.workers import episode_seed
from ccpo.errors import CCPOError, FormatError
from ccpo.metrics import EpisodeTable, per_threshold
from ccpo.policy_file import is_number
from ccpo.runtime import Policy

Act = Callable[[np.ndarray, float, float, int], np.ndarray]
"""The action in policy units [−1, 1] for an observation, a threshold, what the episode has cost, its steps so far."""

# Building a simulator's world borrows NumPy's global generator and the standard streams of the whole process.
_BUILDING = threading.Lock()


class CurvePoint(NamedTuple):
    """Mean episodic reward and cost at a threshold, as evaluated."""

    threshold: float
    reward: float
    cost: float


@dataclass(frozen=True)
class Actor:
    """Something that acts in a task under any threshold: a trained policy, or an analytic task's optimum."""

    name: str
    factory: EnvFactory
    act: Act
    threshold_range: tuple[float, float]
    behaviour_thresholds: tuple[float, ...]
    closed_loop: bool
    """Whether it sees what is left of the threshold, and not only the threshold."""
    curve: tuple[CurvePoint, ...] = ()

    @property
    def task(self) -> str:
        return self.factory.name


def trained_actor(path: str | Path, *, env: Any = None, cost_fn: Any = None) -> Actor:
    """The deterministic policy of a run folder or of a policy file."""
    trained = agent.load(path)
    path = Path(path).resolve()
    return actor_of(trained, path.name if trained.run else path.stem, env=env, cost_fn=cost_fn)


def actor_of(trained: agent.Agent, name: str | None = None, *, env: Any = None, cost_fn: Any = None) -> Actor:
    """The deterministic policy of an agent, in its own environment unless another one is given."""
    name = name or (trained.folder.name if trained.run else trained.task)
    return Actor(
        name=f"{trained.algorithm} · {name}",
        factory=trained.factory(env, cost_fn),
        act=_mean_action(trained.policy),
        threshold_range=trained.threshold_range,
        behaviour_thresholds=trained.behaviour_thresholds,
        closed_loop=trained.policy.closed_loop,
        curve=_evaluated_curve(trained),
    )


def optimal_actor(task: str) -> Actor:
    """The closed-form optimum of an analytic task, on its exact curves."""
    factory = resolve(task)
    env = cast(AnalyticEnv, factory.make())
    full = env.cost_scale * env.episode_length
    low, high = round(0.05 * full, 12), round(full, 12)
    curve = tuple(
        CurvePoint(t, env.optimal_return(t), env.optimal_cost(t)) for t in np.linspace(low, high, 41).tolist()
    )
    return Actor(
        name="optimum · closed form",
        factory=factory,
        act=lambda obs, threshold, spent, step: env.optimal_action(obs, threshold),
        threshold_range=(low, high),
        behaviour_thresholds=(),
        closed_loop=False,
        curve=curve,
    )


def optimal_actors() -> list[Actor]:
    """The optimum of each task that has a closed form, without its variants."""
    return [optimal_actor(task.name) for task in TASKS.values() if task.closed_form and task.preset == task.name]


def _mean_action(policy: Policy) -> Act:
    return lambda obs, *account: policy.net.mean(obs, *policy.conditions(*account))


def _evaluated_curve(trained: agent.Agent) -> tuple[CurvePoint, ...]:
    """From the run's eval.csv, else from the evaluation in the manifest, else empty."""
    if trained.run is not None and trained.run.eval_path.is_file():
        table = EpisodeTable.read_csv(trained.run.eval_path)
        rows: Any = [vars(row) for row in per_threshold(table, trained.behaviour_thresholds)]
    else:
        evaluation = trained.policy.manifest["evaluation"]
        rows = evaluation.get("thresholds") if isinstance(evaluation, Mapping) else evaluation
    names = ("threshold", "reward_mean", "cost_mean")
    rows = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, Sequence) else []
    points = [CurvePoint(*(row[name] for name in names)) for row in rows if all(is_number(row.get(n)) for n in names)]
    return tuple(sorted(points))


class Moment(NamedTuple):
    """One step as it is shown; `place` is (x, y) from above, (distance, speed) from the side, else the observation."""

    place: tuple[float, ...]
    action: tuple[float, ...]
    reward: float
    cost: float


class LiveEpisode:
    """One episode of an actor in a fresh environment: a seed and the thresholds determine every number.

    It keeps the account that a closed-loop policy acts on: what the episode has cost, and its length so far.
    """

    def __init__(self, actor: Actor, seed: int) -> None:
        self.actor = actor
        with _BUILDING:
            self._env = actor.factory()
            self._obs = self._env.reset(episode_seed(seed, evaluation=True))
        self._kind = scene_of(actor.factory).kind
        self._shown: Any = getattr(self._env.env, "unwrapped", self._env.env)
        self.reward = self.cost = 0.0
        self.length = 0
        self.ended: Literal["terminated", "truncated"] | None = None

    @property
    def place(self) -> tuple[float, ...]:
        if self._kind == "above":
            return tuple(self._shown.top_view()["position"])
        if self._kind == "side":
            view = self._shown.side_view()
            return view["bodies"][0][0], view["speed"]
        return tuple(self._obs.tolist())

    @property
    def bodies(self) -> list[list[float]]:
        """From the side: each body as a rod (x₀, z₀, x₁, z₁, radius); otherwise none."""
        return self._shown.side_view()["bodies"] if self._kind == "side" else []

    def step(self, threshold: float) -> Moment:
        """Act once under the threshold, which is the whole episode's from now on."""
        if self.ended:
            raise CCPOError(f"the episode has {self.ended} after {self.length} steps; start a new one")
        action = self.actor.act(self._obs, threshold, self.cost, self.length)
        self._obs, reward, cost, terminated, truncated = self._env.step(action)
        self.reward += reward
        self.cost += cost
        self.length += 1
        if terminated or truncated:
            self.ended = "terminated" if terminated else "truncated"
        return Moment(self.place, tuple(np.clip(action, -1.0, 1.0).tolist()), reward, cost)

    def close(self) -> None:
        with _BUILDING:
            self._env.close()


@cache
def scene_of(factory: EnvFactory) -> Scene:
    """How a task is drawn; a timeline if it has no space, or is none."""
    if factory.task is None:
        return Scene()
    with _BUILDING:
        return factory.task.scene()


def check_same_task(first: Actor, second: Actor) -> None:
    if first.task != second.task:
        raise FormatError(
            f"'{second.name}' is for {second.task}, '{first.name}' for {first.task}; compare policies of one task"
        )
