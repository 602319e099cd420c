"""What PPO-Lag and TRPO-Lag share: one Gaussian policy, values, advantages and a multiplier, at one threshold.

Deviations from the public code of these baselines, of both methods:

1. A rollout is one update old. The loop collects rollout i + 1 with the policy as it was before iteration i learned, so
   in iteration i the policy that acted, π_{i−1}, is not the current one, π_i (in iterations 0 and 1 it is π_0, the
   initial one, that acted). `Learner` keeps both; samples are weighted by π_i/π_{i−1}, and the trust region lies
   around π_i.
2. Values are learned in units that make them of order one, so that rates mean the same in every task.
3. The multiplier follows (episodic cost − ε)/ε_H: gains of 3.5, 0.035, 7 are 0.05, 0.0005, 0.1 on the cost itself of
   tasks with ε_H = 70. The integral gain is ten times as large by default: with standardised advantages λ settles near
   1, where the proportional part alone would leave the cost far above its threshold.
4. Reward and cost enter the surrogate as one advantage, not as two that are clipped apart.

Shapes: B samples of a rollout, T·E of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ccpo.config import Settings, setting
from ccpo.errors import ConfigError
from ccpo.maths import gaussian, networks, normaliser
from ccpo.maths.multipliers import PID, PIDState
from ccpo.maths.normaliser import Normaliser
from ccpo.maths.offpolicy import follow_reward_unit, lagrangian, measured_costs
from ccpo.maths.returns import gae
from ccpo.runtime import LOG_STD_MAX, LOG_STD_MIN, NetConfig
from ccpo.types import Acting, Array, Experience, Problem, Transition

WEIGHT_MAX = 5.0

METRICS = {
    "critic/reward_loss": "mean squared error of the reward's value, in units of its size",
    "critic/cost_loss": "mean squared error of the cost's value, in units of its size",
    "multiplier/mean": "λ",
    "policy/std": "mean scale of the policy",
    "policy/kl_over_bound": "mean KL from the policy before the update, relative to its bound",
    "policy/weight_max": "the largest weight π_i/π_{i−1} of a sample; 1 where the policy that acted is the current one",
}


@dataclass(frozen=True)
class OnPolicySettings(Settings):
    """The settings of every on-policy Lagrangian method."""

    hidden: tuple[int, ...] = setting((128, 128), "hidden layers of policy and values", low=1)
    initial_std: float = setting(0.6, "scale of the policy at the start", above=0, high=7)
    discount: float = setting(0.99, "γ of both values", low=0, high=1)
    gae_decay: float = setting(0.95, "decay of generalised advantages", low=0, high=1)
    repeats: int = setting(4, "how often an update goes over its rollout", low=1)
    batch: int = setting(256, "samples a gradient step", low=1)
    value_rate: float = setting(5e-4, "Adam's rate for the values", above=0)
    multiplier_gains: tuple[float, ...] = setting(
        (3.5, 0.35, 7.0), "PID gains of λ, once an iteration, on (episodic cost − ε)/ε_H", low=0
    )
    normalise_observations: bool = setting(False, "running normalisation of observations")

    def validate(self) -> None:
        if len(self.multiplier_gains) != 3:
            raise ConfigError(
                f"multiplier_gains={self.multiplier_gains} must be three numbers (P, I, D), such as 3.5,0.035,7"
            )


class Learner(NamedTuple):
    """What learning changes, whatever the method."""

    actor: dict[str, Any]
    """`layers` of the mean and `log_std`, as `policy` reads them."""
    normaliser: Normaliser
    acted: dict[str, Any]
    """The actor behind the rollout that the next update gets: the one from before the latest update."""
    acted_normaliser: Normaliser
    values: dict[str, list]
    value_opt: optax.OptState
    reward_unit: Array
    """Running root mean square of the reward."""
    pid: PIDState
    updates: Array
    key: Array


class Batch(NamedTuple):
    """Samples of the rollout; `log_acted` is their log-density under the policy that acted. [B, …]."""

    obs: Array
    """Normalised as the current policy sees them."""
    action: Array
    log_acted: Array
    advantage: Array
    targets: dict[str, Array]


def init(config: OnPolicySettings, problem: Problem, key: Array) -> Learner:
    """The learner before the first step."""
    _check_problem(problem)
    spec = problem.spec
    actor_key, reward_key, cost_key, key = jax.random.split(key, 4)
    actor = init_policy(actor_key, (spec.observation_size, *config.hidden, spec.action_size), std=config.initial_std)
    sizes = (spec.observation_size, *config.hidden, 1)
    values = {"reward": networks.init_mlp(reward_key, sizes), "cost": networks.init_mlp(cost_key, sizes)}
    statistics = normaliser.init(spec.observation_size)
    learner = Learner(
        actor=actor,
        normaliser=statistics,
        acted=actor,
        acted_normaliser=statistics,
        values=values,
        value_opt=optax.adam(config.value_rate).init(values),
        reward_unit=jnp.ones(()),
        pid=PID(config.multiplier_gains).init(1),
        updates=jnp.zeros((), jnp.int32),
        key=key,
    )
    return jax.tree.map(jnp.copy, learner)


def _check_problem(problem: Problem) -> None:
    if len(problem.behaviour_thresholds) > 1:
        listed = ",".join(f"{t:g}" for t in problem.behaviour_thresholds)
        raise ConfigError(
            f"behaviour_thresholds={listed}, but on-policy methods train at one threshold; give one of them "
            f"(--behaviour-thresholds {problem.behaviour_thresholds[1]:g}), and join finished runs with: ccpo combine"
        )
    if problem.deployed_lanes:
        raise ConfigError(
            f"deployed_lanes={problem.deployed_lanes}, but on-policy methods learn from sampled actions only; "
            "set deployed_lanes=0"
        )


def init_policy(key: Array, sizes: Sequence[int], *, std: float) -> dict[str, Any]:
    """A network for the mean, near zero at the start, and one scale for all observations."""
    return {
        "layers": networks.init_mlp(key, sizes, last_gain=0.01),
        "log_std": jnp.full(sizes[-1], math.log(std), jnp.float32),
    }


def policy(actor: dict[str, Any], obs: Array) -> tuple[Array, Array]:
    """Mean μ(s) and scale exp(log_std) of π(· | s): normalised observations [..., O] → two arrays [..., A]."""
    mean = networks.mlp(actor["layers"], obs)
    return mean, jnp.broadcast_to(jnp.exp(jnp.clip(actor["log_std"], LOG_STD_MIN, LOG_STD_MAX)), mean.shape)


def act(learner: Learner, obs: Array, key: Array | None = None) -> Array:
    """The deployed action, the mean, for observations [N, O], or a sample of π if a key is given."""
    mean, std = policy(learner.actor, learner.normaliser(obs))
    return jnp.clip(mean, -1.0, 1.0) if key is None else gaussian.sample(key, mean, std, count=1)[..., 0, :]


def acting(problem: Problem, learner: Learner) -> Acting:
    """The arrays that lanes act with."""
    low, high = problem.threshold_range
    net = NetConfig("gaussian_linear", threshold_low=(low,), threshold_high=(high,), condition="none")
    named = networks.named(learner.actor["layers"]) | {"log_std": learner.actor["log_std"]}
    named |= {"obs_mean": learner.normaliser.mean, "obs_std": learner.normaliser.std}
    arrays = jax.tree.map(np.array, named)
    return Acting(net, arrays, arrays)


def observe(
    config: OnPolicySettings, problem: Problem, learner: Learner, experience: Experience
) -> tuple[Learner, Batch, dict[str, Array]]:
    """Take a new rollout in: multiplier, units, observation statistics; then its samples, ready to learn from."""
    rollout = experience.rollout
    log_acted = gaussian.log_density(rollout.action, *policy(learner.acted, learner.acted_normaliser(rollout.obs)))
    # The loop is acting with this very policy while this update runs.
    learner = learner._replace(acted=learner.actor, acted_normaliser=learner.normaliser)
    if config.normalise_observations:
        learner = learner._replace(normaliser=normaliser.merge(learner.normaliser, rollout.obs))
    learner = _update_multiplier(config, problem, _follow_reward(learner, rollout), experience)
    advantages, targets = estimate_advantages(config, problem, learner, rollout)
    multiplier = learner.pid.multiplier[0]
    batch = Batch(
        obs=learner.normaliser(rollout.obs),
        action=rollout.action,
        log_acted=log_acted,
        advantage=lagrangian(standardise(advantages["reward"]), standardise(advantages["cost"]), multiplier),
        targets=targets,
    )
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    weight = importance(gaussian.log_density(batch.action, *policy(learner.actor, batch.obs)), batch.log_acted)
    learner = learner._replace(updates=learner.updates + 1)
    return learner, batch, {"multiplier/mean": multiplier, "policy/weight_max": weight.max()}


def _follow_reward(learner: Learner, rollout: Transition) -> Learner:
    unit, factor = follow_reward_unit(learner.reward_unit, rollout.reward, first=learner.updates == 0)
    *hidden, last = learner.values["reward"]
    rescaled = [*hidden, jax.tree.map(lambda x: x * factor, last)]
    return learner._replace(reward_unit=unit, values={**learner.values, "reward": rescaled})


def _update_multiplier(config: OnPolicySettings, problem: Problem, learner: Learner, experience: Experience) -> Learner:
    cost, count = measured_costs(problem, experience.statistics)
    scale = problem.threshold_range[1]
    threshold = jnp.asarray(problem.behaviour_thresholds, jnp.float32) / scale
    pid, _ = PID(config.multiplier_gains).update(learner.pid, cost / scale, threshold, known=count > 0)
    return learner._replace(pid=pid)


def estimate_advantages(
    config: OnPolicySettings, problem: Problem, learner: Learner, rollout: Transition
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Generalised advantages, and the targets A + V of the values: two of {name: [T, E]}."""
    length = problem.spec.episode_length
    span = float(np.sum(config.discount ** np.arange(length)))
    units = {"reward": learner.reward_unit * span, "cost": problem.threshold_range[1] / length * span}
    gains = {"reward": rollout.reward, "cost": rollout.cost[..., 0]}
    obs, next_obs = learner.normaliser(rollout.obs), learner.normaliser(rollout.next_obs)
    values = {name: value(learner.values[name], obs) for name in gains}
    advantages = {
        name: gae(
            gains[name] / units[name],
            values[name],
            value(learner.values[name], next_obs),
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            discount=config.discount,
            decay=config.gae_decay,
        )
        for name in gains
    }
    return advantages, {name: advantages[name] + values[name] for name in gains}


def value(layers: Sequence[networks.Layer], obs: Array) -> Array:
    """V(s) in its unit: [..., O] → [...]."""
    return networks.mlp(layers, obs)[..., 0]


def standardise(x: Array) -> Array:
    """Mean 0 and standard deviation 1; an array of equal entries becomes 0."""
    return (x - x.mean()) / (x.std() + 1e-8)


def importance(log_density: Array, log_acted: Array) -> Array:
    """min(π(a|s)/π_acted(a|s), 5): what a sample of the policy that acted counts for another one, [B] → [B]."""
    return jnp.exp(jnp.minimum(log_density - log_acted, math.log(WEIGHT_MAX)))


def surrogate(log_ratio: Array, weight: Array, advantage: Array, *, clip: float | None = None) -> Array:
    """E[w·ρ·A] with ρ = exp(log_ratio) = π/π_i; clipped, as in PPO, E[w·min(ρ·A, clip(ρ, 1 ± c)·A)].

    w = π_i/π_acted corrects for data of a policy that is not the centre of the trust region. [B] → scalar.
    """
    ratio = jnp.exp(log_ratio)
    gain = ratio * advantage
    if clip is not None:
        gain = jnp.minimum(gain, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)
    return jnp.mean(weight * gain)


def take(tree: Any, index: Array) -> Any:
    """The samples at some indices, of a batch or of anything else with leading axis B."""
    return jax.tree.map(lambda x: x[index], tree)


def fit_values(config: OnPolicySettings, learner: Learner, batch: Batch) -> tuple[Learner, dict[str, Array]]:
    """One Adam step of both values towards their targets."""

    def loss(values: dict[str, list]) -> tuple[Array, dict[str, Array]]:
        errors = {
            f"critic/{name}_loss": jnp.mean((value(values[name], batch.obs) - target) ** 2)
            for name, target in batch.targets.items()
        }
        return errors["critic/reward_loss"] + errors["critic/cost_loss"], errors

    grads, metrics = jax.grad(loss, has_aux=True)(learner.values)
    change, opt = optax.adam(config.value_rate).update(grads, learner.value_opt)
    return learner._replace(values=optax.apply_updates(learner.values, change), value_opt=opt), metrics
