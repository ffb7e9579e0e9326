"""Which parameters of a test are tried before every commit."""

import pytest


def slow_but(*few):
    """Of a test's parameters: `few` are tried by ``make test``, the others, alike, by ``make test-all`` only."""
    return lambda every: [
        one if one in few else pytest.param(one, marks=pytest.mark.slow) for one in every
    ]
