"""Observations as an environment returns them, made flat as in training; NumPy only.

A layout is plain JSON: {"box": shape}, {"one_hot": n, "start": s}, {"one_hots": [n, …], "starts": [s, …]},
{"dict": [[name, layout], …]} or {"tuple": [layout, …]}. A policy file holds it as text, which is empty where
observations are flat already.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ccpo.errors import FormatError

Layout = dict[str, Any]


def encode(layout: Layout) -> str:
    """As text; that of a flat box is empty."""
    shape = layout.get("box")
    return "" if shape is not None and len(shape) == 1 else json.dumps(layout, separators=(",", ":"))


def decode(text: str) -> Layout | None:
    """The inverse of `encode`, None for what is flat already."""
    if not text:
        return None
    try:
        layout = json.loads(text)
        size(layout)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise FormatError(f"the layout of observations {text!r:.60} is damaged; export the policy again") from None
    return layout


def size(layout: Layout) -> int:
    """How many numbers it has when flat."""
    match layout:
        case {"box": shape}:
            return math.prod(shape)
        case {"one_hot": n, "start": _}:
            return int(n)
        case {"one_hots": counts}:
            return sum(counts)
        case {"dict": parts}:
            return sum(size(part) for _, part in parts)
        case {"tuple": parts}:
            return sum(size(part) for part in parts)
    raise KeyError(str(layout))


def is_structured(layout: Layout | None, obs: Any) -> bool:
    """Whether an observation has the environment's own form, and not the flat one."""
    match layout:
        case None:
            return isinstance(obs, Mapping)
        case {"dict": _}:
            return isinstance(obs, Mapping)
        case {"tuple": _}:
            return isinstance(obs, tuple)
        case {"one_hot": _}:
            return np.ndim(obs) == 0
        case {"one_hots": counts}:
            return np.shape(obs) == np.shape(counts)
        case {"box": shape}:
            return np.shape(obs) == tuple(shape)
    return False


def flatten(layout: Layout | None, obs: Any) -> np.ndarray:
    """One observation as float32[O], in the order of training."""
    if layout is None:
        raise FormatError("obs is a mapping, but this policy was trained on flat observations; give an array")
    try:
        return np.concatenate(_parts(layout, obs)).astype(np.float32)
    except (TypeError, ValueError, IndexError) as error:
        form = f"{describe(layout)}, or {size(layout)} numbers"
        raise FormatError(f"obs does not have the form {form} ({error}); give it as the environment does") from None


def _parts(layout: Layout, obs: Any) -> list[np.ndarray]:
    match layout:
        case {"dict": parts}:
            missing = [name for name, _ in parts if name not in obs]
            if missing:
                raise ValueError(f"'{missing[0]}' is missing")
            return [flat for name, part in parts for flat in _parts(part, obs[name])]
        case {"tuple": parts}:
            return [flat for part, value in zip(parts, obs, strict=True) for flat in _parts(part, value)]
        case {"one_hot": n, "start": start}:
            return [_one_hot(int(obs) - start, n)]
        case {"one_hots": counts, "starts": starts}:
            return [_one_hot(int(v) - s, n) for v, n, s in zip(np.ravel(obs), counts, starts, strict=True)]
    flat = np.asarray(obs, np.float64).ravel()
    if flat.size != size(layout):
        raise ValueError(f"{flat.size} numbers instead of {size(layout)}")
    return [flat]


def _one_hot(index: int, count: int) -> np.ndarray:
    if not 0 <= index < count:
        raise ValueError(f"{index} is none of {count} values")
    return np.eye(count)[index]


def describe(layout: Layout) -> str:
    """For messages.

    >>> describe({"dict": [["place", {"box": [2]}], ["side", {"one_hot": 2, "start": 0}]]})
    'Dict(place: Box(2), side: Discrete(2))'
    """
    match layout:
        case {"dict": parts}:
            return f"Dict({', '.join(f'{name}: {describe(part)}' for name, part in parts)})"
        case {"tuple": parts}:
            return f"Tuple({', '.join(map(describe, parts))})"
        case {"one_hot": n}:
            return f"Discrete({n})"
        case {"one_hots": counts}:
            return f"MultiDiscrete({', '.join(map(str, counts))})"
    return f"Box({', '.join(map(str, layout['box']))})"
