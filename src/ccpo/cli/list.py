"""Show what there is: tasks, algorithms, or the settings of an algorithm."""

import argparse
from typing import Any

EXAMPLES = """\
  ccpo list tasks
  ccpo list tasks --all
  ccpo list algorithms
  ccpo list settings --algorithm ccpo"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("tasks", "algorithms", "settings"))
    parser.add_argument("--all", action="store_true", help="variants of tasks too")
    parser.add_argument("--algorithm", default="ccpo", help="whose settings (default: ccpo)")


def call(options: argparse.Namespace) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ccpo.display import tell

    console = Console()
    for title, headers, rows in {"tasks": _tasks, "algorithms": _algorithms, "settings": _settings}[options.what](
        options
    ):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=escape(title) or None, title_justify="left")
        for header in headers:
            table.add_column(header, no_wrap=header in headers[:1])
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
    if options.what == "tasks":
        tell(console, "variants: ccpo list tasks --all · an environment of your own: --env module:Class")
    if options.what == "settings":
        tell(
            console,
            "presets change these for a task (--preset, tuned if none is given); a run's config.json has what it used",
        )


Listed = list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]
"""Tables: a title, headers and rows."""


def _tasks(options: argparse.Namespace) -> Listed:
    """A table for each family; thresholds that all of it share stand in its title."""
    from ccpo.envs.registry import find_task, is_ours, list_tasks

    families: dict[str, list[Any]] = {}
    for task in map(find_task, list_tasks()):
        if options.all or "-" not in task.name or not is_ours(task):
            families.setdefault(_family(task), []).append(task)
    tables = []
    for title, family in families.items():
        limits = [
            (", ".join(map(_threshold, task.behaviour_thresholds)), " to ".join(map(_threshold, task.threshold_range)))
            for task in family
        ]
        headers, shared = ("task", "steps", "what it is"), len(set(limits)) == 1
        if shared:
            title = f"{title} · trained under {limits[0][0]} · range {limits[0][1]}"
        else:
            headers = ("task", "steps", "trained under", "range")
        rows = [
            (
                task.name,
                str(task.episode_length),
                *((task.description.removeprefix("analytic: "),) if shared else limit),
            )
            for task, limit in zip(family, limits, strict=True)
        ]
        tables.append((title, headers, rows))
    return tables


def _family(task: Any) -> str:
    """The title of its table."""
    from ccpo.envs.registry import is_ours

    if not is_ours(task):
        title = "registered by other modules"
    else:
        title = f"{task.extra}: pip install 'ccpo[{task.extra}]'" if task.extra else "analytic, no simulator"
    return title if len(task.costs) == 1 else f"{title} · {len(task.costs)} costs"


def _threshold(value: Any) -> str:
    """A number, or one for each of several costs."""
    return "(" + ", ".join(f"{part:g}" for part in value) + ")" if isinstance(value, tuple) else f"{value:g}"


def _algorithms(_: argparse.Namespace) -> Listed:
    from ccpo.algorithms import ABLATIONS, ALGORITHMS, COMBINATIONS

    return [("", ("algorithm", "what it is"), list((ALGORITHMS | COMBINATIONS | ABLATIONS).items()))]


def _settings(options: argparse.Namespace) -> Listed:
    from dataclasses import fields

    from ccpo.algorithms import find_algorithm
    from ccpo.schedule import LoopConfig

    rows = []
    for kind in (LoopConfig, find_algorithm(options.algorithm).Config):
        for f in fields(kind):
            default = ",".join(map(str, f.default)) if isinstance(f.default, tuple) else str(f.default)
            rows.append((f.name, default, f.metadata["help"]))
    return [("", ("setting", "default", "meaning"), rows)]
