"""Train an agent under a few behaviour thresholds, or continue a run that was stopped."""

import argparse
import inspect
from typing import Any

from ccpo.cli.evaluate import show_evaluation
from ccpo.cli.parsing import ENV_FORMS, add_environment, parse_seeds, parse_settings
from ccpo.errors import ConfigError
from ccpo.types import EARLY_ENDS

EXAMPLES = """\
  ccpo train --task BallCircle --evaluate
  ccpo train --task CarCircle --steps 300000 --seed 1 --out runs
  ccpo train --task StaticBudget --seeds 0,1,2,3,4
  ccpo train --task BallCircle --set discount=0.98 --set hidden=64,64
  ccpo train --env speed.py:SpeedEnv --config probe-SpeedEnv.toml
  ccpo train --env Pendulum-v1 --cost costs:effort --behaviour-thresholds 20,40 --threshold-range 10,60
  ccpo train --resume runs/ccpo-BallCircle/seed-000-20260101-120000"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_environment(parser, what=f"{ENV_FORMS}; --task is the same")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="continue this run from its newest checkpoint, if it has one",
    )
    parser.add_argument("--algorithm", help="ccpo list algorithms (default: ccpo)")
    parser.add_argument("--preset", help="settings for the task: tuned, faithful, demo, … (default: tuned)")
    parser.add_argument("--steps", type=float, help="environment steps, rounded up to whole iterations")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=int, help="seed of everything random (default: 0)")
    seeds.add_argument("--seeds", metavar="LIST", help="train a run for each of these, all as one program, e.g. 0,1,2")
    parser.add_argument("--out", help="the folder under which the run's own is made (default: runs)")
    parser.add_argument("--behaviour-thresholds", metavar="LIST", help="thresholds to collect under, e.g. 20,40,60")
    parser.add_argument("--threshold-range", metavar="LOW,HIGH", help="thresholds to serve, e.g. 10,70")
    parser.add_argument("--checkpoint-every", type=int, metavar="STEPS", help="environment steps between checkpoints")
    parser.add_argument("--workers", type=int, help="worker processes for the environments (0: in this process)")
    parser.add_argument("--episode-length", type=int, help="for an environment that has no limit of its own")
    parser.add_argument(
        "--early-end",
        choices=EARLY_ENDS,
        help="what an end before the episode's time means; a failure is no way to save cost "
        "(default: the task's own, else failure)",
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any setting (ccpo list settings)"
    )
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files into RUN/tb")
    parser.add_argument("--wandb", action="store_true", help="also log to Weights & Biases, project ccpo")
    parser.add_argument("--evaluate", action="store_true", help="then evaluate it as 'ccpo evaluate RUN' does")


def call(options: argparse.Namespace) -> None:
    from ccpo import launch
    from ccpo.cli.mirrors import open_mirrors
    from ccpo.display import TrainingDisplay, tell

    names = (
        *("algorithm", "preset", "out", "episode_length", "early_end"),
        *("steps", "seed", "behaviour_thresholds", "threshold_range", "checkpoint_every", "workers"),
    )
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    given |= {"settings_file": options.config} if options.config else {}
    chosen = parse_settings(options.set)
    calls = (launch.train, launch.train_seeds)
    own = sorted(chosen.keys() & {name for call in calls for name in inspect.signature(call).parameters})
    if own:
        raise ConfigError(f"'{own[0]}' is no setting (ccpo list settings); ccpo train --help lists the other options")
    settings: dict[str, Any] = given | chosen
    if not (options.env or options.resume):
        raise ConfigError("nothing to train; give --env ENV (or --task TASK), or --resume RUN to continue a run")
    mirrors = open_mirrors(tensorboard=options.tensorboard, wandb=options.wandb)
    display = TrainingDisplay(mirrors=mirrors)
    common: dict[str, Any] = {"cost_fn": options.cost, "display": display}
    if options.resume:
        if settings or options.seeds is not None:
            raise ConfigError(
                "--resume takes no settings: a run continues as it was configured; start a new one for others"
            )
        trained = [launch.resume(options.resume, options.env, **common)]
    elif options.seeds is not None:
        seeds = parse_seeds(options.seeds)
        if "seed" in chosen:
            raise ConfigError(f"--seeds {options.seeds} and --set seed={chosen['seed']}; give one of them")
        trained = launch.train_seeds(options.env, seeds=seeds, **common, **settings)
    else:
        trained = [launch.train(options.env, **common, **settings)]
    for each in trained:
        tell(display.console, f"trained   {each.folder}")
        if options.evaluate:
            show_evaluation(each, each.folder, episodes=50)
        else:
            tell(display.console, f"next      ccpo evaluate {each.folder}")
