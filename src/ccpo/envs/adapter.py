"""The one interface that the collector steps: any Gymnasium environment with a cost, made flat and checked.

The cost is found where the environment puts it: a `cost_fn` given by the user, the third value of
Safety-Gymnasium's 6-tuple, or `info["cost"]` of the usual 5-tuple. Several costs are a mapping of their names to
numbers, there or in `info["costs"]`.
"""

import copy
import inspect
import math
import numbers
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from ccpo.envs.costs import CostFn
from ccpo.envs.layouts import layout_of
from ccpo.errors import CCPOError, EnvError, NumericalError
from ccpo.observations import encode
from ccpo.types import EARLY_ENDS, LARGEST, EnvSpec

_FLAT_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class CostEnv:
    """`reset() -> obs` and `step(action) -> (obs, reward, cost, terminated, truncated)` around an environment.

    Observations are float32[O]; actions are float32[A] in the policy's units [−1, 1], clipped and scaled to
    the box. The episode is cut at `spec.episode_length`; an episode ends either terminated or truncated,
    never both. The cost is a float, or float32[M] in the order of the names if there are several.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        task: str,
        *,
        episode_length: int | None = None,
        cost_fn: CostFn | None = None,
        early_end: str = "failure",
        costs: tuple[str, ...] = ("cost",),
    ):
        if not all(hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space")):
            raise EnvError(f"{task}: a gymnasium.Env is needed, not {type(env).__name__}; return one from the factory")
        low, high = _action_bounds(env.action_space, task)
        self.env = env
        self.spec = EnvSpec(
            task=task,
            observation_size=_observation_size(env.observation_space, task),
            action_low=tuple(low.ravel().tolist()),
            action_high=tuple(high.ravel().tolist()),
            episode_length=_episode_length(env, task, episode_length),
            early_end=_checked_early_end(early_end, task),
            observation_layout=encode(layout_of(env.observation_space)),
            costs=costs,
        )
        self._has_several_costs = len(costs) > 1
        self._low, self._high = low.ravel(), high.ravel()
        self._scale, self._offset = 0.5 * (self._high - self._low), 0.5 * (self._high + self._low)
        self._is_unit_box = bool((self._low == -1.0).all() and (self._high == 1.0).all())
        self._action_shape, self._is_flat = low.shape, low.ndim == 1
        self._is_box = isinstance(env.observation_space, spaces.Box)
        self._cost_fn = cost_fn
        self._raw_obs: Any = None
        self._episode = 0
        self._step = 0

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode; a seed is passed on to the environment."""
        self._episode += 1
        self._step = 0
        try:
            outcome = self.env.reset(seed=seed)
        except CCPOError:
            raise
        except Exception as error:
            raise self._failure("reset()", error) from error
        if not (isinstance(outcome, tuple) and len(outcome) == 2):
            raise EnvError(
                f"{self.spec.task}: reset() must return (observation, info), not {type(outcome).__name__}; "
                "wrap the environment into Gymnasium's interface"
            )
        obs = self._flatten(outcome[0])
        self._check_size(obs, 0.0, 0.0)
        if self._cost_fn is not None:
            self._raw_obs = _snapshot(outcome[0])
        return obs

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, Any, bool, bool]:
        """Take one step with an action in the policy's units."""
        boxed = self._boxed(action)
        self._step += 1
        try:
            outcome: Any = self.env.step(boxed)
        except CCPOError:
            raise
        except Exception as error:
            raise self._failure("step()", error) from error
        raw_obs, reward, cost, terminated, truncated = self._read(outcome, boxed)
        obs, total = self._flatten(raw_obs), 0.0
        if type(reward) is not float:
            reward = self._number(reward, "reward")
        if self._has_several_costs:
            cost = self._by_name(cost)
        else:
            cost = total = cost if type(cost) is float else self._number(cost, "cost")
        # The length of all numbers as one vector: NaN, infinity and what is too large show in a single comparison.
        if not math.hypot(reward, total, *obs.tolist()) <= LARGEST:
            self._check_size(obs, reward, total)
        if total < 0.0:
            self._refuse_negative("cost", total)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = self._flag(terminated, "terminated"), self._flag(truncated, "truncated")
        truncated = not terminated and (truncated or self._step >= self.spec.episode_length)
        return obs, reward, cost, terminated, truncated

    def close(self) -> None:
        self.env.close()

    def _boxed(self, action: np.ndarray) -> np.ndarray:
        """The action in the environment's units and shape, clipped to its box: a copy, which it may keep."""
        if self._is_unit_box:
            boxed, values = action.copy(), action.tolist()
            inside = min(values) >= -1.0 and max(values) <= 1.0
        else:
            boxed, inside = action * self._scale + self._offset, False
        if not inside:
            np.clip(boxed, self._low, self._high, out=boxed)
        return boxed if self._is_flat else boxed.reshape(self._action_shape)

    def _flatten(self, obs: Any) -> np.ndarray:
        """An observation as float32[O]: a copy, since environments may return the same buffer at every step."""
        try:
            flat = np.array(obs if self._is_box else spaces.flatten(self.env.observation_space, obs), np.float32)
        except Exception as error:  # whatever `flatten` meets in what is no member of the space
            raise EnvError(
                f"{self.spec.task}: the observation at {self._where()} is no member of {self.env.observation_space} "
                f"({type(error).__name__}: {error}); correct the environment or its observation_space"
            ) from error
        if flat.size != self.spec.observation_size:
            raise EnvError(
                f"{self.spec.task}: the observation at {self._where()} has {flat.size} numbers, its observation_space "
                f"{self.spec.observation_size}; correct the environment or its observation_space"
            )
        return flat if flat.ndim == 1 else flat.ravel()

    def _read(self, outcome: Any, action: np.ndarray) -> tuple[Any, Any, Any, Any, Any]:
        """(obs, reward, cost, terminated, truncated) from whichever form the environment returned."""
        count = len(outcome) if isinstance(outcome, tuple | list) else None
        if count == 5:
            obs, reward, terminated, truncated, info = outcome
            info = info if isinstance(info, dict) else {}
            cost = info.get("costs") if self._has_several_costs and "costs" in info else info.get("cost")
        elif count == 6:
            obs, reward, cost, terminated, truncated, info = outcome
        else:
            given = f"{count} values" if count is not None else type(outcome).__name__
            raise EnvError(
                f"{self.spec.task}: step() returned {given}; it must return Gymnasium's 5 values with "
                'info["cost"], or Safety-Gymnasium\'s 6: wrap the environment into one of them'
            )
        if self._cost_fn is not None:
            try:
                cost = self._cost_fn(self._raw_obs, action, self._number(reward, "reward"), obs, info)
            except CCPOError:
                raise
            except Exception as error:
                raise self._failure("cost_fn", error) from error
            self._raw_obs = _snapshot(obs)
        if cost is None:
            raise EnvError(
                f'{self.spec.task}: no cost at {self._where()}; put it into info["cost"] at every step, '
                "or give cost_fn=… (obs, action, reward, next_obs, info → cost)"
            )
        return obs, reward, cost, terminated, truncated

    def _by_name(self, cost: Any) -> np.ndarray:
        """Several costs in the order of their names: float32[M]."""
        names = self.spec.costs
        if not isinstance(cost, Mapping) or set(cost) != set(names):
            given = f"the names {', '.join(map(str, cost))}" if isinstance(cost, Mapping) else f"no names: {cost!r}"
            raise EnvError(
                f"{self.spec.task}: the cost at {self._where()} has {given}; every step must name {', '.join(names)}"
            )
        values = [self._number(cost[name], f"cost '{name}'") for name in names]
        for name, value in zip(names, values, strict=True):
            if not abs(value) <= LARGEST:
                self._refuse_size(f"cost '{name}'", value)
            if value < 0.0:
                self._refuse_negative(f"cost '{name}'", value)
        return np.array(values, np.float32)

    def _refuse_negative(self, name: str, value: float) -> None:
        raise EnvError(
            f"{self.spec.task}: {name} {value:g} at {self._where()} is negative; costs must be ≥ 0: "
            "move what is good into the reward"
        )

    def _number(self, value: Any, quantity: str) -> float:
        """A scalar as a float; an array of one number is none, since it would be broadcast silently."""
        if isinstance(value, numbers.Real | SupportsFloat) and getattr(value, "shape", ()) == ():
            return float(value)
        advice = "return a float"
        if isinstance(value, Mapping):
            advice = "give a cost_fn that makes one, or name the costs in ccpo.register_task(…, costs=…)"
        raise EnvError(
            f"{self.spec.task}: the {quantity} at {self._where()} is {_shown(value)}; it must be one number: {advice}"
        )

    def _flag(self, value: Any, name: str) -> bool:
        if isinstance(value, numbers.Real | np.bool_) or getattr(value, "shape", None) == ():
            return bool(value)
        raise EnvError(
            f"{self.spec.task}: '{name}' at {self._where()} is {_shown(value)}; it must be true or false: return a bool"
        )

    def _failure(self, what: str, error: Exception) -> EnvError:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return EnvError(
            f"{self.spec.task}: {what} failed at {self._where()} with {type(error).__name__}: {error} "
            f"({Path(place.filename).name}, line {place.lineno}); correct the environment"
        )

    def _check_size(self, obs: np.ndarray, reward: float, cost: float) -> None:
        """Refuse NaN, infinity, and what is beyond the numbers that learning can square in float32."""
        for quantity, value in (("observation", obs), ("reward", reward), ("cost", cost)):
            values = np.atleast_1d(value)
            bad = ~(np.abs(values) <= LARGEST)
            if bad.any():
                index = f"[{bad.argmax()}]" if quantity == "observation" else ""
                self._refuse_size(f"{quantity}{index}", values[bad][0])

    def _refuse_size(self, name: str, value: float) -> None:
        raise NumericalError(
            f"{self.spec.task}: {name} is {value:g} at {self._where()}; values must be finite "
            f"and at most {LARGEST:g} in size: bound or scale them in a wrapper"
        )

    def _where(self) -> str:
        return f"step {self._step} of episode {self._episode}"


def _shown(value: Any) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"{value!r:.40}"


def _snapshot(obs: Any) -> Any:
    return obs.copy() if isinstance(obs, np.ndarray) else copy.deepcopy(obs)


def _action_bounds(space: spaces.Space, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the action box as float32, in the shape that the environment expects."""
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise EnvError(f"{task}: actions must be a Box of real numbers, not {space}; wrap the environment into one")
    with np.errstate(over="ignore"):
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    if not (np.abs([low, high]) <= LARGEST).all():
        raise EnvError(
            f"{task}: the action Box must have finite bounds, at most {LARGEST:g} in size, not {space}; "
            "bound it in a wrapper"
        )
    if not (low < high).all():
        raise EnvError(f"{task}: the action Box is empty, {space}; its low must be below its high everywhere")
    return low, high


def _observation_size(space: spaces.Space, task: str) -> int:
    if not _can_flatten(space):
        raise EnvError(
            f"{task}: observations must be a Box, a Discrete space, or a Dict or Tuple of them, not {space}; "
            "convert them in a wrapper"
        )
    return spaces.flatdim(space)


def _can_flatten(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Dict):
        return all(_can_flatten(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return all(_can_flatten(part) for part in space.spaces)
    return isinstance(space, _FLAT_SPACES)


def _episode_length(env: gymnasium.Env, task: str, requested: int | None) -> int:
    """The requested length, else that of a TimeLimit or an attribute, else that of the spec."""
    enforced = min(_own_limits(env), default=None)
    declared = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    length = requested if requested is not None else enforced or declared
    if length is None:
        raise EnvError(f"{task}: the episode length is unknown; give episode_length=… (steps until truncation)")
    if not isinstance(length, int | np.integer) or length < 1:
        raise EnvError(f"{task}: episode_length={length!r} is not allowed; give a whole number of steps ≥ 1")
    if enforced is not None and length > enforced:
        raise EnvError(
            f"{task}: episode_length={length} is beyond the environment's own limit of {enforced} steps; "
            f"give episode_length ≤ {enforced}, or remove its TimeLimit"
        )
    return int(length)


def _checked_early_end(early_end: str, task: str) -> str:
    if early_end not in EARLY_ENDS:
        raise EnvError(f"{task}: early_end={early_end!r} is not allowed; give one of {', '.join(EARLY_ENDS)}")
    return early_end


def _own_limits(env: Any) -> Iterator[int]:
    """Time limits in the stack of wrappers, layer by layer, since wrappers may forward attributes."""
    for layer in _layers(env):
        for name in ("_max_episode_steps", "episode_length", "max_episode_steps"):
            limit = inspect.getattr_static(layer, name, None)
            if isinstance(limit, int | np.integer):
                yield int(limit)


def _layers(env: Any) -> Iterator[Any]:
    """The stack of wrappers, from the outermost to the environment itself."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")
