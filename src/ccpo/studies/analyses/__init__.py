"""What studies look at beyond the tables of reward and cost. Each `report(runs, folder)` reads run folders only."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ccpo.policy_file import write_atomically


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Rows of the same columns, with all digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
    return path


def over_seeds(values: Sequence[float] | np.ndarray, digits: int) -> str:
    """The mean, and ± one standard deviation (ddof 1) where there are several.

    >>> over_seeds([1.0, 2.0], 1), over_seeds([3.0], 0)
    ('1.5 ± 0.7', '3')
    """
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean
