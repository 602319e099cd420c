"""Worker processes: replies, deaths, hangs, and that none is left behind."""

import os
import signal
import time

import pytest

from ccpo.processes import Worker, WorkerLostError, WorkerStuckError, at, close_all, replies


def echo(connection, pulse):
    while True:
        order = connection.recv()
        if order == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif order == "hang":
            pulse[0] = at(3, 7)
            time.sleep(60)
        elif order == "build":
            time.sleep(1.5)
        elif order == "move":
            for step in range(15):
                pulse[0] = at(0, step)
                time.sleep(0.1)
        connection.send(order)


@pytest.fixture
def crew():
    workers = [Worker(echo), Worker(echo)]
    yield workers
    close_all(workers)
    assert all(not worker.process.is_alive() for worker in workers)


def test_replies_come_as_they_are_ready_and_orders_may_follow(crew):
    orders = iter(["c", "d"])
    for worker, order in zip(crew, "ab", strict=True):
        worker.send(order)
    came = []
    for worker, reply in replies(crew, limit=0.0):
        came.append(reply)
        if following := next(orders, None):
            worker.send(following)
    assert sorted(came) == ["a", "b", "c", "d"]


def test_a_worker_that_dies_is_named_with_its_signal(crew):
    crew[0].send("die")
    with pytest.raises(WorkerLostError, match="exit code -11, SIGSEGV"):
        list(replies(crew, limit=0.0))
    with pytest.raises(WorkerLostError):
        crew[0].send("more")


def test_what_stands_still_is_stuck_and_what_moves_or_builds_is_not(crew):
    crew[0].send("build")
    crew[1].send("move")
    assert sorted(reply for _, reply in replies(crew, limit=1.0)) == ["build", "move"]
    crew[1].send("hang")
    with pytest.raises(WorkerStuckError) as caught:
        list(replies(crew, limit=1.0))
    assert (caught.value.major, caught.value.minor) == (3, 7)


def test_ctrl_c_does_not_reach_a_worker(crew):
    os.kill(crew[0].process.pid, signal.SIGINT)
    crew[0].send("a")
    assert [reply for _, reply in replies(crew, limit=0.0)] == ["a"]


def test_closing_ends_a_worker_that_hangs_and_may_be_repeated(crew):
    crew[0].send("hang")
    began = time.monotonic()
    close_all(crew)
    close_all(crew)
    assert time.monotonic() - began < 10
