"""What leaves a run, compared between two data sets: with the same releases it has to be the same, byte for byte."""

import difflib
import io
import logging
import re
import sqlite3
import sys
import traceback
import warnings
from contextlib import closing

import cloudpickle
import numpy as np

import pymc_dp as dp
import pymc_dp.mechanisms.marginals  # a tape has what is imported
from pymc_dp.compat import groups_of, root_attrs
from pymc_dp.privacy.kept_sum import KeptSum
from pymc_dp.steps.base import PrivateStep

RELEASES = (
    "noisy_total",
    "poisson_noisy_total",
    "noisy_batch_mean",
    "noisy_counts",
    "l2_noisy_total",
    "pure_noisy_counts",
    "with_noise",
)
"""Functions through which everything that is released goes, wherever they are imported."""


class Tape:
    """Releases of a first run, which later runs get in place of their own. All read their data, as always."""

    def __init__(self, monkeypatch):
        self._tape, self._next = [], None
        for name, module in list(sys.modules.items()):
            for release in RELEASES if name.startswith("pymc_dp.") else ():
                if hasattr(module, release):
                    monkeypatch.setattr(module, release, self._on_tape(getattr(module, release)))
        monkeypatch.setattr(KeptSum, "release", self._on_tape(KeptSum.release))
        # The name of a run is random, and seeds what is drawn from its surrogate.
        for module in ("steps.run", "federated.owner", "mechanisms.curator"):
            monkeypatch.setattr(f"pymc_dp.{module}.secrets.randbits", lambda bits: 7)

    def _on_tape(self, release):
        def released(*args, **keywords):
            fresh = release(*args, **keywords)
            if self._next is None:
                self._tape.append(np.array(fresh))
                return fresh
            again = next(self._next)
            assert np.shape(again) == np.shape(fresh), "another release than at first"
            return float(again) if isinstance(fresh, float) else again

        return released

    @property
    def length(self):
        """Number of releases so far."""
        return len(self._tape)

    def rewind(self):
        """From here on, what was released comes again."""
        self._next = iter(self._tape)

    def ended(self):
        """Whether all of it has come again."""
        return next(self._next, None) is None


def everything_that_leaves(run, capfd):
    """What is returned, printed, logged, warned of and raised, what the ledgers hold, and what a state carries.

    Parameters
    ----------
    run : callable
        Returns whatever it makes: a result, a table, a step, a ledger, or a list of such things.
    """
    capfd.readouterr()
    found, log = {"returned": None, "error": ""}, io.StringIO()
    handler = logging.StreamHandler(log)
    log_of_pymc = logging.getLogger("pymc")
    level = log_of_pymc.level
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log_of_pymc.setLevel(logging.INFO)
        logging.getLogger().addHandler(handler)
        try:
            found["returned"] = contents(run())
        except dp.PrivacyError as error:
            found["error"] = "".join(traceback.format_exception(error))
        finally:
            logging.getLogger().removeHandler(handler)
            log_of_pymc.setLevel(level)
    # PyTensor warns of its compiler once per process; Python of what it has found no use for any more, whoever left it.
    caught = [w for w in caught if "/pytensor/" not in w.filename]
    caught = [w for w in caught if not issubclass(w.category, ResourceWarning)]
    said = [str(w.message) for w in caught if "fork" not in str(w.message)]
    text = [*said, log.getvalue(), *capfd.readouterr()]
    # And prints what it compiles with.
    lines = [line for t in text for line in timeless(t).splitlines()]
    return {**found, "text": [x for x in lines if "BLAS" not in x and not x.startswith("g++ ")]}


def timeless(text):
    """A text without the time of day and running times (out of scope, and said so), and names of the machine's."""
    hide = r"took \d+ seconds?|pid=\d+|[-\d]{10} \d\d:\d\d UTC|account\.ledger|pymc_dp_run\w+|0x[0-9a-f]+"
    return re.sub(hide, "", text)


def contents(thing):
    """Anything that can be returned, as plain containers."""
    if isinstance(thing, list | tuple):
        return [contents(x) for x in thing]
    if isinstance(thing, dict):
        return {str(k): contents(v) for k, v in thing.items()}
    if isinstance(thing, PrivateStep):
        public = re.sub("run_id=[0-9]+", "", repr(thing.guarantee))
        state = cloudpickle.dumps(thing.sampling_state)
        return [
            public,
            thing.guarantee.fingerprint,
            str(dp.plan(thing)),
            repr(thing.compiled),
            state,
        ]
    if isinstance(thing, dp.PrivacyLedger):
        with closing(sqlite3.connect(thing.path)) as db:
            slots = db.execute("SELECT run, slot, used FROM slots").fetchall()
        return [repr(thing.runs()), thing.spent(), thing.remaining(), slots]
    try:
        groups = groups_of(thing)
    except TypeError:
        html = thing._repr_html_() if hasattr(thing, "_repr_html_") else ""
        texts = [timeless(x) for x in (repr(thing), str(thing), html)]
        return thing.tolist() if isinstance(thing, np.ndarray) else texts
    found = {"attrs": {k: v for k, v in root_attrs(thing).items() if k != "created_at"}}
    for name, group in groups.items():
        found[name, "attrs"] = {k: v for k, v in group.attrs.items() if k != "created_at"}
        for key, variable in group.variables.items():
            if key != "privacy_run":
                found[name, key] = (variable.dims, variable.values.tolist(), dict(variable.attrs))
    return found


def assert_same(first, second):
    """Compare what left two runs; NaN is NaN."""
    np.testing.assert_equal(first["error"], second["error"])
    if isinstance(first["returned"], dict) and isinstance(second["returned"], dict):
        assert first["returned"].keys() == second["returned"].keys()
    np.testing.assert_equal(first["returned"], second["returned"], strict=True)
    changed = [x for x in difflib.ndiff(first["text"], second["text"]) if x[0] in "+-"]
    if changed:
        raise AssertionError("\n".join(["What is said differs:", *changed]))
