"""Analytic CMDPs with two budgets, whose best return is a known function of every pair of thresholds.

As with one budget, `optimal_return(thresholds)` is the maximum over *all* policies whose expected episodic costs are
each within their threshold, and `optimal_action` a policy that attains it. Thresholds are numbers in the order of
`costs`, or a mapping of these names.

| environment | question |
|---|---|
| `HalvesBudget` | is each budget spent in its own time? |
| `NestedBudget` | are both budgets kept where both bind? |
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from ccpo.envs.analytic_base import ClockedEnv
from ccpo.envs.tasks import Task, corners_and_centre
from ccpo.errors import ThresholdError

Thresholds = Sequence[float] | Mapping[str, float]


class PairEnv(ClockedEnv):
    """A CMDP of two costs that knows its optimum at every pair of thresholds."""

    costs: ClassVar[tuple[str, str]]

    @property
    @abstractmethod
    def max_cost(self) -> np.ndarray:
        """The costs of the unconstrained optimum, float64[2]; above it a threshold is not active."""

    @abstractmethod
    def optimal_return(self, thresholds: Thresholds) -> float:
        """The largest expected episodic return at expected episodic costs ≤ thresholds."""

    @abstractmethod
    def optimal_cost(self, thresholds: Thresholds) -> np.ndarray:
        """The episodic costs of the optimal policy, float64[2]."""

    @abstractmethod
    def optimal_action(self, obs: np.ndarray, thresholds: Thresholds) -> np.ndarray:
        """The action of an optimal policy, float32[A]."""

    def _feasible(self, thresholds: Thresholds) -> tuple[float, float]:
        named = thresholds if isinstance(thresholds, Mapping) else dict(zip(self.costs, thresholds, strict=False))
        if set(named) != set(self.costs) or len(thresholds) != len(self.costs):
            raise ThresholdError(f"thresholds {thresholds!r} must be two numbers, for {' and '.join(self.costs)}")
        first, second = (float(named[name]) for name in self.costs)
        if not all(math.isfinite(value) and value >= 0.0 for value in (first, second)):
            raise ThresholdError(f"thresholds {thresholds!r} must be finite numbers ≥ 0")
        return first, second


class HalvesBudget(PairEnv):
    """Reward a; cost c·a², of the first half of an episode as "early", of the second as "late".

    In n steps a budget ε is spent best by the constant a = min(1, √(ε/(cn))), by Jensen's inequality as in
    `StaticBudget`; the best return is Σ nᵢ aᵢ over the halves. The first is the longer one if T is odd.
    """

    costs = ("early", "late")
    question = "is each budget spent in its own time?"
    observation_high = (1.0, 1.0)

    @property
    def max_cost(self) -> np.ndarray:
        return self.cost_scale * self._lengths

    def optimal_return(self, thresholds: Thresholds) -> float:
        return float(self._lengths @ self._levels(thresholds))

    def optimal_cost(self, thresholds: Thresholds) -> np.ndarray:
        return np.minimum(self._feasible(thresholds), self.max_cost)

    def optimal_action(self, obs: np.ndarray, thresholds: Thresholds) -> np.ndarray:
        half = int(self._time_of(float(obs[0])) >= self._lengths[0])
        return self._levels(thresholds)[half, None].astype(np.float32)

    @property
    def _lengths(self) -> np.ndarray:
        late = self.episode_length // 2
        return np.array([self.episode_length - late, late])

    def _levels(self, thresholds: Thresholds) -> np.ndarray:
        # A half without a step, as the second of one step, has no cost and no action.
        return np.sqrt(self.optimal_cost(thresholds) / np.maximum(self.max_cost, self.cost_scale))

    def _observe(self) -> np.ndarray:
        return np.array([self._progress(), self._uniform()], np.float32)

    def _advance(self, action: list[float]) -> tuple[float, dict[str, float], bool]:
        cost = self.cost_scale * action[0] ** 2
        is_early = self._time < self._lengths[0]
        return action[0], {"early": cost * is_early, "late": cost * (not is_early)}, False


class NestedBudget(PairEnv):
    """Actions (a, b): reward a + b, cost c·(a² + b²) as "total" and c·b² as "part"; the observation is noise.

    With e = ε/(cT) for each cost, the squares A = a² and B = b² are to maximise √A + √B within A, B ≤ 1, A + B ≤ e₁, B
    ≤ e₂: a concave problem, so that by Jensen's inequality constants are best. It is symmetric but for e₂, hence B =
    min(e₂, e₁/2, 1) and A = min(e₁ − B, 1). Both budgets bind where e₂ < e₁/2.
    """

    costs = ("total", "part")
    question = "are both budgets kept where both bind?"
    observation_high = (1.0, 1.0)
    action_size = 2

    @property
    def max_cost(self) -> np.ndarray:
        return self.cost_scale * self.episode_length * np.array([2.0, 1.0])

    def optimal_return(self, thresholds: Thresholds) -> float:
        return self.episode_length * float(np.sqrt(self._squares(thresholds)).sum())

    def optimal_cost(self, thresholds: Thresholds) -> np.ndarray:
        squares = self._squares(thresholds)
        return self.cost_scale * self.episode_length * np.array([squares.sum(), squares[1]])

    def optimal_action(self, obs: np.ndarray, thresholds: Thresholds) -> np.ndarray:
        return np.sqrt(self._squares(thresholds)).astype(np.float32)

    def _squares(self, thresholds: Thresholds) -> np.ndarray:
        total, part = np.array(self._feasible(thresholds)) / (self.cost_scale * self.episode_length)
        second = min(part, 0.5 * total, 1.0)
        return np.array([min(total - second, 1.0), second])

    def _observe(self) -> np.ndarray:
        return np.array([self._uniform(), self._uniform()], np.float32)

    def _advance(self, action: list[float]) -> tuple[float, dict[str, float], bool]:
        first, second = (self.cost_scale * a**2 for a in action)
        return sum(action), {"total": first + second, "part": second}, False


PAIR_ENVS: dict[str, type[PairEnv]] = {env.__name__: env for env in (HalvesBudget, NestedBudget)}


def _task(name: str, env_class: type[PairEnv]) -> Task:
    """Thresholds are shares of what the unconstrained optimum costs, as with one budget: 20, 40, 60 %."""
    env = env_class()

    def at(share: float) -> tuple[float, ...]:
        return tuple(round(share * cost, 12) for cost in env.max_cost.tolist())

    return Task(
        name=name,
        description=f"analytic: {env.question}",
        behaviour_thresholds=corners_and_centre(*zip(at(0.2), at(0.4), at(0.6), strict=True)),
        threshold_range=(at(0.1), at(0.7)),
        episode_length=env.episode_length,
        make=env_class,
        costs=env.costs,
    )


TASKS = tuple(_task(name, env_class) for name, env_class in PAIR_ENVS.items())
