"""One policy, any safety threshold: constraint-conditioned policy optimisation (CCPO) in JAX.

    import ccpo
    agent = ccpo.train("BallCircle", steps=100_000)
    action, _ = agent.predict(obs, threshold=35.0)

Names are imported when they are first used; JAX only when something is trained.
"""

import importlib
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "Agent": "ccpo.agent",
    "train": "ccpo.launch",
    "train_seeds": "ccpo.launch",
    "resume": "ccpo.launch",
    "load": "ccpo.agent",
    "probe": "ccpo.probing",
    "Probe": "ccpo.probing",
    "Policy": "ccpo.runtime",
    "PolicyEpisode": "ccpo.runtime",
    "EpisodeTable": "ccpo.metrics",
    "summarise": "ccpo.metrics",
    "make": "ccpo.envs.registry",
    "list_tasks": "ccpo.envs.registry",
    "register_task": "ccpo.envs.registry",
    "Scene": "ccpo.envs.tasks",
    "CCPOError": "ccpo.errors",
    "ConfigError": "ccpo.errors",
    "EnvError": "ccpo.errors",
    "FormatError": "ccpo.errors",
    "Interrupted": "ccpo.errors",
    "MissingExtraError": "ccpo.errors",
    "NumericalError": "ccpo.errors",
    "RunError": "ccpo.errors",
    "RunWarning": "ccpo.errors",
    "ThresholdError": "ccpo.errors",
    "ThresholdWarning": "ccpo.errors",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ccpo' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
