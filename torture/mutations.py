"""Damaged and hostile files: structure-aware mutations, and what may come of reading them.

Each kind of file has a seed (a good one) and a reader. A mutation is refused with an error of ours, or is harmless: it
loads and works. Anything else, a foreign exception, NaN out of a policy, or a reader that takes too long, is a failure.
"""

import csv
import io
import json
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccpo.errors import CCPOError
from ccpo.policy_file import is_number

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, -1e308, 10**400, 2**63, "", "x" * 5000, "../../etc/passwd", "\x00", [], {}),
    *([[[]]], {"a": 1}, 1e-320, "nan", [1e308] * 3),
)
SECONDS = 2.0
"""Of processor time that reading one mutation may take."""


class Kind(NamedTuple):
    """One kind of file: its good content, how JSON lies in it, and what reads and uses it."""

    content: bytes
    read: Callable[[Path], None]
    document: Callable[[bytes], tuple[Any, Callable[[Any], bytes]]] | None = None
    """The JSON in it, and how to put another one in its place, with checksums that fit."""


@dataclass
class Outcome:
    refused: int = 0
    harmless: int = 0
    failures: tuple[str, ...] = ()


def mutate_bytes(rng: np.random.Generator, content: bytes) -> bytes:
    """Flipped bits, a part cut off, doubled, replaced by noise, or swapped."""
    data, place = bytearray(content), int(rng.integers(max(len(content), 1)))
    length = int(rng.integers(1, 40))
    match rng.integers(6):
        case 0:
            for where in rng.integers(len(data), size=rng.integers(1, 9)):
                data[where] ^= 1 << int(rng.integers(8))
        case 1:
            del data[place:]
        case 2:
            del data[place : place + length]
        case 3:
            data[place:place] = data[place : place + length] * int(rng.integers(1, 50))
        case 4:
            data[place : place + length] = rng.bytes(length)
        case 5:
            data[place : place + 8] = int(rng.integers(2**62)).to_bytes(8, "little")
    return bytes(data)


def mutate_document(rng: np.random.Generator, document: Any) -> Any:
    """The document with one to three values replaced, taken away, doubled, renamed or nested."""
    copy = json.loads(json.dumps(document))
    for _ in range(int(rng.integers(1, 4))):
        node, key = copy, None
        while isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = keys[int(rng.integers(len(keys)))]
            if not isinstance(node[key], dict | list) or not node[key] or rng.random() < 0.25:
                break
            node = node[key]
        if key is None or not isinstance(node, dict | list):
            return _odd(rng)
        match rng.integers(5):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[f"{key}_"] = node.pop(key)
            case 2 if isinstance(node, list):
                node.append(node[key])
            case 3 if is_number(node[key]):
                node[key] = node[key] * float(rng.choice([-1, 0, 1e3, 1e9, 1e300]))
            case _:
                node[key] = _odd(rng)
    return copy


def _odd(rng: np.random.Generator) -> Any:
    return deepcopy(ODD[int(rng.integers(len(ODD)))])


def attack(kind: Kind, *, count: int, seed: int) -> Outcome:
    """Read so many mutations of a file, each in a folder of its own."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    document, rebuild = kind.document(kind.content) if kind.document else (None, None)
    with tempfile.TemporaryDirectory() as folder:
        for index in range(count):
            if rebuild is not None and rng.random() < 0.6:
                content = rebuild(mutate_document(rng, document))
            else:
                content = mutate_bytes(rng, kind.content)
            path = Path(folder, f"{index}")
            path.write_bytes(content)
            began = time.process_time()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    kind.read(path)
                outcome.harmless += 1
            except CCPOError:
                outcome.refused += 1
            except Exception as error:
                outcome.failures += (f"mutation {index} of seed {seed}: {type(error).__name__}: {error}"[:300],)
            if time.process_time() - began > SECONDS:
                outcome.failures += (f"mutation {index} of seed {seed}: took more than {SECONDS:g} s",)
            path.unlink(missing_ok=True)
    return outcome


def kinds(folder: Path) -> dict[str, Kind]:
    """Every kind of file that a stranger may hand us, made anew in a folder."""
    return {
        "policy file": _policy(folder),
        "checkpoint": _checkpoint(folder),
        "config.json": _config(folder),
        "progress.jsonl": _progress(folder),
        "monitor": _monitor(folder),
        "settings (TOML)": _settings(),
        "eval.csv": _evaluation(),
        "message to the page": _message(),
    }


def _policy(folder: Path) -> Kind:
    import safetensors.numpy

    from ccpo import policy_file
    from ccpo.agent import load
    from ccpo.runtime import Policy

    shipped = load("BallCircle").policy
    path = folder / "seed.safetensors"
    shipped.save(path)

    def read(path: Path) -> None:
        policy = Policy.load(path)
        action = policy.act(np.zeros(policy.env.observation_size, np.float32), policy.threshold_range[1])
        if not np.isfinite(action).all():
            raise ArithmeticError(f"it acts {action}")

    def document(content: bytes) -> tuple[Any, Callable[[Any], bytes]]:
        arrays, manifest = policy_file.read(path)

        def rebuild(changed: Any) -> bytes:
            if isinstance(changed, dict):
                try:
                    changed = {**changed, "checksum": policy_file.checksum(arrays, changed)}
                except CCPOError:
                    return content
            text = json.dumps(changed)
            return safetensors.numpy.save(arrays, {"manifest": text})

        return manifest, rebuild

    return Kind(path.read_bytes(), read, document)


def _checkpoint(folder: Path) -> Kind:
    """checkpoint.json; what is in the arrays' files is guarded by its digests."""
    from safetensors.numpy import save

    from ccpo.runs import Run

    run = Run.create(folder, algorithm="a", task="t", seed=0, config={}, folder=folder / "run")
    groups = {"state": {"weight": np.ones(5, np.float32)}, "acting": {"bias": np.zeros(2, np.float32)}}
    info = {"task": "t", "iteration": 3, "cumulative_cost": 1.5, "seconds": 2.0}
    run.save_checkpoint(120, groups, info, keep=1)
    file = run.checkpoint_path(120) / "checkpoint.json"
    largest = {name: len(save(arrays)) for name, arrays in groups.items()}

    def read(path: Path) -> None:
        file.write_bytes(path.read_bytes())
        arrays, _ = run.load_checkpoint(largest=largest)
        if not np.array_equal(arrays["state"]["weight"], groups["state"]["weight"]):
            raise ArithmeticError("other weights were loaded")

    return Kind(file.read_bytes(), read, _sealed)


def _config(folder: Path) -> Kind:
    from ccpo import config
    from ccpo.algorithms import ccpo
    from ccpo.runs import Run
    from ccpo.schedule import LoopConfig

    settings = config.as_dict(LoopConfig(behaviour_thresholds=(4.0, 8.0), threshold_range=(2.0, 14.0)), ccpo.Config())
    identity = {"task": "StaticBudget", "algorithm": "ccpo", "preset": "tuned", "episode_length": 100}
    run = Run.create(folder, algorithm="a", task="t", seed=0, config=identity | settings, folder=folder / "config")

    def read(path: Path) -> None:
        run.config_path.write_bytes(path.read_bytes())
        given = run.config(texts=("task", "algorithm", "preset"))
        for name in identity:
            given.pop(name, None)
        config.build((LoopConfig, ccpo.Config), given)

    return Kind(run.config_path.read_bytes(), read, _sealed)


def _sealed(content: bytes) -> tuple[Any, Callable[[Any], bytes]]:
    """A JSON object with its digest, which a stranger can compute as well as we."""
    from ccpo.sealed import DIGEST, write_sealed

    document = {name: value for name, value in json.loads(content).items() if name != DIGEST}

    def rebuild(changed: Any) -> bytes:
        if not isinstance(changed, dict):
            return json.dumps(changed).encode()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "sealed.json")
            write_sealed(path, changed)
            return path.read_bytes()

    return document, rebuild


def _plain(content: bytes) -> tuple[Any, Callable[[Any], bytes]]:
    return json.loads(content), lambda changed: json.dumps(changed).encode()


def _progress(folder: Path) -> Kind:
    from ccpo.progress import ProgressLog

    log = ProgressLog(folder / "progress.csv", folder / "progress.jsonl", upto_step=0)
    for step in range(5):
        log.write({"steps": step, "loss": 1.0 / (step + 1), "mean": float("nan")})

    def read(path: Path) -> None:
        ProgressLog(path.with_suffix(".csv"), path, upto_step=3).write({"steps": 4, "loss": 0.1, "mean": 1.0})

    return Kind((folder / "progress.jsonl").read_bytes(), read)


def _monitor(folder: Path) -> Kind:
    from ccpo.monitor import Monitor

    monitor, path = Monitor(confidence=0.95, cost_max=100.0, baseline=5), folder / "monitor.json"
    for cost in range(10):
        monitor.add(10.0, float(cost))
    monitor.save(path)

    def read(path: Path) -> None:
        loaded = Monitor.load(path)
        loaded.add(10.0, 5.0)
        loaded.report()

    return Kind(path.read_bytes(), read, _plain)


def _settings() -> Kind:
    from ccpo import config
    from ccpo.algorithms import ccpo
    from ccpo.schedule import LoopConfig

    text = "steps = 1000\nseed = 3\nbehaviour_thresholds = [4.0, 8.0]\nthreshold_range = [2.0, 14.0]\nhidden = [8, 8]\n"

    def read(path: Path) -> None:
        config.build((LoopConfig, ccpo.Config), config.load_file(str(path)))

    def document(content: bytes) -> tuple[Any, Callable[[Any], bytes]]:
        def rebuild(changed: Any) -> bytes:
            pairs = changed.items() if isinstance(changed, dict) else ()
            return "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in pairs).encode()

        return tomllib.loads(content.decode()), rebuild

    return Kind(text.encode(), read, document)


def _evaluation() -> Kind:
    from ccpo.metrics import COLUMNS, EpisodeTable, per_threshold, summarise

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for episode in range(6):
        row = {"task": "T", "algorithm": "ccpo", "seed": 0, "threshold": 10.0 * (1 + episode % 2), "episode": episode}
        row |= {"reward": 1.5, "cost": 9.0, "length": 100}
        writer.writerow([row[name] for name in COLUMNS])

    def read(path: Path) -> None:
        table = EpisodeTable.read_csv(path)
        per_threshold(table, (10.0,))
        summarise(table, (10.0,))

    return Kind(text.getvalue().encode(), read)


def _message() -> Kind:
    from ccpo.deploy.session import Session, parse_command
    from ccpo.deploy.watching import optimal_actor

    session = Session([optimal_actor("StaticBudget")])
    good = {"type": "open", "actors": [0], "thresholds": [25.0], "seed": 1}

    def read(path: Path) -> None:
        session.handle(parse_command(path.read_text(encoding="utf-8", errors="surrogateescape")))
        session.advance()

    return Kind(json.dumps(good).encode(), read, _plain)
