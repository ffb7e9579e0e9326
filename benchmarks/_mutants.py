"""What a mutant is, for ``mutants.py`` and its two tables."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One change of one place in the package, and the tests that must notice it."""

    file: str  # below pymc_dp/
    old: str  # occurs once in the file
    new: str
    breaks: str  # the promise that the change breaks
    tests: str  # arguments of pytest, as in a shell
    equivalent: str = ""  # why nothing that leaves can tell the two apart, where that is so
