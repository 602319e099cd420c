"""What off-policy actor-critics with Lagrange multipliers share: critics, n-step targets, and what rollouts tell.

Critics are ensembles of plain networks of [s; ε; a], in units that make Q of order one, so that gains and
rates mean the same in every task. Axes: M members of an ensemble, N behaviour thresholds; the rest as in `ccpo.types`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ccpo import replay as replays
from ccpo.config import Settings, setting
from ccpo.errors import ConfigError
from ccpo.maths import networks, normaliser
from ccpo.maths.multipliers import PID, PIDState
from ccpo.maths.returns import HORIZONS, Horizon, nstep_return
from ccpo.runtime import NetConfig
from ccpo.types import Acting, Array, Experience, LaneStatistics, Problem, Transition

UNIT_RATE = 0.1

METRICS = {
    "critic/reward_loss": "mean squared error of the reward critics against their targets, in units of Q",
    "critic/cost_loss": "mean squared error of the cost critics against their targets, in units of Q",
    "actor/q_reward": "mean of Q_r at the actor's actions",
    "actor/q_cost": "mean of Q_c at the actor's actions; ε/ε_H where the constraint is met exactly",
    "multiplier/mean": "mean of λ over the behaviour thresholds",
    "multiplier/min": "the least λ of a behaviour threshold",
    "multiplier/max": "the greatest λ of a behaviour threshold",
    "multiplier/cost_excess": "mean of (episodic cost − ε)/ε_H where episodes finished; 0 is the aim",
}


@dataclass(frozen=True)
class OffPolicySettings(Settings):
    """The settings of every off-policy Lagrangian method."""

    hidden: tuple[int, ...] = setting((128, 128), "hidden layers of actor and critics", low=1)
    horizon: str = setting("endless", "what critics sum up", choices=HORIZONS)
    discount: float = setting(0.97, "γ of all critics", low=0, high=1)
    nstep: int = setting(2, "steps of reward and cost before a target bootstraps", low=1, high=100)
    target_rate: float = setting(0.05, "τ: the share of a network that its target takes over", above=0, high=1)
    batch: int = setting(256, "transitions an update", low=1)
    updates_per_step: float = setting(0.2, "gradient updates for each environment step", above=0)
    actor_rate: float = setting(5e-4, "Adam's rate for the actor", above=0)
    critic_rate: float = setting(1e-3, "Adam's rate for the critics", above=0)
    rate_decay: float = setting(
        0.0, "share of the actor's and critics' rates that is gone at the end of the run", low=0, high=1
    )
    multiplier_gains: tuple[float, ...] = setting(
        (0.3, 0.1, 0.3), "PID gains of λ, once an iteration, on (episodic cost − ε)/ε_H", low=0
    )
    normalise_observations: bool = setting(False, "running normalisation of observations")

    def validate(self) -> None:
        if len(self.multiplier_gains) != 3:
            raise ConfigError(
                f"multiplier_gains={self.multiplier_gains} must be three numbers (P, I, D), such as 0.3,0.1,0.3"
            )
        if self.horizon == "endless" and self.discount == 1.0:
            raise ConfigError("discount=1 has no endless sum; use a smaller one, or horizon=finite")


class Critics(NamedTuple):
    """Ensembles {"reward", "cost"} with leading axis M, the slow copies that targets use, and Adam's memory."""

    online: dict
    target: dict
    opt: optax.OptState


class Signals(NamedTuple):
    """What rollouts tell besides their transitions."""

    normaliser: normaliser.Normaliser
    reward_unit: Array
    """Running root mean square of the reward."""
    pid: PIDState
    """Its `multiplier` is λ of each behaviour threshold: [N]."""


class Continuation(NamedTuple):
    """The known part of n-step targets, and the state from which the rest is estimated."""

    reward: Array
    cost: Array
    discount: Array
    """γ to the number of steps summed, 0 where nothing follows: [B]."""
    obs: Array
    time_to_go: Array


class Batch(NamedTuple):
    """Transitions as networks see them; `returns` in units of Q. Inputs [B, …], the rest [B]."""

    actor_inputs: Array
    critic_inputs: Array
    action: Array
    condition: Array
    multiplier: Array
    returns: dict[str, Array]
    discount: Array
    next_actor_inputs: Array
    next_critic_inputs: Array


def make_horizon(config: OffPolicySettings, problem: Problem) -> Horizon:
    return Horizon(config.horizon, problem.spec.episode_length, config.discount)


def conditioned(problem: Problem) -> bool:
    """Whether the actor sees its threshold; one trained under a single threshold has nothing to learn from it."""
    return len(problem.behaviour_thresholds) > 1


def init_critics(config: OffPolicySettings, problem: Problem, key: Array, *, members: int) -> Critics:
    inputs = problem.spec.observation_size + int(make_horizon(config, problem).sees_time)

    def member(key: Array) -> dict:
        return networks.init_plain_critic(key, inputs, problem.spec.action_size, hidden=config.hidden)

    keys = jax.random.split(key, (2, members))
    online = {"reward": jax.vmap(member)(keys[0]), "cost": jax.vmap(member)(keys[1])}
    return Critics(online, online, optax.adam(config.critic_rate).init(online))


def init_signals(config: OffPolicySettings, problem: Problem) -> Signals:
    pid = PID(config.multiplier_gains).init(len(problem.behaviour_thresholds))
    return Signals(normaliser.init(problem.spec.observation_size), jnp.ones(()), pid)


def actor_inputs(problem: Problem, obs: Array, threshold: Array) -> Array:
    """[s; ε] of normalised observations [..., O] and thresholds [...]."""
    if not conditioned(problem):
        return obs
    return jnp.concatenate([obs, networks.normalise_threshold(threshold, problem.threshold_range)[..., None]], axis=-1)


def critic_inputs(horizon: Horizon, obs: Array, time_to_go: Array) -> Array:
    """Normalised observations, with the share of the episode still to go where the horizon is finite."""
    if not horizon.sees_time:
        return obs
    return jnp.concatenate([obs, time_to_go[..., None] / horizon.length], axis=-1)


def scan_steps(
    step: Callable, config: OffPolicySettings, problem: Problem, state: Any, experience: Experience
) -> tuple[Any, dict[str, Array]]:
    """An iteration: take its statistics in, then a scan of gradient updates state, metrics = step(state).

    A method's state holds, among others, `signals`, `critics` and the number of `updates`.
    """
    signals, critics, metrics = observe(
        config, problem, state.signals, state.critics, experience, first=state.updates == 0
    )
    count = max(1, round(config.updates_per_step * experience.rollout.reward.size))
    state = state._replace(signals=signals, critics=critics)
    state, history = jax.lax.scan(lambda carry, _: step(carry), state, length=count)
    return state, metrics | jax.tree.map(jnp.mean, history)


def observe(
    config: OffPolicySettings,
    problem: Problem,
    signals: Signals,
    critics: Critics,
    experience: Experience,
    *,
    first: Array,
) -> tuple[Signals, Critics, dict[str, Array]]:
    """Take a new rollout in: observation statistics, the reward's unit, the multipliers; `first`: before any update."""
    rollout = experience.rollout
    if config.normalise_observations:
        signals = signals._replace(normaliser=normaliser.merge(signals.normaliser, rollout.obs))
    unit, factor = follow_reward_unit(signals.reward_unit, rollout.reward, first=first)
    online, target = (
        {**critic, "reward": networks.rescale_critic(critic["reward"], factor)}
        for critic in (critics.online, critics.target)
    )
    signals, metrics = update_multipliers(config, problem, signals, experience.statistics)
    return signals._replace(reward_unit=unit), critics._replace(online=online, target=target), metrics


def follow_reward_unit(unit: Array, reward: Array, *, first: Array) -> tuple[Array, Array]:
    """The reward's running root mean square, and the factor by which Q_r changes when it is told in the new unit."""
    size = jnp.sqrt(jnp.mean(reward**2)) + 1e-8
    fresh = jnp.where(first, size, unit + UNIT_RATE * (size - unit))
    return fresh, jnp.where(first, 1.0, unit / fresh)


def measured_costs(problem: Problem, statistics: LaneStatistics) -> tuple[Array, Array]:
    """Mean episodic cost and number of episodes by behaviour threshold, of lanes acting as deployed if any: two [N]."""
    source = problem.lane_deployed if problem.deployed_lanes else np.ones(problem.lanes, bool)
    weight = (statistics.count * source).reshape(-1, problem.lanes_per_threshold)
    count = weight.sum(axis=1)
    cost = statistics.cost[:, 0].reshape(weight.shape)
    return (cost * weight).sum(axis=1) / jnp.maximum(count, 1.0), count


def update_multipliers(
    config: OffPolicySettings, problem: Problem, signals: Signals, statistics: LaneStatistics
) -> tuple[Signals, dict[str, Array]]:
    """λ of each behaviour threshold follows its own episodes; one without a finished episode waits."""
    cost, count = measured_costs(problem, statistics)
    scale = problem.threshold_range[1]
    thresholds = jnp.asarray(problem.behaviour_thresholds, jnp.float32) / scale
    known = count > 0
    pid, multiplier = PID(config.multiplier_gains).update(signals.pid, cost / scale, thresholds, known=known)
    metrics = {
        "multiplier/mean": multiplier.mean(),
        "multiplier/min": multiplier.min(),
        "multiplier/max": multiplier.max(),
        "multiplier/cost_excess": jnp.sum(known * (cost / scale - thresholds)) / jnp.maximum(known.sum(), 1),
    }
    return signals._replace(pid=pid), metrics


def multiplier_of(problem: Problem, multiplier: Array, threshold: Array) -> Array:
    """λ of the behaviour threshold that each transition was collected under: [N], [B] → [B]."""
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    return multiplier[jnp.argmin(jnp.abs(threshold[:, None] - behaviour[None, :]), axis=1)]


def continuation(window: Transition, horizon: Horizon) -> Continuation:
    """Σ γⁱ f_i over a window [n, B, …] up to an end or a cut, and where the bootstrap goes on.

    A termination ends both sums for good; the time limit does only if the critics' horizon is finite.
    """
    ended = window.terminated | window.truncated
    reward, cost = (nstep_return(x, ended, horizon.discount) for x in (window.reward, window.cost[..., 0]))
    rows = jnp.arange(reward.last.shape[0])
    obs, terminated, time_to_go = (
        x[reward.last, rows] for x in (window.next_obs, window.terminated, window.time_to_go)
    )
    alive = ~terminated
    if horizon.sees_time:
        alive &= time_to_go > 1
    return Continuation(reward.value, cost.value, reward.discount * alive, obs, time_to_go - 1)


def sample_batch(
    config: OffPolicySettings, problem: Problem, signals: Signals, experience: Experience, key: Array
) -> Batch:
    """Windows of the replay, drawn at random, as networks see them."""
    window = replays.sample_windows(experience.replay, key, batch=config.batch, nstep=config.nstep)
    return make_batch(config, problem, signals, window)


def make_batch(config: OffPolicySettings, problem: Problem, signals: Signals, window: Transition) -> Batch:
    """A window of n steps [n, B, …] as networks see it."""
    horizon = make_horizon(config, problem)
    first = jax.tree.map(lambda x: x[0], window)
    following = continuation(window, horizon)
    threshold = first.threshold[:, 0]
    obs, next_obs = signals.normaliser(first.obs), signals.normaliser(following.obs)
    cost_unit = problem.threshold_range[1] / problem.spec.episode_length
    return Batch(
        actor_inputs=actor_inputs(problem, obs, threshold),
        critic_inputs=critic_inputs(horizon, obs, first.time_to_go),
        action=first.action,
        condition=networks.normalise_threshold(threshold, problem.threshold_range),
        multiplier=multiplier_of(problem, signals.pid.multiplier, threshold),
        returns={
            "reward": following.reward / (signals.reward_unit * horizon.span),
            "cost": following.cost / (cost_unit * horizon.span),
        },
        discount=following.discount,
        next_actor_inputs=actor_inputs(problem, next_obs, threshold),
        next_critic_inputs=critic_inputs(horizon, next_obs, following.time_to_go),
    )


def q_ensemble(critic: dict, inputs: Array, action: Array, condition: Array) -> Array:
    """Q(s, a | ε) of each member, of actions as the environment clips them: [M, B]."""
    clipped = jnp.clip(action, -1.0, 1.0)[:, None, :]
    return jax.vmap(lambda member: networks.plain_q(member, inputs, clipped, condition[:, None])[:, 0])(critic)


def cautious_q(critics: dict, inputs: Array, action: Array, condition: Array) -> dict[str, Array]:
    """min_m Q_r and max_m Q_c, for an actor seeks out errors that flatter it on either side: {name: [B]}."""
    return {
        "reward": q_ensemble(critics["reward"], inputs, action, condition).min(axis=0),
        "cost": q_ensemble(critics["cost"], inputs, action, condition).max(axis=0),
    }


def lagrangian(q_reward: Array, q_cost: Array, multiplier: Array) -> Array:
    """(Q_r − λ Q_c)/(1 + λ): what the actor maximises, of the same size whatever λ; all [B]."""
    return (q_reward - multiplier * q_cost) / (1.0 + multiplier)


def adam_step(rate: float, grads: Any, opt: optax.OptState, params: Any, *, scale: Array) -> tuple[Any, optax.OptState]:
    """Parameters after a step of Adam that is `scale` times as long as its rate says, and Adam's memory."""
    change, opt = optax.adam(rate).update(grads, opt)
    return optax.apply_updates(params, jax.tree.map(lambda x: x * scale, change)), opt


def rate_scale(rate_decay: float, experience: Experience) -> Array:
    """What is left of the rates at this point of the run."""
    return 1.0 - rate_decay * experience.progress


def fit_critics(
    config: OffPolicySettings, critics: Critics, batch: Batch, targets: dict[str, Array], *, scale: Array
) -> tuple[Critics, dict[str, Array]]:
    """One Adam step of every member towards targets {name: [B]}; the slow copies follow."""

    def loss(online: dict) -> tuple[Array, dict[str, Array]]:
        errors = {}
        for name, target in targets.items():
            q = q_ensemble(online[name], batch.critic_inputs, batch.action, batch.condition)
            errors[f"critic/{name}_loss"] = jnp.mean((q - target[None, :]) ** 2)
        return errors["critic/reward_loss"] + errors["critic/cost_loss"], errors

    grads, metrics = jax.grad(loss, has_aux=True)(critics.online)
    online, opt = adam_step(config.critic_rate, grads, critics.opt, critics.online, scale=scale)
    target = optax.incremental_update(online, critics.target, config.target_rate)
    return critics._replace(online=online, target=target, opt=opt), metrics


def acting(
    problem: Problem,
    actor: Sequence[networks.Layer],
    signals: Signals,
    *,
    distribution: str,
    exploration_noise: float = 0.0,
) -> Acting:
    """The arrays of `ccpo.runtime.PolicyNet`, the same to explore with and as deployed, and what they mean."""
    low, high = problem.threshold_range
    net = NetConfig(
        distribution=distribution,
        condition="threshold" if conditioned(problem) else "none",
        threshold_low=(low,),
        threshold_high=(high,),
        exploration_noise=exploration_noise,
    )
    named = networks.named(actor) | {"obs_mean": signals.normaliser.mean, "obs_std": signals.normaliser.std}
    arrays = jax.tree.map(np.array, named)
    return Acting(net, arrays, arrays)
