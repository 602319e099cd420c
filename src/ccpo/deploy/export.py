"""From a finished run to what is deployed: the policy file with its evaluation, its model card and its figure."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ccpo.agent import Agent
from ccpo.deploy.card import model_card
from ccpo.errors import MissingExtraError
from ccpo.metrics import EpisodeTable, per_threshold, summarise
from ccpo.policy_file import PathLike, write_atomically
from ccpo.report.figures import save_figure, threshold_figure


def export_policy(agent: Agent, path: PathLike) -> list[Path]:
    """Write the policy file, its card `<stem>.md` and, after an evaluation, its figure; the paths that were written."""
    path = Path(path)
    table = evaluation_table(agent)
    if table is not None:
        agent.policy.manifest["evaluation"] = evaluation_of(table, agent.behaviour_thresholds)
    agent.save(path)
    figures = _save_figures(table, agent, path.with_suffix(""))
    card = path.with_suffix(".md")
    figure = next((figure.name for figure in figures if figure.suffix == ".png"), None)
    write_atomically(card, model_card(agent.policy, file_name=path.name, figure=figure))
    return [path, card, *figures]


def evaluation_table(agent: Agent) -> EpisodeTable | None:
    """The episodes of the run's latest evaluation, if there was one; a policy file keeps only what they add up to."""
    if agent.run is None or not agent.run.eval_path.is_file():
        return None
    return EpisodeTable.read_csv(agent.run.eval_path)


def evaluation_of(table: EpisodeTable, behaviour_thresholds: tuple[float, ...]) -> dict[str, Any]:
    """What a manifest keeps of an evaluation: the summary on each grid, and a row per threshold; plain JSON."""
    return {
        "summary": [summary.as_dict() for summary in summarise(table, behaviour_thresholds)],
        "thresholds": [asdict(row) for row in per_threshold(table, behaviour_thresholds)],
    }


def _save_figures(table: EpisodeTable | None, agent: Agent, stem: Path) -> list[Path]:
    if table is None:
        return []
    try:
        return save_figure(threshold_figure(table, agent.behaviour_thresholds), stem)
    except MissingExtraError:  # the card does without it
        return []
