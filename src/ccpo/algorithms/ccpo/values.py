"""VVE: versatile value estimation, critics Q_r and Q_c(s, a | ε) for every threshold from the same data."""

import jax
import jax.numpy as jnp

from ccpo import replay as replays
from ccpo.algorithms.ccpo.model import State, critic_inputs, horizons, judged_actions, policy, q_values
from ccpo.algorithms.ccpo.sampling import relabel
from ccpo.algorithms.ccpo.settings import Config
from ccpo.maths import offpolicy
from ccpo.maths.returns import nstep_return
from ccpo.types import Array, Experience, Problem, Transition


def update_critics(
    config: Config, problem: Problem, state: State, experience: Experience, key: Array
) -> tuple[State, dict[str, Array]]:
    """One Adam step of both critics on n-step targets under the thresholds of the data or, in part, relabelled ones."""
    window_key, relabel_key, action_key = jax.random.split(key, 3)
    window = replays.sample_windows(experience.replay, window_key, batch=config.batch, nstep=config.nstep)
    first = jax.tree.map(lambda x: x[0], window)
    threshold = relabel(config, problem, first.threshold, experience.progress, relabel_key)
    targets = critic_targets(config, problem, state, window, threshold, key=action_key)
    inputs = critic_inputs(config, problem, state.normaliser(first.obs), first.time_to_go)

    def loss(critic: dict) -> tuple[Array, dict[str, Array]]:
        q = q_values(config, problem, critic, inputs, first.action[:, None, :], threshold)
        errors = {f"critic/{name}_loss": jnp.mean((q[name][:, 0] - targets[name]) ** 2) for name in targets}
        return errors["critic/reward_loss"] + errors["critic/cost_loss"], errors

    grads, metrics = jax.grad(loss, has_aux=True)(state.critic)
    scale = offpolicy.rate_scale(config.rate_decay, experience)
    critic, opt = offpolicy.adam_step(config.critic_rate, grads, state.critic_opt, state.critic, scale=scale)
    return state._replace(critic=critic, critic_opt=opt), metrics


def critic_targets(
    config: Config, problem: Problem, state: State, window: Transition, threshold: Array, *, key: Array
) -> dict[str, Array]:
    """y = Σ γⁱ f_i + γⁿ E_π[Q_target(s_n, a' | ε)], in units that make Q of order one: {name: [B]}.

    Beyond an early end there is no reward, and the cost that the steps it skips are charged.
    """
    look = horizons(config, problem)
    units = {
        "reward": state.reward_unit * look["reward"].span,
        "cost": look["cost"].q_threshold(problem.threshold_range[1]),
    }
    ended = window.terminated | window.truncated
    # Later steps of a window follow the threshold of the data: under another one, only the first says what is true.
    limit = jnp.where(threshold == window.threshold[0], config.nstep, 1)
    gains = {"reward": window.reward - _overspending(config, problem, state, window, threshold), "cost": window.cost}
    returns = {name: nstep_return(x, ended, look[name].discount, limit=limit) for name, x in gains.items()}
    last = returns["reward"].last
    obs, terminated, time_to_go = (
        x[last, jnp.arange(config.batch)] for x in (window.next_obs, window.terminated, window.time_to_go)
    )
    obs = state.normaliser(obs)
    alive = ~terminated
    if look["cost"].sees_time:
        alive &= time_to_go > 1
    mean, std = policy(config, problem, state.actor, obs, threshold)
    action = judged_actions(config, key, mean, std, count=config.target_samples)
    inputs = critic_inputs(config, problem, obs, time_to_go - 1)
    q = q_values(config, problem, state.critic_target, inputs, action, threshold)
    after_end = {"reward": 0.0, "cost": config.end_cost * look["cost"].rest(time_to_go - 1)}
    return {
        name: returns[name].value / units[name]
        + returns[name].discount * (alive * q[name].mean(axis=-1) + terminated * after_end[name])
        for name in gains
    }


def _overspending(config: Config, problem: Problem, state: State, window: Transition, threshold: Array) -> Array:
    """What steps are charged for their cost beyond the budget ε, given what their episode had spent before: [n, B]."""
    if config.overspend_price == 0:
        return jnp.zeros_like(window.reward)
    beyond = window.obs[..., -2] * problem.spec.budget_unit - threshold[None, :]
    overspent = jnp.maximum(beyond + window.cost, 0.0) - jnp.maximum(beyond, 0.0)
    return config.overspend_price * state.reward_unit * overspent
