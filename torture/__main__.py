"""A campaign of faults and hostile files against ccpo; the table of docs/reliability.md.

python -m torture                       all faults in turn, for 30 minutes at most
python -m torture --minutes 240         longer, until each was done as often as it should
python -m torture --only "Ctrl-C" --times 2 --mutations 0
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ccpo.runs import manifest
from torture.cases import BrokenPromiseError
from torture.faults import FAULTS, Setting
from torture.mutations import attack, kinds

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- campaign:start -->", "<!-- campaign:end -->"


@dataclass
class Line:
    """One row of the table."""

    fault: str
    tried: int = 0
    lost: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def inflict(setting: Setting, lines: dict[str, Line], folder: Path, *, seed: int, deadline: float) -> None:
    """All faults in turn, each as often as it is planned, until the time is up."""
    for turn in itertools.count():
        left = [name for name in lines if turn < FAULTS[name][1]]
        for name in left:
            if time.monotonic() > deadline:
                return
            line, place = lines[name], folder / f"{list(lines).index(name)}-{turn}"
            place.mkdir()
            try:
                happened = FAULTS[name][0](setting, place, np.random.default_rng([seed, turn, len(name)]))
            except BrokenPromiseError as broken:
                line.lost += 1
                line.failures.append(f"turn {turn}: {broken}")
                happened = "promise broken"
                print(f"{name}: {broken}", file=sys.stderr, flush=True)
            if happened is None:
                happened = "not possible on this machine"
            else:
                line.tried += 1
            line.happened[happened] += 1
            print(f"{name}: {happened}", flush=True)
        if not left:
            return


def mutate(count: int, *, seed: int) -> list[Line]:
    """So many mutations of each kind of file."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in kinds(Path(folder)).items():
            found = attack(kind, count=count, seed=seed)
            happened = Counter({"refused": found.refused, "harmless": found.harmless})
            lines.append(Line(f"mutated {name}", count, len(found.failures), happened, list(found.failures)))
            print(f"mutated {name}: {dict(happened)}", flush=True)
    return lines


def table(lines: list[Line]) -> str:
    rows = ["| Fault | Tried | Lost | What happened |", "|---|---:|---:|---|"]
    for line in lines:
        happened = ", ".join(f"{what} {count:,}" for what, count in line.happened.most_common() if count)
        rows.append(f"| {line.fault} | {line.tried:,} | {line.lost} | {happened} |")
    return "\n".join(rows)


def write(lines: list[Line], *, command: str, out: Path, page: Path) -> None:
    """The table between its marks on the page, and all of it with its origin as JSON."""
    origin = manifest()
    content = {
        "command": command,
        "manifest": origin,
        "lines": [{**vars(line), "happened": dict(line.happened)} for line in lines],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "torture.json").write_text(json.dumps(content, indent=2) + "\n")
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    said = f"`{command}`, commit {str(origin['commit'])[:7]}, {origin['date'][:10]}"
    page.write_text(f"{before}{BEGIN}\n{table(lines)}\n\n{said}\n{END}{after}", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="the faults' time (default: %(default)s)")
    parser.add_argument("--mutations", type=int, default=10_000, help="of each kind of file (default: %(default)s)")
    parser.add_argument("--only", metavar="FAULT", help=f"one of: {'; '.join(FAULTS)}")
    parser.add_argument("--times", type=int, help="how often each fault at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/torture"))
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes (default: docs/reliability.md)")
    options = parser.parse_args(arguments)
    names = [options.only] if options.only else list(FAULTS)
    if not set(names) <= FAULTS.keys():
        parser.error(f"there is no fault '{options.only}'")
    if options.times is not None:
        FAULTS.update({name: (fault, min(options.times, times)) for name, (fault, times) in FAULTS.items()})
    deadline = time.monotonic() + 60.0 * options.minutes
    lines = {name: Line(name) for name in names}
    done = mutate(options.mutations, seed=options.seed) if options.mutations else []
    with tempfile.TemporaryDirectory(prefix="ccpo-torture-") as folder:
        setting = Setting(Path(folder))
        inflict(setting, lines, Path(folder), seed=options.seed, deadline=deadline)
    found = [*lines.values(), *done]
    command = " ".join(["python -m torture", *(arguments if arguments is not None else sys.argv[1:])])
    write(found, command=command, out=options.out, page=options.page)
    print(table(found))
    return int(any(line.lost for line in found))


if __name__ == "__main__":
    sys.exit(main())
