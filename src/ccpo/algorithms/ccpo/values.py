"""VVE: versatile value estimation, critics Q_r and Q_c for every condition from the same data."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ccpo import replay as replays
from ccpo.algorithms.ccpo.model import Critics, State, budget_of, horizon, policy, q_values
from ccpo.algorithms.ccpo.sampling import relabel
from ccpo.algorithms.ccpo.settings import Config
from ccpo.maths import offpolicy
from ccpo.maths.returns import nstep_return
from ccpo.types import Array, Experience, Problem, Transition


class Targets(NamedTuple):
    """In units that make Q of order one: [B] and [B, M]."""

    reward: Array
    cost: Array


class _Following(NamedTuple):
    """The states [B, …] from which n-step targets go on."""

    obs: Array
    budget: Array
    time_to_go: Array
    alive: Array
    terminated: Array


def update_critics(
    config: Config, problem: Problem, state: State, experience: Experience, key: Array
) -> tuple[State, dict[str, Array]]:
    """One Adam step of all critics on n-step targets under the conditions of the data or, in part, drawn ones."""
    window_key, relabel_key = jax.random.split(key)
    window = replays.sample_windows(experience.replay, window_key, batch=config.batch, nstep=config.nstep)
    first = jax.tree.map(lambda x: x[0], window)
    budget, drawn = relabel(config, problem, budget_of(problem, first), experience.progress, relabel_key)
    targets = critic_targets(config, problem, state, window, budget, drawn=drawn)
    obs = state.normaliser(first.obs)

    def loss(critic: Critics) -> tuple[Array, dict[str, Array]]:
        q_reward, q_cost = q_values(config, problem, critic, obs, first.action[:, None], budget, first.time_to_go)
        errors = {
            "critic/reward_loss": jnp.mean((q_reward[:, 0] - targets.reward) ** 2),
            "critic/cost_loss": jnp.mean((q_cost[:, 0] - targets.cost) ** 2),
        }
        return errors["critic/reward_loss"] + errors["critic/cost_loss"], errors

    grads, metrics = jax.grad(loss, has_aux=True)(state.critic)
    scale = offpolicy.rate_scale(config.decay, experience)
    critic, opt = offpolicy.adam_step(config.critic_rate, grads, state.critic_opt, state.critic, scale=scale)
    return state._replace(critic=critic, critic_opt=opt), metrics


def critic_targets(
    config: Config,
    problem: Problem,
    state: State,
    window: Transition,
    budget: Array,
    *,
    drawn: Array,
) -> Targets:
    """n-step targets of a window [n, B, …] under budgets [B, M], of the policy as deployed.

    Later steps of a window follow the condition of the data: where one was `drawn`, only the first says what is true.
    """
    ended = window.terminated | window.truncated
    limit = jnp.where(drawn, 1, config.nstep)
    spent = nstep_return(window.cost, ended, 1.0, limit=limit)
    rows = jnp.arange(config.batch)
    obs, terminated, time_to_go = (x[spent.last, rows] for x in (window.next_obs, window.terminated, window.time_to_go))
    following = _Following(
        obs=state.normaliser(obs),
        budget=budget - spent.value if problem.closed else budget,
        time_to_go=time_to_go - 1.0,
        alive=~terminated & (time_to_go > 1.0) if config.horizon == "finite" else ~terminated,
        terminated=terminated,
    )
    action, _ = policy(config, problem, state.actor_average, following.obs, following.budget, following.time_to_go)
    q_reward, q_cost = q_values(
        config,
        problem,
        state.critic_target,
        following.obs,
        action[:, None],
        following.budget,
        following.time_to_go,
    )
    reward = nstep_return(window.reward, ended, state.discount, limit=limit)
    later = reward.discount * following.alive * q_reward[:, 0]
    costs = closed_costs if problem.closed else open_costs
    return Targets(
        reward=reward.value / state.reward_unit + later,
        cost=costs(config, problem, state, window, following, budget, limit=limit, q_cost=q_cost[:, 0]),
    )


def closed_costs(
    config: Config,
    problem: Problem,
    state: State,
    window: Transition,
    following: _Following,
    budget: Array,
    *,
    limit: Array,
    q_cost: Array,
) -> Array:
    """Overspending: y = max(0, −b′) − max(0, −b) + Q_c(s′, · | b′, h′), at most what the steps to go can cost.

    An end within budget neither costs nor saves. A failure beyond it counts as if each skipped step cost the most.
    """
    high = problem.threshold_range[1]
    overspent = jnp.maximum(-following.budget, 0.0) - jnp.maximum(-budget, 0.0)
    most = state.cost_max[None] * following.time_to_go[:, None] / high
    alive, terminated = following.alive[:, None], following.terminated[:, None]
    charged = terminated & (following.budget <= 0.0) & (problem.spec.early_end == "failure")
    return overspent / high + alive * jnp.clip(q_cost, 0.0, most) + charged * most


def open_costs(
    config: Config,
    problem: Problem,
    state: State,
    window: Transition,
    following: _Following,
    budget: Array,
    *,
    limit: Array,
    q_cost: Array,
) -> Array:
    """y = Σ γⁱ c_i + γⁿ Q_c(s_n, · | ε); a failure costs ε_H/T for each step that it skips."""
    look = horizon(config, problem)
    cost = nstep_return(window.cost, window.terminated | window.truncated, look.discount, limit=limit)
    failed = following.terminated & (problem.spec.early_end == "failure")
    later = following.alive[:, None] * q_cost + (failed * look.rest(following.time_to_go))[:, None]
    return cost.value / look.q_threshold(problem.threshold_range[1]) + cost.discount[:, None] * later
