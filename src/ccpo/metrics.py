"""What a table of episodes says: reward, cost and violation over thresholds, how well the dial is followed, spreads.

A violation is taken by episode, max(0, cost − threshold), then averaged over episodes, then over thresholds.
Axes: S seeds, C conditions (thresholds).
"""

import csv
import importlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ccpo.errors import FormatError, MissingExtraError
from ccpo.late import above
from ccpo.policy_file import PathLike, write_atomically
from ccpo.printing import as_html, as_text

GRIDS: dict[str, tuple[float, ...]] = {
    "13": tuple(float(threshold) for threshold in range(10, 71, 5)),
    "7": tuple(float(threshold) for threshold in range(10, 71, 10)),
}
"""The paper's text names the first, its figures fit only the second: both are always reported."""

GROUPS = ("behaviour", "interpolated", "extrapolated")
"""Thresholds that were trained at, those between the lowest and the highest of these, those beyond them."""

DIAL = ("use", "worst", "tracking", "constant R", "constant CV")
"""How the dial is followed, and what the best constant setting of it would give; formulas: docs/metrics.md."""

BY_GROUP = tuple(f"{name} {group}" for group in GROUPS for name in ("R", "CV", "use"))
INVERSIONS = ("reward inversion", "cost inversion")
METRICS = ("R", "CV", "R-G", "CV-G", *DIAL, *BY_GROUP, *INVERSIONS, *(f"{name} error" for name in INVERSIONS))

_DTYPES = {
    "task": np.str_,
    "algorithm": np.str_,
    "seed": np.int64,
    "threshold": np.float64,
    "episode": np.int64,
    "reward": np.float64,
    "cost": np.float64,
    "length": np.int64,
}
COLUMNS = tuple(_DTYPES)


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """Finished evaluation episodes, one per row; columns are arrays of equal length."""

    task: np.ndarray
    algorithm: np.ndarray
    seed: np.ndarray
    threshold: np.ndarray
    episode: np.ndarray
    reward: np.ndarray
    cost: np.ndarray
    length: np.ndarray
    behaviour_thresholds: tuple[float, ...] = ()
    """What the agent was trained under, where that is known; no file of episodes holds it."""

    def __post_init__(self) -> None:
        for name, dtype in _DTYPES.items():
            given = np.asarray(getattr(self, name))
            try:
                column = given.astype(dtype)
            except (ValueError, TypeError, OverflowError) as error:
                raise FormatError(f"column '{name}' cannot be read as {dtype.__name__}: {error}") from None
            if dtype is np.int64 and given.dtype.kind == "f" and (given != column).any():
                raise FormatError(f"column '{name}' must hold whole numbers")
            if column.shape != (len(self.task),):
                raise FormatError(f"column '{name}' has shape {column.shape}, expected ({len(self.task)},)")
            if dtype is np.float64 and not np.isfinite(column).all():
                raise FormatError(f"column '{name}' holds NaN or infinity; evaluate those episodes again")
            object.__setattr__(self, name, column)
        if (self.threshold < 0).any() or (self.cost < 0).any():
            raise FormatError("thresholds and costs must be ≥ 0")
        keys = set(zip(*(getattr(self, name).tolist() for name in COLUMNS[:5]), strict=True))
        if len(keys) != len(self):
            raise FormatError(f"{len(self) - len(keys)} rows repeat an episode: {', '.join(COLUMNS[:5])} must differ")

    def __len__(self) -> int:
        return len(self.task)

    def __repr__(self) -> str:
        tasks, thresholds = ", ".join(dict.fromkeys(self.task.tolist())), len(np.unique(self.threshold))
        return f"<EpisodeTable: {len(self)} episodes at {thresholds} thresholds on {tasks or 'nothing'}>"

    def __str__(self) -> str:
        return as_text(self._shown())

    def _repr_html_(self) -> str:
        return as_html(self._shown())

    def _shown(self) -> Any:
        return above("report.tables").threshold_table(per_threshold(self, self.behaviour_thresholds))

    def to_pandas(self) -> Any:
        """A pandas DataFrame with the same columns."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise MissingExtraError("to_pandas() needs 'pandas'; install it with: pip install pandas") from None
        return pandas.DataFrame({name: getattr(self, name) for name in COLUMNS})

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> "EpisodeTable":
        """A table from mappings with exactly the columns as keys."""
        rows = list(rows)
        for row in rows:
            if set(row) != set(COLUMNS):
                raise FormatError(f"a row has the fields {sorted(row)}, expected {', '.join(COLUMNS)}")
        columns: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in COLUMNS}
        return cls(**columns)

    @classmethod
    def concatenate(cls, tables: Sequence["EpisodeTable"]) -> "EpisodeTable":
        """All rows; the behaviour thresholds are those that all tables agree on."""
        behaviour = {table.behaviour_thresholds for table in tables}
        columns: dict[str, Any] = {name: np.concatenate([getattr(table, name) for table in tables]) for name in COLUMNS}
        return cls(**columns, behaviour_thresholds=behaviour.pop() if len(behaviour) == 1 else ())

    @classmethod
    def read_csv(cls, path: PathLike) -> "EpisodeTable":
        """Read a file of `write_csv`; another header, a ragged row or a bad number is a `FormatError`."""
        try:
            rows = list(csv.reader(io.StringIO(Path(path).read_text("utf-8"), newline=""), strict=True))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise FormatError(f"cannot read episodes from {str(path)!r}: {error}") from None
        header = ",".join(COLUMNS)
        if not rows or rows[0] != list(COLUMNS):
            given = f"{','.join(rows[0]):.80}" if rows else "nothing"
            raise FormatError(f"{str(path)!r} starts with {given!r}, expected the columns {header}")
        for line, row in enumerate(rows[1:], start=2):
            if len(row) != len(COLUMNS):
                raise FormatError(f"{str(path)!r} line {line} has {len(row)} fields, expected {len(COLUMNS)}")
        columns = zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(COLUMNS)
        try:
            arrays: dict[str, Any] = {name: np.array(values) for name, values in zip(COLUMNS, columns, strict=True)}
            return cls(**arrays)
        except FormatError as error:
            raise FormatError(f"{str(path)!r}: {error}") from None

    def write_csv(self, path: PathLike) -> None:
        """Write all digits, atomically: what is read back is equal bit for bit."""
        write_atomically(path, self._csv())

    def to_csv(self, path: PathLike | None = None) -> str | None:
        """The text of a CSV file; with `path` it is written there instead, as pandas does."""
        return self._csv() if path is None else self.write_csv(path)

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(zip(*(getattr(self, name).tolist() for name in COLUMNS), strict=True))
        return text.getvalue()

    def select(self, mask: np.ndarray) -> "EpisodeTable":
        """The rows where the mask is true."""
        return replace(self, **{name: getattr(self, name)[mask] for name in COLUMNS})

    def groups(self) -> Iterator[tuple[str, str, "EpisodeTable"]]:
        """Task, algorithm and their rows, in the order of first appearance."""
        for task, algorithm in dict.fromkeys(zip(self.task.tolist(), self.algorithm.tolist(), strict=True)):
            yield task, algorithm, self.select((self.task == task) & (self.algorithm == algorithm))


@dataclass(frozen=True)
class Estimate:
    """A number over seeds: mean, standard deviation (ddof 1), interquartile mean and its bootstrap interval.

    What one seed cannot tell (std and interval) is NaN.
    """

    mean: float
    std: float
    iqm: float
    low: float
    high: float


UNKNOWN = Estimate(math.nan, math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class ThresholdRow:
    """All episodes of all seeds under one threshold; standard deviations over episodes (ddof 0)."""

    task: str
    algorithm: str
    threshold: float
    seen: bool
    seeds: int
    episodes: int
    reward_mean: float
    reward_std: float
    cost_mean: float
    cost_std: float
    violation_mean: float
    violation_std: float
    distance_mean: float = math.nan
    """Of |cost − threshold|; policy files from before it was measured do not hold it, nor the group."""
    group: str = ""
    """One of `GROUPS`."""

    @property
    def use(self) -> float:
        """cost / threshold; NaN at a threshold of 0."""
        return self.cost_mean / self.threshold if self.threshold else math.nan

    @property
    def tracking(self) -> float:
        """|cost − threshold| / threshold, mean over episodes; NaN at a threshold of 0."""
        return self.distance_mean / self.threshold if self.threshold else math.nan


@dataclass(frozen=True)
class Summary:
    """The metrics of one task and algorithm on one grid; see `METRICS`."""

    task: str
    algorithm: str
    grid: str
    thresholds: int
    seeds: int
    episodes: int
    metrics: dict[str, Estimate]

    def __getitem__(self, name: str) -> Estimate:
        """A metric; all NaN if the summary is from before it was measured."""
        return self.metrics.get(name, UNKNOWN)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON for a manifest; NaN becomes null."""
        plain = {name: getattr(self, name) for name in ("task", "algorithm", "grid", "thresholds", "seeds", "episodes")}
        plain["metrics"] = {
            name: {key: None if math.isnan(value) else value for key, value in vars(estimate).items()}
            for name, estimate in self.metrics.items()
        }
        return plain


def violation(cost: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """CV = max(0, Σ c − ε), by episode."""
    return np.maximum(0.0, cost - threshold)


def is_seen(thresholds: np.ndarray, behaviour_thresholds: Sequence[float]) -> np.ndarray:
    """Which thresholds [C] are behaviour thresholds."""
    behaviour = np.asarray(behaviour_thresholds, np.float64)
    return np.any(np.isclose(np.asarray(thresholds)[:, None], behaviour[None, :]), axis=1)


def threshold_groups(thresholds: np.ndarray, behaviour_thresholds: Sequence[float]) -> np.ndarray:
    """Which of `GROUPS` each threshold [C] belongs to; with no behaviour threshold, all lie beyond.

    >>> threshold_groups(np.array([10.0, 20.0, 30.0]), [20, 40]).tolist()
    ['extrapolated', 'behaviour', 'interpolated']
    """
    thresholds = np.asarray(thresholds, np.float64)
    low, high = min(behaviour_thresholds, default=math.inf), max(behaviour_thresholds, default=-math.inf)
    between = (thresholds > low) & (thresholds < high)
    behaviour, interpolated, extrapolated = GROUPS
    unseen = np.where(between, interpolated, extrapolated)
    return np.where(is_seen(thresholds, behaviour_thresholds), behaviour, unseen)


def per_threshold(table: EpisodeTable, behaviour_thresholds: Sequence[float]) -> list[ThresholdRow]:
    """Mean and spread of reward, cost and violation for each task, algorithm and threshold."""
    rows = []
    for task, algorithm, group in table.groups():
        thresholds = np.unique(group.threshold)
        kinds = threshold_groups(thresholds, behaviour_thresholds).tolist()
        for threshold, kind in zip(thresholds.tolist(), kinds, strict=True):
            part = group.select(group.threshold == threshold)
            quantities = {
                "reward": part.reward,
                "cost": part.cost,
                "violation": violation(part.cost, part.threshold),
            }
            means = {f"{name}_mean": float(values.mean()) for name, values in quantities.items()}
            stds = {f"{name}_std": float(values.std()) for name, values in quantities.items()}
            rows.append(
                ThresholdRow(
                    task=task,
                    algorithm=algorithm,
                    threshold=threshold,
                    seen=kind == GROUPS[0],
                    seeds=len(np.unique(part.seed)),
                    episodes=len(part),
                    distance_mean=float(np.abs(part.cost - threshold).mean()),
                    group=kind,
                    **means,
                    **stds,
                )
            )
    return rows


class Summaries(list[Summary]):
    """Summaries that show themselves as a table when they are printed."""

    def __str__(self) -> str:
        return as_text(self._shown())

    def _repr_html_(self) -> str:
        return as_html(self._shown())

    def _shown(self) -> Any:
        return above("report.tables").summary_table(self)


def summarise(table: EpisodeTable, behaviour_thresholds: Sequence[float] | None = None) -> Summaries:
    """`METRICS` for each task and algorithm, on each grid that fits; the table knows which thresholds were trained at.

    Give the behaviour thresholds of a table that was read from a file.
    """
    if behaviour_thresholds is None:
        behaviour_thresholds = table.behaviour_thresholds
    summaries = Summaries()
    for task, algorithm, group in table.groups():
        seeds, thresholds = np.unique(group.seed), np.unique(group.threshold)
        kinds = threshold_groups(thresholds, behaviour_thresholds)
        for grid, chosen in grids(thresholds).items():
            inside = np.isin(thresholds, chosen)
            by_seed = {
                **_averages(group, seeds, thresholds, inside=inside, kinds=kinds),
                **_inversions(group, seeds, thresholds, inside=inside),
            }
            metrics = {name: estimate(by_seed[name]) for name in METRICS}
            episodes = int(np.isin(group.threshold, chosen).sum())
            summaries.append(Summary(task, algorithm, grid, int(inside.sum()), len(seeds), episodes, metrics))
    return summaries


def _averages(
    table: EpisodeTable, seeds: np.ndarray, thresholds: np.ndarray, *, inside: np.ndarray, kinds: np.ndarray
) -> dict[str, np.ndarray]:
    """Means over the thresholds inside the grid, over its groups, and over what is unseen [S]."""

    def means(values: np.ndarray) -> np.ndarray:
        return _seed_means(table, values, seeds, thresholds)[0]

    reward, cv = means(table.reward), means(violation(table.cost, table.threshold))
    positive, unseen = inside & (thresholds > 0), inside & (kinds != GROUPS[0])  # a threshold of 0 has no ratio
    divisor = np.where(thresholds > 0, thresholds, math.nan)
    use, tracking = means(table.cost) / divisor, means(np.abs(table.cost - table.threshold)) / divisor
    constant_cv = np.mean([means(violation(table.cost, threshold)) for threshold in thresholds[inside]], axis=0)
    own_cv = _over_thresholds(cv[:, inside])
    best = best_constant(reward, constant_cv, own_cv)
    found = {
        "R": _over_thresholds(reward[:, inside]),
        "CV": own_cv,
        "R-G": _over_thresholds(reward[:, unseen]),
        "CV-G": _over_thresholds(cv[:, unseen]),
        "use": _over_thresholds(use[:, positive]),
        "worst": _over_thresholds(use[:, positive], np.max),
        "tracking": _over_thresholds(tracking[:, positive]),
        "constant R": np.take_along_axis(reward, best, axis=1)[:, 0],
        "constant CV": np.take_along_axis(constant_cv, best, axis=1)[:, 0],
    }
    for kind in GROUPS:
        for name, values, chosen in (("R", reward, inside), ("CV", cv, inside), ("use", use, positive)):
            found[f"{name} {kind}"] = _over_thresholds(values[:, chosen & (kinds == kind)])
    return found


def best_constant(reward: np.ndarray, constant_cv: np.ndarray, own_cv: np.ndarray) -> np.ndarray:
    """The setting [S, 1] that, used for every threshold, earns most without violating more than the dial does.

    From the mean reward at each setting [S, C], its violation over all thresholds [S, C] and that of the dial [S].
    If every setting violates more, the one that violates least.
    """
    allowed = constant_cv <= own_cv[:, None]
    least = constant_cv == constant_cv.min(axis=1, keepdims=True)
    eligible = np.where(allowed.any(axis=1, keepdims=True), allowed, least)
    return np.where(eligible, reward, -math.inf).argmax(axis=1)[:, None]


def _inversions(
    table: EpisodeTable, seeds: np.ndarray, thresholds: np.ndarray, *, inside: np.ndarray
) -> dict[str, np.ndarray]:
    """The largest fall of reward and of cost while the threshold rises, and its standard error [S]."""
    found = {}
    for name, values in zip(INVERSIONS, (table.reward, table.cost), strict=True):
        means, errors = _seed_means(table, values, seeds, thresholds)
        falls = [largest_inversion(*row) for row in zip(means[:, inside], errors[:, inside], strict=True)]
        found[name], found[f"{name} error"] = np.transpose(falls)
    return found


def grids(thresholds: np.ndarray) -> dict[str, tuple[float, ...]]:
    """The named grids that lie within the thresholds; "all" beside them unless it is one of them."""
    present = tuple(sorted({float(threshold) for threshold in thresholds}))
    fitting = {name: grid for name, grid in GRIDS.items() if set(grid) <= set(present)}
    return fitting if present in fitting.values() else {"all": present, **fitting}


def largest_inversion(values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """max over i < j of y_i − y_j, at least 0: how far a curve [C] that should rise falls behind itself.

    Beside it, the standard error of that difference, from those of the values: [C].
    """
    falls = np.maximum.accumulate(values) - values
    low = int(np.argmax(falls))
    high = int(np.argmax(values[: low + 1]))
    return float(falls[low]), float(np.hypot(errors[high], errors[low])) if high < low else 0.0


def iqm(values: np.ndarray) -> np.ndarray:
    """The interquartile mean over the last axis: the mean without the lowest and the highest quarter."""
    ordered = np.sort(values, axis=-1)
    count = ordered.shape[-1]
    cut = count // 4
    return ordered[..., cut : count - cut].mean(axis=-1)


def bootstrap_interval(
    strata: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], np.ndarray] = iqm,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile interval of a statistic of all values, resampled with replacement within each stratum.

    Give one array of independent values (seeds) for each stratum (task), and a statistic that reduces the last
    axis. A stratum of one value has no spread to resample: the interval is (NaN, NaN).
    """
    arrays = [np.asarray(stratum, np.float64) for stratum in strata]
    if any(array.size < 2 for array in arrays):
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    samples = [array[rng.integers(array.size, size=(resamples, array.size))] for array in arrays]
    low, high = np.quantile(statistic(np.concatenate(samples, axis=1)), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def estimate(values: np.ndarray) -> Estimate:
    """What the seeds' values [S] say of the number behind them."""
    if np.isnan(values).any():
        return UNKNOWN
    std = float(values.std(ddof=1)) if values.size > 1 else math.nan
    return Estimate(float(values.mean()), std, float(iqm(values)), *bootstrap_interval([values]))


def _seed_means(
    table: EpisodeTable, values: np.ndarray, seeds: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Means over episodes and their standard errors [S, C], NaN for that of a single episode.

    A seed that lacks a threshold would tilt every average, and is refused.
    """
    row, column = np.searchsorted(seeds, table.seed), np.searchsorted(thresholds, table.threshold)
    cell, shape = row * len(thresholds) + column, (len(seeds), len(thresholds))
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    if (counts == 0).any():
        missing_seed, missing_threshold = np.argwhere(counts == 0)[0]
        where = f"seed {seeds[missing_seed]} has no episode at threshold {thresholds[missing_threshold]:g}"
        raise FormatError(f"{table.task[0]} {table.algorithm[0]}: {where}; evaluate every seed on every threshold")
    means = np.bincount(cell, values, minlength=counts.size).reshape(shape) / counts
    squares = np.bincount(cell, (values - means[row, column]) ** 2, minlength=counts.size).reshape(shape)
    return means, np.sqrt(squares / np.where(counts > 1, counts * (counts - 1.0), math.nan))


def _over_thresholds(values: np.ndarray, reduce: Callable[..., np.ndarray] = np.mean) -> np.ndarray:
    """The mean, or another number, over thresholds [S]; NaN if there are none."""
    return reduce(values, axis=1) if values.shape[1] else np.full(len(values), math.nan)
