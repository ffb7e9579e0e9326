"""The default sampler beside what one would use in its place: five regressions, three ε, the same guarantee.

python benchmarks/peers.py
python benchmarks/peers.py --diffprivlib OTHER/bin/python   # one with diffprivlib and scikit-learn < 1.8
python benchmarks/peers.py --models earnings --runs 4
"""

import argparse
import itertools
import logging
import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from _peers import Diffprivlib, Regression, adassp, dp_sgd, dpvi, moments
from _regressions import REAL, SIMULATED, Exact, another_run, model_of
from _report import write_report

import pymc_dp as dp
import pymc_dp.steps.normal
from pymc_dp.exceptions import PrivacyError
from pymc_dp.privacy.accounting import gaussian_mu_within

EPSILONS, N = (0.3, 1, 3), 20_000
TUNING_RUNS = 10
OURS = "pymc-dp"

PUBLIC = {
    "logistic": ([-3] * 4, [3] * 4, (0, 1), 37**0.5),
    # Outcomes have no bound: four of their sds under the prior; and rows with them as long as rows without.
    "linear": ([-3] * 4, [3] * 4, (-6, 6), 37**0.5),
    "mortgages": ([-1.0625, -1], [1.0625, 1], (0, 1), 1.77),
    "RAND, any visit": ([-1] * 9, [1] * 9, (0, 1), 10**0.5),
    # Earnings are top-coded at 25,564 dollars.
    "earnings": ([-1, -2, -1, -1, -1], [1, 1, 1, 1, 1], (0, 2.5565), (9 + 2.5565**2) ** 0.5),
}
"""Ranges of covariates and outcome, and of the length of a row of both: what one may know without looking."""

UNTUNED = (1.0, 0.5, 200, 0.5)
"""Of gradient descent: clipping bound in longest rows, step length (1 swings for ever in log σ), steps, and part left out."""
FACTORS = [(f,) for f in (1.0, 0.9, 0.8, 0.65, 0.5, 0.4, 0.3)]
"""Of public bounds: the first is untuned, the others are guesses that clip."""


def peers_of(name, likelihood, diffprivlib):
    """Each peer's function, and settings, the first of which is untuned."""
    # An ill-conditioned design needs more steps than a hundred, and squared residuals more room.
    steps = 800 if name == "RAND, any visit" else 100
    factors = (0.35, 0.6, 0.8, 1.0) if likelihood == "bernoulli" else (0.8, 1.3, 2.0, 3.0)
    rates = (0.3, 1.0, 2.0, 4.0) if likelihood == "bernoulli" else (0.03, 0.1, 0.3, 1.0)
    descents = [UNTUNED, *itertools.product(factors, rates, (steps,), (0.1, 0.5))]
    peers = {"DP-SGD": (dp_sgd, descents), "DPVI": (dpvi, descents)}
    if likelihood == "normal":
        peers["moments"] = moments, FACTORS
        peers["AdaSSP"] = adassp, list(itertools.product((1.0, 0.7, 0.5, 0.35), repeat=2))
    return peers | ({"diffprivlib": (diffprivlib, FACTORS)} if diffprivlib else {})


def default(step):
    """Mean and sds of a run of the default sampler, and whether it says that it is of use."""
    surrogate = step.release()
    if hasattr(surrogate, "posterior"):
        p = surrogate.posterior
        return p.mean, np.sqrt(np.diag(p.covariance)), step.diagnostics.usable
    draws = step._draws[0]  # a polynomial was chosen
    return draws.mean(axis=0), draws.std(axis=0), step.diagnostics.usable


class Cell:
    """A model at one ε, compiled once.

    Parameters
    ----------
    name : str
    epsilon : float
    seed : int
        Of data, and of the peers' noise. The default sampler's is not seeded.
    """

    def __init__(self, name, epsilon, seed):
        self.name, self.epsilon, self.real = name, epsilon, name in REAL
        self._make, self.likelihood, self._prior_sd = (REAL if self.real else SIMULATED)[name]
        self._seed, self._number, self._exact = [seed, int(10 * epsilon), list(PUBLIC).index(name)], 0, None  # fmt: skip
        _, X, y = self._data(0, 0)
        model = model_of(self.likelihood, self._prior_sd, X, y)
        self._step = dp.DPSurrogate(chains=1, draws=500, epsilon=epsilon, model=model)
        self.mu = gaussian_mu_within(epsilon, 0.1 / len(y))

    def _data(self, purpose, number):
        if self.real:
            return None, *self._make()
        return self._make(np.random.default_rng([*self._seed, purpose, number]), N)

    def problems(self, purpose, runs):
        """A run of the default sampler, the regression, its true parameters, and a seed of noise, for every run.

        To be used before the next are asked for. Real data are the same in every run; their truth is the exact mode.
        """
        for number in range(runs):
            truth, X, y = self._data(purpose, number)
            self._number += 1
            run = another_run(self._step, self._number, X, y)
            if not self.real or self._exact is None:
                start = self._step.compiled.parameters.start if truth is None else truth
                self._exact = Exact(run, start)
            low, high, outcomes, longest = PUBLIC[self.name]
            data = Regression(
                X, y, self.likelihood, self._prior_sd, np.array([1.0, *low]), np.array([1.0, *high]),
                outcomes, longest, self._exact,
            )  # fmt: skip
            truth = self._exact.mode if truth is None else truth
            yield run, data, truth, (*self._seed, purpose, number, 1)

    def best_settings(self, peers):
        """Of each peer, that with the least error on data, or with noise, that are not used again."""
        squares = {(peer, s): [] for peer, (_, settings) in peers.items() for s in settings}
        for _, data, _, seed in self.problems(1, TUNING_RUNS):
            for peer, setting in squares:
                mean, _ = peers[peer][0](data, self.epsilon, self.mu, setting, seed)
                squares[peer, setting].append(np.nanmean(np.square(data.exact.error(mean))))
        return {
            peer: min(settings, key=lambda s, peer=peer: np.mean(squares[peer, s]))
            for peer, (_, settings) in peers.items()
        }

    def measured(self, peers, best, runs):
        """Squared errors, which intervals held the truth, and widths, each run's and parameter's, for every method."""
        methods = {
            (peer, kind): (function, setting)
            for peer, (function, settings) in peers.items()
            for kind, setting in (("untuned", settings[0]), ("tuned", best[peer]))
        }
        found, lost = {m: [] for m in [(OURS, "untuned"), *methods]}, 0
        for run, data, truth, seed in self.problems(2, runs):
            said = {
                m: function(data, self.epsilon, self.mu, setting, seed)
                for m, (function, setting) in methods.items()
            }
            try:
                *law, usable = default(run)
                said[OURS, "untuned"] = law
                lost += not usable
            except (PrivacyError, np.linalg.LinAlgError) as error:  # did not return: counted
                print(f"{self.name}, ε = {self.epsilon}: {type(error).__name__}: {error}")
                said[OURS, "untuned"] = np.full((2, len(truth)), np.inf)
                lost += 1
            for method, (mean, sds) in said.items():
                covered = np.where(np.isnan(sds), np.nan, np.abs(mean - truth) < 1.645 * sds)
                found[method].append([data.exact.error(mean) ** 2, covered, sds / data.exact.sds])
        return {m: np.array(rows) for m, rows in found.items()}, lost


def rows_of(cell, settings, found, lost):
    """A row for each method."""
    rows, ours = [], found[OURS, "untuned"]
    for (peer, kind), each in found.items():
        told = ~np.isnan(each[0, 0])  # parameters that the peer estimates
        mine, its = (a[:, 0, told].mean(axis=1) for a in (ours, each))
        ratio = float(np.sqrt(its.mean() / mine.mean()))
        # Of the ratio's logarithm, as runs vary together.
        spread = float(np.std(its / its.mean() - mine / mine.mean()) / 2 / len(its) ** 0.5)
        with_intervals = not np.isnan(each[0, 1]).all()
        rows.append([
            cell.name, cell.epsilon, peer, kind, settings.get((peer, kind), ""), len(its),
            lost if peer == OURS else "", float(np.sqrt(its.mean())), float(np.sqrt(np.median(its))), ratio, spread * ratio,
            float(each[:, 1, told].mean()) if with_intervals else "",
            float(np.median(each[:, 2, told])) if with_intervals else "",
        ])  # fmt: skip
    return rows


COLUMNS = [
    "model", "ε", "method", "settings are", "settings", "runs", "not usable", "error", "median run's", "over pymc-dp's",
    "standard error", "coverage", "wider",
]  # fmt: skip


def summary(rows):
    """How many cells were lost to whom, and a table of errors, one line a cell."""
    names = list(dict.fromkeys(row[2] for row in rows))
    cells = list(dict.fromkeys((row[0], row[1]) for row in rows))
    lines = [f"| model | ε | {' | '.join(names)} | least |", "|" + " --- |" * (len(names) + 3)]
    for cell in cells:
        here = {(row[2], row[3]): row for row in rows if (row[0], row[1]) == cell}
        errors = [
            " / ".join(f"{here[name, k][7]:.3g}" for k in ("untuned", "tuned") if (name, k) in here)
            for name in names
        ]
        least = min(here, key=lambda m: here[m][9])
        lines.append(f"| {cell[0]} | {cell[1]} | {' | '.join(errors)} | {' '.join(least)} |")
    said = []
    for kind in ("untuned", "tuned"):
        better = [row for row in rows if row[3] == kind and row[9] < 1]
        lost, clearly = (
            len({(row[0], row[1]) for row in better if row[9] + k * row[10] < 1}) for k in (0, 2)
        )
        which = "; ".join(f"{r[2]}, {r[0]}, ε = {r[1]}: {r[9]:.2f} ± {r[10]:.2f}" for r in better)
        said.append(
            f"**Cells lost to {kind} peers: {lost} of {len(cells)}**, {clearly} of them by more than two standard errors"
            f"{f' (errors over those of pymc-dp: {which})' if which else ''}."
        )
    return "\n\n".join([*said, "\n".join(lines)])


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--runs", type=int, default=20)
    arguments.add_argument("--models", nargs="*", default=list(PUBLIC))
    arguments.add_argument("--seed", type=int, default=8800)
    arguments.add_argument("--diffprivlib", metavar="PYTHON")
    asked = arguments.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    # The draws are those of the law, which is at hand.
    pymc_dp.steps.normal.draw = lambda *_: None
    diffprivlib = Diffprivlib(asked.diffprivlib) if asked.diffprivlib else None
    rows = []
    for name, epsilon in itertools.product(asked.models, EPSILONS):
        cell = Cell(name, epsilon, asked.seed)
        peers = peers_of(name, cell.likelihood, diffprivlib)
        best = cell.best_settings(peers)
        settings = {(p, "untuned"): s[0] for p, (_, s) in peers.items()}
        settings |= {(p, "tuned"): s for p, s in best.items()}
        said = {m: ", ".join(f"{x:g}" for x in s) for m, s in settings.items()}
        rows += rows_of(cell, said, *cell.measured(peers, best, asked.runs))
        for row in rows[-2 * len(peers) - 1 :]:
            print(*[f"{x:.3g}" if isinstance(x, float) else x for x in row], flush=True)
    without = "" if diffprivlib else " diffprivlib was not run."
    write_report("peers", TITLE, f"{TEXT}{without}\n\n{summary(rows)}\n\n`{command(asked)}`", COLUMNS, rows)  # fmt: skip


def command(asked):
    """As it was called, but for where the other interpreter is."""
    models = (
        "" if asked.models == list(PUBLIC) else f" --models {' '.join(map(repr, asked.models))}"
    )
    other = " --diffprivlib PYTHON" if asked.diffprivlib else ""
    return f"python benchmarks/peers.py --runs {asked.runs} --seed {asked.seed}{models}{other}"


TITLE = "The default sampler beside its peers"
TEXT = f"""
All have the same (ε, δ), δ = 0.1/n, and substitute-one neighbours; n = {N:,} where data are simulated, with new ones in
every run; real data are the same in every run, and noise is new. pymc-dp is its default, nothing set. *Error*: root mean
square, over parameters and runs, of posterior mean less exact one, in exact posterior sds, runs that call themselves of no use
included; *median run's*. *Over pymc-dp's*: that, over pymc-dp's error in the parameters that the peer estimates (diffprivlib and
AdaSSP do not estimate σ); its standard error knows that runs have the same data. *Coverage* of 90 % intervals: of the true parameters
where these were drawn from the prior, of the exact posterior means on real data, where a calibrated method covers more than 90 %.
*Wider* than the exact intervals. The means and intervals of pymc-dp are of its law's normal approximation, of which draws are made by NUTS.

Peers, re-implemented in `benchmarks/_peers.py` but for diffprivlib, with what is *untuned* and *tuned*:

- *DP-SGD*: clipped full-batch gradients, the path averaged but for its beginning; intervals as wide as the exact ones, which nobody knows. Untuned:
  clipping bound that of the longest row that is possible, step {UNTUNED[1]:g}, {UNTUNED[2]} steps, half of them left out, for all models. Tuned: the best of 33 settings.
- *DPVI*: noise-aware variational inference after Jälkö, Prediger, Honkela and Kaski (2023), simplified: a normal law from the same path. Settings likewise.
- *moments*: noise-aware regression on noisy second moments, after Bernstein and Sheldon (2019). Untuned: public bounds. Tuned: the best part of them.
- *AdaSSP*: adaptive sufficient statistics perturbation (Wang, 2018), which has no intervals. Settings likewise.
- *diffprivlib*: objective perturbation and the functional mechanism, at pure ε, δ = 0, which is more than what it is compared for; no intervals. Settings likewise.
  It fails with the newest scikit-learn and SciPy, so it runs in an environment of its own (`pip install diffprivlib "scikit-learn<1.8" "scipy<1.18"`), and is left out without `--diffprivlib`.

*Tuned* peers were tuned for each cell in {TUNING_RUNS} runs, on other simulated data; on real data on the private data themselves, with other noise. Neither is charged:
these rows bound what a peer can do, and are not what its user gets. d3p, which the variational peer stands for, was not run.
Errors are *untuned / tuned* here, and the last column has the least of them.
"""

if __name__ == "__main__":
    main()
