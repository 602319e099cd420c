"""Join finished single-threshold runs into one agent that interpolates between them: C-PPO-Lag, C-TRPO-Lag."""

import argparse
from pathlib import Path

EXAMPLES = """\
  ccpo combine RUN RUN RUN --out c_ppo_lag.safetensors
  ccpo combine runs/trpo_lag-BallCircle/seed-000-* --out c_trpo_lag.safetensors"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders or policy files, each of one threshold")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the policy file to write")


def call(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ccpo import agent
    from ccpo.combination import combine
    from ccpo.display import tell
    from ccpo.errors import ConfigError

    if options.out.suffix != ".safetensors":
        raise ConfigError(f"--out {options.out} must end in .safetensors: other endings belong to other files")
    combined = combine([agent.load(run).policy for run in options.runs])
    combined.save(options.out)
    console = Console()
    tell(console, f"policy    {options.out}")
    tell(console, f"evaluate it with: ccpo evaluate {options.out}")
