"""Agents for StaticBudget whose cost is a known function of the dial, and random policies of every kind."""

from itertools import pairwise

import numpy as np

from ccpo.agent import Agent
from ccpo.runtime import NetConfig, Policy
from ccpo.types import EnvSpec

ENV = EnvSpec("StaticBudget", 2, (-1.0,), (1.0,), 100)
GAIN = 2.0


def toy_agent(calibration=None):
    """Open loop: a(d) = 0.3 + (d − 10)/100, cost 100 a(d)²: above the dial at its lower end."""
    return _linear_agent("threshold", [0.7], bias=0.3, calibration=calibration)


def toy_cost(dial):
    return 100.0 * (0.3 + (dial - 10.0) / 100.0) ** 2


def closed_agent(calibration=None):
    """Closed loop: a(b) = min(1, 2 b/70) for what is left, b; it slows down as it runs out and never overspends."""
    return _linear_agent("budget", [GAIN, 0.0, 0.0], bias=0.0, calibration=calibration)


def closed_cost(dial, spent=0.0, steps=ENV.episode_length):
    """What an episode costs in so many more steps: each costs a²."""
    left = dial - spent
    for _ in range(steps):
        left -= min(1.0, GAIN * left / 70.0) ** 2
    return dial - left


def _linear_agent(condition, weights, *, bias, calibration):
    arrays = {
        "obs_mean": np.zeros(2),
        "obs_std": np.ones(2),
        "layers.0.weight": np.array([[0.0], [0.0], *[[weight] for weight in weights]]),
        "layers.0.bias": np.array([bias]),
        "log_std": np.zeros(1),
    }
    policy = Policy.create(
        arrays,
        NetConfig("gaussian_linear", (10.0,), (70.0,), condition),
        ENV,
        algorithm="ccpo",
        behaviour_thresholds=[20.0, 40.0, 60.0],
        versions={"ccpo": "0.1.0"},
        training={"seed": 3, "steps": 1000},
        calibration=calibration,
    )
    return Agent(policy)


def random_policy(distribution="gaussian", *, condition="budget", activation="relu"):
    """A policy with weights of the usual size, 5 observations, 2 actions in boxes of width 4 and 1.2."""
    rng, config = np.random.default_rng(0), NetConfig(distribution, (10.0,), (70.0,), condition, activation)
    outputs = 4 if distribution in ("gaussian", "squashed") else 2
    arrays = {"obs_mean": rng.normal(size=5), "obs_std": rng.uniform(0.5, 2.0, 5)}
    for i, (n, m) in enumerate(pairwise([5 + config.condition_size, 64, 64, outputs])):
        arrays[f"layers.{i}.weight"] = rng.normal(size=(n, m)) / np.sqrt(n)
        arrays[f"layers.{i}.bias"] = rng.normal(size=m)
    if distribution == "gaussian_linear":
        arrays["log_std"] = np.zeros(2)
    return Policy.create(
        arrays,
        config,
        EnvSpec("Toy", 5, (-1.0, 0.7), (3.0, 1.9), 100),
        algorithm="ccpo",
        behaviour_thresholds=[20.0, 40.0, 60.0],
        versions={"ccpo": "0.1.0"},
        training={"steps": 1000},
    )
