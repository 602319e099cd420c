"""The ONNX model against the NumPy policy."""

import json

import numpy as np
import pytest

from ccpo import cli
from ccpo.errors import MissingExtraError, NumericalError

pytest.importorskip("onnxruntime")
import onnx
import onnxruntime
from toy import random_policy, toy_agent

import ccpo.deploy.onnx as deploy_onnx


def run(path, obs, threshold):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["action"], {"obs": obs, "threshold": threshold})[0]


@pytest.mark.parametrize("distribution", ["gaussian", "gaussian_linear", "squashed", "deterministic"])
@pytest.mark.parametrize("conditioned", [True, False])
@pytest.mark.parametrize("beyond", [{}, {"asked": (10.0, 20.0, 40.0, 70.0), "shown": (17.0, 20.0, 50.0, 63.0)}])
def test_equals_the_policy(tmp_path, distribution, conditioned, beyond):
    activation = "tanh" if distribution == "squashed" else "relu"
    policy = random_policy(distribution, conditioned=conditioned, activation=activation, **beyond)
    path = deploy_onnx.export_onnx(policy, tmp_path / "policy.onnx")
    rng = np.random.default_rng(0)
    obs = rng.normal(scale=5, size=(10_000, 5)).astype(np.float32)
    threshold = rng.uniform(10, 70, 10_000).astype(np.float32)
    action = run(path, obs, threshold)
    assert action.dtype == np.float32
    np.testing.assert_allclose(action, policy.act(obs, threshold), rtol=0, atol=1e-5)
    assert (action >= np.float32(policy.env.action_low)).all()
    assert (action <= np.float32(policy.env.action_high)).all()  # 0.7 + 2 · 0.6 is above 1.9 in float32
    for count in (1, 3):
        np.testing.assert_allclose(run(path, obs[:count], threshold[:count]), action[:count], rtol=0, atol=1e-5)


def test_ten_thousand_actions_of_a_unit_box_are_within_1e_5(tmp_path):
    policy = toy_agent().policy
    path = deploy_onnx.export_onnx(policy, tmp_path / "policy.onnx")
    rng = np.random.default_rng(1)
    obs, threshold = rng.normal(size=(10_000, 2)).astype(np.float32), rng.uniform(10, 70, 10_000).astype(np.float32)
    np.testing.assert_allclose(run(path, obs, threshold), policy.act(obs, threshold), rtol=0, atol=1e-5)


def test_interface_and_metadata(tmp_path):
    policy = random_policy(conditioned=False)
    model = onnx.load(deploy_onnx.export_onnx(policy, tmp_path / "policy.onnx"))
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"obs": ["N", 5], "threshold": ["N"], "action": ["N", 2]}
    assert {p.key: json.loads(p.value) for p in model.metadata_props} == {"manifest": policy.manifest}
    names = [node.name for node in model.graph.initializer]
    assert len(set(names)) == len(names)


def test_a_model_that_disagrees_is_deleted(tmp_path, monkeypatch):
    path = tmp_path / "policy.onnx"
    monkeypatch.setattr(deploy_onnx, "OBS_CLIP", np.float32(0.5))
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
