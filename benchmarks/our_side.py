"""Our side of a comparison: trains when asked to (see `benchmarks.sides`)."""

import tempfile
from typing import Any

from benchmarks.answering import report_stretch, serve, usage


def train(
    task: str,
    algorithm: str,
    preset: str,
    settings: dict[str, Any],
    turns: bool,
    thresholds: list[float] | None = None,
) -> dict[str, Any]:
    """Train; with `turns`, stop after each iteration until asked on. Then evaluate at the thresholds, if any.

    The answer holds the use of resources in all, and `first` that up to the end of the first iteration.
    """
    # Imported here: XLA counts the cores, which are chosen when the process begins to serve.
    from ccpo import launch
    from ccpo.metrics import summarise

    first: dict[str, Any] = {}

    def display(progress: Any) -> None:
        if not first:
            first.update(usage(), steps=progress.steps)
        if turns:
            report_stretch(progress.steps)

    with tempfile.TemporaryDirectory() as folder:
        trained = launch.train(task, algorithm, preset=preset, out=folder, display=display, **settings)
        found: dict[str, Any] = usage() | {"first": first}
    found["steps"] = trained.policy.manifest["training"]["steps_done"]
    if thresholds:
        summaries = summarise(trained.evaluate(thresholds, episodes=50), trained.behaviour_thresholds)
        whole = next(summary for summary in summaries if summary.thresholds == len(thresholds))
        found["R"], found["CV"] = (whole.metrics[name].mean for name in ("R", "CV"))
    return found


if __name__ == "__main__":
    serve({"train": train})
