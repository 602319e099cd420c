"""What a finished run of CCPO or CVPO has learned: its critic, its settings and the steps it has stored."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ccpo import config as configs
from ccpo import trees
from ccpo.agent import POLICY_FILE
from ccpo.algorithms import cvpo, find_algorithm
from ccpo.algorithms.ccpo import model
from ccpo.launch import IDENTITY
from ccpo.maths.returns import Horizon
from ccpo.runs import Run
from ccpo.runtime import Policy
from ccpo.schedule import LoopConfig, make_problem
from ccpo.studies.plan import FinishedRun
from ccpo.types import Problem, Transition


class Learned(NamedTuple):
    """The newest checkpoint of a run; `steps` is all that its replay holds, one step a row."""

    config: Any
    problem: Problem
    """As the critics know it: CVPO's range begins at its threshold."""
    state: Any
    steps: Transition

    @property
    def horizon(self) -> Horizon:
        return model.horizon(self.config, self.problem)


def load(run: FinishedRun) -> Learned:
    """Read a run's settings, learner state and replay; no environment is built."""
    folder = Run.open(run.path)
    settings = folder.config()
    module = find_algorithm(settings["algorithm"])
    own = {name: value for name, value in settings.items() if name not in ("algorithm", *IDENTITY)}
    loop, config = configs.build((LoopConfig, module.Config), own)
    problem = make_problem(Policy.load(run.path / POLICY_FILE).env, loop)
    groups, _ = folder.load_checkpoint()
    shapes = jax.eval_shape(partial(module.init, config, problem), jax.random.key(0))
    state = trees.from_arrays(jax.tree.map(_blank, shapes), groups["state"], source=f"the checkpoint in '{run.path}'")
    seen = cvpo.narrowed(problem) if module is cvpo else problem
    return Learned(config, seen, state, _stored_steps(groups["replay"]))


def _blank(leaf: jax.ShapeDtypeStruct) -> Any:
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    return np.zeros(leaf.shape, leaf.dtype)


def _stored_steps(arrays: dict[str, np.ndarray]) -> Transition:
    """Every step that the ring holds; it fills from its first slot on."""
    filled = int(arrays["filled"])
    ring = [arrays[f"data.{name}"][:filled] for name in Transition._fields]
    return Transition(*(array.reshape(-1, *array.shape[2:]) for array in ring))


def draw(steps: Transition, count: int, *, seed: int) -> Transition:
    """Uniform draws with replacement from stored steps."""
    rows = np.random.default_rng(seed).integers(len(steps.reward), size=count)
    return Transition(*(array[rows] for array in steps))


def critic_inputs(learned: Learned, steps: Transition) -> Any:
    """What the run's critics see of the states of these steps: [B, I]."""
    obs = learned.state.normaliser(steps.obs)
    return model.critic_inputs(learned.config, learned.problem, obs, steps.time_to_go)


def episodic_q_cost(learned: Learned, steps: Transition, threshold: float) -> np.ndarray:
    """Q_c(s, a | ε) of stored pairs, as the episodic cost that it stands for (Q_c · ε_H): [B], float64."""
    state, budget = learned.state, np.full((len(steps.reward), 1), threshold, np.float32)
    inputs = state.normaliser(steps.obs), steps.action[:, None, :], budget, steps.time_to_go
    _, q = model.q_values(learned.config, learned.problem, state.critic, *inputs)
    return np.asarray(q[:, 0, 0], np.float64) * learned.problem.threshold_range[1]


def versatile(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs of CCPO that serve a range of thresholds."""
    return [run for run in runs if run.algorithm == "ccpo" and len(run.thresholds) > 1]


def open_loop(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Those of them whose critics sum up cost under a threshold; in a closed loop they sum up overspending."""
    return [run for run in versatile(runs) if Run.open(run.path).config()["loop"] == "open"]


def single(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs that were trained for one threshold."""
    return [run for run in runs if len(run.thresholds) == 1]


def tasks(runs: Sequence[FinishedRun]) -> list[str]:
    """The tasks in the order of their first run."""
    return list(dict.fromkeys(run.task for run in runs))
