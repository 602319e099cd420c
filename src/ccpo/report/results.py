"""The files behind every published number: `results/main/<algorithm>/<Task>/<preset>/seed-<n>.csv` and `.json`.

python -m ccpo.report.results publish RUN [RUN ...]    copy the runs' eval.csv with config, command, steps and time
python -m ccpo.report.results tables                   make figures, results page and README's part from these files
"""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ccpo.agent import preset_settings
from ccpo.envs.registry import resolve
from ccpo.errors import RunError
from ccpo.metrics import EpisodeTable, per_threshold, summarise, violation
from ccpo.policy_file import write_atomically
from ccpo.report.figures import learning_figure, save_figure, threshold_figure
from ccpo.report.paper import display_name
from ccpo.report.tables import Cell, ReportTable, interval_table, summary_table, threshold_table
from ccpo.runs import Run, read_json, write_json
from ccpo.runtime import Policy

GENERATED = re.compile(r"(<!-- results:start -->\n).*?(<!-- results:end -->)", re.DOTALL)
CURVE_POINTS = 40


def publish(paths: Sequence[Path], root: Path) -> list[Path]:
    """Copy the evaluations of runs, with what is needed to repeat them; refuses what is unfinished or not evaluated.

    Runs that differ only in their threshold, as the agents of an exhaustive reference do, make one file together.
    """
    runs = sorted((_finished(path) for path in paths), key=_origin)
    return [_publish_together(list(same), root) for _, same in groupby(runs, key=_origin)]


def _finished(path: Path) -> Run:
    run = Run.open(path)
    if not run.eval_path.is_file():
        raise RunError(f"'{path}' has no eval.csv; first: ccpo evaluate {path}")
    if not _training(run).get("finished", True):
        raise RunError(f"'{path}' is not finished; first: ccpo train --resume {path}")
    return run


def _training(run: Run) -> dict[str, Any]:
    return Policy.load(run.policy_path).manifest["training"]


def _origin(run: Run) -> tuple:
    return tuple(run.config()[name] for name in ("algorithm", "task", "preset", "seed"))


def _publish_together(runs: list[Run], root: Path) -> Path:
    runs = sorted(runs, key=lambda run: run.config()["behaviour_thresholds"])
    config = runs[0].config()
    thresholds = [t for run in runs for t in run.config()["behaviour_thresholds"]]
    if len(set(thresholds)) < len(thresholds):
        raise RunError(
            f"{len(runs)} runs of {'/'.join(map(str, _origin(runs[0])))} share thresholds; publish one of them"
        )
    config["behaviour_thresholds"] = thresholds
    suffix = _unusual(config) if len(runs) == 1 else []
    folder = root / "main" / config["algorithm"] / config["task"] / "-".join([config["preset"], *suffix])
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"seed-{config['seed']}"
    EpisodeTable.concatenate([EpisodeTable.read_csv(run.eval_path) for run in runs]).write_csv(stem.with_suffix(".csv"))
    trainings = [_training(run) for run in runs]
    trained = [member for training in trainings for member in training.get("members", [training])]
    usual = preset_settings(config["task"], config["algorithm"].removeprefix("c_"), config["preset"])
    config = {name: value for name, value in trained[0].items() if name in usual} | config
    write_json(
        stem.with_suffix(".json"),
        {
            "command": _command(config, usual, steps=trained[0]["steps"], each=len(runs) > 1),
            "steps": sum(training["steps_done"] for training in trainings),
            "wall_seconds": round(sum(member["seconds"] for member in trained), 1),
            "versions": read_json(runs[0].path / "manifest.json")["versions"],
            "curve": learning_curve(_rows(runs[0]) if len(runs) == 1 else [], thresholds),
            "config": config,
        },
    )
    return stem.with_suffix(".csv")


def _unusual(config: Mapping[str, Any]) -> list[str]:
    """The behaviour thresholds, where they are not the task's own."""
    task, thresholds = resolve(config["task"]).task, tuple(config["behaviour_thresholds"])
    return [] if task and task.behaviour_thresholds == thresholds else [f"{t:g}" for t in thresholds]


def _command(config: Mapping[str, Any], usual: Mapping[str, Any], *, steps: int, each: bool) -> str:
    """What repeats the run, or the runs that have one threshold each; `usual` are the preset's settings."""
    flags = f"--task {config['task']} --preset {config['preset']} --seed {config['seed']}{_changes(config, usual)}"
    train = f"ccpo train {flags} --algorithm {config['algorithm'].removeprefix('c_')}"
    listed = ", ".join(f"{t:g}" for t in config["behaviour_thresholds"])
    single = f"{train} --behaviour-thresholds T --steps {steps}"
    if "members" in config:
        return f"{single}, for T in {listed}; ccpo combine RUN ... --out FILE; ccpo evaluate FILE"
    if each:
        return f"{single}; ccpo evaluate RUN --thresholds T, for T in {listed}"
    thresholds = f" --behaviour-thresholds {','.join(_unusual(config))}" if _unusual(config) else ""
    return f"{train}{thresholds} --steps {steps} --evaluate"


def _changes(config: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """What differs from the preset as it is now, but for what the command names anyway."""
    named = ("behaviour_thresholds", "seed", "steps")
    changed = [name for name in usual if name in config and name not in named and config[name] != usual[name]]
    return "".join(f" --set {name}={_as_flag(config[name])}" for name in changed)


def _as_flag(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_as_flag, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _rows(run: Run) -> list[dict[str, Any]]:
    """The rows of progress, those of several starts one after the other before them."""
    before: list[dict[str, Any]] = []
    for start in run.starts():
        steps = before[-1]["steps"] if before else 0
        before += [{**row, "steps": steps + row["steps"]} for row in start.progress()]
    return before + run.progress()


def learning_curve(rows: Sequence[Mapping[str, Any]], thresholds: Sequence[float]) -> dict[str, list[float]]:
    """Reward and violation of training episodes over steps, at no more than `CURVE_POINTS` points."""
    curve: dict[str, list[float]] = {"steps": [], "reward": [], "violation": []}
    for part in np.array_split(np.arange(len(rows)), min(CURVE_POINTS, len(rows))) if rows else []:
        some = [rows[i] for i in part]
        cost = np.array([[row[f"rollout/threshold_{t:g}/ep_cost_mean"] for t in thresholds] for row in some], float)
        reward = np.array([row["rollout/ep_rew_mean"] for row in some], float)
        if np.isfinite(reward).any() and np.isfinite(cost).any():
            curve["steps"].append(some[-1]["steps"])
            curve["reward"].append(round(float(np.nanmean(reward)), 3))
            curve["violation"].append(round(float(np.nanmean(violation(cost, np.asarray(thresholds)[None, :]))), 3))
    return curve


@dataclass(frozen=True)
class Published:
    """What is published of one algorithm with one preset on one task."""

    algorithm: str
    task: str
    preset: str
    episodes: EpisodeTable
    records: list[dict[str, Any]]
    """The seeds' JSON files."""

    @property
    def label(self) -> str:
        name = display_name(self.algorithm)
        return name if self.preset == "tuned" else display_name(f"{name} {self.preset.replace('without', 'w/o')}")

    @property
    def behaviour_thresholds(self) -> list[float]:
        return self.records[0]["config"]["behaviour_thresholds"]


def load(root: Path) -> list[Published]:
    """Everything published, by task and algorithm; CCPO as tuned comes first."""
    found = []
    for folder in sorted({path.parent for path in root.glob("main/*/*/*/seed-*.csv")}):
        preset, task, algorithm = folder.name, folder.parent.name, folder.parents[1].name
        seeds = sorted(folder.glob("seed-*.csv"), key=lambda path: int(path.stem.removeprefix("seed-")))
        tables = EpisodeTable.concatenate([EpisodeTable.read_csv(path) for path in seeds])
        records = [read_json(path.with_suffix(".json")) for path in seeds]
        found.append(Published(algorithm, task, preset, tables, records))
    return sorted(found, key=lambda p: (p.task, p.algorithm != "ccpo", p.algorithm, p.preset != "tuned", p.preset))


def seed_table(published: Sequence[Published]) -> ReportTable:
    """R and CV of each seed by itself, and what its run took."""
    rows: dict[str, list[tuple[Cell, ...]]] = {}
    for each in published:
        for record in each.records:
            seed = record["config"]["seed"]
            table = each.episodes.select(each.episodes.seed == seed)
            numbers = (f"{table.reward.mean():.1f}", f"{violation(table.cost, table.threshold).mean():.2f}")
            took = (f"{record['steps']:,}", f"{record['wall_seconds'] / 60:.1f}")
            cells = tuple(Cell(text) for text in (each.label, f"{seed}", *numbers, *took))
            rows.setdefault(display_name(each.task), []).append(cells)
    notes = (
        "over all thresholds that were evaluated, see above; "
        "minutes of training, all members of a combination and all agents of a set together",
    )
    return ReportTable("Each seed", ("Algorithm", "Seed", "R ↑", "CV ↓", "Steps", "Minutes"), rows, notes)


def write_tables(root: Path, readme: Path, page: Path) -> None:
    """A page and a figure for each preset beside the seeds' folders, the results page, and the README's part."""
    published, sections, headlines = load(root), [], []
    for task, group in groupby(published, key=lambda each: each.task):
        of_task, summaries = list(group), []
        for each in of_task:
            stem = root / "main" / f"{each.algorithm}-{each.task}-{each.preset}"
            rows = threshold_table(per_threshold(each.episodes, each.behaviour_thresholds)).markdown()
            own = summarise(each.episodes, each.behaviour_thresholds)
            title = f"# {each.label} on {display_name(task)}, preset {each.preset}"
            write_atomically(stem.with_suffix(".md"), f"{title}\n\n{summary_table(own).markdown()}\n\n{rows}\n")
            save_figure(threshold_figure(each.episodes, each.behaviour_thresholds), stem)
            summaries += [replace(summary, algorithm=each.label) for summary in own]
            headlines += own if (each.algorithm, each.preset) == ("ccpo", "tuned") else []
        sections.append(_section(task, of_task, summaries, root=root, page=page))
    _fill(readme, summary_table(headlines).markdown())
    _fill(page, "\n".join(sections))


def _section(task: str, of_task: Sequence[Published], summaries: list[Any], *, root: Path, page: Path) -> str:
    """The task's part of the results page, with figures of all methods together."""
    labelled = [replace(e.episodes, algorithm=np.full(len(e.episodes), e.label)) for e in of_task]
    together = EpisodeTable.concatenate(labelled)
    stem = root / "main" / task
    save_figure(threshold_figure(together, of_task[0].behaviour_thresholds), stem)
    curves = {each.label: [record["curve"] for record in each.records] for each in of_task}
    curves = {label: seeds for label, seeds in curves.items() if seeds[0]["steps"]}  # several runs together have none
    save_figure(learning_figure(curves), Path(f"{stem}-learning"))
    where = Path(os.path.relpath(stem, page.parent)).as_posix()
    tables = (summary_table(summaries), interval_table(summaries), seed_table(of_task))
    commands = dict.fromkeys(
        re.sub(r"--seed \d+", "--seed N", record["command"]) for e in of_task for record in e.records
    )
    return "\n".join(
        [
            f"## {display_name(task)}\n",
            *(table.markdown() for table in tables),
            f"![Reward and cost over the threshold]({where}.png)\n",
            f"![Reward and violation of training episodes over steps]({where}-learning.png)\n",
            "```console",
            *commands,
            "```\n",
        ]
    )


def _fill(path: Path, text: str) -> None:
    whole = path.read_text(encoding="utf-8")
    write_atomically(path, GENERATED.sub(lambda match: match[1] + text + "\n" + match[2], whole))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("publish", "tables"))
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--root", type=Path, default=Path("results"))
    options = parser.parse_args()
    if options.what == "publish":
        print(*publish(options.runs, options.root), sep="\n")
    else:
        write_tables(options.root, Path("README.md"), Path("docs/results.md"))


if __name__ == "__main__":
    main()
