"""JSON files of ours, written atomically; where a changed digit would change a result, with a digest of themselves."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccpo.errors import FormatError
from ccpo.policy_file import write_atomically

DIGEST = "digest"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of ours, or a FormatError that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"'{path}' is missing; the folder is not a complete run") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"'{path}' cannot be read ({error}); restore it or start a new run") from None
    if not isinstance(content, dict):
        raise FormatError(f"'{path}' holds no JSON object; restore it or start a new run")
    return content


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON object with the SHA-256 of all else in it as its last member."""
    write_json(path, {**content, DIGEST: _digest(content)})


def read_sealed(path: Path) -> dict[str, Any]:
    """The object without its digest, which must fit; files from before there were digests have none."""
    content = read_json(path)
    if content.pop(DIGEST, None) not in (None, _digest(content)):
        raise FormatError(f"'{path}' was damaged or edited: its digest does not fit; restore it or start a new run")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
