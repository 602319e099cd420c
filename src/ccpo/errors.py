"""The exception tree, and the two helpers that make its messages useful.

Every error a user can cause derives from `CCPOError`; its message says what was given, what is allowed
and what to do. The command line prints that one line and exits with 2.
"""

import difflib
import importlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType


class CCPOError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(CCPOError, ValueError):
    """An unknown setting, or a value that is not allowed."""


class ThresholdError(CCPOError, ValueError):
    """A threshold that is negative or not finite."""


class ThresholdWarning(UserWarning):
    """A threshold outside the range that the policy was trained for."""


class RunWarning(UserWarning):
    """Something of a run is damaged, and it goes on without it."""


class EnvError(CCPOError):
    """An environment that cannot be made, reports no cost, or returned something unusable."""


class NumericalError(CCPOError, ArithmeticError):
    """NaN or infinity in observations, rewards, costs or losses."""


class RunError(CCPOError):
    """A run folder that cannot be written, is in use, or does not hold what is needed."""


class FormatError(CCPOError, ValueError):
    """A checkpoint or policy file that is truncated, tampered with, of another version or of another task."""


class MissingExtraError(CCPOError, ImportError):
    """An optional dependency that is not installed."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped with Ctrl-C; `kept`: the folders of its runs, the steps of their newest checkpoints."""

    def __init__(self, kept: Sequence[tuple[Path, int]]) -> None:
        self.kept = tuple(kept)
        super().__init__(self.advice(lambda path: f"ccpo.resume({path!r})"))

    def advice(self, command: Callable[[str], str]) -> str:
        """Where each run stands, and the command that continues it, made from its folder."""
        if not self.kept:
            return "stopped before the first iteration; nothing was kept"
        return "; ".join(
            f"stopped, kept up to step {step:,}; continue with: {command(str(path))}"
            if step
            else f"stopped before the first checkpoint; start anew with: {command(str(path))}"
            for path, step in self.kept
        )


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """The tail of an error message: the closest allowed name if there is one, else all of them.

    >>> did_you_mean("BalCircle", ["BallCircle", "AntRun"])
    "did you mean 'BallCircle'?"
    """
    allowed = sorted(allowed)
    close = difflib.get_close_matches(name, allowed, n=1)
    if not close:
        folded = {a.replace("-", "").replace("_", "").lower(): a for a in allowed}
        hit = folded.get(name.replace("-", "").replace("_", "").lower())
        close = [hit] if hit else []
    return f"did you mean '{close[0]}'?" if close else f"choose from: {', '.join(allowed)}"


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs '{module.split('.')[0]}' ({error}); install it with: pip install 'ccpo[{extra}]'"
        ) from None
