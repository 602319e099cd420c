"""From published episodes to the results page."""

import json
from pathlib import Path

import numpy as np
import pytest

from ccpo.launch import preset_settings
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


def put(root: Path, algorithm: str, variant: str, seed: int, *, cost_share: float, part: str = "main") -> None:
    """Two episodes at each threshold: reward 500 + 2ε, cost a share of ε."""
    folder = root / part / algorithm / "BallCircle" / variant
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
    record |= {} if "history" in part else {"commit": "abcdef0123", "dirty": seed == 10}
    (folder / f"seed-{seed}.json").write_text(json.dumps(record | {"config": config}))


OLD = "CCPO open loop, tuned per task (history)"


@pytest.fixture
def pages(tmp_path):
    """The README and the results page, each with a part to fill, beside `results`."""
    readme, page = tmp_path / "README.md", tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    for path in (readme, page):
        path.write_text("before\n<!-- results:start -->\nstale\n<!-- results:end -->\nafter\n")
    return tmp_path / "results", readme, page


def algorithms(text: str) -> list[tuple[str, str]]:
    """Algorithm and grid of the rows of the first table."""
    table = text[text.index("**Summary over") : text.index("ours: seeds")]
    return [(line.split("|")[2].strip(), line.split("|")[3].strip()) for line in table.splitlines()[4:] if "|" in line]


def test_the_page_has_every_method_beside_the_paper_and_the_readme_ccpo_only(pages):
    root, readme, page = pages
    for seed in (7, 10):
        put(root, "ccpo", "closed", seed, cost_share=0.9)
    put(root, "ccpo", "closed-without-vve", 7, cost_share=1.1)
    put(root, "sac_lag", "tuned", 7, cost_share=1.2)
    results.write_tables(root, readme, page)

    text = page.read_text()
    assert text.startswith("before")
    assert text.rstrip().endswith("after")
    assert "stale" not in text
    for expected in ("## Ball-Circle", "710.9 ± 20.5", "**By group of thresholds**", "../results/main/BallCircle.png"):
        assert expected in text
    assert [row for row in algorithms(text) if row[1] != "7"] == [
        ("CCPO closed loop", "13"),
        ("CCPO", "paper"),
        ("CCPO closed loop w/o VVE", "13"),
        ("CCPO w/o VVE", "paper"),
        ("V-SAC-Lag", "13"),
        ("V-SAC-Lag", "paper"),
    ]
    each_seed = text[text.index("**Each seed**") :]
    rows = [
        [cell.strip() for cell in line.split("|")[2:-1]] for line in each_seed.splitlines() if "closed loop " in line
    ]
    assert rows[1][:7] == ["CCPO closed loop", "10", "580.0", "0.00", "0.90", "0.90", "0.10"]
    assert [row[-1] for row in rows[:2]] == ["abcdef0", "abcdef0+"]
    assert text.count("ccpo train --seed N") == 1
    assert "(history)" not in text
    assert "git checkout" not in text
    assert "V-SAC-Lag" not in readme.read_text()
    assert "580.0" in readme.read_text()
    for name in (
        "overview.png",
        "BallCircle.png",
        "BallCircle-learning.svg",
        "sac_lag-BallCircle-tuned.png",
        "ccpo-BallCircle-closed.md",
    ):
        assert (root / "main" / name).stat().st_size > 0
    results.write_tables(root, readme, page)
    assert page.read_text() == text


def test_with_nothing_published_the_parts_are_empty_tables(pages):
    root, readme, page = pages
    results.write_tables(root, readme, page)
    assert "Use" in readme.read_text()
    assert "stale" not in readme.read_text() + page.read_text()


def test_the_history_is_shown_as_such_until_something_takes_its_place(pages):
    root, readme, page = pages
    for algorithm, variant in (("ccpo", "tuned"), ("ccpo", "without-vve"), ("sac_lag", "tuned")):
        put(root, algorithm, variant, 7, cost_share=0.5, part="history/main")
    results.write_tables(root, readme, page)
    assert algorithms(readme.read_text()) == [(OLD, "13"), (OLD, "7"), ("CCPO", "paper")]
    assert f"commit {results.HISTORY_COMMIT} reproduces it" in readme.read_text()
    assert "(docs/history.md)" in readme.read_text()
    text = page.read_text()
    assert {name for name, grid in algorithms(text) if grid != "paper"} == {
        OLD,
        "CCPO open loop w/o VVE (history)",
        "V-SAC-Lag (history)",
    }
    assert "(history.md)" in text
    assert f"git checkout {results.HISTORY_COMMIT}" in text
    assert sorted(path.suffix for path in (root / "history" / "main").rglob("*.*")) == [".csv"] * 3 + [".json"] * 3

    put(root, "ccpo", "closed", 7, cost_share=0.9)
    results.write_tables(root, readme, page)
    shown = [row for row in algorithms(readme.read_text()) if row[1] != "7"]
    assert shown == [("CCPO closed loop", "13"), (OLD, "13"), ("CCPO", "paper")]
    put(root, "ccpo", "open", 7, cost_share=0.9)
    put(root, "sac_lag", "tuned", 7, cost_share=0.9)
    results.write_tables(root, readme, page)
    names = [name for name, grid in algorithms(page.read_text()) if grid == "13"]
    assert names == ["CCPO closed loop", "CCPO open loop", "CCPO open loop w/o VVE (history)", "V-SAC-Lag"]


def test_the_history_page_names_the_commit():
    page = Path(__file__).parents[2] / "results" / "history" / "README.md"
    assert f"`{results.HISTORY_COMMIT}`" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("algorithm", "preset", "loop", "folder"),
    [
        ("ccpo", "tuned", "closed", "closed"),
        ("ccpo", "tuned", "open", "open"),
        ("ccpo", "faithful", "open", "faithful"),
        ("ccpo", "without-vve", "closed", "closed-without-vve"),
        ("ccpo", "without-cvi", None, "without-cvi"),
        ("sac_lag", "tuned", "closed", "tuned"),
    ],
)
def test_variants(algorithm, preset, loop, folder):
    assert results.variant({"algorithm": algorithm, "preset": preset, "loop": loop}) == folder


def test_runs_that_make_one_file_say_all_of_their_origins():
    first = {"commit": "a", "dirty": False, "date": "2026-01-01", "processor": "p", "versions": {"numpy": "2"}}
    assert results._made([first]) == first
    assert results._made([first, first | {"commit": "b"}])["commit"] == "a, b"
    assert results._made([{"versions": {}}])["commit"] is None


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
    changes = "--set hidden=64,64 --set discount=0.95"
    assert results._command(other, preset, steps=1000, each=False) == usual.replace("--seed 3", f"--seed 3 {changes}")


def test_a_learning_curve_is_thinned_out_and_skips_what_is_not_known():
    some = [rows(float(i), 30.0, 100 * (i + 1)) for i in range(80)]
    some += [rows(np.nan, np.nan, 8_100)] * 2
    curve = results.learning_curve(some, [20.0, 40.0])
    assert len(curve["steps"]) <= results.CURVE_POINTS
    assert curve["reward"] == sorted(curve["reward"])
    assert curve["violation"] == pytest.approx([5.0] * len(curve["steps"]))  # mean of max(0, 30 − 20) and 0
    assert curve["use"] == pytest.approx([(30 / 20 + 30 / 40) / 2] * len(curve["steps"]))
    assert results.learning_curve([], [20.0]) == {"steps": [], "reward": [], "violation": [], "use": []}
