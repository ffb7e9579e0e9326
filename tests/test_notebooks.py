"""The tutorial notebooks are what their sources say, clean, and reachable.

Here nothing is run: ``make notebooks`` runs them.
"""

import json
import re
from pathlib import Path

import jupytext
import pytest

import pymc_dp as dp

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.md"))
MACHINE = re.compile(r"/(?:root|home|tmp|usr|opt|Users|work)/|site-packages|ipykernel_\d")
LIMIT = 1_500_000  # bytes, all notebooks together

each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def stored(source):
    return json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))


def cells(notebook):
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def faults(notebook):
    """What is wrong with a notebook's stored output."""
    found = []
    for position, cell in enumerate(code(notebook), start=1):
        if cell["execution_count"] != position:
            found.append(f"code cell {position} was not run in order")
        for output in cell["outputs"]:
            data = {k: v for k, v in output.get("data", {}).items() if k != "image/png"}
            text = json.dumps([data, output.get("text", "")])
            if output["output_type"] == "error":
                found.append(f"code cell {position} raised {output['ename']}")
            if any("widget" in kind for kind in data) or "\\r" in text:
                found.append(f"code cell {position} shows a progress bar")
            if MACHINE.search(text):
                found.append(f"code cell {position} names a path of the machine")
    return found


def test_they_are_numbered_and_each_has_its_pair():
    assert [path.name[:2] for path in SOURCES] == [
        "01",
        "02",
        "03",
        "04",
        "05",
        "06",
        "07",
        "08",
        "09",
        "10",
        "11",
        "12",
        "13",
        "14",
    ]
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert notebooks == [source.with_suffix(".ipynb") for source in SOURCES]
    assert sum(path.stat().st_size for path in notebooks) < LIMIT


@each_notebook
def test_source_and_notebook_have_the_same_cells(source):
    assert cells(jupytext.read(source)) == cells(stored(source))


@each_notebook
def test_stored_output_is_complete_and_clean(source):
    assert faults(stored(source)) == []


def test_faults_are_found():
    def one(**cell):
        base = {"cell_type": "code", "execution_count": 1, "outputs": []}
        return faults({"cells": [base | cell]})

    def shown(text):
        return one(outputs=[{"output_type": "stream", "name": "stderr", "text": [text]}])

    assert one() == shown("fine") == []
    assert one(execution_count=None)
    assert one(outputs=[{"output_type": "error", "ename": "ValueError"}])
    assert one(outputs=[{"output_type": "display_data", "data": {"application/vnd.widget": {}}}])
    assert shown("10 %\r20 %")
    assert shown("/home/me/lib/python3.13/site-packages/x.py:3: UserWarning")


@each_notebook
def test_only_the_public_interface_and_real_noise(source):
    program = "\n".join("".join(cell["source"]) for cell in code(stored(source)))
    assert set(re.findall(r"\bdp\.(\w+)", program)) <= set(dp.__all__)
    assert re.findall(r"^[ ]*(?:import|from) pymc_dp.*$", program, re.M) == ["import pymc_dp as dp"]
    assert "InsecureSeededNoise" not in program


@each_notebook
def test_story_ends_and_links_lead_somewhere(source):
    text = source.read_text(encoding="utf-8")
    assert text.count("\n## What to remember\n") == 1
    assert "\n## " not in text.split("\n## What to remember\n")[1]
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert [
        link for link in links if "://" not in link and not (source.parent / link).exists()
    ] == []


def test_every_notebook_is_on_the_site():
    index = (ROOT / "docs" / "tutorials.md").read_text(encoding="utf-8")
    listed = re.findall(r"^notebooks/(\w+)$", index, re.MULTILINE)
    assert listed == [source.stem for source in SOURCES]
