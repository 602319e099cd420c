"""Pictures of a policy at work: the same start under several thresholds, side by side, cost in colour.

From above for tasks with a space; for robots seen from the side their speed over time, with the robot as it is; for the
others the actions and the observation over time.
"""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccpo.deploy.watching import Actor, LiveEpisode, scene_of
from ccpo.envs.tasks import Scene
from ccpo.errors import ConfigError, MissingExtraError, ThresholdError, ThresholdWarning, require
from ccpo.policy_file import write_atomically
from ccpo.report.figures import DASHED, FORBIDDEN, GUIDE, INK, STYLE, save_figure
from ccpo.report.paper import display_name

MAX_THRESHOLDS = 12
COST_COLOURS = ("#0072B2", "#E69F00", "#D55E00")
FRAMES_PER_SECOND, MAX_FRAMES, HOLD_SECONDS = 20, 100, 2.0

# Inches; a fixed layout keeps the frames of an animation still, and is drawn several times faster.
LEFT, RIGHT, TOP, BOTTOM, GAP = 0.65, 0.2, 0.5, 0.45, 0.3
HEADER, METER = 0.42, 0.55
BODY_ROOM = 0.4
"""The share of a panel that a robot has above its speeds."""


class Recording(NamedTuple):
    """An episode under one threshold. Arrays over its T steps; `places` has one more, the start."""

    threshold: float
    places: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray
    bodies: list[list[list[float]]]
    """From the side, as many as places: each moment's rods."""


def record(actor: Actor, threshold: float, seed: int) -> Recording:
    """Run one episode and keep what is drawn."""
    episode = LiveEpisode(actor, seed)
    places, bodies, moments = [episode.place], [episode.bodies], []
    try:
        while not episode.ended:
            moments.append(episode.step(threshold))
            bodies.append(episode.bodies)
    finally:
        episode.close()
    places += [moment.place for moment in moments]
    actions, rewards, costs = (np.array([getattr(m, name) for m in moments]) for name in ("action", "reward", "cost"))
    return Recording(threshold, np.array(places), actions, rewards, costs, bodies)


def record_all(actor: Actor, thresholds: Sequence[float], seed: int = 0) -> list[Recording]:
    """One episode for each threshold, all from the same start."""
    if not 0 < len(thresholds) <= MAX_THRESHOLDS:
        raise ConfigError(f"{len(thresholds)} thresholds were given; a picture holds 1 to {MAX_THRESHOLDS}")
    if not all(math.isfinite(t) and t >= 0 for t in thresholds):
        raise ThresholdError(f"thresholds={list(thresholds)} must be finite numbers ≥ 0")
    if seed < 0:
        raise ConfigError(f"seed={seed} must be a whole number ≥ 0")
    low, high = actor.threshold_range
    outside = ", ".join(f"{t:g}" for t in thresholds if not low <= t <= high)
    if outside:
        message = f"outside the trained range {low:g} to {high:g}: {outside}; the policy may not keep these"
        warnings.warn(message, ThresholdWarning, stacklevel=2)
    return [record(actor, float(threshold), seed) for threshold in thresholds]


class Picture:
    """The figure of some recordings, one panel each; `show(step)` draws them up to a step."""

    def __init__(self, actor: Actor, recordings: Sequence[Recording]) -> None:
        self.scene, self.recordings = scene_of(actor.factory), recordings
        self.length = max(len(recording.costs) for recording in recordings)
        self.cost_max = max(float(recording.costs.max()) for recording in recordings) or 1.0
        with require("matplotlib", "plot").rc_context(STYLE):
            self.figure, cells = self._lay_out()
            self._panels = [self._make_panel(*cell, r) for cell, r in zip(cells, recordings, strict=True)]
            self._add_heading(actor)
        self.show(self.length)

    def show(self, step: int) -> None:
        """Draw every panel up to this step."""
        for panel in self._panels:
            panel.show(step)

    def _view(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The limits of a panel: the scene's bounds, wider if a path leaves them; else steps × speeds or values."""
        if self.scene.kind == "side":
            speeds = np.concatenate([recording.places[:, 1] for recording in self.recordings])
            limit = self.scene.speed_limit or 0.0
            low, high = min(0.0, float(speeds.min())), max(2.0 * limit, float(speeds.max()))
            return (0.0, self.length), (low, low + (high - low) / (1.0 - BODY_ROOM))
        if self.scene.bounds is None:
            values = np.concatenate([v.ravel() for r in self.recordings for v in (r.actions, r.places)])
            return (0.0, self.length), (min(-1.05, float(values.min())), max(1.05, float(values.max())))
        places = np.concatenate([recording.places for recording in self.recordings])
        (x_low, x_high), (y_low, y_high) = self.scene.bounds
        (left, bottom), (right, top) = (places.min(0) - 0.3).tolist(), (places.max(0) + 0.3).tolist()
        return (min(x_low, left), max(x_high, right)), (min(y_low, bottom), max(y_high, top))

    def _lay_out(self) -> tuple[Any, list[tuple[Any, Any]]]:
        """A grid of cells: a panel with the room for its heading above, the cost spent below."""
        (x_low, x_high), (y_low, y_high) = self._view()
        aspect = (y_high - y_low) / (x_high - x_low) if self.scene.kind == "above" else 0.75
        width = 2.4 if aspect > 0.7 else 3.4
        height = min(max(aspect * width, 0.8), 3.0)
        count = len(self.recordings)
        columns = min(count, 4 if width < 3 else 3)
        rows = math.ceil(count / columns)
        cell_height = HEADER + height + 0.12 + METER + BOTTOM
        size = (LEFT + columns * (width + GAP) - GAP + RIGHT, TOP + rows * cell_height)
        figure = require("matplotlib.figure", "plot").Figure(figsize=size)

        def add_axes(column: int, top: float, tall: float) -> Any:
            left = LEFT + column * (width + GAP)
            return figure.add_axes((left / size[0], 1 - (top + tall) / size[1], width / size[0], tall / size[1]))

        cells = []
        for index in range(count):
            row, column = divmod(index, columns)
            top = TOP + row * cell_height + HEADER
            panel, meter = add_axes(column, top, height), add_axes(column, top + height + 0.12, METER)
            for axes in (panel, meter):
                axes.tick_params(labelleft=column == 0)
            if column == 0:
                meter.set_ylabel("cost")
                panel.set_ylabel({"above": "", "side": "speed in m/s", "timeline": "action"}[self.scene.kind])
            cells.append((panel, meter))
        return figure, cells

    def _make_panel(self, panel: Any, meter: Any, recording: Recording) -> "_Panel":
        top = 1.15 * max(max(r.threshold, float(r.costs.sum())) for r in self.recordings)
        meter.set(xlim=(0, self.length), ylim=(0, top), xlabel="step")
        meter.axhspan(recording.threshold, top, color=FORBIDDEN, linewidth=0, zorder=0)
        meter.axhline(recording.threshold, color=INK, linewidth=0.9, linestyle=DASHED)
        x_limits, y_limits = self._view()
        panel.set(xlim=x_limits, ylim=y_limits)
        if self.scene.kind == "above":
            _draw_ground(panel, self.scene)
        else:
            panel.tick_params(labelbottom=False)
        if self.scene.kind == "side":
            _draw_speed_limit(panel, self.scene)
        return _Panel(panel, meter, recording, self.scene, cost_max=self.cost_max)

    def _add_heading(self, actor: Actor) -> None:
        line = require("matplotlib.lines", "plot").Line2D
        width, height = self.figure.get_size_inches()
        text = self.figure.text(LEFT / width, 1 - 0.12 / height, display_name(actor.task), va="top", fontsize=11)
        text.set_fontweight("bold")
        names = ("no cost", "cost") if self.cost_max == 1.0 else ("cost 0", f"cost {self.cost_max:.2g} per step")
        ends = zip((COST_COLOURS[0], COST_COLOURS[-1]), names, strict=True)
        handles = [line([], [], color=colour, linewidth=2.2, label=name) for colour, name in ends]
        if self.scene.kind == "timeline":
            handles.append(line([], [], color=GUIDE, linewidth=0.9, alpha=0.5, label="observation"))
        handles.append(line([], [], color=INK, linewidth=0.9, linestyle=DASHED, label="threshold"))
        self.figure.legend(
            handles=handles,
            loc="upper right",
            bbox_to_anchor=(1 - RIGHT / width, 1 - 0.06 / height),
            ncols=len(handles),
            frameon=False,
            borderaxespad=0,
            columnspacing=1.2,
            handlelength=1.4,
        )


class _Panel:
    """The moving parts of one panel: coloured lines, their heads, the robot, the cost spent, the caption."""

    def __init__(self, axes: Any, meter: Any, recording: Recording, scene: Scene, *, cost_max: float) -> None:
        self.recording = recording
        steps = np.arange(len(recording.costs) + 1)
        self._background, self._robot = [], None
        if scene.kind == "above":
            self._paths = [recording.places]
            axes.plot(*recording.places[0], "o", color="white", markeredgecolor=INK, markersize=4.5, zorder=4)
        elif scene.kind == "side":
            self._paths = [np.column_stack([steps, recording.places[:, 1]])]
            self._robot = _Robot(axes, recording.bodies, scene.bounds)
        else:
            held = np.concatenate([recording.actions[:1], recording.actions])
            self._paths = [np.column_stack([steps, action]) for action in held.T]
            self._background = [np.column_stack([steps, value]) for value in recording.places.T]
        colours, collections = require("matplotlib.colors", "plot"), require("matplotlib.collections", "plot")
        colour_map = colours.LinearSegmentedColormap.from_list("cost", COST_COLOURS)
        self._lines = [
            collections.LineCollection(
                [],
                cmap=colour_map,
                norm=colours.Normalize(0.0, cost_max),
                linewidth=1.2 if scene.kind == "side" else 1.8,
                capstyle="round",
                zorder=3,
            )
            for _ in self._paths
        ]
        for line in self._lines:
            axes.add_collection(line, autolim=False)
        self._faint = [axes.plot([], [], color=GUIDE, linewidth=0.7, alpha=0.5)[0] for _ in self._background]
        self._heads = axes.plot([], [], "o", color=INK, markersize=5, zorder=5, clip_on=False)[0]
        self._spent = meter.plot([], [], color=COST_COLOURS[-1], linewidth=1.5, clip_on=False)[0]
        title = f"threshold {recording.threshold:g}"
        axes.text(0, 1, title, transform=_above(axes, 16), va="bottom", fontsize=10, fontweight="bold")
        self._caption = axes.text(0, 1, "", transform=_above(axes, 5), va="bottom", fontsize=8)

    def show(self, step: int) -> None:
        step = min(step, len(self.recording.costs))
        for line, path in zip(self._lines, self._paths, strict=True):
            line.set_segments(np.stack([path[:step], path[1 : step + 1]], axis=1))
            line.set_array(self.recording.costs[:step])
        for line, path in zip(self._faint, self._background, strict=True):
            line.set_data(*path[: step + 1].T)
        self._heads.set_data(*np.array([path[step] for path in self._paths]).T)
        if self._robot is not None:
            self._robot.show(step)
        spent = np.concatenate([[0.0], np.cumsum(self.recording.costs[:step])])
        self._spent.set_data(np.arange(step + 1), spent)
        self._caption.set_text(f"cost {spent[-1]:.3g}, reward {self.recording.rewards[:step].sum():.3g}")


class _Robot:
    """The bodies of a moment, in the room above the speeds: it stays in the middle, and goes up or down if it must."""

    def __init__(self, axes: Any, bodies: list[list[list[float]]], bounds: Any) -> None:
        self._bodies, (x_limits, self._heights) = bodies, bounds
        low, high = self._heights
        room = axes.inset_axes((0.0, 1.0 - BODY_ROOM, 1.0, BODY_ROOM))
        room.set(xlim=x_limits, ylim=self._heights, aspect="equal", xticks=[], yticks=[], facecolor="none")
        room.spines[:].set_visible(False)
        inches = axes.figure.get_size_inches()[1] * axes.get_position().height * BODY_ROOM
        widths = [max(1.0, 2 * radius * 72 * inches / (high - low)) for *_, radius in bodies[0]]
        self._rods = require("matplotlib.collections", "plot").LineCollection(
            [], linewidths=widths, color=INK, capstyle="round", zorder=2, snap=False
        )
        room.add_collection(self._rods, autolim=False)
        self._ground = room.axhline(0.0, color=GUIDE, linewidth=0.6, zorder=0)

    def show(self, step: int) -> None:
        rods = np.array(self._bodies[step])[:, :4].reshape(-1, 2, 2)
        x, z = rods[0, 0]
        low, high = self._heights
        edge = 0.2 * (high - low)
        lift = max(0.0, z - high + edge) + min(0.0, z - low - edge)
        # A ball is a rod without length, and a line without length is not drawn.
        self._rods.set_segments(rods - (x, lift) + np.array([[0.0, 0.0], [1e-3, 0.0]]))
        self._ground.set_ydata([-lift, -lift])


def _above(axes: Any, points: float) -> Any:
    """Coordinates of the axes, moved up by some points."""
    transforms = require("matplotlib.transforms", "plot")
    return axes.transAxes + transforms.ScaledTranslation(0, points / 72, axes.figure.dpi_scale_trans)


def _draw_ground(axes: Any, scene: Scene) -> None:
    """The task's boundaries, and beyond them what costs."""
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if scene.circle_radius is not None:
        circle = require("matplotlib.patches", "plot").Circle((0, 0), scene.circle_radius)
        circle.set(fill=False, edgecolor=GUIDE, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.add_patch(circle)
    for limit, span, edge, (low, high) in (
        (scene.x_limit, axes.axvspan, axes.axvline, axes.get_xlim()),
        (scene.y_limit, axes.axhspan, axes.axhline, axes.get_ylim()),
    ):
        if limit is not None:
            for inner, outer in ((-limit, low), (limit, high)):
                span(inner, outer, color=FORBIDDEN, linewidth=0, zorder=0)
                edge(inner, color=GUIDE, linewidth=0.8, zorder=1)


def draw(
    actor: Actor,
    thresholds: Sequence[float],
    folder: Path,
    *,
    seed: int = 0,
    animate: str = "gif",
    tell: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Record, and write `paths.*` into the folder: PNG, SVG and, unless `animate` is "none", an animation."""
    check_animation(animate)
    recordings = record_all(actor, thresholds, seed)
    for recording in recordings:
        cost, reward = recording.costs.sum(), recording.rewards.sum()
        tell(f"threshold {recording.threshold:g}: cost {cost:.4g}, reward {reward:.4g}")
    picture, stem = Picture(actor, recordings), folder / "paths"
    paths = save_figure(picture.figure, stem)
    if animate != "none":
        paths.append(stem.with_suffix(f".{animate}"))
        save_animation(picture, paths[-1])
    return paths


def _draw_speed_limit(axes: Any, scene: Scene) -> None:
    """What costs: all speeds above the limit."""
    low, high = axes.get_ylim()
    top = high - BODY_ROOM * (high - low)
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= top])
    if scene.speed_limit is not None:
        axes.axhspan(scene.speed_limit, top, color=FORBIDDEN, linewidth=0, zorder=0)
        axes.axhline(scene.speed_limit, color=GUIDE, linewidth=0.8, zorder=1)


def save_animation(picture: Picture, path: Path) -> None:
    """A GIF, or an MP4 if the path ends so, that grows the paths and holds the end."""
    stride = math.ceil(picture.length / MAX_FRAMES)
    steps = [*range(1, picture.length, stride), picture.length]
    if path.suffix == ".mp4":
        _write_mp4(picture, steps, path)
    else:
        write_atomically(path, _gif(picture, steps))


def check_animation(kind: str) -> None:
    """Refuse early what cannot be written at the end."""
    if kind == "mp4" and not require("matplotlib.animation", "plot").FFMpegWriter.isAvailable():
        raise MissingExtraError(
            "an MP4 needs the program 'ffmpeg', which is not on the PATH; install it or use --animate gif"
        )


def _write_mp4(picture: Picture, steps: Sequence[int], path: Path) -> None:
    writer = require("matplotlib.animation", "plot").FFMpegWriter(fps=FRAMES_PER_SECOND)
    with writer.saving(picture.figure, str(path), dpi=120):
        for step in [*steps, *[steps[-1]] * int(HOLD_SECONDS * FRAMES_PER_SECOND)]:
            picture.show(step)
            writer.grab_frame()


def _gif(picture: Picture, steps: Sequence[int]) -> bytes:
    """One palette for all frames, so that pixels that do not change cost nothing."""
    images = require("PIL.Image", "plot")
    canvas = require("matplotlib.backends.backend_agg", "plot").FigureCanvasAgg(picture.figure)

    def draw(step: int) -> Any:
        picture.show(step)
        canvas.draw()
        return images.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])

    # The finished picture has every colour.
    palette = draw(picture.length).quantize(64, dither=images.Dither.NONE)
    first, *rest = [draw(step).quantize(palette=palette, dither=images.Dither.NONE) for step in steps]
    durations = [1000 // FRAMES_PER_SECOND] * len(rest) + [int(1000 * HOLD_SECONDS)]
    data = io.BytesIO()
    first.save(data, "GIF", save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)
    return data.getvalue()
