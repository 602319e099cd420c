"""What the E-step keeps: one file for each constraint, with the same three functions.

    init(problem) -> state                          what it remembers, a pytree
    observe(problem, state, experience) -> state    once per rollout: what finished episodes tell
    solve(config, problem, state, samples) -> Solution

A new one is a new file and its name in `CONSTRAINTS` of the settings.
"""

import importlib
from typing import Any, NamedTuple, Protocol, cast

from ccpo.algorithms.ccpo.settings import Config
from ccpo.errors import ConfigError
from ccpo.types import Array, Experience, Problem


class Samples(NamedTuple):
    """What an E-step is given: C conditions, S states in each, K actions of π_old in each state."""

    q_reward: Array
    """[C, S, K]."""
    q_cost: Array
    """[C, S, K, M], in units of `cost_unit`."""
    budget: Array
    """The budget that is left (closed loop) or the threshold (open loop): [C, S, M]."""
    reward_span: Array
    """How many steps of mean reward Q_r of order one is."""
    progress: Array
    """The share of the run that is over."""


class Solution(NamedTuple):
    """The weights q* [C, S, K], normalised over K, what the constraint remembers, and what tells its health."""

    weights: Array
    state: Any
    metrics: dict[str, Array]


class Constraint(Protocol):
    """The interface of the modules in this folder."""

    def init(self, problem: Problem) -> Any: ...

    def observe(self, problem: Problem, state: Any, experience: Experience) -> Any: ...

    def solve(self, config: Config, problem: Problem, state: Any, samples: Samples) -> Solution: ...


def find(config: Config, problem: Problem) -> Constraint:
    """The constraint that the settings name, or the loop's own."""
    name = config.constraint or ("closed" if problem.closed else "open")
    if (name == "closed") != problem.closed:
        raise ConfigError(
            f"constraint={name} does not fit loop={'closed' if problem.closed else 'open'}; leave constraint out, "
            f"or set loop={'open' if problem.closed else 'closed'}"
        )
    return cast(Constraint, importlib.import_module(f"{__name__}.{name}"))
