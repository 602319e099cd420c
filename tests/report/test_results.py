"""From published episodes to the results page."""

import json
from pathlib import Path

import numpy as np
import pytest

from ccpo.agent import preset_settings
from ccpo.metrics import EpisodeTable
from ccpo.report import results

THRESHOLDS = np.arange(10.0, 71.0, 5.0)


def rows(reward: float, cost: float, steps: int) -> dict[str, float]:
    return {
        "steps": steps,
        "rollout/ep_rew_mean": reward,
        "rollout/threshold_20/ep_cost_mean": cost,
        "rollout/threshold_40/ep_cost_mean": cost,
    }


def put(root: Path, algorithm: str, preset: str, seed: int, *, cost_share: float) -> None:
    """Two episodes at each threshold: reward 500 + 2ε, cost a share of ε."""
    folder = root / "main" / algorithm / "BallCircle" / preset
    folder.mkdir(parents=True, exist_ok=True)
    threshold = np.repeat(THRESHOLDS, 2)
    episodes = EpisodeTable(
        task=np.full(26, "BallCircle"),
        algorithm=np.full(26, algorithm),
        seed=np.full(26, seed),
        threshold=threshold,
        episode=np.tile([0, 1], 13),
        reward=500.0 + 2.0 * threshold,
        cost=cost_share * threshold,
        length=np.full(26, 200),
    )
    episodes.write_csv(folder / f"seed-{seed}.csv")
    curve = {"steps": [100, 200], "reward": [1.0, 2.0], "violation": [3.0, 0.0]}
    config = {"seed": seed, "behaviour_thresholds": [20.0, 40.0, 60.0]}
    record = {"command": f"ccpo train --seed {seed}", "steps": 200, "wall_seconds": 60.0, "curve": curve}
    (folder / f"seed-{seed}.json").write_text(json.dumps(record | {"config": config}))


def test_the_page_has_every_method_beside_the_paper_and_the_readme_ccpo_only(tmp_path):
    root, readme, page = tmp_path / "results", tmp_path / "README.md", tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    for path in (readme, page):
        path.write_text("before\n<!-- results:start -->\nstale\n<!-- results:end -->\nafter\n")
    for seed in (7, 10):
        put(root, "ccpo", "tuned", seed, cost_share=0.9)
    put(root, "ccpo", "without-vve", 7, cost_share=1.1)
    put(root, "sac_lag", "tuned", 7, cost_share=1.2)
    results.write_tables(root, readme, page)

    text = page.read_text()
    assert text.startswith("before")
    assert text.rstrip().endswith("after")
    assert "stale" not in text
    for expected in ("## Ball-Circle", "710.9 ± 20.5", "CCPO w/o VVE", "V-SAC-Lag", "../results/main/BallCircle.png"):
        assert expected in text
    seeds = [line.split("|")[2:6] for line in text.splitlines() if line.count("|") == 8]
    assert [[cell.strip() for cell in row] for row in seeds if row[1].strip() == "10"] == [
        ["CCPO", "10", "580.0", "0.00"]
    ]
    assert text.count("ccpo train --seed N") == 1
    assert "V-SAC-Lag" not in readme.read_text()
    assert "580.0" in readme.read_text()
    for name in (
        "BallCircle.png",
        "BallCircle-learning.svg",
        "sac_lag-BallCircle-tuned.png",
        "ccpo-BallCircle-tuned.md",
    ):
        assert (root / "main" / name).stat().st_size > 0
    results.write_tables(root, readme, page)
    assert page.read_text() == text


def test_a_command_names_what_differs_from_the_preset():
    config = preset_settings("BallCircle", "ccpo", "tuned") | {
        "task": "BallCircle",
        "algorithm": "ccpo",
        "preset": "tuned",
        "seed": 3,
        "steps": 1000,
    }
    usual = "ccpo train --task BallCircle --preset tuned --seed 3 --algorithm ccpo --steps 1000 --evaluate"
    preset = preset_settings("BallCircle", "ccpo", "tuned")
    assert results._command(config, preset, steps=1000, each=False) == usual
    other = config | {"hidden": [64, 64], "discount": 0.95, "shared_body": True, "cost_discount": None}
    changes = "--set hidden=64,64 --set shared_body=true --set discount=0.95"
    assert results._command(other, preset, steps=1000, each=False) == usual.replace("--seed 3", f"--seed 3 {changes}")


def test_a_learning_curve_is_thinned_out_and_skips_what_is_not_known():
    some = [rows(float(i), 30.0, 100 * (i + 1)) for i in range(80)]
    some += [rows(np.nan, np.nan, 8_100)] * 2
    curve = results.learning_curve(some, [20.0, 40.0])
    assert len(curve["steps"]) <= results.CURVE_POINTS
    assert curve["reward"] == sorted(curve["reward"])
    assert curve["violation"] == pytest.approx([5.0] * len(curve["steps"]))  # mean of max(0, 30 − 20) and 0
    assert results.learning_curve([], [20.0]) == {"steps": [], "reward": [], "violation": []}
