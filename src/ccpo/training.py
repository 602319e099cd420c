"""The only loop: collect → replay → scan(update) → log → checkpoint.

The rollout of iteration i + 1 is collected with the policy as it was before iteration i learned, always, whether that
happens beside the learning or not. Results therefore depend on the seed and never on timing.
"""

import math
import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ccpo import memory, trees
from ccpo import replay as replays
from ccpo.config import as_dict
from ccpo.envs.registry import EnvFactory
from ccpo.envs.workers import Collector, Rollout
from ccpo.errors import CCPOError, ConfigError, FormatError, NumericalError
from ccpo.policy_file import are_numbers
from ccpo.progress import ProgressLog
from ccpo.runs import Run, not_finite, versions
from ccpo.runtime import Policy
from ccpo.schedule import LoopConfig, Schedule, make_problem
from ccpo.types import Acting, Episode, Experience, Problem, Progress


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, in $CCPO_CACHE or the user's cache folder; "off" turns that off."""
    folder = os.environ.get("CCPO_CACHE") or str(Path.home() / ".cache" / "ccpo")
    if folder != "off" and not getattr(jax.config, "jax_compilation_cache_dir", None):
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


Display = Callable[[Progress], None]
Turns = Generator[tuple, tuple, None]
"""State, replay, transitions, statistics and progress out; state, replay and metrics in."""


class Trainer:
    """A run in progress: learner state, replay, the policy that acts next, counters."""

    def __init__(self, run: Run, algorithm: ModuleType, factory: EnvFactory, *, loop: LoopConfig, config: Any) -> None:
        use_compilation_cache()
        self.run, self.algorithm, self.factory, self.loop, self.config = run, algorithm, factory, loop, config
        self.problem = make_problem(factory.spec, loop)
        self.schedule = Schedule(loop, self.problem)
        if loop.loop == "closed" and not getattr(algorithm, "CLOSED_LOOP", False):
            raise ConfigError(f"loop=closed, but {self.name} sees the threshold only; set loop=open, or train ccpo")
        if getattr(config, "nstep", 1) > self.schedule.rollout:
            raise ConfigError(
                f"nstep={config.nstep} steps are more than a rollout's {self.schedule.rollout}; "
                "give a smaller nstep, or a larger rollout_length"
            )
        if factory.single_instance and self.schedule.rollout < self.problem.spec.episode_length:
            raise ConfigError(
                f"rollout_length={loop.rollout_length} cuts episodes of {self.problem.spec.episode_length} steps, "
                "since all lanes share the one environment that was given; give a factory, or rollout_length=0"
            )
        if getattr(algorithm, "ON_POLICY", False) and loop.warmup_steps:
            raise ConfigError(
                f"warmup_steps={loop.warmup_steps}, but on-policy methods learn only from what their own newest policy "
                "did; set warmup_steps=0"
            )
        self._check_sizes()
        self.state = compiled_init(algorithm, config, self.problem)(jax.random.key(loop.seed))
        self.replay = replays.init(self.problem.spec, slots=self.schedule.slots, lanes=self.problem.lanes)
        self.acting: Acting = algorithm.acting(config, self.problem, self.state)
        self.iteration, self.cumulative_cost, self.seconds = 0, 0.0, 0.0
        # what is NaN before anything is learned means "not measured yet", and may be saved so
        self.unknown = not_finite({name: trees.to_arrays(tree) for name, tree in self._groups().items()})

    def _check_sizes(self) -> None:
        """Refuse what cannot fit into memory before any of it is allocated."""
        lanes, rollout, slots = self.problem.lanes, self.schedule.rollout, self.schedule.slots
        step = memory.bytes_of(jax.eval_shape(partial(replays.init, self.problem.spec, slots=1, lanes=lanes)).data)
        memory.check_fits({"the replay (replay_steps)": slots * step, "rollouts (rollout_length)": 2 * rollout * step})
        state = jax.eval_shape(partial(self.algorithm.init, self.config, self.problem), jax.random.key(0))
        memory.check_fits({"networks and optimisers (hidden, features)": memory.bytes_of(state)})

    @property
    def name(self) -> str:
        return self.algorithm.__name__.rpartition(".")[2]

    @property
    def steps(self) -> int:
        return self.iteration * self.schedule.steps_each

    @property
    def total_steps(self) -> int:
        return self.schedule.iterations * self.schedule.steps_each

    @property
    def finished(self) -> bool:
        return self.iteration >= self.schedule.iterations

    def train(self, display: Display = lambda _: None) -> None:
        """Run the remaining iterations."""
        learn = compiled_learn(self.algorithm, self.config, self.problem)
        turns = self.turns(display)
        material = next(turns, None)
        if material is not None:
            memory.check_program(learn, *material)
        while material is not None:
            material = _send(turns, learn(*material))

    def turns(self, display: Display) -> Turns:
        """The remaining iterations, one a turn: yields what there is to learn from, is sent what was learnt."""
        if self.finished:
            return
        log = ProgressLog(self.run.progress_path, self.run.rows_path, upto_step=self.steps)
        workers = Collector(
            self.factory,
            self.problem,
            seed=self.loop.seed,
            steps=self.schedule.rollout,
            workers=self.loop.workers,
            step_seconds=self.loop.step_seconds,
        )
        with workers as collector:
            began = time.perf_counter() - self.seconds
            # a checkpoint out of turn leaves no environments to go on with either
            collector.start(replace(self.schedule.order(self.iteration, self.acting), fresh=True))
            rollout = collector.wait()
            while not self.finished:
                more = self.iteration + 1 < self.schedule.iterations
                if more:
                    self.acting = self.algorithm.acting(self.config, self.problem, self.state)
                    collector.start(self.schedule.order(self.iteration + 1, self.acting))
                progress = self.schedule.progress_after(self.iteration)
                material = (self.state, self.replay, rollout.transition, rollout.statistics, progress)
                self.state, self.replay, metrics = yield material
                try:
                    following = collector.wait() if more else rollout
                except BaseException:
                    jax.block_until_ready(metrics)  # the update may still read the shared memory that goes away now
                    raise
                self._account(rollout, jax.device_get(metrics), log, display=display, began=began)
                rollout = following

    def _account(
        self, rollout: Rollout, metrics: dict[str, Any], log: ProgressLog, *, display: Display, began: float
    ) -> None:
        """Count the iteration, log it, checkpoint where the schedule says so, and tell the display."""
        values = {name: float(value) for name, value in metrics.items()}
        self._check_finite(values)
        self.iteration += 1
        self.seconds = time.perf_counter() - began
        self.cumulative_cost += float(np.sum(rollout.transition.cost))
        row = self._row(rollout.episodes, values)
        log.write(row)
        if self.schedule.checkpoints_after(self.iteration - 1):
            self.save()
        display(Progress(self.steps, self.total_steps, rollout.episodes, row, self.run.path))

    def _check_finite(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                kept = self.run.steps()
                where = f"the checkpoint at step {kept[-1]} is kept" if kept else "there is no checkpoint yet"
                raise NumericalError(
                    f"'{name}' became {value} in iteration {self.iteration} (after {self.steps} steps); {where}; "
                    "try a smaller learning rate"
                )

    def _row(self, episodes: list[Episode], metrics: dict[str, float]) -> dict[str, float]:
        """One row of progress: what episodes showed, by behaviour threshold too, and the algorithm's metrics."""
        row: dict[str, float] = {"steps": self.steps, "time/seconds": round(self.seconds, 3)}
        row["time/fps"] = round(self.steps / max(self.seconds, 1e-9), 1)
        row["rollout/cumulative_cost"] = self.cumulative_cost
        row |= _means("rollout", episodes)
        row |= _means("rollout/deployed", [e for e in episodes if e.deterministic])
        for threshold in self.problem.behaviour_thresholds:
            row |= _means(
                f"rollout/threshold_{threshold:g}",
                [e for e in episodes if e.threshold == np.float32(threshold)],
            )
        return row | metrics

    def save(self) -> None:
        """A checkpoint of everything: learner, replay, the policy that acts next, counters."""
        groups = {name: trees.to_arrays(tree) for name, tree in self._groups().items()}
        info = {
            "task": self.problem.spec.task,
            "iteration": self.iteration,
            "cumulative_cost": self.cumulative_cost,
            "seconds": self.seconds,
        }
        self.run.save_checkpoint(self.steps, groups, info, keep=self.loop.keep_checkpoints, unknown=self.unknown)
        self._save_policy()

    def stop(self) -> None:
        """A checkpoint now, unless there is one: whoever goes on from it begins with fresh environments."""
        if self.run.steps()[-1:] != [self.steps]:
            self.replay = replays.cut(self.replay)
            self.save()

    def _groups(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        acting = {"explore": self.acting.explore, "deploy": self.acting.deploy}
        return {"state": self.state, "replay": self.replay, "acting": acting}

    def _save_policy(self) -> None:
        self.run.discard_evaluations()
        self.policy().save(self.run.policy_path)

    def _policy_is_saved(self) -> bool:
        try:
            saved = Policy.load(self.run.policy_path).manifest["training"]
        except CCPOError:
            return False
        return (saved["steps_done"], saved.get("finished")) == (self.steps, self.finished)

    def policy(self) -> Policy:
        """The deployable policy as it stands now."""
        acting = self.algorithm.acting(self.config, self.problem, self.state)
        return Policy.create(
            acting.deploy,
            acting.net,
            self.problem.spec,
            algorithm=self.name,
            behaviour_thresholds=self.problem.behaviour_thresholds,
            versions=versions(),
            training={
                **as_dict(self.loop, self.config),
                "steps_done": self.steps,
                "finished": self.finished,
                "seconds": round(self.seconds, 1),
            },
        )

    def restore(self) -> None:
        """Continue from the run's newest checkpoint that is intact."""
        templates = {name: trees.to_arrays(tree) for name, tree in self._groups().items()}
        largest = {name: sum(array.nbytes for array in arrays.values()) for name, arrays in templates.items()}
        groups, info = self.run.load_checkpoint(largest=largest)
        source = f"the checkpoint in '{self.run.path}'"
        if info.get("task") != self.problem.spec.task:
            raise FormatError(f"{source} is of task '{info.get('task')}', this run is of '{self.problem.spec.task}'")
        counters: list[Any] = [info.get(name) for name in ("iteration", "cumulative_cost", "seconds")]
        whole = type(counters[0]) is int and are_numbers(counters) and all(counter >= 0 for counter in counters)
        if not whole or info["iteration"] * self.schedule.steps_each != info["step"]:
            raise FormatError(f"{source} has counters {counters!r:.80} that do not fit its {info['step']} steps")
        self.state = trees.from_arrays(self.state, groups["state"], source=source)
        self.replay = trees.from_arrays(self.replay, groups["replay"], source=source)
        arrays = trees.from_arrays(self._groups()["acting"], groups["acting"], source=source)
        self.acting = self.acting._replace(**jax.tree.map(np.array, arrays))
        self.iteration, self.seconds = info["iteration"], info["seconds"]
        self.cumulative_cost = info["cumulative_cost"]
        if not self._policy_is_saved():  # a kill after the checkpoint's renaming leaves an older one
            self._save_policy()


def train_together(trainers: Sequence[Trainer], display: Display = lambda _: None) -> None:
    """Run what differs in nothing but its seed as one program, the seeds an axis of every array.

    Each run keeps its own folder and ends as it would alone, up to rounding.
    """
    first = trainers[0]
    learn = compiled_learn(first.algorithm, first.config, first.problem, together=True)
    turns = [trainer.turns(display) for trainer in trainers]
    materials = [next(turn, None) for turn in turns]
    while all(material is not None for material in materials):
        outcome = learn(*jax.tree.map(lambda *each: jnp.stack(each), *materials))
        materials = [_send(turn, jax.tree.map(itemgetter(index), outcome)) for index, turn in enumerate(turns)]


def _send(turns: Turns, outcome: tuple) -> tuple | None:
    try:
        return turns.send(outcome)
    except StopIteration:
        return None


@lru_cache(maxsize=16)
def compiled_init(algorithm: ModuleType, config: Any, problem: Problem) -> Callable:
    """`init` as one program, compiled once for all runs of a process; by operations it takes seconds."""
    return jax.jit(partial(algorithm.init, config, problem))


@lru_cache(maxsize=16)
def compiled_learn(algorithm: ModuleType, config: Any, problem: Problem, *, together: bool = False) -> Callable:
    """`learn` compiled once for all runs of a process that differ only in seed and length."""
    function = partial(learn, algorithm, config, problem)
    return jax.jit(jax.vmap(function) if together else function, donate_argnums=(0, 1))


def learn(
    algorithm: ModuleType,
    config: Any,
    problem: Problem,
    state: Any,
    replay: Any,
    rollout: Any,
    statistics: Any,
    progress: Any,
) -> tuple[Any, Any, dict[str, Any]]:
    """The compiled part of an iteration: store the rollout, then let the algorithm learn from all there is."""
    replay = replays.insert(replay, rollout)
    state, metrics = algorithm.update(config, problem, state, Experience(rollout, statistics, replay, progress))
    return state, replay, metrics


def _means(prefix: str, episodes: list[Episode]) -> dict[str, float]:
    if not episodes:
        return {
            f"{prefix}/ep_rew_mean": math.nan,
            f"{prefix}/ep_cost_mean": math.nan,
            f"{prefix}/ep_len_mean": math.nan,
        }
    reward, cost, length = np.mean([(e.reward, e.cost, e.length) for e in episodes], axis=0)
    return {f"{prefix}/ep_rew_mean": reward, f"{prefix}/ep_cost_mean": cost, f"{prefix}/ep_len_mean": length}
