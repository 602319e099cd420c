"""A probe finds what is reachable where that is known, recommends thresholds inside it, and says what will not work."""

import sys
import tomllib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import ccpo
from ccpo import config
from ccpo.errors import ConfigError, EnvError
from ccpo.probing import recommended
from ccpo.probing.report import sparkline
from ccpo.probing.search import KINDS, RANDOM, SAVING, SEEKING
from ccpo.schedule import LoopConfig, default_steps

sys.path.insert(0, str(Path(__file__).parent / "journeys"))

from worlds import CartEnv, SpeedEnv


class Odd(gymnasium.Env):
    """Whatever a test wants: how a step costs, what is seen, which actions there are."""

    episode_length = 20

    def __init__(self, cost=lambda action: 0.0, scale=1.0, action_space=None, end=None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,))
        self.action_space = action_space or spaces.Box(-1.0, 1.0, (1,))
        self.cost, self.scale, self.end = cost, scale, end

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.array([self.scale * self.steps], np.float32)
        ended = self.end is not None and self.steps >= self.end
        return obs, float(action[0]), ended, False, {"cost": float(self.cost(action[0]))}


def probe(env, **options):
    return ccpo.probe(env, timing=False, episodes=60, **options)


@pytest.fixture(scope="module")
def speed():
    return ccpo.probe(SpeedEnv, timing=False)


def test_it_reaches_what_the_point_mass_can_cost_and_earn(speed):
    """At full speed an episode costs Σ (1 − 0.8ᵗ)², and standing still costs nearly nothing."""
    fastest = 1 - 0.8 ** np.arange(1, 51)
    low, high = speed.reachable
    assert high == pytest.approx((fastest**2).sum(), rel=0.1)
    assert 0 <= low < 0.05 * high
    rewards = [np.mean([each.reward for each in speed.of(kind)]) for kind in KINDS]
    assert rewards[2] == pytest.approx(fastest.sum(), rel=0.1)
    assert speed.largest_cost == pytest.approx(1.0, abs=0.02)


def test_what_it_recommends_lies_inside_and_is_taken_by_training(speed, tmp_path):
    low, high = speed.settings["threshold_range"]
    behaviour = speed.settings["behaviour_thresholds"]
    assert speed.reachable[0] < low < behaviour[0] < behaviour[1] < behaviour[2] < high < speed.reachable[1]
    assert speed.settings["steps"] == default_steps(50)
    config.build((LoopConfig,), speed.settings)
    toml, *pictures = speed.save(tmp_path)
    assert toml == tmp_path / "probe-SpeedEnv.toml"
    stored = tomllib.loads(toml.read_text())
    assert {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()} == speed.settings
    assert [path.suffix for path in pictures] == [".png", ".svg"]


def test_the_same_seed_finds_the_same(speed):
    again = ccpo.probe(SpeedEnv, timing=False)
    assert [each[:3] for each in again.tries] == [each[:3] for each in speed.tries]


def test_it_shows_itself(speed):
    shown = str(speed)
    assert all(kind in shown for kind in KINDS)
    assert "recommended" in shown
    assert "60,000" in shown
    assert "<pre" in speed._repr_html_()
    assert repr(speed).startswith("<Probe: SpeedEnv, cost ")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (lambda: Odd(), "no step cost anything"),
        (lambda: Odd(cost=lambda action: 1.0), "actions hardly change the cost"),
    ],
)
def test_where_there_is_nothing_to_learn_nothing_is_recommended(env, expected, tmp_path):
    found = probe(env)
    assert any(expected in warning for warning in found.warnings)
    assert found.settings == {}
    assert {path.suffix for path in found.save(tmp_path)} == {".png", ".svg"}


def test_what_looks_wrong_is_said():
    def square(action):
        return action**2

    assert any("observations reach" in w for w in probe(lambda: Odd(square, scale=1e6)).warnings)
    assert any("ended early" in w for w in probe(lambda: Odd(square, end=3)).warnings)
    assert probe(lambda: Odd(square)).warnings == ()
    given = probe(lambda: Odd(square), behaviour_thresholds=(5, 10, 90), threshold_range=(1, 95))
    assert any("outside the cost that was reached" in w and "90, 95" in w for w in given.warnings)
    assert given.settings["behaviour_thresholds"] == (5.0, 10.0, 90.0)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (1,))])
def test_actions_that_cannot_be_learned_are_an_error(space):
    with pytest.raises(EnvError, match=r"actions must be a Box|must have finite bounds"):
        probe(lambda: Odd(action_space=space))


def test_an_early_end_is_no_way_to_save_cost():
    """Ending at once would cost least; a failure is counted as if each step that it skips cost the most."""

    class Quitter(Odd):
        def step(self, action):
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, bool(action[0] > 0.0), truncated, info

    found = probe(lambda: Quitter(lambda action: 0.5 + 0.5 * abs(action), scale=0.0))
    assert np.mean([each.length for each in found.of(SAVING)]) == 20
    assert np.mean([each.length for each in found.of(RANDOM)]) < 5


def test_observations_in_a_dict_are_no_obstacle():
    found = probe(CartEnv)
    assert found.spec.observation_size == 5
    assert found.settings["threshold_range"][0] > 0
    assert np.mean([t.cost for t in found.of(SEEKING)]) > np.mean([t.cost for t in found.of(SAVING)])


def test_too_few_episodes_are_refused():
    with pytest.raises(ConfigError, match="must be at least 30"):
        ccpo.probe(SpeedEnv, episodes=5)


@pytest.mark.parametrize("span", [0.003, 0.5, 7.0, 43.2, 12_345.0])
def test_recommendations_rise_strictly_at_every_scale(span):
    settings = recommended(0.02 * span, span, 100, {})
    low, high = settings["threshold_range"]
    assert 0 < low < settings["behaviour_thresholds"][0]
    assert settings["behaviour_thresholds"][2] < high < span
    config.build((LoopConfig,), settings)


def test_the_command_that_it_recommends_names_all_that_training_must_be_told(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("odd_world.py").write_text("from test_probing import Odd\n\n\ndef make():\n    return Odd(lambda a: a * a)\n")
    found = probe("odd_world.py:make", episode_length=10, early_end="success")
    expected = "ccpo train --env odd_world.py:make --episode-length 10 --early-end success --config a.toml"
    assert found.command(Path("a.toml")) == expected


def test_bars_are_as_high_as_what_they_show():
    assert sparkline(np.array([0.0, 0.0])) == "▁▁"
    assert sparkline(np.array([1.0, 8.0])) == "▂█"
