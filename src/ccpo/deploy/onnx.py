"""A policy as an ONNX graph with the output `action [N, A]`, deterministic, in environment units.

Closed loop it takes `obs [N, O]`, `budget [N, M]`, what is left of the threshold, and `to_go [N]`, the share of the
episode that is left. Open loop it takes `obs [N, O]` and `threshold [N]`.

The graph keeps no account and does not check, warn or calibrate. The manifest is in the model's metadata.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ccpo.errors import ConfigError, NumericalError, require
from ccpo.policy_file import PathLike, canonical, write_atomically
from ccpo.runtime import BUDGET_HIGH, BUDGET_LOW, NEAR_ZERO, OBS_CLIP, ONE, NetConfig, Policy

OPSET, IR_VERSION = 17, 8
"""Old enough for every onnxruntime ≥ 1.18, new enough for all that is used."""
TOLERANCE = 1e-5
CHECKED_INPUTS = 2000


def export_onnx(policy: Policy, path: PathLike) -> Path:
    """Write the model and compare it with the policy; one that disagrees is deleted and a `NumericalError` says so."""
    require("onnxruntime", "onnx")  # before anything is written
    if policy.net.config.members:
        raise ConfigError("a combination of policies has no ONNX model; export its policy file with --out instead")
    path = Path(path)
    write_atomically(path, build_model(policy).SerializeToString())
    try:
        difference = largest_difference(policy, path)
        if not difference <= TOLERANCE:
            raise NumericalError(
                f"the ONNX model differs from the policy by {difference:.2g} (allowed: {TOLERANCE:g}) and was "
                "deleted; deploy the policy file instead"
            )
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def largest_difference(policy: Policy, path: PathLike, *, count: int = CHECKED_INPUTS, seed: int = 0) -> float:
    """max |model − policy| over random inputs; an action with a range above 2 counts relative to half of it.

    Closed loop they are episodes of every age, with money left, just spent and overspent.
    """
    rng, config = np.random.default_rng(seed), policy.net.config
    spread = 3.0 * rng.standard_normal((count, policy.net.observation_size))
    obs = (policy.net.arrays["obs_mean"] + policy.net.arrays["obs_std"] * spread).astype(np.float32)
    threshold = rng.uniform(config.threshold_low, config.threshold_high, count).astype(np.float32)
    spent = (threshold * rng.uniform(0.0, 2.0, count)).astype(np.float32)
    step = rng.integers(policy.env.episode_length, size=count).astype(np.float32)
    session = require("onnxruntime", "onnx").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (action,) = session.run(["action"], {"obs": obs, **model_inputs(policy, threshold, spent, step)})
    expected = policy.act(obs, threshold, spent=spent, step=step)
    half_range = 0.5 * (np.asarray(policy.env.action_high) - np.asarray(policy.env.action_low))
    return float(np.max(np.abs(action - expected) / np.maximum(1.0, half_range)))


def model_inputs(policy: Policy, threshold: np.ndarray, spent: np.ndarray, step: np.ndarray) -> dict[str, np.ndarray]:
    """What the graph takes besides `obs`: for episodes [N], their thresholds, costs and steps so far."""
    if not policy.closed_loop:
        return {"threshold": threshold}
    budget, to_go = policy.conditions(threshold, spent, step, threshold.shape)
    return {"budget": budget, "to_go": to_go}


def build_model(policy: Policy) -> Any:
    """The `onnx.ModelProto` of the deterministic policy, with a symbolic batch and float32 weights."""
    onnx = require("onnx", "onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = _Graph(onnx)
    _add_nodes(graph, policy)
    env = policy.env
    shapes: dict[str, list[Any]] = {"obs": ["N", env.observation_size]}
    shapes |= {"budget": ["N", len(env.costs)], "to_go": ["N"]} if policy.closed_loop else {"threshold": ["N"]}
    inputs = [helper.make_tensor_value_info(name, float32, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("action", float32, ["N", env.action_size])]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="ccpo",
    )
    helper.set_model_props(model, {"manifest": canonical(policy.manifest)})
    onnx.checker.check_model(model, full_check=True)
    return model


class _Graph:
    """Nodes and constants in the order of their making."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, value: Any, dtype: type = np.float32) -> str:
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """A node; the name of its output is returned."""
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output


def _add_nodes(graph: _Graph, policy: Policy) -> None:
    """What `PolicyNet.mean` and `Policy.act` compute, operation by operation."""
    net, env, config = policy.net, policy.env, policy.net.config
    x = graph.add("Sub", "obs", graph.constant("obs_mean", net.arrays["obs_mean"]))
    x = graph.add("Div", x, graph.constant("obs_std", net.arrays["obs_std"]))
    x = graph.add("Clip", x, graph.constant("obs_low", -OBS_CLIP), graph.constant("obs_high", OBS_CLIP))
    x = _add_conditions(graph, x, config)
    depth = sum(name.endswith(".bias") for name in net.arrays)
    for index in range(depth):
        last = index == depth - 1
        # the mean is the first half of the last layer; what gives the spread is not needed
        columns = slice(net.action_size) if last else slice(None)
        weight = graph.constant(f"weight_{index}", net.arrays[f"layers.{index}.weight"][:, columns])
        bias = graph.constant(f"bias_{index}", net.arrays[f"layers.{index}.bias"][columns])
        x = graph.add("Gemm", x, weight, bias)
        if not last:
            x = graph.add({"relu": "Relu", "tanh": "Tanh"}[config.activation], x)
    one = graph.constant("one", ONE)
    if config.distribution == "gaussian_linear":
        x = graph.add("Clip", x, graph.constant("minus_one", -ONE), one)
    else:
        x = graph.add("Tanh", x)
    low, high = np.asarray(env.action_low, np.float32), np.asarray(env.action_high, np.float32)
    action_low, action_high = graph.constant("action_low", low), graph.constant("action_high", high)
    x = graph.add("Mul", graph.add("Add", x, one), graph.constant("action_half_range", np.float32(0.5) * (high - low)))
    x = graph.add("Max", graph.add("Add", x, action_low), action_low)
    graph.add("Min", x, action_high, output="action")


def _add_conditions(graph: _Graph, obs: str, config: NetConfig) -> str:
    """The observation and what the net sees besides it."""
    if config.condition == "none":
        return obs
    axis, high = graph.constant("axis", [1], np.int64), graph.constant("threshold_high", config.threshold_high)
    if config.condition == "threshold":
        dial = graph.add("Unsqueeze", "threshold", axis)
        dial = graph.add("Sub", dial, graph.constant("threshold_low", config.threshold_low))
        return graph.add("Concat", obs, graph.add("Div", dial, high), axis=1)
    bounds = graph.constant("budget_low", BUDGET_LOW), graph.constant("budget_high", BUDGET_HIGH)
    share = graph.add("Clip", graph.add("Div", "budget", high), *bounds)
    near = graph.add("Exp", graph.add("Mul", graph.add("Relu", share), graph.constant("near_zero", -NEAR_ZERO)))
    return graph.add("Concat", obs, share, near, graph.add("Unsqueeze", "to_go", axis), axis=1)
