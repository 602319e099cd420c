"""Tables as text and as HTML: what objects show when they are printed, or are the last line of a notebook's cell."""

import io
import shutil
from typing import Any

from rich.console import Console

HTML_COLUMNS = 110
HTML = '<pre style="line-height:1.25;white-space:pre;overflow-x:auto;font-family:monospace">{code}</pre>'


def as_text(*parts: Any) -> str:
    """The parts one below the other, as wide as the terminal, without colours."""
    out = io.StringIO()
    width = shutil.get_terminal_size((100, 24)).columns
    console = Console(file=out, width=width, color_system=None, force_jupyter=False, force_terminal=False)
    console.print(*parts, sep="\n")
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join(lines).strip("\n")


def as_html(*parts: Any) -> str:
    """The same with colours, for a notebook."""
    console = Console(
        file=io.StringIO(),
        width=HTML_COLUMNS,
        record=True,
        force_terminal=True,
        force_jupyter=False,
        color_system="truecolor",
    )
    console.print(*parts, sep="\n")
    return console.export_html(inline_styles=True, code_format=HTML)
