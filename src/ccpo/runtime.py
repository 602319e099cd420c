"""The deployable policy: one file, one dial for the threshold, NumPy and safetensors only.

    policy = Policy.load("policy.safetensors")
    episode = policy.episode(threshold=25.0)
    action = episode.act(obs)
    episode.pay(cost)

Axes: N observations, O observation, A action, M constraints.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ccpo import observations, policy_file
from ccpo.errors import (
    CCPOError,
    ConfigError,
    FormatError,
    NumericalError,
    ThresholdError,
    ThresholdWarning,
    did_you_mean,
)
from ccpo.monitor import BASELINE, Monitor
from ccpo.policy_file import PathLike, are_numbers, is_number
from ccpo.types import Array, EnvSpec

ZERO, ONE, OBS_CLIP = np.float32(0.0), np.float32(1.0), np.float32(10.0)
LARGEST = float(np.finfo(np.float32).max)
LOG_STD_MIN, LOG_STD_MAX = np.float32(-20.0), np.float32(2.0)

_ACTIVATIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "relu": lambda x: np.maximum(x, ZERO, out=x),
    "tanh": lambda x: np.tanh(x, out=x),
}
CONDITIONS = ("none", "threshold", "budget")
"""What a policy sees besides the observation: nothing, the threshold of the episode (open loop), or what is left of it
and the time to go (closed loop)."""
BUDGET_LOW, BUDGET_HIGH = np.float32(-0.3), np.float32(1.2)
NEAR_ZERO = np.float32(8.0)

_HAS_SCALE_HEAD = {"gaussian": True, "gaussian_linear": False, "squashed": True, "deterministic": False}


def budget_features(budget: Array, high: Array, xp: Any = np) -> Array:
    """What networks see of a budget b: clip(b/ε_H, −.3, 1.2), and exp(−8·max(b, 0)/ε_H), which tells small ones apart.

    budget [..., M], high [M] → [..., 2M]; `xp` is the array library.
    """
    share = xp.minimum(xp.maximum(budget / high, BUDGET_LOW), BUDGET_HIGH)
    return xp.concatenate([share, xp.exp(-NEAR_ZERO * xp.maximum(share, ZERO))], axis=-1)


@dataclass(frozen=True)
class NetConfig:
    """What the arrays of a policy mean.

    With `condition` "threshold" the net sees (ε − threshold_low) / threshold_high, with "budget" the features of the
    budget that is left (`budget_features`) and the share of the episode that is to go.
    """

    distribution: str
    threshold_low: tuple[float, ...]
    threshold_high: tuple[float, ...]
    condition: str
    activation: str = "relu"
    std_min: float = 0.01
    std_max: float = 1.0
    exploration_noise: float = 0.0
    members: tuple[float, ...] = ()
    """Of a combination: the threshold of each single-threshold policy in it; empty for one policy."""

    def __post_init__(self) -> None:
        named = (("distribution", _HAS_SCALE_HEAD), ("activation", _ACTIVATIONS), ("condition", CONDITIONS))
        for name, allowed in named:
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ConfigError(f"{name} {value!r:.60} is unknown; {did_you_mean(str(value)[:60], allowed)}")
        for name in ("std_min", "std_max", "exploration_noise"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise ConfigError(f"{name} must be a finite number ≥ 0, not {value!r:.60}")
        low, high = self.threshold_low, self.threshold_high
        if not (are_numbers(low) and are_numbers(high) and 0 < len(low) == len(high)):
            raise ConfigError(f"the threshold range {low!r:.60} to {high!r:.60} must be two lists of equal length")
        if not all(0 <= a <= b and b > 0 for a, b in zip(low, high, strict=True)):
            raise ConfigError(f"the threshold range {low!r:.60} to {high!r:.60} must be ordered, ≥ 0 and end above 0")
        if self.std_min > self.std_max:
            raise ConfigError(f"std_min {self.std_min:g} must not be above std_max {self.std_max:g}")
        if self.members != () and not (are_numbers(self.members) and len(self.members) > 1):
            raise ConfigError(f"members {self.members!r:.60} must be at least two thresholds")
        if self.members and (self.members[0] < 0 or any(np.diff(self.members) <= 0)):
            raise ConfigError(f"members {self.members!r:.60} must be increasing thresholds ≥ 0")
        if self.members and self.condition != "threshold":
            raise ConfigError(f"a combination of members sees the threshold, not {self.condition!r}")

    @property
    def condition_size(self) -> int:
        """How many numbers the net sees besides the observation."""
        constraints = len(self.threshold_high)
        return {"none": 0, "threshold": constraints, "budget": 2 * constraints + 1}[self.condition]


class PolicyNet:
    """The policy network in NumPy: π(a | s, ε) or π(a | s, b, h), actions in policy units [−1, 1].

    A budget [..., M] is the threshold of the episode where the net is conditioned on that, else what is left of it;
    `to_go` [...] is the share of the episode that is to go.

    Arrays: `obs_mean`, `obs_std` [O]; `layers.i.weight` [in, out], `layers.i.bias` [out]; `log_std` [A] for
    gaussian_linear. With m, p the two halves of the last layer's output and ξ the noise:

    - gaussian:        mean tanh(m),  sample tanh(m) + σ ξ,  σ = std_min + (std_max − std_min) · sigmoid(p)
    - gaussian_linear: mean m,        sample m + exp(log_std) ξ
    - squashed:        mean tanh(m),  sample tanh(m + exp(p) ξ)
    - deterministic:   mean tanh(m),  sample tanh(m) + exploration_noise · ξ

    It owns no scratch memory, so that threads may share it.
    """

    def __init__(self, arrays: Mapping[str, Array], config: NetConfig) -> None:
        self.config = config
        self.arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in sorted(arrays.items())}
        self._obs_mean, self._obs_std = self._vector("obs_mean"), self._vector("obs_std")
        self._log_std = self._vector("log_std") if config.distribution == "gaussian_linear" else None
        self._low, self._high = (np.asarray(x, np.float32) for x in (config.threshold_low, config.threshold_high))
        self.observation_size = self._obs_mean.size
        self._hidden_layers = self._read_layers()
        self._last_layer = self._hidden_layers.pop()
        outputs = self._last_layer[1].size
        heads = 2 if _HAS_SCALE_HEAD[config.distribution] else 1
        if outputs % heads:
            raise FormatError(f"the last layer has {outputs} outputs, expected a mean and a scale for each action")
        self.action_size = outputs // heads
        self._check_sizes()
        self._activate = _ACTIVATIONS[config.activation]

    def mean(self, obs: np.ndarray, budget: np.ndarray, to_go: Array) -> np.ndarray:
        """The deterministic action [N, A] for observations [N, O], budgets [N, M] and times [N]; or all without N."""
        location = self._head(obs, budget, to_go)[..., : self.action_size]
        if self.config.distribution == "gaussian_linear":
            return _clip(location, -ONE, ONE)
        return np.tanh(location)

    def sample(self, obs: np.ndarray, budget: np.ndarray, to_go: Array, noise: np.ndarray) -> np.ndarray:
        """An action [N, A] for standard normal noise [N, A], not yet clipped to [−1, 1]."""
        head = self._head(obs, budget, to_go)
        location, scale = head[..., : self.action_size], head[..., self.action_size :]
        config = self.config
        if config.distribution == "gaussian":
            sigmoid = 0.5 + 0.5 * np.tanh(0.5 * scale)
            return np.tanh(location) + (config.std_min + (config.std_max - config.std_min) * sigmoid) * noise
        if config.distribution == "squashed":
            return np.tanh(location + np.exp(_clip(scale, LOG_STD_MIN, LOG_STD_MAX)) * noise)
        if self._log_std is not None:
            return location + np.exp(_clip(self._log_std, LOG_STD_MIN, LOG_STD_MAX)) * noise
        return np.tanh(location) + config.exploration_noise * noise

    def _head(self, obs: np.ndarray, budget: np.ndarray, to_go: Array) -> np.ndarray:
        """The last layer's output for clip((obs − mean) / std, ±10) and what the net sees of the budget."""
        size, config = self.observation_size, self.config
        x = np.empty((*obs.shape[:-1], size + config.condition_size), np.float32)
        features = x[..., :size]
        np.subtract(obs, self._obs_mean, out=features)
        np.divide(features, self._obs_std, out=features)
        np.minimum(features, OBS_CLIP, out=features)
        np.maximum(features, -OBS_CLIP, out=features)
        if config.condition == "threshold":
            x[..., size:] = (budget - self._low) / self._high
        elif config.condition == "budget":
            x[..., size:-1] = budget_features(budget, self._high)
            x[..., -1] = to_go
        for weight, bias in self._hidden_layers:
            x = x.dot(weight)
            x += bias
            self._activate(x)
        weight, bias = self._last_layer
        return x.dot(weight) + bias

    def _vector(self, name: str) -> np.ndarray:
        array = self.arrays.get(name)
        if array is None or array.ndim != 1 or not array.size:
            raise FormatError(f"array '{name}' {_describe(array)}, expected a vector that is not empty")
        return array

    def _read_layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weights and biases in order; each layer's input must be the previous one's output."""
        layers, width = [], self.observation_size + self.config.condition_size
        depth = sum(name.endswith(".bias") for name in self.arrays)
        for index in range(max(depth, 1)):
            name = f"layers.{index}.weight"
            weight, bias = self.arrays.get(name), self._vector(f"layers.{index}.bias")
            if weight is None or weight.shape != (width, bias.size):
                raise FormatError(f"array '{name}' {_describe(weight)}, expected shape {(width, bias.size)}")
            layers.append((weight, bias))
            width = bias.size
        return layers

    def _check_sizes(self) -> None:
        if self._obs_std.size != self.observation_size:
            raise FormatError(f"array 'obs_std' {_describe(self._obs_std)}, expected ({self.observation_size},)")
        if self._log_std is not None and self._log_std.size != self.action_size:
            raise FormatError(f"array 'log_std' {_describe(self._log_std)}, expected ({self.action_size},)")
        expected = 2 + 2 * (len(self._hidden_layers) + 1) + (self._log_std is not None)
        if len(self.arrays) != expected:
            raise FormatError(f"{expected} arrays expected, {len(self.arrays)} given: {', '.join(self.arrays):.200}")


class CombinedNet:
    """Single-threshold policies as one: their actions at the two thresholds ε₁ < ε₂ next to ε, combined linearly.

    a(s, ε) = w₁·a₁(s) + w₂·a₂(s), w₁ = (ε₂ − ε)/(ε₂ − ε₁), w₂ = (ε − ε₁)/(ε₂ − ε₁); beyond the ends a weight is
    negative. The paper leaves open what of two policies is combined: here it is actions, samples of one noise.
    Arrays: those of each member's `PolicyNet`, `member.i.` before their names; `members` are their thresholds.
    """

    def __init__(self, arrays: Mapping[str, Array], config: NetConfig) -> None:
        self.config = config
        self._thresholds = np.asarray(config.members, np.float32)
        member_config = replace(config, members=(), condition="none")
        self._members = []
        self.arrays: dict[str, np.ndarray] = {}
        for index in range(len(config.members)):
            prefix = f"member.{index}."
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            self._members.append(PolicyNet(own, member_config))
            self.arrays |= {prefix + name: array for name, array in self._members[-1].arrays.items()}
        sizes = {(member.observation_size, member.action_size) for member in self._members}
        if len(sizes) > 1 or len(self.arrays) != len(arrays):
            raise FormatError(f"{len(arrays)} arrays do not make {len(self._members)} members of equal sizes")
        self.observation_size, self.action_size = sizes.pop()

    def mean(self, obs: np.ndarray, budget: np.ndarray, to_go: Array) -> np.ndarray:
        """The deterministic action, with shapes as in `PolicyNet.mean`."""
        return _clip(self._combine([member.mean(obs, budget, to_go) for member in self._members], budget), -ONE, ONE)

    def sample(self, obs: np.ndarray, budget: np.ndarray, to_go: Array, noise: np.ndarray) -> np.ndarray:
        """An action for standard normal noise that all members share, not yet clipped to [−1, 1]."""
        return self._combine([member.sample(obs, budget, to_go, noise) for member in self._members], budget)

    def _combine(self, actions: list[np.ndarray], budget: np.ndarray) -> np.ndarray:
        weights = combination_weights(self._thresholds, budget[..., 0])
        return np.sum([weights[..., i, None] * action for i, action in enumerate(actions)], axis=0)


def combination_weights(members: np.ndarray, threshold: Array) -> np.ndarray:
    """What each member counts at a threshold: all but two weights are 0, and they sum to 1; [M], [...] → [..., M].

    Between two members it is they that count, beyond the ends the outermost two. For evenly spaced members these are
    the two closest ones, as the paper has it.

    >>> combination_weights(np.array([20.0, 40.0, 60.0]), 50.0).tolist()
    [0.0, 0.5, 0.5]
    """
    threshold = np.asarray(threshold, np.float32)
    upper = np.clip(np.searchsorted(members, threshold), 1, len(members) - 1)
    low, high = members[upper - 1], members[upper]
    share = ((threshold - low) / (high - low))[..., None]
    place = np.eye(len(members), dtype=np.float32)
    return (ONE - share) * place[upper - 1] + share * place[upper]


def make_net(arrays: Mapping[str, Array], config: NetConfig) -> PolicyNet | CombinedNet:
    """The net that arrays and config describe."""
    return CombinedNet(arrays, config) if config.members else PolicyNet(arrays, config)


class _ClassOnly:
    """A class method that refuses an instance: `policy.load(path)` would leave `policy` as it was."""

    def __get__(self, instance: "Policy | None", owner: type["Policy"]) -> Callable[[PathLike], "Policy"]:
        return owner._load if instance is None else _refuse_instance


def _refuse_instance(path: PathLike) -> "Policy":
    raise CCPOError("load was called on a policy, which would stay as it is; write: policy = Policy.load(path)")


class Policy:
    """A trained policy and its manifest: its task, its thresholds, how it was trained and measured."""

    load = _ClassOnly()

    def __init__(self, arrays: Mapping[str, Array], manifest: Mapping[str, Any]) -> None:
        self.manifest = policy_file.checked_manifest(manifest)
        env = policy_file.parse_dataclass(EnvSpec, self.manifest["env"], "env")
        self.env = policy_file.checked_env(env)
        self.net = make_net(arrays, policy_file.parse_dataclass(NetConfig, self.manifest["net"], "net"))
        self._check_arrays()
        self.manifest["checksum"] = policy_file.checksum(self.net.arrays, self.manifest)
        self._layout = observations.decode(env.observation_layout)
        self._action_low = np.asarray(env.action_low, np.float32)
        self._action_high = np.asarray(env.action_high, np.float32)
        self._action_half_range = np.float32(0.5) * (self._action_high - self._action_low)
        self._rng = np.random.default_rng()

    def __repr__(self) -> str:
        low, high = self.threshold_range
        return f"<Policy: {self.manifest['algorithm']} on {self.env.task}, thresholds {low:g} to {high:g}>"

    @classmethod
    def create(
        cls,
        arrays: Mapping[str, Array],
        config: NetConfig,
        env: EnvSpec,
        *,
        algorithm: str,
        behaviour_thresholds: Sequence[float],
        versions: Mapping[str, str],
        training: Mapping[str, Any],
        evaluation: Any = None,
        calibration: Mapping[str, Any] | None = None,
    ) -> "Policy":
        """A policy from trained arrays; what is beside them goes into the manifest and must be plain JSON."""
        manifest = {
            "format": policy_file.FORMAT,
            "format_version": policy_file.FORMAT_VERSION,
            "env": asdict(env),
            "net": asdict(config),
            "algorithm": algorithm,
            "behaviour_thresholds": [float(threshold) for threshold in behaviour_thresholds],
            "versions": dict(versions),
            "training": dict(training),
            "evaluation": evaluation,
            "calibration": calibration,
        }
        return cls(arrays, manifest)

    @classmethod
    def _load(cls, path: PathLike) -> "Policy":
        """Read a policy file; anything but an intact file of this format is a `FormatError`."""
        try:
            arrays, manifest = policy_file.read(path)
            policy = cls(arrays, policy_file.upgraded(manifest))
            if policy_file.checksum(policy.net.arrays, manifest) != manifest.get("checksum"):
                raise FormatError("the checksum does not match: the file was damaged or edited; export it again")
        except (FormatError, ConfigError) as error:
            raise FormatError(f"cannot load policy {str(path)!r}: {error}") from None
        return policy

    def save(self, path: PathLike) -> None:
        """Write the policy file, atomically; changes made to `manifest` are checked first."""
        self.manifest = Policy(self.net.arrays, self.manifest).manifest
        policy_file.write_atomically(path, policy_file.encode(self.net.arrays, self.manifest))

    def act(
        self,
        obs: Array,
        threshold: Array,
        *,
        spent: Array = 0.0,
        step: Array = 0,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
        calibrated: bool = False,
    ) -> np.ndarray:
        """The action in the environment's units: [A] for one observation [O], [N, A] for many [N, O].

        `threshold` is the cost limit of a whole episode, `spent` what the episode has cost so far, `step` how many
        steps it has taken: one number each, or one for each observation. A closed-loop policy needs them at every
        step (`episode` keeps them for you); an open-loop one does not look at the last two. With `calibrated`, the
        policy gets the dial setting of the largest calibrated request not above the threshold.
        """
        with np.errstate(all="ignore"):  # what overflows is refused in `_action`, with a better message
            obs = self._checked_obs(obs)
            threshold = _checked_number(threshold, obs.shape[:-1], "threshold")
            setting = self._setting(threshold, calibrated=calibrated, stacklevel=3)
            return self._action(obs, self.conditions(setting, spent, step, obs.shape[:-1]), deterministic, rng)

    def _action(
        self, obs: np.ndarray, conditions: tuple[Array, Array], deterministic: bool, rng: np.random.Generator | None
    ) -> np.ndarray:
        """The action in the environment's units, for what is checked already."""
        if deterministic:
            action = self.net.mean(obs, *conditions)
        else:
            noise = (rng or self._rng).standard_normal((*obs.shape[:-1], self.net.action_size), np.float32)
            action = self.net.sample(obs, *conditions, noise)
        if not np.isfinite(action).all():
            raise NumericalError("the action is not finite: weights or threshold are too large for float32")
        # clipped in the environment's units, so that rounding cannot leave the box either
        scaled = self._action_low + (action + ONE) * self._action_half_range
        return _clip(scaled, self._action_low, self._action_high)

    def _checked_obs(self, obs: Array) -> np.ndarray:
        size = self.net.observation_size
        if not isinstance(obs, np.ndarray) or self._layout is not None:
            obs = observations.flatten(self._layout, obs) if observations.is_structured(self._layout, obs) else obs
        array = _as_float32(obs)
        if array is None or array.ndim not in (1, 2) or array.shape[-1] != size:
            form = f", or {observations.describe(self._layout)}" if self._layout else ""
            raise FormatError(f"obs {_describe(obs)}, expected numbers of shape ({size},) or (N, {size}){form}")
        if not np.isfinite(array).all():
            raise NumericalError("obs holds NaN or infinity; check the sensor or the environment before acting")
        return array

    def conditions(
        self, setting: Array, spent: Array = 0.0, step: Array = 0, shape: tuple[int, ...] = ()
    ) -> tuple[np.ndarray, Array]:
        """What the net sees besides observations [*shape, O]: the budget [*shape, M] and the share of time to go.

        `setting` is the dial's, that is the threshold where nothing is calibrated. Closed loop, the budget is what is
        left of it; open loop it is the setting itself, and the time to go has no effect.
        """
        budget, to_go = np.empty((*shape, 1), np.float32), ONE
        if self.closed_loop:
            setting = setting - _checked_number(spent, shape, "spent")
            to_go = np.maximum(1.0 - _checked_number(step, shape, "step") / self.env.episode_length, ZERO)
        budget[..., 0] = setting
        return budget, to_go

    @property
    def threshold_range(self) -> tuple[float, float]:
        """The lowest and the highest threshold it was trained for."""
        return self.net.config.threshold_low[0], self.net.config.threshold_high[0]

    @property
    def closed_loop(self) -> bool:
        """Whether the policy sees the budget that is left and the time to go."""
        return self.net.config.condition == "budget"

    def episode(
        self,
        threshold: float,
        *,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
        calibrated: bool = False,
    ) -> "PolicyEpisode":
        """An episode under a threshold, which keeps what was spent and how many steps were taken."""
        return PolicyEpisode(self, threshold, deterministic=deterministic, rng=rng, calibrated=calibrated)

    def monitor(self, confidence: float = 0.95, *, cost_max: float | None = None, baseline: int = BASELINE) -> Monitor:
        """A monitor for episodes of this policy in operation; see `ccpo.monitor`.

        `cost_max` is the largest cost of an episode: the calibration's unless given, else 1 for each of its steps.
        """
        if cost_max is None:
            calibration: Mapping[str, Any] = self.manifest["calibration"] or {}
            cost_max = float(calibration.get("cost_max", self.env.episode_length))
        return Monitor(confidence=confidence, cost_max=cost_max, baseline=baseline)

    def _setting(self, threshold: Any, *, calibrated: bool, stacklevel: int) -> Any:
        """The dial setting for a threshold: itself, with a warning outside the trained range, or the calibrated one."""
        if calibrated:
            return self._dial(threshold)
        low, high = self.threshold_range
        inside = (low <= threshold) & (threshold <= high)
        if not (inside if isinstance(inside, bool) else inside.all()):
            message = f"threshold {_range_text(threshold)} is outside the trained range {low:g} to {high:g}"
            warnings.warn(f"{message}; the policy may not keep it", ThresholdWarning, stacklevel=stacklevel)
        return threshold

    def _dial(self, threshold: Any) -> np.ndarray:
        """The dial setting of the largest calibrated request ≤ threshold: nothing is known in between."""
        calibration = self.manifest["calibration"]
        if calibration is None:
            raise ThresholdError("this policy is not calibrated; run `ccpo calibrate` on it, or use calibrated=False")
        requested = np.asarray(calibration["requested"], np.float32)
        position = np.searchsorted(requested, np.asarray(threshold, np.float32), side="right") - 1
        if np.any(position < 0):
            given = f"threshold {_range_text(threshold)} is below the smallest calibrated one"
            raise ThresholdError(f"{given}; ask for {requested[0]:g} or more")
        return np.asarray(calibration["dial"], np.float32)[position]

    def _check_arrays(self) -> None:
        constraints = len(self.net.config.threshold_high)
        if not constraints == len(self.env.costs) == 1:
            raise FormatError(
                f"the net has {constraints} thresholds and the manifest's env {len(self.env.costs)} costs; "
                "this version acts under exactly one"
            )
        given = (self.net.observation_size, self.net.action_size)
        expected = (self.env.observation_size, self.env.action_size)
        if given != expected:
            raise FormatError(f"the net has (observation, action) sizes {given}, the manifest's env {expected}")
        for name, array in self.net.arrays.items():
            if not np.isfinite(array).all():
                raise FormatError(f"array '{name}' holds NaN or infinity")
            if name.endswith("obs_std") and not (array > 0).all():
                raise FormatError(f"array '{name}' must be above 0 everywhere")


class PolicyEpisode:
    """One episode of a policy: it acts under the budget that is left, and the dial can be turned at any step.

    `policy.episode(threshold=35)` begins one; after each step of the environment, `pay` its cost.
    """

    def __init__(
        self,
        policy: Policy,
        threshold: float,
        *,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
        calibrated: bool = False,
    ) -> None:
        self._policy, self._deterministic, self._rng, self._calibrated = policy, deterministic, rng, calibrated
        self.spent, self.steps = 0.0, 0
        self._turn(threshold, stacklevel=5)

    def __repr__(self) -> str:
        account = f"{self.spent:g} of {self.threshold:g} spent in {self.steps} steps"
        return f"<PolicyEpisode on {self._policy.env.task}: {account}>"

    @property
    def threshold(self) -> float:
        """The cost limit of the whole episode; set it to turn the dial, in mid-episode too."""
        return self._threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._turn(value, stacklevel=4)

    def _turn(self, value: float, *, stacklevel: int) -> None:
        if not is_number(value) or not 0 <= value <= LARGEST:
            raise ThresholdError(f"threshold is {value!r:.60}; give a finite cost limit ≥ 0")
        self._setting = self._policy._setting(float(value), calibrated=self._calibrated, stacklevel=stacklevel)
        self._threshold = float(value)

    @property
    def left(self) -> float:
        """What is left of the threshold; negative once the episode has cost more."""
        return self.threshold - self.spent

    def act(self, obs: Array) -> np.ndarray:
        """The action [A] for an observation [O], in the environment's units."""
        policy = self._policy
        with np.errstate(all="ignore"):  # as in `Policy.act`
            obs, conditions = policy._checked_obs(obs), policy.conditions(self._setting, self.spent, self.steps)
            return policy._action(obs, conditions, self._deterministic, self._rng)

    def pay(self, cost: float) -> None:
        """Account for one step of the environment, and its cost."""
        if not is_number(cost) or not 0 <= cost <= LARGEST:
            raise NumericalError(f"cost is {cost!r:.60}; the cost of a step must be a finite number ≥ 0")
        self.spent += float(cost)
        self.steps += 1


_EXPECTED = {
    "threshold": (ThresholdError, "a finite cost limit ≥ 0"),
    "spent": (NumericalError, "what the episode has cost so far, a finite number ≥ 0"),
    "step": (NumericalError, "how many steps the episode has taken, a finite number ≥ 0"),
}


def _checked_number(value: Array, shape: tuple[int, ...], name: str) -> Any:
    """A finite float ≥ 0, or an array of them with the given shape."""
    error, expected = _EXPECTED[name]
    if isinstance(value, float | int):
        valid, given_shape = 0.0 <= value <= LARGEST, ()
    else:
        array = _as_float32(value)
        if array is None:
            raise error(f"{name} {_describe(value)}, expected {expected}")
        value, given_shape = array, array.shape
        valid = bool(((array >= 0) & (array <= LARGEST)).all())
    if not valid:
        raise error(f"{name} is {value!r:.60}; give {expected}")
    if given_shape not in ((), shape):
        raise FormatError(f"{name} has shape {given_shape}, expected () or {shape}: one for each observation")
    return value


def _as_float32(value: Array) -> np.ndarray | None:
    """A float32 array of real numbers, or None if they are not; beyond float32 they become infinite."""
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return None
    return array.astype(np.float32) if array.dtype.kind in "fiub" else None


def _clip(x: np.ndarray, low: Array, high: Array) -> np.ndarray:
    """np.clip at a fraction of its fixed cost, which matters for one observation."""
    return np.minimum(np.maximum(x, low), high)


def _describe(value: Any) -> str:
    if value is None:
        return "is missing"
    shape = getattr(value, "shape", None)
    return f"is {value!r:.40}" if shape is None else f"has shape {tuple(shape)}"


def _range_text(threshold: Any) -> str:
    low, high = float(np.min(threshold)), float(np.max(threshold))
    return f"{low:g}" if low == high else f"{low:g} … {high:g}"
