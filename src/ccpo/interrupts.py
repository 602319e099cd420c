"""Ctrl-C while something must not be cut in the middle: it is noted, and acted on where that is safe."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether Ctrl-C was pressed. Unless `deferred` is set it stops at once, as always; a second one always does."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.deferred, self.requested, self._tell = False, False, tell

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self.deferred or self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._tell()


@contextmanager
def noted(tell: Callable[[], None]) -> Iterator[Interrupts]:
    """Note Ctrl-C, and `tell` that it was; where Python's own handling is not in place, nothing is changed."""
    interrupts = Interrupts(tell)
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
