"""Draw what a policy does under several thresholds from the same start: PNG, SVG and an animation.

Tasks with a space are seen from above, with the cost along the path in colour; robots from the side, with their
speed; the others as actions over time.
"""

import argparse
from pathlib import Path

from ccpo.cli.parsing import parse_thresholds

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
    parser.add_argument("--out", type=Path, help="folder for paths.* (default: the run, or the file's folder)")
    parser.add_argument("--seed", type=int, default=0, help="which start (default: 0)")
    parser.add_argument("--animate", choices=("gif", "mp4", "none"), default="gif", help="(default: gif)")


def call(options: argparse.Namespace) -> None:
    from ccpo.agent import results_folder
    from ccpo.deploy.render import Picture, check_animation, record_all, save_animation
    from ccpo.deploy.watching import trained_actor
    from ccpo.report.figures import save_figure

    check_animation(options.animate)
    actor = trained_actor(options.run)
    low, high = actor.threshold_range
    thresholds = parse_thresholds(options.thresholds) if options.thresholds else [low, 0.5 * (low + high), high]
    stem = (options.out or results_folder(options.run)) / "paths"
    recordings = record_all(actor, thresholds, options.seed)
    for recording in recordings:
        print(
            f"threshold {recording.threshold:g}: cost {recording.costs.sum():.4g}, reward {recording.rewards.sum():.4g}"
        )
    picture = Picture(actor, recordings)
    for path in save_figure(picture.figure, stem):
        print(f"picture   {path}")
    if options.animate != "none":
        path = stem.with_suffix(f".{options.animate}")
        save_animation(picture, path)
        print(f"animation {path}")
