"""privacy_report as text, HTML and JSON."""

import contextlib
import io
import json
import math
from html.parser import HTMLParser

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.compat import from_groups, groups_of, read_netcdf, root_attrs
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import (
    BarkerBatch,
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    from_json,
    to_json,
)
from pymc_dp.report.wording import FALSE_ALARMS, how_to_check, recognised

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
VOID = {"meta", "link", "br", "hr", "img"}


@pytest.fixture(scope="module")
def released():
    rng = np.random.default_rng(0)
    with pm.Model(coords={"<b>patient & co": range(80)}):
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=rng.normal(size=80), dims="<b>patient & co")
        return dp.sample(
            10, tune=2, chains=2, epsilon=1.0, step=dp.DPPenalty, clip=2.0, cores=1, progressbar=False,
            compute_convergence_checks=False, **FAST,
        )  # fmt: skip


def with_attrs(released, **attrs):
    changed = {f"privacy_{name}": value for name, value in attrs.items()}
    return from_groups(groups_of(released), {**root_attrs(released), **changed}, like=released)


class Page(HTMLParser):
    """Text of a page, and proof that its tags match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.sources = [], [], "", []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [v for k, v in attrs if k in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


def test_the_page_has_all_facts_and_needs_nothing_else(released):
    report = dp.privacy_report(released)
    html = report.to_html()
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>")
    assert page.sources == []
    assert "script" not in page.tags
    assert "url(" not in html
    for label, value in report.rows:
        assert value.removeprefix("24 ") in page.text, label
    for wanted in (
        report.statement,
        "DPPenalty",
        "Draws ofmu",
        "substitute-one",
        "24 times",
        "opendp discrete gaussian",
        "gaussian-dp, closed form",
        f"pymc {pm.__version__}",
        f"pymc-dp {dp.__version__}",
        "In plain words",
        "What is not covered",
        "dp_accounting",
        report.sampled[:10],
    ):
        assert wanted in page.text


def test_what_was_set_and_what_was_measured_are_told_apart(released):
    assert "clip" in json.loads(root_attrs(released)["privacy_settings"])
    assert json.loads(root_attrs(released)["privacy_diagnostics"]) == {}
    assert "released of itself" not in dp.privacy_report(released).to_html()
    report = dp.privacy_report(
        with_attrs(released, diagnostics=json.dumps({"privacy_shift": 0.25}))
    )
    assert report.diagnostics == {"privacy_shift": 0.25}
    assert json.loads(report.to_json())["diagnostics"] == {"privacy_shift": 0.25}
    assert "privacy_shift" not in report.settings
    assert ("Diagnostic privacy_shift", "0.25") in report.rows
    page = Page(report.to_html())
    assert "What the run released of itselfprivacy_shift0.25 (how far noise" in page.text.replace(
        "\n", ""
    )


def test_names_of_the_model_are_escaped(released):
    report = dp.privacy_report(released)
    assert report.unit == "one record of '<b>patient & co'"
    for html in (report.to_html(), report._repr_html_()):
        assert "<b>patient" not in html
        assert "&lt;b&gt;patient &amp; co" in html


def test_json_is_complete_and_its_releases_cost_what_it_says(released):
    report = dp.privacy_report(released)
    facts = json.loads(report.to_json())
    assert facts["schema_version"] == 2
    assert facts["epsilon"] == 1.0
    assert facts["unit"] == report.unit
    assert facts["units"] == 80
    assert facts["settings"]["clip"] == 2.0
    assert facts["valid"] is True
    assert facts["software"]["pymc"] == pm.__version__
    releases = from_json(json.dumps(facts["releases"]))
    assert releases == report.releases == (Gaussian(releases[0].noise_multiplier, 24),)
    assert 0.999 < composed_epsilon(releases, facts["delta"]) <= facts["epsilon"]


def test_saving(released, tmp_path):
    report = dp.privacy_report(released)
    for name, text in [
        ("a.html", report.to_html()),
        ("a.json", report.to_json()),
        ("a.TXT", str(report)),
    ]:
        report.save(str(tmp_path / name))
        assert (tmp_path / name).read_text(encoding="utf-8") == text + "\n"
    with pytest.raises(dp.PrivacyConfigurationError, match=r"must end in .*'a\.pdf'"):
        report.save(tmp_path / "a.pdf")


def test_the_report_survives_a_file(released, tmp_path):
    released.to_netcdf(tmp_path / "r.nc", engine="h5netcdf")
    loaded = dp.privacy_report(read_netcdf(tmp_path / "r.nc"))
    assert loaded == dp.privacy_report(released)
    assert loaded.to_html() == dp.privacy_report(released).to_html()


EVENTS = {
    "gaussian": (Gaussian(20.0, 300), Gaussian(3.0, 1)),
    "pure": (Pure(0.01, 30),),
    "laplace": (Laplace(30.0, 20), Gaussian(10.0, 5)),
    "poisson": (PoissonGaussian(1.0, 0.01, 300),),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_the_program_in_the_page_confirms_epsilon(kind, released):
    """It is dp-accounting's number, not ours."""
    events = EVENTS[kind]
    epsilon = composed_epsilon(events, 1e-6)
    result = with_attrs(released, events=to_json(events), epsilon=epsilon, delta=1e-6)
    report = dp.privacy_report(result)
    program = how_to_check(report)[1]
    assert program in Page(report.to_html()).text
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(program, {})
    assert float(output.getvalue()) == pytest.approx(epsilon, rel=1e-3)


def test_barker_batches_have_no_program_but_a_page(released):
    events = to_json([BarkerBatch(2.0, 10, 80, 24)])
    report = dp.privacy_report(with_attrs(released, events=events))
    assert how_to_check(report)[1] == ""
    assert "Rényi" in Page(report.to_html()).text


def test_what_an_attacker_recognises():
    """The best test at 5 % false alarms between N(0, 1) and N(μ, 1), and less than (ε, δ) allows."""

    def bound(epsilon, delta, *events):
        report = dp.PrivacyReport(
            "", epsilon, delta, True, "", None, "", epsilon, "", "", "", releases=events
        )
        return recognised(report)

    for z in (0.5, 2.0, 30.0):
        exact = bound(composed_epsilon([Gaussian(z)], 1e-6), 1e-6, Gaussian(z))
        x = np.random.default_rng(0).normal(size=400_000)
        cut = np.quantile(x, 1 - FALSE_ALARMS)
        assert exact == pytest.approx(np.mean(x + 1 / z > cut), abs=4e-3)
        assert exact <= bound(composed_epsilon([Gaussian(z)], 1e-6), 1e-6)
    assert bound(0.01, 0.0) == pytest.approx(FALSE_ALARMS * math.exp(0.01))
    assert bound(5000.0, 1e-6) == 1.0


def test_what_was_added_later_is_not_covered(released):
    """Anybody can put log-likelihoods into a released result; the page must not vouch for them."""
    assert dp.privacy_report(released).added == ()
    groups = groups_of(released)
    more = from_groups(
        {**groups, "log_likelihood": groups["posterior"]}, root_attrs(released), like=released
    )
    report = dp.privacy_report(more)
    assert report.added == ("log_likelihood",)
    assert "log_likelihood: added after the release" in str(report)
    assert "must not be published" in Page(report.to_html()).text
    assert "must not be published" not in Page(dp.privacy_report(released).to_html()).text
    assert json.loads(report.to_json())["added"] == ["log_likelihood"]


@pytest.mark.parametrize(("delta", "said"), [(0.5, True), (1 / 80, True), (1 / 81, False)])
def test_a_delta_that_promises_nothing_to_single_units_is_named(delta, said, released):
    page = Page(dp.privacy_report(with_attrs(released, delta=delta)).to_html()).text
    assert ("published outright" in page) is said


def test_the_account(logistic, quiet, tmp_path):
    """The page states what all runs cost, and only of the ledger that this one was charged to."""
    model = logistic()
    ledger = dp.PrivacyLedger(tmp_path / "a.ledger", epsilon=4.0, delta=1e-4)
    run = {
        "draws": 4,
        "chains": 1,
        "delta": 1e-4,
        "ledger": ledger,
        "model": model,
        **FAST,
        **quiet,
    }
    first = dp.sample(epsilon=1.0, step=dp.DPPenalty, **run)
    report = dp.privacy_report(first, ledger=ledger)
    spent, fits = ledger.spent(), ledger.remaining()
    assert report.account == {
        "budget": 4.0, "spent": spent, "fits": fits, "delta": 1e-4, "runs": 1
    }  # fmt: skip
    assert "ε = 1 spent of 4 at δ = 0.0001, by this run alone; another run can have ε = 3.7" in str(
        report
    )
    second = dp.sample(epsilon=2.0, step=dp.DPPenalty, **run)
    assert dp.privacy_report(second, ledger=ledger).account["runs"] == 2
    report = dp.privacy_report(first, ledger=dp.PrivacyLedger(tmp_path / "a.ledger"))
    assert json.loads(report.to_json())["account"]["spent"] == ledger.spent() > 2.0
    assert "by 2 runs together" in Page(report.to_html()).text
    assert "none was given for this report" in Page(dp.privacy_report(first).to_html()).text
    with pytest.raises(dp.PrivacyConfigurationError, match="no such run"):
        dp.privacy_report(first, ledger=dp.PrivacyLedger(epsilon=1.0, delta=1e-4))
    with pytest.raises(dp.PrivacyConfigurationError, match=r"must be a PrivacyLedger\. Found str"):
        dp.privacy_report(first, ledger="a.ledger")


def test_a_preparation_is_no_run_of_its_own(logistic, quiet):
    ledger = dp.PrivacyLedger(epsilon=30.0, delta=1e-4)
    idata = dp.sample(
        4, chains=1, epsilon=20.0, delta=1e-4, ledger=ledger, model=logistic(4000), **FAST, **quiet
    )
    assert len(ledger.runs()) == 2
    report = dp.privacy_report(idata, ledger=ledger)
    assert report.account["runs"] == 1
    page = Page(report.to_html()).text
    assert "once" in page
    assert "how far noise may have moved the draws" in page
    assert "1 if the draws are of use" in page
    assert report.added == ()


def test_void_results_say_so(logistic, quiet):
    model = logistic()
    step = dp.DPPenalty(
        noise_multiplier=5.0,
        chains=1,
        draws=6,
        noise_source=dp.InsecureSeededNoise(1),
        model=model,
        **FAST,
    )
    raw = pm.sample(6, tune=0, chains=1, step=step, model=model, **quiet)
    report = dp.privacy_report(dp.release(raw))
    facts = json.loads(report.to_json())
    assert facts["valid"] is False
    assert facts["epsilon"] is None
    assert facts["recognised"] is None
    page = Page(report.to_html())
    assert "NOT private" in page.text
    assert "What is covered" not in page.text
    assert "dp_accounting" not in page.text


@pytest.mark.parametrize("epsilon", [1.0, math.nan])
def test_post_processing_has_the_guarantee_of_its_release(epsilon, released):
    """Of PrivacyAwareGibbs: no releases of its own, no units, no settings."""
    posterior = groups_of(released)["posterior"]
    like = posterior["mu"]
    stats = posterior.drop_vars("mu").assign(
        release_epsilon=like * 0 + epsilon, release_delta=like * 0
    )
    raw = from_groups({"posterior": posterior, "sample_stats": stats}, {}, like=released)
    report = dp.privacy_report(dp.release(raw))
    text, page = str(report), Page(report.to_html()).text
    facts = json.loads(report.to_json())
    assert facts["algorithm"] == "PrivacyAwareGibbs"
    assert facts["post_processing"] is True
    assert facts["releases"] == []
    assert "post-processing" in text
    assert "Everything that left the data" not in page
    if math.isnan(epsilon):
        assert facts["epsilon"] is None
        assert "declared no guarantee" in text
        assert "Ask for the guarantee of the release" in page
        assert "not private" not in text
    else:
        assert facts["epsilon"] == 1.0
        assert facts["recognised"]["at_most"] == pytest.approx(FALSE_ALARMS * math.e)
        assert "14 %" in page
        assert "People with several records" in page
        entry = json.loads(report.to_registry(model_name="Local"))["deployment"]
        assert entry["deployment_model"]["model_name"] == "Local"
        assert entry["dp_variant"] == {
            "variant_name": "Pure DP",
            "data_domain": "",
            "unprotected_quantities": "",
        }
        assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0}
        assert entry["implementation"]["mechanisms"] == ""


# Of the registry's own schema: what an entry must have, and which words it knows.
REGISTRY_NEEDS = {
    "basic": "name data_curators description intended_use data_product_type data_product_region publication_date",
    "administrative": "status registry_authors tier",
}
REGISTRY_KNOWS = {
    "data_product_type": ("Summary statistics", "Machine learning model", "Dataset", "Synthetic data"),
    "variant_name": ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
    "model_name": ("Local", "Central", "Shuffle", "Federated"),
    "release_type": ("One release", "Many releases"),
    "access_type": ("Interactive", "Non-interactive"),
    "status": ("Draft", "Pending", "Approved"),
    "tier": (1, 2, 3),
}  # fmt: skip


def test_an_entry_for_the_registry_has_what_the_run_knows(released):
    entry = json.loads(dp.privacy_report(released).to_registry(name="Level of <b>, 2026", tier=1))
    deployment = entry["deployment"]
    assert entry["url_slug"] == "level-of-b-2026"
    for section, names in REGISTRY_NEEDS.items():
        assert set(names.split()) <= set(deployment[section])
    flat = {name: value for section in deployment.values() for name, value in section.items()}
    for name, words in REGISTRY_KNOWS.items():
        assert flat[name] in words, name
    assert deployment["privacy_loss"] == {
        "privacy_unit": "one record of '<b>patient & co'",
        "privacy_unit_details": flat["privacy_unit_details"],
        "number_of_privacy_units": 80,
        "privacy_parameters": {"epsilon": 1.0, "delta": 0.1 / 80},
        "privacy_parameters_details": flat["privacy_parameters_details"],
    }
    assert "replaced by any other" in flat["privacy_unit_details"]
    assert "- 24 × gaussian, noise multiplier" in flat["mechanisms"]
    assert "opendp discrete gaussian" in flat["mechanisms"]
    assert "gaussian-dp, closed form" in flat["composition"]
    assert "80" in flat["unprotected_quantities"]
    assert flat["tier"] == 1
    assert {name for name, value in flat.items() if value == ""} == {
        "description", "intended_use", "data_product_region", "data_product_sector", "publication_date", "actors",
        "data_source_type", "preprocessing_and_hyperparameter_tuning", "justification",
    }  # fmt: skip


def test_an_entry_for_the_registry_does_not_tell_how_many_there_are(released):
    attrs = {
        f"privacy_{k}": v
        for k, v in {"relation": "add-or-remove", "epsilon_substitute_one": 2.03}.items()
    }
    attrs = {k: v for k, v in {**root_attrs(released), **attrs}.items() if k != "privacy_units"}
    private = from_groups(groups_of(released), attrs, like=released)
    deployment = json.loads(dp.privacy_report(private).to_registry())["deployment"]
    assert "number_of_privacy_units" not in deployment["privacy_loss"]
    assert "number" not in deployment["dp_variant"]["unprotected_quantities"]
    assert "has a unit more" in deployment["privacy_loss"]["privacy_unit_details"]
    assert "2.03" in deployment["privacy_loss"]["privacy_unit_details"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"purpose": "x"}, "no field purpose"),
        ({"privacy_parameters": {}}, "says the fields privacy_p"),
    ],
)
def test_what_cannot_be_said_to_the_registry_is_refused(released, given, says):
    with pytest.raises(dp.PrivacyConfigurationError, match=says):
        dp.privacy_report(released).to_registry(**given)


def test_nothing_without_a_guarantee_is_registered(released):
    with pytest.raises(dp.PrivacyConfigurationError, match="no guarantee"):
        dp.privacy_report(with_attrs(released, valid=0)).to_registry()


def test_what_was_put_into_a_result_later_is_named(released):
    """In place, as `pm.compute_log_likelihood` and bambi's `predict` do; and variables among the draws."""
    groups = groups_of(released)
    assert dp.privacy_report(released).added == ()
    posterior = groups["posterior"].assign(exact_mean=groups["posterior"]["mu"] * 0 + 3.0)
    stats = groups["sample_stats"].assign(lp=groups["sample_stats"]["scale"] * 0)
    more = {"posterior": posterior, "sample_stats": stats, "log_likelihood": posterior}
    tampered = from_groups({**groups, **more}, root_attrs(released), like=released)
    report = dp.privacy_report(tampered)
    assert set(report.added) == {"log_likelihood", "posterior['exact_mean']", "sample_stats['lp']"}
    assert report.variables == ("mu",)
    assert "exact_mean" in str(report).split("Not covered")[1].splitlines()[0]
    assert "log_likelihood" in report.to_html()
