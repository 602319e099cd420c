"""A playground that really listens, and the other end of its sockets."""

import http.client
import json
import threading
from contextlib import contextmanager

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from ccpo.deploy.play import Playground, listen, make_server
from ccpo.deploy.watching import optimal_actor


class Server:
    """A playground on a free port of this machine, in a thread."""

    def __init__(self, playground, token=None):
        self.playground, self.token = playground, token
        self._listener = listen("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self._server = make_server(playground, token=token)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()

    def get(self, path="/", host=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{self.port}"})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    def connect(self, *, origin=None, query=""):
        return connect(
            f"ws://127.0.0.1:{self.port}/live{query}", origin=origin or f"http://127.0.0.1:{self.port}", proxy=None
        )

    def stop(self):
        self._server.should_exit = True
        self._thread.join(10)
        self._listener.close()


@contextmanager
def serving(token=None, **options):
    server = Server(Playground([optimal_actor("StaticBudget")], **options), token)
    try:
        yield server
    finally:
        server.stop()


def receive(socket):
    return json.loads(socket.recv(timeout=10))


def send(socket, kind, **fields):
    socket.send(json.dumps({"type": kind, **fields}))


def open_session(socket):
    assert receive(socket)["type"] == "welcome"
    send(socket, "open", actors=[0], thresholds=[25], seed=0)
    assert receive(socket)["type"] == "start"


def receive_until_closed(socket, *, confirm=False):
    """All messages up to the end, and the code that it was closed with."""
    messages = []
    try:
        while True:
            messages.append(receive(socket))
            if confirm:
                send(socket, "seen", number=messages[-1]["number"])
    except ConnectionClosed as closed:
        return messages, closed.rcvd.code
