"""Pictures: what they show agrees with the episodes, and the files are what they should be."""

import shutil

import numpy as np
import pytest
from PIL import Image

from ccpo.cli import main
from ccpo.deploy.render import COST_COLOURS, Picture, check_animation, record_all, save_animation
from ccpo.deploy.watching import optimal_actor, trained_actor
from ccpo.errors import ConfigError, MissingExtraError, ThresholdError, ThresholdWarning
from deploy.policies import save_random_policy
from deploy.toy import closed_agent, closed_cost
from extras import NEEDS_BULLET, NEEDS_MUJOCO


def test_recordings_share_their_start_and_differ_by_threshold():
    recordings = record_all(optimal_actor("DriftBudget"), [10.0, 70.0], seed=4)
    assert (recordings[0].places[0] == recordings[1].places[0]).all()
    assert recordings[0].costs.sum() < recordings[1].costs.sum()
    assert recordings[0].places.shape == (101, 1)
    assert recordings[0].actions.shape == (100, 1)
    assert record_all(optimal_actor("DriftBudget"), [10.0], seed=4)[0].costs.tolist() == recordings[0].costs.tolist()


@pytest.mark.parametrize(
    ("thresholds", "seed", "error"),
    [
        ([], 0, ConfigError),
        ([1.0] * 13, 0, ConfigError),
        ([float("nan")], 0, ThresholdError),
        ([20.0], -1, ConfigError),
    ],
)
def test_what_cannot_be_drawn_is_refused(thresholds, seed, error):
    with pytest.raises(error):
        record_all(optimal_actor("StaticBudget"), thresholds, seed)


def test_a_threshold_outside_the_range_is_drawn_with_a_warning():
    with pytest.warns(ThresholdWarning, match="outside the trained range 1 to 20: 30"):
        record_all(optimal_actor("StaticBudget-T20"), [10.0, 30.0])


@NEEDS_BULLET
def test_a_path_is_drawn_from_above_and_coloured_by_its_cost(tmp_path):
    actor = trained_actor(save_random_policy(tmp_path, "BallCircle", seed=3))
    [recording] = record_all(actor, [40.0])
    assert 0 < recording.costs.sum() < 200
    picture = Picture(actor, [recording])
    [line] = [artist for artist in picture.figure.axes[0].collections if len(artist.get_segments()) > 0]
    assert np.allclose([segment[1] for segment in line.get_segments()], recording.places[1:])
    colours = {tuple(np.round(255 * colour[:3]).astype(int)) for colour in line.to_rgba(line.get_array())}
    assert colours == {tuple(bytes.fromhex(hex[1:])) for hex in (COST_COLOURS[0], COST_COLOURS[-1])}
    captions = [text.get_text() for text in picture.figure.axes[0].texts]
    assert captions == ["threshold 40", f"cost {recording.costs.sum():.3g}, reward {recording.rewards.sum():.3g}"]

    picture.show(50)
    assert len(line.get_segments()) == 50


def test_a_closed_loop_is_drawn_running_out_of_its_budget(tmp_path):
    closed_agent().save(tmp_path / "policy.safetensors")
    actor = trained_actor(tmp_path / "policy.safetensors")
    recordings = record_all(actor, [20.0, 60.0])
    for recording in recordings:
        assert recording.costs.sum() == pytest.approx(closed_cost(recording.threshold), rel=1e-4)
        assert (np.diff(recording.costs) <= 0.0).all()
    meters = Picture(actor, recordings).figure.axes[1::2]
    spent = [axes.lines[-1].get_ydata()[-1] for axes in meters]
    assert spent == pytest.approx([closed_cost(20.0), closed_cost(60.0)], rel=1e-4)


def test_an_animation_grows_and_ends_with_the_picture(tmp_path):
    actor = optimal_actor("BalanceBudget-T20")
    picture = Picture(actor, record_all(actor, [4.0, 14.0]))
    save_animation(picture, tmp_path / "paths.gif")
    with Image.open(tmp_path / "paths.gif") as image:
        assert image.n_frames == 20
        assert image.size == tuple(np.round(picture.figure.get_size_inches() * picture.figure.dpi).astype(int))


def test_an_mp4_needs_ffmpeg(monkeypatch):
    monkeypatch.setattr("matplotlib.animation.FFMpegWriter.isAvailable", lambda: False)
    with pytest.raises(MissingExtraError, match="needs the program 'ffmpeg'"):
        check_animation("mp4")
    check_animation("gif")


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="needs the program 'ffmpeg'")
def test_an_mp4_is_written(tmp_path):
    actor = optimal_actor("StaticBudget-T20")
    save_animation(Picture(actor, record_all(actor, [4.0])), tmp_path / "paths.mp4")
    assert (tmp_path / "paths.mp4").stat().st_size > 1000


@pytest.mark.parametrize("task", ["LateBudget-T10", pytest.param("DroneRun", marks=NEEDS_BULLET)])
def test_the_command_writes_its_files(tmp_path, capsys, task):
    policy = save_random_policy(tmp_path, task)
    assert main(["render", str(policy), "--out", str(tmp_path / "out"), "--animate", "none"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["paths.png", "paths.svg"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["threshold 10", "threshold 40", "threshold 70"]


def test_a_wrong_file_is_one_line(tmp_path, capsys):
    assert main(["render", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@NEEDS_MUJOCO
def test_a_picture_from_the_side_shows_the_speed_and_the_robot(tmp_path):
    actor = trained_actor(save_random_policy(tmp_path, "HopperVelocity"))
    picture = Picture(actor, record_all(actor, [20.0], seed=0))
    (recording,), (panel,) = picture.recordings, picture._panels
    (line,), steps = panel._lines, len(recording.costs)
    points = np.array([segment[1] for segment in line.get_segments()])
    assert points[:, 0].tolist() == list(range(1, steps + 1))
    assert np.allclose(points[:, 1], recording.places[1:, 1])
    assert ((points[:, 1] > 0.7402) == recording.costs).all()
    assert len(recording.bodies) == steps + 1
    first, last = (np.array(recording.bodies[i])[:, :4].reshape(-1, 2, 2) for i in (0, -1))
    assert np.allclose(panel._robot._rods.get_segments(), last - (last[0, 0, 0], 0.0), atol=2e-3)
    picture.show(0)
    assert np.allclose(panel._robot._rods.get_segments(), first - (first[0, 0, 0], 0.0), atol=2e-3)
    low, high = picture._view()[1]
    assert points[:, 1].max() <= high - 0.4 * (high - low)
