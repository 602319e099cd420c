"""Nothing of ours reaches for the network: training, evaluation, loading and watching work with sockets blocked."""

import socket

import pytest

import ccpo
from ccpo.errors import ThresholdWarning
from helpers import TASK, TINY


@pytest.fixture
def no_network(monkeypatch):
    """Every connection and every look-up of a name is an error."""
    reached = []

    def refuse(*arguments, **_):
        reached.append(arguments)
        raise OSError("the network is out of bounds")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return reached


def test_a_run_from_training_to_operation_needs_no_network(no_network, tmp_path):
    agent = ccpo.train(TASK, out=tmp_path, **{**TINY, "steps": 240})
    low, high = agent.threshold_range
    table = agent.evaluate([low, high], episodes=2)
    agent.save(tmp_path / "policy.safetensors")
    policy = ccpo.load(tmp_path / "policy.safetensors").policy
    monitor = policy.monitor()
    for threshold, cost in zip(table.threshold, table.cost, strict=True):
        monitor.add(float(threshold), float(cost))
    assert monitor.episodes == len(table) == 4
    with pytest.warns(ThresholdWarning):
        policy.episode(threshold=2 * high)
    assert ccpo.load("BallCircle").task == "BallCircle"
    assert no_network == []
