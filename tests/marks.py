"""Which parameters of a test are tried before every commit, and how what goes through many records is compiled."""

import pytest

COMPILED = {"mode": "CVM"}
"""For tens of thousands of records, twenty times: interpreted, an operation calls Python for each of them on PyMC 5."""


def slow_but(*few):
    """Of a test's parameters: `few` are tried by ``make test``, the others, alike, by ``make test-all`` only."""
    return lambda every: [
        one if one in few else pytest.param(one, marks=pytest.mark.slow) for one in every
    ]
