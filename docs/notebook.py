"""Make docs/tutorial.ipynb from docs/tutorial.md, with the outputs of a real run: python docs/notebook.py

Needs no Jupyter: cells are run one after the other in one namespace, and what they print is kept.
"""

import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("tutorial.md")
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)


def cells_of(page: str) -> list[dict[str, Any]]:
    """Cells without outputs: Python becomes code, a file a cell that writes it, everything else stays text."""
    cells: list[dict[str, Any]] = []
    at = 0
    for block in BLOCK.finditer(page):
        language, file, code = block.groups()
        if language != "python":
            continue
        cells.append({"cell_type": "markdown", "source": page[at : block.start()].strip()})
        code = f"%%writefile {file}\n{code}" if file else code
        cells.append({"cell_type": "code", "source": code.strip(), "outputs": [], "execution_count": None})
        at = block.end()
    cells.append({"cell_type": "markdown", "source": page[at:].strip()})
    return [{"id": f"cell-{index}", "metadata": {}, **cell} for index, cell in enumerate(cells) if cell["source"]]


def run(cells: list[dict[str, Any]]) -> None:
    """Fill in the outputs."""
    names: dict[str, Any] = {}
    code_cells = [cell for cell in cells if cell["cell_type"] == "code"]
    for count, cell in enumerate(code_cells, start=1):
        cell["execution_count"] = count
        first, _, rest = cell["source"].partition("\n")
        if first.startswith("%%writefile "):
            file = first.split()[1]
            Path(file).write_text(rest + "\n", encoding="utf-8")
            cell["outputs"] = [stream(f"Writing {file}\n")]
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell["source"], "tutorial", "exec"), names)
        cell["outputs"] = [stream(printed.getvalue())] if printed.getvalue() else []
        cell["outputs"] += [picture(path) for path in re.findall(r'"([\w-]+\.png)"', cell["source"])]


def stream(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def picture(path: str) -> dict[str, Any]:
    data = base64.b64encode(Path(path).read_bytes()).decode()
    return {"output_type": "display_data", "metadata": {}, "data": {"image/png": data, "text/plain": path}}


def main() -> None:
    cells, home = cells_of(PAGE.read_text(encoding="utf-8")), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            run(cells)
        finally:
            os.chdir(home)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": cells}
    PAGE.with_suffix(".ipynb").write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
