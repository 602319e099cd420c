import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import ccpo
from ccpo import runs, sealed, trees
from ccpo.algorithms import ALGORITHMS
from ccpo.envs.workers import episode_seed
from ccpo.errors import CCPOError, ConfigError, FormatError, NumericalError, RunError, RunWarning
from ccpo.runs import Run
from ccpo.runtime import Policy
from ccpo.schedule import LoopConfig, Schedule, make_problem
from ccpo.training import train_together
from ccpo.types import Acting, EnvSpec, Problem
from helpers import TASK, TINY, make_trainer, scaled


def assert_same(first: dict, second: dict) -> None:
    assert set(first) == set(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def final_arrays(run_path: Path) -> dict:
    groups, info = Run.open(run_path).load_checkpoint()
    return {f"{group}/{name}": x for group, arrays in groups.items() for name, x in arrays.items()} | {
        "iteration": np.array(info["iteration"]),
        "cumulative_cost": np.array(info["cumulative_cost"]),
    }


def rows_without_time(run_path: Path) -> list:
    rows = [json.loads(line) for line in (run_path / "progress.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def train(out, **settings):
    return ccpo.train(TASK, out=out, **{**TINY, **settings})


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run."""
    return train(tmp_path_factory.mktemp("reference")).run.path


def test_the_same_seed_gives_the_same_run(reference, tmp_path):
    again = train(tmp_path).run.path
    assert_same(final_arrays(reference), final_arrays(again))
    assert str(rows_without_time(reference)) == str(rows_without_time(again))


def test_another_seed_gives_another_run(reference, tmp_path):
    other = final_arrays(train(tmp_path, seed=1).run.path)
    assert not np.array_equal(other["state/actor.0.weight"], final_arrays(reference)["state/actor.0.weight"])
    assert not np.array_equal(other["replay/data.obs"], final_arrays(reference)["replay/data.obs"])


def test_seeds_trained_together_are_those_trained_alone(tmp_path):
    """Five updates on the same data, each seed a slice of one program: equal up to rounding."""
    settings = {"updates_per_step": 1 / 24, "steps": 120, "warmup_steps": 120}
    alone = [make_trainer(tmp_path / "alone", seed=seed, **settings) for seed in (3, 4)]
    together = [make_trainer(tmp_path / "together", seed=seed, **settings) for seed in (3, 4)]
    for trainer in alone:
        trainer.train()
    train_together(together)
    for one, other in zip(alone, together, strict=True):
        assert one.run.progress_path.exists()
        assert one.iteration == other.iteration == 1
        mine, theirs = (trees.to_arrays(trainer.state) for trainer in (one, other))
        for name, array in mine.items():
            np.testing.assert_allclose(theirs[name], array, rtol=2e-3, atol=2e-4, err_msg=name)
    assert (together[0].run.path / "policy.safetensors").exists()


def test_workers_change_nothing(reference, tmp_path):
    np.testing.assert_allclose(
        final_arrays(train(tmp_path, workers=2).run.path)["replay/data.obs"],
        final_arrays(reference)["replay/data.obs"],
        atol=1e-4,
    )


def test_a_killed_run_resumes_to_the_same_end(reference, tmp_path):
    """k steps, kill −9, resume: bit for bit the uninterrupted run, and its workers die with it."""
    script = textwrap.dedent(f"""
        import sys, os, signal
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import ccpo
        from helpers import TASK, TINY

        def die(progress):
            if progress.steps >= 480:
                print(progress.run_path, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        if __name__ == "__main__":
            ccpo.train(TASK, out={str(tmp_path)!r}, display=die, **TINY)
    """)
    file = tmp_path / "killed.py"
    file.write_text(script)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    path = Path(done.stdout.strip())
    assert Run.open(path).steps()[-1] < TINY["steps"]
    resumed = ccpo.resume(path).run.path
    assert_same(final_arrays(reference), final_arrays(resumed))
    assert str(rows_without_time(reference)) == str(rows_without_time(resumed))


def test_a_run_stopped_before_its_first_checkpoint_begins_anew(reference, tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, display=stop)
    (path,) = tmp_path.glob("ccpo-*/seed-000-*")
    assert Run.open(path).steps() == []
    assert len(rows_without_time(path)) == 1
    resumed = ccpo.resume(path).run.path
    assert_same(final_arrays(reference), final_arrays(resumed))
    assert str(rows_without_time(reference)) == str(rows_without_time(resumed))


def test_a_folder_is_a_run_only_when_all_of_it_is_there(tmp_path, monkeypatch):
    """Killed while its folder was being made, a run is not there to be resumed, and nothing is in its way."""
    names = {"algorithm": "ccpo", "task": TASK, "seed": 0, "config": {}, "folder": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(runs, "versions", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Run.create(tmp_path, **names)
    with pytest.raises(RunError, match="is not a run folder"):
        ccpo.resume(tmp_path)
    Run.create(tmp_path, **names)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "manifest.json", "checkpoints"}


def test_a_combination_has_nothing_to_resume(tmp_path):
    config = {"format_version": runs.FORMAT_VERSION, "task": TASK, "algorithm": "c_ppo_lag", "preset": "tuned"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="made by `ccpo combine`"):
        ccpo.resume(tmp_path)


@pytest.mark.parametrize(
    ("env", "thresholds", "message"),
    [(TASK, (4.0, 8.0), "train at one threshold"), ("Pendulum-v1", (4.0,), "no cost at step 1")],
    ids=["at-the-start", "at-the-first-step"],
)
def test_bad_input_leaves_no_folder(env, thresholds, message, tmp_path):
    settings = {"behaviour_thresholds": thresholds, "threshold_range": (2.0, 14.0), "hidden": (8, 8), "batch": 16}
    with pytest.raises(CCPOError, match=message):
        ccpo.train(env, "ppo_lag", out=tmp_path / "new", **settings)
    with pytest.raises(CCPOError, match=message):
        ccpo.train_seeds(env, "ppo_lag", out=tmp_path / "new", seeds=(0, 1), **settings)
    assert list(tmp_path.iterdir()) == []
    notes = tmp_path / "given" / "notes.txt"
    notes.parent.mkdir()
    notes.touch()
    with pytest.raises(CCPOError, match=message):
        ccpo.train(env, "ppo_lag", folder=notes.parent, **settings)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [notes]


def test_one_bad_seed_of_several_leaves_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="seed=-1"):
        ccpo.train_seeds(TASK, seeds=(0, -1), out=tmp_path, **TINY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "ccpo"])
def test_a_closed_loop_for_a_method_that_has_none_is_refused(algorithm, tmp_path):
    with pytest.raises(ConfigError, match=f"loop=closed, but {algorithm} sees the threshold only; set loop=open, or"):
        ccpo.train(TASK, algorithm, out=tmp_path, loop="closed", behaviour_thresholds=(8.0,), hidden=(8,))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("length", "given", "expected"), [(50, None, 60_000), (200, None, 120_000), (200, 1, 1), (50, 1000, 1000)]
)
def test_a_run_has_600_episodes_and_60_000_steps_at_least_unless_told(length, given, expected):
    problem = Problem(EnvSpec("x", 2, (-1.0,), (1.0,), length), (2.0,), (1.0, 3.0), 1, 0)
    schedule = Schedule(LoopConfig(steps=given), problem)
    assert schedule.iterations == math.ceil(expected / length)


@pytest.mark.parametrize(("steps", "given", "slots"), [(1000, 400, 200), (1000, 10_000, 500), (1000, 1, 10)])
def test_the_replay_holds_what_is_asked_for_and_no_more_than_the_run(steps, given, slots):
    """Two lanes; whole rollouts of 10 steps each."""
    problem = Problem(EnvSpec("x", 2, (-1.0,), (1.0,), 10), (2.0,), (1.0, 3.0), 2, 0)
    assert Schedule(LoopConfig(steps=steps, replay_steps=given), problem).slots == slots


@pytest.mark.parametrize(("steps", "given", "random"), [(1000, 5000, 3), (10_000, 300, 15), (1000, 0, 0), (1, 5000, 1)])
def test_random_actions_are_a_small_share_of_a_short_run(steps, given, random):
    """An iteration has 20 steps; at most 5 % of the run, in whole iterations."""
    problem = Problem(EnvSpec("x", 2, (-1.0,), (1.0,), 10), (2.0,), (1.0, 3.0), 2, 0)
    schedule = Schedule(LoopConfig(steps=steps, warmup_steps=given), problem)
    orders = [schedule.order(i, Acting(None, {}, {})) for i in range(schedule.iterations)]
    assert [order.random for order in orders] == [i < random for i in range(len(orders))]


def test_several_costs_are_refused():
    spec = EnvSpec("x", 2, (-1.0,), (1.0,), 10, costs=("a", "b"))
    with pytest.raises(ConfigError, match="has 2 costs, and training takes one; add them up in a cost_fn"):
        make_problem(spec, LoopConfig(behaviour_thresholds=(2.0,), threshold_range=(1.0, 3.0)))


def test_windows_longer_than_a_rollout_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nstep=3 steps are more than a rollout's 2; give a smaller nstep"):
        make_trainer(tmp_path, rollout_length=2, nstep=3)


def test_an_episode_fits_between_checkpoints(tmp_path):
    schedule = make_trainer(tmp_path, rollout_length=5, checkpoint_every=1).schedule
    assert [i for i in range(12) if schedule.checkpoints_after(i)] == [3, 7, 11]  # 20 steps are four rollouts


def test_rollouts_that_cut_every_episode_of_the_one_environment_are_refused(tmp_path):
    settings = TINY | {"rollout_length": 10, "behaviour_thresholds": (4, 8, 12), "threshold_range": (2, 14)}
    with pytest.raises(ConfigError, match=r"rollout_length=10 cuts episodes of 20 steps.*give a factory"):
        ccpo.train(ccpo.make(TASK), out=tmp_path, **settings)


def test_a_script_evaluates_and_is_told_what_worker_processes_need(tmp_path):
    train(tmp_path, steps=240).save(tmp_path / "policy.safetensors")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import ccpo

        agent = ccpo.load({str(tmp_path / "policy.safetensors")!r})
        print(len(agent.evaluate([4.0, 8.0], episodes=2)))
        try:
            agent.evaluate([4.0, 8.0], episodes=2, workers=2)
        except ccpo.CCPOError as error:
            print(error)
    """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "4"
    assert 'under if __name__ == "__main__":' in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_of_an_evaluation_outlives_its_parent_though_its_environment_hangs(kind, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys, threading, time, multiprocessing
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from ccpo.envs.registry import resolve
        from ccpo.evaluation import evaluate_episodes
        from envs.misbehaving import factory
        from envs.test_workers import small_policy

        def tell():
            while len(multiprocessing.active_children()) < 2:
                time.sleep(0.05)
            time.sleep(1.0)
            print(*[p.pid for p in multiprocessing.active_children()], flush=True)

        if __name__ == "__main__":
            threading.Thread(target=tell, daemon=True).start()
            policy = small_policy()
            made = resolve(factory("hang", 3))
            settings = {{"thresholds": [2.0, 5.0], "episodes": range(2), "workers": 2}}
            evaluate_episodes(made, policy.deploy, policy.net, **settings)
    """)
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(kind)
    assert parent.wait(20) == -kind
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_no_worker_outlives_its_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys, os, signal, multiprocessing
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import ccpo
        from helpers import TASK, TINY

        def die(progress):
            print(*[p.pid for p in multiprocessing.active_children()], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        if __name__ == "__main__":
            ccpo.train(TASK, out={str(tmp_path)!r}, display=die, **{{**TINY, "workers": 2}})
    """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=os.environ, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_training_and_evaluation_seeds_never_coincide():
    training = {episode_seed(s, lane, i, r) for s in range(3) for lane in range(6) for i in range(50) for r in range(3)}
    evaluation = {episode_seed(s, t, e, evaluation=True) for s in range(3) for t in range(10, 70) for e in range(50)}
    assert not training & evaluation


def test_a_run_in_use_is_refused(reference):
    run = Run.open(reference)
    with run.lock(), pytest.raises(RunError, match="in use by another process"):
        ccpo.resume(reference)


def test_resuming_a_finished_run_changes_nothing(reference):
    before, policy = final_arrays(reference), Run.open(reference).policy_path.read_bytes()
    ccpo.resume(reference)
    assert_same(before, final_arrays(reference))
    assert Run.open(reference).policy_path.read_bytes() == policy


def test_what_was_added_to_a_finished_policy_survives_a_resume_and_an_evaluation_of_older_weights_does_not(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    told = [trainer.run.path / name for name in ("eval.csv", "eval.png", "eval-stochastic.csv", "calibration.csv")]
    for path in told:
        path.write_text("of the weights as they are")
    policy = Policy.load(trainer.run.policy_path)
    policy.manifest["evaluation"] = {"summary": [], "thresholds": []}
    policy.save(trainer.run.policy_path)
    trainer.restore()
    assert Policy.load(trainer.run.policy_path).manifest["evaluation"] is not None
    assert all(path.exists() for path in told)
    trainer.run.policy_path.write_bytes(b"half of it")
    trainer.restore()
    assert Policy.load(trainer.run.policy_path).manifest["training"]["finished"]
    assert not any(path.exists() for path in told)


def test_an_infinite_loss_stops_the_run_and_keeps_the_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path)

    def poison(progress):
        if progress.steps == 240:
            trainer.state = trainer.state._replace(reward_unit=trainer.state.reward_unit * np.nan)

    with pytest.raises(NumericalError, match=r"'critic/\w+_loss' became nan in iteration 2 .*step 240 is kept"):
        trainer.train(poison)
    assert trainer.run.steps() == [240]


def spoil(run: Run, damage: str, step: int) -> None:
    """Damage the checkpoint at a step in one way."""
    folder = run.checkpoint_path(step)
    file = folder / "state.safetensors"
    info = sealed.read_json(folder / "checkpoint.json")
    content = {name: value for name, value in info.items() if name != sealed.DIGEST}
    data = bytearray(file.read_bytes())
    match damage:
        case "truncate":
            file.write_bytes(data[: len(data) // 2])
        case "flip":
            data[-5] ^= 1
            file.write_bytes(data)
        case "missing":
            file.unlink()
        case "folder":
            file.unlink()
            file.mkdir()
        case "large":
            file.write_bytes(bytes(data) + bytes(2 << 20))
        case "version":
            sealed.write_sealed(folder / "checkpoint.json", content | {"format_version": 99})
        case "edited":
            (folder / "checkpoint.json").write_text(json.dumps(info | {"iteration": info["iteration"] + 1}))
        case "no files":
            sealed.write_sealed(folder / "checkpoint.json", {"format_version": runs.FORMAT_VERSION})
        case "junk":
            (folder / "checkpoint.json").write_bytes(b"\xff{")
        case "poison":
            poisoned = {
                name: array if array.dtype.kind != "f" else np.full_like(array, np.nan)
                for name, array in load_file(file).items()
            }
            save_file(poisoned, file)
            digests = info["sha256"] | {"state": runs._digest(file)}
            sealed.write_sealed(folder / "checkpoint.json", content | {"sha256": digests})


DAMAGES = {
    "truncate": "missing, truncated or changed",
    "flip": "missing, truncated or changed",
    "missing": "missing, truncated or changed",
    "folder": "missing, truncated or changed",
    "large": "larger than this run's can be",
    "version": "format version 99",
    "edited": "was damaged or edited: its digest does not fit",
    "no files": "does not name the checkpoint's files",
    "junk": "cannot be read",
    "poison": "holds NaN or infinity",
}


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """A run that was stopped after its second checkpoint."""
    trainer = make_trainer(tmp_path_factory.mktemp("two"))

    def stop(progress):
        if progress.steps == 480:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train(stop)
    assert trainer.run.steps() == [240, 480]
    return trainer.run.path


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_is_used(damage, two_checkpoints, reference, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(two_checkpoints, path)
    run = Run(path)
    spoil(run, damage, 480)
    trainer = make_trainer(tmp_path / "other")
    trainer.run = run
    with pytest.warns(RunWarning, match=rf"{DAMAGES[damage]}.*; the checkpoint before it is used, at step 240"):
        trainer.restore()
    assert trainer.steps == 240
    spoil(run, damage, 240)
    with (
        pytest.warns(RunWarning),
        pytest.raises(FormatError, match=rf"{DAMAGES[damage]}.*; no checkpoint is left; delete '.*' to begin anew"),
    ):
        trainer.restore()


def test_a_run_that_went_back_a_checkpoint_ends_as_one_that_did_not(two_checkpoints, reference, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(two_checkpoints, path)
    spoil(Run(path), "flip", 480)
    (path / "progress.jsonl").write_bytes((path / "progress.jsonl").read_bytes() + b"\xff half a li")
    trainer = make_trainer(tmp_path / "other")
    trainer.run = Run(path)
    with pytest.warns(RunWarning, match="the checkpoint before it is used"):
        trainer.restore()
    trainer.train()
    assert_same(final_arrays(reference), final_arrays(path))
    assert str(rows_without_time(reference)) == str(rows_without_time(path))


@pytest.mark.parametrize(
    "counters", [{"iteration": 7}, {"iteration": True}, {"seconds": None}, {"cumulative_cost": -1}]
)
def test_counters_that_do_not_fit_the_checkpoint_are_refused(counters, two_checkpoints, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(two_checkpoints, path)
    file = Run(path).checkpoint_path(480) / "checkpoint.json"
    sealed.write_sealed(file, sealed.read_sealed(file) | counters)
    trainer = make_trainer(tmp_path / "other")
    trainer.run = Run(path)
    with pytest.raises(FormatError, match=r"has counters .* that do not fit its 480 steps"):
        trainer.restore()


def test_what_is_not_finite_is_never_saved(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.save()
    trainer.state = trainer.state._replace(reward_unit=trainer.state.reward_unit * np.nan)
    trainer.iteration += 1
    with pytest.raises(
        NumericalError,
        match=r"'state.reward_unit' holds NaN or infinity after 120 steps and is not saved; the check.* 0",
    ):
        trainer.save()
    assert trainer.run.steps() == [0]


def test_a_run_whose_folder_is_deleted_or_whose_disk_is_full_ends_with_one_error(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "deleted")
    shutil.rmtree(trainer.run.path)
    with pytest.raises(RunError, match=r"was deleted or moved while it was being written; start a new run"):
        trainer.save()
    assert not trainer.run.path.exists()
    trainer = make_trainer(tmp_path / "full")
    trainer.save()

    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(runs, "save_file", full)
    trainer.iteration += 1
    with pytest.raises(RunError, match=r"cannot write .*: .*No space left on device.*; then: ccpo train --resume "):
        trainer.save()
    assert [path.name for path in trainer.run.checkpoints_path.iterdir()] == ["step_000000000"]


def edit(path: Path, **changes) -> None:
    """Settings of a run as if it had begun with others."""
    settings = sealed.read_sealed(path / "config.json")
    sealed.write_sealed(path / "config.json", settings | changes)


def test_an_edited_or_damaged_config_is_refused(reference, tmp_path):
    config = json.loads((reference / "config.json").read_text())
    for text, message in (
        (json.dumps(config | {"batch": 17}), "its digest does not fit"),
        (json.dumps({k: v for k, v in config.items() if k not in ("task", "digest")}), "has no 'task'"),
        (json.dumps(config)[:-9], "cannot be read"),
        ("[]", "holds no JSON object"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(FormatError, match=message):
            ccpo.resume(tmp_path)


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    path = train(tmp_path, steps=240).run.path
    edit(path, task="StaticBudget-T20")
    with pytest.raises(FormatError, match=r"is of task 'BalanceBudget-T20', this run is of 'StaticBudget-T20'"):
        ccpo.resume(path)


def twice_the_cost(obs, action, reward, next_obs, info):
    return 2.0 * info["cost"]


def test_a_cost_function_is_asked_for_again_wherever_the_folder_cannot_tell_it(tmp_path):
    path = train(tmp_path, steps=240, cost_fn=lambda *step: twice_the_cost(*step)).run.path
    with pytest.raises(ConfigError, match=r"trained with a cost_fn.*ccpo.resume\(path, cost_fn=…\)"):
        ccpo.resume(path)
    ccpo.resume(path, cost_fn=twice_the_cost)
    with pytest.raises(ConfigError, match=r"trained with a cost_fn.*give it: --cost module:function"):
        ccpo.load(path).evaluate([10.0], episodes=1)
    assert len(ccpo.load(path).evaluate([10.0], episodes=1, cost_fn=twice_the_cost)) == 1


def test_arrays_that_do_not_fit_are_named():
    tree = {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}
    with pytest.raises(FormatError, match="'b' is missing or unknown"):
        trees.from_arrays(tree, {"a": np.zeros(3, np.float32)}, source="it")
    with pytest.raises(FormatError, match=r"'b' is float32\[5\], expected float32\[2\]"):
        trees.from_arrays(tree, {"a": np.zeros(3, np.float32), "b": np.zeros(5, np.float32)}, source="it")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"behaviour_thresholds": (40, 20)}, "must rise strictly"),
        ({"behaviour_thresholds": (4, 90)}, "must lie in threshold_range"),
        ({"threshold_range": (70, 10)}, "two rising numbers"),
        ({"deployed_lanes": 3}, "exceeds lanes_per_threshold=2"),
    ],
)
def test_loop_settings_are_checked(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, **settings)


def test_an_environment_without_known_thresholds_asks_for_them(tmp_path):
    with pytest.raises(ConfigError, match="give behaviour_thresholds"):
        ccpo.train(ccpo_env(), out=tmp_path, steps=10)


def ccpo_env():
    from ccpo.envs.registry import TASKS

    return TASKS["BalanceBudget"].make()


def test_a_single_environment_serves_all_lanes_in_turn(tmp_path):
    env = ccpo_env()
    settings = TINY | {"steps": 400, "rollout_length": 100, "warmup_steps": 0}
    agent = ccpo.train(env, out=tmp_path, behaviour_thresholds=(0.5, 3.0), threshold_range=(0.25, 4.0), **settings)
    table = agent.evaluate([0.5, 2.0], episodes=2)
    assert len(table) == 4
    assert agent.threshold_range == (0.25, 4.0)


def test_the_acting_policy_is_the_learners(tmp_path):
    """NumPy in the workers and in deployment agrees with the learner's own `act`."""
    trainer = make_trainer(tmp_path)
    trainer.train()
    policy = trainer.policy()
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(64, trainer.problem.spec.observation_size)).astype(np.float32)
    threshold, spent = rng.uniform(2.0, 14.0, 64).astype(np.float32), rng.uniform(0.0, 9.0, 64).astype(np.float32)
    step = rng.integers(0, 20, 64)
    left = (threshold - spent)[:, None]
    expected = trainer.algorithm.act(trainer.config, trainer.problem, trainer.state, obs, left, np.float32(20 - step))
    found = policy.act(obs, threshold, spent=spent, step=step)
    np.testing.assert_allclose(found, scaled(trainer.problem.spec, expected), atol=1e-5)


def test_prng_keys_are_never_used_twice(tmp_path):
    trainer = make_trainer(tmp_path)
    with jax.debug_key_reuse(True):
        trainer.train(lambda progress: None)


@pytest.mark.parametrize(("env", "expected"), [(None, 8), ("BalanceBudget-T15", 15)])
def test_a_loaded_agent_has_the_episodes_it_was_trained_with_and_another_task_its_own(tmp_path, env, expected):
    path = train(tmp_path, episode_length=8, rollout_length=8, steps=48).run.path
    lengths = ccpo.load(path).evaluate([8.0], episodes=20, workers=1, env=env).length
    assert lengths.max() == expected
