"""Settings of the documentation; ``make docs`` builds it."""

from pathlib import Path

from pymc_dp import __version__

project = "pymc-dp"
author = "The pymc-dp developers"
copyright = "The pymc-dp developers"
release = version = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the stored output is shown; `make notebooks` runs them

# Members of the host's base classes (PyMC's steps, exceptions) are not ours to list.
numpydoc_show_class_members = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"

html_theme = "pydata_sphinx_theme"
html_title = "pymc-dp"
html_theme_options = {
    "show_nav_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_center": [],
}
html_sidebars = {"**": ["globaltoc.html"]}

# Sphinx reads nothing outside of docs/. Links from notebooks/ into docs/ are shorter from the copy.
_DOCS = Path(__file__).resolve().parent
for _notebook in (_DOCS.parent / "notebooks").glob("*.ipynb"):
    _text = _notebook.read_text(encoding="utf-8").replace("](../docs/", "](../")
    (_DOCS / "notebooks" / _notebook.name).write_text(_text, encoding="utf-8")
