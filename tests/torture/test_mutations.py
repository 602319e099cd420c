"""Files from strangers: hundreds of mutations of each kind are refused by an error of ours, or harmless."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from torture.mutations import attack, kinds, mutate_bytes, mutate_document

NAMES = (
    "policy file",
    "checkpoint",
    "config.json",
    "progress.jsonl",
    "monitor",
    "settings (TOML)",
    "eval.csv",
    "message to the page",
)


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory):
    found = kinds(tmp_path_factory.mktemp("kinds"))
    assert tuple(found) == NAMES
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_mutated_file_is_refused_or_harmless(name, all_kinds):
    outcome = attack(all_kinds[name], count=200, seed=7)
    assert outcome.failures == ()
    assert outcome.refused + outcome.harmless == 200
    assert outcome.refused > 100 or name == "progress.jsonl"  # damaged lines of which are left out


def test_a_reader_that_raises_anything_else_is_a_failure(all_kinds):
    careless = all_kinds["monitor"]._replace(read=lambda path: path.read_text(encoding="ascii").index("confidence"))
    assert attack(careless, count=50, seed=0).failures


def test_mutations_are_many_and_differ():
    rng = np.random.default_rng(0)
    content, document = b"some bytes of a file" * 5, {"a": [1, 2.5, {"b": "text"}], "c": None}
    assert len({mutate_bytes(rng, content) for _ in range(100)}) > 90
    assert len({repr(mutate_document(rng, document)) for _ in range(100)}) > 60
