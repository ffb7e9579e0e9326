"""Mutants of what stands around a release: origins, units, refusals, order, statements."""

from _mutants import Mutant

MUTANTS: list[Mutant] = []
