"""The registry of algorithms: a name, its one line, and the module that holds it.

A module has the same names whatever the method: `Config`, `State`, `init`, `act`, `acting`, `update`, and
`ON_POLICY` if it learns from its newest rollout only. Modules are imported when asked for, so that listing them needs
no JAX.
"""

import importlib
from types import ModuleType

from ccpo.errors import ConfigError, did_you_mean

ALGORITHMS = {
    "ccpo": "constraint-conditioned policy optimisation: one policy for every threshold",
    "cvpo": "constrained variational policy optimisation: what CCPO is with a single threshold",
    "sac_lag": "soft actor-critic with PID multipliers: conditioned on the threshold (V-SAC-Lag), or at a single one",
    "ddpg_lag": "deterministic policy gradients with PID multipliers: conditioned (V-DDPG-Lag), or at a single one",
    "ppo_lag": "proximal policy optimisation with a PID multiplier, at a single threshold",
    "trpo_lag": "trust-region policy optimisation with a PID multiplier, at a single threshold",
}

COMBINATIONS = {
    "c_ppo_lag": "made by `ccpo combine` of finished ppo_lag runs: actions of the two nearest thresholds, weighted",
    "c_trpo_lag": "made by `ccpo combine` of finished trpo_lag runs: actions of the two nearest thresholds, weighted",
}
"""What is not trained but made of trained policies."""

ABLATIONS = {
    "ccpo w/o VVE": "ccpo with versatile_critic=false: plain critics of [s; ε; a] instead of ψᵀz",
    "ccpo w/o CVI": "ccpo with versatile_policy=false: E- and M-step at behaviour thresholds only",
}
"""What is an algorithm with one of its parts switched off."""


def check_algorithm(name: str) -> None:
    """An error with a suggestion if there is no such algorithm."""
    if name in COMBINATIONS:
        raise ConfigError(f"'{name}' is {COMBINATIONS[name]}; train '{name[2:]}' at each threshold first")
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm '{name}'; {did_you_mean(name, ALGORITHMS)}")


def find_algorithm(name: str) -> ModuleType:
    """The module of an algorithm."""
    check_algorithm(name)
    return importlib.import_module(f"ccpo.algorithms.{name}")
