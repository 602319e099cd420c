"""The files behind every published number: `results/main/<algorithm>/<Task>/<variant>/seed-<n>.csv` and `.json`.

python -m ccpo.report.results publish RUN [RUN ...]    copy the runs' eval.csv with config, command, origin and time
python -m ccpo.report.results tables                   make figures, results page and README's part from these files

`results/history/main` holds what was published before the closed loop; its rows are shown, labelled as history, until
`results/main` has the same.
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

from ccpo.envs.registry import resolve
from ccpo.errors import RunError
from ccpo.launch import preset_settings
from ccpo.metrics import EpisodeTable, Summary, per_threshold, summarise, violation
from ccpo.policy_file import write_atomically
from ccpo.report.figures import learning_figure, save_figure, threshold_figure
from ccpo.report.paper import PAPER_ABLATION, PAPER_RESULTS, display_name
from ccpo.report.tables import (
    Cell,
    ReportTable,
    constants,
    group_table,
    interval_table,
    number,
    reward_digits,
    summary_table,
    threshold_table,
)
from ccpo.runs import Run
from ccpo.runtime import Policy
from ccpo.sealed import read_json, write_json

GENERATED = re.compile(r"(<!-- results:start -->\n).*?(<!-- results:end -->)", re.DOTALL)
CURVE_POINTS = 40
DEFAULT_PRESET, FAITHFUL = "tuned", "faithful"
LOOPS = {"closed": "closed loop", "open": "open loop"}
HISTORY = "history"
HISTORY_COMMIT = "dbc246c"
"""What reproduces the rows of `results/history`."""
ORIGIN = ("commit", "dirty", "date", "processor")
"""What a seed's JSON file keeps of its run's manifest."""


def publish(paths: Sequence[Path], root: Path) -> list[Path]:
    """Copy the evaluations of runs, with what is needed to repeat them; refuses what is unfinished or not evaluated.

    Runs that differ only in their threshold, as the agents of an exhaustive reference do, make one file together.
    """
    runs = sorted((_finished(path) for path in paths), key=_identity)
    return [_publish_together(list(same), root) for _, same in groupby(runs, key=_identity)]


def _finished(path: Path) -> Run:
    run = Run.open(path)
    if not run.eval_path.is_file():
        raise RunError(f"'{path}' has no eval.csv; first: ccpo evaluate {path}")
    if not _training(run).get("finished", True):
        raise RunError(f"'{path}' is not finished; first: ccpo train --resume {path}")
    return run


def _training(run: Run) -> dict[str, Any]:
    return Policy.load(run.policy_path).manifest["training"]


def _identity(run: Run) -> tuple:
    config = run.config()
    return config["algorithm"], config["task"], variant(config), config["seed"]


def variant(config: Mapping[str, Any]) -> str:
    """The folder of a run's results: for CCPO the loop, and the preset if it is not the default one; else the preset.

    >>> variant({"algorithm": "ccpo", "preset": "tuned", "loop": "closed"})
    'closed'
    >>> variant({"algorithm": "ccpo", "preset": "without-vve", "loop": "open"})
    'open-without-vve'
    >>> variant({"algorithm": "sac_lag", "preset": "tuned"})
    'tuned'
    """
    preset, loop = config["preset"], config.get("loop")
    if config["algorithm"] != "ccpo" or not loop or preset == FAITHFUL:
        return preset
    return loop if preset == DEFAULT_PRESET else f"{loop}-{preset}"


def _publish_together(runs: list[Run], root: Path) -> Path:
    runs = sorted(runs, key=lambda run: run.config()["behaviour_thresholds"])
    config = runs[0].config()
    thresholds = [t for run in runs for t in run.config()["behaviour_thresholds"]]
    if len(set(thresholds)) < len(thresholds):
        raise RunError(
            f"{len(runs)} runs of {'/'.join(map(str, _identity(runs[0])))} share thresholds; publish one of them"
        )
    config["behaviour_thresholds"] = thresholds
    suffix = _unusual(config) if len(runs) == 1 else []
    folder = root / "main" / config["algorithm"] / config["task"] / "-".join([variant(config), *suffix])
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
            **_made([read_json(run.manifest_path) for run in runs]),
            "curve": learning_curve(runs[0].progress() if len(runs) == 1 else [], thresholds),
            "config": config,
        },
    )
    return stem.with_suffix(".csv")


def _made(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Source, date, processor and versions; where runs that make one file differ, all that they say, as one text."""
    origin = {}
    for name in ORIGIN:
        said = list(dict.fromkeys(manifest.get(name) for manifest in manifests))
        origin[name] = said[0] if len(said) == 1 else ", ".join(map(str, said))
    return {**origin, "versions": manifests[0]["versions"]}


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


def learning_curve(rows: Sequence[Mapping[str, Any]], thresholds: Sequence[float]) -> dict[str, list[float]]:
    """Reward, violation and use of training episodes over steps, at no more than `CURVE_POINTS` points."""
    curve: dict[str, list[float]] = {"steps": [], "reward": [], "violation": [], "use": []}
    limits = np.asarray(thresholds, float)[None, :]
    for part in np.array_split(np.arange(len(rows)), min(CURVE_POINTS, len(rows))) if rows else []:
        some = [rows[i] for i in part]
        cost = np.array([[row[f"rollout/threshold_{t:g}/ep_cost_mean"] for t in thresholds] for row in some], float)
        reward = np.array([row["rollout/ep_rew_mean"] for row in some], float)
        if np.isfinite(reward).any() and np.isfinite(cost).any():
            curve["steps"].append(some[-1]["steps"])
            curve["reward"].append(round(float(np.nanmean(reward)), 3))
            curve["violation"].append(round(float(np.nanmean(violation(cost, limits))), 3))
            if (limits > 0).all():  # a threshold of 0 has no ratio
                curve["use"].append(round(float(np.nanmean(cost / limits)), 3))
    return curve


@dataclass(frozen=True)
class Published:
    """What is published of one variant of an algorithm on one task."""

    algorithm: str
    task: str
    variant: str
    episodes: EpisodeTable
    records: list[dict[str, Any]]
    """The seeds' JSON files."""
    history: bool = False

    @property
    def _parts(self) -> tuple[str, str]:
        """The loop, empty if there is none, and the rest of the variant, empty if it is the default preset."""
        loop, _, rest = self.variant.partition("-") if self.variant.split("-")[0] in LOOPS else ("", "", self.variant)
        return loop, "" if rest == DEFAULT_PRESET else rest

    @property
    def method(self) -> str:
        """The paper's name of it, whatever the loop."""
        rest = self._parts[1].replace("without", "w/o")
        return display_name(f"{display_name(self.algorithm)} {rest}".strip())

    @property
    def label(self) -> str:
        loop, rest = self._parts
        name = display_name(self.algorithm)
        told = self.method.replace(name, f"{name} {LOOPS[loop]}", 1) if loop else self.method
        if not self.history:
            return told
        return f"{told}, tuned per task ({HISTORY})" if loop and not rest else f"{told} ({HISTORY})"

    @property
    def behaviour_thresholds(self) -> list[float]:
        return self.records[0]["config"]["behaviour_thresholds"]


def load(root: Path) -> list[Published]:
    """Everything published, by task and algorithm, CCPO first; of the history, what nothing has replaced."""
    found = [_load(folder, folder.name) for folder in _folders(root / "main")]
    known = {(each.algorithm, each.task, each.variant) for each in found}
    for folder in _folders(root / HISTORY / "main"):
        algorithm, task = _place(folder)
        now = variant({"algorithm": algorithm, "preset": folder.name, "loop": "open"})
        if (algorithm, task, now) not in known:
            found.append(_load(folder, now, history=True))
    return sorted(found, key=lambda p: (p.task, p.algorithm != "ccpo", p.algorithm, p.method, p.history, p.variant))


def _folders(root: Path) -> list[Path]:
    return sorted({path.parent for path in root.glob("*/*/*/seed-*.csv")})


def _place(folder: Path) -> tuple[str, str]:
    """Algorithm and task of a folder with seeds."""
    return folder.parents[1].name, folder.parent.name


def _load(folder: Path, name: str, *, history: bool = False) -> Published:
    seeds = sorted(folder.glob("seed-*.csv"), key=lambda path: int(path.stem.removeprefix("seed-")))
    tables = EpisodeTable.concatenate([EpisodeTable.read_csv(path) for path in seeds])
    records = [read_json(path.with_suffix(".json")) for path in seeds]
    return Published(*_place(folder), name, tables, records, history)


def seed_table(published: Sequence[Published]) -> ReportTable:
    """The numbers of each seed by itself, what its run took, and which source made it."""
    labels: list[tuple[Published, dict[str, Any]]] = [(each, record) for each in published for record in each.records]
    own = [_summary_of_seed(each, record["config"]["seed"]) for each, record in labels]
    digits = reward_digits([summary["R"].mean for summary in own])
    rows: dict[str, list[tuple[Cell, ...]]] = {}
    for (each, record), summary, constant in zip(labels, own, constants(own, digits), strict=True):
        numbers = (number(summary[name].mean, 2) for name in ("CV", "use", "worst", "tracking"))
        took = f"{record['steps']:,}", f"{record['wall_seconds'] / 60:.1f}"
        texts = (
            each.label,
            str(record["config"]["seed"]),
            number(summary["R"].mean, digits),
            *numbers,
            constant,
            *took,
        )
        cells = tuple(Cell(text) for text in (*texts, _commit(each, record)))
        rows.setdefault(display_name(each.task), []).append(cells)
    names = ("R ↑", "CV ↓", "Use", "Worst", "Tracking", "Constant R / CV")
    notes = (
        "over all thresholds that were evaluated, see above; "
        "minutes of training, all members of a combination and all agents of a set together",
        f"commit: the source that made it, of {HISTORY} the one that reproduces it; +: with changes not committed",
    )
    return ReportTable("Each seed", ("Algorithm", "Seed", *names, "Steps", "Minutes", "Commit"), rows, notes)


def _summary_of_seed(published: Published, seed: int) -> Summary:
    episodes = published.episodes.select(published.episodes.seed == seed)
    return summarise(episodes, published.behaviour_thresholds)[0]


def _commit(published: Published, record: Mapping[str, Any]) -> str:
    if published.history:
        return HISTORY_COMMIT
    return f"{(record.get('commit') or '–')[:7]}{'+' if record.get('dirty') else ''}"


def write_tables(root: Path, readme: Path, page: Path) -> None:
    """A page and a figure for each new variant beside the seeds' folders, the results page, and the README's part."""
    (root / "main").mkdir(parents=True, exist_ok=True)
    published = load(root)
    for each in published:
        if not each.history:
            _write_variant(each, root / "main" / f"{each.algorithm}-{each.task}-{each.variant}")
    by_task = [list(group) for _, group in groupby(published, key=lambda each: each.task)]
    history = page.parent / "history.md"
    headlines = [each for each in published if each.method == "CCPO"]
    _fill(readme, _overview(headlines, root=root, history=history, page=readme))
    _fill(page, "\n".join(_section(of_task, root=root, history=history, page=page) for of_task in by_task))


def _write_variant(published: Published, stem: Path) -> None:
    episodes, behaviour = published.episodes, published.behaviour_thresholds
    own = summarise(episodes, behaviour)
    tables = (summary_table(own), group_table(own), threshold_table(per_threshold(episodes, behaviour)))
    title = f"# {published.label} on {display_name(published.task)}"
    write_atomically(
        stem.with_suffix(".md"), "\n\n".join([title, *(table.markdown().strip() for table in tables)]) + "\n"
    )
    save_figure(threshold_figure(episodes, behaviour), stem)


def _overview(headlines: Sequence[Published], *, root: Path, history: Path, page: Path) -> str:
    """CCPO on all tasks: the table, and the figure of the paper's tasks, whose behaviour thresholds are the same."""
    parts = [_summary(headlines), _history_note(headlines, history=history, page=page)]
    drawn = [each for each in headlines if display_name(each.task) in PAPER_RESULTS]
    if drawn:
        parts.append(_picture(drawn, root / "main" / "overview", page=page))
    return "\n".join(filter(None, parts))


def _section(of_task: Sequence[Published], *, root: Path, history: Path, page: Path) -> str:
    """The task's part of the results page, with figures of all methods but ablations together."""
    task = of_task[0].task
    summaries = _summaries(of_task)
    compared = [each for each in of_task if each.method not in PAPER_ABLATION or each.method == "CCPO"]
    stem = root / "main" / task
    parts = [
        f"## {display_name(task)}\n",
        _summary(of_task),
        _history_note(of_task, history=history, page=page),
        *(table.markdown() for table in (group_table(summaries), interval_table(summaries), seed_table(of_task))),
        _picture(compared or of_task, stem, page=page),
        _learning_picture(of_task, Path(f"{stem}-learning"), page=page),
        "```console",
        *_commands([each for each in of_task if not each.history]),
        *_commands([each for each in of_task if each.history], f"git checkout {HISTORY_COMMIT}"),
        "```\n",
    ]
    return "\n".join(filter(None, parts))


def _summaries(published: Sequence[Published]) -> list[Summary]:
    """Under the labels that they have on the page."""
    return [
        replace(summary, algorithm=each.label)
        for each in published
        for summary in summarise(each.episodes, each.behaviour_thresholds)
    ]


def _summary(published: Sequence[Published]) -> str:
    return summary_table(_summaries(published), {each.label: each.method for each in published}).markdown()


def _history_note(published: Sequence[Published], *, history: Path, page: Path) -> str:
    if not any(each.history for each in published):
        return ""
    where = _relative(history, page)
    return f"{HISTORY}: [published before the closed loop]({where}); commit {HISTORY_COMMIT} reproduces it\n"


def _picture(published: Sequence[Published], stem: Path, *, page: Path) -> str:
    labelled = [replace(e.episodes, algorithm=np.full(len(e.episodes), e.label)) for e in published]
    save_figure(threshold_figure(EpisodeTable.concatenate(labelled), published[0].behaviour_thresholds), stem)
    return f"![Reward and cost over the threshold]({_relative(stem, page)}.png)\n"


def _learning_picture(published: Sequence[Published], stem: Path, *, page: Path) -> str:
    curves = {each.label: [record["curve"] for record in each.records] for each in published}
    curves = {label: seeds for label, seeds in curves.items() if seeds[0]["steps"]}  # several runs together have none
    save_figure(learning_figure(curves), stem)
    return f"![Reward and violation of training episodes over steps]({_relative(stem, page)}.png)\n"


def _commands(published: Sequence[Published], *before: str) -> list[str]:
    """What repeats the runs, for any seed."""
    commands = [re.sub(r"--seed \d+", "--seed N", record["command"]) for e in published for record in e.records]
    return [*before, *dict.fromkeys(commands)] if commands else []


def _relative(path: Path, page: Path) -> str:
    return Path(os.path.relpath(path, page.parent)).as_posix()


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
