import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from ccpo import load
from ccpo.algorithms import ALGORITHMS
from ccpo.cli import main
from ccpo.cli.parsing import parse_thresholds
from ccpo.errors import ConfigError, ThresholdError
from ccpo.metrics import COLUMNS, EpisodeTable
from helpers import TASK, TINY

TINY_FLAGS = [
    flag
    for name, value in TINY.items()
    for flag in ("--set", f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    assert main(["train", "--task", TASK, "--out", str(out), *TINY_FLAGS]) == 0
    (path,) = out.glob("ccpo-*/seed-000-*")
    return path


def fails(capsys, *arguments):
    """The one line that a failing command prints."""
    assert main([str(a) for a in arguments]) == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("ccpo: ")
    assert "\n" not in message
    return message


def test_a_run_folder_holds_what_it_should(run):
    assert {p.name for p in run.iterdir()} >= {
        "config.json",
        "manifest.json",
        "progress.csv",
        "progress.jsonl",
        "policy.safetensors",
        "checkpoints",
    }
    assert max(p.name for p in (run / "checkpoints").iterdir()) == "step_000000720"
    config = json.loads((run / "config.json").read_text())
    assert config["task"] == TASK
    assert config["hidden"] == [8, 8]


def test_evaluate_writes_the_table_and_the_figure(run, capsys):
    assert main(["evaluate", str(run), "--thresholds", "4:8:2", "--episodes", "3"]) == 0
    shown = capsys.readouterr().out
    assert "BalanceBudget" in shown
    assert "eval.png" in shown
    table = EpisodeTable.read_csv(run / "eval.csv")
    assert len(table) == 9
    assert (run / "eval.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    assert (run / "eval.png").stat().st_size > 10_000


def test_evaluations_of_another_kind_have_files_of_their_own(run, tmp_path, capsys):
    flags = ["--thresholds", "4,8", "--episodes", "2", "--workers", "1", "--out", str(tmp_path)]
    other = ["--task", "BalanceBudget-T30"]
    for more in ([], ["--task", TASK], ["--stochastic"], other, [*other, "--stochastic"]):
        assert main(["evaluate", str(run), *flags, *more]) == 0
    names = ("eval", "eval-stochastic", "eval-BalanceBudget-T30", "eval-BalanceBudget-T30-stochastic")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{n}.{kind}" for n in names for kind in ("csv", "png", "svg")
    }
    shown = "".join(capsys.readouterr().out.split())
    assert all(f"{name}.csv" in shown for name in names)
    tables = [EpisodeTable.read_csv(tmp_path / f"{name}.csv") for name in names]
    assert [table.task[0] for table in tables] == [TASK, TASK, "BalanceBudget-T30", "BalanceBudget-T30"]
    assert (tables[0].reward != tables[1].reward).all()


def test_evaluation_does_not_depend_on_the_number_of_processes(run, tmp_path):
    tables = []
    for workers in ("1", "2"):
        out = tmp_path / workers
        arguments = ["evaluate", run, "--thresholds", "4,8", "--episodes", "2", "--workers", workers, "--out", out]
        assert main([str(a) for a in arguments]) == 0
        tables.append((out / "eval.csv").read_text())
    assert tables[0] == tables[1]


def test_a_policy_file_is_evaluated_like_a_run(run, tmp_path):
    arguments = ["evaluate", run / "policy.safetensors", "--thresholds", "4", "--episodes", "2", "--out", tmp_path]
    assert main([str(a) for a in arguments]) == 0
    assert (tmp_path / "eval.csv").exists()


def test_a_threshold_outside_the_range_is_a_warning_with_the_range(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--thresholds", "4,99", "--episodes", "1", "--out", str(tmp_path)]) == 0
    assert "ccpo: outside the trained range 2 to 14: 99; the policy may not keep these\n" in capsys.readouterr().err


def test_list_shows_tasks_algorithms_and_settings(capsys):
    for what, expected in (("tasks", "BallCircle"), ("algorithms", "ccpo"), ("settings", "estep_kl_bound")):
        assert main(["list", what]) == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_of_tasks_fits_and_variants_are_shown_on_request(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = []
    for more in ([], ["--all"]):
        assert main(["list", "tasks", *more]) == 0
        shown.append(capsys.readouterr().out)
        assert max(map(len, shown[-1].splitlines())) <= max(width, 80)
    assert len(shown[0].splitlines()) < 50
    assert "StaticBudget-T20" not in shown[0]
    assert "StaticBudget-T20" in shown[1]


def test_evaluating_at_once_is_not_advised(tmp_path, capsys):
    flags = ["--task", TASK, "--out", str(tmp_path), *TINY_FLAGS]
    assert main(["train", *flags]) == 0
    assert "next      ccpo evaluate" in capsys.readouterr().out
    assert main(["train", "--evaluate", *flags]) == 0
    assert "next" not in capsys.readouterr().out


def test_brackets_are_shown_as_they_are(run, tmp_path, capsys, monkeypatch):
    for what in ("algorithms", "settings"):
        assert main(["list", what]) == 0
        assert "of[s;ε;a]" in "".join(capsys.readouterr().out.split())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out [1]"
    assert main(["evaluate", str(run), "--thresholds", "4", "--episodes", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert f"episodes  {out / 'eval.csv'}" in shown
    assert "ccpo[plot]" in shown


def test_a_run_is_resumed_on_the_environment_it_began_with(run, capsys):
    assert main(["train", "--resume", str(run), "--task", TASK]) == 0
    assert f"is a run on '{TASK}', not on 'StaticBudget'" in fails(
        capsys, "train", "--resume", run, "--task", "StaticBudget"
    )


def test_bad_input_to_train(capsys, tmp_path):
    assert "did you mean 'BallCircle'?" in fails(capsys, "train", "--task", "BalCircle", "--out", tmp_path)
    assert "did you mean 'ccpo'?" in fails(capsys, "train", "--task", TASK, "--algorithm", "ccpoo", "--out", tmp_path)
    assert "did you mean 'discount'?" in fails(
        capsys, "train", "--task", TASK, "--set", "discuont=1", "--out", tmp_path
    )
    assert "must look like" in fails(capsys, "train", "--task", TASK, "--set", "discount", "--out", tmp_path)
    for name in ("episode_length", "display"):
        assert f"'{name}' is no setting" in fails(
            capsys, "train", "--task", TASK, "--set", f"{name}=1", "--out", tmp_path
        )
    assert "'seeds' is no setting" in fails(capsys, "train", "--task", TASK, "--seeds", "0,1", "--set", "seeds=3")
    assert "give one of them" in fails(capsys, "train", "--task", TASK, "--seeds", "0,1", "--set", "seed=3")
    assert "nothing to train; give --env ENV" in fails(capsys, "train")
    assert "is not a run folder" in fails(capsys, "train", "--resume", tmp_path)
    for flag in ("--steps", "--episode-length", "--algorithm", "--preset", "--out", "--config", "--seeds"):
        assert "--resume takes no settings" in fails(capsys, "train", "--resume", tmp_path, flag, "3")
    assert "--resume takes no settings" in fails(capsys, "train", "--resume", tmp_path, "--early-end", "success")
    assert list(tmp_path.iterdir()) == []


SINGLE = ("cvpo", "ppo_lag", "trpo_lag")
SMALL_FLAGS = ("--set", "hidden=8,8", "--set", "batch=16")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_number_of_steps_trains(algorithm, tmp_path):
    thresholds = ["--behaviour-thresholds", "8"] if algorithm in SINGLE else []
    flags = ["--algorithm", algorithm, "--steps", "1", "--out", str(tmp_path), *thresholds, *SMALL_FLAGS]
    assert main(["train", "--task", TASK, *flags]) == 0
    assert list(tmp_path.glob("*/seed-*/policy.safetensors"))


@pytest.mark.parametrize("preset", ["tuned", "open", "faithful", "demo", "without-vve", "without-cvi"])
@pytest.mark.parametrize("steps", [1, 121, 260])
def test_any_number_of_steps_trains_ccpo_in_every_preset(preset, steps, tmp_path):
    """An iteration has 120 steps."""
    flags = ["--preset", preset, "--steps", str(steps), "--out", str(tmp_path), *SMALL_FLAGS]
    flags += ["--set", "states=8", "--set", "updates_per_step=0.02"]
    assert main(["train", "--task", TASK, *flags]) == 0
    (path,) = tmp_path.glob("*/seed-*")
    (*_, row) = (json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines())
    assert row["steps"] == -(-steps // 120) * 120


def test_what_an_early_end_means_is_kept_for_a_resume_and_in_the_policy(tmp_path, capsys):
    assert main(["train", "--task", TASK, "--out", str(tmp_path), "--early-end", "success", *TINY_FLAGS]) == 0
    (path,) = tmp_path.glob("ccpo-*/seed-000-*")
    assert json.loads((path / "config.json").read_text())["early_end"] == "success"
    assert load(path).policy.env.early_end == "success"
    with pytest.raises(SystemExit):
        main(["train", "--task", TASK, "--early-end", "disaster"])
    assert "invalid choice: 'disaster'" in capsys.readouterr().err


def test_a_closed_loop_for_a_method_that_has_none_says_what_to_do(capsys, tmp_path):
    flags = ["--algorithm", "sac_lag", "--set", "loop=closed", "--out", tmp_path]
    assert "set loop=open, or train ccpo" in fails(capsys, "train", "--task", TASK, *flags)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "choose another --out" in fails(capsys, "train", "--task", TASK, "--out", tmp_path / "file")


def test_an_environment_without_cost_is_refused(capsys, tmp_path):
    message = fails(
        capsys,
        "train",
        "--task",
        "Pendulum-v1",
        "--out",
        tmp_path,
        "--behaviour-thresholds",
        "20,40",
        "--threshold-range",
        "10,70",
        *TINY_FLAGS,
    )
    assert "cost" in message


def test_bad_input_to_evaluate(capsys, run, tmp_path):
    assert "finite numbers ≥ 0" in fails(capsys, "evaluate", run, "--thresholds=-5", "--episodes", "1")
    assert "finite numbers ≥ 0" in fails(capsys, "evaluate", run, "--thresholds", "nan", "--episodes", "1")
    assert "must look like 10:70:5" in fails(capsys, "evaluate", run, "--thresholds", "a:b")
    assert "at least 1" in fails(capsys, "evaluate", run, "--episodes", "0")
    assert "seed=-1 must be at least 0" in fails(capsys, "evaluate", run, "--seed", "-1")
    assert "not a run folder" in fails(capsys, "evaluate", tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"nonsense")
    assert "cannot load policy" in fails(capsys, "evaluate", tmp_path / "policy.safetensors")
    assert "give the environment it was trained on" in fails(capsys, "evaluate", run, "--task", "StaticBudget")


def test_a_missing_extra_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert "pip install 'ccpo[tb]'" in fails(
        capsys, "train", "--task", TASK, "--tensorboard", "--out", tmp_path, *TINY_FLAGS
    )


def test_debug_shows_the_traceback():
    with pytest.raises(ConfigError):
        main(["train", "--task", "BalCircle", "--debug"])


def test_tensorboard_files_are_written(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the writer's own dependencies
        assert main(["train", "--task", TASK, "--out", str(tmp_path), "--tensorboard", *TINY_FLAGS]) == 0
    assert list(tmp_path.glob("ccpo-*/seed-000-*/tb/events*"))


def test_help_is_quick_and_needs_no_jax():
    code = "import sys, contextlib; from ccpo.cli import main\n"
    code += "with contextlib.suppress(SystemExit): main(['train', '-h'])\nprint('jax' in sys.modules)"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    assert "examples:" in done.stdout
    assert time.monotonic() - began < 5.0


def test_thresholds_include_both_ends():
    assert parse_thresholds("10:70:5") == [float(t) for t in range(10, 71, 5)]
    assert parse_thresholds("0.1:0.3:0.1") == pytest.approx([0.1, 0.2, 0.3])
    for bad in ("", "10:70", "70:10:5", "10:70:0", "x", "0:1:1e-9", "0:inf:1", "inf:inf:1", "10:70:1e-320", "0:70:nan"):
        with pytest.raises((ConfigError, ThresholdError)):
            parse_thresholds(bad)


@pytest.mark.parametrize("text", ["1e308", "10,1e13", "1e300:1e308:1e307"])
def test_a_threshold_that_float32_cannot_square_is_refused(text):
    with pytest.raises(ThresholdError, match=r"one is too large; at most 1e\+12 is allowed"):
        parse_thresholds(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--thresholds", ""], "thresholds '' must look like"),
        (["--thresholds", "1e308"], "is too large"),
        (["--workers", "-3"], "workers=-3 must be at least 0"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(arguments, message, run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--out", str(tmp_path), "--episodes", "1", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_terminated_command_ends_in_one_line_with_its_own_exit_code(monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("ccpo.cli.list.call", lambda options: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["list", "tasks"]) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert capsys.readouterr().err == "\nccpo: stopped\n"


def test_every_example_in_the_help_parses():
    from ccpo.cli import make_parser

    parser = make_parser()
    for name in ("train", "evaluate", "list"):
        examples = (
            Path(sys.modules[f"ccpo.cli.{name}"].__file__).read_text().split('EXAMPLES = """\\\n')[1].split('"""')[0]
        )
        for line in examples.splitlines():
            parser.parse_args(line.split()[1:])


def test_several_seeds_are_trained_in_one_command(tmp_path):
    flags = ["--set", "updates_per_step=0.01", "--seeds", "1,2", *TINY_FLAGS]
    assert main(["train", "--task", TASK, "--out", str(tmp_path), *flags]) == 0
    folders = sorted((tmp_path / f"ccpo-{TASK}").iterdir())
    assert [path.name[:8] for path in folders] == ["seed-001", "seed-002"]
    assert all((path / "policy.safetensors").exists() for path in folders)


@pytest.mark.parametrize(
    ("seeds", "message"), [("1,x", "must be whole numbers"), ("", "must be whole numbers"), ("1,1", "must differ")]
)
def test_bad_seeds_are_named(seeds, message, capsys, tmp_path):
    assert main(["train", "--task", TASK, "--out", str(tmp_path), "--seeds", seeds]) == 2
    assert message in capsys.readouterr().err
