"""Which extras are installed; what needs one that is not is skipped, and says so."""

from importlib.util import find_spec

import gymnasium
import pytest

from ccpo.envs.mujoco import OLDEST

_GYMNASIUM = tuple(int(part) for part in gymnasium.__version__.split(".")[:2])
HAS_BULLET = bool(find_spec("pybullet") and find_spec("bullet_safety_gym"))
HAS_MUJOCO = bool(find_spec("mujoco")) and _GYMNASIUM >= OLDEST
NEEDS_BULLET = pytest.mark.skipif(not HAS_BULLET, reason="needs the extra 'bullet'")
NEEDS_MUJOCO = pytest.mark.skipif(not HAS_MUJOCO, reason="needs the extra 'mujoco'")
_MARKS = {None: [], "bullet": [NEEDS_BULLET], "mujoco": [NEEDS_MUJOCO]}


def each(tasks):
    """The names of some tasks as parameters of a test, each with what it needs."""
    return [pytest.param(task.name, marks=_MARKS[task.extra]) for task in tasks]
