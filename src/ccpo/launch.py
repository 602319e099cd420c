"""From settings to trained agents: `train`, `train_seeds`, `resume`. The command line calls the same functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccpo import config as configs
from ccpo.agent import Agent, find_factory, preset_values, task_settings
from ccpo.algorithms import check_algorithm
from ccpo.display import Planned, TrainingDisplay
from ccpo.envs.importing import refuse_while_importing
from ccpo.envs.registry import EnvFactory, resolve
from ccpo.errors import ConfigError, Interrupted
from ccpo.interrupts import noted
from ccpo.runs import Run
from ccpo.runtime import Policy
from ccpo.types import Progress

Watch = Callable[[Progress], None] | TrainingDisplay
"""What is told of each iteration; a display also of the start and the end."""


def train(
    env: Any,
    algorithm: str = "ccpo",
    *,
    preset: str = "tuned",
    out: str | Path = "runs",
    folder: str | Path | None = None,
    cost_fn: Callable | str | None = None,
    episode_length: int | None = None,
    early_end: str | None = None,
    settings_file: str | None = None,
    progress: bool = True,
    display: Watch | None = None,
    **settings: Any,
) -> Agent:
    """Train an agent and return it.

    `env` is a task's name, a Gymnasium id, an environment, a factory, or the name of one (`module:Class`,
    `file.py:Class`); `settings` are those of the loop (`steps`, `seed`, `behaviour_thresholds`, `threshold_range`, …)
    and of the algorithm; `ccpo list settings` shows them all. The run has a folder of its own below `out`, or is
    written into `folder`. `early_end` says what it means that an episode ends before its time: a "failure", which must
    not be a way to save cost, or a "success"; unless it is given, a task has its own and others a failure.
    What happens is shown, unless `progress` is false; `display` is told instead if it is given.
    """
    refuse_while_importing("ccpo.train")
    factory = resolve(env, cost_fn=cost_fn, episode_length=episode_length, early_end=early_end)
    plan = _plan(factory, algorithm, preset, settings_file)
    (agent,) = plan.train([settings], out, folder=folder, watch=_watch(display, progress))
    return agent


def train_seeds(
    env: Any,
    algorithm: str = "ccpo",
    *,
    seeds: Iterable[int],
    preset: str = "tuned",
    out: str | Path = "runs",
    cost_fn: Callable | str | None = None,
    episode_length: int | None = None,
    early_end: str | None = None,
    settings_file: str | None = None,
    progress: bool = True,
    display: Watch | None = None,
    **settings: Any,
) -> list[Agent]:
    """Train an agent for each seed, all as one compiled program; the other arguments are those of `train`."""
    refuse_while_importing("ccpo.train_seeds")
    seeds = list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={seeds} must differ from each other, and there must be one at least")
    factory = resolve(env, cost_fn=cost_fn, episode_length=episode_length, early_end=early_end)
    plan = _plan(factory, algorithm, preset, settings_file)
    return plan.train([settings | {"seed": seed} for seed in seeds], out, watch=_watch(display, progress))


def resume(
    path: str | Path,
    env: Any = None,
    *,
    cost_fn: Callable | str | None = None,
    progress: bool = True,
    display: Watch | None = None,
) -> Agent:
    """Continue a run from its newest checkpoint, or from the start if it has none yet.

    Killed at any time, it ends bit for bit as if it had never stopped. `env` and `cost_fn` are needed only where the
    run's own cannot be imported.
    """
    refuse_while_importing("ccpo.resume")
    run = Run.open(path)
    settings = run.config(texts=("task", "algorithm", "preset"))
    algorithm = settings.pop("algorithm")
    check_algorithm(algorithm)
    factory = find_factory(settings, str(path), env=env, cost_fn=cost_fn)
    task = settings["task"]
    if factory.name != task:
        raise ConfigError(f"'{path}' is a run on '{task}', not on '{factory.name}'; give the environment it began with")
    for name in IDENTITY:
        settings.pop(name, None)
    module, loop, config = _build(algorithm, (settings,))
    (agent,) = _train([_Prepared(run, module, loop, config)], factory, _watch(display, progress), resumed=True)
    return agent


IDENTITY = ("task", "preset", "episode_length", "early_end", "env", "cost_fn")
"""What a run's config holds beside settings and its algorithm."""


def preset_settings(task: str, algorithm: str, preset: str) -> dict[str, Any]:
    """All settings that a run of this preset has if nothing else is said."""
    plan = _plan(resolve(task), algorithm, preset)
    return configs.as_dict(*_build(algorithm, plan.layers)[1:])


def _watch(display: Watch | None, progress: bool) -> Watch:
    if display is not None:
        return display
    return TrainingDisplay() if progress else _ignore


def _ignore(_: Progress) -> None:
    pass


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
        watch: Watch,
    ) -> list[Agent]:
        """A new run for each of these settings; one that fails before its first iteration leaves no folder."""
        built = [_build(self.identity["algorithm"], (*self.layers, settings)) for settings in variants]
        _try_out(self.factory)
        prepared = [
            _Prepared(self._create(out, loop, config, folder=folder), module, loop, config)
            for module, loop, config in built
        ]
        try:
            return _train(prepared, self.factory, watch)
        except (Exception, KeyboardInterrupt):
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
    layers = (task_settings(factory), preset_values(factory.task, algorithm, preset), file_settings)
    identity = {
        "task": factory.name,
        "algorithm": algorithm,
        "preset": preset,
        "episode_length": factory.episode_length,
        "early_end": factory.early_end,
        "env": factory.source and factory.source.as_dict(),
        "cost_fn": factory.cost_source and factory.cost_source.as_dict(),
    }
    return _Plan(factory, identity, layers)


def _build(algorithm: str, layers: Sequence[Mapping[str, Any]]) -> tuple[Any, Any, Any]:
    from ccpo.algorithms import find_algorithm
    from ccpo.schedule import LoopConfig

    module = find_algorithm(algorithm)
    loop, config = configs.build((LoopConfig, module.Config), *layers)
    if not loop.behaviour_thresholds or not loop.threshold_range:
        raise ConfigError(
            "this environment is not a registered task; give behaviour_thresholds (such as 20,40,60) "
            "and threshold_range (such as 10,70): 'ccpo probe ENV' or ccpo.probe(env) recommends both"
        )
    return module, loop, config


def _try_out(factory: EnvFactory) -> None:
    """A step in an environment of the user's: what is wrong with it is said before anything is compiled."""
    if factory.task is None and not factory.single_instance:
        env = factory()
        env.reset(seed=0)
        env.step(np.zeros(env.spec.action_size, np.float32))
        env.close()


def _train(prepared: Sequence[_Prepared], factory: EnvFactory, watch: Watch, *, resumed: bool = False) -> list[Agent]:
    """Do what is left of these runs: all of it where there is no checkpoint yet."""
    from ccpo.training import Trainer, train_together

    with ExitStack() as stack:
        trainers: list[Trainer] = []
        for run, module, loop, config in prepared:
            stack.enter_context(run.lock())
            trainer = Trainer(run, module, factory, loop=loop, config=config)
            trainers.append(trainer)
            if run.steps():
                trainer.restore()
        planned = [_planned(trainer, resumed=resumed) for trainer in trainers]
        if isinstance(watch, TrainingDisplay):
            tell, say_stopping = stack.enter_context(watch.watch(planned)), watch.stopping
        else:
            tell, say_stopping = watch, lambda: None
        interrupts = stack.enter_context(noted(say_stopping))

        def tell_and_stop(progress: Progress) -> None:
            tell(progress)
            interrupts.deferred = not trainers[-1].finished
            # the last of several seeds has done its iteration when all have
            if interrupts.requested and interrupts.deferred and progress.run_path == trainers[-1].run.path:
                for trainer in trainers:
                    trainer.stop()
                raise KeyboardInterrupt

        try:
            if len(trainers) == 1:
                trainers[0].train(tell_and_stop)
            else:
                train_together(trainers, tell_and_stop)
        except KeyboardInterrupt:
            kept = [each.run for each in prepared if each.run.has_begun()]
            raise Interrupted([(run.path, max(run.steps(), default=0)) for run in kept]) from None
    return [Agent(Policy.load(each.run.policy_path), factory=factory, run=each.run) for each in prepared]


def _planned(trainer: Any, *, resumed: bool) -> Planned:
    schedule, loop = trainer.schedule, trainer.loop
    return Planned(
        path=trainer.run.path,
        task=trainer.factory.name,
        done=trainer.steps,
        total=trainer.total_steps,
        asked=loop.steps,
        each=schedule.steps_each,
        random=schedule.random_steps,
        episode_length=trainer.problem.spec.episode_length,
        resumed=resumed,
        note=_lost(trainer.factory),
    )


def _lost(factory: EnvFactory) -> str:
    """What a later command cannot import again, and so must be told."""
    sources = {"--env module:Class": factory.source, "--cost module:function": factory.cost_source}
    options = [option for option, source in sources.items() if source and source.path is None]
    return (
        f"later commands need {' and '.join(options)}: what is no name in a file cannot be imported" if options else ""
    )
