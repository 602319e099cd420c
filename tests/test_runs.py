"""What a run's manifest says of its origin."""

import json
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from ccpo import runs
from ccpo.runs import Run


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A git checkout with a package in it, and a file beside the package."""
    package = tmp_path / "checkout" / "package"
    package.mkdir(parents=True)
    (package / "module.py").write_text("x = 1\n")
    (package.parent / "notes.txt").write_text("first\n")
    git(package.parent, "init", "--quiet")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "--quiet", "--message", "first")
    return package


def test_a_new_run_says_which_source_made_it_when_and_on_what(tmp_path):
    run = Run.create(tmp_path, algorithm="a", task="t", seed=0, config={})
    manifest = json.loads(run.manifest_path.read_text("utf-8"))
    assert {name: manifest[name] for name in ("commit", "dirty")} == runs.source_state(Path(runs.__file__).parent)
    assert datetime.fromisoformat(manifest["date"]).tzinfo is not None
    assert manifest["processor"]
    assert manifest["versions"]["numpy"]


def test_a_clean_checkout_has_its_commit(checkout):
    assert runs.source_state(checkout) == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": False}


@pytest.mark.parametrize("name", ["module.py", "new.py"])
def test_a_changed_or_a_new_file_of_the_package_is_dirty(checkout, name):
    (checkout / name).write_text("x = 2\n")
    assert runs.source_state(checkout) == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": True}


def test_a_file_beside_the_package_is_none_of_its_source(checkout):
    (checkout.parent / "notes.txt").write_text("second\n")
    assert runs.source_state(checkout)["dirty"] is False


def test_without_a_checkout_nothing_is_known(tmp_path, checkout, monkeypatch):
    unknown = {"commit": None, "dirty": None}
    assert runs.source_state(tmp_path) == unknown
    installed = checkout.parent / "site-packages" / "package"  # inside a checkout, and no part of it
    installed.mkdir(parents=True)
    (installed / "module.py").write_text("x = 1\n")
    assert runs.source_state(installed) == unknown
    monkeypatch.setenv("PATH", "")
    assert runs.source_state(checkout) == unknown
