"""Parts that take no time: one that measures, one that fails, one that never ends."""

import time

from benchmarks.rows import ratio_row, value_row


def good():
    yield ratio_row("good", "ours : theirs", [4.0, 8.0, 12.0], [2.0, 2.0, 2.0], unit="steps/s", bar=3.5)
    yield value_row("good", "latency", [50.0], unit="µs", bar=40.0, note="one run")


def broken():
    yield value_row("broken", "before", [1.0], unit="s")
    raise ValueError("no luck")


def endless():
    yield value_row("endless", "before", [1.0], unit="s")
    time.sleep(60)
