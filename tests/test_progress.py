"""The log of a run: valid JSON, and readable however it was damaged."""

import csv
import json
import math

import pytest

from ccpo.errors import RunError, RunWarning
from ccpo.progress import ProgressLog, read_rows

ROWS = [{"steps": 10 * i, "loss": 1.0 / (i + 1), "rollout/ep_cost_mean": math.nan if i % 2 else 5.0} for i in range(6)]


def write(folder, rows=ROWS, *, upto_step=0):
    log = ProgressLog(folder / "progress.csv", folder / "progress.jsonl", upto_step=upto_step)
    for row in rows:
        log.write(row)
    return folder / "progress.jsonl"


def refuse(name):
    raise ValueError(name)


def test_the_log_is_json_without_nan_and_reads_as_it_was_written(tmp_path):
    path = write(tmp_path)
    plain = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert plain[1]["rollout/ep_cost_mean"] is None
    assert str(read_rows(path)) == str(ROWS)


def test_a_line_in_the_making_is_left_out_without_a_word(tmp_path):
    path = write(tmp_path)
    path.write_text(path.read_text()[:-7])
    assert str(read_rows(path)) == str(ROWS[:-1])


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe\n\xff\n",
        b"[1, 2]\n[]\n",
        b'{"loss": 1}\n{"steps": "x"}\n',
        b'{"steps": 10, "loss": {}}\n{"st\n',
        b"\0\n\0\n",
    ],
)
def test_damaged_lines_are_told_and_left_out(damage, tmp_path):
    path = write(tmp_path)
    path.write_bytes(damage + path.read_bytes())
    with pytest.warns(RunWarning, match="has 2 damaged lines; they are left out"):
        assert str(read_rows(path)) == str(ROWS)


def test_a_resumed_log_is_cut_back_and_goes_on_whatever_was_in_it(tmp_path):
    path = write(tmp_path)
    path.write_bytes(b'{"steps": 0, "lo55": 7.0}\n' + path.read_bytes())
    write(tmp_path, ROWS[3:], upto_step=20)
    assert [row["steps"] for row in read_rows(path)] == [0, 0, 10, 20, 30, 40, 50]
    with open(tmp_path / "progress.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["steps"] for row in table] == ["0", "0", "10", "20", "30", "40", "50"]
    assert table[-1]["loss"] == str(ROWS[-1]["loss"])


def test_a_log_that_cannot_be_written_is_one_error_that_says_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    log = ProgressLog(folder / "progress.csv", folder / "progress.jsonl", upto_step=0)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(
        RunError, match=r"cannot write '.*progress.csv': No such file .*; then: ccpo train --resume .*run"
    ):
        log.write(ROWS[0])
    assert not folder.exists()
