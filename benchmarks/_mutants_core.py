"""Mutants of what is charged and released: sums, sensitivities, noise, accounts, ledger, owners, curator."""

from _mutants import Mutant

MUTANTS: list[Mutant] = []
