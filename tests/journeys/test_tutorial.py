"""The tutorial's snippets run one after the other, with a tiny training."""

import importlib
import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest

import ccpo
from helpers import TINY

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_runs_from_its_first_snippet_to_its_last(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tiny = {name: value for name, value in TINY.items() if name != "rollout_length"}
    train = ccpo.train
    monkeypatch.setattr(ccpo, "train", lambda env, **given: train(env, **{**given, **tiny, "steps": 900}))
    monkeypatch.setattr(ccpo, "probe", partial(ccpo.probe, timing=False))
    snippets = re.findall(r"^```python(?: file=(\S+))?\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(snippets) == 7
    names: dict[str, object] = {}
    for file, code in snippets:
        if file:
            Path(file).write_text(code)
        else:
            exec(compile(code, str(PAGE), "exec"), names)
    assert {"probe", "agent", "table", "policy", "episode"} <= names.keys()
    assert Path("dial.png").is_file()
    shown = capsys.readouterr().out
    assert "what SpeedEnv can cost and earn" in shown
    assert "<PolicyEpisode on SpeedEnv:" in shown


def test_the_notebook_is_the_page_and_was_run():
    """After a change of the page: python docs/notebook.py"""
    sys.path.insert(0, str(PAGE.parent))
    notebook = importlib.import_module("notebook")
    stored = json.loads(PAGE.with_suffix(".ipynb").read_text("utf-8"))
    expected = notebook.cells_of(PAGE.read_text("utf-8"))
    assert [cell["source"] for cell in stored["cells"]] == [cell["source"] for cell in expected]
    assert all(cell["execution_count"] for cell in stored["cells"] if cell["cell_type"] == "code")
    assert any("image/png" in output.get("data", {}) for cell in stored["cells"] for output in cell.get("outputs", ()))


@pytest.mark.parametrize("line", re.findall(r"^\$ (ccpo .*?)(?:  .*)?$", PAGE.read_text("utf-8"), re.MULTILINE))
def test_its_commands_parse(line):
    from ccpo.cli import make_parser

    assert make_parser().parse_args(line.split()[1:]).command
