"""The ONNX model against the NumPy policy."""

import json

import numpy as np
import pytest

from ccpo import cli
from ccpo.errors import MissingExtraError, NumericalError

pytest.importorskip("onnxruntime")
import onnx
import onnxruntime
from toy import closed_agent, random_policy, toy_agent

import ccpo.deploy.onnx as deploy_onnx


def run(path, **inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["action"], inputs)[0]


def random_episodes(count, length=100):
    """Thresholds, costs so far up to twice as much, and steps so far, all of them float32[N]."""
    rng = np.random.default_rng(1)
    threshold = rng.uniform(10, 70, count)
    columns = threshold, threshold * rng.uniform(0, 2, count), rng.integers(length, size=count)
    return [column.astype(np.float32) for column in columns]


def inputs_of(condition, threshold, spent, step, length=100):
    """By hand, and not as the exporter makes them."""
    if condition == "budget":
        return {"budget": (threshold - spent)[:, None], "to_go": (length - step) / np.float32(length)}
    return {"threshold": threshold}


@pytest.mark.parametrize("distribution", ["gaussian", "gaussian_linear", "squashed", "deterministic"])
@pytest.mark.parametrize("condition", ["none", "threshold", "budget"])
def test_equals_the_policy(tmp_path, distribution, condition):
    activation = "tanh" if distribution == "squashed" else "relu"
    policy = random_policy(distribution, condition=condition, activation=activation)
    path = deploy_onnx.export_onnx(policy, tmp_path / "policy.onnx")
    obs = np.random.default_rng(0).normal(scale=5, size=(10_000, 5)).astype(np.float32)
    threshold, spent, step = random_episodes(10_000)
    inputs = {"obs": obs, **inputs_of(condition, threshold, spent, step)}
    action = run(path, **inputs)
    assert action.dtype == np.float32
    np.testing.assert_allclose(action, policy.act(obs, threshold, spent=spent, step=step), rtol=0, atol=1e-5)
    assert (action >= np.float32(policy.env.action_low)).all()
    assert (action <= np.float32(policy.env.action_high)).all()  # 0.7 + 2 · 0.6 is above 1.9 in float32
    for count in (1, 3):
        some = run(path, **{name: array[:count] for name, array in inputs.items()})
        np.testing.assert_allclose(some, action[:count], rtol=0, atol=1e-5)


@pytest.mark.parametrize("agent", [toy_agent, closed_agent])
def test_ten_thousand_actions_of_a_unit_box_are_within_1e_5(tmp_path, agent):
    policy = agent().policy
    path = deploy_onnx.export_onnx(policy, tmp_path / "policy.onnx")
    obs = np.random.default_rng(1).normal(size=(10_000, 2)).astype(np.float32)
    threshold, spent, step = random_episodes(10_000)
    action = run(path, obs=obs, **inputs_of(policy.net.config.condition, threshold, spent, step))
    np.testing.assert_allclose(action, policy.act(obs, threshold, spent=spent, step=step), rtol=0, atol=1e-5)


OPEN, CLOSED = {"threshold": ["N"]}, {"budget": ["N", 1], "to_go": ["N"]}


@pytest.mark.parametrize(("condition", "inputs"), [("none", OPEN), ("threshold", OPEN), ("budget", CLOSED)])
def test_interface_and_metadata(tmp_path, condition, inputs):
    policy = random_policy(condition=condition)
    model = onnx.load(deploy_onnx.export_onnx(policy, tmp_path / "policy.onnx"))
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"obs": ["N", 5], **inputs, "action": ["N", 2]}
    assert {p.key: json.loads(p.value) for p in model.metadata_props} == {"manifest": policy.manifest}
    names = [node.name for node in model.graph.initializer]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "wrong"), [("OBS_CLIP", 0.5), ("BUDGET_LOW", 0.0), ("BUDGET_HIGH", 0.9), ("NEAR_ZERO", 7.0)]
)
def test_a_model_that_disagrees_is_deleted(tmp_path, monkeypatch, name, wrong):
    path = tmp_path / "policy.onnx"
    monkeypatch.setattr(deploy_onnx, name, np.float32(wrong))
    with pytest.raises(NumericalError, match=r"differs from the policy by .* was deleted"):
        deploy_onnx.export_onnx(random_policy(), path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named_before_anything_is_written(tmp_path, monkeypatch):
    def missing(module, extra):
        raise MissingExtraError(f"{module} ccpo[{extra}]")

    monkeypatch.setattr(deploy_onnx, "require", missing)
    with pytest.raises(MissingExtraError, match=r"ccpo\[onnx\]"):
        deploy_onnx.export_onnx(random_policy(), tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_command_exports_onnx_alone(tmp_path, capsys):
    toy_agent().save(tmp_path / "policy.safetensors")
    out = tmp_path / "deploy" / "policy.onnx"
    assert cli.main(["export", str(tmp_path / "policy.safetensors"), "--onnx", str(out)]) == 0
    assert [path.name for path in out.parent.iterdir()] == ["policy.onnx"]
    assert str(out) in capsys.readouterr().out
