"""The registry of algorithms: a name, its one line, and the module that holds it.

A module has the same names whatever the method: `Config`, `State`, `init`, `act`, `acting`, `update`. Modules are
imported when asked for, so that listing them needs no JAX.
"""

import importlib
from types import ModuleType

from ccpo.errors import ConfigError, did_you_mean

ALGORITHMS = {
    "ccpo": "constraint-conditioned policy optimisation: one policy for every threshold",
}


def check_algorithm(name: str) -> None:
    """An error with a suggestion if there is no such algorithm."""
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm '{name}'; {did_you_mean(name, ALGORITHMS)}")


def find_algorithm(name: str) -> ModuleType:
    """The module of an algorithm."""
    check_algorithm(name)
    return importlib.import_module(f"ccpo.algorithms.{name}")
