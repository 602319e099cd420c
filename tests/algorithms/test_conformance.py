"""What every algorithm of the registry must keep, whatever its method.

Golden traces are rewritten by `CCPO_UPDATE_GOLDEN=1 pytest tests/algorithms/test_conformance.py -k golden`; a change
that moves them says so in its commit and in the changelog.
"""

import json
import os
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiences import EPISODE, make_config, make_experience, make_problem, make_state

import ccpo
from ccpo import trees
from ccpo.algorithms import ALGORITHMS, find_algorithm
from ccpo.runtime import PolicyNet
from ccpo.schedule import LoopConfig
from ccpo.types import Experience, Problem
from helpers import TASK, TINY

GOLDEN = Path(__file__).parent.parent / "golden"
ON_POLICY = {name for name in ALGORITHMS if getattr(find_algorithm(name), "ON_POLICY", False)}
SINGLE_THRESHOLD = ON_POLICY | {"cvpo"}

OPEN = "-open"
"""What ends the name of a case that acts open loop although its algorithm has a closed one."""
CASES = [*ALGORITHMS, "ccpo" + OPEN]

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_case = pytest.mark.parametrize("name", CASES)


def loop_of(name: str) -> str:
    module = find_algorithm(name.removesuffix(OPEN))
    return "closed" if getattr(module, "CLOSED_LOOP", False) and not name.endswith(OPEN) else "open"


class Case(NamedTuple):
    """An algorithm on a small problem, with its `update` compiled."""

    module: ModuleType
    config: Any
    problem: Problem
    experience: Experience
    learn: Any

    def state(self, seed: int = 0) -> Any:
        return make_state(self.module, self.config, self.problem, seed=seed)


@cache
def make_case(name: str) -> Case:
    module = find_algorithm(name.removesuffix(OPEN))
    thresholds = (4.0,) if name in SINGLE_THRESHOLD else (2.0, 4.0, 6.0)
    problem = make_problem(thresholds, deployed_lanes=int(name not in ON_POLICY), closed=loop_of(name) == "closed")
    config = make_config(module)
    learn = jax.jit(partial(module.update, config, problem))
    return Case(module, config, problem, make_experience(problem), learn)


def in_double(tree: Any) -> Any:
    """Floats as float64: many small steps of Adam or of conjugate gradients would magnify float32's rounding."""
    return jax.tree.map(lambda x: x.astype(float) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def assert_close(first: Any, second: Any) -> None:
    first, second = trees.to_arrays(first), trees.to_arrays(second)
    assert set(first) == set(second)
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-5, atol=1e-8, err_msg=name)


@every_algorithm
def test_has_the_names_of_an_algorithm(name):
    module = find_algorithm(name)
    missing = [n for n in ("Config", "State", "init", "act", "acting", "update", "METRICS") if not hasattr(module, n)]
    assert not missing, f"{name} lacks {missing}"


@every_case
def test_the_state_keeps_its_structure(name):
    """Same tree, shapes and types after an update, so that a scan can carry it and nothing is compiled twice."""
    case = make_case(name)
    state = case.state()
    after, _ = jax.eval_shape(case.learn, state, case.experience)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for (path, new), old in zip(jax.tree.leaves_with_path(after), jax.tree.leaves(state), strict=True):
        assert _signature(new) == _signature(old), jax.tree_util.keystr(path)


def _signature(leaf: Any) -> tuple:
    """What compilation depends on; random keys have no weak type."""
    return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)


@pytest.mark.long
@every_case
def test_jit_changes_nothing(name):
    case = make_case(name)
    state = case.state()
    with jax.enable_x64(True):
        state, experience = in_double(state), in_double(case.experience)
        with jax.disable_jit():
            plain = case.module.update(case.config, case.problem, state, experience)
        assert_close(plain, case.learn(state, experience))


@pytest.mark.long
@every_case
def test_vmap_over_seeds_is_a_loop_over_seeds(name):
    case = make_case(name)
    states = [case.state(seed) for seed in (0, 1)]
    together = jax.jit(jax.vmap(partial(case.module.update, case.config, case.problem), in_axes=(0, None)))
    with jax.enable_x64(True):
        states, experience = [in_double(state) for state in states], in_double(case.experience)
        result = together(jax.tree.map(lambda *x: jnp.stack(x), *states), experience)
        for i, state in enumerate(states):
            assert_close(jax.tree.map(lambda x, i=i: x[i], result), case.learn(state, experience))


@every_case
def test_a_checkpoint_continues_where_it_was_taken(name):
    case = make_case(name)
    state, _ = case.learn(case.state(), case.experience)
    restored = trees.from_arrays(case.state(seed=1), trees.to_arrays(state), source="it")
    expected, found = (case.learn(s, case.experience)[0] for s in (state, restored))
    for (path, x), array in zip(trees.to_arrays(expected).items(), trees.to_arrays(found).values(), strict=True):
        np.testing.assert_array_equal(x, array, err_msg=path)


class StopError(Exception):
    """Ends a run between two checkpoints."""


def train(name: str, out: Path, **settings: Any) -> ccpo.Agent:
    algorithm = name.removesuffix(OPEN)
    known = {f.name for kind in (LoopConfig, find_algorithm(algorithm).Config) for f in fields(kind)}
    chosen = {setting: value for setting, value in TINY.items() if setting in known}
    chosen |= {"lanes_per_threshold": 2, "deployed_lanes": 1, "loop": loop_of(name)}
    if name in ON_POLICY:
        chosen |= {"deployed_lanes": 0, "warmup_steps": 0}
    if name in SINGLE_THRESHOLD:
        chosen["behaviour_thresholds"] = (8.0,)
    return ccpo.train(TASK, algorithm, out=out, **chosen, **settings)


@every_case
def test_a_stopped_run_resumes_to_the_same_end(name, tmp_path):
    def stop(progress):
        if progress.steps == 360:
            raise StopError

    whole = train(name, tmp_path / "whole")
    with pytest.raises(StopError):
        train(name, tmp_path / "stopped", display=stop)
    (path,) = (tmp_path / "stopped").glob("*/seed-*")
    resumed = ccpo.resume(path)
    assert whole.run is not None
    assert resumed.run is not None
    expected, found = (agent.run.load_checkpoint()[0] for agent in (whole, resumed))
    for group, arrays in expected.items():
        assert set(found[group]) == set(arrays)
        for array, value in arrays.items():
            np.testing.assert_array_equal(found[group][array], value, err_msg=f"{group}/{array}")
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == sorted({row["steps"] for row in rows})
    own = {column for column in rows[-1] if column.split("/")[0] not in ("steps", "time", "rollout")}
    assert own == set(find_algorithm(name.removesuffix(OPEN)).METRICS)


@every_case
def test_a_sweep_over_budgets_is_traced_once(name):
    case, traces = make_case(name), []

    @jax.jit
    def act(state, obs, budget, time_to_go):
        traces.append(budget)
        return case.module.act(case.config, case.problem, state, obs, budget, time_to_go)

    obs = case.experience.rollout.obs[0]
    times = np.linspace(EPISODE, 1.0, 4)
    for budget, time_to_go in zip(np.linspace(-1.0, case.problem.threshold_range[1], 4), times, strict=True):
        conditions = jnp.full((len(obs), 1), budget, jnp.float32), jnp.full(len(obs), time_to_go, jnp.float32)
        action = act(case.state(), obs, *conditions)
    assert action.shape == (case.problem.lanes, case.problem.spec.action_size)
    assert len(traces) == 1


@every_case
def test_lanes_act_as_the_learner_does(name, key):
    """Under budgets from overspent to more than any threshold, at all times of an episode: mean and sample."""
    case = make_case(name)
    state, _ = case.learn(case.state(), case.experience)
    acting = case.module.acting(case.config, case.problem, state)
    obs = np.asarray(case.experience.rollout.obs).reshape(-1, case.problem.spec.observation_size)
    budget = np.linspace(-2.0, 1.4 * case.problem.threshold_range[1], len(obs)).astype(np.float32)[:, None]
    time_to_go = np.resize(np.arange(EPISODE, 0, -1), len(obs)).astype(np.float32)
    act = jax.jit(partial(case.module.act, case.config, case.problem))
    seen = obs, budget, time_to_go / np.float32(EPISODE)
    deployed = PolicyNet(acting.deploy, acting.net).mean(*seen)
    np.testing.assert_allclose(deployed, act(state, obs, budget, time_to_go), atol=1e-5)
    noise = np.asarray(jax.random.normal(key, (len(obs), case.problem.spec.action_size)))
    sampled = PolicyNet(acting.explore, acting.net).sample(*seen, noise)
    np.testing.assert_allclose(sampled, act(state, obs, budget, time_to_go, key), atol=1e-5)


@pytest.mark.parametrize("name", ["ccpo", "ccpo" + OPEN, "sac_lag"])
@pytest.mark.parametrize(("budget", "time_to_go"), [(-1.0, 5.0), (5.0, 5.0), (2.0, 9.0)])
def test_the_policy_sees_the_time_only_in_a_closed_loop(name, budget, time_to_go):
    """Another budget always counts, another time only where the loop is closed."""
    case = make_case(name)
    state = case.state()
    obs = case.experience.rollout.obs[0]

    def act(budget, time_to_go):
        rows = jnp.full((len(obs), 1), budget), jnp.full(len(obs), time_to_go)
        return np.asarray(case.module.act(case.config, case.problem, state, obs, *rows))

    own, reference = act(budget, time_to_go), act(2.0, 5.0)
    assert np.array_equal(own, reference) == (budget == 2.0 and loop_of(name) == "open")


@every_case
def test_metrics_are_finite_and_documented(name):
    case = make_case(name)
    _, metrics = case.learn(case.state(), case.experience)
    documented = getattr(case.module, "METRICS", None)
    assert documented is not None, f"{name} has no METRICS: a dictionary of each metric's name and its meaning"
    assert set(metrics) == set(documented)
    for metric, value in metrics.items():
        assert value.shape == ()
        assert np.isfinite(value), metric
        assert documented[metric]


@every_case
def test_golden_trace(name):
    """Three updates from a fixed state, in double precision: how far the actor's arrays moved, and the last metrics."""
    case = make_case(name)
    state = case.state()
    with jax.enable_x64(True):
        state, experience = in_double(state), in_double(case.experience)
        before = case.module.acting(case.config, case.problem, state).explore
        for _ in range(3):
            state, metrics = case.learn(state, experience)
        after = case.module.acting(case.config, case.problem, state).explore
    moved = {path: after[path] - before[path] for path in after}
    trace = {
        "moved": {path: [_digits(np.abs(x).sum()), _digits(x.flat[0])] for path, x in moved.items()},
        "metrics": {metric: _digits(value) for metric, value in sorted(metrics.items())},
    }
    file = GOLDEN / f"{name}.json"
    if os.environ.get("CCPO_UPDATE_GOLDEN"):
        file.write_text(json.dumps(trace, indent=2) + "\n")
    assert file.is_file(), f"there is no {file.name} yet: run with CCPO_UPDATE_GOLDEN=1"
    golden = json.loads(file.read_text())
    assert trace["metrics"] == pytest.approx(golden["metrics"], rel=1e-4, abs=1e-9)
    assert set(trace["moved"]) == set(golden["moved"])
    for path, digests in trace["moved"].items():
        assert digests == pytest.approx(golden["moved"][path], rel=1e-4, abs=1e-9), path


def _digits(value: Any) -> float:
    return float(f"{float(value):.5g}")
