"""The paper's experiments: run them, here or on a Ray cluster, see how they stand, and report them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ccpo.studies.catalogue import Study
    from ccpo.studies.runner import Place
    from ccpo.studies.status import Standing

EXAMPLES = """\
  ccpo study list
  ccpo study run main --scale smoke
  ccpo study run main --scale quick --methods CCPO C-PPO-Lag --seeds 30 31 --jobs 2
  ccpo study run ablation --scale paper --tasks BallCircle --ray auto --out /shared/studies
  ccpo study status main --scale quick
  ccpo study report main --scale quick"""

ACTIONS = {
    "list": "show the studies and the scales",
    "run": "do what is left of a study, then report it; several may run at once",
    "status": "what is done, running, failed or waiting, and the time left",
    "report": "write tables and figures of what is finished",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary)
        if name != "list":
            _add_choice(action)
        if name == "run":
            where = action.add_mutually_exclusive_group()
            where.add_argument(
                "--jobs", type=int, default=1, help="processes here, each on its share of the cores (default: 1)"
            )
            where.add_argument("--ray", metavar="ADDRESS", help="run on this Ray cluster; its nodes share --out")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="ccpo study list")
    parser.add_argument("--scale", choices=("smoke", "quick", "paper"), default="quick", help="(default: quick)")
    parser.add_argument("--out", type=Path, default=Path("studies"), help="where studies lie (default: studies)")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="these instead of the scale's")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="only these, by the names in the table")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="these instead of the scale's")


def call(options: argparse.Namespace) -> None:
    from rich.console import Console

    console = Console()
    if options.action == "list":
        _list(console)
        return
    from ccpo.studies.catalogue import find_study
    from ccpo.studies.plan import with_members
    from ccpo.studies.runner import Place

    study = find_study(options.name)
    chosen = study.plans(options.scale, tasks=options.tasks, methods=options.methods, seeds=options.seeds)
    root = options.out.absolute() / options.scale
    reported = [Place(plan, root) for plan in chosen]
    places = [Place(plan, root) for plan in with_members(chosen)]
    for place in places:
        place.check()
    if options.action == "run":
        _run(console, places, options)
    if options.action == "status":
        _show_status(console, places)
    else:
        _report(console, study, options.scale, reported)


def _list(console: "Console") -> None:
    from rich import box
    from rich.table import Table

    from ccpo.display import tell
    from ccpo.studies.catalogue import SCALES, STUDIES
    from ccpo.studies.plan import with_members

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("study", *SCALES, "what it is, and its methods"):
        table.add_column(header, justify="right" if header in SCALES else "left")
    for study in STUDIES.values():
        numbers = (str(len(with_members(study.plans(scale)))) for scale in SCALES)
        methods = ", ".join(method.label for method in study.methods)
        table.add_row(study.name, *numbers, f"{study.title}\n[dim]{methods}[/]")
    console.print(table)
    tell(console, "runs at each scale:")
    for name, scale in SCALES.items():
        tell(console, f"--scale {name:<6} {scale.description}")


def _run(console: "Console", places: Sequence["Place"], options: argparse.Namespace) -> None:
    from ccpo.cli.study_display import study_display
    from ccpo.studies.local import run_here
    from ccpo.studies.on_ray import run_on_ray
    from ccpo.studies.status import standing_of

    with study_display(console) as show:

        def watch() -> None:
            show([standing_of(place) for place in places])

        if options.ray:
            run_on_ray(places, address=options.ray, watch=watch)
        else:
            run_here(places, jobs=options.jobs, watch=watch)
    _show_failures(console, [standing_of(place) for place in places])


def _show_failures(console: "Console", rows: Sequence["Standing"]) -> None:
    from ccpo.display import tell

    for row in rows:
        if row.state == "failed":
            tell(console, f"failed    {row.place.path}: {row.error}", style="red")


def _show_status(console: "Console", places: Sequence["Place"]) -> None:
    from rich import box
    from rich.table import Table

    from ccpo.cli.study_display import STATE_STYLES, time_left
    from ccpo.display import tell
    from ccpo.studies.status import counts, seconds_left, standing_of

    rows = [standing_of(place) for place in places]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("run", "state", "steps", "minutes"):
        table.add_column(header, justify="left" if header in ("run", "state") else "right", no_wrap=header == "run")
    for row in rows:
        share = f"{100 * row.share:.0f} %" if row.share else ""
        minutes = f"{row.seconds / 60:.1f}" if row.seconds else ""
        table.add_row(row.place.plan.name, f"[{STATE_STYLES[row.state]}]{row.state}", share, minutes)
    console.print(table)
    _show_failures(console, rows)
    numbers = ", ".join(f"{count} {state}" for state, count in counts(rows).items() if count)
    tell(console, f"{numbers}; time left: {time_left(seconds_left(rows))}")


def _report(console: "Console", study: "Study", scale: str, places: Sequence["Place"]) -> None:
    from ccpo.display import tell
    from ccpo.studies.index import write_report

    missing = sum(not place.finished for place in places)
    for path in write_report(study, scale, places):
        tell(console, f"report    {path}")
    if missing:
        tell(console, f"not complete: {missing} of {len(places)} runs are missing", style="yellow")
