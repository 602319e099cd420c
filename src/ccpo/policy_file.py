"""The file of a policy: float32 arrays in safetensors, a JSON manifest in its metadata, a checksum over both.

Knows names, kinds and bytes, not what the arrays compute. Needs NumPy and safetensors only.
"""

import hashlib
import json
import math
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from ccpo import observations
from ccpo.errors import FormatError, RunError
from ccpo.types import EARLY_ENDS, LARGEST, EnvSpec

FORMAT = "ccpo-policy"
FORMAT_VERSION = 3
MAX_HEADER_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 28

ARRAY_NAME = re.compile(r"(member\.\d{1,3}\.)?(obs_mean|obs_std|log_std|layers\.\d{1,3}\.(weight|bias))")
FIELD_KINDS: dict[str, type | tuple[type, ...]] = {
    "env": dict,
    "net": dict,
    "algorithm": str,
    "behaviour_thresholds": list,
    "versions": dict,
    "training": dict,
    "evaluation": object,
    "calibration": (dict, type(None)),
}

PathLike = str | os.PathLike[str]
T = TypeVar("T")


@contextmanager
def writing(path: PathLike, *, then: str = "") -> Iterator[None]:
    """What fails in here because a file cannot be written is one `RunError`; `then` says how to go on."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or _one_line(error)
        raise RunError(f"cannot write {str(path)!r}: {reason}; check folder and free space{then}") from None


def write_atomically(path: PathLike, data: bytes | str) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            with suppress(OSError):  # the error of writing says more
                part.unlink(missing_ok=True)


def encode(arrays: Mapping[str, np.ndarray], manifest: Mapping[str, Any]) -> bytes:
    """The bytes of a policy file."""
    data = safetensors.numpy.save(dict(arrays), {"manifest": canonical(manifest)})
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > MAX_HEADER_BYTES or len(data) > MAX_FILE_BYTES:
        raise FormatError(
            f"the policy is too large: header {header_bytes} bytes (at most {MAX_HEADER_BYTES}), "
            f"file {len(data)} (at most {MAX_FILE_BYTES}); shorten the manifest or the net"
        )
    return data


def read(path: PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and manifest of a policy file; whether they fit together is for the caller to check."""
    data = _read_bytes(Path(path))
    header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")], "header")
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("manifest"), str):
        raise FormatError("a safetensors file without a policy manifest; export the policy with `ccpo export`")
    manifest = parse_json(metadata["manifest"], "manifest")
    for name, entry in header.items():
        if not ARRAY_NAME.fullmatch(name) or not isinstance(entry, dict) or entry.get("dtype") != "F32":
            raise FormatError(f"unexpected array {name!r:.60}; a policy holds float32 layers and statistics only")
    try:
        return safetensors.numpy.load(data), manifest
    except (SafetensorError, ValueError) as error:
        raise FormatError(f"the arrays are damaged ({_one_line(error)})") from None


def checksum(arrays: Mapping[str, np.ndarray], manifest: Mapping[str, Any]) -> str:
    """SHA-256 over the manifest without its checksum, then each array's name, dtype, shape and bytes."""
    digest = hashlib.sha256(canonical({k: v for k, v in manifest.items() if k != "checksum"}).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def checked_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A plain-JSON copy with every required field of the right kind."""
    given = (manifest.get("format"), manifest.get("format_version"))
    if given != (FORMAT, FORMAT_VERSION):
        raise FormatError(f"format and version are {given!r:.80}, expected {(FORMAT, FORMAT_VERSION)}")
    copy = parse_json(canonical(manifest), "manifest")
    unknown = copy.keys() - FIELD_KINDS.keys() - {"format", "format_version", "checksum"}
    if unknown:
        raise FormatError(f"the manifest has unknown fields {sorted(unknown)!r:.60}")
    for name, kind in FIELD_KINDS.items():
        if name not in copy or not isinstance(copy[name], kind):
            raise FormatError(f"the manifest's '{name}' is missing or of the wrong kind: {copy.get(name)!r:.60}")
    _check_increasing(copy["behaviour_thresholds"], "behaviour_thresholds")
    if copy["calibration"] is not None:
        requested, dial = copy["calibration"].get("requested"), copy["calibration"].get("dial")
        _check_increasing(requested, "calibration.requested")
        if not is_number(copy["calibration"].get("cost_max", 1.0)):
            raise FormatError("the manifest's 'calibration.cost_max' must be a number")
        if not are_numbers(dial) or len(dial) != len(requested) or min(dial) < 0:
            raise FormatError("the manifest's 'calibration.dial' must hold one number ≥ 0 for each request")
    return copy


def upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest of format 2 in the present format, if the present program can act as it says."""
    if (manifest.get("format"), manifest.get("format_version")) != (FORMAT, 2):
        return manifest
    env, net = manifest.get("env"), manifest.get("net")
    if not isinstance(env, dict) or not isinstance(net, dict):
        raise FormatError("the manifest's 'env' or 'net' is missing or of the wrong kind")
    env, net = dict(env), dict(net)
    if net.pop("asked", ()) or net.pop("shown", ()) or env.pop("budget_aware", False):
        raise FormatError(
            "a file of format 2 with a fitted dial or a budget-aware task, which this version no longer has; "
            "train it again with this version, or load it with ccpo 0.1"
        )
    env.pop("budget_unit", None)
    net["condition"] = "threshold" if net.pop("conditioned", True) else "none"
    net |= {name: [net.get(name)] for name in ("threshold_low", "threshold_high")}
    return {**manifest, "format_version": FORMAT_VERSION, "env": env, "net": net}


def parse_dataclass(cls: type[T], data: dict[str, Any], where: str) -> T:
    """A dataclass from its JSON object; unknown and missing fields are refused, lists become tuples."""
    required = {field.name: field.default is MISSING for field in fields(cls)}  # type: ignore[arg-type] T is a dataclass
    unknown = sorted(data.keys() - required.keys())
    missing = [name for name, needed in required.items() if needed and name not in data]
    if unknown or missing:
        raise FormatError(f"the manifest's '{where}' lacks {missing}, has unknown {unknown!r:.60}")
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


def checked_env(env: EnvSpec) -> EnvSpec:
    """The environment's specification, with plausible sizes and an action box that is not empty."""
    low, high = env.action_low, env.action_high
    plausible = isinstance(env.task, str) and are_numbers(low) and are_numbers(high) and 0 < len(low) == len(high)
    if not plausible or not all(type(n) is int and n > 0 for n in (env.observation_size, env.episode_length)):
        raise FormatError("the manifest's 'env' needs a task, sizes above 0 and action bounds of equal length")
    if not (isinstance(env.costs, tuple) and env.costs and all(isinstance(name, str) for name in env.costs)):
        raise FormatError(f"the manifest's 'env' needs the names of its costs, not {env.costs!r:.60}")
    if env.early_end not in EARLY_ENDS:
        raise FormatError(f"the manifest's early_end is {env.early_end!r:.60}, expected one of {', '.join(EARLY_ENDS)}")
    layout = observations.decode(env.observation_layout)
    if layout is not None and observations.size(layout) != env.observation_size:
        raise FormatError(
            f"the manifest's observation_layout has {observations.size(layout)} numbers, "
            f"its observation_size is {env.observation_size}"
        )
    bounds = np.clip([low, high], -2 * LARGEST, 2 * LARGEST).astype(np.float32)  # as actions are scaled with
    if not (bounds[0] < bounds[1]).all() or np.abs(bounds).max() > LARGEST:
        raise FormatError(
            f"the manifest's action_low {low!r:.60} must be below action_high {high!r:.60}, both within ±{LARGEST:g} "
            "and told apart by float32"
        )
    return env


def parse_json(text: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object without NaN or infinity."""

    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the {what} is damaged ({_one_line(error)})") from None
    if not isinstance(value, dict):
        raise FormatError(f"the {what} must be a JSON object, not {type(value).__name__}")
    return value


def canonical(manifest: Mapping[str, Any]) -> str:
    """The one JSON text of a manifest."""
    try:
        return json.dumps(manifest, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"the manifest is not plain JSON ({_one_line(error)})") from None


def is_number(value: Any) -> bool:
    """A finite real number; a bool is not one, an int beyond float is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def are_numbers(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(is_number(value) for value in values)


def _check_increasing(values: Any, name: str) -> None:
    if not are_numbers(values) or not values or values[0] < 0 or any(np.diff(values) <= 0):
        raise FormatError(f"the manifest's '{name}' must be increasing numbers ≥ 0, not {values!r:.60}")


def _read_bytes(path: Path) -> bytes:
    """The file's content, once its size and the length of its header are found plausible."""
    try:
        if not path.is_file():
            raise FormatError("it is a folder" if path.is_dir() else "there is no such file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 8 < size <= MAX_FILE_BYTES or not 2 <= header_bytes <= min(size - 8, MAX_HEADER_BYTES):
                raise FormatError(f"not a policy file, or truncated ({size} bytes, header of {header_bytes})")
            file.seek(0)
            return file.read(size)
    except OSError as error:
        raise FormatError(f"{error.strerror}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
