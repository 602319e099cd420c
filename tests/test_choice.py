import numpy as np
import pytest

from ccpo import choice as choices
from ccpo.errors import ConfigError
from ccpo.types import Episode
from helpers import make_trainer


def episode(reward: float, cost: float, *, threshold: float = 20.0, deterministic: bool = True) -> Episode:
    return Episode(threshold, reward, cost, 200, deterministic)


def policy(value: float) -> dict[str, np.ndarray]:
    return {"weight": np.array(value, np.float32)}


@pytest.mark.parametrize(
    ("reward", "cost", "threshold", "expected"),
    [
        (100.0, 20.0, 20.0, 100.0),  # on the threshold: no violation
        (100.0, 25.0, 20.0, 75.0),
        (100.0, 40.0, 20.0, 0.0),
        (-100.0, 25.0, 20.0, -125.0),  # a violation never pays
        (100.0, 0.5, 0.0, 50.0),
    ],
)
def test_worth_of_an_episode(reward, cost, threshold, expected):
    assert choices.worth(episode(reward, cost, threshold=threshold)) == pytest.approx(expected)


def test_the_policy_with_the_best_running_worth_is_chosen():
    choice = choices.init(policy(0.0))
    assert not choice.made
    for value, reward in enumerate([10.0, 20.0, 60.0, 0.0, 30.0], start=1):
        choice = choices.offer(choice, policy(value), [episode(reward, 0.0)], eligible=True)
    # running: 10, 12, 21.6, 17.28, 19.82
    assert choice.made
    assert choice.arrays["weight"] == 3.0
    np.testing.assert_allclose([choice.best, choice.running], [21.6, 19.824], rtol=1e-5)


def test_only_eligible_policies_and_episodes_as_deployed_count():
    choice = choices.offer(choices.init(policy(0.0)), policy(1.0), [episode(90.0, 0.0)], eligible=False)
    assert not choice.made
    noisy = [episode(500.0, 0.0, deterministic=False)]
    assert choices.offer(choice, policy(2.0), noisy, eligible=True) == choice
    choice = choices.offer(choice, policy(3.0), [episode(10.0, 0.0), *noisy], eligible=True)
    assert choice.arrays["weight"] == 3.0
    assert choice.best == pytest.approx(90.0 + choices.RATE * (10.0 - 90.0))


def test_a_run_deploys_the_policy_that_it_chose(tmp_path):
    trainer = make_trainer(tmp_path, checkpoint_every=720)
    acted = []
    trainer.train(lambda _: acted.append(trainer.choice))
    first = round(0.5 * len(acted))
    assert not any(choice.made for choice in acted[: first - 1])
    assert acted[-1].made
    deployed = trainer.policy().net.arrays
    for name, array in trainer.choice.arrays.items():
        np.testing.assert_array_equal(deployed[name], array, err_msg=name)
    assert acted[-1].best == max(choice.running for choice in acted[first:])


def test_without_a_share_the_newest_policy_is_deployed(tmp_path):
    trainer = make_trainer(tmp_path, choice_share=0.0)
    trainer.train()
    assert not trainer.choice.made
    newest = trainer.algorithm.acting(trainer.config, trainer.problem, trainer.state).deploy
    for name, array in trainer.policy().net.arrays.items():
        np.testing.assert_array_equal(array, newest[name], err_msg=name)


def test_a_choice_needs_lanes_that_act_as_deployed(tmp_path):
    with pytest.raises(ConfigError, match="deployed_lanes=1"):
        make_trainer(tmp_path, choice_share=0.5, deployed_lanes=0)
