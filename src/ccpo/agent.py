"""The trained agent, and where it is loaded from. The command line calls the same functions."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ccpo.config import hint, load_preset
from ccpo.envs import importing
from ccpo.envs.importing import Source
from ccpo.envs.registry import EnvFactory, lookup, resolve
from ccpo.envs.tasks import Task
from ccpo.errors import CCPOError, ConfigError, EnvError, RunError, ThresholdError, ThresholdWarning, did_you_mean
from ccpo.late import above
from ccpo.metrics import EpisodeTable
from ccpo.printing import as_html, as_text
from ccpo.runs import POLICY_FILE, Run
from ccpo.runtime import Policy, PolicyEpisode
from ccpo.types import LARGEST

SETTINGS = 13
"""Thresholds that are evaluated at and calibrated for unless others are given."""
SHIPPED = Path(__file__).parent / "pretrained"


class Agent:
    """A trained policy: it acts, is evaluated, and saves itself as one file.

    What other libraries call the cost limit is the threshold here, and it is an argument of every call.
    """

    def __init__(self, policy: Policy, *, factory: EnvFactory | None = None, run: Run | None = None) -> None:
        self.policy, self._factory = policy, factory
        self.run = run

    def __repr__(self) -> str:
        return f"<Agent: {self.algorithm} on {self.task}>"

    def __str__(self) -> str:
        return as_text(self._shown())

    def _repr_html_(self) -> str:
        return as_html(self._shown())

    def _shown(self) -> Any:
        return above("report.tables").facts_table(repr(self)[1:-1], self.facts())

    def facts(self) -> dict[str, str]:
        """What it is, in words."""
        training, calibration = self.policy.manifest["training"], self.policy.manifest["calibration"]
        steps, low, high = training.get("steps_done", training.get("steps")), *self.threshold_range
        listed = ", ".join(f"{threshold:g}" for threshold in self.behaviour_thresholds)
        known = len(calibration["requested"]) if calibration else 0
        return {
            "thresholds": f"{low:g} to {high:g}, trained under {listed}",
            "loop": "closed: it acts on the budget that is left" if self.policy.closed_loop else "open",
            "trained": f"{steps:,} steps, seed {training.get('seed', '?')}" if steps else "not known",
            "calibrated": f"for {known} requests" if calibration else "no",
            "folder": str(self.run.path) if self.run else "none: loaded from a file",
        }

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
        threshold: Any = None,
        deterministic: bool = True,
        *,
        spent: Any = 0.0,
        step: Any = 0,
        rng: np.random.Generator | None = None,
        calibrated: bool = False,
        **unknown: Any,
    ) -> tuple[np.ndarray, None]:
        """The action for one observation or a batch, under one threshold or one for each; the second value is None.

        A closed-loop policy must be told what the episode has `spent` and how many steps it has taken (`step`);
        `episode` keeps both. The keywords are those of `Policy.act`.
        """
        _refuse_unknown(unknown, ("threshold", "deterministic", "spent", "step", "rng", "calibrated"))
        options = {"spent": spent, "step": step, "deterministic": deterministic, "rng": rng, "calibrated": calibrated}
        return self.policy.act(obs, threshold, **options), None

    def episode(self, threshold: float, **options: Any) -> PolicyEpisode:
        """An episode under a threshold, whose dial can be turned at any step; see `Policy.episode`."""
        return self.policy.episode(threshold, **options)

    def evaluate(
        self,
        thresholds: Iterable[float] | None = None,
        episodes: int = 50,
        *,
        seed: int = 0,
        stochastic: bool = False,
        workers: int | None = 1,
        env: Any = None,
        cost_fn: Any = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> EpisodeTable:
        """Run episodes at each threshold, in its own environment or in `env`, and return them as a table.

        Without thresholds, 13 over the trained range. Seeds never coincide with training's. `workers` are processes,
        None: one for each core; a script that asks for several keeps its statements under
        `if __name__ == "__main__":`, since each of them imports it.
        """
        from ccpo.evaluation import evaluate_episodes

        thresholds = self.even_thresholds() if thresholds is None else [float(t) for t in thresholds]
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
        factory = self.factory(env, cost_fn)
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
        table = EpisodeTable.from_rows(
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
        return replace(table, behaviour_thresholds=self.behaviour_thresholds)

    def even_thresholds(self, count: int = SETTINGS) -> list[float]:
        """Thresholds spread evenly over the trained range."""
        return np.linspace(*self.threshold_range, count).tolist()

    def figure(self, table: EpisodeTable | None = None, path: str | Path | None = None) -> Any:
        """Reward and cost over the threshold as a matplotlib `Figure`, of a table or of the run's last evaluation.

        With `path`, it is also written, as PNG and SVG beside each other.
        """
        table = above("deploy.export").evaluation_table(self) if table is None else table
        if table is None:
            raise RunError("there is no evaluation to draw; first: table = agent.evaluate(), then agent.figure(table)")
        figures = above("report.figures")
        figure = figures.threshold_figure(table, self.behaviour_thresholds)
        if path is not None:
            figures.save_figure(figure, Path(path).with_suffix(""))
        return figure

    def render(
        self,
        thresholds: Sequence[float] | None = None,
        *,
        out: str | Path | None = None,
        seed: int = 0,
        animate: str = "gif",
        env: Any = None,
        cost_fn: Any = None,
    ) -> list[Path]:
        """Draw what it does from one start under several thresholds; the paths of pictures and animation.

        They go into `out`, or else into the run's folder.
        """
        actor = above("deploy.watching").actor_of(self, env=env, cost_fn=cost_fn)
        thresholds = self.even_thresholds(3) if thresholds is None else thresholds
        return above("deploy.render").draw(actor, thresholds, self._place(out), seed=seed, animate=animate)

    def play(self, *, host: str = "127.0.0.1", port: int = 0, browser: bool = True, **environment: Any) -> None:
        """Open the playground on this agent, until interrupted; `env` and `cost_fn` as in `evaluate`."""
        actor, play = above("deploy.watching").actor_of(self, **environment), above("deploy.play")
        play.serve(play.Playground([actor]), host=host, port=port, browser=browser)

    def calibrate(self, requests: Sequence[float] | None = None, **options: Any) -> Any:
        """Find which dial setting keeps which request, with confidence; `save` or `export` the agent to keep it.

        Options: `confidence`, `episodes`, `cost_max`, `seed`, `workers`, `env`, `cost_fn`.
        """
        requests = self.even_thresholds() if requests is None else requests
        return above("deploy.calibrate").calibrate_agent(self, requests, **options)

    def export(self, path: str | Path, *, onnx: str | Path | None = None) -> list[Path]:
        """Write what is deployed: the policy file with its card and figure, and an ONNX model; the paths."""
        paths = above("deploy.export").export_policy(self, path)
        return paths if onnx is None else [*paths, above("deploy.onnx").export_onnx(self.policy, Path(onnx))]

    def _place(self, out: str | Path | None) -> Path:
        if out is None and self.run is None:
            raise ConfigError("this agent has no run folder; give out=…, the folder for what is drawn")
        return self.folder if out is None else Path(out)

    def factory(self, env: Any = None, cost_fn: Any = None) -> EnvFactory:
        """The environments this agent runs in: the given one, the one it was trained on, or its task's."""
        own = self.policy.env
        if env is not None:
            found = resolve(env, cost_fn=cost_fn)
            if found.task is None:  # it may not say how long its episodes are
                found = replace(found, episode_length=own.episode_length)
        elif self._factory is not None and cost_fn is None:
            return self._factory
        elif self._factory is not None:
            found = replace(self._factory, cost_fn=resolve(self._factory.make, cost_fn=cost_fn).cost_fn)
        else:
            remembered = {"task": self.task, "episode_length": own.episode_length, "early_end": own.early_end}
            remembered |= {name: self.run.config().get(name) for name in ("env", "cost_fn")} if self.run else {}
            found = find_factory(remembered, str(self.run.path) if self.run else self.task, cost_fn=cost_fn)
        check_one_cost(found)
        given = (found.spec.observation_size, found.spec.action_size)
        expected = (own.observation_size, own.action_size)
        if given != expected:
            raise ConfigError(
                f"'{found.name}' has (observation, action) sizes {given}, the policy {expected}; "
                "give the environment it was trained on"
            )
        return found

    def save(self, path: str | Path) -> None:
        """Write the one file that deploys: weights and manifest, no pickle."""
        self.policy.save(path)


def find_factory(settings: Mapping[str, Any], place: str, *, env: Any = None, cost_fn: Any = None) -> EnvFactory:
    """The environments that a run's settings tell of, or what is given instead; `place` is named in errors."""
    cost_source = Source.from_dict(settings.get("cost_fn"))
    if cost_fn is None and cost_source:
        cost_fn = _imported(
            cost_source,
            f"'{place}' was trained with a cost_fn",
            "--cost module:function, or in Python cost_fn=…, as in ccpo.resume(path, cost_fn=…)",
        )
    env_source = Source.from_dict(settings.get("env"))
    if env is None and env_source:
        env = _imported(
            env_source, f"'{place}' was trained on '{settings['task']}'", "--env module:Class, or in Python env=…"
        )
    known = {"episode_length": settings.get("episode_length"), "early_end": settings.get("early_end") or "failure"}
    if env is not None:
        return resolve(env, cost_fn=cost_fn, **known)
    try:
        return resolve(settings["task"], cost_fn=cost_fn, **known)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; give what '{place}' was trained on: --env module:Class, or in Python env=…"
        ) from None


def _imported(source: Source, what: str, remedy: str) -> Any:
    """What a run's settings name, imported again."""
    if source.path is None:
        raise ConfigError(
            f"{what} that cannot be imported again: an instance, a lambda, or typed at a prompt or in a notebook; "
            f"give it: {remedy}. What is a class or a function in a file is found by itself"
        )
    try:
        importing.import_module(source.path.rpartition(":")[0], needed_for=source.path, folder=source.folder)
        if not importing.looks_own(source.path) or lookup(source.path):  # module:Id-v0, or a task of the module's
            return source.path
        found = importing.find(source.path)
    except CCPOError as error:
        raise EnvError(f"{what}, but {error}; or give it: {remedy}") from error
    if found is None:
        raise EnvError(f"{what}, '{source.path}', which is no longer there; put it back, or give it: {remedy}")
    return found


def _refuse_unknown(given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        raise ConfigError(f"unknown argument '{name}'; {hint(name, known)}")


def load(path: str | Path) -> Agent:
    """An agent from a policy file, from a run folder, or one that comes with the package (`load("BallCircle")`)."""
    given, path = str(path), shipped(path) or Path(path)
    if not path.exists() and path.name == given and not path.suffix:
        shipped_names = sorted(each.stem for each in SHIPPED.glob("*.safetensors"))
        raise RunError(
            f"there is no file or folder '{given}', and no agent of that name comes with the package; "
            f"{did_you_mean(given, shipped_names)}"
        )
    if path.is_dir():
        run = Run.open(path)
        if not run.policy_path.is_file():
            raise RunError(f"'{path}' holds no {POLICY_FILE} yet; continue it with: ccpo train --resume {path}")
        return Agent(Policy.load(run.policy_path), run=run)
    return Agent(Policy.load(path))


def shipped(path: str | Path) -> Path | None:
    """The file of an agent that comes with the package: `pretrained/<Task>`, or `<Task>` if nothing is there."""
    path = Path(path)
    file = SHIPPED / f"{path.name}.safetensors"
    if path == Path(path.name):
        return file if file.is_file() and not path.exists() else None
    if path != Path("pretrained") / path.name:
        return None
    if not file.is_file():
        names = ", ".join(sorted(each.stem for each in SHIPPED.glob("*.safetensors"))) or "none yet"
        raise RunError(f"no trained agent '{path.name}' comes with the package; there are: {names}")
    return file


def results_folder(path: str | Path) -> Path:
    """Where what is made of a run, a policy file or a shipped agent goes unless told otherwise."""
    path = Path(path)
    if shipped(path):
        return Path("pretrained") / path.name
    return path if path.is_dir() else path.parent


def check_one_cost(factory: EnvFactory) -> None:
    """Refuse an environment of several costs, unless a cost function makes one of them."""
    costs = factory.task.costs if factory.task and factory.cost_fn is None else ()
    if len(costs) > 1:
        raise ConfigError(
            f"'{factory.name}' has {len(costs)} costs ({', '.join(costs)}), and training takes one; "
            "give a cost_fn that makes one of them, and thresholds for it"
        )


def task_settings(factory: EnvFactory) -> dict[str, Any]:
    check_one_cost(factory)
    task = factory.task
    if task is None or len(task.costs) > 1:
        return {}
    return {"behaviour_thresholds": task.behaviour_thresholds, "threshold_range": task.threshold_range}


def preset_values(task: Task | None, algorithm: str, preset: str) -> dict[str, Any]:
    """What the preset says; only a registered task has values of its own, whatever others are called."""
    if task is None:
        return load_preset(algorithm, preset)
    own = {"steps": task.steps} if task.steps else {}
    return load_preset(algorithm, preset, task.preset or task.name, own=own)
