"""Calibration: from the threshold that is requested to the dial setting whose mean episodic cost is within it.

1. *Pilot.* A fifth of the episodes measures the dial; it chooses one setting for each request, the boldest that will
   probably pass. Nothing is claimed from these episodes.
2. *Certification.* Fresh episodes at the chosen settings test one claim per request, "the mean cost is at least the
   request", by betting (`ccpo.confidence`), from the largest request down, each with error
   δ = (1 − confidence)/3; the third claim that stands ends the testing. A request whose claim stands is served as the
   next smaller one that is certified, or refused.

**What is guaranteed**, with probability ≥ `confidence` over the calibration's episodes: *all* certified requests at
once have E[cost | their setting] ≤ request. For of the claims that are true, only the first three in the order can be
refuted by mistake, since the testing is over once these stand, and each is refuted with probability ≤ δ. Any other
request is served as the largest certified one below it, so this covers every request there is. Separately, and again
with probability ≥ `confidence` for all requests at once: P(cost > request | its setting) ≤ its `exceedance` (Clopper
and Pearson, the error shared equally among the requests).

**What is assumed**: deployment draws its episodes from the distribution of the environment that was calibrated in,
independently, acts deterministically and keeps one request for a whole episode; an episode's cost lies in
[0, cost_max]. It is assumed neither that cost rises with the dial nor anything about the shape of its distribution.

A setting of the dial is the threshold of an episode. A closed-loop policy acts on what is left of it, here as in
deployment: it must be told the cost of every step.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from ccpo.agent import Agent
from ccpo.confidence import episodes_for_bound, mean_upper_bound, probability_upper_bound
from ccpo.errors import ConfigError, ThresholdError
from ccpo.policy_file import PathLike, write_atomically
from ccpo.printing import as_html, as_text
from ccpo.report.paper import display_name
from ccpo.report.tables import Cell, ReportTable

PILOT_SHARE, PILOT_SETTINGS = 0.2, 13
STRIKES = 3
"""Claims that stand when the testing ends: with one, bad luck at one request would refuse all below it."""
SPARE = 2.0
"""Standard errors by which a setting should pass according to the pilot, so that few do not."""
# Beyond 32 bits, where no evaluation's seed lies: "pilo", "cert".
PILOT_SEEDS, CERTIFICATION_SEEDS = 0x70696C6F << 32, 0x63657274 << 32


class Episodes(NamedTuple):
    """Costs and rewards of the episodes at one setting."""

    cost: np.ndarray
    reward: np.ndarray


Measure = Callable[[Sequence[float], int, int], list[Episodes]]
"""(dial settings, episodes at each, seed) → their episodes."""


@dataclass(frozen=True)
class Row:
    """One request, and the setting that was tested for it."""

    requested: float
    dial: float
    certified: bool
    cost: float
    bound: float
    """The upper confidence bound of this setting's mean cost, taken alone at 1 − δ; certified only if ≤ requested."""
    exceedance: float
    """The upper confidence bound of the probability that an episode costs more than requested."""
    reward: float
    uncalibrated_reward: float
    """In the pilot, with the dial at the request itself."""
    needed: int | None = None
    """About how many episodes would do, if it is not certified and some number would."""


@dataclass(frozen=True)
class Calibration:
    """The map, and everything it rests on; rows by rising request."""

    confidence: float
    cost_max: float
    pilot_episodes: int
    episodes: int
    seed: int
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return as_text(calibration_table(self, ""))

    def _repr_html_(self) -> str:
        return as_html(calibration_table(self, ""))

    @property
    def certified(self) -> list[Row]:
        return [row for row in self.rows if row.certified]

    def serving(self, requested: float) -> Row | None:
        """The row of the largest certified request ≤ requested, None if it is refused."""
        return max((row for row in self.certified if row.requested <= requested), default=None, key=_by_request)

    @property
    def mean_given_up(self) -> float:
        """Reward of the dial at the request − reward of the setting that serves it, averaged over what is served."""
        pairs = [(row, self.serving(row.requested)) for row in self.rows]
        return float(np.mean([row.uncalibrated_reward - served.reward for row, served in pairs if served]))

    def as_dict(self) -> dict[str, Any]:
        """For the manifest; `requested` and `dial` are what the policy reads."""
        requested, dial = [row.requested for row in self.certified], [row.dial for row in self.certified]
        return {"requested": requested, "dial": dial, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Calibration":
        plain = {name: data[name] for name in ("confidence", "cost_max", "pilot_episodes", "episodes", "seed")}
        return cls(**plain, rows=tuple(Row(**row) for row in data["rows"]))


def _by_request(row: Row) -> float:
    return row.requested


def calibrate(
    measure: Measure,
    requests: Sequence[float],
    *,
    threshold_range: tuple[float, float],
    cost_max: float,
    confidence: float = 0.95,
    episodes: int = 300,
    seed: int = 0,
) -> Calibration:
    """Calibrate whatever `measure` runs, with so many episodes per setting in all; the dial stays within the range."""
    requests = _checked(requests, threshold_range, cost_max=cost_max, confidence=confidence, episodes=episodes)
    pilot_episodes, count = _split(episodes)
    dials = _pilot_dials(requests, threshold_range)
    pilot = measure(dials, pilot_episodes, PILOT_SEEDS + seed)
    _check_costs(pilot, cost_max)
    error = (1.0 - confidence) / STRIKES
    settings, variances = choose_settings(requests, dials, pilot, cost_max=cost_max, error=error, episodes=count)
    distinct = sorted(set(settings))
    measured = dict(zip(distinct, measure(distinct, count, CERTIFICATION_SEEDS + seed), strict=True))
    _check_costs(list(measured.values()), cost_max)
    samples = [measured[setting] for setting in settings]
    uncalibrated = [float(pilot[dials.index(request)].reward.mean()) for request in requests]
    bounds, certified = certify(
        requests, [sample.cost for sample in samples], variances, cost_max=cost_max, error=error
    )
    share = (1.0 - confidence) / len(requests)
    rows = tuple(
        Row(
            request,
            setting,
            passed,
            cost=float(sample.cost.mean()),
            bound=bound,
            exceedance=probability_upper_bound(int((sample.cost > request).sum()), count, error=share),
            reward=float(sample.reward.mean()),
            uncalibrated_reward=reward,
            needed=None if passed else _needed(sample.cost / cost_max, request / cost_max, error, variance),
        )
        for request, setting, passed, sample, bound, reward, variance in zip(
            requests, settings, certified, samples, bounds, uncalibrated, variances, strict=True
        )
    )
    return Calibration(confidence, cost_max, pilot_episodes, count, seed, rows)


def _needed(costs: np.ndarray, request: float, error: float, variance: float) -> int | None:
    """In all, with those of the pilot."""
    count = episodes_for_bound(costs, request, error=error, variance=variance)
    return None if count is None else round(count / (1.0 - PILOT_SHARE))


def planned_episodes(requests: Sequence[float], threshold_range: tuple[float, float], episodes: int) -> int:
    """How many episodes `calibrate` runs in all, at most."""
    pilot_episodes, count = _split(episodes)
    return len(_pilot_dials(requests, threshold_range)) * pilot_episodes + len(requests) * count


def _split(episodes: int) -> tuple[int, int]:
    pilot = round(PILOT_SHARE * episodes)
    return pilot, episodes - pilot


def _pilot_dials(requests: Sequence[float], threshold_range: tuple[float, float]) -> list[float]:
    """The requests, whose rewards are compared with, and enough others to interpolate between."""
    return sorted({*np.linspace(*threshold_range, PILOT_SETTINGS).tolist(), *requests})


def choose_settings(
    requests: Sequence[float],
    dials: Sequence[float],
    pilot: Sequence[Episodes],
    *,
    cost_max: float,
    error: float,
    episodes: int,
) -> tuple[list[float], list[float]]:
    """For each request the boldest setting that will probably pass, rising with the request, and its cost's variance.

    The bound to expect of each pilot setting is interpolated, with some standard errors to spare, and with an eighth of
    its second differences, which is how far a curve may lie above its chords.
    """
    costs = [sample.cost / cost_max for sample in pilot]
    variances = [float(cost.var(ddof=1)) for cost in costs]
    expected = [
        mean_upper_bound(cost, error=error, variance=variance, episodes=episodes)
        + SPARE * math.sqrt(variance * (1 / len(cost) + 1 / episodes))
        for cost, variance in zip(costs, variances, strict=True)
    ]
    bend = np.zeros(len(dials))
    bend[1:-1] = np.abs(np.diff(expected, 2)) / 8.0
    rising = np.maximum.accumulate(expected + bend) * cost_max
    settings = np.interp(requests, rising, dials)
    return settings.tolist(), np.interp(settings, dials, variances).tolist()


def certify(
    requests: Sequence[float],
    costs: Sequence[np.ndarray],
    variances: Sequence[float],
    *,
    cost_max: float,
    error: float,
) -> tuple[list[float], list[bool]]:
    """The bound of each request's mean cost, and whether it is certified.

    Tested by falling request, until `STRIKES` claims stand: P(any request below its mean cost is certified) ≤
    `STRIKES` · `error`.
    """
    bounds = [
        cost_max * mean_upper_bound(cost / cost_max, error=error, variance=variance)
        for cost, variance in zip(costs, variances, strict=True)
    ]
    certified, strikes = [False] * len(bounds), 0
    for index in np.argsort(requests)[::-1]:
        certified[index] = strikes < STRIKES and bounds[index] <= requests[index]
        strikes += not certified[index]
    return bounds, certified


def calibrate_agent(
    agent: Agent,
    requests: Sequence[float],
    *,
    confidence: float = 0.95,
    episodes: int = 300,
    cost_max: float | None = None,
    seed: int = 0,
    workers: int | None = 1,
    env: Any = None,
    cost_fn: Any = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Calibration:
    """Calibrate a trained agent in its environment and store the map in its policy; save the agent to keep it."""

    def measure(dials: Sequence[float], count: int, stream: int) -> list[Episodes]:
        table = agent.evaluate(dials, count, seed=stream, workers=workers, env=env, cost_fn=cost_fn, advance=advance)
        chosen = [table.threshold == dial for dial in dials]
        return [Episodes(table.cost[rows], table.reward[rows]) for rows in chosen]

    calibration = calibrate(
        measure,
        requests,
        threshold_range=agent.threshold_range,
        cost_max=default_cost_max(agent, env, cost_fn) if cost_max is None else cost_max,
        confidence=confidence,
        episodes=episodes,
        seed=seed,
    )
    if not calibration.certified:
        nearest = calibration.rows[-1]
        raise ThresholdError(
            f"no request up to {nearest.requested:g} can be guaranteed: the bound at dial {nearest.dial:.3g} is "
            f"{nearest.bound:.1f}; {_advice(nearest)}"
        )
    agent.policy.manifest["calibration"] = calibration.as_dict()
    return calibration


def _advice(row: Row) -> str:
    """What would get a request certified that is not."""
    if row.needed is None:
        return f"its mean cost is {row.cost:.1f}, so no number of episodes would do; ask for more, or train longer"
    return f"about --episodes {row.needed} would do, or a larger request"


def default_cost_max(agent: Agent, env: Any = None, cost_fn: Any = None) -> float:
    """The episode length times the largest cost of a step, as the environment itself says in `max_step_cost`."""
    factory = agent.factory(env, cost_fn)
    largest = factory.max_step_cost
    if largest is None:
        raise ConfigError(
            f"the largest cost of an episode of '{agent.task}' is not known; give it: --cost-max, at most "
            f"{factory.spec.episode_length} steps times the largest cost of a step; or give the environment an "
            "attribute max_step_cost"
        )
    return factory.spec.episode_length * largest


def calibration_table(calibration: Calibration, task: str) -> ReportTable:
    """What each request gets and what the guarantee costs, for the terminal and the model card."""
    lines = []
    for row in calibration.rows:
        served = calibration.serving(row.requested)
        if served is None:
            cells = ("refused", f"{row.cost:.1f}", f"{row.bound:.1f}", "–", "–", "–")
        else:
            cells = (
                f"{served.dial:.1f}" if served is row else f"as {served.requested:g}",
                f"{served.cost:.1f}",
                f"{served.bound:.1f}",
                f"{100 * served.exceedance:.0f} %",
                f"{served.reward:.1f}",
                f"{row.uncalibrated_reward - served.reward:.1f}",
            )
        style = "" if row.certified else "yellow"
        lines.append(tuple(Cell(text, style) for text in (f"{row.requested:g}", *cells)))
    level = f"{100 * calibration.confidence:g} %"
    notes = (
        f"all requests at once with {level} confidence: mean cost ≤ request · costs in [0, {calibration.cost_max:g}]",
        f"exceeds: P(cost > request) is at most this, all at once with {level} confidence of its own",
        f"given up: reward of the dial at the request ({calibration.pilot_episodes} episodes) − reward of the setting "
        f"({calibration.episodes} episodes)",
    )
    refused = [row for row in calibration.rows if not row.certified]
    if refused:
        listed = ", ".join(f"{row.requested:g} ({f'{row.needed:,}' if row.needed else 'none'})" for row in refused)
        notes = (*notes, f"not certified (how many episodes would do): {listed}")
    headers = ("Requested", "Dial", "Cost", "Bound", "Exceeds ≤", "Reward", "Given up")
    return ReportTable("Calibration", headers, {display_name(task): lines}, notes)


def write_rows(path: PathLike, rows: Sequence[Any]) -> None:
    """Dataclasses of one kind as CSV, atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(rows[0])], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_atomically(path, text.getvalue())


def _checked(
    requests: Sequence[float],
    threshold_range: tuple[float, float],
    *,
    cost_max: float,
    confidence: float,
    episodes: int,
) -> list[float]:
    """The requests in order; every argument is refused here if it makes no sense."""
    low, high = threshold_range
    requests = sorted({float(request) for request in requests})
    if not requests or not all(low <= request <= high for request in requests):
        raise ThresholdError(f"requests {requests} must lie within the trained range {low:g} to {high:g}")
    if not 0.5 <= confidence < 1.0:
        raise ConfigError(f"confidence={confidence} must be at least 0.5 and below 1, such as 0.95")
    if episodes < 20:
        raise ConfigError(f"episodes={episodes} must be at least 20; a few hundred give useful bounds")
    if not (math.isfinite(cost_max) and cost_max > 0):
        raise ConfigError(f"cost_max={cost_max} must be a finite number > 0: the largest cost an episode can have")
    return requests


def _check_costs(samples: Sequence[Episodes], cost_max: float) -> None:
    largest = max(float(sample.cost.max()) for sample in samples)
    if largest > cost_max * (1.0 + 1e-9):
        raise ConfigError(f"an episode cost {largest:g}, more than cost_max={cost_max:g}; give what it can be at most")
