"""How a study stands follows from its files."""

import json

import pytest
from miniature import tiny_plan

from ccpo.studies.runner import Place
from ccpo.studies.status import counts, seconds_left, standing_of


def begun(root, seed, *, steps, seconds=0.0, of=100, **changes):
    place = Place(tiny_plan(seed, **changes), root)
    place.path.mkdir(parents=True)
    (place.path / "config.json").write_text(json.dumps({"steps": of}))
    row = json.dumps({"steps": steps, "time/seconds": seconds})
    (place.path / "progress.jsonl").write_text(f'{row}\n{{"steps": 9' if steps else "")
    return place


def test_states(tmp_path):
    waiting, stopped, running, failed, done = (
        Place(tiny_plan(0), tmp_path),
        begun(tmp_path, 1, steps=30, seconds=6.0),
        begun(tmp_path, 2, steps=50, seconds=10.0),
        begun(tmp_path, 3, steps=10, seconds=2.0),
        begun(tmp_path, 4, steps=104, seconds=20.0),
    )
    failed.fail("Traceback\n  somewhere\nValueError: too bad\n")
    (done.path / "eval.csv").touch()
    with running.claim():
        rows = [standing_of(place) for place in (waiting, stopped, running, failed, done)]
    assert [row.state for row in rows] == ["waiting", "stopped", "running", "failed", "done"]
    assert [row.share for row in rows] == [0.0, 0.3, 0.5, 0.1, 1.0]
    assert rows[3].error == "ValueError: too bad"
    assert counts(rows) == {"done": 1, "running": 1, "failed": 1, "stopped": 1, "waiting": 1}
    # all go at 0.2 s a hundredth: 20 s for what waits, 14 s and 10 s for what was begun; one is at work
    assert seconds_left(rows) == pytest.approx(20.0 + 14.0 + 10.0)


def test_time_left_is_shared_by_those_at_work(tmp_path):
    places = [begun(tmp_path, seed, steps=50, seconds=10.0) for seed in (1, 2)]
    with places[0].claim(), places[1].claim():
        assert seconds_left([standing_of(place) for place in places]) == pytest.approx(10.0)


def test_time_left_is_unknown_until_something_like_it_has_run(tmp_path):
    waiting = Place(tiny_plan(0), tmp_path)
    assert seconds_left([standing_of(waiting)]) is None
    other = begun(tmp_path, 1, steps=50, seconds=10.0, task="DriftBudget-T20-C5")
    assert seconds_left([standing_of(waiting), standing_of(other)]) is None


def test_a_run_that_has_just_begun_has_no_progress(tmp_path):
    assert standing_of(begun(tmp_path, 1, steps=0)).state == "waiting"


def test_a_run_that_was_not_told_its_steps_has_those_of_its_episodes(tmp_path):
    place = begun(tmp_path, 1, steps=15_000)
    (place.path / "config.json").write_text(json.dumps({"steps": None, "episode_length": 20}))
    assert standing_of(place).share == 0.25
    (place.path / "config.json").write_text(json.dumps({"steps": None, "episode_length": 200}))
    assert standing_of(place).share == 0.125
