"""Measure our speed against the stock environments, FSRL and the floor of the matrix products; print and save it.

python -m benchmarks                          everything, in 20 minutes at most
python -m benchmarks --only env,update        some parts
python -m benchmarks --only fsrl_full         a whole FSRL run of 100,000 steps, kept for later tables
"""

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.output import save, table
from benchmarks.running import Part, run_parts
from benchmarks.sides import fsrl_python
from ccpo.threads import use_one_thread

PARTS = {
    "env": Part("benchmarks.environments", "measure", 40, "environments against the stock package's", one_core=True),
    "update": Part("benchmarks.learner", "measure_update", 70, "an update against its matrix products", one_core=True),
    "thresholds": Part(
        "benchmarks.learner", "measure_thresholds", 120, "an update over the number of thresholds", one_core=True
    ),
    "seeds": Part("benchmarks.learner", "measure_seeds", 75, "several seeds in one program", one_core=True),
    "profile": Part(
        "benchmarks.profile", "measure", 60, "where the time of an update and of TRPO-Lag goes", one_core=True
    ),
    "latency": Part("benchmarks.deployment", "measure_latency", 35, "one observation, one action", fsrl_python),
    "evaluation": Part("benchmarks.deployment", "measure_evaluation", 25, "13 thresholds × 50 episodes"),
    "startup": Part("benchmarks.deployment", "measure_startup", 70, "start-up, compilation, cache"),
    "fsrl": Part("benchmarks.peers", "measure_fsrl", 220, "learner and training against FSRL", fsrl_python),
    "memory": Part("benchmarks.peers", "measure_memory", 45, "peak memory of a training", fsrl_python),
    "cores": Part("benchmarks.peers", "measure_cores", 85, "two cores against one"),
    "end_to_end": Part("benchmarks.peers", "measure_tasks", 75, "training by method and task"),
    "policy": Part("benchmarks.peers", "measure_policy", 280, "the way to a policy for 13 thresholds", fsrl_python),
}
EXTRA = {
    "fsrl_full": Part(
        "benchmarks.peers", "measure_fsrl_full", 3600, "a whole FSRL CVPO run of 100,000 steps", fsrl_python
    ),
}


def main(arguments: list[str] | None = None, parts: dict[str, Part] = PARTS | EXTRA) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="PARTS", help=f"some of: {', '.join(parts)}")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="where to save (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=1.0, help="factor on each part's time, for a busy machine")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else [name for name in parts if name not in EXTRA]
    unknown = [name for name in names if name not in parts]
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)}; there are: {', '.join(parts)}")
    use_one_thread()
    console = Console(width=None if sys.stdout.isatty() else 160)
    chosen = {name: parts[name] for name in names}
    outcome = run_parts(chosen, patience=options.patience, announce=lambda text: console.print(f"[dim]{text}"))
    stem = "-".join(["bench", *names]) if options.only else "bench"
    console.print(table(outcome.rows))
    for name, failure in outcome.failures.items():
        console.print(f"[red]{name} failed:[/] {failure.strip()}", markup=True, highlight=False)
    console.print(f"saved as {save(outcome, options.out, stem=stem)}.*")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the part's processes end too
    sys.exit(main())
