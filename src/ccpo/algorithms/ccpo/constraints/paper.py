"""The constraint as the paper has it, Eq. (8): for each threshold, the mean over states of E_q[Q_c] is at most ε_q."""

import jax.numpy as jnp

from ccpo.algorithms.ccpo.constraints import Samples, Solution
from ccpo.algorithms.ccpo.settings import Config
from ccpo.maths.estep import EStep, estep
from ccpo.types import Array, Experience, Problem

MULTIPLIER_MAX = 100.0
"""λ_max: where the E-step gives up on the reward."""
TEMPERATURE_MIN = 1e-5


def init(problem: Problem) -> tuple:
    return ()


def observe(problem: Problem, state: tuple, experience: Experience) -> tuple:
    return state


def solve(config: Config, problem: Problem, state: tuple, samples: Samples) -> Solution:
    """q* with one multiplier for each threshold; the cost critic's unit is ε_q of the highest one."""
    bound = samples.budget[:, 0, 0] / problem.threshold_range[1]
    weights, metrics = solve_thresholds(config, problem, samples, bound)
    return Solution(weights, state, metrics)


def solve_thresholds(
    config: Config, problem: Problem, samples: Samples, bound: Array
) -> tuple[Array, dict[str, Array]]:
    """The E-step of each threshold under a bound [C] on the mean of Q_c: weights [C, S, K] and metrics."""
    q_cost = samples.q_cost[..., 0]
    solution: EStep = estep(
        samples.q_reward,
        q_cost,
        bound,
        kl_bound=config.estep_kl_bound,
        multiplier_max=MULTIPLIER_MAX,
        temperature_min=TEMPERATURE_MIN,
    )
    metrics = {
        "estep/kl_over_bound": solution.kl.mean() / config.estep_kl_bound,
        "estep/temperature": solution.temperature.mean(),
        "estep/multiplier": solution.multiplier.mean(),
        "estep/multiplier_at_bound": jnp.mean(solution.at_bound),
        "estep/effective_samples": solution.effective_samples.mean() / q_cost.shape[-1],
        "estep/predicted_cost": q_cost.mean() * problem.threshold_range[1],
    }
    return solution.weights, metrics
