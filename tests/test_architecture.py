"""Imports run one way, and the package's face is what it says."""

import ast
import html
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pymc_dp
from pymc_dp import federated

PACKAGE = Path(pymc_dp.__file__).parent
ROOT = Path(__file__).resolve().parent.parent

# Each part may import the ones before it in its row, besides itself.
MAY_IMPORT = {
    "exceptions": set(),
    "_version": set(),
    "compat": set(),
    "linalg": set(),
    "progress": set(),
    "interrupts": set(),
    "unconstrained": set(),
    "diagnostics": set(),
    "checks": {"exceptions"},
    "privacy": {"exceptions", "checks"},
    "likelihood": {"linalg", "exceptions", "checks", "compat", "progress"},
    "exponential_family": {"exceptions", "compat", "likelihood"},
    "statistics": {"exceptions", "checks"},
    "mechanisms": {"exceptions", "checks", "compat", "privacy", "statistics", "unconstrained"},
    "gibbs": {
        "exceptions",
        "_version",
        "compat",
        "privacy",
        "statistics",
        "mechanisms",
        "unconstrained",
    },
    "records": {"exceptions", "_version", "checks", "privacy", "likelihood", "linalg"},
    "surrogate": {
        "diagnostics",
        "exceptions",
        "compat",
        "privacy",
        "likelihood",
        "linalg",
        "records",
        "progress",
        "unconstrained",
    },
    "steps": {
        "diagnostics",
        "exceptions",
        "interrupts",
        "checks",
        "compat",
        "linalg",
        "progress",
        "privacy",
        "likelihood",
        "exponential_family",
        "records",
        "surrogate",
    },
    "federated": {
        "diagnostics",
        "unconstrained",
        "exceptions",
        "checks",
        "linalg",
        "privacy",
        "likelihood",
        "records",
        "surrogate",
        "steps",
    },
    "experimental": {
        "exceptions",
        "checks",
        "linalg",
        "privacy",
        "likelihood",
        "records",
        "steps",
        "federated",
    },
    "results": {"exceptions", "_version", "compat", "privacy", "steps", "gibbs"},
    "report": {"diagnostics", "exceptions", "compat", "privacy", "gibbs", "results"},
    "planning": {"exceptions", "privacy", "steps", "report"},
    "sampling": {
        "diagnostics",
        "exceptions",
        "compat",
        "progress",
        "interrupts",
        "privacy",
        "likelihood",
        "steps",
        "planning",
        "results",
    },
    "prediction": {"exceptions", "checks", "compat", "likelihood", "results"},
    "assessment": {
        "unconstrained",
        "exceptions",
        "checks",
        "compat",
        "linalg",
        "progress",
        "privacy",
        "likelihood",
        "records",
        "surrogate",
        "steps",
        "results",
        "report",
    },
    "combination": {
        "_version",
        "diagnostics",
        "exceptions",
        "checks",
        "compat",
        "linalg",
        "privacy",
        "likelihood",
        "surrogate",
        "steps",
        "results",
    },
    "quadrature": set(),
    "integration": {"exceptions", "checks", "compat", "likelihood", "quadrature"},
    "missing": {"exceptions", "checks", "compat", "likelihood", "quadrature"},
    "evidence": {
        "exceptions",
        "checks",
        "linalg",
        "compat",
        "privacy",
        "likelihood",
        "steps",
        "report",
        "sampling",
        "surrogate",
        "records",
        "progress",
    },
}


def imports_of(file):
    """Names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in inside if name in MODULES]
            yield from modules
            if len(modules) < len(inside):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def module_of(file):
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


MODULES = {module_of(file): file for file in PACKAGE.rglob("*.py")}


def part_of(file):
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_run_one_way():
    for file in PACKAGE.rglob("*.py"):
        part = part_of(file)
        if part in ("__init__", "command_line", "demo"):
            continue
        assert part in MAY_IMPORT, f"{file.name} has no place in the architecture"
        for module in imports_of(file):
            if module.startswith("pymc_dp."):
                other = module.split(".")[1]
                assert other == part or other in MAY_IMPORT[part], f"{file.name} imports {module}"


def test_no_two_files_need_each_other():
    """Neither directly nor through others. Importing a module runs its package's ``__init__`` first."""
    needs = {}
    for module, file in MODULES.items():
        if module == "pymc_dp":
            continue
        needs[module] = {m for m in imports_of(file) if m in MODULES}
        packages = {m.rpartition(".")[0] for m in needs[module]} - {"pymc_dp", ""}
        needs[module] |= {m for m in packages if not module.startswith(m)}
    assert list(TopologicalSorter(needs).static_order())  # or it says which are in a circle


def test_what_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = list(project["dependencies"])
    for extra in ("plots", "shards", "federated", "command-line", "examples"):
        declared += project["optional-dependencies"][extra]
    names = {re.match(r"[\w-]+", one)[0].replace("-", "_") for one in declared}
    known = names | sys.stdlib_module_names | {"pymc_dp"}
    assert {m.split(".")[0] for file in MODULES.values() for m in imports_of(file)} <= known


def test_what_benchmarks_import_is_there():
    """They are not run by the tests."""
    for file in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pymc_dp."):
                module = importlib.import_module(node.module)
                missing = [a.name for a in node.names if not hasattr(module, a.name)]
                assert not missing, f"{file.name}: {node.module} has no {missing}"


def test_make_benchmarks_runs_every_benchmark():
    called = set(re.findall(r"benchmarks/(\w+)\.py", (ROOT / "Makefile").read_text()))
    scripts = {f.stem for f in (ROOT / "benchmarks").glob("*.py") if not f.stem.startswith("_")}
    assert called == scripts


def test_every_benchmark_has_its_question():
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = {file.name for file in (ROOT / "benchmarks").glob("[!_]*.py")}
    assert set(re.findall(r"`(\w+\.py)`", page)) - {"_report.py"} == scripts


def test_privacy_knows_nothing_of_pymc():
    code = (
        "import sys, types; "
        f"p = types.ModuleType('pymc_dp'); p.__path__ = [{str(PACKAGE)!r}]; "
        "sys.modules['pymc_dp'] = p; "
        "import pymc_dp.privacy.noisy_sum, pymc_dp.privacy.calibration, pymc_dp.privacy.guarantee; "
        "assert 'pymc' not in sys.modules and 'pytensor' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_line_differences_live_in_one_module():
    for file in PACKAGE.rglob("*.py"):
        if file.name == "compat.py":
            continue
        assert not any(m.split(".")[0] == "arviz" for m in imports_of(file)), file.name
        assert "setup_chain" not in file.read_text() or file.name == "base.py", file.name


def test_the_picture_of_the_house_is_that_of_the_code():
    """Else: ``python docs/pictures/house.py``."""
    pictures = ROOT / "docs" / "pictures"
    spec = importlib.util.spec_from_file_location("house", pictures / "house.py")
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    drawn = html.unescape((pictures / "house.svg").read_text(encoding="utf-8"))
    assert json.dumps(house.arrows()) in drawn
    assert set(house.floors(house.arrows())) <= set(MAY_IMPORT)


@pytest.mark.parametrize("module", [pymc_dp, pymc_dp.statistics, pymc_dp.experimental, federated])
def test_public_names(module):
    """They are there, documented, and all that is shown: what a module imports stands beside them."""
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        if name != "__version__":
            assert getattr(module, name).__doc__, name


def test_no_public_name_hides_a_module():
    """``import pymc_dp.x`` would put the module in the place of the function."""
    hidden = [name for name in pymc_dp.__all__ if f"pymc_dp.{name}" in MODULES]
    assert [name for name in hidden if not inspect.ismodule(getattr(pymc_dp, name))] == []


def test_files_stay_small():
    sizes = sorted(len(f.read_text().splitlines()) for f in PACKAGE.rglob("*.py"))
    assert sizes[-1] <= 400
    assert sizes[len(sizes) // 2] <= 200
