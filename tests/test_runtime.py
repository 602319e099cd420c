"""The deployable policy against a slow float64 version, and its file against every way of being wrong."""

import json
import math
import subprocess
import sys
import time
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
from ccpo.runtime import NetConfig, Policy, PolicyEpisode, PolicyNet
from ccpo.types import EnvSpec
from helpers import scaled

OBS, ACT = 5, 2
DISTRIBUTIONS = ["gaussian", "gaussian_linear", "squashed", "deterministic"]
ENV = EnvSpec("Toy", OBS, (-1.0, 0.0), (3.0, 0.5), 100)


CONDITIONS = ["none", "threshold", "budget"]
SEEN = {"none": 0, "threshold": 1, "budget": 3}
"""Numbers besides the observation."""


def make_arrays(distribution="gaussian", condition="budget", hidden=(7, 6), seed=0):
    rng = np.random.default_rng(seed)
    outputs = ACT * (2 if distribution in ("gaussian", "squashed") else 1)
    sizes = [OBS + SEEN[condition], *hidden, outputs]
    arrays = {"obs_mean": rng.normal(size=OBS), "obs_std": rng.uniform(0.5, 2.0, OBS)}
    for i, (n, m) in enumerate(pairwise(sizes)):
        arrays[f"layers.{i}.weight"] = rng.normal(size=(n, m))
        arrays[f"layers.{i}.bias"] = rng.normal(size=m)
    if distribution == "gaussian_linear":
        arrays["log_std"] = np.array([-30.0, 0.3])
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def make_config(distribution="gaussian", condition="budget", **settings):
    return NetConfig(distribution, (10.0,), (70.0,), condition, **settings)


NET = {"distribution": "gaussian", "threshold_low": [10.0], "threshold_high": [70.0], "condition": "budget"}


def make_policy(distribution="gaussian", condition="budget", *, calibration=None, hidden=(7, 6), **settings):
    config = make_config(distribution, condition, **settings)
    return Policy.create(
        make_arrays(distribution, condition, hidden),
        config,
        ENV,
        algorithm="ccpo",
        behaviour_thresholds=[20, 40, 60],
        versions={"ccpo": "0.1.0"},
        training={"steps": 1000, "nested": {"list": [1, 2.5, None]}},
        calibration=calibration,
    )


def slow_action(policy, obs, budget, to_go=1.0, noise=None):
    """One action in policy units, element by element in float64; open loop, `budget` is the threshold."""
    config, arrays = policy.net.config, {k: v.astype(np.float64) for k, v in policy.net.arrays.items()}
    x = [min(10.0, max(-10.0, (obs[i] - arrays["obs_mean"][i]) / arrays["obs_std"][i])) for i in range(len(obs))]
    if config.condition == "threshold":
        x.append((budget - config.threshold_low[0]) / config.threshold_high[0])
    if config.condition == "budget":
        share = min(1.2, max(-0.3, budget / config.threshold_high[0]))
        x += [share, math.exp(-8.0 * max(share, 0.0)), to_go]
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
@pytest.mark.parametrize("condition", CONDITIONS)
def test_net_equals_the_slow_version(distribution, activation, condition):
    policy = make_policy(distribution, condition, activation=activation, exploration_noise=0.1)
    rng = np.random.default_rng(1)
    obs = rng.normal(scale=3, size=(6, OBS)).astype(np.float32)
    obs[0] *= 100  # beyond the clip of ±10
    # overspent within and beyond the clip, spent exactly, nearly, hardly, and above the range
    budget = np.array([[-10.0], [-50.0], [0.0], [1.5], [66.0], [200.0]], np.float32)
    to_go, noise = rng.uniform(size=6).astype(np.float32), rng.normal(size=(6, ACT)).astype(np.float32)
    mean, sample = policy.net.mean(obs, budget, to_go), policy.net.sample(obs, budget, to_go, noise)
    assert mean.dtype == sample.dtype == np.float32
    for i in range(6):
        expected = slow_action(policy, obs[i], budget[i, 0], to_go[i])
        np.testing.assert_allclose(mean[i], expected, rtol=2e-4, atol=2e-4)
        expected = slow_action(policy, obs[i], budget[i, 0], to_go[i], noise[i])
        np.testing.assert_allclose(sample[i], expected, rtol=2e-4, atol=2e-4)


def test_a_net_may_have_several_constraints():
    """One file has one cost today; the net itself takes as many budgets as it has thresholds."""
    config = NetConfig("deterministic", (1.0, 10.0), (5.0, 70.0), "budget")
    assert config.condition_size == 5
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(OBS + 5, ACT)).astype(np.float32)
    statistics = {"obs_mean": np.zeros(OBS), "obs_std": np.ones(OBS)}
    net = PolicyNet({**statistics, "layers.0.weight": weight, "layers.0.bias": np.zeros(ACT)}, config)
    seen = [0.4, 0.5, math.exp(-8 * 0.4), math.exp(-8 * 0.5), 0.25]
    mean = net.mean(np.zeros((1, OBS), np.float32), np.float32([[2.0, 35.0]]), np.float32([0.25]))
    np.testing.assert_allclose(mean[0], np.tanh(np.array(seen) @ weight[OBS:]), rtol=1e-5)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_act_scales_to_the_box(distribution):
    policy = make_policy(distribution)
    obs = np.random.default_rng(2).normal(size=(4, OBS))
    low, high = np.array(ENV.action_low), np.array(ENV.action_high)
    for i in range(4):
        unit = np.array(slow_action(policy, obs[i], 30.0 - 12.0, 1.0 - 25 / 100))
        action = policy.act(obs[i], 30.0, spent=12.0, step=25)
        assert action.shape == (ACT,)
        assert action.dtype == np.float32
        np.testing.assert_allclose(action, low + (unit + 1) / 2 * (high - low), rtol=1e-4, atol=1e-4)
        mean = policy.net.mean(obs[i], np.float32([18.0]), np.float32(0.75))
        np.testing.assert_allclose(action, scaled(ENV, mean), atol=1e-5)


def test_one_and_many_observations_and_thresholds_agree():
    policy = make_policy()
    obs = np.random.default_rng(3).normal(size=(4, OBS)).astype(np.float32)
    thresholds, spent, steps = np.array([10, 25, 40, 70]), [0.0, 30.0, 12.5, 3.0], [0, 99, 50, 200]
    each = np.stack(
        [policy.act(o, t, spent=c, step=s) for o, t, c, s in zip(obs, thresholds, spent, steps, strict=True)]
    )
    np.testing.assert_allclose(policy.act(obs, thresholds, spent=spent, step=steps), each, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.act(obs, 25, spent=3, step=7), policy.act(obs, [25] * 4, spent=[3] * 4, step=7))
    np.testing.assert_allclose(policy.act(obs.tolist()[0], np.float32(25)), policy.act(obs[0], 25.0), atol=1e-6)
    assert policy.act(np.empty((0, OBS)), 25.0).shape == (0, ACT)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_what_moves_a_policy_is_what_it_sees(condition):
    policy, obs = make_policy(condition=condition), np.zeros(OBS)
    assert policy.closed_loop == (condition == "budget")
    before = policy.act(obs, 30.0)
    assert np.array_equal(policy.act(obs, 60.0), before) == (condition == "none")
    assert np.array_equal(policy.act(obs, 30.0, spent=20.0), before) == (condition != "budget")
    assert np.array_equal(policy.act(obs, 30.0, step=50), before) == (condition != "budget")


def test_only_the_budget_that_is_left_counts_and_time_ends_with_the_episode():
    policy, obs = make_policy(), np.zeros(OBS)
    np.testing.assert_array_equal(policy.act(obs, 30.0, spent=20.0), policy.act(obs, 10.0))
    np.testing.assert_array_equal(policy.act(obs, 30.0, step=150), policy.act(obs, 30.0, step=ENV.episode_length))


@pytest.mark.parametrize("name", ["spent", "step"])
@pytest.mark.parametrize("bad", [-1, np.nan, np.inf, [1.0, -1.0], "ten", None])
def test_impossible_accounts_are_refused(name, bad):
    with pytest.raises(NumericalError, match=f"{name} .* finite number ≥ 0"):
        make_policy().act(np.zeros((2, OBS)), 30.0, **{name: bad})
    with pytest.raises(FormatError, match=rf"{name} has shape \(3,\), expected \(\) or \(2,\)"):
        make_policy().act(np.zeros((2, OBS)), 30.0, **{name: [1, 2, 3]})


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
    spent = policy.act(obs, 40.0, spent=9.0, step=3, calibrated=True)
    np.testing.assert_array_equal(spent, policy.act(obs, 26.0, spent=9.0, step=3))
    with pytest.raises(ThresholdError, match="ccpo calibrate"):
        make_policy().act(obs, 30.0, calibrated=True)


def test_one_action_is_quick():
    policy, obs = make_policy(hidden=(128, 128)), np.zeros(OBS, np.float32)
    episode = policy.episode(30.0)
    for act in (lambda: policy.act(obs, 30.0, spent=3.0, step=7), lambda: episode.act(obs)):
        seconds = min(timeit.repeat(act, number=100, repeat=20, timer=time.process_time)) / 100
        assert seconds < 150e-6  # about 40e-6 on an idle core


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


def rewritten(path, arrays=None, policy=None, **changes):
    """A file whose checksum is right and whose content is not."""
    policy = policy or make_policy()
    manifest = {**policy.manifest, **changes}
    manifest = {name: value for name, value in manifest.items() if value != "drop"}
    arrays = policy.net.arrays if arrays is None else arrays
    manifest["checksum"] = policy_file.checksum(arrays, manifest)
    path.write_bytes(safetensors.numpy.save(arrays, {"manifest": policy_file.canonical(manifest)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "expected \\('ccpo-policy', 3\\)"),
        ({"format_version": 1}, "expected \\('ccpo-policy', 3\\)"),
        ({"format_version": 4}, "expected \\('ccpo-policy', 3\\)"),
        ({"env": "drop"}, "'env' is missing or of the wrong kind"),
        ({"env": {"task": "Toy"}}, "'env' lacks"),
        ({"env": {**vars(ENV), "extra": 1}}, "unknown \\['extra'\\]"),
        ({"env": {**vars(ENV), "observation_size": 6}}, "sizes \\(5, 2\\), the manifest's env \\(6, 2\\)"),
        ({"env": {**vars(ENV), "observation_size": 5.0}}, "sizes above 0"),
        ({"env": {**vars(ENV), "action_low": [-1.0]}}, "equal length"),
        ({"env": {**vars(ENV), "action_low": [-1.0, 10**400]}}, "equal length"),
        ({"env": {**vars(ENV), "action_low": [-1.0, 0.5]}}, "must be below"),
        ({"env": {**vars(ENV), "action_low": [-1.0, -1e308]}}, "both within ±1e\\+12"),
        ({"env": {**vars(ENV), "action_high": [3e38, 2.0]}}, "both within ±1e\\+12"),
        ({"env": {**vars(ENV), "action_low": [1e9, -1.0], "action_high": [1e9 + 1, 2.0]}}, "told apart by float32"),
        ({"env": {**vars(ENV), "costs": []}}, "names of its costs"),
        ({"env": {**vars(ENV), "costs": "cost"}}, "names of its costs"),
        ({"env": {**vars(ENV), "costs": [1]}}, "names of its costs"),
        ({"env": {**vars(ENV), "costs": ["energy", "wear"]}}, "1 thresholds and the manifest's env 2 costs"),
        ({"env": {**vars(ENV), "early_end": "maybe"}}, "early_end is 'maybe', expected one of failure, success"),
        ({"env": {**vars(ENV), "early_end": [1]}}, "early_end is"),
        ({"net": {**NET, "distribution": "gauss"}}, "did you mean 'gaussian'"),
        ({"net": {**NET, "distribution": [1]}}, "is unknown"),
        ({"net": {**NET, "condition": "budgets"}}, "did you mean 'budget'"),
        ({"net": {**NET, "condition": True}}, "condition True is unknown"),
        ({"net": {**NET, "condition": "threshold"}}, "'layers.0.weight' has shape"),
        ({"net": {name: value for name, value in NET.items() if name != "condition"}}, "'net' lacks \\['condition'\\]"),
        ({"net": {**NET, "conditioned": True}}, "unknown \\['conditioned'\\]"),
        ({"net": {**NET, "threshold_low": [80.0]}}, "ordered"),
        ({"net": {**NET, "threshold_low": ["10"]}}, "two lists of equal length"),
        ({"net": {**NET, "threshold_low": 10.0}}, "two lists of equal length"),
        ({"net": {**NET, "threshold_low": []}}, "two lists of equal length"),
        ({"net": {**NET, "threshold_high": [70.0, 70.0]}}, "two lists of equal length"),
        ({"net": {**NET, "threshold_high": []}}, "two lists of equal length"),
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
            r"'layers.0.weight' has shape \(5, 7\), expected shape \(8, 7\)",
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
        PolicyNet(arrays, make_config())


def test_net_config_refuses_nonsense():
    for settings in [{"condition": 1}, {"std_min": 2.0}, {"activation": "gelu"}, {"exploration_noise": -1}]:
        with pytest.raises(ConfigError):
            make_config(**settings)
    with pytest.raises(ConfigError, match="ordered"):
        NetConfig("gaussian", (0.0,), (0.0,), "budget")
    for condition in ("none", "budget"):
        with pytest.raises(ConfigError, match="a combination of members sees the threshold"):
            make_config(condition=condition, members=(20.0, 40.0))


def format_2(policy, *, net=None, env=None):
    """What format 2 called the same: one number for each end of the range, `conditioned`, an empty fitted dial."""
    new_net, new_env = policy.manifest["net"], policy.manifest["env"]
    renamed = {"conditioned": new_net["condition"] == "threshold", "asked": [], "shown": []}
    ends = {name: new_net[name][0] for name in ("threshold_low", "threshold_high")}
    kept = {name: value for name, value in new_net.items() if name not in ("condition", *ends)}
    old_env = {name: value for name, value in new_env.items() if name not in ("costs", "early_end")}
    return {
        "format_version": 2,
        "net": {**kept, **renamed, **ends, **(net or {})},
        "env": {**old_env, "budget_aware": False, "budget_unit": 1.0, **(env or {})},
    }


@pytest.mark.parametrize("condition", ["none", "threshold"])
def test_a_file_of_format_2_acts_as_it_did(tmp_path, condition):
    policy = make_policy(condition=condition, calibration={"requested": [15.0], "dial": [11.0]})
    rewritten(tmp_path / "old", policy=policy, **format_2(policy))
    loaded = Policy.load(tmp_path / "old")
    assert (loaded.net.config, loaded.env) == (policy.net.config, ENV)
    assert not loaded.closed_loop
    np.testing.assert_array_equal(loaded.act(np.ones(OBS), 33.0), policy.act(np.ones(OBS), 33.0))
    loaded.save(tmp_path / "new")
    again = Policy.load(tmp_path / "new")
    assert again.manifest["format_version"] == policy_file.FORMAT_VERSION
    assert (again.net.config, again.env) == (policy.net.config, ENV)


def test_the_oldest_files_of_format_2_lack_what_came_later(tmp_path):
    policy = make_policy(condition="threshold")
    old = format_2(policy)
    for part, names in (
        ("net", ("asked", "shown", "conditioned", "members")),
        ("env", ("budget_aware", "budget_unit")),
    ):
        old[part] = {name: value for name, value in old[part].items() if name not in names}
    rewritten(tmp_path / "old", policy=policy, **old)
    assert Policy.load(tmp_path / "old").net.config == policy.net.config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"net": {"asked": [10.0, 70.0], "shown": [12.0, 60.0]}}, "fitted dial .* train it again with this version"),
        ({"net": {"shown": [12.0, 60.0]}}, "fitted dial"),
        ({"env": {"budget_aware": True}}, "budget-aware task, which this version no longer has"),
        ({"net": {"threshold_low": None}}, "two lists of equal length"),
        ({"net": {"threshold_high": "70"}}, "two lists of equal length"),
        ({"net": {"surprise": 1}}, "unknown \\['surprise'\\]"),
    ],
)
def test_what_format_2_held_and_this_version_does_not_is_refused(tmp_path, changes, message):
    policy = make_policy(condition="threshold")
    rewritten(tmp_path / "old", policy=policy, **format_2(policy, **changes))
    refused(tmp_path / "old", message)


@pytest.mark.parametrize("part", ["net", "env"])
@pytest.mark.parametrize("value", ["drop", [1], None])
def test_a_format_2_file_without_its_parts_is_refused(tmp_path, part, value):
    policy = make_policy(condition="threshold")
    rewritten(tmp_path / "old", policy=policy, **{**format_2(policy), part: value})
    refused(tmp_path / "old", "missing or of the wrong kind")


def test_an_edited_format_2_file_is_refused(tmp_path):
    policy, path = make_policy(condition="threshold"), tmp_path / "old"
    rewritten(path, policy=policy, **format_2(policy))
    path.write_bytes(path.read_bytes().replace(b'threshold_high\\":70.0', b'threshold_high\\":60.0'))
    refused(path, "checksum does not match")


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_episode_acts_as_the_stateless_call(condition, deterministic):
    policy, rng = make_policy(condition=condition), np.random.default_rng(4)
    episode = policy.episode(30.0, deterministic=deterministic, rng=np.random.default_rng(0))
    assert isinstance(episode, PolicyEpisode)
    noise, spent = np.random.default_rng(0), 0.0
    for step in range(5):
        obs, cost = rng.normal(size=OBS), float(rng.uniform(8, 12))
        expected = policy.act(obs, 30.0, spent=spent, step=step, deterministic=deterministic, rng=noise)
        np.testing.assert_array_equal(episode.act(obs), expected)
        episode.pay(cost)
        spent += cost
        assert (episode.spent, episode.steps, episode.left) == (spent, step + 1, 30.0 - spent)
    assert episode.left < 0.0  # overspent, and it still acted


def test_the_dial_is_turned_in_mid_episode():
    policy, obs = make_policy(), np.zeros(OBS)
    episode = policy.episode(30.0)
    episode.pay(12)
    before = episode.act(obs)
    episode.threshold = 60
    assert (episode.threshold, episode.spent, episode.left) == (60.0, 12.0, 48.0)
    np.testing.assert_array_equal(episode.act(obs), policy.act(obs, 60.0, spent=12.0, step=1))
    episode.threshold = 30.0
    np.testing.assert_array_equal(episode.act(obs), before)


def test_an_episode_refuses_bad_costs_and_thresholds_and_stays_as_it_was():
    episode = make_policy().episode(30.0)
    episode.pay(np.float32(1.5))
    for bad in (-1, np.nan, np.inf, 1e300, "1", None, [1.0], True):
        with pytest.raises(NumericalError, match="the cost of a step must be a finite number ≥ 0"):
            episode.pay(bad)  # type: ignore[arg-type] the point of the test
        with pytest.raises(ThresholdError, match="cost limit ≥ 0"):
            episode.threshold = bad  # type: ignore[assignment] the point of the test
        with pytest.raises(ThresholdError, match="cost limit ≥ 0"):
            make_policy().episode(bad)  # type: ignore[arg-type] the point of the test
    assert (episode.threshold, episode.spent, episode.steps) == (30.0, 1.5, 1)
    with pytest.raises(FormatError, match="expected numbers of shape"):
        episode.act(np.zeros(OBS + 1))


def test_an_episode_warns_where_its_dial_is_turned_and_not_at_every_step():
    policy = make_policy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        episode = policy.episode(5.0)
        episode.act(np.zeros(OBS)), episode.act(np.zeros(OBS))
        episode.threshold = 80.0
        episode.act(np.zeros(OBS))
    assert [str(warning.message).split(" is")[0] for warning in caught] == ["threshold 5", "threshold 80"]
    assert {warning.filename for warning in caught} == {__file__}


def test_a_calibrated_episode_acts_under_the_setting_of_its_request():
    policy = make_policy(calibration={"requested": [15.0, 30.0], "dial": [11.0, 26.0]})
    episode = policy.episode(40.0, calibrated=True)
    episode.pay(4.0)
    np.testing.assert_array_equal(episode.act(np.zeros(OBS)), policy.act(np.zeros(OBS), 26.0, spent=4.0, step=1))
    assert episode.left == 36.0
    episode.threshold = 20.0
    np.testing.assert_array_equal(episode.act(np.zeros(OBS)), policy.act(np.zeros(OBS), 11.0, spent=4.0, step=1))
    with pytest.raises(ThresholdError, match="ask for 15 or more"):
        episode.threshold = 14.0
    with pytest.raises(ThresholdError, match="ccpo calibrate"):
        make_policy().episode(40.0, calibrated=True)


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
