"""Settings: frozen dataclasses that validate themselves, and strict merging preset → file → command line.

A setting is declared once, with `setting(default, help, …)`, beside the code that uses it. Nothing here knows an
algorithm.
"""

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field, fields
from importlib import resources
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ccpo.errors import ConfigError, did_you_mean

T = TypeVar("T")


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with its documentation and its allowed values (`low` and `high` included, `above` excluded)."""
    limits = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    return field(default=default, metadata=limits)


class Settings:
    """Base of every config: checks each field's type and limits when made."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = convert(f.name, getattr(self, f.name), hints[f.name])
            _check_limits(f.name, value, f.metadata)
            object.__setattr__(self, f.name, value)
        self.validate()

    def validate(self) -> None:
        """Checks that involve several settings; subclasses override it."""


def convert(name: str, value: Any, kind: Any) -> Any:
    """A value (perhaps a string of the command line, or a TOML or JSON value) as the field's type, or a ConfigError."""
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            value = [part for part in value.strip("()[] ").split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name}={value!r} must be a list such as 20,40,60")
        return tuple(convert(name, part, get_args(kind)[0]) for part in value)
    if type(None) in get_args(kind):
        if value is None or value == "none":
            return None
        return convert(name, value, get_args(kind)[0])
    try:
        return _CONVERSIONS[kind](value)
    except (KeyError, OverflowError, TypeError, ValueError):
        raise ConfigError(f"{name}={value!r} must be {_WORDS[kind]}") from None


def _to_bool(value: Any) -> bool:
    return {True: True, False: False, "true": True, "false": False}[value.lower() if isinstance(value, str) else value]


def _to_int(value: Any) -> int:
    number = float(value.replace("_", "")) if isinstance(value, str) else value
    if isinstance(number, bool) or number != int(number):
        raise ValueError
    return int(number)


def _to_float(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError
    return number


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


_CONVERSIONS = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}
_WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}


def _check_limits(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    for part in value if isinstance(value, tuple) else (value,):
        if part is None:
            continue
        if limits.get("choices") and part not in limits["choices"]:
            raise ConfigError(f"{name}={part!r} is not allowed; {did_you_mean(str(part), limits['choices'])}")
        low, high, above = (limits.get(k) for k in ("low", "high", "above"))
        if low is not None and part < low:
            raise ConfigError(f"{name}={part} is too small; the least allowed value is {low:g}")
        if high is not None and part > high:
            raise ConfigError(f"{name}={part} is too large; the greatest allowed value is {high:g}")
        if above is not None and part <= above:
            raise ConfigError(f"{name}={part} must be greater than {above:g}")


def build(kinds: tuple[type, ...], *layers: Mapping[str, Any]) -> tuple[Any, ...]:
    """Configs of several kinds from layers of flat settings; later layers win, an unknown name is an error."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update({name.replace("-", "_"): value for name, value in layer.items()})
    known = {f.name for kind in kinds for f in fields(kind)}
    for name in merged:
        if name not in known:
            raise ConfigError(f"unknown setting '{name}'; {hint(name, known)}")
    return tuple(kind(**{f.name: merged[f.name] for f in fields(kind) if f.name in merged}) for kind in kinds)


COST_LIMITS = ("cost_limit", "cost_limits", "cost_threshold", "limit", "safety_budget", "cost_budget")
"""What other libraries call the threshold."""


def hint(name: str, known: Iterable[str]) -> str:
    """What to write instead of a name that is not known."""
    if name in COST_LIMITS:
        return (
            "what others call the cost limit is the threshold here, and no setting: train under behaviour_thresholds "
            "and a threshold_range, then act with threshold=…"
        )
    return did_you_mean(name, known)


def as_dict(*configs: Any) -> dict[str, Any]:
    """The flat settings of some configs, ready for JSON."""
    merged: dict[str, Any] = {}
    for config in configs:
        merged.update(dataclasses.asdict(config))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in merged.items()}


def load_preset(algorithm: str, preset: str, task: str = "", *, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The preset's values for a task: what it extends, then its `all` table, then the task's if it is a registered one.

    What the task says of itself (`own`) has the place of its table in a preset that extends nothing.
    """
    path = resources.files("ccpo") / "presets" / f"{algorithm}.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if preset not in tables:
        raise ConfigError(f"unknown preset '{preset}' of {algorithm}; {did_you_mean(preset, tables)}")
    table = tables[preset]
    if "extends" in table:
        base, own = load_preset(algorithm, table["extends"], task, own=own), None
    else:
        base = {}
    return {**base, **table.get("all", {}), **(own or {}), **table.get(task, {})}


def load_file(path: str) -> dict[str, Any]:
    """Flat settings of a TOML file of the user's."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the settings file '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file '{path}' is not valid TOML: {error}") from None
