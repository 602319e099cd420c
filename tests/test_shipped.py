"""Trained agents that come with the package."""

from pathlib import Path

import numpy as np
import pytest

import ccpo
from ccpo import agent
from ccpo.deploy.card import model_card
from ccpo.errors import CCPOError, RunError, ThresholdError

FOLDER = Path(ccpo.__file__).parent / "pretrained"
NAMES = sorted(path.stem for path in FOLDER.glob("*.safetensors"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_agent_is_small_and_acts(name):
    assert (FOLDER / f"{name}.safetensors").stat().st_size < 1_000_000
    for given in (name, f"pretrained/{name}"):
        trained = ccpo.load(given)
        assert trained.task == name
        assert trained.policy.manifest["evaluation"] is not None
        action, _ = trained.predict(np.zeros(trained.policy.env.observation_size, np.float32), threshold=35.0)
        assert np.isfinite(action).all()


@pytest.mark.parametrize("name", NAMES)
def test_its_card_is_what_export_writes_and_shows_no_picture_that_is_not_there(name):
    file = FOLDER / f"{name}.safetensors"
    card = file.with_suffix(".md").read_text("utf-8")
    assert card == model_card(ccpo.load(name).policy, file_name=file.name)


def test_ball_circle_is_among_them_and_its_results_go_to_a_folder_of_its_name():
    assert "BallCircle" in NAMES
    assert agent.results_folder("pretrained/BallCircle") == Path("pretrained/BallCircle")


def test_a_name_that_is_not_shipped_is_answered_with_those_that_are():
    with pytest.raises(RunError, match="BallCircle"):
        ccpo.load("pretrained/NoSuchTask")


def test_a_misspelt_name_is_answered_with_a_suggestion():
    with pytest.raises(RunError, match=r"no agent of that name comes with the package; did you mean 'BallCircle'\?"):
        ccpo.load("BalCircle")


def test_an_agent_shows_itself():
    agent = ccpo.load("BallCircle")
    assert repr(agent) == "<Agent: ccpo on BallCircle>"
    assert "10 to 70, trained under 20, 40, 60" in str(agent)
    assert "<pre" in agent._repr_html_()
    assert repr(agent.policy) == "<Policy: ccpo on BallCircle, thresholds 10 to 70>"
    assert repr(agent.episode(35.0)) == "<PolicyEpisode on BallCircle: 0 of 35 spent in 0 steps>"


def test_predict_takes_the_keywords_of_act():
    agent, obs = ccpo.load("BallCircle"), np.zeros(8, np.float32)
    with pytest.raises(ThresholdError, match="not calibrated"):
        agent.predict(obs, 35.0, calibrated=True)
    with pytest.raises(ThresholdError, match="threshold is missing"):
        agent.predict(obs)


def test_a_file_or_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("BallCircle").mkdir()
    with pytest.raises(CCPOError, match="not a run folder"):
        ccpo.load("BallCircle")
