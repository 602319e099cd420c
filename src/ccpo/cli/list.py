"""Show what there is: tasks, algorithms, or the settings of an algorithm."""

import argparse
from typing import Any

EXAMPLES = """\
  ccpo list tasks
  ccpo list algorithms
  ccpo list settings --algorithm ccpo"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("tasks", "algorithms", "settings"))
    parser.add_argument("--algorithm", default="ccpo", help="whose settings (default: ccpo)")


def call(options: argparse.Namespace) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ccpo.cli.display import tell

    headers, rows = {"tasks": _tasks, "algorithms": _algorithms, "settings": _settings}[options.what](options)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, no_wrap=header in headers[:1])
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    console.print(table)
    if options.what == "settings":
        tell(
            console,
            "presets change these for a task (--preset, tuned if none is given); a run's config.json has what it used",
        )


def _tasks(_: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    from ccpo.envs.registry import find_task, list_tasks

    headers = ("task", "steps", "behaviour thresholds", "range", "needs", "what it is")
    rows = [
        (
            task.name,
            str(task.episode_length),
            ", ".join(map(_threshold, task.behaviour_thresholds)),
            " to ".join(map(_threshold, task.threshold_range)),
            f"ccpo[{task.extra}]" if task.extra else "",
            task.description,
        )
        for task in map(find_task, list_tasks())
    ]
    return headers, rows


def _threshold(value: Any) -> str:
    """A number, or one for each of several costs."""
    return "(" + ", ".join(f"{part:g}" for part in value) + ")" if isinstance(value, tuple) else f"{value:g}"


def _algorithms(_: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    from ccpo.algorithms import ABLATIONS, ALGORITHMS, COMBINATIONS

    return ("algorithm", "what it is"), list((ALGORITHMS | COMBINATIONS | ABLATIONS).items())


def _settings(options: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    from dataclasses import fields

    from ccpo.algorithms import find_algorithm
    from ccpo.schedule import LoopConfig

    rows = []
    for kind in (LoopConfig, find_algorithm(options.algorithm).Config):
        for f in fields(kind):
            default = ",".join(map(str, f.default)) if isinstance(f.default, tuple) else str(f.default)
            rows.append((f.name, default, f.metadata["help"]))
    return ("setting", "default", "meaning"), rows
