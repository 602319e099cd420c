"""What a probe found, for the terminal and as a picture."""

from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from ccpo.display import as_time
from ccpo.errors import require
from ccpo.probing.search import KINDS, TENTHS
from ccpo.report.figures import COLOURS, DOTTED, GUIDE, STYLE
from ccpo.report.tables import facts_table

BARS = "▁▂▃▄▅▆▇█"
INSIDE = "#E9F1F7"


def probe_parts(found: Any) -> list[Any]:
    """Tables and sentences of a `Probe`."""
    spec = found.spec
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"what {spec.task} can cost and earn", title_justify="left"
    )
    for name in ("runs", "cost", "reward", "length", "costs fall"):
        table.add_column(name, justify="left" if name in ("runs", "costs fall") else "right")
    for kind in KINDS:
        tries = found.of(kind)
        cost, reward, length = (
            np.array([getattr(each, name) for each in tries]) for name in ("cost", "reward", "length")
        )
        table.add_row(
            kind,
            f"{cost.mean():.4g} ± {cost.std():.2g}",
            f"{reward.mean():.4g} ± {reward.std():.2g}",
            f"{length.mean():.0f}",
            sparkline(np.mean([each.by_tenth for each in tries], axis=0)),
        )
    early = sum(each.ended_early for each in found.tries)
    facts = {
        "observation": f"{spec.observation_size} numbers, up to {max(t.largest_observation for t in found.tries):.3g}",
        "action": f"{spec.action_size} numbers",
        "episode": f"{spec.episode_length} steps; {early} of {len(found.tries)} ended early",
        "costliest step": f"{found.largest_cost:.4g}",
        "speed": f"{found.speed:,.0f} steps/s of the environment alone"
        + (f", {found.pace.rate:,.0f} when it trains" if found.pace else ""),
    }
    parts: list[Any] = [table, facts_table("", facts)]
    if found.settings:
        parts += ["", facts_table("recommended", settings_facts(found))]
    parts += [Text("! ", "bold yellow") + Text(warning) for warning in found.warnings]
    return parts


def settings_facts(found: Any) -> dict[str, str]:
    settings, seconds = found.settings, found.training_seconds
    low, high = settings["threshold_range"]
    took = "" if seconds is None else f", about {as_time(seconds)} on this machine"
    return {
        "behaviour_thresholds": ", ".join(f"{t:g}" for t in settings["behaviour_thresholds"]),
        "threshold_range": f"{low:g} to {high:g}",
        "steps": f"{settings['steps']:,}{took}",
    }


def sparkline(values: np.ndarray) -> str:
    """Bars of a height between nothing and the largest value.

    >>> sparkline(np.array([0.0, 1.0, 2.0]))
    '▁▅█'
    """
    top = float(values.max())
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(int(value / top * len(BARS)), len(BARS) - 1)] for value in values)


def probe_figure(found: Any) -> Any:
    """Left: every episode by cost and reward, with the recommended thresholds. Right: when costs fall."""
    matplotlib, module = require("matplotlib", "plot"), require("matplotlib.figure", "plot")
    with matplotlib.rc_context(STYLE):
        figure = module.Figure(figsize=(7.2, 3.2), layout="constrained")
        space, times = figure.subplots(1, 2)
        if found.settings:
            low, high = found.settings["threshold_range"]
            space.axvspan(low, high, color=INSIDE, zorder=0, label="recommended range")
            for threshold in found.settings["behaviour_thresholds"]:
                space.axvline(threshold, color=GUIDE, linewidth=0.9, linestyle=DOTTED, zorder=1)
        for kind, colour in zip(KINDS, COLOURS, strict=False):
            tries = [each for each in found.tries if each.kind == kind]
            costs, rewards = [each.cost for each in tries], [each.reward for each in tries]
            space.plot(costs, rewards, "o", color=colour, markersize=3.5, alpha=0.7, markeredgewidth=0, label=kind)
            tenths = np.mean([each.by_tenth for each in found.of(kind)], axis=0)
            places = (np.arange(TENTHS) + 0.5) / TENTHS
            times.plot(places, tenths, "o-", color=colour, linewidth=1.4, markersize=3)
        space.set_xlabel("Cost of an episode")
        space.set_ylabel("Reward of an episode")
        times.set_xlabel("Share of the episode's time")
        times.set_ylabel("Cost in a tenth of it")
        times.set_ylim(bottom=0)
        times.set_xlim(0, 1)
        figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure
