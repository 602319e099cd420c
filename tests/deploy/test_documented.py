"""The code in docs/deployment.md runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest
from toy import closed_agent, closed_cost

from ccpo.deploy.calibrate import calibrate_agent
from ccpo.deploy.onnx import export_onnx
from ccpo.envs.registry import make

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


def test_every_example_runs(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    agent = closed_agent()
    calibrate_agent(agent, [40.0, 70.0], episodes=200)
    agent.save("policy.safetensors")
    export_onnx(agent.policy, "policy.onnx")
    names = {
        "env": make("StaticBudget"),
        "many_obs": np.zeros((3, 2)),
        "thresholds": [20.0, 40.0, 60.0],
        "spent": [1.0, 2.0, 3.0],
        "steps": [10, 20, 30],
    }
    loop, turn, stateless, calibrated, graph = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(loop, names)
    assert names["episode"].spent == pytest.approx(closed_cost(25.0), rel=1e-4)
    exec(turn, names)
    assert names["episode"].left == 40.0 - names["episode"].spent
    exec(stateless, names)
    assert names["actions"].shape == (3, 1)
    expected = names["action"]
    exec(graph, names)
    np.testing.assert_allclose(names["action"][0], expected, atol=1e-5)
    exec(calibrated, names)
    assert names["episode"].act(np.zeros(2)) == agent.policy.act(np.zeros(2), 40.0, calibrated=True)
