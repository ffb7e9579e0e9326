"""Coverage of 90 % intervals; the table of 100 replications is in docs/evidence."""

from pathlib import Path

import numpy as np
import pytest


@pytest.mark.nightly
@pytest.mark.parametrize("experiment", ["regression", "log-linear"])
def test_intervals_cover(experiment, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from gibbs_coverage import DRAWS, replicate

    cases = [case for case in DRAWS if case[0] == experiment]
    for hits, _, _ in replicate(cases, replications=100).values():
        shares = np.mean(hits, axis=1)
        error = shares.std() / np.sqrt(len(shares))
        assert abs(shares.mean() - 0.9) < 3.5 * error
