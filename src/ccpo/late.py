"""Methods of an object that a layer above implements: `agent.export()`, `print(table)`."""

import importlib
from types import ModuleType


def above(module: str) -> ModuleType:
    """A module of this package from a layer above the caller's, imported when the method is called."""
    return importlib.import_module(f"ccpo.{module}")
