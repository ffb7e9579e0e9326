"""Docstrings of public names have the sections and the form that numpydoc asks for; `make lint` runs this too."""

import inspect

import pytest

import pymc_dp
from pymc_dp import federated
from pymc_dp.diagnostics import GroupDiagnostics, Note
from pymc_dp.steps.run import RunSettings

validation = pytest.importorskip("numpydoc.validate")

NOT_ASKED = {
    "ES01", "EX01", "SA01", "SA04",  # more words, examples, links: where they help
    "PR01", "PR02",  # test_parameters_are_those_of_the_signature
    "PR03",  # names stand together that are about one thing
    "PR04",  # test_parameters_have_types
    "PR08",  # descriptions may begin with a symbol or a number
    "RT03",  # a type can say it all
    "SS05",  # a summary may be a noun
}  # fmt: skip


def public_objects():
    """Public names and their members, without those that a base class or another page documents."""
    modules = (pymc_dp, pymc_dp.statistics, pymc_dp.experimental, federated)
    found = [GroupDiagnostics, Note, RunSettings]
    found += [getattr(module, name) for module in modules for name in module.__all__]
    for one in found:
        if not inspect.isclass(one) and not inspect.isfunction(one):
            continue
        yield f"{one.__module__}.{one.__qualname__}"
        for name, member in vars(one).items() if inspect.isclass(one) else ():
            elsewhere = any(name in vars(base) for base in one.__mro__[1:])
            elsewhere |= (member.__doc__ or "").startswith("See ")
            if not name.startswith("_") and not elsewhere and inspect.isroutine(member):
                yield f"{one.__module__}.{one.__qualname__}.{name}"


OBJECTS = sorted(set(public_objects()))


def read(name):
    return validation.Validator(validation.get_doc_object(validation.Validator._load_obj(name)))


@pytest.mark.parametrize("name", OBJECTS)
def test_form(name):
    found = [e for e in validation.validate(name)["errors"] if e[0] not in NOT_ASKED]
    if not read(name).signature_parameters:  # the summary is what is returned
        found = [e for e in found if e[0] != "RT01"]
    assert found == []


@pytest.mark.parametrize("name", OBJECTS)
def test_parameters_are_those_of_the_signature(name):
    """``**run`` in the docstring or in the signature stands for names that the other one has."""
    doc = read(name)
    taken, told = list(doc.signature_parameters), list(doc.doc_all_parameters)
    for some, others in ((taken, told), (told, taken)):
        if not any(other.startswith("**") for other in others):
            assert {one for one in some if not one.startswith("*")} - set(others) == set()


@pytest.mark.parametrize("name", OBJECTS)
def test_parameters_have_types(name):
    """Or a word on where they are told."""
    for parameter, (type_, description) in read(name).doc_all_parameters.items():
        told = type_ or parameter.startswith("*")
        assert told or description[0].startswith(("As ", "See ")), parameter


def test_a_bad_docstring_is_found(monkeypatch):
    monkeypatch.setattr(pymc_dp.mmd, "__doc__", "lower case\n\nParameters\n----------\nz\n    It\n")
    for test in (test_form, test_parameters_are_those_of_the_signature, test_parameters_have_types):
        with pytest.raises(AssertionError):
            test("pymc_dp.mmd")
