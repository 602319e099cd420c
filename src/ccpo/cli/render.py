"""Draw what a policy does under several thresholds from the same start: PNG, SVG and an animation.

Tasks with a space are seen from above, with the cost along the path in colour; robots from the side, with their
speed; the others as actions over time.
"""

import argparse
from pathlib import Path

from ccpo.cli.parsing import OTHER_ENV, add_environment, parse_thresholds

EXAMPLES = """\
  ccpo render runs/ccpo-BallCircle/seed-000-20260101-120000 --thresholds 10,40,70
  ccpo render policy.safetensors --seed 3 --out pictures
  ccpo render RUN --thresholds 10:70:20 --animate mp4"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, a saved policy file, or pretrained/TASK")
    parser.add_argument(
        "--thresholds",
        metavar="LIST",
        help="10,40,70 or 10:70:30 (default: the lowest, the middle and the highest of the range)",
    )
    add_environment(parser, what=OTHER_ENV)
    parser.add_argument("--out", type=Path, help="folder for paths.* (default: the run, or the file's folder)")
    parser.add_argument("--seed", type=int, default=0, help="which start (default: 0)")
    parser.add_argument("--animate", choices=("gif", "mp4", "none"), default="gif", help="(default: gif)")


def call(options: argparse.Namespace) -> None:
    from ccpo.agent import results_folder
    from ccpo.deploy.render import check_animation, draw
    from ccpo.deploy.watching import trained_actor

    check_animation(options.animate)
    actor = trained_actor(options.run, env=options.env, cost_fn=options.cost)
    low, high = actor.threshold_range
    thresholds = [low, 0.5 * (low + high), high] if options.thresholds is None else parse_thresholds(options.thresholds)
    folder = options.out or results_folder(options.run)
    for path in draw(actor, thresholds, folder, seed=options.seed, animate=options.animate, tell=print):
        print(f"{'picture' if path.suffix in ('.png', '.svg') else 'animation':<9} {path}")
