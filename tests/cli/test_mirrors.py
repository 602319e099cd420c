import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ccpo.cli.mirrors import open_mirrors, tagged
from ccpo.errors import MissingExtraError
from ccpo.types import Progress

ROW = {"steps": 1200, "rollout/ep_rew_mean": 5.0, "rollout/ep_cost_mean": float("nan"), "estep/multiplier": 2.0}


def test_rows_get_the_tags_of_the_field():
    assert tagged(ROW) == {"rollout/ep_rew_mean": 5.0, "train/estep/multiplier": 2.0}


def test_tensorboard_files_stand_in_the_run_folder(tmp_path):
    pytest.importorskip("tensorboardX")
    (mirror,) = open_mirrors(tensorboard=True, wandb=False)
    folders = tmp_path / "seed-000", tmp_path / "seed-001"
    for folder in folders:
        mirror.write(Progress(1200, 2400, [], ROW, folder))
    mirror.close()
    for folder in folders:
        (events,) = (folder / "tb").iterdir()
        assert b"train/estep/multiplier" in events.read_bytes()


def test_wandb_gets_a_run_for_each_folder_and_names_it_after_the_folder(monkeypatch):
    calls = []

    def init(**given):
        name = given["id"]
        calls.append(name)
        return SimpleNamespace(
            log=lambda row, step: calls.append((name, step, row)), finish=lambda: calls.append((name, "finish"))
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    (mirror,) = open_mirrors(tensorboard=False, wandb=True)
    first, second = "ccpo-BallCircle-seed-000", "ccpo-BallCircle-seed-001"
    for name in (first, second, first):
        mirror.write(Progress(1200, 2400, [], ROW, Path("runs/ccpo-BallCircle") / name[-8:]))
    mirror.close()
    logged = [(name, 1200, tagged(ROW)) for name in (first, second, first)]
    assert calls == [first, logged[0], second, *logged[1:], (first, "finish"), (second, "finish")]


def test_a_missing_package_is_named_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="wandb"):
        open_mirrors(tensorboard=False, wandb=True)
