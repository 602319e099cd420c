"""A cost function of the user's, checked: its arguments when it is given, what it returns at every step."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ccpo.errors import ConfigError, EnvError

CostFn = Callable[[Any, np.ndarray, float, Any, dict[str, Any]], float]
"""cost_fn(obs, action, reward, next_obs, info): all as the environment itself sees them."""

RIGHT = "def cost_fn(obs, action, reward, next_obs, info): return 0.0"


@dataclass(frozen=True)
class CheckedCost:
    """`function`, whose result is a float or an error that shows the right form."""

    function: CostFn

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"cost_fn={self.function!r:.60} is no function; give one such as: {RIGHT}")
        try:
            inspect.signature(self.function).bind(*[None] * 5)
        except TypeError:
            given = f"{self.name}{inspect.signature(self.function)}"
            raise ConfigError(f"cost_fn is {given}, and must take five arguments, such as: {RIGHT}") from None
        except ValueError:  # a built-in that tells nothing of its arguments
            return

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, obs: Any, action: np.ndarray, reward: float, next_obs: Any, info: dict[str, Any]) -> float:
        cost = self.function(obs, action, reward, next_obs, info)
        number = np.asarray(cost)
        if number.size != 1 or number.dtype.kind not in "fiub":
            raise EnvError(
                f"cost_fn {self.name} returned {cost!r:.40}, and must return one number ≥ 0 at every step, "
                f"such as: {RIGHT}"
            )
        return float(number.item())
