"""A user's own environments and cost functions by name: `module:Class` or `folder/file.py:function`.

A run keeps the name, so that a later process, in any folder, finds them again. The current folder can be imported from.
"""

import importlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ccpo.errors import CCPOError, ConfigError, EnvError, FormatError, did_you_mean

_NAME = re.compile(r"(?P<module>.+):(?P<attribute>[A-Za-z_][\w.]*)")
_being_imported: list[str] = []


@dataclass(frozen=True)
class Source:
    """Where something of the user's can be imported from."""

    path: str | None
    """`module:Name`; None if no later process can import it."""
    folder: str | None = None
    """What must be on the path for that; None if it is installed."""

    def as_dict(self) -> dict[str, str | None]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | bool | None) -> "Source | None":
        """The inverse of `as_dict`; version 0.1 kept true or false instead."""
        if not data:
            return None
        path, folder = (data.get("path"), data.get("folder")) if isinstance(data, Mapping) else (None, None)
        if not all(isinstance(each, str | None) for each in (path, folder)):
            raise FormatError(f"where to import from must be texts, not {path!r:.60} and {folder!r:.60}")
        return cls(path, folder)


def looks_own(name: str) -> bool:
    """Whether a text has the form `module:Name`; a Gymnasium id `module:Id-v0` has not."""
    return _NAME.fullmatch(name) is not None


def find(name: str, *, folder: str | None = None) -> Any:
    """What `module:Name` or `file.py:Name` stands for; None if the module has no such name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"'{name}' must look like module:Name or folder/file.py:Name, such as speed.py:SpeedEnv")
    found: Any = import_module(match["module"], needed_for=name, folder=folder)
    for part in match["attribute"].split("."):
        found = getattr(found, part, None)
    return found


def find_function(name: str, *, folder: str | None = None) -> Any:
    """As `find`, where nothing else can be meant."""
    found = find(name, folder=folder)
    if not callable(found):
        module, _, attribute = name.rpartition(":")
        own = [key for key, value in vars(import_module(module, needed_for=name)).items() if inspect.isfunction(value)]
        hint = did_you_mean(attribute, own) if own else "it has no function at all"
        raise ConfigError(f"'{module}' has no function '{attribute}'; {hint}")
    return found


def import_module(name: str, *, needed_for: str, folder: str | None = None) -> ModuleType:
    """A module by its name or by its file; what goes wrong inside it is told in one line."""
    file = Path(name).resolve() if name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise EnvError(f"there is no file '{name}' for '{needed_for}'; correct the path, or go to its folder")
    for place in (folder, str(Path.cwd()), file and str(file.parent)):
        if place and place not in sys.path:
            sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        with _importing(name):
            module = importlib.import_module(name if file is None else file.stem)
    except CCPOError:
        raise
    except Exception as error:  # a module may fail in any way while it is imported
        reason = f"{type(error).__name__}: {error}"
        raise EnvError(f"cannot import '{name}' for '{needed_for}' ({reason}); install or correct it") from error
    if file is not None and Path(module.__file__ or "").resolve() != file:
        raise EnvError(f"'{name}' has the name of another module, '{module.__file__}'; rename the file")
    return module


@contextmanager
def _importing(name: str) -> Iterator[None]:
    _being_imported.append(name)
    try:
        yield
    finally:
        _being_imported.pop()


def refuse_while_importing(what: str) -> None:
    """A script that trains whenever it is imported would train again in every later command."""
    if _being_imported:
        raise ConfigError(
            f"'{_being_imported[-1]}' calls {what} when it is imported for its environment; "
            'put that call under if __name__ == "__main__":'
        )


def source_of(thing: Any) -> Source:
    """Where a class or a function can be imported from; a lambda, a closure, an instance, a notebook's cell cannot."""
    name, holder = getattr(thing, "__qualname__", None), sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(holder, "__file__", None)
    if holder is None or not file or not isinstance(name, str) or not _is_found(holder, name, thing):
        return Source(None)
    spec = getattr(holder, "__spec__", None)
    module = spec.name if spec else Path(file).stem  # a script that runs has no spec
    folder = Path(file).resolve().parents[module.count(".") + (Path(file).stem == "__init__")]
    return Source(f"{module}:{name}", None if _is_installed(folder) else str(folder))


def registered(name: str) -> Source:
    """Where `module:Name` comes from if importing the module registers that name."""
    module, _, own = name.rpartition(":")
    if not module.endswith(".py"):
        return Source(name, str(Path.cwd()))
    file = Path(module).resolve()
    return Source(f"{file.stem}:{own}", str(file.parent))


def _is_found(holder: Any, name: str, thing: Any) -> bool:
    for part in name.split("."):
        holder = getattr(holder, part, None)
    return holder is thing


def _is_installed(folder: Path) -> bool:
    return any(folder == Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib"))
