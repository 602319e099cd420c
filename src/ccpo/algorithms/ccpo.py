"""CCPO: constraint-conditioned policy optimisation, one policy π(a | s, ε) for every threshold ε.

Two parts (docs/algorithms/ccpo.md): versatile value estimation, Q(s, a | ε) = ψ(s, a)ᵀ z(ε), and conditioned
variational inference, a convex E-step for each of a set of thresholds and one supervised M-step over all of them.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ccpo import replay as replays
from ccpo.config import Settings, setting
from ccpo.errors import ConfigError
from ccpo.maths import gaussian, mstep, networks, normaliser, offpolicy
from ccpo.maths.estep import EStep, estep
from ccpo.maths.returns import HORIZONS, Horizon, nstep_return
from ccpo.runtime import NetConfig
from ccpo.types import Acting, Array, Experience, Problem, Transition


@dataclass(frozen=True)
class Config(Settings):
    """Every choice of the method. The paper leaves most open; docs/algorithms/ccpo.md numbers the deviations."""

    versatile_critic: bool = setting(True, "VVE: Q = ψᵀz; false is the ablation, a plain critic of [s; ε; a]")
    versatile_policy: bool = setting(True, "CVI: E- and M-step for unseen thresholds too; false is the ablation")
    hidden: tuple[int, ...] = setting((128, 128), "hidden layers of actor, plain critic and ψ", low=1)
    shared_body: bool = setting(False, "the critics of reward and cost share their hidden layers; false: their own")
    normalised_critic: bool = setting(False, "layer normalisation in the hidden layers of the critics")
    std_min: float = setting(0.1, "smallest scale of the policy, in units where actions span [−1, 1]", above=0, high=10)
    std_max: float = setting(1.0, "largest scale of the policy; it starts halfway between the two", above=0, high=10)
    features: int = setting(32, "F (the paper's M): size of ψ and z", low=1)
    feature_bound: float = setting(10.0, "K_f: the bound on ‖ψ‖∞", above=0)
    embedding_hidden: int = setting(64, "hidden units of z(ε)", low=1)
    spread_embedding: bool = setting(
        False, "z(ε) starts with the kinks of its units spread over the threshold range; false: all at its lower end"
    )
    horizon: str = setting("endless", "what critics sum up and which q_threshold belongs to it", choices=HORIZONS)
    discount: float = setting(0.97, "γ of both critics, or of the reward's alone", low=0, high=1)
    cost_discount: float | None = setting(None, "γ of the cost critic; none: discount", low=0, high=1)
    nstep: int = setting(2, "steps of reward and cost before a target bootstraps", low=1, high=100)
    target_rate: float = setting(
        0.05, "τ: the share of the critics that their targets take over at each update", above=0, high=1
    )
    target_samples: int = setting(
        2,
        "actions over which a target takes the mean of Q at its last state, in antithetic pairs; 1: one sample",
        low=1,
    )
    deployed_targets: bool = setting(
        False, "critics judge the policy as deployed: targets and levels of cost take its mean; false: as it explores"
    )
    steady_critic: bool = setting(True, "the E-step reads the target critics, which are averages; false: the newest")
    batch: int = setting(256, "transitions an update for the critics", low=1)
    conditions: int = setting(4, "thresholds an update for E- and M-step", low=1)
    states: int = setting(64, "states for each of these thresholds", low=1)
    sharing: int = setting(1, "how many neighbouring thresholds share their states and action samples", low=1)
    sharing_min: float = setting(
        0.5, "effective action samples, over K, below which neighbours do not share", low=0, high=1
    )
    action_samples: int = setting(16, "K: actions for each state", low=2)
    recent_episodes: float = setting(
        10.0, "E-step states come from this many newest episode lengths of each lane", above=0
    )
    updates_per_step: float = setting(0.2, "gradient updates for each environment step", above=0)
    refresh_updates: int = setting(60, "π_old is refreshed after this many updates", low=1)
    actor_rate: float = setting(5e-4, "Adam's rate for the actor", above=0)
    critic_rate: float = setting(1e-3, "Adam's rate for the critics", above=0)
    estep_kl_bound: float = setting(0.02, "κ: trust region of the E-step", above=0)
    mstep_kl_mean_bound: float = setting(0.005, "trust region of the M-step's mean, for each threshold", above=0)
    mstep_kl_std_bound: float = setting(0.0005, "trust region of the M-step's scale, for each threshold", above=0)
    mstep_multiplier_rate: float = setting(
        0.01, "rate, in the logarithm, of the multipliers of these two bounds", above=0
    )
    knots: int = setting(
        7, "evenly spaced thresholds at which multipliers of these bounds and levels of cost are kept", low=2
    )
    multiplier_max: float = setting(100.0, "λ_max: where the E-step gives up on the reward", above=0)
    temperature_min: float = setting(1e-5, "η_min", above=0)
    pretrain_share: float = setting(0.3, "share of the run on behaviour thresholds only", low=0, high=1)
    unseen_share: float = setting(
        0.7, "fine-tuning: share of E- and M-step thresholds drawn from the whole range", low=0, high=1
    )
    relabel_share: float = setting(
        0.5, "fine-tuning: share of critic targets with a threshold drawn from the whole range", low=0, high=1
    )
    constraint: str = setting(
        "advantage",
        "what the E-step bounds: the batch's mean of Q_c (value), or its change against a running level (advantage)",
        choices=("value", "advantage"),
    )
    constraint_gain: float = setting(
        0.1, "advantage: the share of the distance to the threshold that one E-step may close", above=0
    )
    recovery_share: float = setting(
        1.0,
        "advantage: the share of the trust region's reach in Q_c that one E-step may be made to use",
        above=0,
        high=1,
    )
    level_rate: float = setting(0.02, "rate of the running level of Q_c, at each update", above=0, high=1)
    rate_decay: float = setting(
        0.0, "share of the actor's and critics' rates that is gone at the end of the run", low=0, high=1
    )
    bound_decay: float = setting(
        0.0, "share of the M-step's trust regions that is gone at the end of the run", low=0, high=0.99
    )
    feedback_rate: float = setting(
        0.0, "rate at which measured episodic costs correct q_threshold; 0 is off", low=0, high=1
    )
    feedback_reach: float = setting(1.0, "how many times ε this correction may be", low=0)
    trust_share: float = setting(
        1.0, "share of feedback_rate at which a correction grows that allows more cost", low=0, high=1
    )
    violation_margin: float = setting(0.0, "safety margin in standard deviations of measured episodic cost", low=0)
    state_price: float = setting(
        0.0,
        "how much more the E-step counts what lies beyond the cost allowed in a single state",
        low=0,
    )
    end_cost: float = setting(
        0.0, "what an early end costs for each step that it skips, in units of the highest threshold's mean", low=0
    )
    loose_share: float = setting(
        0.0, "share of the run over which the cost allowed comes down from a whole episode's to ε", low=0, high=1
    )
    beyond_share: float = setting(
        1.0,
        "share of what ε has beyond the behaviour thresholds that networks see and the E-step grants",
        low=0,
        high=1,
    )
    above_share: float | None = setting(
        None, "the same above the highest behaviour threshold; none: beyond_share", low=0, high=1
    )
    low_margin: float = setting(
        0.0,
        "margin at the lowest behaviour threshold, as a share of its distance to the lowest threshold of the range; "
        "it fades towards the next behaviour threshold",
        low=0,
        high=1,
    )
    overspend_price: float = setting(
        0.0,
        "budget-aware tasks: what each unit of cost beyond ε takes from the reward, in the reward's root mean square, "
        "instead of a constraint on the mean cost; 0 is off",
        low=0,
    )
    average_rate: float = setting(
        0.0, "rate of the averaged actor that is deployed; 0 deploys the actor itself", low=0, high=1
    )
    normalise_observations: bool = setting(False, "running normalisation of observations")

    def validate(self) -> None:
        if self.std_min >= self.std_max:
            raise ConfigError(f"std_min={self.std_min:g} must be smaller than std_max={self.std_max:g}")
        if self.horizon == "endless" and 1.0 in (self.discount, self.cost_discount):
            raise ConfigError("a discount of 1 has no endless horizon; give a smaller one, or horizon=finite")
        if self.target_samples > 1 and self.target_samples % 2:
            raise ConfigError(f"target_samples={self.target_samples} must be 1 or even: samples come in pairs")
        if self.shared_body and not self.hidden:
            raise ConfigError("shared_body shares hidden layers, and hidden is empty; give one at least, such as 128")
        if self.constraint == "value" and self.state_price > 0:
            raise ConfigError(
                f"state_price={self.state_price:g} raises Q_c, which constraint=value bounds by what it is without; "
                "give state_price=0, or constraint=advantage"
            )
        if self.conditions % self.sharing or self.states % self.sharing:
            raise ConfigError(
                f"sharing={self.sharing} must divide conditions={self.conditions} and states={self.states}"
            )


METRICS = {
    "critic/reward_loss": "mean squared error of Q_r against its targets, in units that make Q of order one",
    "critic/cost_loss": "the same of Q_c",
    "estep/kl_over_bound": "KL(q* ‖ π_old) over κ; 1 where the trust region binds, as it nearly always does",
    "estep/temperature": "η*",
    "estep/multiplier": "λ*, mean over thresholds; 0 where the constraint is slack",
    "estep/multiplier_at_bound": "how often λ* sits at λ_max: the constraint cannot be met inside the trust region",
    "estep/effective_samples": "effective action samples a state under q*, over K",
    "estep/shared_samples": "effective action samples that a threshold has of those it shares, over K",
    "mstep/kl_mean_over_bound": "KL(π_old ‖ π) of the mean over its bound; about 1 in a healthy run",
    "mstep/kl_std_over_bound": "the same of the scale",
    "mstep/bursts": "how often KL left its bounds so far that the actor went back to π_old; 0 in a healthy run",
    "policy/std": "mean scale of the policy, in units where actions span [−1, 1]",
    "feedback/predicted_cost": "episodic cost that the critic expects, mean over behaviour thresholds",
    "feedback/cost_bias": "predicted minus measured episodic cost, as it corrects the E-step",
    "feedback/cost_spread": "standard deviation of measured episodic cost",
}

BURST = 8.0
"""KL over its bound, of mean and scale together and averaged over thresholds, that an M-step does not go on from."""
SPREAD_RATE = 0.1
LEVEL_STATES = 32
UNBOUNDED = 1e6
"""In the critic's unit, in which Q_c is of order one."""


class State(NamedTuple):
    """Everything that learning changes."""

    actor: list
    actor_old: list
    actor_average: list
    critic: dict
    critic_target: dict
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    kl_multipliers: mstep.KLMultipliers
    normaliser: normaliser.Normaliser
    reward_unit: Array
    cost_level: Array
    """At evenly spaced thresholds: the mean of Q_c over visited states under the policy, times ε_H."""
    cost_bias: Array
    """By behaviour threshold: predicted minus measured episodic cost."""
    cost_measured: Array
    cost_variance: Array
    """By behaviour threshold: the latest measured episodic cost, and the running variance around its slow drift."""
    updates: Array
    key: Array


def init(config: Config, problem: Problem, key: Array) -> State:
    """The state before the first step."""
    spec = problem.spec
    if config.overspend_price > 0 and not spec.budget_aware:
        raise ConfigError(
            f"overspend_price={config.overspend_price:g} needs to see what an episode has cost so far, which "
            f"'{spec.task}' does not show; give a budget-aware task, such as DroneRun-BudgetAware"
        )
    actor_key, reward_key, cost_key, key = jax.random.split(key, 4)
    actor = networks.init_actor(actor_key, spec.observation_size + 1, spec.action_size, hidden=config.hidden)
    critic: networks.Critics = {
        "reward": _init_critic(config, problem, reward_key),
        "cost": _init_critic(config, problem, cost_key),
    }
    if config.shared_body:
        critic = networks.share_body(critic, "feature" if config.versatile_critic else "joint")
    multipliers = mstep.init_multipliers(config.knots, value=10.0)
    per_threshold = jnp.zeros(len(problem.behaviour_thresholds))
    state = State(
        actor=actor,
        actor_old=actor,
        actor_average=actor,
        critic=critic,
        critic_target=critic,
        actor_opt=optax.adam(config.actor_rate).init(actor),
        critic_opt=optax.adam(config.critic_rate).init(critic),
        kl_multipliers=multipliers,
        normaliser=normaliser.init(spec.observation_size),
        reward_unit=jnp.ones(()),
        cost_level=jnp.zeros(config.knots),
        cost_bias=per_threshold,
        cost_measured=per_threshold,
        cost_variance=per_threshold,
        updates=jnp.zeros((), jnp.int32),
        key=key,
    )
    return jax.tree.map(jnp.copy, state)


def _init_critic(config: Config, problem: Problem, key: Array) -> dict:
    spec = problem.spec
    inputs = spec.observation_size + int(horizons(config, problem)["cost"].sees_time)
    if config.versatile_critic:
        high = problem.threshold_range[1]
        return networks.init_versatile_critic(
            key,
            inputs,
            spec.action_size,
            hidden=config.hidden,
            features=config.features,
            embedding_hidden=config.embedding_hidden,
            kinks_upto=networks.normalise_threshold(high, problem.threshold_range) if config.spread_embedding else 0.0,
            normalised=config.normalised_critic,
        )
    return networks.init_plain_critic(
        key, inputs, spec.action_size, hidden=config.hidden, normalised=config.normalised_critic
    )


def horizons(config: Config, problem: Problem) -> dict[str, Horizon]:
    """What each critic sums up."""
    cost_discount = config.discount if config.cost_discount is None else config.cost_discount
    discounts = {"reward": config.discount, "cost": cost_discount}
    return {name: Horizon(config.horizon, problem.spec.episode_length, value) for name, value in discounts.items()}


def act(
    config: Config, problem: Problem, state: State, obs: Array, threshold: Array, key: Array | None = None
) -> Array:
    """The action for observations [N, O] under thresholds [N]: as deployed, or a sample of π if a key is given."""
    params = state.actor if key is not None else deployed_actor(config, state)
    mean, std = policy(config, problem, params, state.normaliser(obs), threshold)
    return mean if key is None else gaussian.sample(key, mean, std, count=1)[..., 0, :]


def deployed_actor(config: Config, state: State) -> list:
    return state.actor_average if config.average_rate > 0 else state.actor


def drawn_in(config: Config, problem: Problem, thresholds: Array) -> Array:
    """Thresholds with only a share of what they have beyond the behaviour thresholds: [...] → [...].

    Nothing is collected out there, so what networks make of such an input is a guess; a near input is a near guess.
    """
    below = jnp.minimum(thresholds - problem.behaviour_thresholds[0], 0.0)
    above = jnp.maximum(thresholds - problem.behaviour_thresholds[-1], 0.0)
    return thresholds - (1.0 - config.beyond_share) * below - (1.0 - _above_share(config)) * above


def _above_share(config: Config) -> float:
    return config.beyond_share if config.above_share is None else config.above_share


def seen_threshold(config: Config, problem: Problem, thresholds: Array) -> Array:
    """Thresholds as the networks see them: drawn in and normalised, [...] → [...]."""
    return networks.normalise_threshold(drawn_in(config, problem, thresholds), problem.threshold_range)


def policy(config: Config, problem: Problem, params: list, obs: Array, threshold: Array) -> tuple[Array, Array]:
    """Mean and scale of π(· | s, ε) for normalised observations [..., O] and thresholds [...]."""
    condition = seen_threshold(config, problem, threshold)
    return networks.actor(params, obs, condition, std_range=(config.std_min, config.std_max))


def q_values(
    config: Config, problem: Problem, critic: networks.Critics, inputs: Array, action: Array, threshold: Array
) -> dict[str, Array]:
    """Q_r and Q_c(s, a | ε): critic inputs [..., I], actions [..., K, A], thresholds [...] → {name: [..., K]}."""
    condition = seen_threshold(config, problem, threshold)
    action = jnp.clip(action, -1.0, 1.0)
    if config.versatile_critic:
        return networks.versatile_q(critic, inputs, action, condition, bound=config.feature_bound)
    return networks.plain_q(critic, inputs, action, condition)


def update(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Learn from an iteration's experience: take its statistics in, then a scan of gradient updates."""
    state, metrics = observe(config, problem, state, experience)
    count = max(1, round(config.updates_per_step * experience.rollout.reward.size))
    body = partial(step, config, problem, experience)
    state, history = jax.lax.scan(body, state, length=count)
    return state, metrics | jax.tree.map(jnp.mean, history)


def step(
    config: Config, problem: Problem, experience: Experience, state: State, _: None = None
) -> tuple[State, dict[str, Array]]:
    """One gradient update: critics, E-step for a set of thresholds, M-step over all of them, targets."""
    key, *keys = jax.random.split(state.key, 5)
    state = state._replace(key=key)
    state, critic_metrics = update_critics(config, problem, state, experience, keys[0])
    state = update_cost_level(config, problem, state, experience, keys[1])
    conditions = draw_conditions(config, problem, experience, keys[2])
    state, policy_metrics = update_policy(config, problem, state, experience, conditions, keys[3])
    return track(config, state), critic_metrics | policy_metrics


def observe(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """What a new rollout tells once: observation statistics, the reward's unit, how far predicted costs are off."""
    rollout = experience.rollout
    if config.normalise_observations:
        state = state._replace(normaliser=normaliser.merge(state.normaliser, rollout.obs))
    return _feed_back(config, problem, _rescale_reward(state, rollout), experience)


def _rescale_reward(state: State, rollout: Transition) -> State:
    """Follow the reward's root mean square; critics keep their values in the environment's unit."""
    unit, factor = offpolicy.follow_reward_unit(state.reward_unit, rollout.reward, first=state.updates == 0)

    def rescale(critic: dict) -> dict:
        return {**critic, "reward": networks.rescale_output(critic["reward"], factor)}

    return state._replace(reward_unit=unit, critic=rescale(state.critic), critic_target=rescale(state.critic_target))


def _feed_back(
    config: Config, problem: Problem, state: State, experience: Experience
) -> tuple[State, dict[str, Array]]:
    """Move the estimates of critic bias and cost spread towards what finished episodes show."""
    measured, count = offpolicy.measured_costs(problem, experience.statistics)
    thresholds = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    predicted = level_at(problem, state, thresholds)
    known = (count > 0) & (state.updates > 0)
    reach = config.feedback_reach * thresholds
    change = jnp.clip(predicted - measured, -reach, reach) - state.cost_bias
    rate = config.feedback_rate * jnp.where(change > 0, config.trust_share, 1.0)
    bias = state.cost_bias + jnp.where(known, rate, 0.0) * change
    # Half the squared difference of successive measurements: a variance that a drifting mean does not inflate.
    jump = 0.5 * (measured - state.cost_measured) ** 2 * jnp.maximum(count, 1.0)
    variance = state.cost_variance + jnp.where(known, SPREAD_RATE, 0.0) * (jump - state.cost_variance)
    measured = jnp.where(count > 0, measured, state.cost_measured)
    state = state._replace(cost_bias=bias, cost_measured=measured, cost_variance=variance)
    metrics = {
        "feedback/predicted_cost": predicted.mean(),
        "feedback/cost_bias": bias.mean(),
        "feedback/cost_spread": jnp.sqrt(variance).mean(),
    }
    return state, metrics


def level_at(problem: Problem, state: State, thresholds: Array) -> Array:
    """The episodic cost that the critic expects of the policy under each threshold: [C] → [C]."""
    return jnp.interp(thresholds, _knots(problem, state.cost_level.shape[0]), state.cost_level)


def _knots(problem: Problem, count: int) -> Array:
    return jnp.linspace(*problem.threshold_range, count)


def update_cost_level(config: Config, problem: Problem, state: State, experience: Experience, key: Array) -> State:
    """Follow the mean of Q_c over the states that the policy visits under each of the evenly spaced thresholds."""
    thresholds = _knots(problem, config.knots)
    state_key, action_key = jax.random.split(key)
    condition = jnp.broadcast_to(thresholds[:, None], (config.knots, LEVEL_STATES))
    steps = draw_states(config, problem, experience, condition, state_key)
    obs = state.normaliser(steps.obs)
    action = _judged_actions(config, action_key, *policy(config, problem, state.actor, obs, condition), count=1)
    inputs = critic_inputs(config, problem, obs, steps.time_to_go)
    q = pool_q(config, problem, state.critic, inputs, action, thresholds[:, None])["cost"]
    fresh = q.mean(axis=(1, 2)) * problem.threshold_range[1]
    rate = jnp.maximum(config.level_rate, 1.0 / (state.updates + 1.0))
    return state._replace(cost_level=state.cost_level + rate * (fresh - state.cost_level))


def critic_inputs(config: Config, problem: Problem, obs: Array, time_to_go: Array) -> Array:
    """Normalised observations, with the share of the episode still to go where the critics' horizon is finite."""
    return offpolicy.critic_inputs(horizons(config, problem)["cost"], obs, time_to_go)


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


def relabel(config: Config, problem: Problem, threshold: Array, progress: Array, key: Array) -> Array:
    """In fine-tuning, a share of the transitions serves thresholds drawn from the whole range: [B] → [B]."""
    choice, place = jax.random.uniform(key, (2, *threshold.shape))
    share = jnp.where(fine_tuning(config, progress), config.relabel_share, 0.0)
    return jnp.where(choice < share, _spread(problem, place), threshold)


def _spread(problem: Problem, unit: Array) -> Array:
    """Uniform numbers in [0, 1] as thresholds; a share falls on the ends, which have neighbours on one side only."""
    low, high = problem.threshold_range
    return low + (high - low) * jnp.clip(1.1 * unit - 0.05, 0.0, 1.0)


def fine_tuning(config: Config, progress: Array) -> Array:
    """Whether the second stage, with unseen thresholds, has begun."""
    return (progress >= config.pretrain_share) & config.versatile_policy


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
    action = _judged_actions(config, key, mean, std, count=config.target_samples)
    inputs = critic_inputs(config, problem, obs, time_to_go - 1)
    q = q_values(config, problem, state.critic_target, inputs, action, threshold)
    after_end = {"reward": 0.0, "cost": config.end_cost * look["cost"].rest(time_to_go - 1)}
    return {
        name: returns[name].value / units[name]
        + returns[name].discount * (alive * q[name].mean(axis=-1) + terminated * after_end[name])
        for name in gains
    }


def _judged_actions(config: Config, key: Array, mean: Array, std: Array, *, count: int) -> Array:
    """Actions of the policy that the critics judge, mean and scale [..., A] → [..., K, A].

    The mean alone as deployed, else `count` samples, in antithetic pairs if there are several.
    """
    if config.deployed_targets:
        return mean[..., None, :]
    action = gaussian.sample(key, mean, std, count=(count + 1) // 2)
    return action if count == 1 else jnp.concatenate([action, 2.0 * mean[..., None, :] - action], axis=-2)


def _overspending(config: Config, problem: Problem, state: State, window: Transition, threshold: Array) -> Array:
    """What steps are charged for their cost beyond the budget ε, given what their episode had spent before: [n, B]."""
    if config.overspend_price == 0:
        return jnp.zeros_like(window.reward)
    beyond = window.obs[..., -2] * problem.spec.budget_unit - threshold[None, :]
    overspent = jnp.maximum(beyond + window.cost, 0.0) - jnp.maximum(beyond, 0.0)
    return config.overspend_price * state.reward_unit * overspent


def draw_conditions(config: Config, problem: Problem, experience: Experience, key: Array) -> Array:
    """The thresholds of an update: behaviour thresholds and, in fine-tuning, a share from the whole range.

    [P, B]: the B of a pool are neighbours, which share states and action samples.
    """
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    count, pools = config.conditions, config.conditions // config.sharing
    first, choice, place = jnp.split(jax.random.uniform(key, (1 + pools + count,)), (1, 1 + pools))
    seen = behaviour[(jnp.arange(pools) + replays.whole(first, len(behaviour))) % len(behaviour)]
    unseen = _spread(problem, (jnp.arange(count) + place) / count).reshape(pools, config.sharing)
    share = jnp.where(fine_tuning(config, experience.progress), config.unseen_share, 0.0)
    return jnp.where((choice < share)[:, None], unseen, seen[:, None])


def draw_states(config: Config, problem: Problem, experience: Experience, thresholds: Array, key: Array) -> Transition:
    """A step that the policy visits near each threshold: a newest one of the two nearest behaviour thresholds, in the
    proportion that interpolates between them: [...] → Transition of [...]."""
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    position = jnp.interp(thresholds, behaviour, jnp.arange(len(behaviour), dtype=jnp.float32))
    rounding, place, age = jax.random.uniform(key, (3, *thresholds.shape))
    lower = jnp.floor(position)
    index = lower.astype(jnp.int32) + (rounding < position - lower)
    lanes = problem.lanes_per_threshold
    lane = index * lanes + replays.whole(place, lanes)
    recent = max(1, round(config.recent_episodes * problem.spec.episode_length))
    return replays.recent_steps(experience.replay, age, lane, recent=recent)


def cost_allowed(config: Config, problem: Problem, state: State, thresholds: Array, progress: Array) -> Array:
    """What an episode under each threshold may cost: ε, less the margin: [C] → [C].

    The margin grows with the run's progress: early costs spread widely because the policy still changes. Beyond the
    highest behaviour threshold no cost is measured and no state visited: only a share of what ε has there is granted.
    Below the lowest one, where the same holds, its policy may have to do for all: `low_margin`.
    """
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    spread = jnp.sqrt(state.cost_variance)
    margin = config.violation_margin * progress * jnp.interp(thresholds, behaviour, spread)
    if config.loose_share > 0:
        margin -= problem.spec.episode_length * jnp.maximum(1.0 - progress / config.loose_share, 0.0)
    low = problem.threshold_range[0]
    fading = jnp.interp(thresholds, behaviour[:2], jnp.array([1.0, 0.0])[: len(behaviour)])
    granted = jnp.minimum(thresholds, drawn_in(config, problem, thresholds))
    granted = jnp.maximum(granted - config.low_margin * (behaviour[0] - low) * fading, low)
    return granted - margin


def steepened(config: Config, problem: Problem, q_cost: Array, allowed: Array) -> Array:
    """Q_c [C, S, K], in which what lies beyond the cost allowed [C] in a single state counts more.

    An episode that keeps ε has no state from which it costs more than ε, and the constraint bounds a mean over states.
    """
    if config.state_price == 0:
        return q_cost
    look = horizons(config, problem)["cost"]
    limit = look.q_run(jnp.maximum(allowed, 0.0)) / look.q_threshold(problem.threshold_range[1])
    return q_cost + config.state_price * jnp.maximum(q_cost - limit[:, None, None], 0.0)


def q_threshold(
    config: Config,
    problem: Problem,
    state: State,
    thresholds: Array,
    q_cost: Array,
    *,
    log_weights: Array,
    allowed: Array,
) -> Array:
    """The bound on E_s E_q[Q_c], in the critic's unit, for q_cost [C, S, K] under the old policy: [C] → [C].

    None where the reward pays for overspending. What is allowed [C] is corrected by the critic's bias.
    value: ε_q itself, as in Eq. (8).
    advantage: E_s E_π[Q_c] + gain·(ε_q − level), which bounds the *change* of Q_c; the level is averaged over many
    batches, so that the states a batch happens to hold do not decide what is safe. What a step may be made to lower
    Q_c by is a share of what the trust region can, √(2κ)·σ_a(Q_c) in each state; the rest of it is the reward's.
    """
    if config.overspend_price > 0:
        return jnp.full_like(thresholds, UNBOUNDED)
    behaviour = jnp.asarray(problem.behaviour_thresholds, jnp.float32)
    target = allowed + jnp.interp(thresholds, behaviour, state.cost_bias)
    if config.constraint == "value":
        return target / problem.threshold_range[1]
    slack = (target - level_at(problem, state, thresholds)) / problem.threshold_range[1]
    log_weights, q_cost = (jnp.swapaxes(x, 1, 2) for x in (log_weights, q_cost))
    weights = jax.nn.softmax(log_weights, axis=1)
    mean = jnp.sum(weights * q_cost, axis=1)
    variance = jnp.sum(weights * (q_cost - mean[:, None]) ** 2, axis=1)
    reach = jnp.sqrt(2.0 * config.estep_kl_bound * variance.mean(axis=1))
    return mean.mean(axis=1) + jnp.maximum(config.constraint_gain * slack, -config.recovery_share * reach)


class Pool(NamedTuple):
    """The samples of an E-step: P pools, each of B neighbouring thresholds with states and actions in common."""

    thresholds: Array
    """[P, B]."""
    mean: Array
    std: Array
    """π_old under each threshold in each state: [P, B, S, A]."""
    action: Array
    """Samples of the mixture of these B policies: [P, S, K, A]."""
    log_weights: Array
    """log π_old(a | s, ε) − log of the mixture's density: [P, B, S, K]."""
    effective: Array
    """Effective samples of these weights, over K: [P]."""


def draw_pool(config: Config, problem: Problem, state: State, thresholds: Array, obs: Array, *, key: Array) -> Pool:
    """Actions for thresholds [P, B] in states obs [P, S, O].

    Where the neighbours' policies differ so much that too few samples would count, one of them, each in its turn,
    takes the place of all.
    """
    mean, std = policy(config, problem, state.actor_old, obs[:, None], thresholds[..., None])
    noise = jax.random.normal(key, (*obs.shape[:2], config.action_samples, mean.shape[-1]))

    def sample(thresholds: Array, mean: Array, std: Array) -> Pool:
        action = gaussian.mix(noise, mean, std)
        log_weights = gaussian.mixture_log_weights(action, mean, std)
        effective = gaussian.effective_share(log_weights).mean(axis=(1, 2))
        return Pool(thresholds, mean, std, action, log_weights, effective)

    pool = sample(thresholds, mean, std)
    if config.sharing == 1:
        return pool
    alone = pool.effective < config.sharing_min

    def settle(x: Array) -> Array:
        one = jax.lax.dynamic_index_in_dim(x, state.updates % config.sharing, axis=1)
        return jnp.where(alone.reshape(-1, *[1] * (x.ndim - 1)), one, x)

    def resample() -> Pool:
        settled = sample(*(settle(x) for x in (thresholds, mean, std)))
        return settled._replace(effective=pool.effective)

    return jax.lax.cond(alone.any(), resample, lambda: pool)


def pool_q(
    config: Config, problem: Problem, critic: networks.Critics, inputs: Array, action: Array, thresholds: Array
) -> dict[str, Array]:
    """Q of the actions of pools under each of their thresholds: ψ once for all thresholds, z once for all states.

    inputs [P, S, I], action [P, S, K, A], thresholds [P, B] → {name: [P·B, S, K]}.
    """
    samples = (*thresholds.shape, *action.shape[1:3])
    if config.versatile_critic:
        condition = seen_threshold(config, problem, thresholds)
        psi = networks.features(critic, inputs, jnp.clip(action, -1.0, 1.0), bound=config.feature_bound)
        q = {
            name: jnp.einsum("pskf,pbf->pbsk", psi[name], networks.embedding(critic[name]["embedding"], condition))
            for name in psi
        }
    else:
        inputs, action = (jnp.broadcast_to(x[:, None], (*samples[:2], *x.shape[1:])) for x in (inputs, action))
        thresholds = jnp.broadcast_to(thresholds[..., None], samples[:3])
        q = q_values(config, problem, critic, inputs, action, thresholds)
    return {name: values.reshape(-1, *samples[2:]) for name, values in q.items()}


def update_policy(
    config: Config, problem: Problem, state: State, experience: Experience, thresholds: Array, key: Array
) -> tuple[State, dict[str, Array]]:
    """Constraint-conditioned E-step for each threshold [P, B], then one Adam step of the versatile M-step.

    The E-step of a threshold uses all states of its pool, the M-step those that were drawn for this threshold.
    """
    state_key, action_key = jax.random.split(key)
    own = config.states // config.sharing
    steps = draw_states(config, problem, experience, jnp.repeat(thresholds, own, axis=1), state_key)
    obs = state.normaliser(steps.obs)
    pool = draw_pool(config, problem, state, thresholds, obs, key=action_key)
    inputs = critic_inputs(config, problem, obs, steps.time_to_go)
    log_weights = pool.log_weights.reshape(-1, *pool.log_weights.shape[2:])
    conditions = pool.thresholds.reshape(-1)
    critic = state.critic_target if config.steady_critic else state.critic
    q = pool_q(config, problem, critic, inputs, pool.action, pool.thresholds)
    allowed = cost_allowed(config, problem, state, conditions, experience.progress)
    q_cost = steepened(config, problem, q["cost"], allowed)
    bound = q_threshold(config, problem, state, conditions, q_cost, log_weights=log_weights, allowed=allowed)
    solution = estep(
        q["reward"],
        q_cost,
        bound,
        kl_bound=config.estep_kl_bound,
        multiplier_max=config.multiplier_max,
        temperature_min=config.temperature_min,
        log_weights=log_weights,
    )

    state, divergences, burst = _mstep(
        config,
        problem,
        state,
        experience,
        obs.reshape(-1, own, *obs.shape[2:]),
        condition=jnp.broadcast_to(conditions[:, None], (config.conditions, own)),
        action=pool.action.reshape(-1, own, *pool.action.shape[2:]),
        weights=_own_states(solution.weights.reshape(pool.log_weights.shape)),
        old_policy=(_own_states(pool.mean), _own_states(pool.std)),
    )
    return state, policy_metrics(config, solution, pool, divergences) | {"mstep/bursts": burst}


def _own_states(x: Array) -> Array:
    """Of values in all states of a pool, those in the states drawn for each threshold: [P, B, S, …] → [C, S/B, …]."""
    pools, sharing, states, *rest = x.shape
    own, each = states // sharing, jnp.arange(sharing)
    return x.reshape(pools, sharing, sharing, own, *rest)[:, each, each].reshape(-1, own, *rest)


def _mstep(
    config: Config,
    problem: Problem,
    state: State,
    experience: Experience,
    obs: Array,
    *,
    condition: Array,
    action: Array,
    weights: Array,
    old_policy: tuple[Array, Array],
) -> tuple[State, tuple[Array, Array], Array]:
    low, high = problem.threshold_range
    position = (condition[:, 0] - low) / (high - low)
    multiplier_mean, multiplier_std = (
        mstep.multiplier_at(log, position) for log in (state.kl_multipliers.log_mean, state.kl_multipliers.log_std)
    )

    def loss(actor: list) -> tuple[Array, mstep.MStep]:
        result = mstep.mstep_loss(
            weights,
            action,
            policy(config, problem, actor, obs, condition),
            old_policy=old_policy,
            multiplier_mean=multiplier_mean,
            multiplier_std=multiplier_std,
        )
        return result.loss, result

    grads, result = jax.grad(loss, has_aux=True)(state.actor)
    scale = offpolicy.rate_scale(config.rate_decay, experience)
    actor, actor_opt = offpolicy.adam_step(config.actor_rate, grads, state.actor_opt, state.actor, scale=scale)
    divergences = (result.kl_mean, result.kl_std)
    left = 1.0 - config.bound_decay * experience.progress
    bounds = (left * config.mstep_kl_mean_bound, left * config.mstep_kl_std_bound)
    multipliers = [
        mstep.update_multipliers(log, position, kl, bound=bound, rate=config.mstep_multiplier_rate)
        for log, kl, bound in zip(state.kl_multipliers, divergences, bounds, strict=True)
    ]
    # The multipliers need many updates to answer a burst of KL; going back to π_old stops it at once. Adam loses its
    # momentum, which would lead there again. It keeps what it knew of the size of gradients: its very first step,
    # which knows nothing, is so large that it would be the next burst.
    burst = sum(kl.mean() / bound for kl, bound in zip(divergences, bounds, strict=True)) > BURST
    at_rest = optax.tree_utils.tree_set(state.actor_opt, mu=jax.tree.map(jnp.zeros_like, state.actor_old))
    restart = (state.actor_old, at_rest)
    actor, actor_opt = jax.tree.map(lambda go, back: jnp.where(burst, back, go), (actor, actor_opt), restart)
    state = state._replace(
        actor=actor,
        actor_opt=actor_opt,
        kl_multipliers=mstep.KLMultipliers(*multipliers),
    )
    return state, divergences, burst


def policy_metrics(config: Config, solution: EStep, pool: Pool, divergences: tuple[Array, Array]) -> dict[str, Array]:
    """Health of E- and M-step; quantities relative to their bounds read 1.0 when the bound is met exactly."""
    return {
        "estep/kl_over_bound": solution.kl.mean() / config.estep_kl_bound,
        "estep/temperature": solution.temperature.mean(),
        "estep/multiplier": solution.multiplier.mean(),
        "estep/multiplier_at_bound": solution.at_bound.mean(),
        "estep/effective_samples": solution.effective_samples.mean() / config.action_samples,
        "estep/shared_samples": pool.effective.mean(),
        "mstep/kl_mean_over_bound": divergences[0].mean() / config.mstep_kl_mean_bound,
        "mstep/kl_std_over_bound": divergences[1].mean() / config.mstep_kl_std_bound,
        "policy/std": pool.std.mean(),
    }


def track(config: Config, state: State) -> State:
    """What follows a gradient update: target critics, the averaged actor, and π_old once in a while."""
    updates = state.updates + 1
    refresh = updates % config.refresh_updates == 0
    return state._replace(
        critic_target=optax.incremental_update(state.critic, state.critic_target, config.target_rate),
        actor_average=optax.incremental_update(state.actor, state.actor_average, config.average_rate),
        actor_old=jax.tree.map(lambda new, old: jnp.where(refresh, new, old), state.actor, state.actor_old),
        updates=updates,
    )


def acting(config: Config, problem: Problem, state: State) -> Acting:
    """The arrays that lanes act with: the actor to explore, the averaged one (if any) as deployed."""
    low, high = problem.threshold_range
    first, last = problem.behaviour_thresholds[0], problem.behaviour_thresholds[-1]
    below, above = config.beyond_share, _above_share(config)
    seen = {low: first + below * (low - first), high: last + above * (high - last), first: first, last: last}
    asked = tuple(sorted(seen)) if min(below, above) < 1.0 else ()
    net = NetConfig(
        activation="relu",
        distribution="gaussian",
        std_min=config.std_min,
        std_max=config.std_max,
        conditioned=True,
        threshold_low=low,
        threshold_high=high,
        asked=asked,
        shown=tuple(seen[threshold] for threshold in asked),
    )

    def arrays(actor: list) -> dict[str, Array]:
        return networks.named(actor) | {"obs_mean": state.normaliser.mean, "obs_std": state.normaliser.std}

    explore, deploy = jax.tree.map(np.array, (arrays(state.actor), arrays(deployed_actor(config, state))))
    return Acting(net, explore, deploy)
