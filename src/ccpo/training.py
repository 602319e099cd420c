"""The only loop: collect → replay → scan(update) → log → checkpoint.

The rollout of iteration i + 1 is collected with the policy as it was before iteration i learned, always, whether that
happens beside the learning or not. Results therefore depend on the seed and never on timing.
"""

import math
import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ccpo import choice as choices
from ccpo import replay as replays
from ccpo import trees
from ccpo.config import Settings, as_dict, setting
from ccpo.envs.registry import EnvFactory
from ccpo.envs.workers import Collector, Order, Rollout
from ccpo.errors import CCPOError, ConfigError, FormatError, NumericalError
from ccpo.evaluation import evaluate_episodes
from ccpo.runs import ProgressLog, Run, versions
from ccpo.runtime import Policy
from ccpo.types import Acting, EnvSpec, Episode, Experience, Problem, Progress


@dataclass(frozen=True)
class LoopConfig(Settings):
    """The settings of the loop, the same for every algorithm."""

    steps: int = setting(200_000, "environment steps to learn from; a final comes on top", low=1)
    seed: int = setting(0, "seed of everything random in the run", low=0, high=2**31 - 1)
    behaviour_thresholds: tuple[float, ...] = setting(
        (), "thresholds under which data is collected; empty: the task's own", low=0
    )
    threshold_range: tuple[float, ...] = setting(
        (), "lowest and highest threshold to serve; empty: the task's own", low=0
    )
    lanes_per_threshold: int = setting(2, "environments for each behaviour threshold", low=1, high=1000)
    deployed_lanes: int = setting(1, "how many of these act as deployed (deterministic); the rest explore", low=0)
    rollout_length: int = setting(0, "steps of each environment an iteration; 0: one episode", low=0)
    noise_correlation: float = setting(
        0.0,
        "correlation of exploration noise from one step to the next, each step's law staying the same",
        low=0,
        high=0.999,
    )
    starts: int = setting(
        1,
        "independent starts, of which the one that earns most as deployed goes on; the steps of all count",
        low=1,
        high=100,
    )
    start_share: float = setting(0.2, "the share of the run that each of several starts takes", above=0, high=0.5)
    choice_share: float = setting(
        0.0,
        "the last share of the run whose policies play for deployment, in training episodes after it; 0: the newest is "
        "deployed",
        low=0,
        high=1,
    )
    finalists: int = setting(
        16, "how many of these policies play; the worse half leaves after each round", low=1, high=1000
    )
    final_episodes: int = setting(
        4,
        "episodes of each under each behaviour threshold in the first round; twice as many in each further one",
        low=1,
    )
    violation_price: float = setting(
        3.0, "in the final, how many times its reward an episode loses at a cost of twice the threshold", low=0
    )
    turn_dial: bool = setting(
        False,
        "the final is played over the whole dial, and also finds the setting that serves each behaviour threshold best",
    )
    warmup_steps: int = setting(5_000, "environment steps with random actions at the start", low=0)
    replay_steps: int = setting(200_000, "environment steps that the replay holds", low=1)
    checkpoint_every: int = setting(20_000, "environment steps between checkpoints; an episode at least", low=1)
    keep_checkpoints: int = setting(2, "how many checkpoints are kept", low=1)
    workers: int = setting(
        0, "worker processes; 0: collect in this process, beside the compiled learner", low=0, high=256
    )

    def validate(self) -> None:
        thresholds, limits = self.behaviour_thresholds, self.threshold_range
        if list(thresholds) != sorted(set(thresholds)):
            raise ConfigError(f"behaviour_thresholds={thresholds} must rise strictly, such as 20,40,60")
        if limits and (len(limits) != 2 or limits[0] >= limits[1]):
            raise ConfigError(f"threshold_range={limits} must be two rising numbers, such as 10,70")
        if thresholds and limits and not (limits[0] <= thresholds[0] and thresholds[-1] <= limits[1]):
            raise ConfigError(f"behaviour_thresholds={thresholds} must lie in threshold_range={limits}")
        if self.deployed_lanes > self.lanes_per_threshold:
            raise ConfigError(
                f"deployed_lanes={self.deployed_lanes} exceeds lanes_per_threshold={self.lanes_per_threshold}"
            )
        if self.starts > 1 and self.starts * self.start_share >= 1.0:
            raise ConfigError(
                f"starts={self.starts} of start_share={self.start_share:g} each leave nothing to go on with; "
                "give fewer or shorter starts"
            )


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, in $CCPO_CACHE or the user's cache folder; "off" turns that off."""
    folder = os.environ.get("CCPO_CACHE") or str(Path.home() / ".cache" / "ccpo")
    if folder != "off" and not getattr(jax.config, "jax_compilation_cache_dir", None):
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def make_problem(spec: EnvSpec, loop: LoopConfig) -> Problem:
    return Problem(
        spec=spec,
        behaviour_thresholds=loop.behaviour_thresholds,
        threshold_range=(loop.threshold_range[0], loop.threshold_range[1]),
        lanes_per_threshold=loop.lanes_per_threshold,
        deployed_lanes=loop.deployed_lanes,
    )


Display = Callable[[Progress], None]
Turns = Generator[tuple, tuple, None]
"""State, replay, transitions, statistics and progress out; state, replay and metrics in."""


class _Schedule:
    """Which iteration does what: all of it follows from the settings, none of it from the clock."""

    def __init__(self, loop: LoopConfig, problem: Problem, *, is_start: bool) -> None:
        self.rollout = loop.rollout_length or problem.spec.episode_length
        self.steps_each = self.rollout * problem.lanes
        self.iterations = math.ceil(loop.steps / self.steps_each)
        self.start_iterations = math.ceil(loop.start_share * self.iterations) if loop.starts > 1 else 0
        self.adoption = loop.starts * self.start_iterations
        if self.adoption >= self.iterations:
            raise ConfigError(
                f"steps={loop.steps} are {self.iterations} iterations of {self.steps_each} steps, too few for "
                f"starts={loop.starts} of {self.start_iterations} each; give more steps, or starts=1"
            )
        self.end = self.start_iterations if is_start else self.iterations
        self._pace = loop.starts if is_start else 1
        episode = math.ceil(problem.spec.episode_length / self.rollout)
        # checkpoints cut episodes: one must fit between
        self._every = max(episode, round(loop.checkpoint_every / self.steps_each))
        self._correlation = loop.noise_correlation
        self._warmup = math.ceil(loop.warmup_steps / self.steps_each)
        if loop.starts > 1 and self._warmup >= self.start_iterations:
            raise ConfigError(
                f"warmup_steps={loop.warmup_steps} leave nothing of starts of "
                f"{self.start_iterations * self.steps_each} steps to compare them by; give fewer, longer starts, or "
                "starts=1"
            )
        late = math.ceil(loop.choice_share * self.iterations)
        self._late = 0 if is_start else min(late, self.iterations - self.adoption)
        self.finalists = min(loop.finalists, self._late)
        self.slots = self.rollout * max(1, loop.replay_steps // self.steps_each)

    def progress_after(self, iteration: int) -> np.float32:
        """The share of the run that is over; all starts together take the same part of it."""
        return np.float32(self._pace * (iteration + 1) / self.iterations)

    def finalist_after(self, iteration: int) -> int | None:
        """Which finalist the policy is that this iteration leaves: they lie evenly in the late part of the run."""
        late = iteration - (self.iterations - self._late)
        index = (late + 1) * self.finalists // max(1, self._late)
        return index - 1 if late >= 0 and index > late * self.finalists // self._late else None

    def checkpoints_after(self, iteration: int) -> bool:
        return (iteration + 1) % self._every == 0 or iteration + 1 in (self.adoption, self.end)

    def order(self, iteration: int, acting: Acting) -> Order:
        return Order(
            iteration=iteration,
            acting=acting,
            random=iteration < self._warmup,
            fresh=iteration == 0 or self.checkpoints_after(iteration - 1),
            cut=self.checkpoints_after(iteration),
            correlation=self._correlation,
        )


class Trainer:
    """A run in progress: learner state, replay, the policy that acts next, counters."""

    def __init__(
        self,
        run: Run,
        algorithm: ModuleType,
        factory: EnvFactory,
        *,
        loop: LoopConfig,
        config: Any,
        start: int | None = None,
    ) -> None:
        use_compilation_cache()
        self.run, self.algorithm, self.factory, self.loop, self.config = run, algorithm, factory, loop, config
        self.problem = make_problem(factory.spec, loop)
        self.schedule = _Schedule(loop, self.problem, is_start=start is not None)
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
        if getattr(algorithm, "ON_POLICY", False) and (loop.warmup_steps or loop.starts > 1):
            raise ConfigError(
                f"warmup_steps={loop.warmup_steps} and starts={loop.starts}, but on-policy methods learn only from "
                "what their own newest policy did; set warmup_steps=0 and starts=1"
            )
        self.seed = loop.seed if start is None else _start_seed(loop.seed, start)
        self.state = compiled_init(algorithm, config, self.problem)(jax.random.key(self.seed))
        self.replay = replays.init(self.problem.spec, slots=self.schedule.slots, lanes=self.problem.lanes)
        self.acting: Acting = algorithm.acting(config, self.problem, self.state)
        if loop.turn_dial and not self.acting.net.conditioned:
            raise ConfigError("turn_dial needs a policy that sees its threshold, which this algorithm's does not")
        if loop.turn_dial and start is None and self.schedule.finalists < 2:
            raise ConfigError(
                f"turn_dial needs a final of two policies at least, and choice_share={loop.choice_share:g} of "
                f"steps={loop.steps} with finalists={loop.finalists} has {self.schedule.finalists}; "
                "give more of these, or turn_dial=false"
            )
        self.choice = choices.init(self.acting.deploy, self.schedule.finalists, self.problem.behaviour_thresholds)
        self.iteration, self.cumulative_cost, self.seconds = 0, 0.0, 0.0

    @property
    def steps(self) -> int:
        return self.iteration * self.schedule.steps_each + int(self.choice.steps)

    @property
    def finished(self) -> bool:
        return self.iteration >= self.schedule.end and (self.choice.made or not self.schedule.finalists)

    def train(self, display: Display = lambda _: None) -> None:
        """Run the remaining iterations, then the final."""
        learn = compiled_learn(self.algorithm, self.config, self.problem)
        turns = self.turns(display)
        material = next(turns, None)
        while material is not None:
            material = _send(turns, learn(*material))
        self.choose(display)

    def begin(self, display: Display = lambda _: None) -> None:
        """Train, or continue, several starts and take over the one whose latest episodes, as deployed, earned most."""
        starts = []
        for index in range(self.loop.starts):
            run = self.run.start(index)
            start = Trainer(run, self.algorithm, self.factory, loop=self.loop, config=self.config, start=index)
            if run.steps():
                start.restore()
            before = len(starts) * self.schedule.start_iterations * self.schedule.steps_each
            start.train(lambda told, before=before: display(self._of_start(told, before)))
            starts.append(start)
        lanes = "rollout/deployed" if self.problem.deployed_lanes else "rollout"
        best = max(starts, key=lambda start: _latest_reward(start.run, lanes))
        self.state, self.replay = best.state, best.replay
        self.acting = self.algorithm.acting(self.config, self.problem, self.state)
        self.iteration = self.schedule.adoption
        self.cumulative_cost = sum(start.cumulative_cost for start in starts)
        self.seconds = sum(start.seconds for start in starts)
        self.save()

    def _of_start(self, told: Progress, before: int) -> Progress:
        """What a start tells, as a part of this run, which has taken `before` steps in earlier ones."""
        return told._replace(steps=before + told.steps, total=self.total_steps, run_path=self.run.path)

    def turns(self, display: Display) -> Turns:
        """The remaining iterations, one a turn: yields what there is to learn from, is sent what was learnt."""
        if self.iteration >= self.schedule.end:
            return
        log = ProgressLog(self.run, upto_step=self.steps)
        workers = Collector(
            self.factory,
            self.problem,
            seed=self.seed,
            steps=self.schedule.rollout,
            workers=self.loop.workers,
        )
        with workers as collector:
            began = time.perf_counter() - self.seconds
            collector.start(self.schedule.order(self.iteration, self.acting))
            rollout = collector.wait()
            while self.iteration < self.schedule.end:
                more = self.iteration + 1 < self.schedule.end
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
                finalist = self.schedule.finalist_after(self.iteration)
                if finalist is not None:
                    arrays = self.algorithm.acting(self.config, self.problem, self.state).deploy
                    choices.enter(self.choice, finalist, arrays)
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

    def choose(self, display: Display = lambda _: None) -> None:
        """Let the finalists, if there are any, play for deployment; the episodes are training's, and all count."""
        if self.finished or self.iteration < self.schedule.end:
            return
        began = time.perf_counter() - self.seconds
        judged = partial(
            choices.turn if self.loop.turn_dial else choices.keep,
            thresholds=self.problem.behaviour_thresholds,
            net=self.acting.net,
            price=self.loop.violation_price,
        )

        def play(index: int, indices: range) -> list[Episode]:
            episodes = self._play(index, indices)
            self.choice = self.choice._replace(
                steps=np.int32(self.choice.steps + sum(episode.length for episode in episodes)),
                cost=self.choice.cost + np.float32(sum(episode.cost for episode in episodes)),
            )
            display(Progress(self.steps, self.total_steps, episodes, {}, self.run.path))
            return episodes

        winner, episodes = choices.decide(self._final(), play, lambda episodes: judged(episodes)[1].mean())
        dial = judged(episodes)[0] if episodes else self.choice.dial
        self.choice = self.choice._replace(winner=np.int32(winner), dial=dial)
        self.cumulative_cost += float(self.choice.cost)
        self.seconds = time.perf_counter() - began
        self.save()

    def _play(self, index: int, indices: range) -> list[Episode]:
        """A finalist's training episodes in a round: under the behaviour thresholds, or as many all over the dial."""
        thresholds, net = self.problem.behaviour_thresholds, self.acting.net
        games = [(thresholds, indices)]
        if self.loop.turn_dial:
            every = range(len(thresholds) * indices.start, len(thresholds) * indices.stop)
            games = [([t], range(i, i + 1)) for i, t in zip(every, choices.settings(net, every), strict=True)]
            net = choices.untouched(net)
        results = [
            evaluate_episodes(
                self.factory,
                self.choice.finalist(index),
                net,
                thresholds=thresholds,
                episodes=episodes,
                seed=self.seed,
                training=True,
                workers=1,
            )
            for thresholds, episodes in games
        ]
        return [episode for result in results for episodes in result for episode in episodes]

    def _final(self) -> list[tuple[int, range]]:
        return choices.rounds(self.schedule.finalists, self.loop.final_episodes)

    @property
    def total_steps(self) -> int:
        """Of the whole run, with those of the final if no episode in it ends early."""
        games = sum(players * len(episodes) for players, episodes in self._final())
        final = games * len(self.problem.behaviour_thresholds) * self.problem.spec.episode_length
        return self.schedule.iterations * self.schedule.steps_each + final

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
        groups = {
            "state": trees.to_arrays(self.state),
            "replay": trees.to_arrays(self.replay),
            "acting": trees.to_arrays({"explore": self.acting.explore, "deploy": self.acting.deploy}),
            "choice": trees.to_arrays(self.choice),
        }
        info = {
            "task": self.problem.spec.task,
            "iteration": self.iteration,
            "cumulative_cost": self.cumulative_cost,
            "seconds": self.seconds,
        }
        self.run.save_checkpoint(self.steps, groups, info, keep=self.loop.keep_checkpoints)
        self._save_policy()

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
        """The deployable policy: the chosen one, else as it stands now."""
        acting = self.algorithm.acting(self.config, self.problem, self.state)
        arrays, net = acting.deploy, acting.net
        if self.choice.made:
            arrays = self.choice.finalist(self.choice.winner)
            net = choices.turned(net, self.problem.behaviour_thresholds, self.choice.dial)
        return Policy.create(
            arrays,
            net,
            self.problem.spec,
            algorithm=self.algorithm.__name__.rpartition(".")[2],
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
        """Continue from the run's newest checkpoint."""
        groups, info = self.run.load_checkpoint()
        if info.get("task") != self.problem.spec.task:
            raise FormatError(
                f"the checkpoint in '{self.run.path}' is of task '{info.get('task')}', "
                f"this run is of '{self.problem.spec.task}'"
            )
        source = f"the checkpoint in '{self.run.path}'"
        self.state = trees.from_arrays(self.state, groups["state"], source=source)
        self.replay = trees.from_arrays(self.replay, groups["replay"], source=source)
        template = {"explore": self.acting.explore, "deploy": self.acting.deploy}
        arrays = trees.from_arrays(template, groups["acting"], source=source)
        self.acting = self.acting._replace(**jax.tree.map(np.array, arrays))
        self.choice = trees.from_arrays(self.choice, groups.get("choice", {}), source=source)
        self.choice = jax.tree.map(np.array, self.choice)
        self.iteration, self.seconds = info["iteration"], info["seconds"]
        self.cumulative_cost = info["cumulative_cost"]
        if not self._policy_is_saved():  # a kill after the checkpoint's renaming leaves an older one
            self._save_policy()


def _start_seed(seed: int, start: int) -> int:
    return int(np.random.SeedSequence([seed, start]).generate_state(1)[0] >> 1)


def _latest_reward(run: Run, lanes: str) -> float:
    """The mean reward of the episodes in the last quarter of a run."""
    rewards = [row[f"{lanes}/ep_rew_mean"] for row in run.progress()]
    latest = [reward for reward in rewards[-max(1, len(rewards) // 4) :] if math.isfinite(reward)]
    return float(np.mean(latest)) if latest else -math.inf


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
    for trainer in trainers:
        trainer.choose(display)


def _send(turns: Turns, outcome: tuple) -> tuple | None:
    try:
        return turns.send(outcome)
    except StopIteration:
        return None


@lru_cache(maxsize=16)
def compiled_init(algorithm: ModuleType, config: Any, problem: Problem) -> Callable:
    """`init` as one program, compiled once for all runs and starts of a process; by operations it takes seconds."""
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
