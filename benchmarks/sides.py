"""Two sides that take turns: each is a process that answers requests, one JSON line for one JSON line.

Ours (`our_side`) runs in this environment, FSRL's (`fsrl_side`) in a virtual environment of its own, which the
first use makes beside this file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

HERE = Path(__file__).parent
FSRL_VENV = HERE / ".venv-fsrl"


def fsrl_python() -> str:
    """The interpreter of FSRL's environment, which is made if it is not there."""
    python, stamp = FSRL_VENV / "bin" / "python", FSRL_VENV / ".installed"
    if not stamp.is_file():
        requirements = str(HERE / "fsrl-requirements.txt")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(FSRL_VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
        stamp.touch()
    return str(python)


class Side:
    """A process to ask; it ends with the `with` block."""

    def __init__(
        self,
        module: str,
        *,
        cores: int = 1,
        python: str = sys.executable,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._name = module
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-m", module],
            cwd=HERE.parent,
            env={**os.environ, **environment, "BENCHMARK_CORES": str(cores)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process has no pipes")
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        line = stdout.readline()
        answer = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise RuntimeError(f"{self._name}: {answer['error']}")
        return answer

    def train(self, *, clock: str = "cpu", **request: Any) -> Callable[[], float]:
        """Begin a training; each call runs one more iteration of it and returns the seconds for each step.

        The first call is to warm up: it imports, compiles and runs the first iteration, and returns nothing of use.
        """
        last: dict[str, float] = {}

        def seconds_each() -> float:
            nonlocal last
            now = self.ask() if last else self.ask(do="train", turns=True, **request)
            steps, seconds = now["steps"] - last.get("steps", 0), now[clock] - last.get(clock, 0.0)
            last = now
            return seconds / steps

        return seconds_each

    def stop(self) -> None:
        """End the training that was begun."""
        self.ask(stop=True)


def ours(*, cores: int = 1, cache: str | None = None) -> Side:
    """Our side on so many cores; `cache` replaces the user's folder of compiled programs, or is "off"."""
    return Side("benchmarks.our_side", cores=cores, environment={} if cache is None else {"CCPO_CACHE": cache})


def fsrl() -> Side:
    return Side("benchmarks.fsrl_side", python=fsrl_python())
