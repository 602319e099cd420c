"""The constraint of the closed loop: in every state, the expected cost beyond the budget that is left is none.

The cost critic of a closed loop sums up *overspending*, E[max(0, C − b)] for the cost C of the rest of the episode. It
is the violation that is measured, it is zero wherever the policy can still keep its budget, and so it speaks only where
it matters. The bound is elastic: the multiplier of a state is at most a price. The price is the multiplier of the
constraint on whole episodes: it rises while episodes cost more than their thresholds, and falls while they leave some.
It waits until a policy has had time to learn, and follows slowly: a high price early leaves no room for the reward.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from ccpo.algorithms.ccpo.constraints import Samples, Solution
from ccpo.algorithms.ccpo.settings import Config
from ccpo.maths import offpolicy
from ccpo.maths.state_estep import state_estep
from ccpo.types import Array, Experience, Problem

PRICE_START = 1.0
PRICE_RANGE = (0.5, 4.0)
"""What a unit of cost beyond the budget is worth, in episodes' reward over the highest threshold."""
PRICE_WAITS = 0.25
"""The share of the run after which the price begins to follow."""
PRICE_RATE = 2.0
"""How far the price's logarithm would go in a whole run at a distance of `PRICE_REACH`, which is as fast as it goes."""
PRICE_REACH = 0.05
LEFT = 0.01
"""What episodes are to leave of their thresholds, and `PRICE_REACH`: in units of the highest threshold."""
MEASURED_RATE = 0.1


class Price(NamedTuple):
    log_price: Array
    measured: Array
    """Running mean of the cost of episodes as deployed, by behaviour threshold, NaN before the first: [N]."""
    progress: Array
    """The share of the run that was over at the last rollout."""


def init(problem: Problem) -> Price:
    return Price(
        log_price=jnp.float32(math.log(PRICE_START)),
        measured=jnp.full(len(problem.behaviour_thresholds), jnp.nan, jnp.float32),
        progress=jnp.zeros(()),
    )


def observe(problem: Problem, state: Price, experience: Experience) -> Price:
    """Raise the price if episodes under any behaviour threshold cost more than they are to, else lower it."""
    cost, count = offpolicy.measured_costs(problem, experience.statistics)
    before = jnp.where(jnp.isnan(state.measured), cost, state.measured)
    measured = jnp.where(count > 0, before + MEASURED_RATE * (cost - before), state.measured)
    thresholds = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    excess = jnp.nanmax(measured - thresholds) / problem.threshold_range[1] + LEFT
    step = jnp.where(jnp.isnan(excess), 0.0, jnp.clip(excess / PRICE_REACH, -1.0, 1.0))
    elapsed = jnp.maximum(experience.progress - jnp.maximum(state.progress, PRICE_WAITS), 0.0)
    change = PRICE_RATE * elapsed * step
    low, high = (math.log(limit) for limit in PRICE_RANGE)
    return Price(jnp.clip(state.log_price + change, low, high), measured, experience.progress)


def solve(config: Config, problem: Problem, state: Price, samples: Samples) -> Solution:
    """q* with a multiplier for each state, at most the price: E_q[Q_c(s, · | b, h)] ≤ 0."""
    q_reward, q_cost = samples.q_reward[0], samples.q_cost[0]
    price = jnp.exp(state.log_price) * problem.spec.episode_length / samples.reward_span
    solution = state_estep(
        q_reward,
        q_cost,
        jnp.zeros_like(q_cost[:, 0]),
        kl_bound=config.estep_kl_bound,
        multiplier_max=price,
    )
    metrics = {
        "estep/kl_over_bound": solution.kl / config.estep_kl_bound,
        "estep/temperature": solution.temperature,
        "estep/multiplier": solution.multiplier.mean(),
        "estep/multiplier_at_bound": solution.at_bound.mean(),
        "estep/effective_samples": solution.effective_samples / q_reward.shape[-1],
        "estep/predicted_cost": q_cost.mean() * problem.threshold_range[1],
    }
    return Solution(solution.weights[None], state, metrics)
