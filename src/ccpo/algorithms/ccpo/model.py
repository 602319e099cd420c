"""What CCPO learns, and how its networks are asked: the policy and the critics, both conditioned.

The condition of a closed loop is the budget b that is left and the time to go, that of an open loop the threshold ε of
the episode. Both travel as `budget` [..., M].
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccpo.algorithms.ccpo import constraints
from ccpo.algorithms.ccpo.settings import Config
from ccpo.errors import ConfigError
from ccpo.maths import mstep, networks, normaliser
from ccpo.maths.returns import Horizon
from ccpo.runtime import budget_features
from ccpo.types import Array, Problem, Transition

FEATURE_BOUND = 10.0
"""K_f: the bound on ‖ψ‖∞."""
EMBEDDING_HIDDEN = 64
OPEN_SHARE = 4.0
"""In an open loop, γ looks T/4 steps ahead unless told otherwise."""
CLOSED_SHARES = (5.0, 3.0)
"""In a closed loop, T/5 steps at the start of the run and T/3 at its end."""
GROWN = 0.8
"""The share of the run after which γ grows no more."""


class Critics(NamedTuple):
    """Q_r, and a cost critic for each constraint."""

    reward: networks.Critic
    cost: tuple[networks.Critic, ...]


class State(NamedTuple):
    """Everything that learning changes."""

    actor: list
    actor_old: list
    actor_average: list
    critic: Critics
    critic_target: Critics
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    kl_multipliers: mstep.KLMultipliers
    normaliser: normaliser.Normaliser
    reward_rms: Array
    reward_unit: Array
    """What makes Q_r of order one: the reward's root mean square, summed over what γ looks at."""
    discount: Array
    """γ of the reward critic, as it is now."""
    cost_max: Array
    """The largest cost of a step seen so far: [M]."""
    constraint: Any
    updates: Array
    key: Array


def init(config: Config, problem: Problem, key: Array) -> State:
    """The state before the first step."""
    spec = problem.spec
    if problem.closed and config.horizon != "finite":
        raise ConfigError(
            f"horizon={config.horizon} needs loop=open; a closed loop spends a budget by the episode's end"
        )
    actor_key, reward_key, cost_key, key = jax.random.split(key, 4)
    budgets = (2 if problem.closed else 1) * len(spec.costs)
    inputs = spec.observation_size + budgets + int(problem.closed)
    actor = networks.init_actor(actor_key, inputs, spec.action_size, hidden=config.hidden)
    critic = Critics(
        reward=_init_critic(config, problem, reward_key, budgets),
        cost=tuple(_init_critic(config, problem, k, budgets) for k in jax.random.split(cost_key, len(spec.costs))),
    )
    state = State(
        actor=actor,
        actor_old=actor,
        actor_average=actor,
        critic=critic,
        critic_target=critic,
        actor_opt=optax.adam(config.actor_rate).init(actor),
        critic_opt=optax.adam(config.critic_rate).init(critic),
        kl_multipliers=mstep.init_multipliers(1 if problem.closed else mstep.KNOTS, value=10.0),
        normaliser=normaliser.init(spec.observation_size),
        reward_rms=jnp.ones(()),
        reward_unit=jnp.ones(()),
        discount=jnp.ones(()),
        cost_max=jnp.zeros(len(spec.costs)),
        constraint=constraints.find(config, problem).init(problem),
        updates=jnp.zeros((), jnp.int32),
        key=key,
    )
    return jax.tree.map(jnp.copy, state)


def _init_critic(config: Config, problem: Problem, key: Array, condition_size: int) -> networks.Critic:
    spec = problem.spec
    sizes = (spec.observation_size + int(config.horizon == "finite"), spec.action_size)
    if config.versatile_critic:
        return networks.init_versatile_critic(
            key,
            *sizes,
            condition_size=condition_size,
            hidden=config.hidden,
            features=config.features,
            embedding_hidden=EMBEDDING_HIDDEN,
        )
    return networks.init_plain_critic(key, *sizes, condition_size=condition_size, hidden=config.hidden, normalised=True)


def horizon(config: Config, problem: Problem) -> Horizon:
    """How far the critics of an open loop look."""
    length = problem.spec.episode_length
    discount = max(0.0, 1.0 - OPEN_SHARE / length) if config.discount is None else config.discount
    return Horizon(config.horizon, length, discount)


def discount_at(config: Config, problem: Problem, progress: Array) -> Array:
    """γ of the reward critic when so much of the run is over.

    In a closed loop it grows: a short sight learns fast, and spends a budget too early; a long one spends it well.
    """
    if config.discount is not None or not problem.closed:
        return jnp.float32(horizon(config, problem).discount)
    first, last = CLOSED_SHARES
    share = first * (last / first) ** jnp.minimum(progress / GROWN, 1.0)
    return jnp.maximum(1.0 - share / problem.spec.episode_length, 0.0)


def budget_of(problem: Problem, steps: Transition) -> Array:
    """What the policy was conditioned on in these steps: [..., M]."""
    return steps.threshold - steps.spent if problem.closed else steps.threshold


def critic_condition(problem: Problem, budget: Array) -> Array:
    """What z sees of a budget [..., M] → [..., D]."""
    if problem.closed:
        return budget_features(budget, jnp.float32(problem.threshold_range[1]), xp=jnp)
    return networks.normalise_threshold(budget, problem.threshold_range)


def with_time(problem: Problem, inputs: Array, time_to_go: Array) -> Array:
    """Inputs [..., D] and the share of the episode that is to go [...] → [..., D + 1]."""
    return jnp.concatenate([inputs, time_to_go[..., None] / problem.spec.episode_length], axis=-1)


def policy(
    config: Config, problem: Problem, params: list, obs: Array, budget: Array, time_to_go: Array
) -> tuple[Array, Array]:
    """Mean and scale of π(· | s, b, h) or π(· | s, ε): normalised observations [..., O], budgets [..., M], [...]."""
    condition = critic_condition(problem, budget)
    if problem.closed:
        condition = with_time(problem, condition, time_to_go)
    return networks.actor(params, obs, condition, std_range=(config.std_min, config.std_max))


def critic_inputs(config: Config, problem: Problem, obs: Array, time_to_go: Array) -> Array:
    """What critics see of a state: [..., O] and [...] → [..., I]."""
    return with_time(problem, obs, time_to_go) if config.horizon == "finite" else obs


def q_values(
    config: Config, problem: Problem, critic: Critics, obs: Array, action: Array, budget: Array, time_to_go: Array
) -> tuple[Array, Array]:
    """Q_r [..., K] and Q_c [..., K, M] of actions [..., K, A]; the rest as in `policy`."""
    condition = critic_condition(problem, budget)
    inputs = critic_inputs(config, problem, obs, time_to_go)
    action = jnp.clip(action, -1.0, 1.0)

    def q(critic: networks.Critic) -> Array:
        if config.versatile_critic:
            return networks.versatile_q(critic, inputs, action, condition, bound=FEATURE_BOUND)
        return networks.plain_q(critic, inputs, action, condition)

    return q(critic.reward), jnp.stack([q(each) for each in critic.cost], axis=-1)
