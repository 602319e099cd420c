"""Where environments come from: the tasks known by name, any Gymnasium id, an environment, a factory.

Analytic tasks have variants: `StaticBudget-T20-C0.01` is `StaticBudget` with a horizon of 20 and a cost scale
of 0.01; any numbers are allowed.
"""

import importlib
import inspect
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from ccpo.envs import importing
from ccpo.envs.adapter import CostEnv
from ccpo.envs.analytic import ANALYTIC_ENVS
from ccpo.envs.costs import CheckedCost, CostFn
from ccpo.envs.importing import Source
from ccpo.errors import ConfigError, EnvError, did_you_mean
from ccpo.types import EnvSpec


@dataclass(frozen=True)
class Task:
    """An environment with the thresholds that it is trained and evaluated at."""

    name: str
    description: str
    behaviour_thresholds: tuple[float, ...]
    threshold_range: tuple[float, float]
    episode_length: int
    extra: Literal["bullet"] | None
    make: Callable[[], gymnasium.Env]


def _bullet(name: str, episode_length: int, description: str) -> Task:
    return Task(
        name=name,
        description=description,
        behaviour_thresholds=(20.0, 40.0, 60.0),
        threshold_range=(10.0, 70.0),
        episode_length=episode_length,
        extra="bullet",
        make=partial(_make_bullet, name),
    )


def _make_bullet(name: str) -> gymnasium.Env:
    return importlib.import_module("ccpo.envs.bullet").make_bullet(name)


def _analytic(base: str, *, horizon: int | None = None, cost_scale: float | None = None) -> Task:
    """A task whose thresholds are the same shares of c·T in every variant: 20, 40, 60 for c·T = 100."""
    env_class, name, parameters = ANALYTIC_ENVS[base], base, {}
    if horizon is not None:
        name, parameters["horizon"] = f"{name}-T{horizon}", horizon
    if cost_scale is not None:
        name, parameters["cost_scale"] = f"{name}-C{cost_scale:g}", cost_scale
    env = env_class(**parameters)
    ten, twenty, forty, sixty, seventy = (
        round(share * env.cost_scale * env.episode_length, 12) for share in (0.1, 0.2, 0.4, 0.6, 0.7)
    )
    return Task(
        name=name,
        description=f"analytic: {env_class.question}",
        behaviour_thresholds=(twenty, forty, sixty),
        threshold_range=(ten, seventy),
        episode_length=env.episode_length,
        extra=None,
        make=partial(env_class, **parameters),
    )


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _bullet("BallCircle", 200, "a ball circles, and pays beyond |x| = 6"),
        _bullet("CarCircle", 300, "a car circles, and pays beyond |x| = 6"),
        _bullet("DroneCircle", 300, "a drone circles, and pays beyond |x| = 6"),
        _bullet("DroneRun", 200, "a drone runs, and pays beyond |y| = 2 and above its speed limit"),
        _bullet("AntRun", 200, "an ant runs, and pays beyond |y| = 2 and above its speed limit"),
        _bullet("AntCircle", 500, "an ant circles, and pays beyond |x| = 6"),
        _bullet("BallRun", 100, "a ball runs, and pays beyond |y| = 2 and above its speed limit"),
        _bullet("CarRun", 200, "a car runs, and pays beyond |y| = 2 and above its speed limit"),
        _analytic("StaticBudget"),
        _analytic("DriftBudget"),
        _analytic("LateBudget"),
        _analytic("MomentumBudget"),
        _analytic("BalanceBudget"),
        _analytic("StaticBudget", horizon=20),
        _analytic("StaticBudget", horizon=500, cost_scale=0.01),
        _analytic("StaticBudget", cost_scale=100.0),
        _analytic("DriftBudget", horizon=20, cost_scale=100.0),
        _analytic("DriftBudget", horizon=500),
        _analytic("LateBudget", horizon=20, cost_scale=0.01),
        _analytic("LateBudget", horizon=500, cost_scale=100.0),
        _analytic("MomentumBudget", horizon=50, cost_scale=10.0),
        _analytic("MomentumBudget", horizon=300, cost_scale=0.1),
        _analytic("BalanceBudget", horizon=20, cost_scale=10.0),
        _analytic("BalanceBudget", horizon=300, cost_scale=0.1),
    )
}


def list_tasks() -> list[str]:
    """The names of the registered tasks."""
    return list(TASKS)


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
    task = _lookup(name)
    if task is None:
        raise ConfigError(f"unknown task '{name}'; {did_you_mean(name, TASKS)}")
    return task


def _lookup(name: str) -> Task | None:
    names = {_fold(known): known for known in TASKS}
    if _fold(name) in names:
        return TASKS[names[_fold(name)]]
    variant = re.fullmatch(r"(.+?)(?:-t(\d+))?(?:-c(\d+\.?\d*(?:e-?\d+)?))?", name.lower())
    base, horizon, cost_scale = variant.groups() if variant else ("", None, None)
    base = names.get(_fold(base))
    if base not in ANALYTIC_ENVS:
        return None
    return _analytic(
        base,
        horizon=int(horizon) if horizon else None,
        cost_scale=float(cost_scale) if cost_scale else None,
    )


def _fold(name: str) -> str:
    """A spelling without case, hyphens, underscores, namespace and version."""
    name = re.sub(r"-v\d+$", "", name.lower().removeprefix("ccpo/").removeprefix("safety"))
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
            payload = pickle.dumps((self.make, self.cost_fn))
        except Exception:  # objects may refuse to be pickled in any way they like
            return False
        return b"__main__" not in payload or hasattr(sys.modules["__main__"], "__file__")


def resolve(
    env: str | gymnasium.Env | Callable[[], gymnasium.Env],
    *,
    cost_fn: CostFn | str | None = None,
    episode_length: int | None = None,
    early_end: str = "failure",
) -> EnvFactory:
    """From a task name, a Gymnasium id (also "module:Id"), an environment, or a factory without arguments.

    A factory may be named too, as "module:Class" or "folder/file.py:Class", and a cost function likewise.
    """
    function = importing.find_function(cost_fn) if isinstance(cost_fn, str) else cost_fn
    checked = CheckedCost(function) if function is not None and not isinstance(function, CheckedCost) else function
    return replace(_resolve(env, checked, episode_length), early_end=early_end)


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
    task = _lookup(name)
    own = importing.find(name) if task is None and importing.looks_own(name) else None
    if own is not None:
        return _resolve(own, cost_fn, episode_length)
    if task is None:
        spec = _find_gymnasium_spec(name)
        source = Source(name, str(Path.cwd())) if ":" in name else None
        return EnvFactory(
            _as_folder_name(spec.id), partial(_make_gymnasium, spec), cost_fn, episode_length, source=source
        )
    length = task.episode_length if episode_length is None else episode_length
    return EnvFactory(task.name, task.make, cost_fn, length, task=task)


def _find_gymnasium_spec(name: str) -> GymnasiumSpec:
    """The spec itself and not its id, so that it also works in a process that never registered the id."""
    module, _, gymnasium_id = name.rpartition(":")
    if module:
        importing.import_module(module, needed_for=name)
    for known in gymnasium.registry:
        if gymnasium_id in (known, _as_folder_name(known)):  # a run's settings name it as its folder does
            return gymnasium.spec(known)
    names = [*TASKS, *gymnasium.registry]
    hint = did_you_mean(gymnasium_id, names if get_close_matches(gymnasium_id, names) else TASKS)
    if importing.looks_own(name):
        raise ConfigError(f"'{module}' has no '{gymnasium_id}'; {_classes_hint(module, name)}")
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


def _make_gymnasium(spec: GymnasiumSpec) -> gymnasium.Env:
    try:
        return gymnasium.make(spec, disable_env_checker=True)
    except Exception as error:  # an environment's constructor may fail in any way
        raise EnvError(f"gymnasium cannot make '{spec.id}': {error}; first make gymnasium.make work") from error


def _as_folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "env"
