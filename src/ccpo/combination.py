"""C-PPO-Lag and C-TRPO-Lag: one agent made of finished single-threshold policies. It is not trained.

How its members act together stands in `ccpo.runtime.CombinedNet`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ccpo.errors import ConfigError
from ccpo.runs import versions
from ccpo.runtime import Policy


def combine(policies: Sequence[Policy]) -> Policy:
    """One policy for every threshold, of policies that were trained at one threshold each, in any order."""
    for policy in policies:
        algorithm, thresholds = policy.manifest["algorithm"], policy.manifest["behaviour_thresholds"]
        if policy.net.config.condition != "none" or len(thresholds) != 1:
            raise ConfigError(
                f"a policy of {algorithm}, trained under {_listed(thresholds)}, sees its threshold already; "
                "combine policies of a single threshold, such as those of ppo_lag"
            )
    policies = sorted(policies, key=_threshold)
    thresholds = [_threshold(policy) for policy in policies]
    if len(set(thresholds)) < max(2, len(thresholds)):
        raise ConfigError(f"the policies' thresholds are {_listed(thresholds)}; combine two or more that all differ")
    first = policies[0]
    _check_equal("algorithm", [policy.manifest["algorithm"] for policy in policies])
    _check_equal("environment", [policy.env for policy in policies])
    _check_equal("net", [policy.net.config for policy in policies])
    arrays = {
        f"member.{index}.{name}": array
        for index, policy in enumerate(policies)
        for name, array in policy.net.arrays.items()
    }
    return Policy.create(
        arrays,
        replace(first.net.config, condition="threshold", members=tuple(thresholds)),
        first.env,
        algorithm=f"c_{first.manifest['algorithm']}",
        behaviour_thresholds=thresholds,
        versions=versions(),
        training=_training(policies),
    )


def _threshold(policy: Policy) -> float:
    return policy.manifest["behaviour_thresholds"][0]


def _training(policies: Sequence[Policy]) -> dict[str, Any]:
    """The seed of the first member, all members' steps, and how each of them was trained."""
    trainings = [policy.manifest["training"] for policy in policies]
    return {
        "seed": trainings[0].get("seed", 0),
        "steps_done": sum(training.get("steps_done", 0) for training in trainings),
        "finished": all(training.get("finished", True) for training in trainings),
        "members": trainings,
    }


def _check_equal(what: str, values: Sequence[Any]) -> None:
    for value in values:
        if value != values[0]:
            raise ConfigError(
                f"the policies differ in their {what}, {values[0]!r:.80} and {value!r:.80}; combine equals"
            )


def _listed(thresholds: Sequence[float]) -> str:
    return ", ".join(f"{threshold:g}" for threshold in thresholds) or "none"
