"""Open the playground: a local page with the task live from the simulator and a slider for the threshold.

Without RUN it offers the newest runs under ./runs and the closed-form optima of the analytic tasks.
Keys: space pauses, the arrows turn the threshold, R restarts, N takes a new start, C compares, + and - set the speed.
"""

import argparse
import sys

from ccpo.cli.parsing import OTHER_ENV, add_environment

EXAMPLES = """\
  ccpo play
  ccpo play runs/ccpo-BallCircle/seed-000-20260101-120000
  ccpo play RUN --second other-policy.safetensors
  ccpo play RUN --host 0.0.0.0 --port 8000 --no-browser    (prints an address with a secret token)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run folder, a saved policy file, or pretrained/TASK")
    add_environment(parser, what=OTHER_ENV)
    parser.add_argument("--second", metavar="RUN", help="a second policy of the same task, to compare with")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address only")


def call(options: argparse.Namespace) -> None:
    from ccpo.deploy.play import Playground, find_actors, serve

    playground = Playground(
        find_actors(options.run, options.second, env=options.env, cost_fn=options.cost),
        compare=options.second is not None,
    )
    try:
        serve(playground, host=options.host, port=options.port, browser=not options.no_browser)
    except KeyboardInterrupt:
        print("\nccpo: the playground is closed", file=sys.stderr)
