"""Does the monitor keep its word? Simulated deployments of a CMDP whose dynamics shift, its costs known exactly.

    python -m ccpo.deploy.drift --deployments 1000 --out results/monitor

The CMDP: each of 200 steps costs 1 with the episode's rate p, drawn from a Beta distribution. In operation the mean
cost is 80 % of the threshold, for three thresholds in turn. In mid-way the dynamics shift, and costs are multiplied.

- `false alarms`: no shift, and the hardest case that is no breach, mean cost = threshold.
- `delay`: from the shift to the first alarm of each kind, over the size of the shift.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ccpo.confidence import binomial_tail
from ccpo.deploy.calibrate import write_rows
from ccpo.deploy.coverage import STEPS, draw_spread
from ccpo.errors import require
from ccpo.monitor import KINDS, Monitor
from ccpo.policy_file import PathLike, write_atomically

THRESHOLDS = (20.0, 40.0, 60.0)
USE = 0.8
SHIFTS = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5)


@dataclass(frozen=True)
class Deployment:
    """One simulated deployment, and when each kind of alarm was first raised; −1 for never."""

    case: str
    shift: float
    seed: int
    shifted_at: int
    refuted: int
    drift: int
    onset: int
    """Where the monitor sees the beginning, by the first pooled alarm; −1 without one."""


def deploy(
    case: str, *, use: float, shift: float, shifted_at: int, episodes: int, seed: int, confidence: float
) -> Deployment:
    """Run one deployment; after the shift each cost's mean is multiplied."""
    rng = np.random.default_rng([seed, round(shift * 1000)])
    monitor = Monitor(confidence=confidence, cost_max=STEPS)
    thresholds = np.resize(THRESHOLDS, episodes)
    means = thresholds * use * np.where(np.arange(episodes) < shifted_at, 1.0, shift)
    costs = np.empty(episodes)
    for mean in np.unique(means):
        costs[means == mean] = draw_spread(rng, mean, int((means == mean).sum()))
    first: dict[str, int] = dict.fromkeys(KINDS, -1)
    onset = -1
    for episode, (threshold, cost) in enumerate(zip(thresholds.tolist(), costs.tolist(), strict=True)):
        for alarm in monitor.add(threshold, cost):
            if first[alarm.kind] < 0:
                first[alarm.kind] = episode
            if alarm.threshold is None and onset < 0:
                onset = alarm.onset - 1
    return Deployment(case, shift, seed, shifted_at, **first, onset=onset)


def study(deployments: int, *, episodes: int = 1000, confidence: float = 0.95) -> list[Deployment]:
    """The deployments of both cases; a tenth as many for each shift."""
    common = {"episodes": episodes, "confidence": confidence}
    rows = [
        deploy(case, use=use, shift=1.0, shifted_at=episodes, seed=seed, **common)
        for case, use in (("at the threshold", 1.0), ("within it", USE))
        for seed in range(deployments)
    ]
    return rows + [
        deploy("shift", use=USE, shift=shift, shifted_at=episodes // 2, seed=seed, **common)
        for shift in SHIFTS
        for seed in range(max(1, deployments // 10))
    ]


def summarise(rows: Sequence[Deployment], *, episodes: int, confidence: float) -> dict[str, dict[str, float]]:
    """False alarms by case, with the probability of so many if each has the promised error; delays by shift."""
    summary: dict[str, dict[str, float]] = {}
    for case in ("at the threshold", "within it"):
        chosen = [row for row in rows if row.case == case]
        false = sum(max(row.refuted, row.drift) >= 0 for row in chosen)
        p = 1.0 - binomial_tail(false - 1, len(chosen), 1.0 - confidence) if false else 1.0
        summary[case] = {"deployments": len(chosen), "false alarms": false, "p": p}
    for shift in sorted({row.shift for row in rows if row.case == "shift"}):
        chosen = [row for row in rows if row.case == "shift" and row.shift == shift]
        early = sum(0 <= min(_after(row.refuted), _after(row.drift)) < row.shifted_at for row in chosen)
        summary[f"shift {shift:g}"] = {"deployments": len(chosen), "alarms before": early}
        for kind in KINDS:
            delays = [_after(getattr(row, kind)) - row.shifted_at + 1 for row in chosen]
            seen = [delay for delay in delays if 0 < delay <= episodes]
            summary[f"shift {shift:g}"] |= {
                f"{kind} told": len(seen),
                f"{kind} delay (median)": float(np.median(seen)) if 2 * len(seen) > len(chosen) else -1.0,
            }
    return summary


def _after(episode: int) -> float:
    return float("inf") if episode < 0 else float(episode)


def write(rows: Sequence[Deployment], out: PathLike, *, command: str, episodes: int, confidence: float) -> None:
    """`drift.csv`, a row per deployment, `drift.json` with the summary, and the curve of delays."""
    summary = summarise(rows, episodes=episodes, confidence=confidence)
    write_rows(Path(out) / "drift.csv", rows)
    content = {"command": command, "episodes": episodes, "confidence": confidence, "cases": summary}
    write_atomically(Path(out) / "drift.json", json.dumps(content, indent=2) + "\n")


def draw(rows: Sequence[Deployment], path: Path) -> None:
    """The delay over the size of the shift, median and quartiles, for each kind of alarm."""
    matplotlib = require("matplotlib", "plot")
    matplotlib.use("Agg")
    plots = require("matplotlib.pyplot", "plot")
    figure, axes = plots.subplots(figsize=(5.0, 3.2), layout="constrained")
    shifts = sorted({row.shift for row in rows if row.case == "shift"})
    for kind in KINDS:
        chosen = [[_after(getattr(r, kind)) - r.shifted_at + 1 for r in rows if r.shift == s] for s in shifts]
        quartiles = np.array([np.percentile(delays, (25, 50, 75), method="nearest") for delays in chosen])
        quartiles[~np.isfinite(quartiles)] = np.nan
        axes.plot(shifts, quartiles[:, 1], marker="o", label=kind)
        axes.fill_between(shifts, quartiles[:, 0], quartiles[:, 2], alpha=0.2)
    axes.set(xlabel="costs multiplied by", ylabel="episodes until the alarm", yscale="log")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    plots.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate deployments whose truth is known.")
    parser.add_argument("--deployments", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--out", type=Path, default=Path("results/monitor"))
    options = parser.parse_args()
    rows = study(options.deployments, episodes=options.episodes, confidence=options.confidence)
    settings = " ".join(f"--{name} {value}" for name, value in vars(options).items())
    chosen = {"episodes": options.episodes, "confidence": options.confidence}
    write(rows, options.out, command=f"python -m ccpo.deploy.drift {settings}", **chosen)
    draw(rows, options.out / "delay.svg")
    print((options.out / "drift.json").read_text())


if __name__ == "__main__":
    main()
