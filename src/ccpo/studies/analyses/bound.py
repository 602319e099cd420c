"""Theorem 1 and Proposition 1 with the numbers of trained critics, beside measured violations (docs/theory.md).

σ is what a polynomial leaves of the trained z(ε) over the range, K_c the largest feature that the replay shows. The
bounds, in the critic's discounted unit at first, are converted to episodic cost before anything is compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ccpo.algorithms.ccpo import model
from ccpo.errors import RunError, require
from ccpo.maths import bounds, networks
from ccpo.maths.returns import Horizon
from ccpo.metrics import EpisodeTable, is_seen, violation
from ccpo.report.figures import COLOURS, DASHED, DOTTED, GUIDE, INK, STYLE, save_figure
from ccpo.report.paper import display_name
from ccpo.report.tables import SEEN_MARK, Cell, ReportTable, save_tables
from ccpo.runs import Run
from ccpo.studies.analyses import over_seeds, write_csv
from ccpo.studies.analyses.learned import Learned, critic_inputs, draw, load, open_loop
from ccpo.studies.plan import FinishedRun

ALPHA = 0.05
DEGREES = (1, 2, 3)
COUNTS = (5, 10, 20, 40, 80)
LARGE_COUNTS = (160, 320, 640, 1280)
RANGE_POINTS = 241
PAIRS = 4000


class Fit(NamedTuple):
    """What the theorem asks of one run's cost critic, for polynomials of one degree; noise as episodic cost."""

    task: str
    seed: int
    degree: int
    behaviour_thresholds: tuple[float, ...]
    threshold_range: tuple[float, float]
    horizon: Horizon
    features: int
    sigma: float
    feature_setting: float
    """K_c as it is set: the bound that ψ cannot leave."""
    feature_bound: float
    """K_c as the replay shows it."""
    worst_noise: float
    largest_noise: float


class Row(NamedTuple):
    """One threshold of one run: bounds on cost − ε, and what its evaluation measured; all as episodic cost."""

    task: str
    seed: int
    degree: int
    threshold: float
    seen: bool
    leverage: float
    printed: float
    prediction: float
    sharp: float
    """The printed form with the noise as it is, instead of √(σ² M K_c²)."""
    excess: float
    """Mean cost − ε: what Proposition 1 bounds."""
    violation: float


def report(runs: Sequence[FinishedRun], folder: Path) -> list[Path]:
    """Estimates, bounds by threshold beside measured violations, and the rate over N beside Remark 1."""
    pairs = [(fit, run) for run in open_loop(runs) for fit in fits_of(run)]
    if not pairs:
        raise RunError("bound needs a finished CCPO run, in an open loop and with a versatile critic; run one first")
    fits = [fit for fit, _ in pairs]
    rows = [row for fit, run in pairs for row in rows_of(fit, EpisodeTable.read_csv(Run(run.path).eval_path))]
    rates = rate_rows()
    tables = [_estimate_table(fits), _threshold_table(rows), _rate_table(rates)]
    return [
        write_csv(folder / "bound-estimates.csv", [_plain_fit(fit) for fit in fits]),
        write_csv(folder / "bound-thresholds.csv", [row._asdict() for row in rows]),
        write_csv(folder / "bound-rates.csv", rates),
        *save_tables(tables, folder / "bound", title="Theorem 1 and Proposition 1 as numbers"),
        *save_figure(bound_figure(rows), folder / "bound"),
        *save_figure(rate_figure(), folder / "bound-rates"),
    ]


def fits_of(run: FinishedRun) -> list[Fit]:
    """One fit for each degree that the number of behaviour thresholds allows; none for a plain critic."""
    learned = load(run)
    if not learned.config.versatile_critic:
        return []
    thresholds = np.linspace(*learned.problem.threshold_range, RANGE_POINTS)
    z, psi = embeddings(learned, thresholds), cost_features(learned)
    degrees = [degree for degree in DEGREES if degree < len(run.thresholds)]
    return [
        _fit(run, learned, degree, sigma=bounds.polynomial_noise(z, thresholds, degree), psi=psi) for degree in degrees
    ]


def embeddings(learned: Learned, thresholds: np.ndarray) -> np.ndarray:
    """z_c(ε) of the trained critic: [C] → [C, F], float64."""
    condition = model.critic_condition(learned.problem, jnp.asarray(thresholds, jnp.float32)[:, None])
    return np.asarray(networks.embedding(learned.state.critic.cost[0]["embedding"], condition), np.float64)


def cost_features(learned: Learned) -> np.ndarray:
    """ψ_c(s, a) at pairs of the run's own replay: [B, F], float64."""
    steps = draw(learned.steps, PAIRS, seed=0)
    action = jnp.clip(steps.action[:, None, :], -1.0, 1.0)
    layers, inputs = learned.state.critic.cost[0]["feature"], critic_inputs(learned, steps)
    psi = networks.features(layers, inputs, action, bound=model.FEATURE_BOUND)
    return np.asarray(psi[:, 0], np.float64)


def _fit(run: FinishedRun, learned: Learned, degree: int, *, sigma: np.ndarray, psi: np.ndarray) -> Fit:
    problem, horizon, bound = learned.problem, learned.horizon, float(np.max(np.abs(psi)))
    noises = np.array([bounds.worst_noise(sigma, bound), bounds.largest_noise(psi, sigma)])
    episodic = bounds.episodic_cost(noises * horizon.q_threshold(problem.threshold_range[1]), horizon)
    return Fit(
        task=run.task,
        seed=run.seed,
        degree=degree,
        behaviour_thresholds=problem.behaviour_thresholds,
        threshold_range=problem.threshold_range,
        horizon=horizon,
        features=len(sigma),
        sigma=float(sigma.max()),
        feature_setting=model.FEATURE_BOUND,
        feature_bound=bound,
        worst_noise=float(episodic[0]),
        largest_noise=float(episodic[1]),
    )


def rows_of(fit: Fit, episodes: EpisodeTable) -> list[Row]:
    """The bounds at every evaluated threshold, beside what its episodes cost."""
    thresholds = np.unique(episodes.threshold)
    leverage = bounds.leverage(thresholds, fit.behaviour_thresholds, fit.degree)
    printed = bounds.error_bound(leverage, fit.worst_noise, alpha=ALPHA)
    prediction = bounds.error_bound(leverage, fit.worst_noise, alpha=ALPHA, prediction=True)
    sharp = bounds.error_bound(leverage, fit.largest_noise, alpha=ALPHA)
    seen = is_seen(thresholds, fit.behaviour_thresholds)
    costs = [episodes.cost[episodes.threshold == threshold] for threshold in thresholds]
    return [
        Row(
            task=fit.task,
            seed=fit.seed,
            degree=fit.degree,
            threshold=float(threshold),
            seen=bool(seen[i]),
            leverage=float(leverage[i]),
            printed=float(printed[i]),
            prediction=float(prediction[i]),
            sharp=float(sharp[i]),
            excess=float(costs[i].mean() - threshold),
            violation=float(violation(costs[i], threshold).mean()),
        )
        for i, threshold in enumerate(thresholds)
    ]


def rate_rows() -> list[dict[str, Any]]:
    """sup √h over the range for N evenly spaced thresholds, and the measured rates, for each degree and spacing."""
    rows = []
    for spacing in bounds.SPACINGS:
        for degree in DEGREES:
            worst = {f"N={n}": _worst(n, degree, spacing) for n in COUNTS}
            rows.append(
                {
                    "spacing": spacing,
                    "degree": degree,
                    **worst,
                    "rate": bounds.rate(COUNTS, degree, spacing=spacing),
                    "rate_large": bounds.rate(LARGE_COUNTS, degree, spacing=spacing),
                }
            )
    return rows


def _worst(count: int, degree: int, spacing: bounds.Spacing) -> float:
    seen = bounds.even_thresholds(count, spacing=spacing)
    return bounds.worst_leverage(seen, degree, threshold_range=(0.0, 1.0)) ** 0.5


def _worst_bound(fit: Fit) -> float:
    """The printed bound at its worst threshold, as episodic cost."""
    worst = bounds.worst_leverage(fit.behaviour_thresholds, fit.degree, threshold_range=fit.threshold_range)
    return float(bounds.error_bound(np.array(worst), fit.worst_noise, alpha=ALPHA))


def _plain_fit(fit: Fit) -> dict[str, Any]:
    plain = fit._asdict() | {"N": len(fit.behaviour_thresholds), "alpha": ALPHA, "worst_bound": _worst_bound(fit)}
    plain["worst_bound_discounted"] = float(fit.horizon.q_threshold(plain["worst_bound"]))
    plain["horizon"] = f"{fit.horizon.name}, T = {fit.horizon.length}, γ = {fit.horizon.discount:g}"
    for name in ("behaviour_thresholds", "threshold_range"):
        plain[name] = " ".join(f"{threshold:g}" for threshold in plain[name])
    return plain


def _estimate_table(fits: Sequence[Fit]) -> ReportTable:
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for task, degree in dict.fromkeys((fit.task, fit.degree) for fit in fits):
        same = [fit for fit in fits if (fit.task, fit.degree) == (task, degree)]
        texts = (
            str(degree),
            str(len(same[0].behaviour_thresholds)),
            str(same[0].features),
            over_seeds([fit.sigma for fit in same], 4),
            f"{same[0].feature_setting:g}",
            over_seeds([fit.feature_bound for fit in same], 2),
            over_seeds([fit.horizon.q_threshold(_worst_bound(fit)) for fit in same], 1),
            over_seeds([_worst_bound(fit) for fit in same], 1),
        )
        rows_by_task.setdefault(display_name(task), []).append(tuple(map(Cell, texts)))
    headers = ("Degree p", "N", "M", "σ", "K_c set", "K_c seen", "Bound, discounted", "Bound, episodic")
    notes = (
        f"α = {ALPHA:g} · bound: the printed form at its worst threshold of the range, with K_c as seen",
        "σ: the largest standard deviation of what a polynomial of degree p leaves of a component of the trained z(ε)",
    )
    return ReportTable("What the trained critics say", headers, rows_by_task, notes)


def _threshold_table(rows: Sequence[Row]) -> ReportTable:
    rows_by_task: dict[str, list[tuple[Cell, ...]]] = {}
    for task, degree, threshold in dict.fromkeys((row.task, row.degree, row.threshold) for row in rows):
        same = [row for row in rows if (row.task, row.degree, row.threshold) == (task, degree, threshold)]
        kept = sum(row.excess <= row.printed for row in same)
        texts = (
            f"{degree}",
            f"{SEEN_MARK if same[0].seen else ' '} {threshold:g}",
            f"{same[0].leverage ** 0.5:.3f}",
            over_seeds([row.printed for row in same], 1),
            over_seeds([row.prediction for row in same], 1),
            over_seeds([row.sharp for row in same], 1),
            over_seeds([row.excess for row in same], 1),
            over_seeds([row.violation for row in same], 2),
            f"{kept} of {len(same)}",
        )
        rows_by_task.setdefault(display_name(task), []).append(tuple(map(Cell, texts)))
    headers = ("Degree p", "ε", "√h", "Printed", "Prediction", "Sharp", "Cost − ε", "CV", "Kept")
    notes = (
        f"{SEEN_MARK} behaviour threshold · all as episodic cost · printed: z·√(σ² M K_c² h) · prediction: 1 + h in "
        "h's place · sharp: Σ ψ_j² σ_j² at its largest in the place of σ² M K_c²",
        "cost − ε: measured mean, what Proposition 1 bounds · CV: by episode · kept: seeds with cost − ε ≤ printed",
    )
    return ReportTable("Predicted and measured violation", headers, rows_by_task, notes)


def _rate_table(rates: Sequence[dict[str, Any]]) -> ReportTable:
    rows_by_spacing: dict[str, list[tuple[Cell, ...]]] = {}
    for row in rates:
        texts = (
            str(row["degree"]),
            *(f"{row[f'N={n}']:.3f}" for n in COUNTS),
            f"{row['rate']:.3f}",
            f"{row['rate_large']:.3f}",
            "½",
            str(row["degree"] + 1),
        )
        rows_by_spacing.setdefault(row["spacing"], []).append(tuple(map(Cell, texts)))
    small, large = (f"β, N = {counts[0]} to {counts[-1]}" for counts in (COUNTS, LARGE_COUNTS))
    headers = ("Degree p", *(f"N = {n}" for n in COUNTS), small, large, "limit of β", "B")
    notes = (
        "sup √h over [0, 1] for N evenly spaced thresholds: all that the bound owes to N · ends: both ends of the "
        "range are behaviour thresholds · midpoints: of N equal parts, as 20, 40, 60 in 10 to 70",
        "Remark 1 says that the rate β grows with p. In the limit it does not: it is ½ for every p, with the factor "
        "B = p + 1, so that for the same σ a higher degree makes the bound larger. Over few thresholds the slope "
        "depends on their spacing: with both ends it falls with p; at midpoints it grows, from a start that is so much "
        "higher. What a higher degree can buy is a smaller σ (first table).",
    )
    return ReportTable("The rate over N", headers, rows_by_spacing, notes, by="Spacing")


def bound_figure(rows: Sequence[Row]) -> Any:
    """Bounds and measured cost − ε over the threshold; one column a task, one row a degree."""
    matplotlib, figure_module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    tasks = list(dict.fromkeys(row.task for row in rows))
    degrees = sorted({row.degree for row in rows})
    with matplotlib.rc_context(STYLE):
        size = (max(3.6, 2.6 * len(tasks) + 0.6), 2.0 * len(degrees) + 0.9)
        figure = figure_module.Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(degrees), len(tasks), sharex="col", sharey="col", squeeze=False)
        for i, degree in enumerate(degrees):
            for j, task in enumerate(tasks):
                _draw_bounds(axes[i, j], [row for row in rows if (row.task, row.degree) == (task, degree)])
            axes[i, 0].set_ylabel(f"Cost − ε, degree {degree}")
        for j, task in enumerate(tasks):
            axes[0, j].set_title(display_name(task), pad=8)
            axes[-1, j].set_xlabel("Threshold ε")
        _add_legend(figure)
    return figure


_LINES = (
    ("prediction", "prediction interval", COLOURS[1], DASHED),
    ("printed", "printed bound", COLOURS[1], "solid"),
    ("sharp", "sharp form", COLOURS[2], "solid"),
)


def _draw_bounds(axis: Any, rows: Sequence[Row]) -> None:
    thresholds = np.array(sorted({row.threshold for row in rows}))

    def column(name: str) -> np.ndarray:
        """Means over seeds: [C]."""
        return np.array([np.mean([getattr(r, name) for r in rows if r.threshold == t]) for t in thresholds])

    for name, _, colour, style in _LINES:
        axis.plot(thresholds, column(name), color=colour, linewidth=1.4, linestyle=style)
    seen = np.array([any(row.seen for row in rows if row.threshold == t) for t in thresholds])
    axis.axhline(0.0, color=INK, linewidth=0.9)
    for row in rows:
        axis.plot(row.threshold, row.excess, "o", color=COLOURS[0], markersize=2, alpha=0.45, markeredgewidth=0)
    measured = column("excess")
    axis.plot(thresholds, measured, color=COLOURS[0], linewidth=1.5)
    for threshold in thresholds[seen]:
        axis.axvline(threshold, color=GUIDE, linewidth=0.7, linestyle=DOTTED, zorder=0.5)
    axis.set_xticks(thresholds[seen] if seen.any() else thresholds)
    axis.set_xticks(thresholds, minor=True)


def _add_legend(figure: Any) -> None:
    line = require("matplotlib.lines", "plot").Line2D
    handles = [
        line([], [], color=colour, linewidth=1.4, linestyle=style, label=name) for _, name, colour, style in _LINES
    ]
    handles.append(
        line([], [], color=COLOURS[0], linewidth=1.5, marker="o", markersize=2, label="measured, and by seed")
    )
    handles.append(line([], [], color=GUIDE, linewidth=0.7, linestyle=DOTTED, label="behaviour thresholds"))
    columns = max(2, min(len(handles), int(figure.get_figwidth() / 1.6)))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)


def rate_figure() -> Any:
    """sup √h over N for each degree, and what it tends to: (p + 1)/√N."""
    matplotlib, figure_module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    with matplotlib.rc_context(STYLE):
        figure = figure_module.Figure(figsize=(4.6, 3.2), layout="constrained")
        axis = figure.subplots()
        for degree, colour in zip(DEGREES, COLOURS, strict=False):
            counts = np.unique(np.geomspace(degree + 1, LARGE_COUNTS[-1], 60).astype(int))
            axis.loglog(counts, (degree + 1) / np.sqrt(counts), color=GUIDE, linewidth=0.8, linestyle=DOTTED)
            for spacing, style in zip(bounds.SPACINGS, ("solid", DASHED), strict=True):
                worst = [_worst(int(n), degree, spacing) for n in counts]
                axis.loglog(counts, worst, color=colour, linewidth=1.5, linestyle=style)
            end = (counts[-1], (degree + 1) / np.sqrt(counts[-1]))
            axis.annotate(f"p = {degree}", end, (4, 0), textcoords="offset points", color=colour, va="center")
        axis.set_xlabel("N, number of behaviour thresholds")
        axis.set_ylabel("sup √h: error, in units of its noise")
        axis.set_xticks(COUNTS + LARGE_COUNTS[1::2], [str(n) for n in COUNTS + LARGE_COUNTS[1::2]])
        axis.set_xticks([], minor=True)
        axis.set_yticks([0.05, 0.1, 0.2, 0.5, 1, 2], ["0.05", "0.1", "0.2", "0.5", "1", "2"])
        axis.set_yticks([], minor=True)
        line = require("matplotlib.lines", "plot").Line2D
        handles = [
            line([], [], color=INK, linewidth=1.5, label="with both ends"),
            line([], [], color=INK, linewidth=1.5, linestyle=DASHED, label="midpoints of N parts"),
            line([], [], color=GUIDE, linewidth=0.8, linestyle=DOTTED, label="(p + 1)/√N"),
        ]
        axis.legend(handles=handles, loc="upper right", frameon=False, fontsize=8)
    return figure
