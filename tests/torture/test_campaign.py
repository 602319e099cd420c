"""The campaign on faults that take no time: what it counts, what it writes, and when it ends."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from torture.cases import BrokenPromiseError, check_one_line, check_same

from torture import __main__ as campaign


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Three faults: one that is survived, one that is not, one that cannot be tried."""

    def fails(setting, folder, rng):
        assert folder.is_dir()
        raise BrokenPromiseError("half of it is gone")

    faults = {
        "good": (lambda *_: "survived", 3),
        "bad": (fails, 2),
        "impossible": (lambda *_: None, 1),
    }
    monkeypatch.setattr(campaign, "FAULTS", faults)
    monkeypatch.setattr(campaign, "Setting", lambda folder: None)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{campaign.BEGIN}\nold\n{campaign.END}\nafter\n")
    return page


def test_it_counts_what_was_tried_and_lost_and_writes_the_table(quick, tmp_path):
    arguments = ["--mutations", "0", "--out", str(tmp_path / "out"), "--page", str(quick)]
    assert campaign.main(arguments) == 1
    lines = {line["fault"]: line for line in json.loads((tmp_path / "out" / "torture.json").read_text())["lines"]}
    assert {name: (line["tried"], line["lost"]) for name, line in lines.items()} == {
        "good": (3, 0),
        "bad": (2, 2),
        "impossible": (0, 0),
    }
    assert lines["bad"]["failures"] == ["turn 0: half of it is gone", "turn 1: half of it is gone"]
    text = quick.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| good | 3 | 0 | survived 3 |" in text
    assert "old" not in text


def test_without_losses_it_ends_well_and_in_time(quick, tmp_path):
    arguments = ["--mutations", "0", "--only", "good", "--times", "1", "--out", str(tmp_path), "--page", str(quick)]
    assert campaign.main(arguments) == 0
    began = time.monotonic()
    assert campaign.main([*arguments, "--minutes", "0"]) == 0
    assert time.monotonic() - began < 10
    assert "| good | 0 | 0 |" in quick.read_text()


def test_ends_that_differ_in_one_bit_are_not_the_same():
    first = {"weight": np.float32([1.0, np.nan]), "rows": np.array("a")}
    check_same(first, {name: array.copy() for name, array in first.items()})
    for other in ({**first, "weight": np.float32([1.0, 2.0])}, {"weight": first["weight"]}):
        with pytest.raises(BrokenPromiseError, match="is not the uninterrupted one"):
            check_same(first, other)


def test_a_traceback_or_another_exit_code_breaks_the_promise():
    check_one_line(2, "ccpo: no room", (2,))
    for code, complaint in ((1, "ccpo: no room"), (2, "Traceback (most recent call last):")):
        with pytest.raises(BrokenPromiseError):
            check_one_line(code, complaint, (2,))
