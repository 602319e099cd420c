"""The log of a run, `progress.csv` and `progress.jsonl`: one row per iteration; nothing that is learned needs it."""

import csv
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccpo.errors import RunWarning
from ccpo.policy_file import is_number, write_atomically, writing


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows logged so far, without lines that are damaged or cut by a crash; what was not a number is NaN again."""
    if not path.is_file():
        return []
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        row = _row(line)
        if row is not None:
            rows.append(row)
    if len(rows) < len(lines) - 1:  # the last line may still be in the making
        warnings.warn(f"'{path}' has {len(lines) - len(rows)} damaged lines; they are left out", RunWarning, 2)
    return rows


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not is_number(row.get("steps")):
        return None
    row = {name: math.nan if value is None else value for name, value in row.items()}
    return row if all(isinstance(value, int | float) for value in row.values()) else None


def _line(row: Mapping[str, Any]) -> str:
    """A row as JSON, which has neither NaN nor infinity: null stands for both."""
    plain = {name: value if is_number(value) else None for name, value in row.items()}
    return json.dumps(plain, allow_nan=False) + "\n"


class ProgressLog:
    """Both files, flushed as rows come, and cut back when a run resumes."""

    def __init__(self, csv_path: Path, rows_path: Path, *, upto_step: int) -> None:
        self._csv_path, self._rows_path = csv_path, rows_path
        self._then = f"; then: ccpo train --resume {rows_path.parent}"
        rows = [row for row in read_rows(rows_path) if row["steps"] <= upto_step]
        write_atomically(rows_path, "".join(map(_line, rows)))
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        with writing(csv_path, then=self._then):
            csv_path.unlink(missing_ok=True)
        for row in rows:
            self._write_csv(row)

    def write(self, row: Mapping[str, Any]) -> None:
        self._write_csv(row)
        with writing(self._rows_path, then=self._then), open(self._rows_path, "a", encoding="utf-8") as file:
            file.write(_line(row))

    def _write_csv(self, row: Mapping[str, Any]) -> None:
        self._columns = self._columns or list(row)
        with writing(self._csv_path, then=self._then), open(self._csv_path, "a", newline="", encoding="utf-8") as file:
            # names that only a damaged row has, or lacks, must not stop a run
            writer = csv.DictWriter(file, self._columns, restval="nan", extrasaction="ignore")
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)
