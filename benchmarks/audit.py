"""Audits of every step, of bare noisy sums, of releases beside draws, and of broken twins that an audit has to catch.

Run: ``python benchmarks/audit.py``. About an hour.
"""

import time
from contextlib import ExitStack
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pymc as pm
from _quick import normal_draws
from _report import write_report

import pymc_dp as dp
import pymc_dp.assessment.averages as averages
import pymc_dp.assessment.checking as checking
import pymc_dp.assessment.sandwich as sandwich
from pymc_dp.assessment.compare import _compared
from pymc_dp.assessment.predictive import PredictiveRecords
from pymc_dp.evidence.neighbours import replaced
from pymc_dp.federated import Owner
from pymc_dp.privacy.accounting import gaussian_epsilon
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.noise import SecureNoise
from pymc_dp.privacy.noisy_sum import noisy_sum
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.steps.exponential import direction

FAR = 1e3
DRAWS = normal_draws(lambda: np.random.default_rng(0))  # the same public seed in every run
CONFIDENCE = 0.99
COMPILE = {"compile_kwargs": {"mode": "FAST_COMPILE"}}  # few records: interpreting is as fast


def mean_of(y):
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 1)
        pm.Normal("y", mean, 1, observed=pm.Data("Y", y))
    return model


def records(n, spread=0.0):
    """One record that every bound clips, whose replacement is clipped on the other side."""
    y = spread * np.random.default_rng(1).normal(size=n)
    y[0] = FAR
    return y


def first_draw(run):
    return run.draws[0, 0]


PEOPLE = np.repeat(np.arange(500), 2)

# Sensitive settings: few iterations, moves whose acceptance rate shows the noisy ratio.
STEPS = {
    "DPPenalty": (dp.DPPenalty, 60, {"scale": 0.7, "draws": 4}),
    "DPPenalty, guided": (dp.DPPenalty, 60, {"scale": 0.7, "draws": 4, "update": "guided"}),
    "DPPenalty, tuned": (dp.DPPenalty, 60, {"draws": 5, "tune": 5}),
    "DPPenalty, q = 0.5": (dp.DPPenalty, 60, {"sampling_rate": 0.5, "scale": 0.3, "draws": 2}),
    "DPHMC": (dp.DPHMC, 60, {"n_leapfrog": 1, "step_size": 0.02, "gradient_share": 0.8}),
    "DPHMC, L = 2": (dp.DPHMC, 60, {"n_leapfrog": 2, "step_size": 0.05, "draws": 2}),
    "DPBarker, b = 20 of 40": (dp.DPBarker, 40, {"batch_size": 20, "tempering": 0.1, "epsilon": None}),
    "DPBarker": (dp.DPBarker, 200, {"tempering": 0.05, "draws": 4}),
    "DPSGLD": (dp.experimental.DPSGLD, 60, {"sampling_rate": 1.0, "draws": 4}),
    "DPSGLD, q = 0.5": (dp.experimental.DPSGLD, 60, {"sampling_rate": 0.5, "draws": 4}),
    "DPSGLD, q = 0.05": (dp.experimental.DPSGLD, 60, {"sampling_rate": 0.05, "draws": 4}),
    "DPSGNHT": (dp.experimental.DPSGNHT, 60, {"sampling_rate": 1.0, "draws": 4}),
    "DPSGNHT, q = 0.5": (dp.experimental.DPSGNHT, 60, {"sampling_rate": 0.5, "draws": 4}),
    "DPExponentialFamily": (dp.DPExponentialFamily, 60, {"scale": 0.7, "draws": 4, "bounds": (-3, 3)}),
    "DPPenalty, two records each": (dp.DPPenalty, 60, {"scale": 0.7, "draws": 4, "unit": PEOPLE[:60]}),
    "DPSGLD, q = 0.5, two records each": (dp.experimental.DPSGLD, 60, {"sampling_rate": 0.5, "draws": 4, "unit": PEOPLE[:60]}),
    "DPSurrogate, normal, first draw": (dp.DPSurrogate, 1000, {"family": "normal", "epsilon": 8.0, "runs": 800, "statistic": first_draw}),
    "DPSurrogate, polynomial, first draw": (dp.DPSurrogate, 1000, {"family": "polynomial", "epsilon": 8.0, "runs": 200, "statistic": first_draw}),
    "DPSurrogate, normal, 4 draws": (dp.DPSurrogate, 1000, {"family": "normal", "draws": 4, "runs": 500}),
    "DPSurrogate, normal, two records each": (dp.DPSurrogate, 1000, {"family": "normal", "epsilon": 8.0, "runs": 400, "statistic": first_draw, "unit": PEOPLE}),
}  # fmt: skip


def audited_step(name, **changed):
    step, n, settings = STEPS[name]
    keywords = {"epsilon": 2.0, "delta": 0.01, "runs": 3000, **settings, **changed}
    y = records(n, spread=step is dp.DPSurrogate)
    with patch("pymc_dp.steps.normal.draw", DRAWS):
        return dp.audit(
            mean_of, y, canary=-FAR, step=step, confidence=CONFIDENCE, **keywords, **COMPILE
        )


def audited_sum(epsilon, delta, factor=1.0, runs=20_000):
    z = factor * dp.calibrate_noise(epsilon=epsilon, delta=delta, releases=1)
    noise = SecureNoise()

    def one_sum(data, repetition):
        permit = Permit(0, repetition, (Gaussian(z),))
        return noisy_sum(iter([data]), bound=1.0, noise_multiplier=z, permit=permit, noise=noise)

    return dp.audit(one_sum, records(10), canary=-FAR, epsilon=epsilon, delta=delta, runs=runs,
                    gaussian=True, confidence=CONFIDENCE)  # fmt: skip


def audited_owner(epsilon, delta, runs=10_000):
    """One of an owner's answers, at the ε that its share of the whole amounts to."""
    y = records(60)
    pair = {}
    for one in (y, replaced(y, -FAR)):
        pair[one[0]] = Owner(
            epsilon=epsilon * np.sqrt(runs),
            delta=delta,
            ratio_share=1,
            ratios=runs,
            model=mean_of(one),
            **COMPILE,
        )
    (plan,) = {owner.events for owner in pair.values()}
    claim = float(gaussian_epsilon(1 / plan[0].noise_multiplier, delta))
    request = {"theta": np.zeros(1), "proposal": np.full(1, 0.7), "bound": np.asarray(0.7)}
    return dp.audit(
        lambda data, repetition: pair[data[0]].answer("ratio", request)["ratio"], y, canary=-FAR,
        epsilon=claim, delta=delta, gaussian=True, confidence=CONFIDENCE, runs=runs,
    )  # fmt: skip


def audited_marginals(epsilon, delta, runs=10_000):
    """All tables of pairs of three columns; one record is in another cell of each of them."""
    levels = {name: [0, 1] for name in "abc"}

    def tables(data, repetition):
        released = dp.release_marginals(data, levels, epsilon=epsilon, delta=delta)
        return np.concatenate([counts.ravel() for counts in released.counts])

    people = {name: np.arange(10) % (2 + k) // (1 + k) for k, name in enumerate(levels)}
    return dp.audit(tables, replaced(people, dict.fromkeys(levels, 0)), canary=dict.fromkeys(levels, 1), epsilon=epsilon,
                    delta=delta, gaussian=True, confidence=CONFIDENCE, runs=runs)  # fmt: skip


class Paid:
    """A budget for one release beside draws, without a ledger."""

    def __init__(self, z, repetition):
        self._z, self._permit = z, Permit(0, repetition, (Gaussian(z),))
        self.guarantee, self.noise = SimpleNamespace(run_id=repetition), SecureNoise()

    def measure(self, records):
        """All of it, for these records."""
        return PaidMeasurements(
            Curator(records, SecureNoise()), PrivacyFilter(self._permit, self._z)
        )


def audited_comparison(epsilon, delta, runs=3000):
    """Two models of 2,000 people, one of whom each of them calls impossible in one of the data sets."""
    z = dp.calibrate_noise(epsilon=epsilon, delta=delta, releases=1)
    y = 0.1 * np.random.default_rng(1).normal(size=2000)
    y[0] = FAR

    def table(data, repetition):
        people = PredictiveRecords([(SimpleNamespace(n_units=len(data)), None)])
        people.__dict__["densities"] = np.column_stack([data, np.zeros(len(data))])
        found = _compared(("a", "b"), np.zeros(2), people, Paid(z, repetition))
        return np.array(
            [found.difference("a", "b").elpd, found.bound, found.clipped, found.covariance[0, 0]]
        )

    return dp.audit(table, y, canary=-FAR, epsilon=epsilon, delta=delta, gaussian=True,
                    confidence=CONFIDENCE, runs=runs)  # fmt: skip


# -- releases beside draws --------------------------------------------------------------------------


def once(build):
    """The same, called once for every first argument: compiling takes longer than hundreds of releases."""
    kept = {}

    def built(first, *others, **keywords):
        if id(first) not in kept:
            kept[id(first)] = first, build(first, *others, **keywords)
        return kept[id(first)][1]

    return built


def trial(data):
    """People with a slope for each of two treatments, which were drawn by lot."""
    with pm.Model() as model:
        x, t = pm.Data("X", data["X"]), pm.Data("T", data["T"])
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Bernoulli("treated", 0.5, observed=t)
        mean = pm.Deterministic("mean", x * (b[0] * (1 - t) + b[1] * t))
        pm.Normal("y", mean, 1, observed=pm.Data("Y", data["Y"]))
    return dp.compile(model, **COMPILE)


def people(n):
    rng = np.random.default_rng(1)
    x, t = 1 + 0.3 * rng.normal(size=n), np.arange(n) % 2
    return {"X": x, "T": t, "Y": x * (1 + t) + rng.normal(size=n)}


@cache
def public_draws(n):
    """Of other people, with little noise. Some runs are not usable."""
    while True:
        with patch("pymc_dp.steps.normal.draw", DRAWS):
            idata = dp.sample(
                100, model=trial(people(n)), chains=1, epsilon=1e4 / n, delta=0.01, step=dp.DPSurrogate,
                family="normal", cores=1, progressbar=False,
            )  # fmt: skip
        if idata.attrs["privacy_usable"]:
            return idata


BUDGET = {"epsilon": 2.0, "delta": 0.01}


def average_of(outcome):
    effect = dp.Average("mean", do={"T": 1}, minus={"T": 0}, outcome=outcome)
    return lambda idata, model: dp.average(idata, model, effect, **BUDGET).table.iloc[0]


def squares(idata, model):
    found = dp.sandwich(idata, model, **BUDGET)
    return np.r_[found.seen, found.seen_sd, found.bound]


def checks(idata, model):
    """That an outcome is above -3 is true of all others, and of all who are drawn for them."""
    above = {"above": (lambda of: (of["y"] > -3).mean(), (0, 1))}
    found = dp.check_predictions(idata, model, above, replicates=2, **BUDGET)
    return np.r_[found.observed, found.replicated[0]]


# The release, from how many people, what it compiles, and the record in either data set.
BESIDE_DRAWS = {
    "average, g-formula": (average_of(None), 500, averages, ["Quantities", "People", "theta_of"],
        {"X": FAR}, {"X": -FAR}),
    "average, doubly robust": (average_of("y"), 500, averages, ["Quantities", "People", "theta_of"],
        {"T": 1, "Y": FAR}, {"T": 1, "Y": -FAR}),
    # Scores at right angles: squares of opposite ones are the same.
    "sandwich": (squares, 500, sandwich, ["LocalRecords", "as_variables", "theta_of"],
        {"T": 0, "Y": FAR}, {"T": 1, "Y": FAR}),
    "check_predictions": (checks, 60, checking, ["Outcomes"],
        {"T": 1, "X": FAR, "Y": FAR}, {"T": 1, "X": -FAR, "Y": -FAR}),
}  # fmt: skip


def audited_beside_draws(name, runs=3000):
    """A release that is made with public draws, the same in all runs."""
    released, n, module, compiles, one, other = BESIDE_DRAWS[name]
    z = dp.calibrate_noise(**BUDGET, releases=1)
    idata, model_of = public_draws(n), once(trial)
    with ExitStack() as stack:
        for what in compiles:
            stack.enter_context(patch.object(module, what, once(getattr(module, what))))
        payment = stack.enter_context(patch.object(module, "Payment"))

        def mechanism(data, repetition):
            payment.return_value = Paid(z, repetition)
            return released(idata, model_of(data))

        return dp.audit(mechanism, replaced(people(n), one), canary=other, **BUDGET, gaussian=True,
                        confidence=CONFIDENCE, runs=runs)  # fmt: skip


# -- broken twins -----------------------------------------------------------------------------------


honest_noise = SecureNoise.discrete_gaussian


def a_third_of_the_noise(self, scale, size, at=()):
    return honest_noise(self, scale / 3, size, at)


def half_of_the_noise(self, scale, size, at=()):
    return honest_noise(self, scale / 2, size, at)


def noise_for_one_of_three(self, scale, size, at=()):
    return honest_noise(self, scale / np.sqrt(3), size, at)


def the_same_noise_again(self, scale, size, at=()):
    return np.rint(scale * np.random.default_rng(at).standard_normal(size)).astype(np.int64)


def add_unclipped(terms, bound, total):
    total += np.trunc(terms / bound * RESOLUTION).reshape(len(terms), -1).sum(0).astype(np.int64)


honest_last_sum = PaidMeasurements.last_sum


def last_sum_without_noise(self, *asked):
    with patch.object(SecureNoise, "l2", lambda self, scale, size, at=(): np.zeros(size, np.int64)):
        return honest_last_sum(self, *asked)


# One number that shows one noisy ratio.
FIRST_RATIO = {"draws": 1, "runs": 6000, "statistic": lambda run: run.stats["accept_rate"][0]}
NOISE = "pymc_dp.privacy.noise.SecureNoise.discrete_gaussian"
SUM = "pymc_dp.privacy.noisy_sum"
TWINS = [
    ("a third of the noise", "DPPenalty", {"runs": 1500}, NOISE, a_third_of_the_noise),
    ("a third of the noise", "DPHMC", {}, NOISE, a_third_of_the_noise),
    ("a third of the noise", "DPSGLD", {}, NOISE, a_third_of_the_noise),
    ("a third of the noise", "DPSGNHT", {}, NOISE, a_third_of_the_noise),
    ("a third of the noise", "DPPenalty, q = 0.5", {}, NOISE, a_third_of_the_noise),
    ("half of the noise", "DPPenalty", {"epsilon": 1.0, **FIRST_RATIO}, NOISE, half_of_the_noise),
    ("half of the noise", "DPPenalty, two records each", {"epsilon": 1.0, **FIRST_RATIO}, NOISE, half_of_the_noise),
    ("half of the noise", "DPExponentialFamily", {"epsilon": 1.0, **FIRST_RATIO}, NOISE, half_of_the_noise),
    ("the same noise in every run", "DPPenalty", {"runs": 1000}, NOISE, the_same_noise_again),
    ("one record not clipped", "DPPenalty", {"runs": 1000}, "pymc_dp.privacy.clipping.add_clipped", add_unclipped),
    ("one record not clipped", "DPSGLD", {"runs": 1000}, "pymc_dp.privacy.clipping.add_clipped", add_unclipped),
    ("every unit in the secret sample", "DPSGLD, q = 0.05", {"epsilon": 1.0, "delta": 1e-3},
     f"{SUM}.poisson_sample", lambda units, rate, words: np.arange(units)),
    ("a third of the noise", "DPExponentialFamily", {"runs": 1500},
     "pymc_dp.steps.exponential.direction", lambda g, spread, *rest: direction(g, spread / 3, *rest)),
    ("no noise in the surrogate's last sum", "DPSurrogate, normal, first draw", {"epsilon": 2.0, "runs": 300},
     "pymc_dp.records.measurements.PaidMeasurements.last_sum", last_sum_without_noise),
    ("a third of the noise", "average, g-formula", {"runs": 1500}, NOISE, a_third_of_the_noise),
    ("one record not clipped", "average, doubly robust", {"runs": 1000}, "pymc_dp.privacy.clipping.add_clipped", add_unclipped),
    ("a third of the noise", "sandwich", {"runs": 1500}, NOISE, a_third_of_the_noise),
    ("noise for one of its three numbers", "check_predictions", {}, NOISE, noise_for_one_of_three),
]  # fmt: skip


def audited(name, **changed):
    return (audited_step if name in STEPS else audited_beside_draws)(name, **changed)


def row(kind, name, audit):
    g = audit.gaussian_bound
    return [kind, name, audit.epsilon, audit.delta, audit.bound.epsilon,
            g.epsilon if g else "", audit.runs, "VIOLATED" if audit.violated else "not refuted"]  # fmt: skip


ONCE = {
    "a comparison of two models": audited_comparison,
    "tables of pairs of columns": audited_marginals,
}


def main():
    start = time.perf_counter()
    rows = [
        row("honest", "one noisy sum", audited_sum(epsilon, delta))
        for epsilon, delta in [(1.0, 0.05), (2.0, 0.01), (4.0, 0.01), (1.0, 1e-5), (4.0, 1e-5)]
    ]
    rows.append(row("honest", "an owner's answer", audited_owner(1.0, 0.01)))
    for name, once_released in ONCE.items():
        rows.append(row("honest", name, once_released(1.0, 0.01)))
        with patch(NOISE, a_third_of_the_noise):
            rows.append(row("a third of the noise", name, once_released(1.0, 0.01)))
    for name in [*BESIDE_DRAWS, *STEPS]:
        rows.append(row("honest", name, audited(name)))
        print(rows[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
    for part, runs, kind in [
        (1 / 3, 4000, "a third of the noise"),
        (1 / 2, 20_000, "half of the noise"),
    ]:
        rows.append(row(kind, "one noisy sum", audited_sum(1.0, 1e-5, factor=part, runs=runs)))
    for kind, name, changed, target, broken in TWINS:
        with ExitStack() as stack:
            stack.enter_context(patch(target, broken))
            rows.append(row(kind, name, audited(name, **changed)))
        print(rows[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
    report(rows)


def report(rows):
    honest = [r for r in rows if r[0] == "honest"]
    broken = [r for r in rows if r[0] != "honest"]
    refuted = [sum(r[-1] == "VIOLATED" for r in some) for some in (honest, broken)]
    write_report(
        "audit",
        "Audits: what the outputs on two neighbouring data sets show of ε",
        f"Lower confidence bounds on ε from guessing which of two neighbouring data sets an output comes "
        f"from ([how](../audit.md)), each pair of bounds right with probability {CONFIDENCE:g}. The model "
        f"is the mean of normal records; one record, at +1000 or at −1000, is clipped on one side or on "
        f"the other. What is released beside draws is about a made-up trial, with the draws the same in all runs; the record "
        f"differs in what the release clips, which is its covariate, outcome or treatment. "
        f"Normal surrogates draw from the normal approximation of law and prior in place of NUTS. *From the definition* "
        f"uses (ε, δ)-differential privacy alone; *as Gaussian* uses the trade-off curve that a composition of Gaussian releases promises.\n\n"
        f"Of {len(honest)} honest mechanisms **{refuted[0]}** were refuted, of {len(broken)} broken "
        f"twins **{refuted[1]}**. An honest row proves nothing; the distance to the claim is what the "
        f"guess does not see, what the accounting gives away, and the number of runs. A single noisy sum "
        f"has no such slack: there the bounds should come close to the claim. A Barker test's "
        f"accounting is loose, and its output says little about one record.",
        ["twin", "mechanism", "ε claimed", "δ", "ε ≥, from the definition", "ε ≥, as Gaussian",
         "runs on each", "verdict"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
