"""The command line: parse → call → print. Nothing heavy is imported before it is known what to do."""

import argparse
import importlib
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ccpo.errors import CCPOError, Interrupted, RunWarning, ThresholdWarning
from ccpo.threads import use_one_thread

COMMANDS = {
    "probe": "try an environment of your own; recommends thresholds, range and steps",
    "train": "train an agent, or continue a run",
    "evaluate": "measure a trained agent over thresholds: table, eval.csv and figure",
    "render": "draw the paths of a policy under several thresholds: PNG, SVG and an animation",
    "play": "open the playground: turn the threshold of a policy live, in the browser",
    "combine": "join single-threshold runs into one agent for every threshold",
    "export": "write the policy file with its model card, or an ONNX model",
    "calibrate": "find which dial setting keeps which request, with confidence",
    "study": "rerun the paper's experiments: run, resume, watch and report them",
    "list": "show tasks, algorithms or settings",
}


GOES_ON = {
    "train": "; a run continues with: ccpo train --resume RUN",
    "study": "; a study continues as it began",
}
"""What is said of a command that was stopped where nothing more is known."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ccpo",
        description="One policy, any safety threshold: train once, turn the dial at deployment.",
        epilog="example: ccpo train --task BallCircle --seed 0 && ccpo evaluate runs/ccpo-BallCircle/seed-000-*",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"ccpo.cli.{name}")
        sub = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        module.add_arguments(sub)
        sub.set_defaults(call=module.call)
    return parser


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """A warning of ours is for the person at the terminal; where in the code it arose is not."""
    if issubclass(category, (ThresholdWarning, RunWarning)):
        print(f"ccpo: {message}", file=sys.stderr)


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, which ends a command in as good an order as Ctrl-C does."""


@contextmanager
def _terminable() -> Iterator[None]:
    """In here, SIGTERM raises `_TerminatedError`."""

    def terminate(*_: object) -> None:
        raise _TerminatedError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_code(stop: BaseException | None) -> int:
    return 128 + (signal.SIGTERM if isinstance(stop, _TerminatedError) else signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; an error of ours, or of the user's, is one line and exit code 2."""
    use_one_thread()
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.version:
        from ccpo import __version__

        print(f"ccpo {__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    try:
        with _terminable(), warnings.catch_warnings():
            warnings.simplefilter("always", ThresholdWarning)
            warnings.simplefilter("always", RunWarning)
            warnings.showwarning = _show_warning
            options.call(options)
    except CCPOError as error:
        if options.debug:
            raise
        print(f"ccpo: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Interrupted as stop:
        print(f"ccpo: {stop.advice(lambda path: f'ccpo train --resume {shlex.quote(path)}')}", file=sys.stderr)
        return _exit_code(stop.__context__)  # what it was raised in answer to
    except KeyboardInterrupt as stop:
        print(f"\nccpo: stopped{GOES_ON.get(options.command, '')}", file=sys.stderr)
        return _exit_code(stop)
    return 0
