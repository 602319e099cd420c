"""What several commands parse alike."""

import argparse
import math
from pathlib import Path

from ccpo.errors import ConfigError, RunError, ThresholdError
from ccpo.types import LARGEST


def parse_thresholds(text: str) -> list[float]:
    """Thresholds as `10,40,70` or as `10:70:5`, both ends included.

    >>> parse_thresholds("10:20:5")
    [10.0, 15.0, 20.0]
    """
    try:
        numbers = [float(part) for part in text.split(":" if ":" in text else ",")]
    except ValueError:
        numbers = []
    if not numbers or (":" in text and len(numbers) != 3):
        raise ConfigError(f"thresholds '{text}' must look like 10:70:5 (both ends included) or 10,40,70")
    if max(numbers) > LARGEST:
        raise ThresholdError(f"thresholds '{text}': one is too large; at most {LARGEST:g} is allowed")
    if ":" not in text:
        return numbers
    start, stop, step = numbers
    if not (step > 0 and stop >= start and math.isfinite(stop - start)):
        raise ConfigError(f"thresholds '{text}' must rise: start:stop:step, finite, with step > 0 and stop ≥ start")
    if (stop - start) / step > 10_000:
        raise ConfigError(f"thresholds '{text}' are too many; at most 10000 are allowed, take a larger step")
    return [start + i * step for i in range(int((stop - start) / step + 1e-9) + 1)]


def parse_seeds(text: str) -> list[int]:
    """Seeds as `0,1,2`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"seeds '{text}' must be whole numbers such as 0,1,2") from None


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`NAME=VALUE` pairs as a mapping."""
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"'--set {pair}' must look like --set discount=0.98")
    return dict(pair.split("=", 1) for pair in pairs)


def add_environment(parser: argparse.ArgumentParser, *, what: str) -> None:
    """The options that name an environment, and a function for its cost."""
    parser.add_argument("--env", "--task", dest="env", metavar="ENV", help=what)
    parser.add_argument("--cost", metavar="module:function", help="a function that says what a step costs")


ENV_FORMS = "a task (ccpo list tasks), module:Class, folder/file.py:Class, or a Gymnasium id"
OTHER_ENV = "another environment than the one trained on, or that one if it cannot be found"


def make_folder(path: Path) -> None:
    """The folder that --out names, made before the work whose results it is for."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write to '{path}' ({error.strerror}); choose another --out") from None
