"""The deployable policy against a slow float64 version, and its file against every way of being wrong."""

import json
import math
import subprocess
import sys
import timeit
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ccpo import policy_file
from ccpo.errors import (
    CCPOError,
    ConfigError,
    FormatError,
    NumericalError,
    RunError,
    ThresholdError,
    ThresholdWarning,
)
from ccpo.runtime import Budget, NetConfig, Policy, PolicyNet
from ccpo.types import EnvSpec
from helpers import scaled

OBS, ACT = 5, 2
DISTRIBUTIONS = ["gaussian", "gaussian_linear", "squashed", "deterministic"]
ENV = EnvSpec("Toy", OBS, (-1.0, 0.0), (3.0, 0.5), 100)


def make_arrays(distribution="gaussian", conditioned=True, hidden=(7, 6), seed=0):
    rng = np.random.default_rng(seed)
    outputs = ACT * (2 if distribution in ("gaussian", "squashed") else 1)
    sizes = [OBS + conditioned, *hidden, outputs]
    arrays = {"obs_mean": rng.normal(size=OBS), "obs_std": rng.uniform(0.5, 2.0, OBS)}
    for i, (n, m) in enumerate(pairwise(sizes)):
        arrays[f"layers.{i}.weight"] = rng.normal(size=(n, m))
        arrays[f"layers.{i}.bias"] = rng.normal(size=m)
    if distribution == "gaussian_linear":
        arrays["log_std"] = np.array([-30.0, 0.3])
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def make_policy(distribution="gaussian", calibration=None, hidden=(7, 6), **settings):
    config = NetConfig(distribution, 10, 70, **settings)
    return Policy.create(
        make_arrays(distribution, config.conditioned, hidden),
        config,
        ENV,
        algorithm="ccpo",
        behaviour_thresholds=[20, 40, 60],
        versions={"ccpo": "0.1.0"},
        training={"steps": 1000, "nested": {"list": [1, 2.5, None]}},
        calibration=calibration,
    )


def slow_action(policy, obs, threshold, noise=None):
    """One action in policy units, element by element in float64."""
    config, arrays = policy.net.config, {k: v.astype(np.float64) for k, v in policy.net.arrays.items()}
    x = [min(10.0, max(-10.0, (obs[i] - arrays["obs_mean"][i]) / arrays["obs_std"][i])) for i in range(len(obs))]
    if config.conditioned:
        seen = min(max(threshold, config.asked[0]), config.asked[-1]) if config.asked else threshold
        for (a, b), (c, d) in zip(pairwise(config.asked), pairwise(config.shown), strict=True):
            if a <= seen <= b:
                seen = c + (seen - a) / (b - a) * (d - c)
                break
        x.append((seen - config.threshold_low) / config.threshold_high)
    depth = sum(name.endswith("weight") for name in arrays)
    for layer in range(depth):
        weight, bias = arrays[f"layers.{layer}.weight"], arrays[f"layers.{layer}.bias"]
        x = [sum(x[i] * weight[i, j] for i in range(len(x))) + bias[j] for j in range(len(bias))]
        if layer < depth - 1:
            x = [max(0.0, v) if config.activation == "relu" else math.tanh(v) for v in x]
    m, p = x[:ACT], x[ACT:]
    if noise is None:
        return [min(1.0, max(-1.0, v)) if config.distribution == "gaussian_linear" else math.tanh(v) for v in m]
    if config.distribution == "gaussian":
        std = [config.std_min + (config.std_max - config.std_min) / (1 + math.exp(-v)) for v in p]
        return [math.tanh(m[i]) + std[i] * noise[i] for i in range(ACT)]
    if config.distribution == "gaussian_linear":
        std = [math.exp(min(2.0, max(-20.0, v))) for v in arrays["log_std"]]
        return [m[i] + std[i] * noise[i] for i in range(ACT)]
    if config.distribution == "squashed":
        return [math.tanh(m[i] + math.exp(min(2.0, max(-20.0, p[i]))) * noise[i]) for i in range(ACT)]
    return [math.tanh(m[i]) + config.exploration_noise * noise[i] for i in range(ACT)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("conditioned", [True, False])
@pytest.mark.parametrize("beyond", [{}, {"asked": (10.0, 20.0, 40.0, 70.0), "shown": (17.0, 20.0, 50.0, 63.0)}])
def test_net_equals_the_slow_version(distribution, activation, conditioned, beyond):
    settings = {"activation": activation, "conditioned": conditioned, "exploration_noise": 0.1}
    policy = make_policy(distribution, **settings, **beyond)
    rng = np.random.default_rng(1)
    obs = rng.normal(scale=3, size=(6, OBS)).astype(np.float32)
    obs[0] *= 100  # beyond the clip of ±10
    threshold, noise = rng.uniform(0, 80, 6).astype(np.float32), rng.normal(size=(6, ACT)).astype(np.float32)
    mean, sample = policy.net.mean(obs, threshold), policy.net.sample(obs, threshold, noise)
    assert mean.dtype == sample.dtype == np.float32
    for i in range(6):
        np.testing.assert_allclose(mean[i], slow_action(policy, obs[i], threshold[i]), rtol=2e-4, atol=2e-4)
        expected = slow_action(policy, obs[i], threshold[i], noise[i])
        np.testing.assert_allclose(sample[i], expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_act_scales_to_the_box(distribution):
    policy = make_policy(distribution)
    obs = np.random.default_rng(2).normal(size=(4, OBS))
    low, high = np.array(ENV.action_low), np.array(ENV.action_high)
    for i in range(4):
        unit = np.array(slow_action(policy, obs[i], 30.0))
        action = policy.act(obs[i], 30.0)
        assert action.shape == (ACT,)
        assert action.dtype == np.float32
        np.testing.assert_allclose(action, low + (unit + 1) / 2 * (high - low), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(action, scaled(ENV, policy.net.mean(obs[i], 30.0)), atol=1e-5)


def test_one_and_many_observations_and_thresholds_agree():
    policy = make_policy()
    obs = np.random.default_rng(3).normal(size=(4, OBS)).astype(np.float32)
    thresholds = np.array([10, 25, 40, 70])
    each = np.stack([policy.act(o, t) for o, t in zip(obs, thresholds, strict=True)])
    np.testing.assert_allclose(policy.act(obs, thresholds), each, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.act(obs, 25), policy.act(obs, [25] * 4))
    np.testing.assert_allclose(policy.act(obs.tolist()[0], np.float32(25)), policy.act(obs[0], 25.0), atol=1e-6)
    assert policy.act(np.empty((0, OBS)), 25.0).shape == (0, ACT)


def test_threshold_moves_a_conditioned_policy_only():
    obs = np.zeros(OBS)
    assert not np.allclose(make_policy().act(obs, 10.0), make_policy().act(obs, 70.0))
    plain = make_policy(conditioned=False)
    np.testing.assert_array_equal(plain.act(obs, 10.0), plain.act(obs, 70.0))


def test_sampling_follows_the_generator_and_stays_in_the_box():
    policy, obs = make_policy(), np.zeros((200, OBS))

    def draw(seed):
        return policy.act(obs, 30.0, deterministic=False, rng=np.random.default_rng(seed))

    np.testing.assert_array_equal(draw(0), draw(0))
    assert not np.array_equal(draw(0), draw(1))
    assert (draw(0) >= ENV.action_low).all()
    assert (draw(0) <= ENV.action_high).all()
    assert not np.array_equal(policy.act(obs, 30.0, deterministic=False), policy.act(obs, 30.0, deterministic=False))


@pytest.mark.parametrize(
    "obs",
    [np.zeros(OBS + 1), np.zeros((2, 3, OBS)), 1.0, ["a"] * OBS, [[1], [1, 2]], None, np.zeros(OBS, complex)],
)
def test_wrong_observations_are_refused(obs):
    with pytest.raises(FormatError, match=r"expected numbers of shape \(5,\) or \(N, 5\)"):
        make_policy().act(obs, 30.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_non_finite_observations_are_refused(bad):
    obs = np.zeros(OBS)
    obs[2] = bad
    with pytest.raises(NumericalError, match="NaN or infinity"):
        make_policy().act(obs, 30.0)


@pytest.mark.parametrize("bad", [-1, -0.5, np.nan, np.inf, [10.0, -1.0], [np.nan, 20.0], 10**400, "ten", None])
def test_impossible_thresholds_are_refused(bad):
    with pytest.raises(ThresholdError, match="cost limit ≥ 0"):
        make_policy().act(np.zeros((2, OBS)), bad)


def test_thresholds_of_the_wrong_shape_are_refused():
    with pytest.raises(FormatError, match=r"shape \(3,\), expected \(\) or \(2,\)"):
        make_policy().act(np.zeros((2, OBS)), [20, 30, 40])
    with pytest.raises(FormatError, match=r"shape \(1,\), expected \(\) or \(\)"):
        make_policy().act(np.zeros(OBS), [20])


@pytest.mark.parametrize(("threshold", "text"), [(5.0, "5"), (71, "71"), ([5.0, 90.0], "5 … 90")])
def test_a_threshold_outside_the_range_warns_once(threshold, text):
    policy = make_policy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy.act(np.zeros((2, OBS)), threshold)
    assert [warning.category for warning in caught] == [ThresholdWarning]
    assert f"threshold {text} is outside the trained range 10 to 70" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_overflowing_weights_are_an_error_not_a_nan():
    arrays = make_arrays()
    arrays["layers.0.weight"][:] = arrays["layers.1.weight"][:] = 3e38
    arrays["layers.1.weight"][::2] *= -1
    policy = Policy(arrays, make_policy().manifest)
    with pytest.raises(NumericalError, match="not finite"):
        policy.act(np.arange(OBS), 30.0)


def test_calibration_takes_the_largest_request_not_above():
    policy = make_policy(calibration={"requested": [15.0, 30.0, 60.0], "dial": [11.0, 26.0, 69.0], "level": 0.95})
    obs = np.zeros(OBS)
    for request, dial in [(15.0, 11.0), (29.9, 11.0), (30, 26.0), (59.0, 26.0), (1e6, 69.0)]:
        np.testing.assert_array_equal(policy.act(obs, request, calibrated=True), policy.act(obs, dial))
    many = policy.act(np.zeros((2, OBS)), [20.0, 40.0], calibrated=True)
    np.testing.assert_array_equal(many, policy.act(np.zeros((2, OBS)), [11.0, 26.0]))
    with pytest.raises(ThresholdError, match="threshold 14 is below the smallest calibrated one; ask for 15 or more"):
        policy.act(obs, 14.0, calibrated=True)
    with pytest.raises(ThresholdError, match="ccpo calibrate"):
        make_policy().act(obs, 30.0, calibrated=True)


def test_one_action_is_quick():
    policy, obs = make_policy(hidden=(128, 128)), np.zeros(OBS, np.float32)
    seconds = min(timeit.repeat(lambda: policy.act(obs, 30.0), number=100, repeat=20)) / 100
    assert seconds < 150e-6  # about 25e-6 on an idle core


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_round_trip(tmp_path, distribution):
    policy = make_policy(distribution, calibration={"requested": [15.0], "dial": [11.0]})
    path = tmp_path / "new" / "policy.safetensors"
    policy.save(path)
    loaded = Policy.load(path)
    assert loaded.manifest == policy.manifest
    assert loaded.env == ENV
    assert loaded.net.config == policy.net.config
    for name, array in policy.net.arrays.items():
        np.testing.assert_array_equal(loaded.net.arrays[name], array)
    obs = np.ones((3, OBS))
    np.testing.assert_array_equal(loaded.act(obs, 33.0), policy.act(obs, 33.0))
    assert [p.name for p in path.parent.iterdir()] == ["policy.safetensors"]


def test_save_keeps_a_changed_manifest_and_checks_it(tmp_path):
    policy, path = make_policy(), tmp_path / "policy.safetensors"
    policy.manifest["evaluation"] = {"R": 1.0}
    policy.save(path)
    assert Policy.load(path).manifest["evaluation"] == {"R": 1.0}
    before = path.read_bytes()
    for bad, message in [
        ({"requested": [2.0, 1.0], "dial": [1.0, 1.0]}, "increasing"),
        ({"requested": [1.0], "dial": []}, "one number ≥ 0 for each"),
        ({"requested": [1.0], "dial": [float("nan")]}, "not plain JSON"),
        ([1, 2], "wrong kind"),
    ]:
        policy.manifest["calibration"] = bad
        with pytest.raises(FormatError, match=message):
            policy.save(path)
    policy.manifest["calibration"] = None
    policy.manifest["training"] = {"text": "x" * policy_file.MAX_HEADER_BYTES}
    with pytest.raises(FormatError, match="too large"):
        policy.save(path)
    assert path.read_bytes() == before


def test_a_failed_write_leaves_the_old_file_and_no_parts(tmp_path, monkeypatch):
    policy, path = make_policy(), tmp_path / "policy.safetensors"
    policy.save(path)
    before = path.read_bytes()

    def full_disk(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    policy.manifest["algorithm"] = "other"
    with pytest.raises(RunError, match="No space left"):
        policy.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_load_refuses_an_instance(tmp_path):
    policy, path = make_policy(), tmp_path / "policy.safetensors"
    policy.save(path)
    with pytest.raises(CCPOError, match=r"policy = Policy\.load\(path\)"):
        policy.load(path)


def refused(path, match):
    with pytest.raises(FormatError, match=match) as caught:
        Policy.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_300_random_corruptions_are_refused(tmp_path):
    path, rng = tmp_path / "p", np.random.default_rng(0)
    make_policy().save(path)
    data = path.read_bytes()
    header_end = 8 + int.from_bytes(data[:8], "little")
    for trial in range(300):
        # every other corruption hits the header, where it could change what the arrays mean
        at = int(rng.integers(header_end if trial % 2 else len(data)))
        kind = trial % 3
        if kind == 0:
            corrupt = data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
        elif kind == 1:
            corrupt = data[:at]
        else:
            corrupt = data[:at] + rng.bytes(int(rng.integers(1, 9))) + data[at:]
        path.write_bytes(corrupt)
        refused(path, "cannot load policy")


def test_files_that_are_not_policies(tmp_path):
    path = tmp_path / "p"
    refused(path, "no such file")
    refused(tmp_path, "it is a folder")
    for content in [b"", b"1234567", bytes(8), b"\xff" * 64, b"PK\x03\x04" + bytes(100), b"{}" * 50]:
        path.write_bytes(content)
        refused(path, "not a policy file, or truncated")
    path.write_bytes(safetensors.numpy.save(make_arrays()))
    refused(path, "without a policy manifest")
    path.write_bytes(safetensors.numpy.save(make_arrays(), {"manifest": "[]"}))
    refused(path, "must be a JSON object")


def test_a_sparse_giant_is_refused_unread(tmp_path):
    path = tmp_path / "p"
    with path.open("wb") as file:
        file.write((1 << 30).to_bytes(8, "little"))
        file.truncate(1 << 36)
    refused(path, "not a policy file")


def hostile_file(path, header):
    raw = json.dumps(header).encode() if isinstance(header, dict) else header
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(64))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"obs_mean": {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 64]}}, "damaged"),
        ({"obs_mean": {"dtype": "F32", "shape": [16], "data_offsets": [0, 1 << 60]}}, "damaged"),
        ({"obs_mean": {"dtype": "F32", "shape": [16], "data_offsets": [-1, 64]}}, "damaged"),
        ({"obs_mean": {"dtype": "F32", "shape": "16", "data_offsets": [0, 64]}}, "damaged"),
        ({"obs_mean": {"dtype": "F64", "shape": [8], "data_offsets": [0, 64]}}, "unexpected array"),
        ({"obs_mean": {"dtype": "BF16", "shape": [32], "data_offsets": [0, 64]}}, "unexpected array"),
        ({"../../etc/passwd": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, "unexpected array"),
        ({"obs_mean": [1]}, "unexpected array"),
        ({"obs_mean": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, "'obs_std' is missing"),
    ],
)
def test_hostile_headers(tmp_path, entry, message):
    manifest = policy_file.canonical(make_policy().manifest)
    hostile_file(tmp_path / "p", {"__metadata__": {"manifest": manifest}, **entry})
    refused(tmp_path / "p", message)


def test_deep_json(tmp_path):
    hostile_file(tmp_path / "p", b'{"a":' + b"[" * 500_000)
    refused(tmp_path / "p", "header is damaged")
    hostile_file(tmp_path / "p", {"__metadata__": {"manifest": '{"a":' + "[" * 500_000}})
    refused(tmp_path / "p", "manifest is damaged")
    hostile_file(tmp_path / "p", {"__metadata__": {"manifest": '{"a": NaN}'}})
    refused(tmp_path / "p", "NaN is not JSON")


def rewritten(path, arrays=None, **changes):
    """A file whose checksum is right and whose content is not."""
    policy = make_policy()
    manifest = {**policy.manifest, **changes}
    manifest = {name: value for name, value in manifest.items() if value != "drop"}
    arrays = policy.net.arrays if arrays is None else arrays
    manifest["checksum"] = policy_file.checksum(arrays, manifest)
    path.write_bytes(safetensors.numpy.save(arrays, {"manifest": policy_file.canonical(manifest)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "expected \\('ccpo-policy', 2\\)"),
        ({"format_version": 1}, "expected \\('ccpo-policy', 2\\)"),
        ({"env": "drop"}, "'env' is missing or of the wrong kind"),
        ({"env": {"task": "Toy"}}, "'env' lacks"),
        ({"env": {**vars(ENV), "extra": 1}}, "unknown \\['extra'\\]"),
        ({"env": {**vars(ENV), "observation_size": 6}}, "sizes \\(5, 2\\), the manifest's env \\(6, 2\\)"),
        ({"env": {**vars(ENV), "observation_size": 5.0}}, "sizes above 0"),
        ({"env": {**vars(ENV), "action_low": [-1.0]}}, "equal length"),
        ({"env": {**vars(ENV), "action_low": [-1.0, 10**400]}}, "equal length"),
        ({"env": {**vars(ENV), "action_low": [-1.0, 0.5]}}, "must be below"),
        (
            {"net": {"distribution": "gauss", "threshold_low": 1, "threshold_high": 2}},
            "did you mean 'gaussian'",
        ),
        ({"net": {"distribution": [1], "threshold_low": 1, "threshold_high": 2}}, "is unknown"),
        ({"net": {"distribution": "gaussian", "threshold_low": 3, "threshold_high": 2}}, "ordered"),
        ({"net": {"distribution": "gaussian", "threshold_low": "1", "threshold_high": 2}}, "finite number"),
        ({"behaviour_thresholds": []}, "increasing"),
        ({"behaviour_thresholds": [20, "40"]}, "increasing"),
        ({"behaviour_thresholds": [[20], [40]]}, "increasing"),
        ({"calibration": {}}, "calibration.requested"),
        ({"surprise": 1}, "unknown fields \\['surprise'\\]"),
    ],
)
def test_wrong_manifests(tmp_path, changes, message):
    rewritten(tmp_path / "p", **changes)
    refused(tmp_path / "p", message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layers.1.weight", None, "'layers.1.weight' is missing, expected shape"),
        ("layers.1.bias", None, "'layers.1.bias' is missing"),
        ("layers.2.bias", None, "arrays expected|outputs"),
        (
            "layers.0.weight",
            np.zeros((5, 7)),
            r"'layers.0.weight' has shape \(5, 7\), expected shape \(6, 7\)",
        ),
        ("layers.2.weight", np.full((6, 4), np.nan), "holds NaN"),
        ("layers.0.bias", np.zeros((7, 1)), "expected a vector"),
        ("layers.4.bias", np.zeros(3), "'layers.3.bias' is missing"),
        ("log_std", np.zeros(2), "arrays expected"),
        ("obs_mean", np.zeros(0), "not empty"),
        ("obs_std", np.zeros(5), "above 0"),
        ("obs_std", np.ones(4), "'obs_std' has shape"),
    ],
)
def test_wrong_arrays(tmp_path, name, value, message):
    arrays = make_arrays()
    arrays.pop(name, None)
    if value is not None:
        arrays[name] = value.astype(np.float32)
    rewritten(tmp_path / "p", arrays)
    refused(tmp_path / "p", message)


def test_an_odd_last_layer_is_refused():
    arrays = make_arrays()
    arrays["layers.2.weight"], arrays["layers.2.bias"] = np.zeros((6, 3)), np.zeros(3)
    with pytest.raises(FormatError, match="3 outputs, expected a mean and a scale"):
        PolicyNet(arrays, NetConfig("gaussian", 10, 70))


LINES = [
    {"asked": (10.0, 70.0)},
    {"asked": (70.0, 10.0), "shown": (10.0, 70.0)},
    {"asked": (10.0, 70.0), "shown": (70.0, 10.0)},
    {"asked": (10.0, 70.0), "shown": (-1.0, 10.0)},
    {"asked": (10.0, "x"), "shown": (10.0, 70.0)},
]


def test_net_config_refuses_nonsense():
    for settings in [{"conditioned": 1}, {"std_min": 2.0}, {"activation": "gelu"}, {"exploration_noise": -1}, *LINES]:
        with pytest.raises(ConfigError):
            NetConfig("gaussian", 10, 70, **settings)  # type: ignore[arg-type] the point of the test
    with pytest.raises(ConfigError, match="ordered"):
        NetConfig("gaussian", 0, 0)


def test_budget():
    budget = Budget(2)
    for cost in (1, 0.5, 0.5):
        budget.spend(cost)
    assert (budget.spent, budget.left, budget.exceeded) == (2.0, 0.0, False)
    budget.spend(np.float32(1.0))
    assert (budget.spent, budget.left, budget.exceeded) == (3.0, 0.0, True)
    budget.reset()
    assert (budget.threshold, budget.spent, budget.left) == (2.0, 0.0, 2.0)
    budget.reset(5)
    assert budget.left == 5.0
    for bad in (-1, np.nan, np.inf, "1"):
        with pytest.raises(NumericalError, match="finite number ≥ 0"):
            budget.spend(bad)  # type: ignore[arg-type] the point of the test
        with pytest.raises(ThresholdError, match="cost limit ≥ 0"):
            Budget(bad)  # type: ignore[arg-type] the point of the test
    assert budget.spent == 0.0


def test_needs_numpy_and_safetensors_only():
    code = """
import sys
class OnlyNumpyAndSafetensors:
    allowed = {"ccpo", "numpy", "safetensors", "mkl", *sys.stdlib_module_names}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.allowed:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, OnlyNumpyAndSafetensors())
import ccpo.runtime
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
