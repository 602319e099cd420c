"""What LaTeX asks of a file, as far as it can be seen without LaTeX."""

import re


def check_latex(text: str) -> list[str]:
    """The tables, after a look at letters (ASCII), braces and dollars (in pairs) and the cells of each row."""
    assert text.isascii()
    assert text.count("{") == text.count("}")
    assert text.count("$") % 2 == 0
    tables = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    for columns, body in tables:
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {row.count(" & ") + 1 for row in rows} == {len(columns)}
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == len(tables)
    return [body for _, body in tables]
