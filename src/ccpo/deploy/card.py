"""The model card of a policy, from its manifest: what it is, what it does at each threshold, its limits, its use."""

import math
from typing import Any

from ccpo.deploy.calibrate import Calibration, calibration_table
from ccpo.metrics import Estimate, Summary, ThresholdRow
from ccpo.report.paper import display_name
from ccpo.report.tables import summary_table, threshold_table
from ccpo.runtime import NetConfig, Policy


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
    env, config, training = policy.env, policy.net.config, policy.manifest["training"]
    steps = training.get("steps_done", training.get("steps", "?"))
    behaviour = ", ".join(f"{threshold:g}" for threshold in policy.manifest["behaviour_thresholds"])
    boxes = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(env.action_low, env.action_high, strict=True))
    facts = {
        "Task": f"`{env.task}`, episodes of at most {env.episode_length} steps",
        "Thresholds": f"{config.threshold_low:g} to {config.threshold_high:g}: cost of an episode, undiscounted",
        "Trained under": f"{behaviour} (behaviour thresholds)",
        **_dial(config),
        "Observation": f"{env.observation_size} numbers",
        "Action": f"{env.action_size} numbers in {boxes}" if env.action_size <= 4 else f"{env.action_size} numbers",
        "Trained on": f"{steps} environment steps, seed {training.get('seed', '?')}",
        "Checksum": f"`{policy.manifest['checksum']}`",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())])


def _dial(config: NetConfig) -> dict[str, str]:
    """What the net is shown, where that is not the threshold itself."""
    pairs = zip(config.asked, config.shown, strict=True)
    told = ", ".join(f"{asked:g} as {shown:.3g}" for asked, shown in pairs)
    return {"Dial": f"the net is shown {told}; linear in between"} if told else {}


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
    assumed = "Assumed: independent episodes of the environment it was calibrated in, one setting for a whole episode."
    return f"{table}\n{assumed}"


def _limits(policy: Policy) -> str:
    config, limits = policy.net.config, []
    evaluation = policy.manifest["evaluation"]
    rows = [ThresholdRow(**row) for row in evaluation["thresholds"]] if evaluation else []
    over = [row for row in rows if row.cost_mean > row.threshold]
    if over:
        listed = ", ".join(f"{row.threshold:g} ({row.cost_mean:.1f})" for row in over)
        limits.append(f"Evaluated, its mean cost was above these thresholds: {listed}.")
    elif rows:
        limits.append("Evaluated, its mean cost was within every threshold; single episodes may still exceed it.")
    limits += [
        f"Outside {config.threshold_low:g} to {config.threshold_high:g} it was not trained and warns.",
        "A threshold limits the expected cost of a whole episode, not the cost of each one.",
        "It was trained and measured in simulation: another environment may cost more; calibrate where it is used.",
    ]
    if not config.conditioned:
        limits.append("It was trained for a single threshold: the dial has no effect.")
    return "\n".join(f"- {limit}" for limit in limits)


def _usage(policy: Policy, file_name: str) -> str:
    low, high = policy.net.config.threshold_low, policy.net.config.threshold_high
    calibration = policy.manifest["calibration"]
    lines = [
        "from ccpo.runtime import Policy  # NumPy and safetensors suffice",
        "",
        f'policy = Policy.load("{file_name}")',
        f"action = policy.act(obs, threshold={0.5 * (low + high):g})",
    ]
    if calibration:
        lines.append(f"action = policy.act(obs, threshold={calibration['requested'][0]:g}, calibrated=True)")
    return "\n".join(["```python", *lines, "```"])


def _training(manifest: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    settings = "\n".join(f"| `{name}` | {value} |" for name, value in manifest["training"].items())
    return f"Made with {versions}.\n\n| Setting | Value |\n|---|---|\n{settings}"
