"""The analyses on run folders made by hand: untrained networks, a made-up replay, episodes with known numbers."""

import csv
import re
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from well_formed import check_latex

from ccpo import agent, config, replay
from ccpo.algorithms import find_algorithm
from ccpo.envs.analytic import StaticBudget
from ccpo.envs.registry import resolve
from ccpo.errors import RunError
from ccpo.maths import bounds
from ccpo.metrics import EpisodeTable
from ccpo.runs import Run
from ccpo.schedule import LoopConfig
from ccpo.studies.analyses import bound, deviations, frontier, learned, over_seeds, q_check
from ccpo.studies.plan import FinishedRun
from ccpo.training import Trainer
from ccpo.types import Transition
from helpers import TINY

TASK = "StaticBudget-T20"
SEEN = (4.0, 8.0, 12.0)
GRID = (2.0, 4.0, 8.0, 12.0, 14.0)
HIGH = 14.0


def with_cost_embedding(state, hidden):
    (critic,) = state.critic.cost
    critic = {**critic, "embedding": [hidden, critic["embedding"][1]]}
    return state._replace(critic=state.critic._replace(cost=(critic,)))


def bent(state):
    """As initialised, z(ε) is a line, since biases are zero: give it bends within the range."""
    if "embedding" not in state.critic.cost[0]:
        return state
    hidden = state.critic.cost[0]["embedding"][0]
    kinks = jnp.linspace(0.1, 0.7, len(hidden["bias"]))
    return with_cost_embedding(state, {**hidden, "bias": -hidden["weight"][0] * kinks})


def straight(state):
    """z(ε) as a line: every hidden unit is on over the whole range."""
    hidden = state.critic.cost[0]["embedding"][0]
    return with_cost_embedding(state, {"weight": jnp.abs(hidden["weight"]), "bias": jnp.ones_like(hidden["bias"])})


def make_run(folder, *, algorithm="ccpo", seed=0, thresholds=SEEN, reward=1.0, cost=1.0, prepare=bent, **settings):
    """A finished run that never learned; episodes earn and cost so many times what the optimum does at ε."""
    factory, module = resolve(TASK), find_algorithm(algorithm)
    critics = {"loop": "open", "horizon": "endless", "discount": 0.97}
    given = {**TINY, **critics, **settings, "seed": seed, "behaviour_thresholds": thresholds}
    loop, own = config.build((LoopConfig, module.Config), agent.task_settings(factory), given)
    identity = {"task": TASK, "algorithm": algorithm, "preset": "none", "episode_length": None, "early_end": "failure"}
    run = Run.create(folder, algorithm=algorithm, task=TASK, seed=seed, config=identity | config.as_dict(loop, own))
    trainer = Trainer(run, module, factory, loop=loop, config=own)
    trainer.replay = replay.insert(trainer.replay, make_rollout(trainer.problem.lanes, seed=int(thresholds[0])))
    trainer.state = prepare(trainer.state)
    trainer.save()
    env = StaticBudget(20)
    evaluated = GRID if len(thresholds) > 1 else thresholds
    rows = [
        {
            "task": TASK,
            "algorithm": algorithm,
            "seed": seed,
            "threshold": threshold,
            "episode": episode,
            "reward": reward * env.optimal_return(threshold),
            "cost": cost * threshold + (-0.5, 0.5)[episode],
            "length": 20,
        }
        for threshold in evaluated
        for episode in range(2)
    ]
    EpisodeTable.from_rows(rows).write_csv(run.eval_path)
    return FinishedRun(algorithm.upper(), algorithm, TASK, seed, tuple(thresholds), run.path), trainer


def make_rollout(lanes, *, seed, steps=20):
    rng = np.random.default_rng(seed)
    rows = (steps, lanes)
    return Transition(
        obs=rng.normal(size=(*rows, 2)).astype(np.float32),
        action=1.5 * rng.normal(size=(*rows, 1)).astype(np.float32),
        reward=np.zeros(rows, np.float32),
        cost=np.zeros((*rows, 1), np.float32),
        next_obs=rng.normal(size=(*rows, 2)).astype(np.float32),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        threshold=np.zeros((*rows, 1), np.float32),
        spent=np.zeros((*rows, 1), np.float32),
        time_to_go=np.broadcast_to(np.arange(steps, 0, -1, dtype=np.float32)[:, None], rows),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of the versatile method, and single-threshold agents at three thresholds."""
    folder = tmp_path_factory.mktemp("runs")
    ours = [make_run(folder, seed=seed, reward=0.9, cost=0.8 + 0.1 * seed)[0] for seed in (0, 1)]
    single = {"algorithm": "cvpo", "reward": 0.95, "cost": 0.9}
    singles = [make_run(folder, thresholds=(t,), **single)[0] for t in (2.0, 8.0, 14.0)]
    return [*ours, *singles]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_is_loaded_as_it_was_saved(tmp_path):
    run, trainer = make_run(tmp_path, seed=3)
    found = learned.load(run)
    assert (found.config, found.problem) == (trainer.config, trainer.problem)
    states = (jax.tree.leaves(jax.tree.map(np.asarray, s.critic)) for s in (found.state, trainer.state))
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)
    rollout = make_rollout(trainer.problem.lanes, seed=int(SEEN[0]))
    np.testing.assert_array_equal(found.steps.obs, rollout.obs.reshape(-1, 2))
    np.testing.assert_array_equal(found.steps.time_to_go, rollout.time_to_go.reshape(-1))


def relu_net(layers, x):
    """In NumPy; a layer with a scale is normalised."""
    for layer in layers[:-1]:
        x = x @ np.asarray(layer["weight"]) + np.asarray(layer["bias"])
        if "scale" in layer:
            x = (
                (x - x.mean(axis=-1, keepdims=True))
                / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
                * np.asarray(layer["scale"])
            )
        x = np.maximum(x, 0)
    return x @ np.asarray(layers[-1]["weight"]) + np.asarray(layers[-1]["bias"])


@pytest.mark.parametrize("horizon", ["endless", "finite"])
def test_q_is_feature_times_embedding_in_episodic_cost(tmp_path, horizon):
    run, trainer = make_run(tmp_path, horizon=horizon)
    found = learned.load(run)
    steps = learned.draw(found.steps, 50, seed=1)
    (critic,) = trainer.state.critic.cost
    inputs = np.asarray(trainer.state.normaliser(steps.obs))
    if horizon == "finite":
        inputs = np.column_stack([inputs, steps.time_to_go / 20])
    psi = 10.0 * np.tanh(relu_net(critic["feature"], np.column_stack([inputs, np.clip(steps.action, -1, 1)])) / 10.0)
    z = relu_net(critic["embedding"], np.array([(8.0 - 2.0) / HIGH])) / 2.0
    np.testing.assert_allclose(learned.episodic_q_cost(found, steps, 8.0), HIGH * psi @ z, rtol=2e-4, atol=1e-5)


def test_q_of_a_single_threshold_agent_is_in_the_same_unit(tmp_path):
    """CVPO's critic sees 0 in the threshold's place, and has the unit ε + ε_H."""
    run, trainer = make_run(tmp_path, algorithm="cvpo", thresholds=(8.0,))
    found = learned.load(run)
    steps = learned.draw(found.steps, 50, seed=1)
    obs, nothing = np.asarray(trainer.state.normaliser(steps.obs)), np.zeros((50, 1))
    inputs = np.column_stack([obs, nothing, np.clip(steps.action, -1, 1)])
    q = relu_net(trainer.state.critic.cost[0]["joint"], inputs)[:, 0]
    np.testing.assert_allclose(learned.episodic_q_cost(found, steps, 8.0), (8.0 + HIGH) * q, rtol=2e-4, atol=1e-5)


def test_draws_are_rows_of_the_replay_and_repeat(runs):
    steps = learned.load(runs[0]).steps
    drawn = learned.draw(steps, 200, seed=5)
    np.testing.assert_array_equal(drawn.obs, learned.draw(steps, 200, seed=5).obs)
    stored = {(*o, *a) for o, a in zip(steps.obs.tolist(), steps.action.tolist(), strict=True)}
    assert {(*o, *a) for o, a in zip(drawn.obs.tolist(), drawn.action.tolist(), strict=True)} <= stored


def test_wasserstein_is_that_of_scipy():
    a, b = np.random.default_rng(0).normal(size=(2, 100)) * [[1.0], [3.0]]
    assert q_check.wasserstein(a, b) == pytest.approx(scipy.stats.wasserstein_distance(a, b))


def test_the_same_critic_has_no_distance(tmp_path):
    """A single-threshold run of the same seed starts with the same weights."""
    ours, single = make_run(tmp_path)[0], make_run(tmp_path, thresholds=(8.0,))[0]
    (check,) = q_check.checks_of(ours, [single])
    assert (check.threshold, check.seen) == (8.0, True)
    assert (check.difference, check.distance) == (0.0, 0.0)
    assert check.correlation == pytest.approx(1.0)


def test_q_check_reports(runs, tmp_path):
    pytest.importorskip("matplotlib")
    paths = q_check.report(runs, tmp_path)
    assert [path.name for path in paths] == [
        "q-check.csv",
        "q-check.md",
        "q-check.tex",
        f"q-check-{TASK}.png",
        f"q-check-{TASK}.svg",
    ]
    rows = read(paths[0])
    assert [(row["seed"], row["threshold"]) for row in rows] == [(s, t) for s in "01" for t in ("2.0", "8.0", "14.0")]
    assert [row["seen"] for row in rows[:3]] == ["False", "True", "False"]
    ours, middle, single = (learned.load(runs[i]) for i in (0, 3, 4))
    pairs = learned.draw(middle.steps, q_check.PAIRS, seed=0)
    a, b = (learned.episodic_q_cost(x, pairs, 14.0) for x in (ours, single))
    assert float(rows[2]["wasserstein"]) == pytest.approx(scipy.stats.wasserstein_distance(a, b))
    assert float(rows[2]["mean_difference"]) == pytest.approx(a.mean() - b.mean())
    assert float(rows[2]["correlation"]) == pytest.approx(scipy.stats.pearsonr(a, b).statistic)
    lines = [line for line in paths[1].read_text("utf-8").splitlines() if line.startswith(f"| {TASK}")]
    assert [line.split("|")[2].strip() for line in lines] == ["2", "● 8", "14"]
    (table,) = check_latex(paths[2].read_text("utf-8"))
    assert re.findall(r"^.*? & (.*?) & ", table, re.MULTILINE) == ["Threshold", "2", r"$\bullet$ 8", "14"]
    figure = q_check.histograms(q_check.checks_of(runs[0], runs[2:]), "CVPO")
    assert [axis.get_title() for axis in figure.axes[:3]] == ["ε = 2, unseen", "ε = 8, seen", "ε = 14, unseen"]


def test_a_polynomial_embedding_has_no_noise(tmp_path):
    run, _ = make_run(tmp_path, prepare=straight)
    fits = bound.fits_of(run)
    assert [fit.degree for fit in fits] == [1, 2]
    assert all(fit.sigma < 1e-6 for fit in fits)
    assert max(row.prediction for row in bound.rows_of(fits[0], EpisodeTable.read_csv(run.path / "eval.csv"))) < 1e-3


def test_estimates_are_those_of_the_critic(tmp_path):
    run, trainer = make_run(tmp_path)
    fit = bound.fits_of(run)[0]
    thresholds = np.linspace(2, 14, bound.RANGE_POINTS)
    z = relu_net(trainer.state.critic.cost[0]["embedding"], ((thresholds - 2) / HIGH)[:, None]) / 2.0
    residuals = [component - np.polyval(np.polyfit(thresholds, component, 1), thresholds) for component in z.T]
    sigma = max(np.sqrt(np.sum(r**2) / (len(thresholds) - 2)) for r in residuals)
    assert fit.sigma == pytest.approx(sigma, rel=1e-3)
    assert fit.sigma > 1e-3
    psi = bound.cost_features(learned.load(run))
    assert psi.shape == (bound.PAIRS, 4)
    assert fit.feature_bound == np.abs(psi).max() <= fit.feature_setting
    assert fit.worst_noise == pytest.approx(sigma * fit.feature_bound * 2.0 * HIGH, rel=1e-3)
    assert 0 < fit.largest_noise <= fit.worst_noise


@pytest.mark.parametrize(("analysis", "name"), [(q_check, "q-check"), (bound, "bound")])
def test_critics_of_a_closed_loop_say_something_else(analysis, name, runs, tmp_path):
    closed, _ = make_run(tmp_path / "runs", loop="closed", horizon="finite", prepare=lambda state: state)
    with pytest.raises(RunError, match=f"^{name} needs a finished CCPO run, in an open loop"):
        analysis.report([closed, *runs[2:]], tmp_path)


def test_bound_rows_stand_beside_measured_costs(runs):
    fit = bound.fits_of(runs[1])[0]
    rows = bound.rows_of(fit, EpisodeTable.read_csv(runs[1].path / "eval.csv"))
    assert [row.threshold for row in rows] == list(GRID)
    assert [row.seen for row in rows] == [False, True, True, True, False]
    np.testing.assert_allclose([row.excess for row in rows], -0.1 * np.array(GRID))
    np.testing.assert_allclose([row.violation for row in rows], np.maximum(0, 0.5 - 0.1 * np.array(GRID)) / 2)
    quantile = scipy.stats.norm.ppf(0.975)
    leverage = bounds.leverage(GRID, SEEN, 1)
    np.testing.assert_allclose([row.printed for row in rows], quantile * fit.worst_noise * np.sqrt(leverage))
    np.testing.assert_allclose([row.prediction for row in rows], quantile * fit.worst_noise * np.sqrt(1 + leverage))
    np.testing.assert_allclose([row.sharp for row in rows], quantile * fit.largest_noise * np.sqrt(leverage))


def test_bound_reports(runs, tmp_path):
    pytest.importorskip("matplotlib")
    paths = bound.report(runs, tmp_path)
    assert {path.name for path in paths} == {
        *(f"bound-{name}.csv" for name in ("estimates", "thresholds", "rates")),
        *("bound.md", "bound.tex", "bound.png", "bound.svg", "bound-rates.png", "bound-rates.svg"),
    }
    estimates = read(tmp_path / "bound-estimates.csv")
    assert [(row["seed"], row["degree"], row["N"]) for row in estimates] == [(s, p, "3") for s in "01" for p in "12"]
    for row in estimates:
        assert float(row["worst_bound_discounted"]) == pytest.approx(float(row["worst_bound"]) / (20 * 0.03))
    assert len(read(tmp_path / "bound-thresholds.csv")) == 2 * 2 * len(GRID)
    rates = read(tmp_path / "bound-rates.csv")
    assert [f"{float(row['N=5']):.3f}" for row in rates[:3]] == ["0.775", "0.941", "0.993"]
    assert all(float(row["rate_large"]) == pytest.approx(0.5, abs=0.02) for row in rates)
    page = (tmp_path / "bound.md").read_text("utf-8")
    assert "2 of 2" in page
    assert "nan" not in page
    estimated, measured, rated = check_latex((tmp_path / "bound.tex").read_text("utf-8"))
    assert r"& $\sigma$ & K\_c set &" in estimated
    assert measured.count("2 of 2") == page.count("2 of 2")
    assert "Spacing & Degree p & N = 5 &" in rated
    assert "ends & 1 & 0.775 &" in rated


def test_the_frontier_knows_its_references(runs):
    found = frontier.compare(runs)
    assert [comparison.threshold for comparison in found] == list(GRID)
    assert [comparison.exhaustive is not None for comparison in found] == [True, False, True, False, True]
    for comparison in found:
        assert comparison.share_of_optimum == pytest.approx(0.9)
        np.testing.assert_allclose(comparison.versatile.cost, [0.8 * comparison.threshold, 0.9 * comparison.threshold])
    assert found[0].share_of_exhaustive == pytest.approx(0.9 / 0.95)
    assert found[1].share_of_exhaustive is None
    assert found[2].optimal_return == pytest.approx(20 * np.sqrt(8 / 20))


def test_frontier_reports(runs, tmp_path):
    pytest.importorskip("matplotlib")
    paths = frontier.report(runs, tmp_path)
    assert [path.name for path in paths] == [f"frontier.{kind}" for kind in ("csv", "md", "tex", "png", "svg")]
    rows = read(paths[0])
    assert (rows[0]["versatile_seeds"], rows[0]["exhaustive_seeds"], rows[1]["exhaustive_reward"]) == ("2", "1", "")
    lines = [line for line in paths[1].read_text("utf-8").splitlines() if line.startswith(f"| {TASK}")]
    assert [cell.strip() for cell in lines[2].split("|")[-3:-1]] == ["95 %", "90 %"]
    (table,) = check_latex(paths[2].read_text("utf-8"))
    assert table.count(r"90 \% \\") == len(GRID)
    figure = frontier.frontier_figure(frontier.compare(runs), "CCPO", "CVPO")
    curve = next(line for line in figure.axes[0].lines if len(line.get_xdata()) == 100)
    np.testing.assert_allclose(curve.get_ydata(), 20 * np.sqrt(curve.get_xdata() / 20))


def test_without_references_the_frontier_still_has_the_closed_form(runs, tmp_path):
    pytest.importorskip("matplotlib")
    paths = frontier.report(runs[:1], tmp_path)
    assert "90 %" in paths[1].read_text("utf-8")


def test_no_simulator_is_built_for_the_closed_form(monkeypatch):
    monkeypatch.setitem(sys.modules, "ccpo.envs.bullet", None)
    assert frontier.closed_form("BallCircle") is None
    assert isinstance(frontier.closed_form(TASK), StaticBudget)


def test_a_reference_that_was_evaluated_elsewhere_is_refused(runs):
    lost = FinishedRun("CVPO", "cvpo", TASK, 0, (3.0,), runs[2].path)
    with pytest.raises(RunError, match="was not evaluated at its own threshold 3"):
        frontier.compare([runs[0], lost])


def test_deviations_are_compared_seed_by_seed(runs, tmp_path):
    full, other = runs[:2]
    variant = replace(full, label="D6 no feedback", path=other.path)
    alone = replace(variant, seed=7)
    paths = deviations.report([full, variant, alone], tmp_path)
    assert [path.name for path in paths] == [f"deviations.{kind}" for kind in ("csv", "md", "tex")]
    first, second = read(paths[0])
    assert (first["variant"], second["variant"], float(first["R change"])) == ("CCPO", "D6 no feedback", 0.0)
    assert float(second["R"]) == pytest.approx(0.9 * np.mean([StaticBudget(20).optimal_return(t) for t in GRID]))
    excess = [np.mean([max(0.0, share * t + e - t) for t in GRID for e in (-0.5, 0.5)]) for share in (0.8, 0.9)]
    assert float(second["CV change"]) == pytest.approx(excess[1] - excess[0])
    check_latex(paths[2].read_text("utf-8"))


MISSING = [(q_check, "q-check"), (bound, "bound"), (frontier, "frontier"), (deviations, "deviations")]


@pytest.mark.parametrize(("analysis", "name"), MISSING)
def test_what_is_missing_is_named(analysis, name, runs, tmp_path):
    with pytest.raises(RunError, match=f"^{name} needs a finished"):
        analysis.report(runs[2:], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_plain_critic_has_no_bound(tmp_path):
    run, _ = make_run(tmp_path, versatile_critic=False)
    assert bound.fits_of(run) == []


def test_over_seeds():
    assert over_seeds([1.0, 2.0, 3.0], 2) == "2.00 ± 1.00"
    assert over_seeds([1.25], 1) == "1.2"
