"""Sphinx settings: `make docs`."""

project = "ccpo"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "ccpo: one policy, any safety threshold"
