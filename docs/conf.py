"""Settings of the documentation; ``make docs`` builds it."""

from pymc_dp import __version__

project = "pymc-dp"
author = "The pymc-dp developers"
copyright = "The pymc-dp developers"
release = version = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

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
}
