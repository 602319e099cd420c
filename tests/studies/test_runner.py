"""Each run once, whoever takes part; what was killed continues, what failed is kept and stops nothing."""

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from miniature import tiny_plan

from ccpo.errors import RunError
from ccpo.metrics import EpisodeTable
from ccpo.report.results import ORIGIN, publish
from ccpo.studies import runner
from ccpo.studies.runner import Place, attempt, begin, new_session, remaining, work
from ccpo.training import Trainer

HOLD_A_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def performed(monkeypatch):
    """Runs that take a moment and are noted instead of trained; seed 13 fails."""
    noted = []

    def perform(place):
        noted.append(place.plan.name)
        time.sleep(0.02)
        if place.plan.seed == 13:
            raise ValueError("an unlucky run")
        place.path.mkdir(parents=True, exist_ok=True)
        (place.path / "eval.csv").touch()

    monkeypatch.setattr(Place, "perform", perform)
    return noted


def combination(seed=0):
    members = tuple(tiny_plan(seed, threshold) for threshold in (20.0, 40.0))
    thresholds = (20.0, 40.0)
    changes = {"algorithm": "c_ppo_lag", "thresholds": thresholds, "members": members, "overrides": {}}
    return [*members, replace(members[0], evaluated=(30.0,), **changes)]


def test_workers_share_the_runs_and_do_each_once(tmp_path, performed):
    places = [Place(tiny_plan(seed), tmp_path) for seed in range(8)]
    workers = [threading.Thread(target=work, args=(places, f"session-{i}")) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(performed) == sorted(place.plan.name for place in places)


def test_a_combination_waits_for_its_members(tmp_path, performed):
    plans = combination()
    work([Place(plan, tmp_path) for plan in reversed(plans)], "session")
    assert performed[-1] == plans[-1].name


def test_a_failure_is_kept_and_stops_only_what_is_made_of_it(tmp_path, performed):
    places = [Place(plan, tmp_path) for plan in (*combination(seed=13), tiny_plan(seed=1))]
    work(places, "session")
    low, high, both, other = places
    assert "ValueError: an unlucky run" in (low.error or "")
    assert high.error
    assert not both.finished
    assert not both.error
    assert other.finished
    assert len(performed) == 3


def test_the_next_session_tries_a_failed_run_again(tmp_path, performed):
    places = [Place(tiny_plan(seed=13), tmp_path)]
    for session in ("first", "second"):
        begin(places)
        work(places, session)
    assert len(performed) == 2


def test_a_run_that_cost_its_process_waits_for_the_next_session(tmp_path, performed):
    place = Place(tiny_plan(), tmp_path)
    with place.claim() as mine:
        assert mine
        place.sign("this-session")
    assert attempt(place, "this-session")
    assert "its process died" in (place.error or "")
    assert not performed
    begin([place])
    assert attempt(place, new_session())
    assert place.finished


def test_a_lock_dies_with_its_holder(tmp_path):
    place = Place(tiny_plan(), tmp_path)
    place.path.parent.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", HOLD_A_LOCK, place.lock_path], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert place.is_claimed()
        assert not attempt(place, "session")
        process.send_signal(signal.SIGKILL)
    assert not place.is_claimed()
    assert remaining([place]) == [place]


def test_a_folder_of_another_plan_is_refused(tmp_path, monkeypatch):
    place = Place(tiny_plan(), tmp_path)
    place._start_anew()
    begin([place])
    changed = Place(tiny_plan(episodes=3), tmp_path)
    with pytest.raises(RunError, match=r"made with episodes = 2, the study now says 3; choose another --out"):
        begin([changed])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    place = Place(tiny_plan(), tmp_path_factory.mktemp("whole"))
    place.perform()
    return place


def die_at_checkpoint(monkeypatch, place, count):
    """Let a run die instead of writing a checkpoint after so many."""
    save, saved = Trainer.save, []

    def die_when_saving(trainer):
        if len(saved) == count:
            raise KeyboardInterrupt
        saved.append(trainer.steps)
        save(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", die_when_saving)
        with pytest.raises(KeyboardInterrupt):
            attempt(place, "first")
    assert remaining([place]) == [place]


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path, monkeypatch, uninterrupted, checkpoints):
    place = Place(tiny_plan(), tmp_path)
    die_at_checkpoint(monkeypatch, place, checkpoints)
    begin([place])
    assert attempt(place, "second")
    assert place.error is None
    assert (place.path / "eval.csv").read_bytes() == (uninterrupted.path / "eval.csv").read_bytes()


def test_a_finished_training_that_was_not_evaluated_is_not_trained_again(tmp_path, monkeypatch, uninterrupted):
    place = Place(tiny_plan(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(runner.agent.Agent, "evaluate", lambda *_, **__: 1 / 0)
        assert attempt(place, "first")
    assert "ZeroDivisionError" in (place.error or "")
    (place.path / "policy.safetensors").unlink()  # as if killed between the checkpoint and the policy
    begin([place])
    monkeypatch.setattr(Trainer, "_account", lambda *_, **__: 1 / 0)
    assert attempt(place, "second")
    assert (place.path / "eval.csv").read_bytes() == (uninterrupted.path / "eval.csv").read_bytes()


def test_a_combination_is_made_of_its_members(tmp_path):
    places = [Place(plan, tmp_path) for plan in combination()]
    work(places, "session")
    assert [place.error for place in places] == [None] * 3
    lines = (places[-1].path / "eval.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[:4] for line in lines[1:]] == [["StaticBudget-T20-C5", "c_ppo_lag", "0", "30.0"]] * 2
    published = [path for place in places for path in publish([place.path], tmp_path / "results")]
    assert [str(path.relative_to(tmp_path / "results" / "main")) for path in published] == [
        f"{plan.name}.csv" for plan in combination()
    ]
    described = [json.loads(path.with_suffix(".json").read_text("utf-8")) for path in published]
    for place, record in zip(places, described, strict=True):
        manifest = json.loads((place.path / "manifest.json").read_text("utf-8"))
        assert {name: record[name] for name in ORIGIN} == {name: manifest[name] for name in ORIGIN}
        assert manifest["date"]
        assert manifest["processor"]
    assert "--behaviour-thresholds 40" in described[1]["command"]
    assert "--steps 80, for T in 20, 40; ccpo combine" in described[2]["command"]
    assert "--set hidden=4,4" in described[2]["command"]
    assert described[2]["config"]["hidden"] == [4, 4]
    assert [run["steps"] for run in described] == [80, 80, 160]
    seconds = [run["wall_seconds"] for run in described]
    assert seconds[2] == pytest.approx(seconds[0] + seconds[1], abs=0.11)


def test_runs_with_one_threshold_each_are_published_together(tmp_path):
    plans = [plan for plan in combination() if not plan.members]
    places = [Place(plan, tmp_path) for plan in plans]
    work(places, "session")
    [path] = publish([place.path for place in reversed(places)], tmp_path / "results")
    assert path == tmp_path / "results" / "main" / "ppo_lag" / "StaticBudget-T20-C5" / "tuned" / "seed-0.csv"
    described = json.loads(path.with_suffix(".json").read_text("utf-8"))
    assert described["config"]["behaviour_thresholds"] == [20.0, 40.0]
    assert described["steps"] == 160
    assert (
        "--behaviour-thresholds T --steps 80; ccpo evaluate RUN --thresholds T, for T in 20, 40" in described["command"]
    )
    assert len(EpisodeTable.read_csv(path)) == sum(len(EpisodeTable.read_csv(p.path / "eval.csv")) for p in places)
    with pytest.raises(RunError, match="share thresholds"):
        publish([places[0].path, places[0].path], tmp_path / "results")
