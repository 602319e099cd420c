"""Does calibration keep its word? It is repeated on a CMDP whose mean cost at every dial setting is known exactly.

    python -m ccpo.deploy.coverage --repeats 200 --out results/calibration

The simulated policy is miscalibrated on purpose: m(d) = 12 + 0.9 d − 6 sin(d/6) is above the dial for most of the
range and falls here and there. Three cases:

- `spread`: an episode draws its rate p ~ Beta with mean m(d)/200, then each of 200 steps costs 1 with probability p;
- `rare`: one episode in fifty costs 200, the others m(d) less their share, ± 20 %;
- `false claims`: no pilot: every request is tested at a setting whose mean cost is just above it, drawn as in `spread`.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ccpo.confidence import binomial_tail
from ccpo.deploy.calibrate import STRIKES, Episodes, calibrate, certify, write_rows
from ccpo.policy_file import PathLike, write_atomically

STEPS = 200
REQUESTS = tuple(float(request) for request in range(10, 71, 5))
CONCENTRATION = 10.0
RARE = 0.02


@dataclass(frozen=True)
class Repeat:
    """One calibration, and whether what it promised is true."""

    case: str
    repeat: int
    certified: int
    smallest: float
    means_kept: bool
    exceedances_kept: bool
    worst_excess: float
    """The largest of mean cost − request over the certified requests; below 0 if the promise is kept."""


def mean_cost(dial: float) -> float:
    """m(d), exactly."""
    return 12.0 + 0.9 * dial - 6.0 * math.sin(dial / 6.0)


def draw_spread(rng: np.random.Generator, mean: float, count: int) -> np.ndarray:
    share = mean / STEPS
    return rng.binomial(STEPS, rng.beta(CONCENTRATION * share, CONCENTRATION * (1.0 - share), count)).astype(float)


def spread_exceedance(mean: float, request: float) -> float:
    """P(cost > request) of the beta-binomial distribution."""
    a, b = CONCENTRATION * mean / STEPS, CONCENTRATION * (1.0 - mean / STEPS)
    normaliser = (
        math.lgamma(STEPS + 1) - math.lgamma(a + b + STEPS) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    )
    terms = (
        math.lgamma(k + a) + math.lgamma(STEPS - k + b) - math.lgamma(k + 1) - math.lgamma(STEPS - k + 1)
        for k in range(math.floor(request) + 1)
    )
    return 1.0 - sum(math.exp(normaliser + term) for term in terms)


def _usual_cost(mean: float) -> float:
    """What the usual episode of `rare` costs on average: RARE · 200 + (1 − RARE) · u = m."""
    return (mean - RARE * STEPS) / (1.0 - RARE)


def draw_rare(rng: np.random.Generator, mean: float, count: int) -> np.ndarray:
    return np.where(rng.random(count) < RARE, STEPS, _usual_cost(mean) * rng.uniform(0.8, 1.2, count))


def rare_exceedance(mean: float, request: float) -> float:
    """P(cost > request) of the rare and of the uniform usual episodes."""
    return RARE + (1.0 - RARE) * min(1.0, max(0.0, (1.2 - request / _usual_cost(mean)) / 0.4))


CASES: dict[str, tuple[Callable, Callable[[float, float], float]]] = {
    "spread": (draw_spread, spread_exceedance),
    "rare": (draw_rare, rare_exceedance),
}


def repeat_calibration(case: str, repeat: int, *, episodes: int, confidence: float) -> Repeat:
    """Calibrate the simulated policy once and compare with the truth."""
    draw, exceedance = CASES[case]

    def measure(dials: Sequence[float], count: int, seed: int) -> list[Episodes]:
        rng = np.random.default_rng(seed)
        return [Episodes(draw(rng, mean_cost(dial), count), np.full(count, dial)) for dial in dials]

    calibration = calibrate(
        measure,
        REQUESTS,
        threshold_range=(REQUESTS[0], REQUESTS[-1]),
        cost_max=STEPS,
        confidence=confidence,
        episodes=episodes,
        seed=repeat,
    )
    certified = calibration.certified
    excess = max((mean_cost(row.dial) - row.requested for row in certified), default=-math.inf)
    exceeded = any(exceedance(mean_cost(row.dial), row.requested) > row.exceedance for row in calibration.rows)
    smallest = min((row.requested for row in certified), default=math.inf)
    return Repeat(case, repeat, len(certified), smallest, excess <= 0.0, not exceeded, excess)


def repeat_false_claims(repeat: int, *, episodes: int, confidence: float) -> Repeat:
    """Test requests that are all exceeded on average: whatever is certified is a broken promise."""
    rng, excess = np.random.default_rng(repeat), 0.01
    costs = [draw_spread(rng, request + excess, episodes) for request in REQUESTS]
    shares = [(request + excess) / STEPS for request in REQUESTS]
    variances = [share * (1.0 - share) / CONCENTRATION for share in shares]
    error = (1.0 - confidence) / STRIKES
    _, certified = certify(REQUESTS, costs, variances, cost_max=STEPS, error=error)
    smallest = min((request for request, passed in zip(REQUESTS, certified, strict=True) if passed), default=math.inf)
    kept = not any(certified)
    return Repeat("false claims", repeat, sum(certified), smallest, kept, True, -math.inf if kept else excess)


def study(repeats: int, *, episodes: int = 300, confidence: float = 0.95) -> list[Repeat]:
    """All cases, each repeated so often."""
    settings = {"episodes": episodes, "confidence": confidence}
    rows = [repeat_calibration(case, repeat, **settings) for case in CASES for repeat in range(repeats)]
    return rows + [repeat_false_claims(repeat, **settings) for repeat in range(repeats)]


def summarise(rows: Sequence[Repeat], confidence: float) -> dict[str, dict[str, float]]:
    """Kept promises by case, and the probability of no more than these if each is kept with the promised confidence."""
    summary = {}
    for case in dict.fromkeys(row.case for row in rows):
        of_case = [row for row in rows if row.case == case]
        summary[case] = {"repeats": len(of_case), "mean certified": sum(r.certified for r in of_case) / len(of_case)}
        for promise in ("means", "exceedances"):
            kept = sum(getattr(row, f"{promise}_kept") for row in of_case)
            summary[case] |= {f"{promise} kept": kept, f"{promise} p": binomial_tail(kept, len(of_case), confidence)}
    return summary


def write(rows: Sequence[Repeat], out: PathLike, *, command: str, confidence: float) -> None:
    """`coverage.csv`, a row per repeat, and `coverage.json` with the command and the summary."""
    write_rows(Path(out) / "coverage.csv", rows)
    content = {"command": command, "confidence": confidence, "cases": summarise(rows, confidence)}
    write_atomically(Path(out) / "coverage.json", json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Repeat calibration where the truth is known.")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--out", type=Path, default=Path("results/calibration"))
    options = parser.parse_args()
    rows = study(options.repeats, episodes=options.episodes, confidence=options.confidence)
    settings = " ".join(f"--{name} {value}" for name, value in vars(options).items())
    write(rows, options.out, command=f"python -m ccpo.deploy.coverage {settings}", confidence=options.confidence)
    print((options.out / "coverage.json").read_text())


if __name__ == "__main__":
    main()
