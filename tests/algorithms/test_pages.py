"""Each method has its page, with the settings and metrics that it really has.

The tables of settings, and those of metrics but CCPO's, which says more, are rewritten by `CCPO_UPDATE_DOCS=1 pytest
tests/algorithms/test_pages.py`.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ccpo.algorithms import ALGORITHMS, ccpo, cvpo, find_algorithm
from ccpo.schedule import LoopConfig

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
SECTIONS = ["Idea", "Equations", "Settings", "Metrics", "Deviations", "Results", "Command"]
METHODS = [
    name for name in ALGORITHMS if name != "ccpo"
]  # its page tells more; the rest of it is tested beside the other docs


def cell(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text.replace("|", "\\|")


def settings_table(kind: Any, inherited: dict[str, str] | None = None) -> str:
    """Every setting; of CVPO, what it has other than CCPO."""
    rows = [
        f"| `{f.name}` | {cell(f.default)} | {cell(f.metadata['help'])} |"
        for f in fields(kind)
        if (inherited or {}).get(f.name) != f.metadata["help"]
    ]
    return "\n".join(["| Setting | Default | Meaning |", "|---|---|---|", *rows])


def metrics_table(name: str) -> str:
    rows = [f"| `{metric}` | {cell(meaning)} |" for metric, meaning in find_algorithm(name).METRICS.items()]
    return "\n".join(["| Column | What it is |", "|---|---|", *rows])


def tables(name: str) -> Iterator[tuple[str, str]]:
    """Heading and table of what is generated in a page; CCPO's has the settings of the loop too."""
    own = find_algorithm(name).Config
    if name == "ccpo":
        yield "### Of the method", settings_table(own)
        yield "### Of the loop", settings_table(LoopConfig)
        return
    inherited = {f.name: f.metadata["help"] for f in fields(ccpo.Config)} if name == "cvpo" else {}
    yield "## Settings", settings_table(own, inherited)
    if name != "cvpo":
        yield "## Metrics", metrics_table(name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_tables_of_a_page_are_those_of_its_method(name):
    page = PAGES / f"{name}.md"
    for heading, table in tables(name):
        text = page.read_text(encoding="utf-8")
        found = re.search(rf"^{heading}$.*?(^\|.*?)(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
        assert found, f"{page.name} has no table below '{heading}'"
        if os.environ.get("CCPO_UPDATE_DOCS"):
            page.write_text(text.replace(found[1], table), encoding="utf-8")
        else:
            assert found[1] == table


def test_cvpo_has_the_metrics_of_ccpo():
    assert cvpo.METRICS == ccpo.METRICS


@pytest.mark.parametrize("name", [*METHODS, "combination"])
def test_a_page_has_all_its_parts(name):
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
