"""The first page of a report: what was asked for, what is missing, and where the rest is."""

from collections.abc import Sequence
from pathlib import Path

from ccpo.policy_file import write_atomically
from ccpo.studies.catalogue import SCALES, Study
from ccpo.studies.runner import Place


def write_report(study: Study, scale: str, places: Sequence[Place]) -> list[Path]:
    """The study's report on its finished runs, in a folder of its own, with `README.md` in front of it."""
    folder = places[0].root / study.name
    folder.mkdir(parents=True, exist_ok=True)
    paths = study.report([place.result() for place in places if place.finished], folder)
    missing = [place.plan.name for place in places if not place.finished]
    lines = [f"# {study.name}: {study.title}", ""]
    lines += [f"Scale `{scale}`: {SCALES[scale].description}. {len(places) - len(missing)} of {len(places)} runs.", ""]
    if missing:
        lines += ["**Not complete.** What is missing here is missing in every number:", ""]
        lines += [*(f"- `{name}`" for name in missing), ""]
    lines += [f"- [{path.name}]({path.name})" for path in paths if path.suffix not in (".png", ".svg")]
    lines += [f"\n![{path.stem}]({path.name})" for path in paths if path.suffix == ".png"]
    index = folder / "README.md"
    write_atomically(index, "\n".join(lines) + "\n")
    return [index, *paths]
