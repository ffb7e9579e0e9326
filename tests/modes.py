"""How tests compile what interpreting would take longer for."""

COMPILED = {"mode": "CVM"}
"""By the C compiler on both lines of PyMC: numba takes half a minute for one model, and interpreted, on PyMC 5, an operation calls Python for
each of tens of thousands of records."""
