"""Measure what each setting of the dial costs, and store which setting keeps which request with confidence."""

import argparse
from pathlib import Path

from ccpo.cli.parsing import OTHER_ENV, add_environment, make_folder, parse_thresholds

EXAMPLES = """\
  ccpo calibrate RUN
  ccpo calibrate RUN --confidence 0.99 --episodes 1000 --thresholds 20:60:10
  ccpo calibrate policy.safetensors --cost-max 100 --out calibrated.safetensors"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, a saved policy file, or pretrained/TASK")
    parser.add_argument("--confidence", type=float, default=0.95, help="of all guarantees at once (default: 0.95)")
    parser.add_argument("--episodes", type=int, default=300, help="episodes for each request (default: 300)")
    parser.add_argument(
        "--thresholds", metavar="LIST", help="requests to guarantee: 10:70:5 or 10,40,70 (default: 13 over the range)"
    )
    parser.add_argument(
        "--cost-max",
        type=float,
        metavar="C",
        help="the largest cost an episode can have (default: its steps times the environment's max_step_cost)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the calibration's episodes (default: 0)")
    add_environment(parser, what=OTHER_ENV)
    parser.add_argument("--workers", type=int, help="processes (default: all cores)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the calibrated policy (default: where it came from)")


def call(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ccpo import agent
    from ccpo.deploy.calibrate import calibrate_agent, calibration_table, planned_episodes, write_rows
    from ccpo.display import episode_bar, tell
    from ccpo.errors import ConfigError

    console, trained = Console(), agent.load(options.run)
    if agent.shipped(options.run) and options.out is None:
        raise ConfigError(
            f"'{options.run}' comes with the package, which is not written into; give --out FILE.safetensors, "
            "and load that: ccpo.load(FILE)"
        )
    file = agent.POLICY_FILE if trained.run else Path(options.run).name
    out = options.out or agent.results_folder(options.run) / file
    if out.suffix != ".safetensors":
        raise ConfigError(f"--out {out} must end in .safetensors: it is the calibrated policy")
    make_folder(out.parent)
    interval = trained.threshold_range
    requests = trained.even_thresholds() if options.thresholds is None else parse_thresholds(options.thresholds)
    total = planned_episodes(requests, interval, options.episodes)
    with episode_bar(console, total=total, task=trained.task) as advance:
        calibration = calibrate_agent(
            trained,
            requests,
            confidence=options.confidence,
            episodes=options.episodes,
            cost_max=options.cost_max,
            seed=options.seed,
            workers=options.workers,
            env=options.env,
            cost_fn=options.cost,
            advance=advance,
        )
    trained.save(out)
    write_rows(out.parent / "calibration.csv", calibration.rows)
    console.print(calibration_table(calibration, trained.task))
    tell(console, f"reward given up for the guarantee: {calibration.mean_given_up:.1f} on average over what is served")
    tell(console, f"table     {out.parent / 'calibration.csv'}")
    tell(console, f"policy    {out}")
