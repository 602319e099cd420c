"""A policy as an ONNX graph: `obs [N, O]`, `threshold [N]` → `action [N, A]`, deterministic, in environment units.

The graph does not check, warn or calibrate: it takes a dial setting. The manifest is in the model's metadata.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ccpo.errors import ConfigError, NumericalError, require
from ccpo.policy_file import PathLike, canonical, write_atomically
from ccpo.runtime import OBS_CLIP, ONE, Policy

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
    """max |model − policy| over random inputs; an action with a range above 2 counts relative to half of it."""
    rng, config = np.random.default_rng(seed), policy.net.config
    spread = 3.0 * rng.standard_normal((count, policy.net.observation_size))
    obs = (policy.net.arrays["obs_mean"] + policy.net.arrays["obs_std"] * spread).astype(np.float32)
    threshold = rng.uniform(config.threshold_low, config.threshold_high, count).astype(np.float32)
    session = require("onnxruntime", "onnx").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (action,) = session.run(["action"], {"obs": obs, "threshold": threshold})
    half_range = 0.5 * (np.asarray(policy.env.action_high) - np.asarray(policy.env.action_low))
    return float(np.max(np.abs(action - policy.act(obs, threshold)) / np.maximum(1.0, half_range)))


def build_model(policy: Policy) -> Any:
    """The `onnx.ModelProto` of the deterministic policy, with a symbolic batch and float32 weights."""
    onnx = require("onnx", "onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = _Graph(onnx)
    _add_nodes(graph, policy)
    env = policy.env
    inputs = [
        helper.make_tensor_value_info("obs", float32, ["N", env.observation_size]),
        helper.make_tensor_value_info("threshold", float32, ["N"]),
    ]
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
    if config.conditioned:
        dial = graph.add("Unsqueeze", "threshold", graph.constant("axis", [1], np.int64))
        if config.asked:
            dial = _add_line(graph, dial, np.asarray(config.asked), np.asarray(config.shown))
        dial = graph.add("Sub", dial, graph.constant("threshold_low", config.threshold_low))
        dial = graph.add("Div", dial, graph.constant("threshold_high", config.threshold_high))
        x = graph.add("Concat", x, dial, axis=1)
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


def _add_line(graph: _Graph, x: str, asked: np.ndarray, shown: np.ndarray) -> str:
    """np.interp(x, asked, shown) for x [N, 1]: what each piece of the line adds up to x."""
    starts, ends = graph.constant("asked_from", asked[:-1]), graph.constant("asked_upto", asked[1:])
    inside = graph.add("Sub", graph.add("Min", graph.add("Max", x, starts), ends), starts)
    slopes = graph.constant("slopes", (np.diff(shown) / np.diff(asked))[:, None])
    return graph.add("Add", graph.add("MatMul", inside, slopes), graph.constant("shown_first", shown[0]))
