"""Run episodes at each threshold; print the tables, write eval.csv, draw the figure.

A later evaluation takes the place of the one before, unless --out keeps it elsewhere; those with --stochastic or in
another --task have files of their own, such as eval-CarCircle-stochastic.csv.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpo.cli.parsing import OTHER_ENV, add_environment, make_folder, parse_thresholds

if TYPE_CHECKING:
    from ccpo.agent import Agent

EXAMPLES = """\
  ccpo evaluate runs/ccpo-BallCircle/seed-000-20260101-120000
  ccpo evaluate RUN --thresholds 10:70:5 --episodes 50 --seed 7
  ccpo evaluate pretrained/BallCircle
  ccpo evaluate policy.safetensors --thresholds 15,35 --stochastic --out results"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, a saved policy file, or pretrained/TASK")
    parser.add_argument(
        "--thresholds",
        metavar="LIST",
        help="10:70:5 (both ends included) or 10,40,70 (default: 13 over the range)",
    )
    parser.add_argument("--episodes", type=int, default=50, help="episodes for each threshold (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the evaluation's episodes (default: 0)")
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the mean")
    parser.add_argument("--workers", type=int, help="processes (default: all cores)")
    add_environment(parser, what=OTHER_ENV)
    parser.add_argument(
        "--out", type=Path, help="folder for eval*.csv and the figure (default: the run, or the file's folder)"
    )


def call(options: argparse.Namespace) -> None:
    from ccpo import agent

    trained = agent.load(options.run)
    thresholds = parse_thresholds(options.thresholds) if options.thresholds is not None else None
    out = options.out or agent.results_folder(options.run)
    show_evaluation(
        trained,
        out,
        thresholds,
        episodes=options.episodes,
        seed=options.seed,
        stochastic=options.stochastic,
        workers=options.workers,
        env=options.env,
        cost_fn=options.cost,
    )


def show_evaluation(
    trained: "Agent",
    out: Path,
    thresholds: list[float] | None = None,
    *,
    stochastic: bool = False,
    workers: int | None = None,
    **settings: Any,
) -> None:
    """Evaluate, print the tables, write eval.csv and the figure into `out`, and say where they are."""
    from rich.console import Console

    from ccpo.display import episode_bar, tell
    from ccpo.errors import MissingExtraError
    from ccpo.metrics import per_threshold, summarise
    from ccpo.report.figures import save_figure, threshold_figure
    from ccpo.report.tables import group_table, summary_table, threshold_table

    console = Console()
    thresholds = thresholds or trained.even_thresholds()
    make_folder(out)
    with episode_bar(console, total=len(thresholds) * settings["episodes"], task=trained.task) as advance:
        table = trained.evaluate(thresholds, stochastic=stochastic, workers=workers, **settings, advance=advance)
    stem = out / _name(trained.task, str(table.task[0]), stochastic=stochastic)
    episodes = Path(f"{stem}.csv")
    table.write_csv(episodes)
    behaviour = trained.behaviour_thresholds
    summaries = summarise(table, behaviour)
    for shown in (threshold_table(per_threshold(table, behaviour)), group_table(summaries), summary_table(summaries)):
        console.print(shown)
    tell(console, f"episodes  {episodes}")
    try:
        for path in save_figure(threshold_figure(table, behaviour), stem):
            tell(console, f"figure    {path}")
    except MissingExtraError as error:
        tell(console, f"no figure: {error}")


def _name(trained_on: str, evaluated_in: str, *, stochastic: bool) -> str:
    """`eval`, and what makes it one of another policy or another environment than `eval` is of."""
    other = [evaluated_in] if evaluated_in != trained_on else []
    return "-".join(["eval", *other, *(["stochastic"] if stochastic else [])])
