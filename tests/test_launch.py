"""Ctrl-C keeps what was done, and says how to go on; from Python the same is shown as on the command line."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import ccpo
from ccpo import replay
from ccpo.envs.registry import resolve
from ccpo.errors import ConfigError, Interrupted
from ccpo.interrupts import noted
from ccpo.types import Transition
from helpers import TASK, TINY

LIMITS = {"behaviour_thresholds": (4.0, 8.0, 12.0), "threshold_range": (2.0, 14.0)}
LONG = {**TINY, "steps": 1200, "checkpoint_every": 100_000}


@pytest.fixture(autouse=True)
def as_at_a_terminal():
    """A shell that starts the tests in the background makes them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def stop_at(step):
    """A display that presses Ctrl-C, once."""
    pressed = []

    def display(progress):
        if progress.steps == step and not pressed:
            pressed.append(step)
            signal.raise_signal(signal.SIGINT)

    return display


def test_ctrl_c_keeps_the_steps_so_far_and_the_run_goes_on_to_its_end(tmp_path, capsys):
    with pytest.raises(Interrupted, match=r"kept up to step 480; continue with: ccpo.resume\('") as caught:
        ccpo.train(TASK, folder=tmp_path / "run", display=stop_at(480), **LONG)
    ((folder, step),) = caught.value.kept
    assert (folder, step) == (tmp_path / "run", 480)
    assert ccpo.load(folder).policy.manifest["training"]["steps_done"] == 480
    resumed = ccpo.resume(folder)
    assert "resume    continues from step 480 of 1,200" in capsys.readouterr().out
    assert resumed.policy.manifest["training"]["finished"]
    rows = [json.loads(line)["steps"] for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert rows == list(range(120, 1201, 120))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_seeds_that_train_together_stop_at_the_same_step_and_go_on_alone(tmp_path):
    with pytest.raises(Interrupted) as caught:
        ccpo.train_seeds(TASK, seeds=[1, 2], out=tmp_path, display=stop_at(480), **LONG)
    assert [step for _, step in caught.value.kept] == [480, 480]
    folder, _ = caught.value.kept[1]
    assert ccpo.resume(folder, progress=False).policy.manifest["training"]["steps_done"] == 1200


def test_ctrl_c_in_the_last_iteration_lets_it_finish(tmp_path):
    agent = ccpo.train(TASK, folder=tmp_path / "run", display=stop_at(1200), **LONG)
    assert agent.policy.manifest["training"]["finished"]


def test_a_checkpoint_out_of_turn_ends_the_episodes_that_it_cuts():
    store = replay.init(resolve(TASK).spec, slots=40, lanes=2)
    rollout = Transition(*(np.zeros((20, *leaf.shape[1:]), leaf.dtype) for leaf in store.data))
    rollout.terminated[19, 1] = True
    cut = replay.cut(replay.insert(store, rollout))
    expected = np.zeros((40, 2), bool)
    expected[19, 0] = True
    np.testing.assert_array_equal(cut.data.truncated, expected)
    full = replay.insert(replay.insert(store, rollout), rollout)
    assert np.asarray(replay.cut(full).data.truncated)[39, 0]


def test_a_second_ctrl_c_stops_at_once_and_the_first_one_too_where_nothing_is_lost():
    told = []
    with noted(lambda: told.append(True)) as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interrupts.deferred = True
        signal.raise_signal(signal.SIGINT)
        assert (interrupts.requested, told) == (True, [True])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_at_the_terminal_prints_the_command_that_goes_on(kind, tmp_path):
    settings = [
        f"--set={name}={','.join(map(str, v)) if isinstance(v, tuple) else v}"
        for name, v in LONG.items()
        if name != "steps"
    ]
    command = ["train", "--task", TASK, "--out", str(tmp_path), "--workers", "2", *settings, "--steps", "1_000_000"]
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from ccpo.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if any(file.stat().st_size for file in tmp_path.glob("*/seed-*/progress.jsonl")):
                break
            time.sleep(0.2)
        if kind == signal.SIGINT:
            os.killpg(process.pid, kind)  # as a terminal does: to the workers too
        else:
            process.send_signal(kind)
        out, err = process.communicate(timeout=300)
    (folder,) = tmp_path.glob("*/seed-*")
    assert process.returncode == 128 + kind, err
    assert err.strip().endswith(f"with: ccpo train --resume {folder}")
    kept = kind == signal.SIGINT  # a terminated run stops at once
    assert ("stopping after this iteration" in out) == kept
    assert bool(list(folder.glob("checkpoints/step_*"))) == kept


def test_training_from_python_shows_what_the_command_line_shows_unless_it_is_told_not_to(tmp_path, capsys):
    agent = ccpo.train(TASK, out=tmp_path, **TINY)
    shown = capsys.readouterr().out
    assert f"run       {agent.folder}" in shown
    assert "how it ended" in shown
    ccpo.train(TASK, out=tmp_path, progress=False, **TINY)
    assert capsys.readouterr().out == ""


def test_what_later_commands_must_be_told_is_said_at_the_start(tmp_path, capsys):
    env, costs = resolve(TASK).make, lambda *step: 1.0
    ccpo.train(lambda: env(), cost_fn=costs, out=tmp_path, **TINY, **LIMITS)
    assert "note      later commands need --env module:Class and --cost module:function" in capsys.readouterr().out
    ccpo.train(TASK, out=tmp_path, **TINY)
    assert "note" not in capsys.readouterr().out


@pytest.mark.parametrize("settings", [{"nstep": 99}, {"cost_limit": 25.0}, {"lanes_per_threshold": 0}])
def test_a_wrong_setting_is_refused_before_anything_is_shown(settings, tmp_path, capsys):
    with pytest.raises(ConfigError):
        ccpo.train(TASK, out=tmp_path, **{**TINY, **settings})
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_cost_limit_is_answered_with_the_threshold():
    with pytest.raises(ConfigError, match=r"what others call the cost limit is the threshold here.*threshold=…"):
        ccpo.train(TASK, cost_limit=25.0)
    with pytest.raises(ConfigError, match="what others call the cost limit is the threshold here"):
        ccpo.load("BallCircle").predict(np.zeros(8), cost_limit=25.0)
