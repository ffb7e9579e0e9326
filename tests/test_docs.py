"""Every example in the README and the documentation runs and prints what its page says.

The ``python`` blocks of a page run in order, in one namespace and an empty folder. A ``text`` block
right after one, with nothing between them, is its output: each line must have been printed, in that
order. A line that ends in ``...`` need only begin like a printed one.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

import pymc_dp as dp
from pymc_dp.steps.statistics import STATS

from .pages import examples, unprinted

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if "_build" not in page.parts
}


def check_printed(shown, printed):
    wanted = unprinted(shown, printed)
    if wanted is not None:
        pytest.fail(f"The page promises this line of output:\n{wanted}\nPrinted:\n{printed}")


def _marked(page):
    """Pages that take half a minute or more: not before every commit, on one line of PyMC, or before a release."""
    if page in ("docs/examples.md", "docs/released.md"):
        return pytest.param(page, marks=pytest.mark.sweep)
    slow = ("average", "combine", "compare", "gibbs", "marginals", "plots")
    if page in [f"docs/{name}.md" for name in slow]:
        return pytest.param(page, marks=pytest.mark.slow)
    return pytest.param(page, marks=pytest.mark.nightly) if "twenty_tasks" in page else page


@pytest.mark.page
@pytest.mark.parametrize("page", [_marked(p) for p, text in PAGES.items() if any(examples(text))])
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace = {"__name__": "example"}
    for line, code, shown in examples(PAGES[page]):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("\n" * line + code, page, "exec"), namespace)
        if shown is not None:
            check_printed(shown, output.getvalue())


def test_output_check_can_fail():
    check_printed("one\nthr...", "one\ntwo\nthree")
    for wrong in ("four", "two\none", "two..three"):
        with pytest.raises(pytest.fail.Exception, match="promises"):
            check_printed(wrong, "one\ntwo\nthree")


def test_examples_are_found():
    text = (
        "```python\na\n```\n\n```text\nb\n```\nwords\n```python\nc\n```\nwords\n```text\nd\n```\n"
    )
    assert [(code, shown) for _, code, shown in examples(text)] == [("a\n", "b\n"), ("c\n", None)]


def test_every_public_name_has_its_place_in_the_reference():
    documented = set(re.findall(r"^   pymc_dp\.([\w.]+)$", PAGES["docs/api.md"], re.MULTILINE))
    names = set(dp.__all__) - {"__version__", "experimental", "statistics"}
    for module in ("experimental", "statistics"):
        names |= {f"{module}.{name}" for name in getattr(dp, module).__all__}
    assert names <= documented
    # Not shown: what takes processes, or a model without derivatives, to be seen.
    shown = {"NoSurrogateError", "ShardError", "experimental.FederatedPenalty"}
    shown |= {"federated.flower.FlowerOwners", "federated.flower.serve"}
    shown |= set(re.findall(r"^## `(.*)`$", PAGES["docs/examples.md"], re.MULTILINE))
    assert documented == shown


def test_every_statistic_is_explained():
    table = PAGES["docs/results.md"]
    assert [name for name in STATS if f"| `{name}` |" not in table] == []


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES["README.md"])
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []
