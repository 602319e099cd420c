"""Where else progress may be written while a run goes on: TensorBoard, Weights & Biases. CSV and JSONL always are."""

from pathlib import Path
from typing import Any

from ccpo.display import Mirror
from ccpo.errors import require
from ccpo.types import Progress


def open_mirrors(*, tensorboard: bool, wandb: bool) -> list[Mirror]:
    """The wanted mirrors; a missing extra is an error before anything is trained."""
    return [mirror() for mirror, wanted in ((TensorBoard, tensorboard), (WeightsAndBiases, wandb)) if wanted]


def tagged(row: dict[str, float]) -> dict[str, float]:
    """A row of progress under the tags that people of the field know; an empty mean is left out."""
    return {
        name if name.startswith(("rollout", "time")) else f"train/{name}": value
        for name, value in row.items()
        if name != "steps" and value == value
    }


class TensorBoard:
    """Event files in RUN/tb."""

    def __init__(self) -> None:
        self._module = require("tensorboardX", "tb")
        self._writers: dict[Path, Any] = {}

    def write(self, progress: Progress) -> None:
        folder = progress.run_path
        if folder not in self._writers:
            self._writers[folder] = self._module.SummaryWriter(str(folder / "tb"))
        for tag, value in tagged(progress.row).items():
            self._writers[folder].add_scalar(tag, value, progress.steps)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class WeightsAndBiases:
    """A run of project `ccpo` under the name of the run folder; the package's own variables (WANDB_MODE …) hold."""

    def __init__(self) -> None:
        self._module = require("wandb", "wandb")
        self._runs: dict[Path, Any] = {}

    def write(self, progress: Progress) -> None:
        folder = progress.run_path
        if folder not in self._runs:
            self._runs[folder] = self._start(folder)
        self._runs[folder].log(tagged(progress.row), step=progress.steps)

    def _start(self, folder: Path) -> Any:
        name = f"{folder.parent.name}/{folder.name}"
        return self._module.init(
            project="ccpo",
            id=name.replace("/", "-"),
            name=name,
            dir=folder,
            resume="allow",
            reinit="create_new",  # seeds that train together are runs side by side
        )

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()
