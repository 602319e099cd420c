import numpy as np
import pytest

import ccpo
from ccpo import choice as choices
from ccpo import training
from ccpo.envs.adapter import CostEnv
from ccpo.errors import ConfigError, RunError
from ccpo.report.results import publish
from ccpo.runtime import NetConfig
from ccpo.training import Trainer, train_together
from ccpo.types import Episode
from helpers import TASK, make_trainer

FINAL = {"finalists": 4, "final_episodes": 2}


def net(beyond_share: float = 1.0) -> NetConfig:
    asked = (10.0, 20.0, 60.0, 70.0) if beyond_share < 1 else ()
    shown = (20.0 - beyond_share * 10.0, 20.0, 60.0, 60.0 + beyond_share * 10.0) if asked else ()
    return NetConfig("gaussian", 10.0, 70.0, asked=asked, shown=shown)


def episode(reward: float, cost: float, threshold: float) -> Episode:
    return Episode(threshold, reward, cost, 200, deterministic=True)


@pytest.mark.parametrize(
    ("reward", "cost", "threshold", "expected"),
    [
        (100.0, 20.0, 20.0, 100.0),  # on the threshold: no violation
        (100.0, 25.0, 20.0, 75.0),
        (100.0, 40.0, 20.0, 0.0),
        (-100.0, 25.0, 20.0, -125.0),  # a violation never pays
        (100.0, 0.35, 0.0, 50.0),  # none counts as a hundredth of the highest
    ],
)
def test_worth_of_an_episode(reward, cost, threshold, expected):
    assert choices.worth(episode(reward, cost, threshold), threshold, net(), price=1.0) == pytest.approx(expected)


def test_worth_does_not_depend_on_the_unit_of_cost():
    small = NetConfig("gaussian", 0.1, 0.7)
    told = episode(100.0, 0.5, 0.4)
    assert choices.worth(told, 0.4, small, price=1.0) == pytest.approx(75.0)


def test_an_episode_stands_for_all_thresholds_that_its_policy_serves():
    served = net(beyond_share=0.0)
    violations = [5 / 10, 2.5 / 12.5, 0, 0, 0]  # a cost of 15 under 10, 12.5, 15, 17.5 and 20
    lowest = choices.worth(episode(100.0, 15.0, 20.0), 20.0, served, price=1.0)
    assert lowest == pytest.approx(100 - 100 * np.mean(violations))
    inner = choices.worth(episode(100.0, 50.0, 40.0), 40.0, served, price=3.0)
    assert inner == pytest.approx(25.0)  # inner ones serve themselves
    violations = [5 / 60, 2.5 / 62.5, 0, 0, 0]
    highest = choices.worth(episode(100.0, 65.0, 60.0), 60.0, served, price=1.0)
    assert highest == pytest.approx(100 - 100 * np.mean(violations))


@pytest.mark.parametrize(
    ("finalists", "expected"),
    [
        (0, []),
        (1, []),
        (5, [(5, range(3)), (3, range(3, 9)), (2, range(9, 21))]),
        (8, [(8, range(3)), (4, range(3, 9)), (2, range(9, 21))]),
    ],
)
def test_half_as_many_play_twice_as_long(finalists, expected):
    assert choices.rounds(finalists, 3) == expected


def mean_reward(episodes):
    return np.mean([each.reward for each in episodes])


def test_the_best_of_all_episodes_wins():
    seen = []

    def play(index, episodes):
        seen.append((index, episodes))
        lucky = 100.0 if index == 3 and episodes.start == 0 else 0.0  # good in its first round only
        return [episode(float(index == 1) + lucky, 0.0, 20.0) for _ in episodes]

    winner, episodes = choices.decide(choices.rounds(4, 2), play, mean_reward)
    assert winner == 3  # 100 over 2 of 6 episodes is still the best mean
    assert [each.reward for each in episodes] == [100.0, 100.0, 0.0, 0.0, 0.0, 0.0]
    assert seen == [(i, range(2)) for i in range(4)] + [(3, range(2, 6)), (1, range(2, 6))]
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]

    def steady(index, episodes):
        return [episode(values[index], 0.0, 20.0) for _ in episodes]

    assert choices.decide(choices.rounds(7, 1), steady, mean_reward)[0] == 5


def test_noise_rarely_hides_the_best():
    """Finalists of worth 0 to 15, noise of standard deviation 10: 60 episodes hardly tell neighbours apart."""
    rng = np.random.default_rng(0)

    def play(index, episodes):
        return [episode(index + 10 * rng.standard_normal(), 0.0, 20.0) for _ in episodes]

    winners = [choices.decide(choices.rounds(16, 4), play, mean_reward)[0] for _ in range(200)]
    assert np.mean(winners) > 12.5
    assert np.mean(np.array(winners) >= 10) > 0.95


def test_settings_cover_the_dial_and_the_first_ones_already_do():
    found = [choices.settings(net(beyond_share=0.0), range(count)) for count in (9, 63)]
    assert found[1][:9] == found[0]
    for settings in found:
        assert (min(settings), max(settings)) == (20.0, pytest.approx(60.0, abs=4.0))
        assert max(np.diff(sorted(settings))) <= 2.5 * 40.0 / len(settings)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (lambda dial: max(0.0, dial - 15.0), (25.0, 55.0, 60.0)),  # 15 too little everywhere
        (lambda dial: 0.0 if dial < 43.0 else dial, (42.0, 42.0, 60.0)),  # nothing up to a jump
    ],
)
def test_the_dial_is_turned_to_what_serves_a_threshold_best(cost, expected):
    served = net(beyond_share=0.0)
    played = [episode(400.0 + dial, cost(dial), dial) for dial in choices.settings(served, range(135))]
    dial, values = choices.turn(played, (20.0, 40.0, 60.0), served, price=10.0)
    own = dial[:: choices.STOPS]
    np.testing.assert_allclose(own, expected, atol=3.0)
    assert (np.array([cost(each) for each in own]) <= [10.0, 40.0, 60.0]).all()
    np.testing.assert_allclose(values, 400.0 + own, atol=3.0)


@pytest.mark.parametrize("bend", [1.0, 0.5, 3.0])
def test_between_two_thresholds_the_measured_cost_rises_by_equal_parts(bend):
    """Costs that rise with the dial from 0 to 60, evenly, fast at first, or late."""
    served = net(beyond_share=0.0)

    def cost(dial):
        return 60.0 * ((dial - 20.0) / 40.0) ** bend

    played = [episode(400.0 + dial, cost(dial), dial) for dial in choices.settings(served, range(1000))]
    dial, _ = choices.turn(played, (20.0, 40.0, 60.0), served, price=10.0)
    costs = cost(dial)
    for first, last in ((0, 4), (4, 8)):
        np.testing.assert_allclose(costs[first : last + 1], np.linspace(costs[first], costs[last], 5), atol=3.0)


def test_between_two_thresholds_a_jump_is_passed_by_no_more_than_what_is_averaged():
    served = net(beyond_share=0.0)
    played = [episode(400.0 + dial, 5.0 if dial < 45 else 55.0, dial) for dial in choices.settings(served, range(135))]
    dial, _ = choices.turn(played, (20.0, 40.0, 60.0), served, price=10.0)
    assert (dial[4:7] < 45.0).all()  # a quarter and a half of the way up
    assert dial[7] < 45.0 + 5 * 40.0 / 135
    assert dial[8] > 45.0


def test_a_setting_beside_a_jump_does_not_win_by_luck():
    """The reward rises up to a jump in cost; the setting that is chosen has neighbours that obey."""
    served = net()
    settings = choices.settings(served, range(135))
    played = [episode(400.0 + dial, 0.0 if dial < 43.0 else 100.0, dial) for dial in settings]
    (dial,), _ = choices.turn(played, (40.0,), served, price=3.0)
    assert 43.0 - 7 * 60.0 / 135 < dial < 43.0


def test_a_higher_threshold_never_has_a_lower_setting_and_is_judged_by_the_one_it_has():
    played = [episode(200.0 - dial if dial < 40.0 else 100.0, 0.0, dial) for dial in choices.settings(net(), range(27))]
    played = [each._replace(cost=30.0 if each.threshold < 40.0 else 0.0) for each in played]
    dial, values = choices.turn(played, (20.0, 40.0), net(), price=10.0)
    assert dial[0] == dial[-1] >= 40.0
    np.testing.assert_allclose(values, 100.0)


@pytest.mark.parametrize(("beyond_share", "ends"), [(0.0, (30.0, 60.0)), (0.3, (27.0, 63.0)), (1.0, (20.0, 70.0))])
def test_settings_beyond_the_behaviour_thresholds_move_along(beyond_share, ends):
    dial = np.float32([30.0, 32.0, 34.0, 36.0, 45.0, 47.0, 49.0, 51.0, 60.0])
    turned = choices.turned(net(beyond_share), (20.0, 40.0, 60.0), dial)
    assert turned.asked == (10.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 55.0, 60.0, 70.0)
    assert turned.shown == pytest.approx((ends[0], *dial, ends[1]))


def test_settings_stay_in_the_range_that_was_trained():
    turned = choices.turned(net(0.3), (20.0, 60.0), np.float32([18.0, 20.0, 30.0, 45.0, 62.0]))
    assert (turned.shown[0], turned.shown[-1]) == (17.0, 63.0)
    assert choices.turned(net(0.3), (20.0, 60.0), np.float32([20.0, 30.0, 40.0, 50.0, 60.0])) == net(0.3)


@pytest.mark.parametrize("unit", [0.1, 0.01, 1 / 3])
def test_settings_survive_the_rounding_of_thresholds_that_float32_does_not_hold(unit):
    low, *behaviour, high = (unit * t for t in (1, 2, 4, 6, 7))
    plain = NetConfig(
        "gaussian",
        low,
        high,
        asked=(low, behaviour[0], behaviour[-1], high),
        shown=(behaviour[0],) * 2 + (behaviour[-1],) * 2,
    )
    asked = choices.stops(behaviour)
    assert choices.turned(plain, behaviour, np.float32(asked)) == plain
    ends = choices.turned(plain, behaviour, np.float32([asked[0]] + 8 * [asked[-1]]))
    assert choices.dial_range(ends) == pytest.approx(choices.dial_range(plain))


def run(path, **settings) -> Trainer:
    trainer = make_trainer(path, **FINAL | settings)
    trainer.train()
    return trainer


def test_finalists_lie_evenly_in_the_late_part_and_end_with_the_newest(tmp_path):
    trainer = make_trainer(tmp_path, **FINAL, steps=2400)  # 20 iterations, of which 10 are late
    entries = {i: trainer.schedule.finalist_after(i) for i in range(trainer.schedule.end)}
    assert {i: index for i, index in entries.items() if index is not None} == {12: 0, 14: 1, 17: 2, 19: 3}
    few = make_trainer(tmp_path / "few", **FINAL, steps=2400, choice_share=0.1)
    assert [few.schedule.finalist_after(i) for i in (17, 18, 19)] == [None, 0, 1]


def test_a_run_deploys_the_winner_and_counts_the_final(tmp_path):
    told = []
    trainer = make_trainer(tmp_path, **FINAL)
    trainer.train(told.append)
    learnt = trainer.schedule.iterations * trainer.schedule.steps_each
    played = [episode for progress in told if not progress.row for episode in progress.episodes]
    assert trainer.choice.made
    assert trainer.schedule.finalists == 3  # as many as there are late iterations
    assert len(played) == 3 * (3 * 2 + 2 * 4)  # under 3 thresholds
    assert trainer.steps == learnt + sum(episode.length for episode in played) == told[-1].steps
    assert trainer.total_steps == learnt + 20 * len(played)
    assert trainer.choice.cost == pytest.approx(sum(episode.cost for episode in played))
    assert trainer.cumulative_cost == pytest.approx(
        [p.row for p in told if p.row][-1]["rollout/cumulative_cost"] + trainer.choice.cost
    )
    for name, array in trainer.policy().net.arrays.items():
        np.testing.assert_array_equal(array, trainer.choice.finalists[name][trainer.choice.winner], err_msg=name)
    newest = trainer.algorithm.acting(trainer.config, trainer.problem, trainer.state).deploy
    for name, array in newest.items():
        np.testing.assert_array_equal(trainer.choice.finalists[name][-1], array, err_msg=name)


def test_the_winner_is_worth_most_in_the_same_episodes(tmp_path, monkeypatch):
    played, play = {}, Trainer._play

    def listening(self, index, indices):
        played.setdefault(index, []).extend(episodes := play(self, index, indices))
        return episodes

    monkeypatch.setattr(Trainer, "_play", listening)
    trainer = run(tmp_path)
    longest = max(map(len, played.values()))
    finals = {
        index: np.mean([choices.worth(e, e.threshold, trainer.acting.net, price=3.0) for e in episodes])
        for index, episodes in played.items()
        if len(episodes) == longest
    }
    assert len(finals) == 2
    assert trainer.choice.winner == max(finals, key=lambda index: finals[index])


def test_a_final_over_the_whole_dial_sets_the_dial_of_what_is_deployed(tmp_path, monkeypatch):
    told, seeds, reset = [], [], CostEnv.reset
    monkeypatch.setattr(CostEnv, "reset", lambda self, seed: (seeds.append(seed), reset(self, seed))[1])
    trainer = make_trainer(tmp_path / "turned", **FINAL, turn_dial=True)
    trainer.train(lambda progress: (told.append(progress), seeds.clear() if progress.row else None))
    played = [each for progress in told if not progress.row for each in progress.episodes]
    assert len(set(seeds[-2 * 3 * 4 :])) == 3 * 4  # both finalists play the same episodes, all of them different
    settings = choices.settings(trainer.acting.net, range(3 * 6))
    assert {each.threshold for each in played} == set(settings)
    assert len(played) == 3 * (3 * 2 + 2 * 4)  # as many as under the three behaviour thresholds
    assert set(trainer.choice.dial.tolist()) <= set(np.float32(settings).tolist())
    config = trainer.policy().net.config
    asked = choices.stops(trainer.problem.behaviour_thresholds)
    np.testing.assert_allclose(np.interp(asked, config.asked, config.shown), trainer.choice.dial)
    again = make_trainer(tmp_path / "turned", **FINAL, turn_dial=True)
    again.run = trainer.run
    again.restore()
    assert again.policy().net.config == config


@pytest.mark.parametrize("settings", [{"choice_share": 0.0}, {"finalists": 1}, {"choice_share": 0.1}])
def test_a_dial_is_turned_in_a_final_only(tmp_path, settings):
    with pytest.raises(ConfigError, match="turn_dial needs a final"):
        make_trainer(tmp_path, **FINAL | {"turn_dial": True} | settings)


def test_a_dial_that_has_no_effect_is_not_turned(tmp_path):
    with pytest.raises(ConfigError, match="sees its threshold"):
        ccpo.train(TASK, algorithm="ppo_lag", behaviour_thresholds=(4,), choice_share=0.5, turn_dial=True, out=tmp_path)


def test_a_killed_final_is_played_again_and_a_finished_one_is_not(tmp_path):
    whole = run(tmp_path / "whole")
    killed = make_trainer(tmp_path / "killed", **FINAL)

    def kill(progress):
        if not progress.row:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed.train(kill)
    (killed.run.path / "eval.csv").touch()
    with pytest.raises(RunError, match="not finished"):
        publish([killed.run.path], tmp_path)
    again = make_trainer(tmp_path / "killed", **FINAL)
    again.run = killed.run
    again.restore()
    again.train()
    assert again.choice.winner == whole.choice.winner
    assert (again.steps, again.cumulative_cost) == (whole.steps, whole.cumulative_cost)
    for name, array in whole.policy().net.arrays.items():
        np.testing.assert_array_equal(again.policy().net.arrays[name], array, err_msg=name)
    again.restore()
    told = []
    again.train(told.append)
    assert told == []
    assert again.choice.made


def test_seeds_that_train_together_choose_each_for_itself(tmp_path):
    together = [make_trainer(tmp_path / str(seed), **FINAL, seed=seed) for seed in (1, 2)]
    train_together(together)
    assert all(trainer.choice.made for trainer in together)
    assert together[0].choice.cost != together[1].choice.cost


def test_without_a_share_the_newest_policy_is_deployed(tmp_path):
    trainer = run(tmp_path, choice_share=0.0)
    assert not trainer.choice.made
    newest = trainer.algorithm.acting(trainer.config, trainer.problem, trainer.state).deploy
    for name, array in trainer.policy().net.arrays.items():
        np.testing.assert_array_equal(array, newest[name], err_msg=name)


def test_a_final_is_played_with_seeds_of_training(tmp_path, monkeypatch):
    seeds = []
    reset = CostEnv.reset
    monkeypatch.setattr(CostEnv, "reset", lambda self, seed: (seeds.append(seed), reset(self, seed))[1])
    trainer = make_trainer(tmp_path, **FINAL)
    trainer.train(lambda told: seeds.clear() if told.row else None)
    assert len(seeds) == 3 * (3 * 2 + 2 * 4)
    assert not any(seed % 2 for seed in seeds)


def test_the_price_of_violation_decides_between_reward_and_cost(tmp_path, monkeypatch):
    def faked(*_, thresholds, episodes, **__):
        index = next(game)
        reward, cost = (100.0, 2.0) if index % 2 else (90.0, 0.5)  # of the threshold
        return [[Episode(t, reward, cost * t, 20, deterministic=True) for _ in episodes] for t in thresholds]

    monkeypatch.setattr(training, "evaluate_episodes", faked)
    winners = []
    for price in (0.05, 1.0):
        game = iter(range(10))
        winners.append(int(run(tmp_path / str(price), finalists=2, violation_price=price).choice.winner))
    assert winners == [1, 0]
