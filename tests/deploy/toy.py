"""An agent for StaticBudget whose cost is a known function of the dial, and random policies of every kind."""

from itertools import pairwise

import numpy as np

from ccpo.agent import Agent
from ccpo.runtime import NetConfig, Policy
from ccpo.types import EnvSpec

ENV = EnvSpec("StaticBudget", 2, (-1.0,), (1.0,), 100)


def toy_agent(calibration=None):
    """a(d) = 0.3 + (d − 10)/100, cost 100 a(d)²: above the dial at its lower end."""
    arrays = {
        "obs_mean": np.zeros(2),
        "obs_std": np.ones(2),
        "layers.0.weight": np.array([[0.0], [0.0], [0.7]]),
        "layers.0.bias": np.array([0.3]),
        "log_std": np.zeros(1),
    }
    policy = Policy.create(
        arrays,
        NetConfig("gaussian_linear", 10.0, 70.0),
        ENV,
        algorithm="ccpo",
        behaviour_thresholds=[20.0, 40.0, 60.0],
        versions={"ccpo": "0.1.0"},
        training={"seed": 3, "steps": 1000},
        calibration=calibration,
    )
    return Agent(policy)


def toy_cost(dial):
    return 100.0 * (0.3 + (dial - 10.0) / 100.0) ** 2


def random_policy(distribution="gaussian", *, conditioned=True, activation="relu", **beyond):
    """A policy with weights of the usual size, 5 observations, 2 actions in boxes of width 4 and 1.2."""
    rng = np.random.default_rng(0)
    outputs = 4 if distribution in ("gaussian", "squashed") else 2
    arrays = {"obs_mean": rng.normal(size=5), "obs_std": rng.uniform(0.5, 2.0, 5)}
    for i, (n, m) in enumerate(pairwise([5 + conditioned, 64, 64, outputs])):
        arrays[f"layers.{i}.weight"] = rng.normal(size=(n, m)) / np.sqrt(n)
        arrays[f"layers.{i}.bias"] = rng.normal(size=m)
    if distribution == "gaussian_linear":
        arrays["log_std"] = np.zeros(2)
    return Policy.create(
        arrays,
        NetConfig(distribution, 10.0, 70.0, conditioned=conditioned, activation=activation, **beyond),
        EnvSpec("Toy", 5, (-1.0, 0.7), (3.0, 1.9), 100),
        algorithm="ccpo",
        behaviour_thresholds=[20.0, 40.0, 60.0],
        versions={"ccpo": "0.1.0"},
        training={"steps": 1000},
    )
