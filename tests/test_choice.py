import numpy as np
import pytest

from ccpo import choice as choices
from ccpo import training
from ccpo.envs.adapter import CostEnv
from ccpo.errors import RunError
from ccpo.report.results import publish
from ccpo.runtime import NetConfig
from ccpo.training import Trainer, train_together
from ccpo.types import Episode
from helpers import make_trainer

FINAL = {"finalists": 4, "final_episodes": 2}


def net(beyond_share: float = 1.0) -> NetConfig:
    return NetConfig("gaussian", 10.0, 70.0, inner_low=20.0, inner_high=60.0, beyond_share=beyond_share)


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
    assert choices.worth(episode(reward, cost, threshold), net(), price=1.0) == pytest.approx(expected)


def test_worth_does_not_depend_on_the_unit_of_cost():
    small = NetConfig("gaussian", 0.1, 0.7, inner_low=0.2, inner_high=0.6)
    told = episode(100.0, 0.5, 0.4)
    assert choices.worth(told, small, price=1.0) == pytest.approx(75.0)


def test_an_episode_stands_for_all_thresholds_that_its_policy_serves():
    served = net(beyond_share=0.0)
    violations = [5 / 10, 2.5 / 12.5, 0, 0, 0]  # a cost of 15 under 10, 12.5, 15, 17.5 and 20
    assert choices.worth(episode(100.0, 15.0, 20.0), served, price=1.0) == pytest.approx(
        100 - 100 * np.mean(violations)
    )
    assert choices.worth(episode(100.0, 50.0, 40.0), served, price=3.0) == pytest.approx(
        25.0
    )  # inner ones serve themselves
    violations = [5 / 60, 2.5 / 62.5, 0, 0, 0]
    assert choices.worth(episode(100.0, 65.0, 60.0), served, price=1.0) == pytest.approx(
        100 - 100 * np.mean(violations)
    )


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


def test_the_best_of_all_episodes_wins():
    seen = []

    def play(index, episodes):
        seen.append((index, episodes))
        lucky = 100.0 if index == 3 and episodes.start == 0 else 0.0  # good in its first round only
        return [float(index == 1) + lucky for _ in episodes]

    assert choices.decide(choices.rounds(4, 2), play) == 3  # 100 over 2 of 6 episodes is still the best mean
    assert seen == [(i, range(2)) for i in range(4)] + [(3, range(2, 6)), (1, range(2, 6))]
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    assert choices.decide(choices.rounds(7, 1), lambda index, episodes: [values[index]] * len(episodes)) == 5


def test_noise_rarely_hides_the_best():
    """Finalists of worth 0 to 15, noise of standard deviation 10: 60 episodes hardly tell neighbours apart."""
    rng = np.random.default_rng(0)
    plan = choices.rounds(16, 4)
    winners = [
        choices.decide(plan, lambda index, episodes: list(index + 10 * rng.standard_normal(len(episodes))))
        for _ in range(200)
    ]
    assert np.mean(winners) > 12.5
    assert np.mean(np.array(winners) >= 10) > 0.95


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
    worths = {}
    decide = choices.decide

    def listening(plan, play):
        def record(index, episodes):
            worths.setdefault(index, []).extend(result := play(index, episodes))
            return result

        return decide(plan, record)

    monkeypatch.setattr(choices, "decide", listening)
    trainer = run(tmp_path)
    longest = max(map(len, worths.values()))
    finals = {index: np.mean(values) for index, values in worths.items() if len(values) == longest}
    assert len(finals) == 2
    assert trainer.choice.winner == max(finals, key=lambda index: finals[index])


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
