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
    mirror.write(Progress(1200, 2400, [], ROW, tmp_path))
    mirror.close()
    (events,) = (tmp_path / "tb").iterdir()
    assert b"train/estep/multiplier" in events.read_bytes()


def test_wandb_gets_one_run_named_after_its_folder(monkeypatch):
    calls = []
    run = SimpleNamespace(log=lambda row, step: calls.append((step, row)), finish=lambda: calls.append("finish"))
    module = SimpleNamespace(init=lambda **given: calls.append(given["id"]) or run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    (mirror,) = open_mirrors(tensorboard=False, wandb=True)
    for steps in (1200, 2400):
        mirror.write(Progress(steps, 2400, [], ROW, Path("runs/ccpo-BallCircle/seed-000")))
    mirror.close()
    assert calls == ["ccpo-BallCircle-seed-000", (1200, tagged(ROW)), (2400, tagged(ROW)), "finish"]


def test_a_missing_package_is_named_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="wandb"):
        open_mirrors(tensorboard=False, wandb=True)
