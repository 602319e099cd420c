"""The playground: a local page that shows policies live from the simulator, with a slider for the threshold.

Each page has one WebSocket and one `Session`. A page confirms what it has drawn; the session never runs ahead of
it by more than a few messages, and is closed if nothing is drawn for a while: a hidden tab draws nothing.
"""

import asyncio
import ipaddress
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit

from ccpo.agent import POLICY_FILE
from ccpo.deploy.session import MAX_MESSAGE, STEPS_PER_SECOND, Session, describe, parse_command
from ccpo.deploy.watching import Actor, check_same_task, optimal_actor, optimal_actors, scene_of, trained_actor
from ccpo.errors import CCPOError, ConfigError, FormatError, RunError, require

PAGE = Path(__file__).with_name("page")
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MAX_SESSIONS = 16
MAX_BAD_MESSAGES = 20
MAX_MESSAGES_A_SECOND = 300
"""Ten times what a page says that confirms every frame and drags both dials."""
MAX_AHEAD = 6
"""Messages that the page has not yet drawn."""
MAX_LATE = 4
"""Ticks that a busy machine may catch up with."""
UNWATCHED_SECONDS = 60.0
HEARTBEAT_SECONDS = 5.0
NEWEST_RUNS = 12
LINE = 90
"""Characters of the reason why a run is left out."""

REFUSED, TOO_MANY, FAILED, UNWATCHED = 1008, 1013, 1011, 4000


def find_actors(
    run: str | None = None, second: str | None = None, *, folder: str = "runs", env: Any = None, cost_fn: Any = None
) -> list[Actor]:
    """Who can be watched: the given policies, or the newest of a folder; and analytic optima."""
    if run is not None:
        actors = [trained_actor(path, env=env, cost_fn=cost_fn) for path in (run, second) if path is not None]
        if len(actors) == 2:
            check_same_task(*actors)
        known = actors[0].factory.task
        if known is not None and known.closed_form:
            actors.append(optimal_actor(known.name))
        return actors
    if second is not None:
        raise ConfigError("--second was given without RUN; give two policies to compare them")
    newest = sorted(Path(folder).glob(f"*/*/{POLICY_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    actors = []
    for path in newest[:NEWEST_RUNS]:
        try:
            actor = trained_actor(path.parent)
            scene_of(actor.factory)
            actors.append(actor)
        except CCPOError as error:
            reason = shorten(" ".join(str(error).replace(f"{path.parent}/", "").split()), LINE, placeholder=" …")
            print(f"ccpo: left out {path.parent.parent.name}/{path.parent.name}: {reason}", file=sys.stderr)
    return actors + optimal_actors()


class Playground:
    """Who can be watched, and the connections that watch."""

    def __init__(
        self,
        actors: Sequence[Actor],
        *,
        compare: bool = False,
        max_sessions: int = MAX_SESSIONS,
        unwatched_seconds: float = UNWATCHED_SECONDS,
    ) -> None:
        self.actors = actors
        self.welcome = describe(actors, compare=compare)
        self.max_sessions, self.unwatched_seconds = max_sessions, unwatched_seconds
        self.sessions = 0
        self.workers = ThreadPoolExecutor(4, thread_name_prefix="simulator")

    def app(self, *, token: str | None = None) -> Any:
        """The web application. With a token, page and socket want it; without one, only loopback names are answered."""
        fastapi, responses = require("fastapi", "play"), require("fastapi.responses", "play")
        routing = require("starlette.routing", "play")

        @asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            yield
            self.workers.shutdown(wait=False, cancel_futures=True)

        files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in MEDIA_TYPES}

        def respond(name: str) -> Any:
            return responses.Response(files[name], media_type=MEDIA_TYPES[Path(name).suffix], headers=HEADERS)

        def refuse(status: int, reason: str) -> Any:
            return responses.PlainTextResponse(reason + "\n", status, headers=HEADERS)

        async def page(request: Any) -> Any:
            if not is_own_host(request.headers.get("host", ""), loopback=token is None):
                return refuse(421, "this address is not the playground's; use the one that 'ccpo play' printed")
            name = request.path_params.get("name", "index.html")
            if name == "index.html" and not is_token(request.query_params.get("token"), token):
                return refuse(403, "the token is missing or wrong; use the address that 'ccpo play' printed")
            return respond(name) if name in files else refuse(404, "there is no such file")

        async def live(websocket: Any) -> None:
            host, origin = (websocket.headers.get(name, "") for name in ("host", "origin"))
            is_own = is_own_host(host, loopback=token is None) and origin == f"http://{host}"
            if not is_own or not is_token(websocket.query_params.get("token"), token):
                await websocket.close(REFUSED)
                return
            await self._welcome(websocket)

        routes = [
            routing.Route("/", page),
            routing.Route("/{name}", page),
            routing.WebSocketRoute("/live", live),
        ]
        return fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None, routes=routes, lifespan=lifespan)

    async def _welcome(self, websocket: Any) -> None:
        await websocket.accept()
        if self.sessions >= self.max_sessions:
            await websocket.close(TOO_MANY, f"{self.max_sessions} pages are open already; close one and reload")
            return
        self.sessions += 1
        try:
            await Connection(self, websocket).run()
        finally:
            self.sessions -= 1


class Connection:
    """One page: listens to its commands and streams its session until either side ends."""

    def __init__(self, playground: Playground, websocket: Any) -> None:
        self.playground, self.websocket = playground, websocket
        self.session = Session(playground.actors)
        self._sent = self._seen = 0
        self._drawn = asyncio.Event()

    async def run(self) -> None:
        tasks: list[asyncio.Task[tuple[int, str]]] = []
        try:
            await self._send(self.playground.welcome)
            tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._stream())]
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code, reason = next(iter(finished)).result()
            if code:
                await self.websocket.close(code, reason)
        except Exception as error:  # a page may vanish in the middle of anything; the server must not
            if not _is_disconnect(error):
                raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.get_running_loop().run_in_executor(None, self.session.close)

    async def _send(self, message: dict[str, Any]) -> None:
        self._sent += 1
        await self.websocket.send_json({**message, "number": self._sent})

    async def _listen(self) -> tuple[int, str]:
        """Handle commands until the page leaves or sends too much that is none."""
        bad, loop = 0, asyncio.get_running_loop()
        began, count = loop.time(), 0
        while bad < MAX_BAD_MESSAGES:
            received = await self.websocket.receive()
            if loop.time() - began > 1.0:
                began, count = loop.time(), 0
            count += 1
            if count > MAX_MESSAGES_A_SECOND:
                return REFUSED, f"more than {MAX_MESSAGES_A_SECOND} messages a second"
            if received["type"] == "websocket.disconnect":
                return 0, ""
            try:
                command = parse_command(received.get("text"))
                if command["type"] == "seen":
                    self._seen = max(self._seen, min(command["number"], self._sent))
                    self._drawn.set()
                else:
                    self.session.handle(command)
            except FormatError as error:
                bad += 1
                await self._send({"type": "error", "message": str(error)})
        return REFUSED, "too many messages that are not commands"

    async def _stream(self) -> tuple[int, str]:
        """Advance the session at its pace, as long as somebody watches."""
        loop = asyncio.get_running_loop()
        tick, last_sent = loop.time(), loop.time()
        while True:
            if not await self._is_watched():
                return UNWATCHED, "nobody watched for a while; reload to go on"
            try:
                message = await loop.run_in_executor(self.playground.workers, self.session.advance)
            except CCPOError as error:
                await self._send({"type": "error", "message": " ".join(str(error).split())[:500]})
                return FAILED, "the simulation failed"
            if message is None and loop.time() - last_sent > HEARTBEAT_SECONDS:
                message = {"type": "heartbeat"}
            if message is not None:
                await self._send(message)
                last_sent = loop.time()
            # Ticks that came late are made up for, but not more than a few: the page would jump.
            tick = max(tick + 1 / STEPS_PER_SECOND, loop.time() - MAX_LATE / STEPS_PER_SECOND)
            await asyncio.sleep(tick - loop.time())

    async def _is_watched(self) -> bool:
        """Wait until the page has drawn nearly all that was sent; false if it does not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.playground.unwatched_seconds
        while self._sent - self._seen > MAX_AHEAD:
            self._drawn.clear()
            try:
                await asyncio.wait_for(self._drawn.wait(), deadline - loop.time())
            except TimeoutError:
                return False
        return True


def _is_disconnect(error: Exception) -> bool:
    """Starlette says it in two ways, depending on whether the page left before or while something was sent."""
    return isinstance(error, RuntimeError | OSError) or type(error).__name__ == "WebSocketDisconnect"


def is_own_host(host: str, *, loopback: bool) -> bool:
    """On loopback only its own names are answered, so that no foreign name can be pointed at it."""
    try:
        name = urlsplit(f"http://{host}").hostname
    except ValueError:
        return False
    return bool(name) and (not loopback or is_loopback(str(name)))


def is_token(given: str | None, expected: str | None) -> bool:
    return expected is None or secrets.compare_digest((given or "").encode(), expected.encode())


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_server(playground: Playground, *, token: str | None = None) -> Any:
    """The uvicorn server of a playground; without a token it answers to loopback names only."""
    uvicorn = require("uvicorn", "play")
    require("websockets", "play")
    config = uvicorn.Config(
        playground.app(token=token),
        log_level="warning",
        ws_max_size=4 * MAX_MESSAGE,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    return uvicorn.Server(config)


def serve(playground: Playground, *, host: str = "127.0.0.1", port: int = 0, browser: bool = True) -> None:
    """Listen, print the address, open it in the browser, and serve until interrupted."""
    token = None if is_loopback(host) else secrets.token_urlsafe(16)
    server = make_server(playground, token=token)
    with listen(host, port) as listener:
        name = socket.gethostname() if host in ("0.0.0.0", "::") else host
        shown = f"[{name}]" if ":" in name else name
        url = f"http://{shown}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
        print(f"playground  {url}   (stop with Ctrl-C)", flush=True)
        if browser:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        server.run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or a one-line error."""
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port} is not allowed; give one from 1 to 65535, or 0 for a free one")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, ValueError) as error:  # a name too long to look up is a ValueError
        reason = getattr(error, "strerror", None) or "it is no host name"
        raise RunError(f"cannot listen on {host:.80} port {port} ({reason}); choose another --host or --port") from None
