"""Trained agents that come with the package."""

from pathlib import Path

import numpy as np
import pytest

import ccpo
from ccpo import agent
from ccpo.deploy.card import model_card
from ccpo.errors import CCPOError, RunError

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


def test_a_file_or_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("BallCircle").mkdir()
    with pytest.raises(CCPOError, match="not a run folder"):
        ccpo.load("BallCircle")
