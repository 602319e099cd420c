"""The files behind every published number: `results/main/<algorithm>/<Task>/<preset>/seed-<n>.csv` and `.json`.

python -m ccpo.report.results publish RUN [RUN ...]    copy the runs' eval.csv with config, command, steps and time
python -m ccpo.report.results tables                   make tables, figures and the README's part from these files
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccpo.envs.registry import resolve
from ccpo.errors import RunError
from ccpo.metrics import EpisodeTable, per_threshold, summarise
from ccpo.report.figures import save_figure, threshold_figure
from ccpo.report.tables import summary_table, threshold_table
from ccpo.runs import Run, read_json, write_atomic, write_json
from ccpo.runtime import Policy

README_PART = re.compile(r"(<!-- results:start -->\n).*?(<!-- results:end -->)", re.DOTALL)


def publish(run_path: Path, root: Path) -> Path:
    """Copy a run's evaluation, with what is needed to repeat it; refuses a run that is unfinished or not evaluated."""
    run = Run.open(run_path)
    config = run.config()
    if not run.eval_path.is_file():
        raise RunError(f"'{run_path}' has no eval.csv; first: ccpo evaluate {run_path}")
    training = Policy.load(run.path / "policy.safetensors").manifest["training"]
    if training["steps_done"] < config["steps"]:
        raise RunError(f"'{run_path}' is not finished; first: ccpo train --resume {run_path}")
    folder = root / "main" / config["algorithm"] / config["task"] / "-".join([config["preset"], *_unusual(config)])
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"seed-{config['seed']}"
    EpisodeTable.read_csv(run.eval_path).write_csv(stem.with_suffix(".csv"))
    seconds = sum(member["seconds"] for member in training.get("members", [training]))
    write_json(
        stem.with_suffix(".json"),
        {
            "command": _command(config),
            "steps": training["steps_done"],
            "wall_seconds": round(seconds, 1),
            "versions": read_json(run.path / "manifest.json")["versions"],
            "config": config,
        },
    )
    return stem.with_suffix(".csv")


def _unusual(config: Mapping[str, Any]) -> list[str]:
    """The behaviour thresholds, where they are not the task's own."""
    task, thresholds = resolve(config["task"]).task, tuple(config["behaviour_thresholds"])
    return [] if task and task.behaviour_thresholds == thresholds else [f"{t:g}" for t in thresholds]


def _command(config: Mapping[str, Any]) -> str:
    flags = f"--task {config['task']} --preset {config['preset']} --seed {config['seed']}"
    if "members" in config:
        trained = config["algorithm"].removeprefix("c_")
        each = f"ccpo train {flags} --algorithm {trained} --behaviour-thresholds T"
        listed = ", ".join(f"{t:g}" for t in config["behaviour_thresholds"])
        return f"{each}, for T in {listed}; ccpo combine RUN ... --out FILE; ccpo evaluate FILE"
    thresholds = f" --behaviour-thresholds {','.join(_unusual(config))}" if _unusual(config) else ""
    return f"ccpo train {flags} --algorithm {config['algorithm']}{thresholds} --steps {config['steps']} --evaluate"


def load(root: Path) -> dict[tuple[str, str, str], EpisodeTable]:
    """Every published table by (algorithm, task, preset)."""
    found: dict[tuple[str, str, str], list[EpisodeTable]] = {}
    for path in sorted(root.glob("main/*/*/*/seed-*.csv")):
        preset, task, algorithm = (path.parents[i].name for i in range(3))
        found.setdefault((algorithm, task, preset), []).append(EpisodeTable.read_csv(path))
    return {key: EpisodeTable.concatenate(tables) for key, tables in found.items()}


def write_tables(root: Path, readme: Path) -> None:
    """`summary.md` and a figure for each preset beside the seeds' folder, and the README's part."""
    parts = []
    for (algorithm, task, preset), table in load(root).items():
        first = next((root / "main" / algorithm / task / preset).glob("seed-*.json"))
        behaviour = read_json(first)["config"]["behaviour_thresholds"]
        stem = root / "main" / f"{algorithm}-{task}-{preset}"
        summary = summary_table(summarise(table, behaviour)).markdown()
        rows = threshold_table(per_threshold(table, behaviour)).markdown()
        write_atomic(stem.with_suffix(".md"), f"# {algorithm}, {task}, preset {preset}\n\n{summary}\n\n{rows}\n")
        save_figure(threshold_figure(table, behaviour), stem)
        parts.append(f"{algorithm}, preset `{preset}`:\n\n{summary}\n")
    text = readme.read_text(encoding="utf-8")
    write_atomic(readme, README_PART.sub(lambda m: m[1] + "\n".join(parts) + "\n" + m[2], text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("publish", "tables"))
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--root", type=Path, default=Path("results"))
    options = parser.parse_args()
    if options.what == "publish":
        for run in options.runs:
            print(publish(run, options.root))
    else:
        write_tables(options.root, Path("README.md"))


if __name__ == "__main__":
    main()
