"""What is exported: the file, the evaluation in its manifest, the card and the figure beside it."""

import json

import pytest
from toy import closed_agent, toy_agent

from ccpo import cli
from ccpo.agent import POLICY_FILE, load
from ccpo.deploy import calibrate
from ccpo.deploy.card import model_card
from ccpo.deploy.export import evaluation_of
from ccpo.errors import MissingExtraError
from ccpo.metrics import EpisodeTable, summarise
from ccpo.runtime import Policy
from deploy.policies import random_policy

THRESHOLDS = [10.0, 20.0, 40.0, 70.0]


@pytest.fixture(scope="module")
def table() -> EpisodeTable:
    return toy_agent().evaluate(THRESHOLDS, 2, workers=1)


@pytest.fixture
def run(tmp_path, table):
    """A run folder as far as export reads it."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"format_version": 1}))
    toy_agent().save(folder / POLICY_FILE)
    table.write_csv(folder / "eval.csv")
    return folder


def test_a_run_becomes_a_file_with_card_and_figure(tmp_path, run, table, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "deploy" / "ball.safetensors"
    assert cli.main(["export", str(run), "--out", str(out)]) == 0
    written = {path.name for path in out.parent.iterdir()}
    assert written == {"ball.safetensors", "ball.md", "ball.png", "ball.svg"}
    printed = capsys.readouterr().out
    assert all(name in printed for name in written)
    evaluation = Policy.load(out).manifest["evaluation"]
    assert evaluation["summary"] == [s.as_dict() for s in summarise(table, (20.0, 40.0, 60.0))]
    assert [row["threshold"] for row in evaluation["thresholds"]] == THRESHOLDS
    card = (out.parent / "ball.md").read_text()
    assert "](ball.png)" in card
    assert 'Policy.load("ball.safetensors")' in card
    assert "mean cost was above these thresholds: 10 (" not in card  # cost 9 at 10
    assert "70 (81.0)" in card  # 100 · 0.9²
    assert "not calibrated" in card


def test_a_policy_file_keeps_its_evaluation(tmp_path, run, capsys):
    first, second = tmp_path / "a" / "p.safetensors", tmp_path / "b" / "p.safetensors"
    assert cli.main(["export", str(run), "--out", str(first)]) == 0
    assert cli.main(["export", str(first), "--out", str(second)]) == 0
    assert second.read_bytes() == first.read_bytes()
    assert {path.name for path in second.parent.iterdir()} == {"p.safetensors", "p.md"}
    tables = (first.with_suffix(".md").read_text(), second.with_suffix(".md").read_text())
    assert all("Evaluation by threshold" in text for text in tables)


def test_a_run_that_was_not_evaluated_says_what_to_do(tmp_path, run, capsys):
    (run / "eval.csv").unlink()
    assert cli.main(["export", str(run), "--out", str(tmp_path / "p.safetensors")]) == 0
    assert "ccpo evaluate" in " ".join(capsys.readouterr().out.split())
    assert "It was not evaluated" in (tmp_path / "p.md").read_text()
    assert cli.main(["export", str(tmp_path / "p.safetensors"), "--out", str(tmp_path / "q.safetensors")]) == 0
    shown = capsys.readouterr().out
    assert "not evaluated" in shown
    assert "ccpo evaluate" not in shown


def test_without_matplotlib_the_card_has_no_figure(tmp_path, run, monkeypatch):
    def missing(*_):
        raise MissingExtraError("matplotlib")

    monkeypatch.setattr("ccpo.deploy.export.threshold_figure", missing)
    assert cli.main(["export", str(run), "--out", str(tmp_path / "p.safetensors")]) == 0
    assert "![" not in (tmp_path / "p.md").read_text()
    assert not (tmp_path / "p.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "--out"), (["--out", "p.md"], ".safetensors"), (["--onnx", "p.safetensors"], ".onnx")],
)
def test_names_that_do_not_fit_are_refused(run, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(run)
    before = sorted(run.iterdir())
    assert cli.main(["export", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(run.iterdir()) == before


def test_the_card_of_a_calibrated_policy_shows_the_guarantee(table):
    agent = toy_agent()
    calibrate.calibrate_agent(agent, [40.0, 70.0], episodes=20, cost_max=100.0, workers=1)
    agent.policy.manifest["evaluation"] = evaluation_of(table, agent.behaviour_thresholds)
    card = model_card(agent.policy, file_name="p.safetensors")
    assert "calibrated=True" in card
    assert "| 70 " in card.split("What is guaranteed")[1]
    assert "\n\n\n" not in card


def test_the_card_of_a_closed_loop_shows_how_it_is_told_what_it_costs(table):
    agent = closed_agent()
    agent.policy.manifest["evaluation"] = evaluation_of(table, agent.behaviour_thresholds)
    card = model_card(agent.policy, file_name="p.safetensors")
    assert "| Thresholds | 10 to 70:" in card
    assert "what is left of the threshold, and the time to go (closed loop)" in card
    assert "needs the cost of every step" in card
    calibrate.calibrate_agent(agent, [40.0, 70.0], episodes=200, workers=1)
    calibrated = model_card(agent.policy, file_name="p.safetensors")
    assert "told the cost of every step" in calibrated
    for text, dial in ((card, "threshold=40"), (calibrated, "threshold=40, calibrated=True")):
        assert f"episode = policy.episode({dial})" in text
        assert "episode.pay(cost)" in text


def test_the_code_on_a_card_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for agent in (closed_agent(), toy_agent()):
        agent.save("p.safetensors")
        code = model_card(agent.policy, file_name="p.safetensors").split("```python\n")[1].split("```")[0]
        names = {"obs": [0.1, 0.2], "cost": 0.5}
        exec(code, names)
        assert (names["action"] == agent.policy.act([0.1, 0.2], 40.0)).all()


def test_the_card_says_what_a_policy_sees():
    for condition, words in (("none", "the dial has no effect"), ("threshold", "the threshold (open loop)")):
        card = model_card(random_policy("StaticBudget", condition=condition), file_name="p.safetensors")
        assert words in card
        assert "policy.act(obs, threshold=40)" in card


def test_exported_files_act_like_the_run(tmp_path, run):
    out = tmp_path / "p.safetensors"
    assert cli.main(["export", str(run), "--out", str(out)]) == 0
    obs = [[0.1, -0.2], [0.5, 0.5]]
    assert (Policy.load(out).act(obs, [20.0, 60.0]) == load(run).policy.act(obs, [20.0, 60.0])).all()
