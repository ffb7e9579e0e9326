"""Settings of the documentation; ``make docs`` builds it."""

import re
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree

from pymc_dp import __version__

project = "pymc-dp"
author = "The pymc-dp developers"
copyright = "The pymc-dp developers"
release = version = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "examples.md"]
templates_path = ["_templates"]
myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the stored output is shown; `make notebooks` runs them

# Members of the host's base classes (PyMC's steps, exceptions) are not ours to list.
numpydoc_show_class_members = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_context = {
    "shown": {
        "CompiledModel": "d, check_unchanged",
        "DPSurrogate": "release",
        "Diagnostics": "summary, metadata",
        "Owner": "answer, statement, events",
        "Surrogate": "center, root, clip, model",
        "LaplaceMechanism": "release",
        "GaussianMechanism": "release",
        "DiscreteLaplaceMechanism": "release",
        "DiscreteGaussianMechanism": "release",
        "Comparison": "difference, table, statement",
        "Difference": "sd, interval",
        "PredictionChecks": "mean, sd, p, statement",
        "PrivacyReport": "to_html, to_json, save",
        "PrivacyLedger": "spent, remaining, events, runs",
        "Tradeoff": "rows, statement, mixed",
    }
}
# Where capital letters do not count, `Tradeoff` and `tradeoff` would be one file.
autosummary_filename_map = {"pymc_dp.Tradeoff": "pymc_dp.Tradeoff-class"}

html_theme = "pydata_sphinx_theme"
html_title = "pymc-dp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_nav_level": 1,
}
html_sidebars = {"index": []}

# Formulas are set without a network: MathJax is copied into the site.
mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {"chtml": {"displayOverflow": "linebreak"}}

_DOCS = Path(__file__).resolve().parent

# Sphinx reads nothing outside of docs/. Links from notebooks/ into docs/ are shorter from the copy.
for _notebook in (_DOCS.parent / "notebooks").glob("*.ipynb"):
    _text = _notebook.read_text(encoding="utf-8").replace("](../docs/", "](../")
    (_DOCS / "notebooks" / _notebook.name).write_text(_text, encoding="utf-8")

# The sections of examples.md, which the tests run, are the examples of the Reference.
_SECTION = re.compile(r"^## `(.*?)`\n+```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EXAMPLES = dict(_SECTION.findall((_DOCS / "examples.md").read_text(encoding="utf-8")))


def _add_example(app, what, name, obj, options, lines):
    code = _EXAMPLES.get(name.removeprefix("pymc_dp."))
    if code:
        if "Examples" in lines:
            del lines[lines.index("Examples") :]
        lines += ["", "Examples", "--------", ".. code-block:: python", ""]
        lines += [f"    {line}".rstrip() for line in code.splitlines()]


def _no_dead_links_back(app, pagename, templatename, context, doctree):
    """Where a file has public and other names, viewcode takes all of them for the same kind."""
    if pagename.startswith("_modules/"):
        objects = app.env.get_domain("py").objects
        known = {name for name, entry in objects.items() if not entry.aliased}
        back = re.compile(r'<a class="viewcode-back" href="[^"]*#([^"]+)">.*?</a>')
        context["body"] = back.sub(lambda m: m[0] if m[1] in known else "", context["body"])


def _copy_mathjax(app, exception):
    if not exception and app.builder.format == "html":
        (package,) = find_spec("sphinx-mathjax-offline").submodule_search_locations
        source, target = Path(package, "static/mathjax"), Path(app.outdir, "_static/mathjax")
        for part in ("tex-chtml.js", "output/chtml/fonts", "input/tex/extensions"):
            if (source / part).is_dir():
                copytree(source / part, target / part, dirs_exist_ok=True)
            else:
                target.mkdir(parents=True, exist_ok=True)
                (target / part).write_bytes((source / part).read_bytes())


def setup(app):
    app.connect("autodoc-process-docstring", _add_example, priority=400)
    app.connect("html-page-context", _no_dead_links_back)
    app.connect("build-finished", _copy_mathjax)
