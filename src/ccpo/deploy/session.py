"""One page's view of the playground: what it asked for, and the episodes that answer it.

The page sends commands as JSON objects, each with a `type` and exactly the fields named in `COMMANDS`:

    {"type": "open", "actors": [0, 0], "thresholds": [20, 60], "seed": 1}     one or two sides, from the same start
    {"type": "threshold", "side": 0, "value": 35}                             of the running episode, from now on
    {"type": "pause", "paused": true}    {"type": "step"}    {"type": "speed", "value": 2}
    {"type": "restart", "seed": 1}                                            the same start again, or another one
    {"type": "seen", "number": 17}                                            this message was drawn

`handle` only writes down wishes and may be called while `advance`, which does the work, runs in another thread.
"""

import ctypes
import json
import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from ccpo.deploy.watching import Actor, LiveEpisode, Moment, scene_of
from ccpo.errors import FormatError
from ccpo.monitor import Monitor
from ccpo.policy_file import is_number

STEPS_PER_SECOND = 30
SPEEDS = (0.25, 0.5, 1, 2, 4, 8)
MAX_MESSAGE = 1024
MAX_SEED = 2**31
CONFIDENCE = 0.95
"""Of the monitor that is shown."""
MAX_SHOWN = 4
"""Numbers of an observation or an action that a timeline shows."""


def _is_index(value: Any, below: int = MAX_SEED) -> bool:
    return type(value) is int and 0 <= value < below


def _is_pair(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) in (1, 2) and all(check(item) for item in value)


COMMANDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "open": {
        "actors": lambda value: _is_pair(value, _is_index),
        "thresholds": lambda value: _is_pair(value, is_number),
        "seed": _is_index,
    },
    "threshold": {"side": lambda value: _is_index(value, 2), "value": is_number},
    "pause": {"paused": lambda value: isinstance(value, bool)},
    "step": {},
    "speed": {"value": lambda value: is_number(value) and value in SPEEDS},
    "restart": {"seed": _is_index},
    "seen": {"number": _is_index},
}


def parse_command(message: Any) -> dict[str, Any]:
    """A command with valid fields, or a `FormatError`; what they mean for a session is checked there."""
    if not isinstance(message, str) or len(message) > MAX_MESSAGE:
        raise FormatError(f"a message must be text of at most {MAX_MESSAGE} characters")
    try:
        command = json.loads(message)
    except (ValueError, RecursionError):
        raise FormatError("a message must be JSON") from None
    kind = command.get("type") if isinstance(command, dict) else None
    if not isinstance(kind, str) or kind not in COMMANDS:
        raise FormatError(f"a message must be an object whose type is one of: {', '.join(COMMANDS)}")
    fields = COMMANDS[kind]
    if command.keys() != {"type", *fields}:
        raise FormatError(f"'{kind}' has exactly these fields: {', '.join(fields) or 'none'}")
    for name, is_valid in fields.items():
        if not is_valid(command[name]):
            raise FormatError(f"'{kind}' has a {name} that is not allowed")
    return command


class Wishes(NamedTuple):
    """What the page asked for; replaced as a whole, so that a reader in another thread never sees half of it."""

    actors: tuple[Actor, ...]
    thresholds: tuple[float, ...]
    seed: int = 0
    start: int = 0
    """Counts the starts asked for; several at once become one."""
    steps: int = 0
    """Counts the single steps asked for."""
    paused: bool = False
    speed: float = 1.0


class Session:
    """The episodes that one page watches, side by side."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        self._actors = actors
        low, high = actors[0].threshold_range
        self._wishes = Wishes(actors=(actors[0],), thresholds=(0.5 * (low + high),))
        self._working = threading.Lock()
        self._episodes: list[LiveEpisode] = []
        self._dials: list[set[float]] = []
        """The thresholds that each running episode has had; only those with one are monitored."""
        self._monitors: dict[int, Monitor] = {}
        self._started = 0
        self._stepped = 0
        self._credit = 0.0

    def handle(self, command: dict[str, Any]) -> None:
        """Write down what the page asks for, or raise a `FormatError`."""
        wishes = self._wishes
        match command["type"]:
            case "open":
                self._wishes = self._open(command)
            case "threshold":
                side = command["side"]
                if side >= len(wishes.actors):
                    raise FormatError(f"there is no side {side}; open it first")
                _check_threshold(wishes.actors[side], command["value"])
                thresholds = list(wishes.thresholds)
                thresholds[side] = float(command["value"])
                self._wishes = wishes._replace(thresholds=tuple(thresholds))
            case "restart":
                self._wishes = wishes._replace(start=wishes.start + 1, seed=command["seed"])
            case "step":
                self._wishes = wishes._replace(paused=True, steps=wishes.steps + 1)
            case "pause":
                self._wishes = wishes._replace(paused=command["paused"])
            case "speed":
                self._wishes = wishes._replace(speed=float(command["value"]))

    def _open(self, command: dict[str, Any]) -> Wishes:
        chosen, thresholds = command["actors"], command["thresholds"]
        if len(chosen) != len(thresholds) or max(chosen) >= len(self._actors):
            raise FormatError(f"'open' needs a threshold for each side and actors below {len(self._actors)}")
        actors = tuple(self._actors[index] for index in chosen)
        if len({actor.task for actor in actors}) > 1:
            raise FormatError("the two sides must be of the same task")
        for actor, threshold in zip(actors, thresholds, strict=True):
            _check_threshold(actor, threshold)
        thresholds = tuple(float(threshold) for threshold in thresholds)
        start = self._wishes.start + 1
        return self._wishes._replace(actors=actors, thresholds=thresholds, seed=command["seed"], start=start)

    def advance(self) -> dict[str, Any] | None:
        """One tick of 1/30 s: the message for the page, or None if nothing has changed."""
        with self._working:
            return self._advance()

    def close(self) -> None:
        """Release the simulators, once `advance` has returned."""
        with self._working:
            self._release()
        _return_memory()

    def _advance(self) -> dict[str, Any] | None:
        wishes = self._wishes
        if wishes.start != self._started:
            return self._begin(wishes)
        running = [episode for episode in self._episodes if not episode.ended]
        asked, self._stepped = wishes.steps - self._stepped, wishes.steps
        if wishes.paused:
            steps = min(asked, SPEEDS[-1])
        else:
            self._credit += wishes.speed
            steps = int(self._credit)
            self._credit -= steps
        if not running or not steps:
            return None
        sides = [self._play(side, threshold, steps) for side, threshold in enumerate(wishes.thresholds)]
        return {"type": "frame", "start": self._started, "sides": sides}

    def _begin(self, wishes: Wishes) -> dict[str, Any]:
        self._release()
        self._started, self._stepped, self._credit = wishes.start, wishes.steps, 0.0
        self._episodes = [LiveEpisode(actor, wishes.seed) for actor in wishes.actors]
        self._dials = [set() for _ in self._episodes]
        return {
            "type": "start",
            "start": wishes.start,
            "seed": wishes.seed,
            "actors": [self._actors.index(actor) for actor in wishes.actors],
            "places": [_rounded(episode.place) for episode in self._episodes],
            "bodies": [_drawn(episode) for episode in self._episodes],
        }

    def _play(self, side: int, threshold: float, steps: int) -> dict[str, Any]:
        episode, moments = self._episodes[side], []
        while len(moments) < steps and not episode.ended:
            moments.append(_shown(episode.step(threshold)))
        if moments:
            self._dials[side].add(threshold)
        concluded = moments and episode.ended and len(self._dials[side]) == 1
        return {
            "monitor": self._monitored(episode, threshold) if concluded else None,
            "threshold": threshold,
            "moments": moments,
            "bodies": _drawn(episode),
            "reward": round(episode.reward, 3),
            "cost": round(episode.cost, 4),
            "length": episode.length,
            "ended": episode.ended,
        }

    def _monitored(self, episode: LiveEpisode, threshold: float) -> dict[str, Any]:
        """What all episodes of this page so far say of an actor's promise at a threshold."""
        actor = self._actors.index(episode.actor)
        length = episode.actor.factory.spec.episode_length
        monitor = self._monitors.setdefault(actor, Monitor(confidence=CONFIDENCE, cost_max=length))
        monitor.add(threshold, episode.cost)
        found = [row for row in monitor.report().thresholds if row.threshold == threshold]
        return {
            "episodes": found[0].episodes if found else 0,
            "cost": [round(end, 2) if math.isfinite(end) else None for end in found[0].cost] if found else None,
            "rate": [round(end, 3) for end in found[0].rate] if found else None,
            "alarms": sorted({alarm.kind for alarm in monitor.alarms if alarm.threshold in (None, threshold)}),
        }

    def _release(self) -> None:
        while self._episodes:
            self._episodes.pop().close()


def _return_memory() -> None:
    """Give what closed simulators left back to the machine: glibc would keep some 35 MB for each Bullet world."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library has no such call
            ctypes.CDLL(None).malloc_trim(0)


def describe(actors: Sequence[Actor], *, compare: bool) -> dict[str, Any]:
    """The first message to a page: who can act, in which scenes, and how it was evaluated."""
    return {
        "type": "welcome",
        "compare": compare,
        "speeds": SPEEDS,
        "scenes": {actor.task: _scene(actor) for actor in actors},
        "actors": [
            {
                "name": actor.name,
                "task": actor.task,
                "range": actor.threshold_range,
                "behaviour_thresholds": actor.behaviour_thresholds,
                "closed_loop": actor.closed_loop,
                "curve": [point._asdict() for point in actor.curve],
            }
            for actor in actors
        ],
    }


def _scene(actor: Actor) -> dict[str, Any]:
    return asdict(scene_of(actor.factory)) | {"episode_length": actor.factory.spec.episode_length}


def _check_threshold(actor: Actor, threshold: float) -> None:
    low, high = actor.threshold_range
    if not low <= threshold <= high:
        raise FormatError(f"the threshold must be from {low:g} to {high:g}")


def _shown(moment: Moment) -> dict[str, Any]:
    return {"place": _rounded(moment.place), "action": _rounded(moment.action), "cost": round(moment.cost, 4)}


def _drawn(episode: LiveEpisode) -> list[list[float]]:
    """The bodies of the last moment: a page that shows several moments at once draws them only there."""
    return [[round(value, 3) for value in body] for body in episode.bodies]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values[:MAX_SHOWN]]
