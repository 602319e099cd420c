"""The playground's server over real sockets: who is answered, what is refused, and that nothing is left behind."""

import subprocess
import sys
import time

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from ccpo.cli import main
from ccpo.deploy import play
from ccpo.deploy.play import find_actors, listen
from ccpo.errors import ConfigError, FormatError, RunError
from deploy.chromium import wait_for
from deploy.policies import save_random_policy
from deploy.serving import open_session, receive, receive_until_closed, send, serving


@pytest.fixture(scope="module")
def server():
    with serving() as server:
        yield server


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/style.css", "text/css"), ("/main.js", "text/javascript"), ("/icon.svg", "image/svg+xml")],
)
def test_the_page_is_served_and_locked_down(server, path, kind):
    response, body = server.get(path)
    assert response.status == 200
    assert response.headers["content-type"].startswith(kind)
    assert response.headers["content-security-policy"].startswith("default-src 'self'")
    elsewhere = [word for word in body.split() if b"://" in word and b"://www.w3.org/2000/svg" not in word]
    assert all(b"ws://${location.host}" in word for word in elsewhere)


def test_every_file_that_the_page_names_is_served(server):
    _, body = server.get("/")
    names = [part.split('"')[0] for part in body.decode().replace('src="', 'href="').split('href="')[1:]]
    assert {server.get(f"/{name}")[0].status for name in names} == {200}


@pytest.mark.parametrize(
    "path", ["/nothing", "/../play.py", "/%2e%2e/play.py", "/..%2fplay.py", "/docs", "/openapi.json"]
)
def test_nothing_else_is_served(server, path):
    assert server.get(path)[0].status == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "[", "127.0.0.1.evil.example"])
def test_a_foreign_host_is_refused(server, host):
    assert server.get("/", host)[0].status == 421


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "127.0.0.2:80", "[::1]:80"])
def test_every_name_of_this_machine_is_answered(server, host):
    assert server.get("/", host)[0].status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_refused(server, origin):
    with pytest.raises(InvalidStatus, match="403"):
        server.connect(origin=origin)


def test_a_token_is_wanted_beyond_loopback():
    with serving(token="secret") as server:
        assert [server.get(path)[0].status for path in ("/", "/?token=wrong", "/?token=secret")] == [403, 403, 200]
        assert server.get("/?token=secret", host="my-laptop:80")[0].status == 200
        for query in ("", "?token=", "?token=wrong"):
            with pytest.raises(InvalidStatus, match="403"):
                server.connect(query=query)
        with server.connect(query="?token=secret") as socket:
            assert receive(socket)["type"] == "welcome"


def test_a_session_plays_and_obeys(server):
    with server.connect() as socket:
        open_session(socket)
        send(socket, "threshold", side=0, value=81)
        actions = []
        while len(actions) < 20:
            message = receive(socket)
            send(socket, "seen", number=message["number"])
            actions += [moment["action"][0] for moment in message["sides"][0]["moments"]]
        assert actions[-1] == 0.9


def test_the_stream_waits_for_what_is_drawn(server):
    with server.connect() as socket:
        open_session(socket)
        last = [receive(socket)["number"] for _ in range(play.MAX_AHEAD - 1)][-1]
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.3)
        send(socket, "seen", number=last)
        assert receive(socket)["type"] == "frame"


@pytest.mark.parametrize("garbage", ["nonsense", b"\x00\xff", '{"type": "open"}', "[" * 1000])
def test_a_page_that_sends_garbage_is_told_then_closed(server, garbage):
    with server.connect() as socket:
        open_session(socket)
        for _ in range(play.MAX_BAD_MESSAGES):
            socket.send(garbage)
        messages, code = receive_until_closed(socket)
        assert code == play.REFUSED
        assert sum(message["type"] == "error" for message in messages) == play.MAX_BAD_MESSAGES
    with server.connect() as socket:
        open_session(socket)


def test_a_page_that_floods_is_closed(server):
    with server.connect() as socket:
        open_session(socket)
        for _ in range(play.MAX_MESSAGES_A_SECOND + 1):
            socket.send('{"type": "pause", "paused": false}')
        assert receive_until_closed(socket)[1] == play.REFUSED
    with server.connect() as socket:
        open_session(socket)


def test_a_huge_message_closes_only_its_page(server):
    with server.connect() as socket:
        open_session(socket)
        socket.send("x" * 100_000)
        assert receive_until_closed(socket)[1] == 1009
    with server.connect() as socket:
        open_session(socket)


def test_the_number_of_sessions_is_bounded_and_they_end_with_their_page():
    with serving(max_sessions=2) as server:
        with server.connect() as one, server.connect() as other:
            open_session(one), open_session(other)
            with server.connect() as third:
                assert receive_until_closed(third) == ([], play.TOO_MANY)
        wait_for(lambda: server.playground.sessions == 0, seconds=5)
        with server.connect() as socket:
            open_session(socket)


def test_a_session_that_nobody_watches_is_closed():
    with serving(unwatched_seconds=0.3) as server, server.connect() as socket:
        open_session(socket)
        assert receive_until_closed(socket)[1] == play.UNWATCHED
        wait_for(lambda: server.playground.sessions == 0, seconds=5)


def test_a_simulation_that_fails_says_so_and_closes(monkeypatch):
    def fail(self, threshold):
        raise RunError("the simulator is gone")

    with serving() as server, server.connect() as socket:
        open_session(socket)
        monkeypatch.setattr("ccpo.deploy.watching.LiveEpisode.step", fail)
        messages, code = receive_until_closed(socket, confirm=True)
        assert messages[-1]["message"] == "the simulator is gone"
        assert code == play.FAILED


def test_who_can_be_watched(tmp_path, capsys):
    policy = save_random_policy(tmp_path, "StaticBudget")
    other = save_random_policy(tmp_path, "DriftBudget")
    assert [actor.name for actor in find_actors(str(policy))] == ["ccpo · StaticBudget", "optimum · closed form"]
    with pytest.raises(FormatError, match="compare policies of one task"):
        find_actors(str(policy), str(other))
    with pytest.raises(ConfigError, match="without RUN"):
        find_actors(None, str(other))

    for name in ("good", "broken"):
        run = tmp_path / "runs" / "ccpo-StaticBudget" / name
        run.mkdir(parents=True)
        (run / "config.json").write_text('{"format_version": 1}')
        (run / "policy.safetensors").write_bytes(policy.read_bytes() if name == "good" else b"nonsense")
    actors = find_actors(folder=str(tmp_path / "runs"))
    assert [actor.name for actor in actors] == ["ccpo · good", *["optimum · closed form"] * 5]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "ccpo: left out ccpo-StaticBudget/broken: cannot load policy 'policy.safetensors': not a pol"
    )
    assert len(line) < 160


def test_a_port_in_use_is_one_line(capsys):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["play", "--no-browser", "--port", str(port)]) == 2
    assert capsys.readouterr().err.startswith(f"ccpo: cannot listen on 127.0.0.1 port {port}")
    with pytest.raises(ConfigError, match="--port 70000"):
        listen("127.0.0.1", 70000)
    for name in ("a" * 300, "a\0b"):
        with pytest.raises(RunError, match=r"cannot listen on .*; choose another --host or --port"):
            listen(name, 0)


def test_the_command_starts_quickly_without_jax_and_stops(tmp_path):
    code = (
        "import sys, atexit; atexit.register(lambda: print('jax' in sys.modules));"
        "from ccpo.cli import main; main(['play', '--no-browser'])"
    )
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        line = process.stdout.readline()
        took = time.monotonic() - began
        port = int(line.split("127.0.0.1:")[1].split("/")[0])
        with connect(f"ws://127.0.0.1:{port}/live", origin=f"http://127.0.0.1:{port}", proxy=None) as socket:
            open_session(socket)
            assert receive(socket)["type"] == "frame"
        process.send_signal(2)
        assert process.stdout.read().split() == ["False"]
    assert process.returncode == 0
    assert took < 10  # about one second on an idle machine
