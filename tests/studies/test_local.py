"""Processes of this machine: pinned to their share of the cores, and replaced when they die."""

import os
import time

import pytest
from miniature import tiny_plan

from ccpo.errors import ConfigError, RunError
from ccpo.studies.local import run_here, share_of_cores
from ccpo.studies.runner import Place


class Pretended(Place):
    """Notes its process and cores instead of training; seed 7 kills its process, seed 13 fails."""

    def perform(self):
        if self.plan.seed == 7:
            os._exit(3)
        if self.plan.seed == 13:
            raise ValueError("an unlucky run")
        time.sleep(0.2)
        self.path.mkdir(parents=True, exist_ok=True)
        cores = " ".join(map(str, sorted(os.sched_getaffinity(0))))
        (self.path / "eval.csv").write_text(f"{os.getpid()}: {cores}")


class Unusable(Place):
    def __setstate__(self, state):
        os._exit(4)


@pytest.mark.parametrize(
    ("cores", "jobs", "shares"),
    [
        ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
        ([0, 1, 2, 3, 4], 2, [[0, 1], [2, 3, 4]]),
        ([2, 5], 3, [[2], [5], [2]]),
        ([0, 1], 1, [[0, 1]]),
        ([0, 1], 0, []),
    ],
)
def test_cores_are_shared_evenly(cores, jobs, shares):
    assert share_of_cores(cores, jobs) == shares


def test_processes_do_all_that_can_be_done(tmp_path):
    places = [Pretended(tiny_plan(seed), tmp_path) for seed in (*range(6), 7, 13)]
    shown = []
    run_here(places, jobs=2, watch=lambda: shown.append(sum(place.finished for place in places)), poll_seconds=0.05)
    assert [place.finished for place in places] == [True] * 6 + [False] * 2
    assert "its process died" in (places[-2].error or "")
    assert "an unlucky run" in (places[-1].error or "")
    pinned = {(place.path / "eval.csv").read_text().split(": ")[1] for place in places[:6]}
    allowed = share_of_cores(sorted(os.sched_getaffinity(0)), 2)
    assert pinned <= {" ".join(map(str, share)) for share in allowed}
    assert shown[0] == 0
    assert shown[-1] == 6


def test_a_process_that_cannot_even_begin_is_an_error(tmp_path):
    with pytest.raises(RunError, match="exit code 4 before it took a run"):
        run_here([Unusable(tiny_plan(), tmp_path)], poll_seconds=0.05)


def test_nothing_to_do_starts_nothing(tmp_path):
    place = Pretended(tiny_plan(), tmp_path)
    place.path.mkdir(parents=True)
    (place.path / "eval.csv").touch()
    run_here([place])
    assert not (tmp_path / "logs").exists()


def test_jobs_are_at_least_one(tmp_path):
    with pytest.raises(ConfigError, match="--jobs 0 must be at least 1"):
        run_here([], jobs=0)
