"""Calibration on policies whose cost is known: what it promises, what it refuses, what it stores."""

import csv
import math
import warnings

import gymnasium
import numpy as np
import pytest
from toy import closed_agent, closed_cost, toy_agent, toy_cost

from ccpo import cli
from ccpo.agent import Agent, load
from ccpo.confidence import mean_upper_bound
from ccpo.deploy import calibrate as c
from ccpo.envs.registry import make, resolve
from ccpo.errors import ConfigError, ThresholdError
from ccpo.runtime import Policy
from extras import HAS_BULLET

REQUESTS = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]


def measure_linear(slope, noise=3.0):
    """Cost slope · dial ± uniform noise, reward = dial; the calls are kept."""
    calls = []

    def measure(dials, count, seed):
        calls.append((tuple(dials), count, seed))
        rng = np.random.default_rng(seed)
        return [c.Episodes(slope * d + noise * rng.uniform(-1, 1, count), np.full(count, d)) for d in dials]

    return measure, calls


def calibrate(measure, **settings):
    settings = {"threshold_range": (10.0, 70.0), "cost_max": 200.0, "episodes": 400, **settings}
    return c.calibrate(measure, settings.pop("requests", REQUESTS), **settings)


@pytest.mark.parametrize("slope", [0.7, 1.0, 1.4])
def test_settings_keep_the_requests_without_waste(slope):
    calibration = calibrate(measure_linear(slope)[0])
    assert [row.requested for row in calibration.rows] == REQUESTS
    served = [row for row in calibration.certified if row.dial < 70.0]
    assert len(served) >= 4
    for row in served:
        assert row.cost < row.bound <= row.requested
        assert 2.0 < row.requested - slope * row.dial < 4.5  # about 200 log(3/0.05)/320, and two standard errors
        assert row.reward == pytest.approx(row.dial)
        assert row.uncalibrated_reward == pytest.approx(row.requested)
    dials = [row.dial for row in calibration.rows]
    assert dials == sorted(dials)
    assert all(10.0 <= dial <= 70.0 for dial in dials)


def test_pilot_and_certification_share_no_seed_and_only_the_pilot_chooses():
    measure, calls = measure_linear(1.2)
    calibration = calibrate(measure, seed=5)
    (pilot_dials, pilot_count, pilot_seed), (dials, count, seed) = calls
    assert pilot_seed != seed
    assert min(pilot_seed, seed) >= 2**32  # no evaluation's seed
    assert (pilot_count, count) == (80, 320) == (calibration.pilot_episodes, calibration.episodes)
    assert set(REQUESTS) <= set(pilot_dials)
    assert set(dials) == {row.dial for row in calibration.rows}
    assert len(calls) == 2
    run = sum(len(d) * n for d, n, _ in calls)
    assert run <= c.planned_episodes(REQUESTS, (10.0, 70.0), 400)


def test_rows_say_what_was_measured():
    measure, _ = measure_linear(1.0, noise=8.0)
    calibration = calibrate(measure, confidence=0.9)
    chosen = sorted({row.dial for row in calibration.rows})
    samples = dict(zip(chosen, measure(chosen, 320, c.CERTIFICATION_SEEDS), strict=True))
    for row in calibration.rows:
        cost = samples[row.dial].cost
        assert row.cost == pytest.approx(cost.mean())
        assert row.exceedance >= (cost > row.requested).mean()
        assert row.bound == pytest.approx(
            200 * mean_upper_bound(cost / 200, error=0.1 / 3, variance=(8 / 200) ** 2 / 3), abs=0.3
        )


def certify(costs, requests=REQUESTS):
    samples = [np.full(200, float(cost)) for cost in costs]
    return c.certify(requests, samples, [0.0] * len(costs), cost_max=200.0, error=0.05 / 3)


def test_testing_goes_down_and_ends_at_the_third_claim_that_stands():
    _, certified = certify([0, 25, 0, 45, 0, 65, 0])
    assert certified == [False, False, True, False, True, False, True]
    bounds, certified = certify([0, 0, 0, 0, 55, 65, 75])
    assert certified == [False] * 7
    assert bounds[0] <= 10.0  # it would have passed, and is not asked any more


def test_false_requests_are_certified_no_more_often_than_promised():
    """All requests lie just below the mean cost, costs are 0 or 200: the worst case of a bounded mean."""
    rng, repeats, broken = np.random.default_rng(0), 200, 0
    for _ in range(repeats):
        costs = [200.0 * (rng.random(100) < (request + 0.01) / 200) for request in REQUESTS]
        variances = [request / 200 * (1 - request / 200) for request in REQUESTS]
        _, certified = c.certify(REQUESTS, costs, variances, cost_max=200.0, error=0.2 / 3)
        broken += any(certified)
    assert broken / repeats < 0.2 + 3 * math.sqrt(0.2 * 0.8 / repeats)
    assert broken > 0  # the test can see a broken promise


def test_serving_falls_back_to_the_next_smaller_request():
    rows = tuple(
        c.Row(
            requested,
            requested - 2,
            certified,
            cost=1.0,
            bound=2.0,
            exceedance=0.1,
            reward=requested / 2,
            uncalibrated_reward=requested,
        )
        for requested, certified in [(10.0, False), (20.0, True), (30.0, False), (40.0, True)]
    )
    calibration = c.Calibration(0.95, 200.0, 20, 80, 0, rows)
    assert calibration.serving(15.0) is None
    assert [calibration.serving(r) for r in (20.0, 39.0, 40.0, 99.0)] == [rows[1], rows[1], rows[3], rows[3]]
    assert calibration.as_dict()["requested"] == [20.0, 40.0]
    assert calibration.as_dict()["dial"] == [18.0, 38.0]
    assert c.Calibration.from_dict(calibration.as_dict()) == calibration
    assert calibration.mean_given_up == pytest.approx(((20 - 10) + (30 - 10) + (40 - 20)) / 3)
    text = c.calibration_table(calibration, "BallCircle").markdown()
    assert "refused" in text
    assert "as 20" in text


def test_a_dial_without_effect_and_a_range_of_one_threshold():
    def measure(dials, count, seed):
        return [c.Episodes(np.full(count, 25.0), np.zeros(count)) for _ in dials]

    assert [row.requested for row in calibrate(measure).certified] == [30.0, 40.0, 50.0, 60.0, 70.0]
    single = calibrate(measure, requests=[40.0], threshold_range=(40.0, 40.0))
    assert single.certified[0].dial == 40.0


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"requests": [5.0]}, ThresholdError, "10 to 70"),
        ({"requests": []}, ThresholdError, "10 to 70"),
        ({"requests": [math.nan]}, ThresholdError, "10 to 70"),
        ({"confidence": 1.0}, ConfigError, "0.95"),
        ({"confidence": math.nan}, ConfigError, "0.95"),
        ({"episodes": 19}, ConfigError, "at least 20"),
        ({"cost_max": 0.0}, ConfigError, "largest cost"),
        ({"cost_max": math.inf}, ConfigError, "largest cost"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, error, message):
    with pytest.raises(error, match=message):
        calibrate(measure_linear(1.0)[0], **settings)


def test_a_cost_beyond_the_range_ends_the_calibration_at_once():
    measure, calls = measure_linear(1.0)
    with pytest.raises(ConfigError, match="more than cost_max=40"):
        calibrate(measure, cost_max=40.0)
    assert len(calls) == 1


def test_an_agent_is_calibrated_and_serves_requests(tmp_path):
    agent = toy_agent()
    calibration = c.calibrate_agent(agent, REQUESTS, episodes=20, cost_max=100.0, workers=1)
    assert all(row.cost == pytest.approx(toy_cost(row.dial), rel=1e-4) for row in calibration.rows)
    assert all(toy_cost(row.dial) <= row.requested for row in calibration.certified)
    agent.save(tmp_path / "policy.safetensors")
    policy, obs = Policy.load(tmp_path / "policy.safetensors"), np.zeros(2)
    first = calibration.certified[0]
    assert first.requested > 10.0
    np.testing.assert_array_equal(policy.act(obs, first.requested, calibrated=True), policy.act(obs, first.dial))
    with pytest.raises(ThresholdError, match=f"ask for {first.requested:g}"):
        policy.act(obs, 10.0, calibrated=True)


def test_a_closed_loop_is_calibrated_as_it_is_deployed(tmp_path):
    """A setting is the threshold that an episode begins with; what it has cost counts against it while it runs."""
    agent = closed_agent()
    calibration = c.calibrate_agent(agent, REQUESTS, episodes=200, workers=1)
    assert calibration.cost_max == 100.0  # 100 steps of cost ≤ 1, as the environment says
    assert all(row.cost == pytest.approx(closed_cost(row.dial), rel=1e-4) for row in calibration.rows)
    request = calibration.certified[-1]
    env = agent.factory()()
    obs, cost = env.reset(0), 0.0
    episode = agent.episode(request.requested, calibrated=True)
    for _ in range(100):
        obs, _, step_cost, _, _ = env.step(episode.act(obs))
        episode.pay(step_cost)
        cost += step_cost
    assert cost == episode.spent == pytest.approx(request.cost, rel=1e-4)
    assert cost <= request.requested


@pytest.mark.parametrize("task", ["BallCircle", "LateBudget-T20-C100", "DriftBudget", "BalanceBudget"])
def test_no_step_costs_more_than_the_environment_says(task):
    if task == "BallCircle" and not HAS_BULLET:
        pytest.skip("needs the extra 'bullet'")
    factory = resolve(task)
    env, rng, costs = factory(), np.random.default_rng(0), []
    for seed in range(3):
        env.reset(seed)
        ended = False
        while not ended:
            *_, cost, terminated, truncated = env.step(np.sign(rng.normal(size=factory.spec.action_size)).astype("f4"))
            costs.append(cost)
            ended = terminated or truncated
    env.close()
    assert 0.3 * factory.max_step_cost < max(costs) <= factory.max_step_cost


def test_an_environment_that_does_not_say_what_a_step_can_cost_has_to_be_told():
    agent = toy_agent()
    for factory in (
        resolve("StaticBudget", cost_fn=lambda *_: 7.0),
        resolve(lambda: gymnasium.Wrapper(make("StaticBudget")), episode_length=100),
    ):
        assert factory.max_step_cost is None
        with pytest.raises(ConfigError, match="--cost-max, at most 100 steps"):
            c.calibrate_agent(Agent(agent.policy, factory=factory), REQUESTS, episodes=20)


def test_an_agent_that_can_guarantee_nothing_says_so():
    agent = toy_agent()
    with pytest.raises(ThresholdError, match="no request up to 20 can be guaranteed"):
        c.calibrate_agent(agent, [10.0, 20.0], episodes=20, cost_max=1000.0, workers=1)
    assert agent.policy.manifest["calibration"] is None


def test_a_refused_request_says_how_many_episodes_would_do_and_they_do():
    measure, _ = measure_linear(1.0, noise=8.0)
    few = calibrate(measure, requests=[12.0, 60.0], episodes=60)
    refused = few.rows[0]
    assert not refused.certified
    assert refused.needed is not None
    assert f"not certified (how many episodes would do): 12 ({refused.needed:,})" in str(few)
    assert calibrate(measure, requests=[12.0, 60.0], episodes=2 * refused.needed).rows[0].certified
    assert few.rows[1].needed is None
    assert c.Calibration.from_dict(few.as_dict()) == few


def test_an_agent_that_comes_with_the_package_is_calibrated_into_a_file_of_ones_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["calibrate", "BallCircle"]) == 2
    assert "give --out FILE.safetensors, and load that: ccpo.load(FILE)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_calibrated_policy_and_its_table(tmp_path, capsys):
    path = tmp_path / "policy.safetensors"
    toy_agent().save(path)
    command = ["calibrate", str(path), "--episodes", "20", "--thresholds", "30:70:20", "--workers", "1"]
    assert cli.main([*command, "--cost-max", "0"]) == 2
    assert "cost_max=0" in capsys.readouterr().err
    for out, message in ((tmp_path, "must end in .safetensors"), (path / "no" / "p.safetensors", "another --out")):
        assert cli.main([*command, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(command) == 0
    assert "Given up" in capsys.readouterr().out
    stored = load(path).policy.manifest["calibration"]
    assert stored["confidence"] == 0.95
    assert stored["requested"][-1] == 70.0
    with open(tmp_path / "calibration.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["requested"]) for row in rows] == [30.0, 50.0, 70.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(path).policy.act(np.zeros(2), 70.0, calibrated=True)
