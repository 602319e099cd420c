"""Sphinx settings: `pip install '.[docs]' && sphinx-build -W docs docs/_build`."""

project = "ccpo"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "ccpo: one policy, any safety threshold"
