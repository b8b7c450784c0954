"""The manual: `make docs` builds it with Sphinx, warnings as errors; tests/docs runs every code block."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
from vkq._version import __version__

project, author, release = "vkq", "the vkq authors", __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",
    "commands",
]
suppress_warnings = ["myst.xref_missing"]  # links of included pages are relative to the repository
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature shows them
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"
html_theme = "furo"
html_title = f"vkq {release}"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["manual.css"]
