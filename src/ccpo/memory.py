"""What a run will need, found before it is allocated: absurd sizes end in one line and not in a machine that hangs."""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from ccpo.errors import ConfigError

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available() -> int:
    """The bytes of memory that the machine, or the control group of this process, has."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, _LIMITS):
        text = path.read_text().strip() if path.is_file() else ""
        size = min(size, int(text)) if text.isdecimal() else size
    return size


def bytes_of(tree: Any) -> int:
    """Of all arrays, or descriptions of arrays, in a tree."""
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree))


def check_fits(parts: Mapping[str, int]) -> None:
    """Refuse parts, in bytes, that exceed the memory together; the largest is named by what would make it smaller."""
    total, most = sum(parts.values()), available()
    if total > most:
        name = max(parts, key=lambda name: parts[name])
        raise ConfigError(
            f"this run needs {total / 1e9:,.1f} GB at least, {parts[name] / 1e9:,.1f} GB of it for {name}; "
            f"there are {most / 1e9:,.1f} GB: make that smaller"
        )


def check_program(program: Callable, *arguments: Any) -> None:
    """Refuse a jitted function of which one single array does not fit; tracing is shared with the call that follows."""
    traced: Any = program
    largest = max(_outputs(traced.trace(*arguments).jaxpr.jaxpr), default=0)
    check_fits({"one array of an update (batch, states, conditions, action_samples, features or hidden)": largest})


def _outputs(jaxpr: Any) -> Iterable[int]:
    """The bytes of what each operation of a program returns, those of its inner programs included."""
    for equation in jaxpr.eqns:
        yield from (_bytes(variable.aval) for variable in equation.outvars)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _outputs(inner)


def _bytes(array: Any) -> int:
    # products as Python's whole numbers, which do not overflow
    return math.prod(getattr(array, "shape", ())) * getattr(getattr(array, "dtype", None), "itemsize", 4)
