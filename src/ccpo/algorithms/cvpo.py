"""CVPO: constrained variational policy optimisation, at one threshold.

CCPO with a single threshold and all that makes it versatile switched off: plain critics, no unseen thresholds, no
relabelled targets. Nothing of the method is written twice: this module chooses CCPO's settings and calls its functions,
the one exception to the rule that no algorithm imports another.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from ccpo.algorithms import ccpo
from ccpo.config import setting
from ccpo.errors import ConfigError
from ccpo.types import Acting, Array, Experience, Problem

State = ccpo.State
METRICS = ccpo.METRICS


@dataclass(frozen=True)
class Config(ccpo.Config):
    """CCPO's choices as far as they concern one threshold; the others have no effect."""

    versatile_critic: bool = setting(False, "always false: a plain critic")
    versatile_policy: bool = setting(False, "always false: no unseen thresholds, no relabelled targets")
    conditions: int = setting(1, "how many batches, each with an E-step of its own, these states make", low=1)

    def validate(self) -> None:
        super().validate()
        for name in ("versatile_critic", "versatile_policy"):
            if getattr(self, name):
                raise ConfigError(f"{name}=true, but cvpo is plain; set it to false, or train ccpo")


def init(config: Config, problem: Problem, key: Array) -> State:
    """The state before the first step."""
    if len(problem.behaviour_thresholds) > 1:
        listed = ",".join(f"{t:g}" for t in problem.behaviour_thresholds)
        raise ConfigError(
            f"behaviour_thresholds={listed}, but cvpo trains at one threshold; give one of them "
            f"(--behaviour-thresholds {problem.behaviour_thresholds[1]:g}), or train ccpo for all"
        )
    return ccpo.init(config, narrowed(problem), key)


def narrowed(problem: Problem) -> Problem:
    """The problem with a range that begins at its threshold.

    CCPO then keeps its level of cost and its multipliers at the threshold itself, and the networks' input for the
    threshold, (ε − ε_L)/ε_H, is 0.
    """
    (threshold,) = problem.behaviour_thresholds
    return replace(problem, threshold_range=(threshold, threshold + problem.threshold_range[1]))


def act(
    config: Config,
    problem: Problem,
    state: State,
    obs: Array,
    budget: Array,
    time_to_go: Array,
    key: Array | None = None,
) -> Array:
    """The deployed action for observations [N, O], or a sample of π if a key is given; the threshold has no effect."""
    own = jnp.full_like(budget, problem.behaviour_thresholds[0])
    return ccpo.act(config, narrowed(problem), state, obs, own, time_to_go, key)


def update(config: Config, problem: Problem, state: State, experience: Experience) -> tuple[State, dict[str, Array]]:
    """Learn from an iteration's experience, as CCPO does."""
    return ccpo.update(config, narrowed(problem), state, experience)


def acting(config: Config, problem: Problem, state: State) -> Acting:
    """The arrays that lanes act with, without the input for the threshold: it is 0."""
    low, high = problem.threshold_range
    net, explore, deploy = ccpo.acting(config, narrowed(problem), state)
    explore, deploy = ({**x, "layers.0.weight": x["layers.0.weight"][:-1]} for x in (explore, deploy))
    net = replace(net, condition="none", threshold_low=(low,), threshold_high=(high,))
    return Acting(net, explore, deploy)
