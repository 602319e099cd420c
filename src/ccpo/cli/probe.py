"""Try an environment before training in it: what it can cost and earn, and which thresholds, range and steps fit.

Random actions, a search for reward and one for low cost, then some iterations of training for the pace. Writes
probe-NAME.toml, which ccpo train --config takes, and a picture.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from ccpo.cli.parsing import ENV_FORMS, make_folder, parse_thresholds
from ccpo.types import EARLY_ENDS

EXAMPLES = """\
  ccpo probe speed.py:SpeedEnv
  ccpo probe Pendulum-v1 --cost costs.py:effort
  ccpo probe speed:SpeedEnv --behaviour-thresholds 5,10,15 --threshold-range 3,20    (are these within reach?)
  ccpo probe BallCircle --no-timing"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("env", metavar="ENV", help=ENV_FORMS)
    parser.add_argument("--cost", metavar="module:function", help="a function that says what a step costs")
    parser.add_argument("--episodes", type=int, default=150, help="episodes to try (default: 150)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the episodes (default: 0)")
    parser.add_argument("--behaviour-thresholds", metavar="LIST", help="check these, instead of recommending some")
    parser.add_argument("--threshold-range", metavar="LOW,HIGH", help="check this range")
    parser.add_argument("--episode-length", type=int, help="for an environment that has no limit of its own")
    parser.add_argument(
        "--early-end", choices=EARLY_ENDS, help="what an end before its time is (default: the task's own, else failure)"
    )
    parser.add_argument("--no-timing", action="store_true", help="do not measure how long training takes")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for probe-NAME.* (default: this one)")


def call(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ccpo.display import tell
    from ccpo.errors import MissingExtraError
    from ccpo.probing import probe

    console = Console()
    make_folder(options.out)
    given: dict[str, Any] = {"cost_fn": options.cost, "episode_length": options.episode_length}
    for name in ("behaviour_thresholds", "threshold_range"):
        text = getattr(options, name)
        given[name] = parse_thresholds(text) if text else None
    done: Counter[str] = Counter()
    with console.status("probing") as status:

        def advance(kind: str, count: int) -> None:
            done[kind] += count
            status.update(f"probing: {kind}" + (f", {done[kind]} episodes" if count else ""))

        found = probe(
            options.env,
            early_end=options.early_end,
            episodes=options.episodes,
            seed=options.seed,
            timing=not options.no_timing,
            advance=advance,
            **given,
        )
    console.print(*found._shown(), sep="\n")
    try:
        paths = found.save(options.out)
    except MissingExtraError as error:
        tell(console, f"no picture: {error}")
        return
    for path in paths:
        tell(console, f"{'settings' if path.suffix == '.toml' else 'picture':<9} {path}")
    if found.settings:
        tell(console, f"next      {found.command(paths[0])}")
