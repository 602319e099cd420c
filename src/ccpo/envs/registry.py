"""Where environments come from: the tasks known by name, any Gymnasium id, an environment, a factory.

A family of environments is a module that exports its `TASKS`. Tasks of a user's own come from `register_task`; the
modules that call it are found by `module:Name`, in the variable `CCPO_TASKS`, and as entry points `ccpo.tasks`.
"""

import inspect
import os
import pickle
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, cached_property, partial
from importlib.metadata import entry_points
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from ccpo.envs import analytic, analytic_pairs, bullet, importing, mujoco
from ccpo.envs.adapter import CostEnv
from ccpo.envs.costs import CheckedCost, CostFn
from ccpo.envs.importing import Source
from ccpo.envs.tasks import Scene, Task
from ccpo.errors import CCPOError, ConfigError, EnvError, did_you_mean
from ccpo.types import EARLY_ENDS, EnvSpec

TASKS: dict[str, Task] = {
    task.name: task for family in (bullet, mujoco, analytic, analytic_pairs) for task in family.TASKS
}
_OURS = frozenset(TASKS)


def register_task(
    name: str,
    make: Callable[[], gymnasium.Env],
    *,
    behaviour_thresholds: Sequence[float],
    threshold_range: tuple[float, float],
    episode_length: int,
    description: str = "",
    costs: Sequence[str] = ("cost",),
    early_end: str = "failure",
    scene: Scene | Callable[[], Scene] | None = None,
    steps: int | None = None,
    max_step_cost: float | None = None,
) -> Task:
    """Make an environment of your own a named task, for training, studies, lists and the playground alike.

    `make` returns a fresh environment. `scene` says how it is drawn (`ccpo.Scene`), `steps` for how long it is trained,
    `max_step_cost` what a step costs at most. With several `costs`, each threshold is a tuple with a number for each.
    The registration lasts as long as the process: put it into a module, and name that in `--task my_module:MyTask`, in
    the variable `CCPO_TASKS` (several with commas), or as an entry point of the group `ccpo.tasks` of its package.

    >>> from ccpo.envs.analytic import StaticBudget
    >>> task = register_task(
    ...     "MyTask", StaticBudget, behaviour_thresholds=(20, 40), threshold_range=(10, 50), episode_length=100
    ... )
    >>> find_task("my-task").behaviour_thresholds
    (20.0, 40.0)
    """
    costs = tuple(costs)
    if not costs or len(set(costs)) < len(costs) or not all(costs):
        raise ConfigError(f"task '{name}': costs={costs} must be different names, at least one")
    task = Task(
        name=name,
        description=description or f"made by {getattr(make, '__qualname__', type(make).__name__)}",
        behaviour_thresholds=tuple(_checked_threshold(name, each, costs) for each in behaviour_thresholds),
        threshold_range=cast(Any, tuple(_checked_threshold(name, each, costs) for each in threshold_range)),
        episode_length=episode_length,
        make=make,
        costs=costs,
        early_end=early_end,
        scene=Scene if scene is None else partial(replace, scene) if isinstance(scene, Scene) else scene,
        steps=steps,
        max_step_cost=max_step_cost,
    )
    _check_task(task)
    TASKS[name] = task
    return task


def _checked_threshold(task: str, given: Any, costs: tuple[str, ...]) -> Any:
    """A threshold as a number, or as one for each cost."""
    try:
        values = [float(value) for value in (given if len(costs) > 1 else [given])]
    except (TypeError, ValueError):
        values = []
    if len(values) != len(costs) or not all(0.0 <= value < float("inf") for value in values):
        form = "a finite number ≥ 0" if len(costs) == 1 else f"finite numbers ≥ 0, one for each of {', '.join(costs)}"
        raise ConfigError(f"task '{task}': the threshold {given!r} is not allowed; each must be {form}")
    return tuple(values) if len(costs) > 1 else values[0]


def _check_task(task: Task) -> None:
    name, known = task.name, {_fold(other): other for other in TASKS}
    if name != _as_folder_name(name):
        raise ConfigError(f"task name '{name}' is not allowed; use letters, digits, '.', '_' and '-', such as 'MyTask'")
    taken = known.get(_fold(name))
    if taken in _OURS or taken not in (None, name):
        raise ConfigError(f"task name '{name}' is taken by '{taken}'; choose another one")
    if task.early_end not in EARLY_ENDS:
        raise ConfigError(f"task '{name}': early_end='{task.early_end}' is not allowed; give {' or '.join(EARLY_ENDS)}")
    if not callable(task.make):
        raise ConfigError(f"task '{name}': make={task.make!r} must be a function without arguments, or a class")
    for what, value in (("episode_length", task.episode_length), ("steps", task.steps)):
        if not (value is None and what == "steps") and not (type(value) is int and value >= 1):
            raise ConfigError(f"task '{name}': {what}={value!r} is not allowed; give a whole number ≥ 1")
    if task.max_step_cost is not None and not 0.0 < task.max_step_cost < float("inf"):
        raise ConfigError(f"task '{name}': max_step_cost={task.max_step_cost} is not allowed; give a finite number > 0")
    if not task.behaviour_thresholds or len(task.threshold_range) != 2:
        raise ConfigError(f"task '{name}' needs behaviour_thresholds such as (20, 40, 60), threshold_range as (10, 70)")
    for number, cost in enumerate(task.costs):
        low, high, *inner = (
            each[number] if len(task.costs) > 1 else each
            for each in (*task.threshold_range, *task.behaviour_thresholds)
        )
        if not (low < high and all(low <= threshold <= high for threshold in inner)):
            raise ConfigError(
                f"task '{name}': the behaviour thresholds of '{cost}' must lie within its range, and this must rise: "
                f"{inner} in {low:g} to {high:g}"
            )


def list_tasks() -> list[str]:
    """The names of the registered tasks, those of installed packages included."""
    _load_plugins()
    return list(TASKS)


def is_ours(task: Task) -> bool:
    """Whether it comes with the package, and is not registered by another module."""
    return task.name in _OURS


def make(name: str) -> gymnasium.Env:
    """A task's environment, as any Gymnasium environment: the cost is `info["cost"]`.

    >>> make("StaticBudget").action_space.shape
    (1,)
    """
    return find_task(name).make()


def find_task(name: str) -> Task:
    """The task of that name; 'Ball-Circle', 'SafetyBallCircle-v0', 'ccpo/StaticBudget-v0' are understood too.

    >>> find_task("Static-Budget-T50").threshold_range
    (5.0, 35.0)
    """
    task = lookup(name)
    if task is None:
        raise ConfigError(f"unknown task '{name}'; {_suggest(name, TASKS)}")
    return task


def lookup(name: str) -> Task | None:
    """The task of that name, or None; `module:Name` is a task that is registered by importing the module."""
    module, _, own = name.rpartition(":")
    if not module:
        return _known(name) or analytic.find_variant(name) or (_known(name) if _load_plugins() else None)
    importing.import_module(module, needed_for=name)
    task = _known(own)
    return None if task and is_ours(task) else task  # a user's class may have the name of a task of ours


def _known(name: str) -> Task | None:
    folded = _fold(name)
    return next((task for known, task in TASKS.items() if _fold(known) == folded), None)


@cache
def _load_plugins() -> bool:
    """Import the modules of tasks that `CCPO_TASKS` and installed packages name; says whether there is any."""
    modules = [name.strip() for name in os.environ.get("CCPO_TASKS", "").split(",") if name.strip()]
    modules += [plugin.module for plugin in entry_points(group="ccpo.tasks")]
    for module in modules:
        try:
            importing.import_module(module, needed_for="CCPO_TASKS")
        except CCPOError as error:
            raise EnvError(
                f"tasks of '{module}': {error}, or remove it from CCPO_TASKS or from its package's entry points"
            ) from error
    return bool(modules)


def _fold(name: str) -> str:
    """A spelling without case, hyphens and underscores; with the namespace of a family, without that and `-v0`."""
    name = name.lower()
    for namespace in ("ccpo/", "safety"):
        if name.startswith(namespace):
            name = name.removeprefix(namespace).removesuffix("-v0")
    return name.replace("-", "").replace("_", "")


@dataclass(frozen=True)
class EnvFactory:
    """Makes environments of one kind, here or, if `sendable`, in another process."""

    name: str
    """For messages and run folders."""
    make: Callable[[], gymnasium.Env]
    cost_fn: CostFn | None = None
    episode_length: int | None = None
    task: Task | None = None
    """The registered task, if it is one."""
    single_instance: bool = False
    """Whether every call returns the same environment, since an instance was given."""
    early_end: str = "failure"
    """What an end before the episode's time means: "failure" or "success"."""
    source: Source | None = None
    """Where a class or a function of the user's comes from; None for what has a registered name."""

    def __call__(self) -> CostEnv:
        return CostEnv(
            self.make(),
            self.name,
            episode_length=self.episode_length,
            cost_fn=self.cost_fn,
            early_end=self.early_end,
            costs=self.task.costs if self.task and self.cost_fn is None else ("cost",),
        )

    @property
    def cost_source(self) -> Source | None:
        """Where the cost function comes from, if there is one."""
        return None if self.cost_fn is None else importing.source_of(getattr(self.cost_fn, "function", self.cost_fn))

    @cached_property
    def spec(self) -> EnvSpec:
        """Sizes, bounds and length; builds the environment once."""
        env = self()
        if not self.single_instance:
            env.close()
        return env.spec

    @cached_property
    def max_step_cost(self) -> float | None:
        """The largest cost that a step can have, if the environment says so and nothing changes its cost."""
        if self.cost_fn is not None:
            return None
        if self.task is not None and self.task.max_step_cost is not None:
            return self.task.max_step_cost
        built = self()
        if not self.single_instance:
            built.close()
        env: Any = built.env
        # not of what it wraps, whose attributes a wrapper may forward and whose cost it may change
        said = inspect.getattr_static(env, "max_step_cost", None) is not None
        return float(env.max_step_cost) if said else None

    @cached_property
    def sendable(self) -> bool:
        """Whether a spawned process can rebuild it: no instance, no lambda, nothing typed at a prompt."""
        if self.single_instance:
            return False
        try:
            payload = pickle.dumps((self.make, self.cost_fn, self.task))
        except Exception:  # objects may refuse to be pickled in any way they like
            return False
        return b"__main__" not in payload or hasattr(sys.modules["__main__"], "__file__")


def resolve(
    env: str | gymnasium.Env | Callable[[], gymnasium.Env],
    *,
    cost_fn: CostFn | str | None = None,
    episode_length: int | None = None,
    early_end: str | None = None,
) -> EnvFactory:
    """From a task name, a Gymnasium id (also "module:Id"), an environment, or a factory without arguments.

    A factory may be named too, as "module:Class" or "folder/file.py:Class", and a cost function likewise. Without
    `early_end`, it is the task's own, and a failure elsewhere.
    """
    function = importing.find_function(cost_fn) if isinstance(cost_fn, str) else cost_fn
    checked = CheckedCost(function) if function is not None and not isinstance(function, CheckedCost) else function
    factory = _resolve(env, checked, episode_length)
    own = factory.task.early_end if factory.task else "failure"
    return replace(factory, early_end=own if early_end is None else early_end)


def _resolve(
    env: str | gymnasium.Env | Callable[[], gymnasium.Env], cost_fn: CostFn | None, episode_length: int | None
) -> EnvFactory:
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise EnvError("a vector environment was given; give a single one or a factory, it is vectorised for you")
    if isinstance(env, str):
        return _resolve_name(env, cost_fn, episode_length)
    if hasattr(env, "step") and not isinstance(env, type):
        spec = getattr(env, "spec", None)
        name = spec.id if spec else type(getattr(env, "unwrapped", env)).__name__
        instance = cast(gymnasium.Env, env)
        source = None if spec and _is_as_registered(env) else Source(None)
        folder_name = _as_folder_name(name)
        return EnvFactory(folder_name, lambda: instance, cost_fn, episode_length, single_instance=True, source=source)
    if callable(env):
        function = env.func if isinstance(env, partial) else env
        name = getattr(function, "__name__", type(function).__name__)
        return EnvFactory(_as_folder_name(name), env, cost_fn, episode_length, source=importing.source_of(env))
    raise EnvError(f"{env!r} is not an environment; give a task name, a Gymnasium id, an environment or a factory")


def _is_as_registered(env: Any) -> bool:
    """Whether no wrapper of the user's is around it, so that its id means the same."""
    while hasattr(env, "env"):
        if not type(env).__module__.startswith("gymnasium."):
            return False
        env = env.env
    return True


def _resolve_name(name: str, cost_fn: CostFn | None, episode_length: int | None) -> EnvFactory:
    task = lookup(name)
    own = importing.find(name) if task is None and importing.looks_own(name) else None
    if own is not None:
        return _resolve(own, cost_fn, episode_length)
    source = importing.registered(name) if ":" in name else None
    if task is None:
        spec = _find_gymnasium_spec(name)
        make_env = partial(_make_gymnasium, spec)
        return EnvFactory(_as_folder_name(spec.id), make_env, cost_fn, episode_length, source=source)
    length = task.episode_length if episode_length is None else episode_length
    return EnvFactory(task.name, task.make, cost_fn, length, task=task, source=source)


def _find_gymnasium_spec(name: str) -> GymnasiumSpec:
    """The spec itself and not its id, so that it also works in a process that never registered the id."""
    module, _, gymnasium_id = name.rpartition(":")
    for known in gymnasium.registry:
        if gymnasium_id in (known, _as_folder_name(known)):  # a run's settings name it as its folder does
            return gymnasium.spec(known)
    if importing.looks_own(name):
        raise ConfigError(f"'{module}' has no '{gymnasium_id}'; {_classes_hint(module, name)}")
    stem, _, version = gymnasium_id.rpartition("-v")
    others = [known for known in gymnasium.registry if version and known.rpartition("-v")[0] == stem]
    if others:
        raise ConfigError(
            f"'{name}' is not in Gymnasium {gymnasium.__version__}, which has {', '.join(others)}; "
            f"{mujoco.HOW_TO_UPDATE}"
        )
    hint = _suggest(gymnasium_id, [*TASKS, *gymnasium.registry])
    raise ConfigError(
        f"'{name}' is neither a task nor a registered Gymnasium id; {hint}; "
        "an environment of your own is named module:Class or file.py:Class"
    )


def _classes_hint(module: str, name: str) -> str:
    """Which environments and functions the module itself defines."""
    imported = importing.import_module(module, needed_for=name)
    own = [
        key
        for key, value in vars(imported).items()
        if callable(value) and getattr(value, "__module__", None) == imported.__name__ and not key.startswith("_")
    ]
    return did_you_mean(name.rpartition(":")[2], own) if own else "it defines no class and no function"


def _suggest(name: str, names: Collection[str]) -> str:
    """The closest name, else the tasks without their variants."""
    return did_you_mean(name, names if get_close_matches(name, names) else [task for task in TASKS if "-" not in task])


def _make_gymnasium(spec: GymnasiumSpec) -> gymnasium.Env:
    try:
        return gymnasium.make(spec, disable_env_checker=True)
    except Exception as error:  # an environment's constructor may fail in any way
        raise EnvError(f"gymnasium cannot make '{spec.id}': {error}; first make gymnasium.make work") from error


def _as_folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "env"
