"""The first hour of a new user, end to end: three environments of their own, on the command line and from Python."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import ccpo
from ccpo import sealed
from ccpo.cli import main
from ccpo.deploy.play import find_actors
from ccpo.deploy.watching import LiveEpisode
from ccpo.errors import ConfigError
from ccpo.runtime import Policy
from helpers import TINY

HERE = Path(__file__).parent
SMALL = {name: value for name, value in TINY.items() if name not in ("rollout_length", "steps")} | {"steps": 900}
FLAGS = [f"--set={k}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in SMALL.items()]
SPEED = {"behaviour_thresholds": (10.0, 20.0, 30.0), "threshold_range": (5.0, 40.0)}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A user's folder with three environments in a file."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copy(HERE / "worlds.py", folder / "hour_worlds.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        yield folder


@pytest.fixture(scope="module")
def run(home):
    """A run on the point mass, begun as the probe says."""
    assert main(["probe", "hour_worlds.py:SpeedEnv", "--no-timing", "--episodes", "40"]) == 0
    assert main(["train", "--env", "hour_worlds.py:SpeedEnv", "--config", "probe-SpeedEnv.toml", *FLAGS]) == 0
    (path,) = (home / "runs").glob("ccpo-SpeedEnv/seed-000-*")
    return path


def in_a_new_process(folder, *arguments):
    code = "import sys; from ccpo.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_every_command_finds_the_environment_again(run, tmp_path, capsys):
    few = ["--thresholds", "10,20", "--episodes", "2", "--workers", "1"]
    assert main(["evaluate", str(run), *few]) == 0
    assert main(["render", str(run), "--animate", "none"]) == 0
    assert main(["export", str(run), "--out", str(tmp_path / "policy.safetensors")]) == 0
    assert main(["train", "--resume", str(run)]) == 0
    assert {"eval.csv", "eval.png", "paths.png"} <= {path.name for path in run.iterdir()}
    (actor,) = find_actors(str(run))
    assert LiveEpisode(actor, seed=0).step(20.0).cost >= 0.0
    assert "not evaluated yet" not in capsys.readouterr().out


def test_so_does_a_new_process_in_another_folder(run, tmp_path):
    done = in_a_new_process(tmp_path, "evaluate", run, "--thresholds", "10,20", "--episodes", "2", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "eval.csv").is_file()


def test_a_policy_file_is_given_its_environment(run, tmp_path, capsys):
    file = tmp_path / "policy.safetensors"
    ccpo.load(run).save(file)
    few = ["--thresholds", "20", "--episodes", "1", "--workers", "1", "--out", str(tmp_path)]
    assert main(["evaluate", str(file), *few]) == 2
    assert "--env module:Class, or in Python env=…" in capsys.readouterr().err
    assert main(["evaluate", str(file), *few, "--env", "hour_worlds:SpeedEnv"]) == 0


def test_what_cannot_be_imported_says_so_and_can_be_given(home, capsys):
    from hour_worlds import SpeedEnv

    agent = ccpo.train(lambda: SpeedEnv(), progress=False, **SPEED, **SMALL)
    few = ["--thresholds", "20", "--episodes", "1", "--workers", "1"]
    assert main(["evaluate", str(agent.folder), *few]) == 2
    message = capsys.readouterr().err
    assert "a lambda, or typed at a prompt or in a notebook; give it: --env module:Class" in message
    assert main(["evaluate", str(agent.folder), *few, "--env", "hour_worlds:SpeedEnv"]) == 0


def test_a_cost_function_from_python(home, tmp_path, capsys):
    found = ccpo.probe("Pendulum-v1", cost_fn="hour_worlds.py:height_cost", timing=False, episodes=40)
    assert "what Pendulum-v1 can cost and earn" in str(found)
    agent = ccpo.train(
        "Pendulum-v1", cost_fn="hour_worlds.py:height_cost", out=tmp_path, **{**found.settings, **SMALL, "steps": 1200}
    )
    again = ccpo.load(agent.folder)
    table = again.evaluate(again.behaviour_thresholds, episodes=2)
    assert "Pendulum" in str(table)
    assert "R ↑" in str(ccpo.summarise(table))
    assert "Pendulum-v1" in str(again)
    again.figure(table, tmp_path / "dial.png")
    again.render(out=tmp_path, animate="none")
    assert (tmp_path / "dial.png").is_file()
    assert (tmp_path / "paths.png").is_file()
    paths = again.export(tmp_path / "policy.safetensors")
    assert {path.suffix for path in paths} == {".safetensors", ".md"}
    assert ccpo.resume(agent.folder, progress=False).folder == agent.folder


def test_observations_as_the_environment_returns_them(home, tmp_path):
    from hour_worlds import CartEnv

    settings = {"behaviour_thresholds": (2.0, 4.0, 6.0), "threshold_range": (1.0, 8.0)}
    agent = ccpo.train(CartEnv, out=tmp_path, progress=False, **settings, **SMALL)
    agent.save(tmp_path / "cart.safetensors")
    policy = Policy.load(tmp_path / "cart.safetensors")
    env = CartEnv()
    obs, _ = env.reset(seed=0)
    flat = spaces.flatten(env.observation_space, obs)
    np.testing.assert_array_equal(agent.predict(obs, 4.0)[0], policy.act(flat, 4.0))
    episode = policy.episode(threshold=2.0)
    for step in range(20):
        obs, _, terminated, truncated, info = env.step(episode.act(obs))
        episode.pay(info["cost"])
        episode.threshold = 2.0 if step < 10 else 6.0
        if terminated or truncated:
            break
    assert episode.steps == step + 1


def test_without_thresholds_the_probe_is_suggested(home, capsys):
    assert main(["train", "--env", "hour_worlds.py:SpeedEnv"]) == 2
    assert "'ccpo probe ENV' or ccpo.probe(env) recommends both" in capsys.readouterr().err


def test_a_wrong_cost_function_shows_the_right_one(home, capsys):
    (home / "hour_costs.py").write_text("def short(obs, action):\n    return 0.0\n\ndef none(*step):\n    pass\n")
    limits = ["--behaviour-thresholds", "10,20", "--threshold-range", "5,30"]
    for name, expected in (("short", "must take five arguments"), ("none", "must return one number")):
        assert main(["train", "--env", "Pendulum-v1", "--cost", f"hour_costs.py:{name}", *limits]) == 2
        shown = capsys.readouterr()
        assert expected in shown.err
        assert "def cost_fn(obs, action, reward, next_obs, info)" in shown.err
        assert "compiling" not in shown.out


def test_an_environment_that_was_moved_away_says_what_to_do(run, tmp_path):
    copy = tmp_path / "copied"
    shutil.copytree(run, copy)
    config = sealed.read_sealed(copy / "config.json")
    config["env"]["path"] = "gone_worlds:SpeedEnv"
    sealed.write_sealed(copy / "config.json", config)
    with pytest.raises(ccpo.EnvError, match=r"cannot import 'gone_worlds'.*or give it: --env module:Class"):
        ccpo.load(copy).evaluate([20.0], episodes=1)
    with pytest.raises(ConfigError, match="give the environment it began with"):
        ccpo.resume(copy, "StaticBudget")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "cost"), [("SpeedEnv", None), ("Pendulum-v1", "hour_worlds.py:height_cost"), ("CartEnv", None)]
)
def test_what_the_probe_recommends_learns_every_threshold(name, cost, home, tmp_path):
    """With defaults, at seven thresholds over the range: cost within 0.7 and 1.05 of the threshold."""
    env = name if cost else f"hour_worlds.py:{name}"
    found = ccpo.probe(env, cost_fn=cost)
    agent = ccpo.train(env, cost_fn=cost, out=tmp_path, progress=False, **found.settings)
    thresholds = agent.even_thresholds(7)
    table = agent.evaluate(thresholds, episodes=50)
    uses = {t: float(table.cost[table.threshold == t].mean()) / t for t in thresholds}
    assert all(0.7 <= use <= 1.05 for use in uses.values()), uses
