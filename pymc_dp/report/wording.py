"""The guarantee in plain words, its limits, and how somebody else can check it."""

import math
from collections.abc import Mapping

from pymc_dp.diagnostics import meaning_of
from pymc_dp.privacy.events import (
    BarkerBatch,
    Event,
    Gaussian,
    GaussianOrL2,
    L2Mechanism,
    Laplace,
    PoissonGaussian,
    Pure,
)
from pymc_dp.privacy.guarantee import FALSE_ALARMS, at_most, told_apart
from pymc_dp.privacy.neighbours import neighbours_named
from pymc_dp.report.facts import Facts

_SETTINGS = {
    "tempering": "factor of the log-likelihood; 1 is the posterior itself",
    "clip": "bound on what one unit can contribute to a release",
    "typical_noise_sd": "noise in the logarithm of a typical acceptance ratio",
    "expected_acceptance": "share of moves that this noise alone would accept",
    "disjoint": "whether nobody is in two of the results that were combined, as whoever combined them says",
    "effects": "fixed: one truth for all results; random: the mean over groups that differ",
}
"""Settings, for people who have not read the documentation."""


def meaning(name: str) -> str | None:
    """What a setting or a diagnostic is, if that takes words."""
    return _SETTINGS.get(name) or meaning_of(name)


def account(state: Mapping[str, float]) -> str:
    """State of a ledger."""
    runs = int(state["runs"])
    return (
        f"ε = {state['spent']:.4g} spent of {state['budget']:g} at δ = {state['delta']:.3g}, by "
        f"{'this run alone' if runs == 1 else f'{runs} runs together'}; another run can have "
        f"ε = {state['fits']:.4g}"
    )


def recognised(report: Facts) -> float | None:
    """As :func:`~pymc_dp.privacy.guarantee.told_apart`; None without a guarantee."""
    return told_apart(report.epsilon, report.delta, report.releases) if report.valid else None


def in_plain_words(report: Facts) -> list[str]:
    """Paragraphs for a reader who knows what the data are, and no differential privacy."""
    if not report.valid:
        return [_without_guarantee(report)]
    if report.post_processing:
        source = (
            "These draws were computed from statistics that had been released with random noise, and "
            "from nothing else that is confidential. Computing with released numbers tells nothing "
            "that they do not tell already, so the guarantee is that of the release."
        )
    else:
        source = (
            "These draws were computed from confidential data. Random noise was added on the way, and "
            "only numbers with noise in them left the computation."
        )
    if report.units is not None:
        source += f" The data hold {report.units:,} units of privacy; a unit is {report.unit}."
    power = recognised(report)
    assert power is not None  # noqa: S101  (the report is valid)
    if neighbours_named(report.relation).public_size:
        change, guess, found, last = (
            f"were replaced by any other{' of its group' * in_groups(report)}, whoever it is",
            "which of two versions of one unit is in the data",
            "the second version",
            "is replaced",
        )
    else:
        source += " How many units of privacy they hold is not told."
        change, guess, found, last = (
            "were not in the data, or one more were, whoever it is",
            "whether one unit is in the data or not",
            "that it is",
            f"comes or goes (when one is replaced, ε = {at_most(report.epsilon_substitute_one)})",
        )
    return [
        f"{source} What is published would look much the same if {report.unit} {change} and whatever "
        "else is known.",
        "How close is “much the same”? Think of someone who knows all other records, the model and "
        f"the software, and only has to tell {guess}. "
        f"Guessing blindly, with {100 * FALSE_ALARMS:g} % false alarms, they recognise {found} "
        f"in {100 * FALSE_ALARMS:g} % of cases. With everything that is published here, they recognise "
        f"it in at most {math.ceil(100 * power - 1e-9)} %.",
        f"In technical terms, whatever may be concluded from what is published has a "
        f"probability that changes by a factor of at most e^ε, with ε = {report.epsilon:g}, "
        + (
            "without exception (δ = 0)"
            if report.delta == 0
            else f"apart from δ = {report.delta:.3g}"
        )
        + f", when {report.unit} {last}.",
    ]


def _without_guarantee(report: Facts) -> str:
    if report.post_processing:
        return (
            "These draws were computed from statistics that somebody released, and add nothing to "
            "what those reveal. What those reveal is not known here: the model did not say how they "
            "were released. Ask for the guarantee of the release and file it with this report."
        )
    return (
        "This result is NOT private. It was made without noise, or with noise that can be "
        "reproduced, as one does for tests. It carries no guarantee and must not leave the place "
        "where the data are kept."
    )


def covered(report: Facts) -> list[str]:
    """What the guarantee covers."""
    if not report.valid:
        return []
    everything = (
        "The draws, and whatever is computed from them and from what is public."
        if report.post_processing
        else "Everything in the result that carries this report: the draws, the sampler's statistics, "
        "this report. Tuning and discarded draws are included."
    )
    return [
        everything,
        "Whatever anybody computes from it later, with any other knowledge and any computer.",
        "Every unit in the data to the same degree, the unusual ones included.",
    ]


def not_covered(report: Facts) -> list[str]:
    """What it does not cover."""
    if not report.valid:
        return []
    limits = [
        _other_results(report),
        "What is true of the population whoever takes part. If it becomes known that a treatment "
        "helps, that is known of everybody who was treated.",
        "The data themselves, where they are kept.",
    ]
    if report.added:
        limits.insert(
            0,
            f"The groups {', '.join(report.added)}, which somebody added to the result after its "
            "release. If they were computed from the data, as log-likelihoods and predictions for the "
            "people in the data are, or are the data, as `pm.sample_posterior_predictive` adds them, they "
            "must not be published. `pymc_dp.predict` predicts for public rows, and adds nothing private.",
        )
    if report.units is not None and report.delta * report.units >= 1:
        limits.insert(
            0,
            f"Single units: δ = {report.delta:.3g} is not below one in {report.units:,}, the number of "
            "units, and a guarantee with such a δ does not even rule out that some are published "
            "outright. Choose a δ far below that.",
        )
    if in_groups(report) and neighbours_named(report.relation).public_size:
        limits.insert(
            0, "Who is in which of the groups that were combined: that is taken as public."
        )
    if report.unit.startswith("one record"):
        limits.insert(0, "People with several records: only each record of theirs is protected.")
    if report.post_processing:
        return limits
    return [
        "Anything that was computed from the data outside the model: means for standardising, bounds "
        "and priors chosen after a look at the data, the choice of the model.",
        *limits,
        "How long the computation took, and whether the model was accepted at all.",
    ]


def _other_results(report: Facts) -> str:
    text = (
        "Other results about the same people: each has its own cost, and the costs add up. The "
        "account of a data set is its ledger"
    )
    if report.account is None:
        return text + "; none was given for this report, so ask whether there are others."
    return f"{text}, which says: {account(report.account)}."


def how_to_check(report: Facts) -> tuple[str, str]:
    """How to verify ε without this software: a paragraph, and a program or nothing."""
    if not report.valid:
        return "There is no guarantee to check.", ""
    if report.post_processing:
        return (
            "There is nothing to add up here: ε and δ are those that the model declares for the "
            "releases it observes. Check them in the statement of whoever released the statistics.",
            "",
        )
    if in_groups(report):
        return (
            "The groups are disjoint, so ε and δ are the largest of the results that were combined, as nobody bears the cost "
            "of two. Check each in the report of its own result, and that nobody is in two of them.",
            "",
        )
    if any(isinstance(e, BarkerBatch) for e in report.releases):
        return (
            "No public accountant knows Barker tests on batches. Their Rényi divergence is derived "
            "in pymc-dp's documentation (“Subsampled accounting”), with the numbers to compare.",
            "",
        )
    if report.delta == 0:
        total = " + ".join(f"{e.count} * {_pure(e)}" for e in report.releases)
        return (
            "Pure ε add up. This sum of the releases above is ε, but for rounding; what each release is worth is proved in "
            "pymc-dp's documentation.",
            f"print({total})\n",
        )
    if any(isinstance(e, L2Mechanism | GaussianOrL2) for e in report.releases):
        return (
            "No public accountant knows the ℓ2 mechanism. The density of its privacy loss, which is all that there is to "
            "know, is derived in pymc-dp's documentation (“The ℓ2 mechanism”), with a program that composes it.",
            "",
        )
    return (
        "ε follows from the releases above alone: their noise, measured in units of how far one "
        "unit of privacy can move a release, and their number. This Python program recomputes it with "
        "Google's dp-accounting (pip install dp-accounting). It must print "
        f"{report.epsilon:.6g} or less. Accountants round in their own ways, so the fourth digit may "
        "differ.",
        _program(report),
    )


def what_left(report: Facts) -> str:
    """What the list of releases is of."""
    if in_groups(report):
        return (
            "What left the data of one group, the dearest if all are Gaussian. What left those of others is in the reports of "
            "their own results; nothing was released for combining them."
        )
    return "Everything that left the data, in all chains. Nothing else did."


def in_groups(report: Facts) -> bool:
    """Whether it is of :func:`~pymc_dp.combine`, and the largest cost of disjoint groups is that of all."""
    return report.settings.get("disjoint") == "True"


def _program(report: Facts) -> str:
    gaussians = [e for e in report.releases if isinstance(e, Gaussian)]
    if len(gaussians) == len(report.releases):
        rows = [f"    ({e.noise_multiplier!r}, {e.count}),\n" for e in gaussians]
        return (
            "from dp_accounting.gaussian_mechanism import get_epsilon_gaussian\n\n"
            "releases = [  # noise multiplier (standard deviation / sensitivity), count\n"
            + "".join(rows)
            + "]\n"
            "mu = sum(count / z**2 for z, count in releases) ** 0.5\n"
            f"print(get_epsilon_gaussian(1 / mu, {report.delta!r}))\n"
        )
    terms = [f"    ({_pld(e)}, {e.count}),\n" for e in report.releases]
    return (
        "from dp_accounting import NeighboringRelation\n"
        "from dp_accounting.pld import common\n"
        "from dp_accounting.pld import privacy_loss_distribution as pld\n\n"
        "REPLACE = NeighboringRelation.REPLACE_ONE\n"
        "releases = [  # privacy loss of one release, count\n" + "".join(terms) + "]\n"
        "total = pld.identity()\n"
        "for one, count in releases:\n"
        "    total = total.compose(one.self_compose(count))\n"
        f"print(total.get_epsilon_for_delta({report.delta!r}))\n"
    )


def _pure(event: Event) -> str:
    """ε of one release."""
    if isinstance(event, Pure):
        return repr(event.epsilon)
    if isinstance(event, Laplace | L2Mechanism):
        return f"1 / {event.noise_multiplier!r}"
    raise TypeError(type(event).__name__)


def _pld(event: Event) -> str:
    match event:
        case Gaussian():
            return f"pld.from_gaussian_mechanism({event.noise_multiplier!r})"
        case Laplace():
            return f"pld.from_laplace_mechanism({event.noise_multiplier!r})"
        case Pure():
            parameters = f"common.DifferentialPrivacyParameters({event.epsilon!r}, 0)"
            return f"pld.from_privacy_parameters({parameters})"
        case PoissonGaussian():
            # Under REPLACE_ONE dp-accounting wants the noise relative to the clipping bound.
            return (
                f"pld.from_gaussian_mechanism({2 * event.noise_multiplier!r}, "
                f"sampling_prob={event.sampling_rate!r}, neighboring_relation=REPLACE)"
            )
    raise TypeError(type(event).__name__)
