"""A look at an environment before anything is trained in it: what it can cost and earn, and thresholds that fit.

Three kinds of short runs: random actions, a search for reward and a search for low cost. A search is the cross-entropy
method over linear policies, a = clip(W·(obs − mean)/std + b, ±1), an episode each. It finds no optimum; it finds a part
of what is reachable, and that is what is reported.
"""

import math
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccpo import launch
from ccpo.agent import check_one_cost
from ccpo.envs.registry import resolve
from ccpo.errors import ConfigError
from ccpo.policy_file import write_atomically
from ccpo.printing import as_html, as_text
from ccpo.probing.search import ELITE, KINDS, RANDOM, SEEKING, Try, score, tries_of
from ccpo.schedule import LoopConfig, default_steps
from ccpo.types import EnvSpec, Progress

RANGE, BEHAVIOUR = (0.1, 0.7), (0.2, 0.4, 0.6)
"""Shares of the way from the lowest cost found to that of seeking reward."""
SMALL = 0.05
"""Of the highest cost: actions that change cost by less do not change it."""
LARGE_OBSERVATION = 1e4
TIMED_ITERATIONS = 3


class Pace(NamedTuple):
    """How fast it trains here: seconds before the first iteration is done, environment steps a second after it."""

    first_seconds: float
    rate: float


@dataclass(frozen=True)
class Probe:
    """What was found, and what is recommended."""

    spec: EnvSpec
    tries: tuple[Try, ...]
    speed: float
    """Steps a second of the environment alone."""
    pace: Pace | None
    settings: dict[str, Any]
    """For `ccpo.train(env, **probe.settings)`; empty if it will not work."""
    warnings: tuple[str, ...]
    given: dict[str, str] = field(default_factory=dict)
    """How the command line names the environment."""

    def of(self, kind: str) -> list[Try]:
        """The episodes of a kind; of a search, the best ones."""
        tries = [each for each in self.tries if each.kind == kind]
        if kind == RANDOM:
            return tries
        return sorted(tries, key=lambda each: -score(each, self.spec, self.largest_cost))[:ELITE]

    @property
    def largest_cost(self) -> float:
        return max(each.largest_cost for each in self.tries)

    @property
    def reachable(self) -> tuple[float, float]:
        """The lowest mean cost found, and that of seeking reward, or of random actions if these earn as much."""
        return reachable([self.of(kind) for kind in KINDS])

    @property
    def training_seconds(self) -> float | None:
        steps = self.settings.get("steps")
        return None if self.pace is None or not steps else self.pace.first_seconds + steps / self.pace.rate

    def __str__(self) -> str:
        return as_text(*self._shown())

    def __repr__(self) -> str:
        return f"<Probe: {self.spec.task}, cost {self.reachable[0]:.3g} to {self.reachable[1]:.3g}>"

    def _repr_html_(self) -> str:
        return as_html(*self._shown())

    def _shown(self) -> list[Any]:
        from ccpo.probing.report import probe_parts

        return probe_parts(self)

    def figure(self) -> Any:
        """Cost and reward of every episode, and when costs fall, as a matplotlib `Figure`."""
        from ccpo.probing.report import probe_figure

        return probe_figure(self)

    def save(self, folder: str | Path = ".") -> list[Path]:
        """Write `probe-NAME.toml`, which `ccpo train --config` takes, and the picture; the paths."""
        from ccpo.report.figures import save_figure

        stem = Path(folder) / f"probe-{self.spec.task}"
        paths = save_figure(self.figure(), stem)
        if self.settings:
            file = stem.with_suffix(".toml")
            write_atomically(file, self.toml(file))
            paths.insert(0, file)
        return paths

    def command(self, file: Path) -> str:
        """What trains with these settings."""
        options = [text for name, value in self.given.items() for text in (f"--{name}", shlex.quote(value))]
        return " ".join(["ccpo train", *(options or ["--env ENV"]), "--config", shlex.quote(str(file))])

    def toml(self, file: Path) -> str:
        lines = [f"# {self.command(file)}"]
        lines += [f"# {line}" for line in self.warnings]
        for name, value in self.settings.items():
            shown = f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else f"{value:_}"
            lines.append(f"{name} = {shown}")
        return "\n".join(lines) + "\n"


def probe(
    env: Any,
    *,
    cost_fn: Any = None,
    episode_length: int | None = None,
    early_end: str | None = None,
    behaviour_thresholds: Sequence[float] | None = None,
    threshold_range: Sequence[float] | None = None,
    episodes: int = 150,
    seed: int = 0,
    timing: bool = True,
    advance: Callable[[str, int], None] = lambda kind, count: None,
) -> Probe:
    """Try an environment: what it can cost and earn, and which thresholds, range and steps fit it.

    `behaviour_thresholds` and `threshold_range` are checked instead of recommended if they are given. Without `timing`
    nothing is compiled, and the time that training takes is not known. `advance` is told of episodes as they finish.
    """
    if episodes < 30:
        raise ConfigError(f"episodes={episodes} must be at least 30; 150 is usual")
    factory = resolve(env, cost_fn=cost_fn, episode_length=episode_length, early_end=early_end)
    check_one_cost(factory)
    spec, world = factory.spec, factory()
    began, tries = time.perf_counter(), []
    try:
        for each in tries_of(world, episodes, seed):
            tries.append(each)
            advance(each.kind, 1)
    finally:
        if not factory.single_instance:
            world.close()
    speed = sum(each.length for each in tries) / (time.perf_counter() - began)
    bare = Probe(spec, tuple(tries), speed, None, {}, ())
    wanted = {"behaviour_thresholds": behaviour_thresholds, "threshold_range": threshold_range}
    chosen = {name: tuple(float(value) for value in values) for name, values in wanted.items() if values is not None}
    settings = recommended(*bare.reachable, spec.episode_length, chosen)
    warnings = tuple(_doubts(bare, settings, given=bool(chosen)))
    if not _costs_change(bare):
        settings = {}
    pace = None
    if timing and settings:
        advance("the pace of training, which compiles first", 0)
        same = {"cost_fn": cost_fn, "episode_length": episode_length, "early_end": early_end}
        pace = _pace(env, settings, spec, **same)
    named = {"env": env, "cost": cost_fn, "episode-length": episode_length and str(episode_length)}
    named["early-end"] = early_end
    given = {name: value for name, value in named.items() if isinstance(value, str)}
    return Probe(spec, tuple(tries), speed, pace, settings, warnings, given)


def reachable(kinds: Sequence[Sequence[Try]]) -> tuple[float, float]:
    """From the episodes of random actions and the best of both searches, see `Probe.reachable`."""
    rewards = [float(np.mean([each.reward for each in tries])) for tries in kinds]
    costs = [float(np.mean([each.cost for each in tries])) for tries in kinds]
    random, _, seeking = costs
    high = seeking if rewards[2] > rewards[0] else max(random, seeking)
    return min(costs), max(high, min(costs))


def recommended(low: float, high: float, episode_length: int, chosen: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    """Thresholds and range between the costs that were found, and the usual number of steps.

    >>> recommended(0.0, 100.0, 200, {})["behaviour_thresholds"]
    (20.0, 40.0, 60.0)
    """
    span = high - low
    digits = 1 - math.floor(math.log10(span / 2)) if span > 0 else 0  # thresholds stay evenly spread

    def at(share: float) -> float:
        return round(low + share * span, digits)

    found = {
        "behaviour_thresholds": tuple(at(share) for share in BEHAVIOUR),
        "threshold_range": tuple(at(share) for share in RANGE),
        "steps": default_steps(episode_length),
    }
    return found | chosen


def _costs_change(found: Probe) -> bool:
    low, high = found.reachable
    return high > 0 and high - low > SMALL * high


def _doubts(found: Probe, settings: dict[str, Any], *, given: bool) -> Iterator[str]:
    """What speaks against training here, a sentence each."""
    low, high = found.reachable
    if found.largest_cost == 0:
        yield 'no step cost anything: put what must be limited into info["cost"], or give a cost function'
    elif not _costs_change(found):
        yield f"actions hardly change the cost ({low:.3g} to {high:.3g}), so there is nothing to learn: choose another"
    elif given:
        outside = [t for name in ("behaviour_thresholds", "threshold_range") for t in settings[name]]
        outside = sorted({t for t in outside if not low <= t <= high})
        if outside:
            listed = ", ".join(f"{t:g}" for t in outside)
            yield f"outside the cost that was reached, {low:.3g} to {high:.3g}: {listed}; choose thresholds inside it"
    largest = max(each.largest_observation for each in found.tries)
    if largest > LARGE_OBSERVATION:
        yield f"observations reach {largest:.2g}: bound or scale them, or end the episode before that"
    early = np.mean([each.ended_early for each in found.of(RANDOM)])
    if early > 0.9:
        yield f"{early:.0%} of random episodes ended early: most of what is collected at first will be short"
    random, seeking = (np.mean([each.reward for each in found.of(kind)]) for kind in (RANDOM, SEEKING))
    if seeking <= random:
        yield "the search earned no more than random actions: the range of cost is a guess; look at the first results"


def _pace(env: Any, settings: dict[str, Any], spec: EnvSpec, **same: Any) -> Pace:
    """The first iterations of a training like the recommended one, in a folder that goes away."""
    marks: list[tuple[float, int]] = []

    def mark(progress: Progress) -> None:
        marks.append((time.perf_counter(), progress.steps))

    lanes = LoopConfig().lanes_per_threshold * len(settings["behaviour_thresholds"])
    few: dict[str, Any] = settings | {"steps": TIMED_ITERATIONS * lanes * spec.episode_length}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        launch.train(env, out=folder, display=mark, **same, **few)
    (first, before), (last, after) = marks[0], marks[-1]
    return Pace(first - began, (after - before) / (last - first))
