"""The Python interface: `train`, `load`, and the `Agent` they return. The command line calls the same functions."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccpo import config as configs
from ccpo.algorithms import check_algorithm
from ccpo.envs.registry import EnvFactory, resolve
from ccpo.errors import ConfigError, RunError, ThresholdError, ThresholdWarning
from ccpo.metrics import EpisodeTable
from ccpo.runs import POLICY_FILE, Run
from ccpo.runtime import Policy, PolicyEpisode
from ccpo.types import LARGEST


class Agent:
    """A trained policy: it acts, is evaluated, and saves itself as one file.

    What other libraries call the cost limit is the threshold here, and it is an argument of every call.
    """

    def __init__(self, policy: Policy, *, factory: EnvFactory | None = None, run: Run | None = None) -> None:
        self.policy, self._factory = policy, factory
        self.run = run

    @property
    def folder(self) -> Path:
        """The folder it was trained in."""
        if self.run is None:
            raise RunError("this agent was loaded from a policy file and has no run folder")
        return self.run.path

    @property
    def task(self) -> str:
        return self.policy.env.task

    @property
    def algorithm(self) -> str:
        return self.policy.manifest["algorithm"]

    @property
    def behaviour_thresholds(self) -> tuple[float, ...]:
        return tuple(self.policy.manifest["behaviour_thresholds"])

    @property
    def threshold_range(self) -> tuple[float, float]:
        return self.policy.threshold_range

    def predict(
        self,
        obs: Any,
        threshold: Any,
        deterministic: bool = True,
        *,
        spent: Any = 0.0,
        step: Any = 0,
        rng: np.random.Generator | None = None,
    ) -> tuple[np.ndarray, None]:
        """The action for one observation or a batch, under one threshold or one for each; the second value is None.

        A closed-loop policy must be told what the episode has `spent` and how many steps it has taken (`step`);
        `episode` keeps both.
        """
        action = self.policy.act(obs, threshold, spent=spent, step=step, deterministic=deterministic, rng=rng)
        return action, None

    def episode(self, threshold: float, **options: Any) -> PolicyEpisode:
        """An episode under a threshold, whose dial can be turned at any step; see `Policy.episode`."""
        return self.policy.episode(threshold, **options)

    def evaluate(
        self,
        thresholds: Iterable[float],
        episodes: int = 50,
        *,
        seed: int = 0,
        stochastic: bool = False,
        workers: int | None = 1,
        env: Any = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> EpisodeTable:
        """Run episodes at each threshold, in its own environment or in `env`, and return them as a table.

        Seeds never coincide with training's. `workers` are processes, None: one for each core; a script that asks for
        several keeps its statements under `if __name__ == "__main__":`, since each of them imports it.
        """
        from ccpo.evaluation import evaluate_episodes

        thresholds = [float(t) for t in thresholds]
        if not thresholds or not all(0 <= t <= LARGEST for t in thresholds):
            raise ThresholdError(f"thresholds={thresholds} must be finite numbers ≥ 0, up to {LARGEST:g}, at least one")
        if len(set(thresholds)) < len(thresholds):
            raise ThresholdError(f"thresholds={thresholds} must differ from each other")
        if episodes < 1:
            raise ConfigError(f"episodes={episodes} must be at least 1")
        if seed < 0:
            raise ConfigError(f"seed={seed} must be at least 0")
        low, high = self.threshold_range
        outside = ", ".join(f"{t:g}" for t in thresholds if not low <= t <= high)
        if outside:
            message = f"outside the trained range {low:g} to {high:g}: {outside}; the policy may not keep these"
            warnings.warn(message, ThresholdWarning, stacklevel=2)
        factory = self.factory(env)
        results = evaluate_episodes(
            factory,
            self.policy.net.arrays,
            self.policy.net.config,
            thresholds=thresholds,
            episodes=range(episodes),
            seed=seed,
            stochastic=stochastic,
            workers=workers,
            advance=advance,
        )
        training_seed = int(self.policy.manifest["training"].get("seed", 0))
        keys = {"task": factory.name, "algorithm": self.algorithm, "seed": training_seed}
        return EpisodeTable.from_rows(
            {
                **keys,
                "threshold": e.threshold,
                "episode": i,
                "reward": e.reward,
                "cost": e.cost,
                "length": e.length,
            }
            for result in results
            for i, e in enumerate(result)
        )

    def factory(self, env: Any = None) -> EnvFactory:
        """The environments this agent runs in: the given one, the one it was trained on, or its task's."""
        if env is not None:
            found = resolve(env)
            if found.task is None:  # it may not say how long its episodes are
                found = replace(found, episode_length=self.policy.env.episode_length)
        elif self._factory is not None:
            return self._factory
        elif self.run is not None and self.run.config().get("cost_fn"):
            raise ConfigError(
                f"'{self.run.path}' was trained with a cost_fn, which its folder cannot hold; "
                'give env=…, an environment with that cost in info["cost"]'
            )
        else:
            found = resolve(
                self.task, episode_length=self.policy.env.episode_length, early_end=self.policy.env.early_end
            )
        given = (found.spec.observation_size, found.spec.action_size)
        expected = (self.policy.env.observation_size, self.policy.env.action_size)
        if given != expected:
            raise ConfigError(
                f"'{found.name}' has (observation, action) sizes {given}, the policy {expected}; "
                "give the environment it was trained on"
            )
        return found

    def save(self, path: str | Path) -> None:
        """Write the one file that deploys: weights and manifest, no pickle."""
        self.policy.save(path)


def train(
    env: Any,
    algorithm: str = "ccpo",
    *,
    preset: str = "tuned",
    out: str | Path = "runs",
    folder: str | Path | None = None,
    cost_fn: Callable | None = None,
    episode_length: int | None = None,
    early_end: str = "failure",
    settings_file: str | None = None,
    display: Callable | None = None,
    **settings: Any,
) -> Agent:
    """Train an agent and return it.

    `env` is a task's name, a Gymnasium id, an environment or a factory; `settings` are those of the loop (`steps`,
    `seed`, `behaviour_thresholds`, `threshold_range`, …) and of the algorithm; `ccpo list settings` shows them all.
    The run has a folder of its own below `out`, or is written into `folder`. `early_end` says what it means that an
    episode ends before its time: a "failure", which must not be a way to save cost, or a "success".
    """
    factory = resolve(env, cost_fn=cost_fn, episode_length=episode_length, early_end=early_end)
    plan = _plan(factory, algorithm, preset, settings_file)
    (agent,) = plan.train([settings], out, folder=folder, display=display)
    return agent


def train_seeds(
    env: Any,
    algorithm: str = "ccpo",
    *,
    seeds: Iterable[int],
    preset: str = "tuned",
    out: str | Path = "runs",
    cost_fn: Callable | None = None,
    episode_length: int | None = None,
    early_end: str = "failure",
    settings_file: str | None = None,
    display: Callable | None = None,
    **settings: Any,
) -> list[Agent]:
    """Train an agent for each seed, all as one compiled program; the other arguments are those of `train`."""
    seeds = list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={seeds} must differ from each other, and there must be one at least")
    factory = resolve(env, cost_fn=cost_fn, episode_length=episode_length, early_end=early_end)
    plan = _plan(factory, algorithm, preset, settings_file)
    return plan.train([settings | {"seed": seed} for seed in seeds], out, display=display)


def resume(
    path: str | Path,
    env: Any = None,
    *,
    cost_fn: Callable | None = None,
    display: Callable | None = None,
) -> Agent:
    """Continue a run from its newest checkpoint, or from the start if it has none yet.

    It ends bit for bit as if it had never stopped.
    """
    run = Run.open(path)
    settings = run.config(texts=("task", "algorithm", "preset"))
    task, algorithm = settings.pop("task"), settings.pop("algorithm")
    check_algorithm(algorithm)
    settings.pop("preset")
    episode_length, early_end = settings.pop("episode_length", None), settings.pop("early_end", "failure")
    if settings.pop("cost_fn", False) and cost_fn is None:
        raise ConfigError(
            f"'{path}' was trained with a cost_fn, which its folder cannot hold; "
            "give it again: ccpo.resume(path, cost_fn=…)"
        )
    module, loop, config = _build(algorithm, (settings,))
    factory = resolve(task if env is None else env, cost_fn=cost_fn, episode_length=episode_length, early_end=early_end)
    if factory.name != task:
        raise ConfigError(f"'{path}' is a run on '{task}', not on '{factory.name}'; give the environment it began with")
    (agent,) = _train([_Prepared(run, module, loop, config)], factory, display=display)
    return agent


def load(path: str | Path) -> Agent:
    """An agent from a policy file, from a run folder, or one that comes with the package (`load("BallCircle")`)."""
    path = shipped(path) or Path(path)
    if path.is_dir():
        run = Run.open(path)
        if not run.policy_path.is_file():
            raise RunError(f"'{path}' holds no {POLICY_FILE} yet; continue it with: ccpo train --resume {path}")
        return Agent(Policy.load(run.policy_path), run=run)
    return Agent(Policy.load(path))


def shipped(path: str | Path) -> Path | None:
    """The file of an agent that comes with the package: `pretrained/<Task>`, or `<Task>` if nothing is there."""
    path, folder = Path(path), Path(__file__).parent / "pretrained"
    file = folder / f"{path.name}.safetensors"
    if path == Path(path.name):
        return file if file.is_file() and not path.exists() else None
    if path != Path("pretrained") / path.name:
        return None
    if not file.is_file():
        names = ", ".join(sorted(each.stem for each in folder.glob("*.safetensors"))) or "none yet"
        raise RunError(f"no trained agent '{path.name}' comes with the package; there are: {names}")
    return file


def results_folder(path: str | Path) -> Path:
    """Where what is made of a run, a policy file or a shipped agent goes unless told otherwise."""
    path = Path(path)
    if shipped(path):
        return Path("pretrained") / path.name
    return path if path.is_dir() else path.parent


def task_settings(factory: EnvFactory) -> dict[str, Any]:
    if factory.task is None:
        return {}
    return {
        "behaviour_thresholds": factory.task.behaviour_thresholds,
        "threshold_range": factory.task.threshold_range,
    }


class _Prepared(NamedTuple):
    """A run folder, and what is to be trained in it."""

    run: Run
    module: Any
    loop: Any
    config: Any


class _Plan(NamedTuple):
    """Runs that may differ in their seed."""

    factory: EnvFactory
    identity: dict[str, Any]
    layers: tuple[Mapping[str, Any], ...]

    def train(
        self,
        variants: Sequence[Mapping[str, Any]],
        out: str | Path,
        *,
        folder: str | Path | None = None,
        display: Callable | None,
    ) -> list[Agent]:
        """A new run for each of these settings; one that fails before its first iteration leaves no folder."""
        built = [_build(self.identity["algorithm"], (*self.layers, settings)) for settings in variants]
        prepared = [
            _Prepared(self._create(out, loop, config, folder=folder), module, loop, config)
            for module, loop, config in built
        ]
        try:
            return _train(prepared, self.factory, display=display)
        except Exception:
            for run, *_ in reversed(prepared):  # the first one made the parents
                if not run.has_begun():
                    run.discard()
            raise

    def _create(self, out: str | Path, loop: Any, config: Any, *, folder: str | Path | None) -> Run:
        return Run.create(
            out,
            algorithm=self.identity["algorithm"],
            task=self.factory.name,
            seed=loop.seed,
            config=self.identity | configs.as_dict(loop, config),
            folder=folder,
        )


def _plan(factory: EnvFactory, algorithm: str, preset: str, settings_file: str | None = None) -> _Plan:
    check_algorithm(algorithm)
    file_settings = configs.load_file(settings_file) if settings_file else {}
    layers = (task_settings(factory), configs.load_preset(algorithm, preset, factory.name), file_settings)
    identity = {
        "task": factory.name,
        "algorithm": algorithm,
        "preset": preset,
        "episode_length": factory.episode_length,
        "early_end": factory.early_end,
        "cost_fn": factory.cost_fn is not None,
    }
    return _Plan(factory, identity, layers)


def preset_settings(task: str, algorithm: str, preset: str) -> dict[str, Any]:
    """All settings that a run of this preset has if nothing else is said."""
    plan = _plan(resolve(task), algorithm, preset)
    return configs.as_dict(*_build(algorithm, plan.layers)[1:])


def _build(algorithm: str, layers: Sequence[Mapping[str, Any]]) -> tuple[Any, Any, Any]:
    from ccpo.algorithms import find_algorithm
    from ccpo.schedule import LoopConfig

    module = find_algorithm(algorithm)
    loop, config = configs.build((LoopConfig, module.Config), *layers)
    if not loop.behaviour_thresholds or not loop.threshold_range:
        raise ConfigError(
            "this environment is not a registered task; give behaviour_thresholds (such as 20,40,60) "
            "and threshold_range (such as 10,70)"
        )
    return module, loop, config


def _train(prepared: Sequence[_Prepared], factory: EnvFactory, *, display: Callable | None) -> list[Agent]:
    """Do what is left of these runs: all of it where there is no checkpoint yet."""
    from ccpo.training import Trainer, train_together

    tell = display or (lambda _: None)
    with ExitStack() as locks:
        trainers = []
        for run, module, loop, config in prepared:
            locks.enter_context(run.lock())
            trainer = Trainer(run, module, factory, loop=loop, config=config)
            trainers.append(trainer)
            if run.steps():
                trainer.restore()
        if len(trainers) == 1:
            trainers[0].train(tell)
        else:
            train_together(trainers, tell)
    return [Agent(Policy.load(each.run.policy_path), factory=factory, run=each.run) for each in prepared]
