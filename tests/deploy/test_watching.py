"""Actors and live episodes against an independent loop and closed forms."""

import json
import math

import gymnasium
import numpy as np
import pytest

from ccpo import agent
from ccpo.deploy.watching import (
    Actor,
    CurvePoint,
    LiveEpisode,
    check_same_task,
    optimal_actor,
    optimal_actors,
    scene_of,
    trained_actor,
)
from ccpo.envs import registry
from ccpo.envs.analytic import ANALYTIC_ENVS, StaticBudget
from ccpo.envs.registry import resolve
from ccpo.envs.tasks import Scene
from ccpo.envs.workers import episode_seed
from ccpo.errors import CCPOError, FormatError
from ccpo.metrics import EpisodeTable
from deploy.policies import random_policy, save_random_policy
from deploy.toy import closed_agent, closed_cost
from extras import NEEDS_BULLET, NEEDS_MUJOCO


def play(actor, threshold, seed=0):
    episode = LiveEpisode(actor, seed)
    moments = []
    while not episode.ended:
        moments.append(episode.step(threshold))
    episode.close()
    return episode, moments


@pytest.mark.parametrize("task", ["DriftBudget", pytest.param("CarCircle", marks=NEEDS_BULLET)])
@pytest.mark.parametrize("condition", ["threshold", "budget"])
def test_an_episode_equals_a_plain_loop(tmp_path, task, condition):
    policy = random_policy(task, condition=condition)
    actor = trained_actor(save_random_policy(tmp_path, task, condition=condition))
    assert actor.closed_loop == (condition == "budget")
    env = resolve(task)()
    obs, reward, cost, steps, ended = env.reset(episode_seed(3, evaluation=True)), 0.0, 0.0, 0, False
    while not ended:
        budget = np.float32([35.0 - cost if condition == "budget" else 35.0])
        action = policy.net.mean(obs, budget, np.float32(1.0 - steps / env.spec.episode_length))
        obs, r, c, terminated, truncated = env.step(action)
        reward, cost, steps, ended = reward + r, cost + c, steps + 1, terminated or truncated
    env.close()

    episode, moments = play(actor, 35.0, seed=3)
    assert (episode.reward, episode.cost) == (reward, cost)
    assert len(moments) == episode.length == resolve(task).spec.episode_length
    assert episode.ended == "truncated"
    assert math.isclose(sum(moment.cost for moment in moments), cost)


def test_an_episode_is_what_an_evaluation_measures(tmp_path, monkeypatch):
    """The same account of the budget: bit for bit, for costs that are no whole numbers."""
    path = save_random_policy(tmp_path, "StaticBudget")
    measured = agent.load(path).evaluate([35.0], 1)
    monkeypatch.setattr(
        "ccpo.deploy.watching.episode_seed", lambda *_, **__: episode_seed(0, 35_000, 0, evaluation=True)
    )
    episode, _ = play(trained_actor(path), 35.0)
    assert (measured.reward.tolist(), measured.cost.tolist()) == ([episode.reward], [episode.cost])


def test_a_closed_loop_slows_down_as_its_budget_runs_out(tmp_path):
    closed_agent().save(tmp_path / "policy.safetensors")
    episode, moments = play(trained_actor(tmp_path / "policy.safetensors"), 40.0)
    actions = [moment.action[0] for moment in moments]
    assert actions == sorted(actions, reverse=True)
    assert 40.0 > episode.cost == pytest.approx(closed_cost(40.0), rel=1e-4)


@pytest.mark.parametrize(("first", "then"), [(60.0, 20.0), (20.0, 60.0)])
def test_a_dial_turned_in_mid_episode_is_the_threshold_of_the_whole_episode(tmp_path, first, then):
    closed_agent().save(tmp_path / "policy.safetensors")
    episode = LiveEpisode(trained_actor(tmp_path / "policy.safetensors"), seed=0)
    for step in range(100):
        episode.step(first if step < 10 else then)
    spent = closed_cost(first, steps=10)
    assert then > episode.cost == pytest.approx(closed_cost(then, spent, steps=90), rel=1e-4)


def test_a_turned_threshold_acts_at_the_next_step():
    episode = LiveEpisode(optimal_actor("StaticBudget"), seed=0)
    actions = [episode.step(threshold).action[0] for threshold in (25.0, 25.0, 81.0)]
    assert actions == pytest.approx([0.5, 0.5, 0.9])


def test_a_finished_episode_cannot_be_stepped():
    actor = optimal_actor("StaticBudget-T3")
    episode, _ = play(actor, 2.0)
    with pytest.raises(CCPOError, match="has truncated after 3 steps"):
        episode.step(2.0)


@pytest.mark.parametrize("task", ANALYTIC_ENVS)
def test_the_optimum_runs_on_its_exact_curve(task):
    actor, env = optimal_actor(task), ANALYTIC_ENVS[task]()
    low, high = actor.threshold_range
    assert env.min_cost < low < high == 100.0
    for point in actor.curve[:: len(actor.curve) - 1]:
        assert point.reward == env.optimal_return(point.threshold)
        assert point.cost == env.optimal_cost(point.threshold)
    episode, _ = play(actor, 40.0)
    assert episode.cost == pytest.approx(40.0, rel=0.15)


def test_there_is_an_optimum_for_each_question():
    assert [actor.task for actor in optimal_actors()] == list(ANALYTIC_ENVS)


ROWS = [{"threshold": t, "reward_mean": 2.0 * t, "cost_mean": t - 1.0, "seeds": 1} for t in (40.0, 10.0)]
CURVE = (CurvePoint(10.0, 20.0, 9.0), CurvePoint(40.0, 80.0, 39.0))


@pytest.mark.parametrize(
    ("evaluation", "curve"),
    [
        (None, ()),
        ({"thresholds": ROWS}, CURVE),
        (ROWS, CURVE),
        ({"thresholds": [{"threshold": "<b>", "reward_mean": 1, "cost_mean": 1}, 7]}, ()),
        ({"thresholds": 7}, ()),
        ("nonsense", ()),
    ],
)
def test_the_curve_of_a_file_is_its_manifests_evaluation(tmp_path, evaluation, curve):
    path = save_random_policy(tmp_path, "StaticBudget", evaluation=evaluation)
    assert trained_actor(path).curve == curve


def test_the_curve_of_a_run_is_its_eval_csv(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"format_version": 1}))
    random_policy("StaticBudget").save(tmp_path / "policy.safetensors")
    keys = {"task": "StaticBudget", "algorithm": "ccpo", "seed": 0, "length": 100}
    EpisodeTable.from_rows(
        {**keys, "threshold": t, "episode": i, "reward": t + i, "cost": 2.0 * i} for t in (10.0, 20.0) for i in (0, 1)
    ).write_csv(tmp_path / "eval.csv")
    actor = trained_actor(tmp_path)
    assert actor.curve == (CurvePoint(10.0, 10.5, 1.0), CurvePoint(20.0, 20.5, 1.0))
    assert actor.name == f"ccpo · {tmp_path.name}"
    assert (actor.threshold_range, actor.behaviour_thresholds) == ((10.0, 70.0), (20.0, 40.0, 60.0))


@NEEDS_BULLET
@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("BallCircle", "circle"),
        ("CarCircle", "circle"),
        ("DroneCircle", "circle"),
        ("DroneRun", "run"),
        ("AntRun", "run"),
        ("DroneRun-TwoCosts", "run"),
    ],
)
def test_the_five_tasks_are_seen_from_above(tmp_path, task, kind):
    scene = scene_of(resolve(task))
    assert scene.kind == "above"
    assert (scene.circle_radius is not None, scene.y_limit is not None) == (kind == "circle", kind == "run")
    if task.endswith("TwoCosts"):
        return
    actor = trained_actor(save_random_policy(tmp_path, task))
    first, second = LiveEpisode(actor, seed=1), LiveEpisode(actor, seed=1)
    assert first.bodies == []
    assert first.place == second.place
    assert len(first.place) == 2
    assert first.step(20.0) == second.step(20.0)
    first.close(), second.close()


def test_a_task_without_a_space_is_a_timeline():
    assert scene_of(resolve("LateBudget-T7")) == Scene("timeline")


def test_an_environment_that_is_no_task_is_a_timeline():
    assert scene_of(resolve(StaticBudget)) == Scene("timeline")


@NEEDS_MUJOCO
def test_a_robot_is_seen_from_the_side(tmp_path):
    actor = trained_actor(save_random_policy(tmp_path, "HopperVelocity"))
    scene = scene_of(actor.factory)
    assert (scene.kind, scene.speed_limit) == ("side", 0.7402)
    episode = LiveEpisode(actor, seed=1)
    start = episode.place
    moment = episode.step(20.0)
    distance, speed = moment.place
    assert start[1] == 0.0
    assert speed != 0.0
    assert moment.cost == (speed > scene.speed_limit)
    assert episode.bodies[0][0] == distance
    assert {len(body) for body in episode.bodies} == {5}
    episode.close()


class Walk(gymnasium.Env):
    """Walks along x, one unit a step, and pays for it; seen from above."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    x = 0.0

    def reset(self, *, seed=None, options=None):
        self.x = 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.x += 1.0
        return np.float32([self.x]), 1.0, False, False, {"cost": 0.5}

    def top_view(self):
        return {"position": (self.x, 0.0), "velocity": (1.0, 0.0)}


def test_a_task_of_ones_own_is_drawn_as_it_says(monkeypatch):
    monkeypatch.setattr(registry, "TASKS", dict(registry.TASKS))
    scene = Scene("above", ((0.0, 5.0), (-1.0, 1.0)), y_limit=0.5)
    task = registry.register_task(
        "Walk", Walk, behaviour_thresholds=(1, 2), threshold_range=(0.5, 2.5), episode_length=5, scene=scene
    )
    factory = resolve("walk")
    assert factory.task is task
    assert scene_of(factory) == scene
    actor = Actor("still", factory, lambda *_: np.zeros(1, np.float32), (0.5, 2.5), (), False)
    episode, moments = play(actor, 1.0)
    assert [moment.place for moment in moments] == [(float(i), 0.0) for i in range(1, 6)]
    assert episode.cost == 2.5


def test_policies_of_two_tasks_are_not_compared():
    with pytest.raises(FormatError, match=r"is for DriftBudget, .* for StaticBudget; compare policies of one task"):
        check_same_task(optimal_actor("StaticBudget"), optimal_actor("DriftBudget"))
