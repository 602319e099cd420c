"""Analytic CMDPs: small environments whose best return is a known function of the threshold.

Each asks one question of an agent, and answers it in closed form: `optimal_return(threshold)` is the maximum
of the expected episodic return over *all* policies (randomised and history-dependent ones included) whose
expected episodic cost is at most the threshold, and `optimal_action(obs, threshold)` is a deterministic
policy of the observation that attains it.

| environment | question |
|---|---|
| `StaticBudget` | does the policy use the threshold? |
| `DriftBudget` | can it hold a threshold by state feedback? |
| `LateBudget` | is cost seen that falls late in the episode? |
| `MomentumBudget` | is reward credited to an action that was paid for much earlier? |
| `BalanceBudget` | is an early end mistaken for a way to save cost? |

`horizon` is the episode length T, `cost_scale` the factor c of the cost; `StaticBudget-T20-C0.01` has T = 20 and c =
0.01. An unconstrained agent spends `max_cost`, about c·T; up to there the constraint is active. The actions are scaled
to [−1, 1].
"""

import math
import re
from abc import abstractmethod
from functools import partial

import numpy as np
from gymnasium.envs.registration import register as gymnasium_register
from gymnasium.envs.registration import registry

from ccpo.envs.analytic_base import ClockedEnv
from ccpo.envs.tasks import Task
from ccpo.errors import ThresholdError


class AnalyticEnv(ClockedEnv):
    """A CMDP of one cost that knows its optimum at every threshold."""

    @property
    def max_cost(self) -> float:
        """The expected episodic cost of the unconstrained optimum; larger thresholds are not active."""
        return self.cost_scale * self.episode_length

    @property
    def min_cost(self) -> float:
        """The expected episodic cost of the most careful policy; smaller thresholds cannot be met."""
        return 0.0

    @property
    def max_step_cost(self) -> float:
        """The largest cost that a step can have."""
        return self.cost_scale

    @abstractmethod
    def optimal_return(self, threshold: float) -> float:
        """The largest expected episodic return at an expected episodic cost ≤ threshold."""

    @abstractmethod
    def optimal_action(self, obs: np.ndarray, threshold: float) -> np.ndarray:
        """The action of an optimal policy, float32[A]."""

    def optimal_cost(self, threshold: float) -> float:
        """The expected episodic cost of the optimal policy: the threshold, while it is active."""
        return min(self._feasible(threshold), self.max_cost)

    def _feasible(self, threshold: float) -> float:
        if not (math.isfinite(threshold) and threshold >= self.min_cost):
            raise ThresholdError(
                f"threshold {threshold!r} cannot be met in {type(self).__name__}: "
                f"every policy costs at least {self.min_cost:g}; give a larger one"
            )
        return float(threshold)


class StaticBudget(AnalyticEnv):
    """Reward a, cost c·a²; the observation is noise.

    The optimum is the constant a = min(1, √(ε/(cT))), with return T·a: by Jensen's inequality
    (E Σa)² ≤ T·E Σa² ≤ T·ε/c for every policy.
    """

    question = "does the policy use the threshold?"
    observation_high = (1.0, 1.0)

    def optimal_return(self, threshold: float) -> float:
        return self.episode_length * self._level(threshold)

    def optimal_action(self, obs: np.ndarray, threshold: float) -> np.ndarray:
        return np.array([self._level(threshold)], np.float32)

    def _level(self, threshold: float) -> float:
        return math.sqrt(self.optimal_cost(threshold) / self.max_cost)

    def _observe(self) -> np.ndarray:
        return np.array([self._uniform(), self._uniform()], np.float32)

    def _advance(self, action: list[float]) -> tuple[float, float, bool]:
        return action[0], self.cost_scale * action[0] ** 2, False


class DriftBudget(AnalyticEnv):
    """A speed that carries over: v′ = m + σw with m = clip(ρv + b·a, −1, 1); reward v′, cost c·v′².

    w ~ U(−1, 1) and v₀ ~ U(−1, 1); b = 1 + ρ(1 + σ), so that every m in [−1, 1] can be reached from every
    speed. E Σv′² = E Σm² + Tσ²/3, hence by Jensen's inequality the best return is T·m with the constant m =
    min(1, √(ε/(cT) − σ²/3)), attained by the state feedback a = (m − ρv)/b.
    """

    question = "can it hold a threshold by state feedback?"
    inertia = 0.8
    noise = 0.2
    gain = 1.0 + inertia * (1.0 + noise)
    observation_high = (1.0 + noise,)

    @property
    def max_cost(self) -> float:
        return super().max_cost + self.min_cost

    @property
    def min_cost(self) -> float:
        """c·T·σ²/3: the noise alone."""
        return self.cost_scale * self.episode_length * self.noise**2 / 3.0

    @property
    def max_step_cost(self) -> float:
        return self.cost_scale * (1.0 + self.noise) ** 2

    def optimal_return(self, threshold: float) -> float:
        return self.episode_length * self._mean_speed(threshold)

    def optimal_action(self, obs: np.ndarray, threshold: float) -> np.ndarray:
        return np.array([(self._mean_speed(threshold) - self.inertia * obs[0]) / self.gain], np.float32)

    def _mean_speed(self, threshold: float) -> float:
        return math.sqrt((self.optimal_cost(threshold) - self.min_cost) / (self.max_cost - self.min_cost))

    def _start(self) -> None:
        self._speed = self._uniform()

    def _observe(self) -> np.ndarray:
        return np.array([self._speed], np.float32)

    def _advance(self, action: list[float]) -> tuple[float, float, bool]:
        mean = max(-1.0, min(1.0, self.inertia * self._speed + self.gain * action[0]))
        self._speed = mean + self.noise * self._uniform()
        return self._speed, self.cost_scale * self._speed**2, False


class ScheduledBudget(AnalyticEnv):
    """CMDPs whose best actions are a schedule: maximise Σ rₜaₜ subject to Σ kₜaₜ² ≤ ε and aₜ ≤ 1.

    By Jensen's inequality no randomisation or feedback improves on aₜ = min(1, μ·rₜ/kₜ); the level μ follows
    exactly from the budget (`spend_budget`). The observation shows the progress through the episode.
    """

    def __init__(self, horizon: int = 100, cost_scale: float = 1.0):
        super().__init__(horizon, cost_scale)
        self.reward_weights, self.cost_weights = self._weights((np.arange(horizon) + 1.0) / horizon)

    @property
    def max_step_cost(self) -> float:
        return float(self.cost_weights.max())

    @abstractmethod
    def _weights(self, phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rₜ, kₜ), given (t + 1)/T for every step of the episode."""

    def optimal_schedule(self, threshold: float) -> np.ndarray:
        """The best actions of an episode, float64[T]."""
        return spend_budget(self.reward_weights, self.cost_weights, self._feasible(threshold))

    def optimal_return(self, threshold: float) -> float:
        return float(self.reward_weights @ self.optimal_schedule(threshold))

    def optimal_action(self, obs: np.ndarray, threshold: float) -> np.ndarray:
        return self.optimal_schedule(threshold)[self._time_of(float(obs[0])), None].astype(np.float32)


class LateBudget(ScheduledBudget):
    """Reward rₜ·a and cost kₜ·a² that grow over the episode, the cost faster: rₜ ∝ τ³, kₜ ∝ c·τ⁴, τ = (t +
    1)/T.

    Both are scaled to sum to T and c·T. The best action falls like 1/τ, and still the cost of a step rises
    like τ²: half of the threshold is spent in the last fifth of the episode.
    """

    question = "is cost seen that falls late in the episode?"
    observation_high = (1.0, 1.0)

    def _weights(self, phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return phase**3 / np.mean(phase**3), self.cost_scale * phase**4 / np.mean(phase**4)

    def _observe(self) -> np.ndarray:
        return np.array([self._progress(), self._uniform()], np.float32)

    def _advance(self, action: list[float]) -> tuple[float, float, bool]:
        reward = float(self.reward_weights[self._time]) * action[0]
        return reward, float(self.cost_weights[self._time]) * action[0] ** 2, False


class MomentumBudget(ScheduledBudget):
    """Pay now, earn later: v′ = ρv + (1 − ρ)a + σw; reward v′, cost c·a².

    w ~ U(−1, 1), v₀ ~ U(−1, 1). The expected return Σ E vₜ is linear in the actions: an action at step t
    earns rₜ = 1 − ρ^(T − t) until the end, so the best thrust is nearly constant and fades in the last steps.
    """

    question = "is reward credited to an action that was paid for much earlier?"
    inertia = 0.9
    noise = 0.02
    observation_high = (1.0, 1.0 + noise / (1.0 - inertia))

    def _weights(self, phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps_to_go = self.episode_length * (1.0 - phase) + 1.0
        return 1.0 - self.inertia**steps_to_go, np.full_like(phase, self.cost_scale)

    def _start(self) -> None:
        self._speed = self._uniform()

    def _observe(self) -> np.ndarray:
        return np.array([self._progress(), self._speed], np.float32)

    def _advance(self, action: list[float]) -> tuple[float, float, bool]:
        self._speed = self.inertia * self._speed + (1.0 - self.inertia) * action[0] + self.noise * self._uniform()
        return self._speed, self.cost_scale * action[0] ** 2, False


class BalanceBudget(StaticBudget):
    """`StaticBudget` on a tilting board: y′ = κy + b + g·a + σw, and |y′| > 1 ends the episode
    (`terminated`).

    The actions are (a, b): throttle and balance; reward a, cost c·a², y₀ ~ U(−½, ½), w ~ U(−1, 1). For an
    episode of length L ≤ T, Jensen's inequality gives (E Σa)² ≤ E L · E Σa² ≤ T·ε/c: falling over never pays.
    The throttle of `StaticBudget` with the balance b = −κy − g·a, which is always within [−1, 1] and keeps
    |y| ≤ σ, attains it.
    """

    question = "is an early end mistaken for a way to save cost?"
    instability = 1.25
    coupling = 0.3
    noise = 0.2
    action_size = 2
    observation_high = (instability + 1.0 + coupling + noise,)

    def optimal_action(self, obs: np.ndarray, threshold: float) -> np.ndarray:
        throttle = self._level(threshold)
        balance = np.clip(-self.instability * obs[0] - self.coupling * throttle, -1.0, 1.0)
        return np.array([throttle, balance], np.float32)

    def _start(self) -> None:
        self._tilt = 0.5 * self._uniform()

    def _observe(self) -> np.ndarray:
        return np.array([self._tilt], np.float32)

    def _advance(self, action: list[float]) -> tuple[float, float, bool]:
        throttle, balance = action
        self._tilt = self.instability * self._tilt + balance + self.coupling * throttle + self.noise * self._uniform()
        return throttle, self.cost_scale * throttle**2, abs(self._tilt) > 1.0


ANALYTIC_ENVS: dict[str, type[AnalyticEnv]] = {
    env.__name__: env for env in (StaticBudget, DriftBudget, LateBudget, MomentumBudget, BalanceBudget)
}


def spend_budget(reward_weights: np.ndarray, cost_weights: np.ndarray, budget: float) -> np.ndarray:
    """argmax Σ rₜaₜ subject to Σ kₜaₜ² ≤ ε and 0 ≤ aₜ ≤ 1, that is aₜ = min(1, μ·rₜ/kₜ); r, k > 0.

    The spending is a growing function of μ, and known where each action saturates (μ = kₜ/rₜ); between two
    such levels n actions are 1 and the rest spends in proportion to μ², which gives μ in closed form. All
    float64[T].
    """
    order = np.argsort(cost_weights / reward_weights)
    r, k = reward_weights[order], cost_weights[order]
    levels = k / r
    saturated_spending = np.concatenate([[0.0], np.cumsum(k)])
    slopes = np.append(np.cumsum((r**2 / k)[::-1])[::-1], 0.0)
    spending_at_levels = saturated_spending[:-1] + levels**2 * slopes[:-1]
    n = int(np.searchsorted(spending_at_levels, budget))
    if n == len(r):
        return np.ones_like(reward_weights)
    level = math.sqrt((budget - saturated_spending[n]) / slopes[n])
    return np.minimum(1.0, level * reward_weights / cost_weights)


def register() -> None:
    """Make the environments known to `gymnasium.make` as `ccpo/<Name>-v0`; repeating it does nothing."""
    for name in ANALYTIC_ENVS:
        if f"ccpo/{name}-v0" not in registry:
            gymnasium_register(f"ccpo/{name}-v0", entry_point=f"ccpo.envs.analytic:{name}")


def _task(base: str, *, horizon: int | None = None, cost_scale: float | None = None) -> Task:
    """A task whose thresholds are the same shares of c·T in every variant: 20, 40, 60 for c·T = 100."""
    env_class, name, parameters = ANALYTIC_ENVS[base], base, {}
    if horizon is not None:
        name, parameters["horizon"] = f"{name}-T{horizon}", horizon
    if cost_scale is not None:
        name, parameters["cost_scale"] = f"{name}-C{cost_scale:g}", cost_scale
    env = env_class(**parameters)
    ten, twenty, forty, sixty, seventy = (
        round(share * env.cost_scale * env.episode_length, 12) for share in (0.1, 0.2, 0.4, 0.6, 0.7)
    )
    return Task(
        name=name,
        description=f"analytic: {env_class.question}",
        behaviour_thresholds=(twenty, forty, sixty),
        threshold_range=(ten, seventy),
        episode_length=env.episode_length,
        make=partial(env_class, **parameters),
        preset=base,
        closed_form=True,
    )


def find_variant(name: str) -> Task | None:
    """The task of a name such as `StaticBudget-T20-C0.01`, in any spelling; any numbers are allowed."""
    variant = re.fullmatch(r"(.+?)(?:-t(\d+))?(?:-c(\d+\.?\d*(?:e-?\d+)?))?", name.lower())
    base, horizon, cost_scale = variant.groups() if variant else ("", None, None)
    for known in ANALYTIC_ENVS:
        if known.lower() == re.sub("[-_]", "", base):
            return _task(
                known,
                horizon=int(horizon) if horizon else None,
                cost_scale=float(cost_scale) if cost_scale else None,
            )
    return None


TASKS = (
    *(_task(base) for base in ANALYTIC_ENVS),
    _task("StaticBudget", horizon=20),
    _task("StaticBudget", horizon=500, cost_scale=0.01),
    _task("StaticBudget", cost_scale=100.0),
    _task("DriftBudget", horizon=20, cost_scale=100.0),
    _task("DriftBudget", horizon=500),
    _task("LateBudget", horizon=20, cost_scale=0.01),
    _task("LateBudget", horizon=500, cost_scale=100.0),
    _task("MomentumBudget", horizon=50, cost_scale=10.0),
    _task("MomentumBudget", horizon=300, cost_scale=0.1),
    _task("BalanceBudget", horizon=20, cost_scale=10.0),
    _task("BalanceBudget", horizon=300, cost_scale=0.1),
)
