"""The model card of a policy, from its manifest: what it is, what it does at each threshold, its limits, its use."""

import math
from typing import Any

from ccpo.deploy.calibrate import Calibration, calibration_table
from ccpo.metrics import Estimate, Summary, ThresholdRow
from ccpo.report.paper import display_name
from ccpo.report.tables import summary_table, threshold_table
from ccpo.runtime import Policy

SEES = {
    "none": "the observation only: it was trained for a single threshold, and the dial has no effect",
    "threshold": "the observation and the threshold (open loop)",
    "budget": "the observation, what is left of the threshold, and the time to go (closed loop)",
}
"""By the net's condition."""


def model_card(policy: Policy, *, file_name: str, figure: str | None = None) -> str:
    """Markdown; `figure` is the name of a picture beside the card."""
    manifest = policy.manifest
    title = f"# {display_name(manifest['algorithm'])} on {display_name(policy.env.task)}"
    sections = (
        f"{title}\n\nOne policy, any safety threshold: `{file_name}` holds weights and manifest, no pickle.",
        f"![Reward and cost over the threshold]({figure})" if figure else "",
        _facts(policy),
        "## What it does\n\n" + _evaluation(manifest["evaluation"]),
        "## What is guaranteed\n\n" + _calibration(policy),
        "## Known limits\n\n" + _limits(policy),
        "## How to load it\n\n" + _usage(policy, file_name),
        "## How it was trained\n\n" + _training(manifest),
    )
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _facts(policy: Policy) -> str:
    env, training = policy.env, policy.manifest["training"]
    steps = training.get("steps_done", training.get("steps", "?"))
    behaviour = ", ".join(f"{threshold:g}" for threshold in policy.manifest["behaviour_thresholds"])
    boxes = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(env.action_low, env.action_high, strict=True))
    facts = {
        "Task": f"`{env.task}`, episodes of at most {env.episode_length} steps",
        "Thresholds": f"{_range_text(policy)}: cost of an episode, undiscounted",
        "Trained under": f"{behaviour} (behaviour thresholds)",
        "Sees": SEES["threshold" if policy.net.config.members else policy.net.config.condition],
        "Observation": f"{env.observation_size} numbers",
        "Action": f"{env.action_size} numbers in {boxes}" if env.action_size <= 4 else f"{env.action_size} numbers",
        "Trained on": f"{steps} environment steps, seed {training.get('seed', '?')}",
        "Checksum": f"`{policy.manifest['checksum']}`",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())])


def _range_text(policy: Policy) -> str:
    low, high = policy.threshold_range
    return f"{low:g} to {high:g}"


def _evaluation(evaluation: Any) -> str:
    if evaluation is None:
        return "It was not evaluated; run `ccpo evaluate RUN`, then export again."
    summary = summary_table([_summary(data) for data in evaluation["summary"]])
    return (
        f"{threshold_table([ThresholdRow(**row) for row in evaluation['thresholds']]).markdown()}\n{summary.markdown()}"
    )


def _summary(data: dict[str, Any]) -> Summary:
    """The inverse of `Summary.as_dict`."""
    metrics = {
        name: Estimate(**{key: math.nan if value is None else value for key, value in estimate.items()})
        for name, estimate in data["metrics"].items()
    }
    return Summary(**{**data, "metrics": metrics})


def _calibration(policy: Policy) -> str:
    data = policy.manifest["calibration"]
    if data is None:
        return "Nothing: the policy is not calibrated. `ccpo calibrate` turns settings of the dial into guarantees."
    table = calibration_table(Calibration.from_dict(data), policy.env.task).markdown()
    assumed = "Assumed: independent episodes of the environment it was calibrated in, one request for a whole episode"
    told = ", and the policy is told the cost of every step" if policy.closed_loop else ""
    return f"{table}\n{assumed}{told}."


def _limits(policy: Policy) -> str:
    limits = []
    evaluation = policy.manifest["evaluation"]
    rows = [ThresholdRow(**row) for row in evaluation["thresholds"]] if evaluation else []
    over = [row for row in rows if row.cost_mean > row.threshold]
    if over:
        listed = ", ".join(f"{row.threshold:g} ({row.cost_mean:.1f})" for row in over)
        limits.append(f"Evaluated, its mean cost was above these thresholds: {listed}.")
    elif rows:
        limits.append("Evaluated, its mean cost was within every threshold; single episodes may still exceed it.")
    limits += [
        f"Outside {_range_text(policy)} it was not trained and warns.",
        "A threshold limits the expected cost of a whole episode, not the cost of each one.",
        "It was trained and measured in simulation: another environment may cost more; calibrate where it is used.",
    ]
    if policy.closed_loop:
        limits.append("It needs the cost of every step while it acts: told of none, it believes that none was paid.")
    return "\n".join(f"- {limit}" for limit in limits)


def _usage(policy: Policy, file_name: str) -> str:
    calibration = policy.manifest["calibration"]
    if calibration:
        dial = f"threshold={calibration['requested'][0]:g}, calibrated=True"
    else:
        dial = f"threshold={0.5 * sum(policy.threshold_range):g}"
    lines = ["from ccpo.runtime import Policy  # NumPy and safetensors suffice", ""]
    lines.append(f'policy = Policy.load("{file_name}")')
    if policy.closed_loop:
        lines.append(f"episode = policy.episode({dial})")
        lines.append("action = episode.act(obs)  # at every step")
        lines.append("episode.pay(cost)  # after every step")
    else:
        lines.append(f"action = policy.act(obs, {dial})")
    return "\n".join(["```python", *lines, "```"])


def _training(manifest: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    settings = "\n".join(f"| `{name}` | {value} |" for name, value in manifest["training"].items())
    return f"Made with {versions}.\n\n| Setting | Value |\n|---|---|\n{settings}"
