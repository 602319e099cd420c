"""What the documentation names exists, and what exists is documented."""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from ccpo import agent, config, replay
from ccpo.algorithms import ccpo
from ccpo.envs.registry import resolve
from ccpo.schedule import LoopConfig, make_problem
from ccpo.training import Trainer
from ccpo.types import Experience, LaneStatistics
from helpers import TASK, TINY

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "ccpo"
PAGES = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
CCPO_PAGE = DOCS / "algorithms" / "ccpo.md"
EQUATIONS = 15


def text_of(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def section(page: Path, heading: str) -> str:
    """What stands below a heading, up to the next one of any level."""
    match = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text_of(page), re.DOTALL | re.MULTILINE)
    assert match, f"{page.name} has no section '{heading}'"
    return match[1]


def table_rows(text: str) -> Iterator[list[str]]:
    """The cells of each row of the tables in a text, without headers and rules."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        is_header = i + 1 < len(lines) and lines[i + 1].startswith("|--")
        if line.startswith("|") and not line.startswith("|--") and not is_header:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def find(name: str) -> Any:
    """The object that a dotted name, relative to the package, stands for."""
    parts = ["ccpo", *name.split(".")]
    for size in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[size:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(name)


EQUATION_ROWS = list(table_rows(text_of(DOCS / "equations.md")))


@pytest.mark.parametrize("row", EQUATION_ROWS, ids=lambda row: row[0])
def test_an_equation_has_its_functions_and_tests(row):
    _, _, functions, tests = row
    if functions in ("not implemented yet", "–"):
        assert tests == ""
        return
    assert quoted(functions)
    for name in quoted(functions):
        find(name)
    assert quoted(tests)
    for name in quoted(tests):
        file, _, test = name.partition("::")
        assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), name


def test_every_numbered_equation_is_listed_once():
    numbers = [int(n) for row in EQUATION_ROWS for n in re.findall(r"Eq\. \((\d+)\)", row[0])]
    assert sorted(numbers) == list(range(1, EQUATIONS + 1))


def test_deviations_are_numbered_and_name_settings_that_exist():
    text = text_of(CCPO_PAGE)
    numbers = [int(n) for n in re.findall(r"^### D(\d+): ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    switches = re.findall(r"^- \*\*Switch\*\*: (.*)$", text, re.MULTILINE)
    assert len(switches) == len(numbers)
    known = {f.name for kind in (ccpo.Config, LoopConfig) for f in fields(kind)}
    for switch in switches:
        names = [name for name in quoted(switch) if "." not in name]
        assert set(names) <= known
        assert names or switch == "none."


def test_every_metric_is_explained_and_every_explained_one_exists():
    factory = resolve(TASK)
    loop, settings = config.build((LoopConfig, ccpo.Config), agent.task_settings(factory), TINY)
    problem = make_problem(factory.spec, loop)
    store = replay.init(problem.spec, slots=20, lanes=problem.lanes)
    statistics = LaneStatistics(jnp.zeros(problem.lanes), jnp.zeros((problem.lanes, 1)))

    def metrics(key):
        experience = Experience(store.data, statistics, store, jnp.zeros(()))
        return ccpo.update(settings, problem, ccpo.init(settings, problem, key), experience)[1]

    trainer = object.__new__(Trainer)
    trainer.problem, trainer.iteration, trainer.seconds, trainer.cumulative_cost = problem, 0, 0.0, 0.0
    trainer.schedule = type("Schedule", (), {"steps_each": 0})()
    real = {*trainer._row([], {}), *jax.eval_shape(metrics, jax.random.key(0))}
    explained = {quoted(row[0])[0] for row in table_rows(section(CCPO_PAGE, "Metrics"))}
    assert explained == {re.sub(r"threshold_[^/]+", "threshold_<ε>", name) for name in real}


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = DOCS / "dependencies.md"

    def packages(requirements):
        return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}

    core = {quoted(row[0])[0] for row in table_rows(section(page, "Core"))}
    assert core == packages(project["dependencies"])
    extras = {quoted(row[0])[0]: set(quoted(row[1])) for row in table_rows(section(page, "Extras"))}
    assert extras == {name: packages(given) for name, given in project["optional-dependencies"].items()}


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: page.name)
def test_internal_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_page_is_in_the_table_of_contents():
    listed = re.search(r"```\{toctree\}.*?```", (DOCS / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    assert listed
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")} - {"index"}
    assert {page for page in pages for line in listed[0].splitlines() if fnmatch(page, line)} == pages


def imported(file: Path) -> Iterator[str]:
    """The modules of this package, one level deep, that a file imports anywhere."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "ccpo":
            names = [f"ccpo.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("ccpo.") and "__" not in name)


def test_imports_follow_the_layers():
    rows = table_rows(section(DOCS / "architecture.md", "Who may import whom"))
    layers = {module: int(layer) for layer, modules in rows for module in quoted(modules)}
    files = [file for file in SOURCE.rglob("*.py") if file.parent != SOURCE or file.stem != "__init__"]
    for file in files:
        module = file.relative_to(SOURCE).with_suffix("").parts[0]
        assert module in layers, f"{module} is missing in the layers of docs/architecture.md"
        for other in imported(file):
            assert layers[other] <= layers[module], f"{file.relative_to(SOURCE)} imports {other}"


def test_no_algorithm_imports_another():
    """But CVPO, which is CCPO with one threshold."""
    importing = {file.stem for file in (SOURCE / "algorithms").glob("*.py") if "algorithms" in imported(file)}
    assert importing == {"cvpo"}
