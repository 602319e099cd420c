import numpy as np
import pytest

from ccpo import agent
from ccpo.cli import main
from ccpo.combination import combine
from ccpo.deploy.onnx import export_onnx
from ccpo.errors import ConfigError, FormatError
from ccpo.runtime import NetConfig, Policy, combination_weights
from ccpo.types import EnvSpec

MEMBERS = np.array([20.0, 40.0, 60.0], np.float32)
SPEC = EnvSpec("StaticBudget-T20", 2, (-1.0,), (1.0,), 20)


def constant_policy(threshold, action, *, algorithm="ppo_lag", spec=SPEC, condition="none"):
    """A policy whose mean action is the same everywhere, with a scale of 0.1."""
    size, config = spec.observation_size, NetConfig("gaussian_linear", (2.0,), (70.0,), condition)
    arrays = {
        "obs_mean": np.zeros(size),
        "obs_std": np.ones(size),
        "layers.0.weight": np.zeros((size + config.condition_size, 1)),
        "layers.0.bias": np.array([action]),
        "log_std": np.log([0.1]),
    }
    return Policy.create(
        arrays,
        config,
        spec,
        algorithm=algorithm,
        behaviour_thresholds=[threshold],
        versions={},
        training={"seed": 3, "steps_done": 100},
    )


@pytest.fixture
def combined():
    return combine([constant_policy(t, a) for t, a in ((60.0, 0.6), (20.0, 0.1), (40.0, 0.5))])


@pytest.mark.parametrize(
    ("threshold", "weights"),
    [
        (20, [1, 0, 0]),
        (40, [0, 1, 0]),
        (60, [0, 0, 1]),
        (25, [0.75, 0.25, 0]),
        (50, [0, 0.5, 0.5]),
        (10, [1.5, -0.5, 0]),
        (70, [0, -0.5, 1.5]),
    ],
)
def test_weights_at_between_and_beyond_the_members(threshold, weights):
    np.testing.assert_allclose(combination_weights(MEMBERS, threshold), weights, atol=1e-6)


def test_weights_of_many_thresholds():
    many = np.linspace(0, 80, 9).reshape(3, 3)
    weights = combination_weights(MEMBERS, many)
    assert weights.shape == (3, 3, 3)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(weights @ MEMBERS, many, atol=1e-4)


def test_actions_are_combined_and_clipped(combined):
    thresholds = np.array([20.0, 30.0, 50.0, 70.0, 2.0])
    actions = combined.act(np.zeros((5, 2)), thresholds)[:, 0]
    np.testing.assert_allclose(actions, [0.1, 0.3, 0.55, 0.65, -0.26], atol=1e-6)
    assert combined.act(np.zeros(2), 40.0) == pytest.approx(0.5)
    steep = combine([constant_policy(20.0, -1.0), constant_policy(40.0, 0.9)])
    assert combined.act(np.zeros(2), 40.0).shape == steep.act(np.zeros(2), 70.0).shape
    assert steep.net.mean(np.zeros(2, np.float32), np.float32([70.0]), np.float32(1.0)) == 1.0


def test_it_acts_open_loop(combined):
    assert not combined.closed_loop
    assert combined.net.config.condition == "threshold"
    episode = combined.episode(30.0)
    before = episode.act(np.zeros(2))
    episode.pay(25.0)
    assert episode.act(np.zeros(2)) == before == pytest.approx(0.3)
    episode.threshold = 50.0
    assert episode.act(np.zeros(2)) == pytest.approx(0.55)


def test_samples_share_their_noise(combined):
    obs, noise = np.zeros((4, 2), np.float32), np.full((4, 1), 2.0, np.float32)
    sample = combined.net.sample(obs, np.full((4, 1), 30.0, np.float32), np.float32(1.0), noise)
    np.testing.assert_allclose(sample, np.full((4, 1), 0.3 + 0.2), atol=1e-6)


def test_it_is_one_file_that_evaluates_like_any_other(combined, tmp_path):
    combined.save(tmp_path / "c.safetensors")
    loaded = agent.load(tmp_path / "c.safetensors")
    assert loaded.algorithm == "c_ppo_lag"
    assert loaded.behaviour_thresholds == (20.0, 40.0, 60.0)
    table = loaded.evaluate([20.0, 30.0], episodes=2, workers=1)
    np.testing.assert_allclose(table.reward, [2.0, 2.0, 6.0, 6.0], rtol=1e-5)
    assert set(table.seed) == {3}


def test_arrays_that_do_not_make_the_members_are_refused(combined):
    arrays = dict(combined.net.arrays)
    with pytest.raises(FormatError, match="do not make 3 members"):
        Policy({**arrays, "member.7.log_std": np.zeros(1)}, combined.manifest)
    with pytest.raises(FormatError, match="obs_std"):
        Policy({**arrays, "member.1.obs_std": np.zeros(2)}, combined.manifest)
    for members in ((20.0,), (40.0, 20.0), (-1.0, 20.0), "20,40"):
        with pytest.raises(ConfigError, match="members"):
            NetConfig("gaussian_linear", (2.0,), (70.0,), "threshold", members=members)


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ([constant_policy(20.0, 0.1)], "thresholds are 20; combine two or more"),
        ([constant_policy(20.0, 0.1)] * 2, "thresholds are 20, 20; combine two or more that all differ"),
        ([constant_policy(20.0, 0.1), constant_policy(40.0, 0.1, algorithm="trpo_lag")], "differ in their algorithm"),
        ([constant_policy(20.0, 0.1), constant_policy(40.0, 0.1, condition="threshold")], "sees its threshold already"),
        ([constant_policy(20.0, 0.1), constant_policy(40.0, 0.1, condition="budget")], "sees its threshold already"),
        (
            [constant_policy(20.0, 0.1), constant_policy(40.0, 0.1, spec=EnvSpec("Other", 2, (-1.0,), (1.0,), 20))],
            "differ in their environment",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(policies, message):
    with pytest.raises(ConfigError, match=message):
        combine(policies)


def test_a_combination_has_no_onnx_model(combined, tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ConfigError, match="no ONNX model"):
        export_onnx(combined, tmp_path / "c.onnx")


def test_the_command(tmp_path, capsys):
    files = [tmp_path / f"{t:g}.safetensors" for t in MEMBERS]
    for file, threshold in zip(files, MEMBERS.tolist(), strict=True):
        constant_policy(threshold, 0.01 * threshold, algorithm="trpo_lag").save(file)
    out = tmp_path / "out" / "c.safetensors"
    assert main(["combine", *map(str, files), "--out", str(out)]) == 0
    assert "ccpo evaluate" in capsys.readouterr().out
    assert Policy.load(out).manifest["algorithm"] == "c_trpo_lag"
    assert main(["combine", *map(str, files), "--out", str(tmp_path / "c.txt")]) == 2
    assert "must end in .safetensors" in capsys.readouterr().err
    assert main(["list", "algorithms"]) == 0
    assert "c_trpo_lag" in capsys.readouterr().out
    assert main(["train", "--task", "StaticBudget", "--algorithm", "c_ppo_lag"]) == 2
    assert "train 'ppo_lag' at each threshold first" in capsys.readouterr().err
