"""dp.sample: keywords, refusals and the budget."""

import traceback
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytest
from pymc.progress_bar import MCMCProgressBarManager

import pymc_dp as dp
from pymc_dp.federated import Owner

PACKAGE = Path(dp.__file__).parent
FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
pytestmark = pytest.mark.usefixtures("interpret")


def test_a_first_private_posterior(logistic, quiet):
    with logistic(n=400):
        idata = dp.sample(
            50,
            tune=20,
            chains=2,
            epsilon=3.0,
            random_seed=1,
            step=dp.DPPenalty,
            clip=2.0,
            **quiet,
            **FAST,
        )
    assert idata.posterior["beta"].sizes == {"chain": 2, "draw": 50, "feature": 2}
    assert idata.attrs["privacy_epsilon"] == 3.0
    assert idata.attrs["privacy_delta"] == pytest.approx(0.1 / 400)
    assert '"count": 140' in idata.attrs["privacy_events"]


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"clipp": 1.0, "step": dp.DPPenalty}, "Did you mean `clip`"),
        ({"clip": 1.0}, "add `step=pymc_dp.DPPenalty`"),
        ({"random_sed": 1}, "Did you mean `random_seed`"),
        ({"idata_kwargs": {"log_likelihood": True}}, "exact log-likelihoods"),
        ({"return_inferencedata": False}, "InferenceData"),
        ({"nuts_sampler": "nutpie", "step": dp.DPHMC}, "private step"),
        ({"vars": []}, "vars"),
    ],
)
def test_keywords_are_checked(keyword, message, logistic):
    with logistic(), pytest.raises(TypeError, match=message):
        dp.sample(10, epsilon=1.0, **keyword)


@pytest.mark.parametrize(
    "initvals",
    [
        lambda m: {"mu": m["Y"].mean()},
        lambda m: {"mu": pytensor.shared(1.0)},
        lambda m: [{"mu": 0.1}, {"mu": m["Y"].mean() * 0}],
        lambda m: {"mu": np.nan},
        lambda m: {"mu": [np.inf]},
        lambda m: {"mu": np.array([m["Y"].mean()], dtype=object)},
        lambda m: {"mu": None},
        lambda m: m["Y"],
    ],
)
def test_initial_values_are_plain_numbers(initvals, quiet):
    """An expression of the data was the first draw, to the last digit."""
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-3)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", np.random.default_rng(0).normal(3, 1, 50)))
    with pytest.raises(dp.PrivacyConfigurationError, match="`initvals`"):
        dp.sample(
            5, chains=2, epsilon=0.05, initvals=initvals(model), ledger=ledger, model=model,
            step=dp.DPPenalty, **quiet, **FAST,
        )  # fmt: skip
    assert ledger.spent() == 0


@pytest.mark.parametrize(
    "initvals",
    [
        {"mu": 0.5},
        {"mu": np.float64(0.5)},
        {"mu": np.array(1)},
        [{"mu": 0.5}, None],
        {"mu": "prior"},
    ],
)
def test_numbers_and_pymcs_own_words_are_initial_values(initvals, quiet):
    with pm.Model():
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", np.random.default_rng(0).normal(3, 1, 50)))
        idata = dp.sample(
            5, chains=2, epsilon=0.05, initvals=initvals, step=dp.DPPenalty, **quiet, **FAST
        )
    assert idata.posterior["mu"].shape == (2, 5)


def test_the_model_or_the_number_of_draws_comes_first(compiled, quiet):
    model = compiled(n=120)
    run = {"chains": 1, "epsilon": 1.0, "step": dp.DPPenalty, **quiet}
    sizes = [
        dp.sample(model, draws=7, **run).posterior.sizes["draw"],
        dp.sample(7, model=model, **run).posterior.sizes["draw"],
        dp.sample(draws=7, model=model, **run).posterior.sizes["draw"],
    ]
    assert sizes == [7, 7, 7]
    for first, more, words in (
        (model, {"model": model}, "The model is given twice"),
        (7, {"draws": 7, "model": model}, "The number of draws is given twice"),
        ("7", {"model": model}, "`draws` must be"),
    ):
        with pytest.raises(dp.PrivacyConfigurationError, match=words):
            dp.sample(first, **more, **run)


def test_one_voice_on_convergence(logistic, quiet, caplog):
    """Ours, which names the parameter; PyMC's remarks are about draws that are spread afterwards."""
    with logistic(n=4000), caplog.at_level("INFO"):
        dp.sample(
            120, chains=2, epsilon=1.0, step=dp.DPPenalty, cores=1, progressbar=False, random_seed=1,
            **FAST,
        )  # fmt: skip
    theirs = [r.getMessage() for r in caplog.records if not r.name.startswith("pymc.dp")]
    assert not [text for text in theirs if "rhat" in text or "effective sample" in text]
    last = caplog.records[-1].getMessage()
    assert last.startswith("DPPenalty: NOT USABLE, acceptance")
    assert "effective draws of beta[" in last
    assert "More budget, fewer parameters or another `step`" in last


def normal_mean(n):
    with pm.Model() as model:
        y = np.random.default_rng(0).normal(0.3, 1, n)
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=pm.Data("Y", y))
    return model


def said_in(caplog):
    """Lines, ours and PyMC's, as on a screen; and ours before PyMC's first."""
    lines, before, theirs = [], 0, False
    for record in caplog.records:
        theirs |= not record.name.startswith("pymc.dp")
        found = record.getMessage().splitlines()
        lines += found
        before += 0 if theirs else len(found)
    return lines, before


@pytest.mark.parametrize(
    ("n", "epsilon", "ending"),
    [(4_000, 4.0, "DPSurrogate: usable, privacy shift"), (5, 0.5, "DPSurrogate: NOT USABLE: ")],
)
def test_a_run_says_little_before_and_the_verdict_last(n, epsilon, ending, caplog):
    with caplog.at_level("INFO"):
        idata = dp.sample(
            500, model=normal_mean(n), chains=2, epsilon=epsilon, delta=1e-4, random_seed=1, progressbar=False,
            noise_source=dp.InsecureSeededNoise(1), family="normal", **FAST,
        )  # fmt: skip
    lines, before = said_in(caplog)
    assert before <= 10
    assert not [line for line in lines if "towards the mode" in line]
    assert lines[-1].startswith(ending)
    assert "acceptance" not in lines[-1]
    assert ("NOT USABLE" in lines[-1]) == (idata.attrs["privacy_usable"] == 0)
    if n == 5:
        assert "It takes more records, a larger `epsilon`" in lines[-1]


def test_what_epsilon_and_delta_promise_is_said_in_words(caplog, quiet):
    with caplog.at_level("INFO"):
        ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)  # and so Gaussian noise only
        dp.sample(5, model=normal_mean(1000), chains=1, epsilon=1.0, ledger=ledger, **quiet, **FAST)
    words = (
        "Costs ε = 1 at δ = 1e-05. Whatever comes out is at most 2.719 times as likely, plus 1e-05, as it would be if one "
        "record were replaced; who knows everything else notices that in at most 9 % of cases, with 5 % false alarms."
    )
    assert words in caplog.text


def test_draws_that_cost_nothing_are_advised_as_such(caplog):
    """Before anything is spent, and not in PyMC's words, which are about chains."""
    with caplog.at_level("INFO"):
        dp.sample(
            50, model=normal_mean(1000), chains=1, epsilon=1.0, cores=1, progressbar=False, **FAST
        )
    lines, _ = said_in(caplog)
    free = next(k for k, line in enumerate(lines) if "more of them cost nothing" in line)
    asked = next(k for k, line in enumerate(lines) if "asking the records" in line)
    assert free < asked
    assert not [line for line in lines if "samples per chain" in line or "minimum_shape" in line]


def test_a_chain_that_cannot_be_judged_is_not_called_usable(compiled, caplog, quiet):
    with caplog.at_level("INFO"):
        dp.sample(5, model=compiled(n=120), chains=1, epsilon=1.0, step=dp.DPPenalty, **quiet)
    assert said_in(caplog)[0][-1].startswith("DPPenalty: not known to be usable, as 5 draws")


def test_a_refusal_leaves_the_records_behind(quiet):
    """Error reporters and notebooks print the local variables of every frame."""
    y = np.full(40, 271828.182845904509)
    person = np.array([f"Ms-Sentinel-{i}" for i in range(40)])

    def tried():
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 1)
            Y = pm.Data("Y", y)
            pm.Normal("z", Y.mean(), 1)
            pm.Normal("y", mu, 1, observed=Y)
        return model

    with pm.Model() as coupled:
        Y = pm.Data("Y", y)
        pm.Normal("y", pm.Normal("mu", 0, 1) + Y.mean(), 1, observed=Y)

    model, compiled = tried(), dp.compile(coupled, unit=person)
    for refused in (
        lambda: dp.compile(model, unit=person),
        lambda: dp.CompiledModel(model, unit=person),
        lambda: compiled.likelihood,
        lambda: dp.sample(10, epsilon=1.0, unit=person, model=model, **quiet),
        lambda: dp.DPPenalty(epsilon=1.0, draws=3, chains=1, unit=person, model=model),
        lambda: dp.DPHMC(epsilon=-1.0, draws=3, chains=1, unit=person, model=model),
        lambda: Owner(epsilon=1.0, model=model),
    ):
        with pytest.raises(dp.PrivacyError) as refusal:
            refused()
        # What is shown of this function's own frame is its own business.
        ours = traceback.TracebackException.from_exception(refusal.value, capture_locals=True)
        frames = [f for f in ours.stack if Path(f.filename).is_relative_to(PACKAGE)]
        shown = str([f.locals for f in frames]) + str(refusal.value)
        assert frames
        assert "271828" not in shown
        assert "Sentinel" not in shown
        assert refusal.value.__cause__ is refusal.value.__context__ is None


def test_step_is_a_class(logistic):
    with logistic() as model, pytest.raises(dp.PrivacyConfigurationError, match="class"):
        dp.sample(10, epsilon=1.0, step=pm.Metropolis, model=model)


def test_epsilon_is_required(logistic):
    with logistic(), pytest.raises(TypeError, match="epsilon"):
        dp.sample(10)


def test_analyses_share_one_ledger(logistic, quiet, tmp_path):
    """Two runs fit, a third does not; a second script sees what the first one spent."""
    path = tmp_path / "registry.ledger"
    ledger = dp.PrivacyLedger(path, epsilon=2.0, delta=1e-5)
    settings = {"step": dp.DPPenalty, **quiet, **FAST}
    with logistic():
        first = dp.sample(10, chains=1, epsilon=1.2, ledger=ledger, **settings)
        assert first.attrs["privacy_delta"] == 1e-5  # the account's
        again = dp.PrivacyLedger(path)
        assert again.spent() == pytest.approx(1.2, abs=1e-6)
        dp.sample(10, chains=1, epsilon=1.0, delta=1e-5, ledger=again, **settings)
        # ε adds up like a root of squares, nearly: 1.2 and 1.0 make about 1.6.
        assert 1.5 < ledger.spent() < 1.7
        with pytest.raises(dp.PrivacyBudgetExceeded, match="nothing was charged"):
            dp.sample(10, chains=1, epsilon=1.5, delta=1e-5, ledger=again, **settings)
    assert len(ledger.runs()) == 2


def test_units_with_several_rows(quiet):
    """A person's rows are clipped together: the unit of privacy is the person."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(40), 5)
    with pm.Model():
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=rng.normal(size=200))
        idata = dp.sample(
            10, chains=1, epsilon=1.0, unit=person, step=dp.DPPenalty, **quiet, **FAST
        )
    assert idata.attrs["privacy_units"] == 40
    assert "identifier" in idata.attrs["privacy_unit"]
    assert idata.attrs["privacy_delta"] == pytest.approx(0.1 / 40)


def test_unsupported_model_spends_nothing(quiet):
    ledger = dp.PrivacyLedger(epsilon=2.0, delta=1e-5)
    with pm.Model():
        k = pm.Poisson("k", 3)
        pm.Normal("y", k, 1, observed=np.zeros(5))
        with pytest.raises(dp.UnsupportedModelError, match=r"\['k'\].*discrete"):
            dp.sample(10, epsilon=1.0, ledger=ledger)
    with pm.Model(), pytest.raises(dp.UnsupportedModelError, match="free variables"):
        dp.sample(10, epsilon=1.0, ledger=ledger)
    assert ledger.spent() == 0


def test_the_default_needs_the_budget_only(logistic, quiet):
    with logistic(n=4000):
        idata = dp.sample(120, chains=2, epsilon=4.0, random_seed=1, **quiet, **FAST)
    assert "DPSurrogate" in str(dp.privacy_report(idata))
    assert idata.posterior["beta"].shape[:2] == (2, 120)
    assert idata.attrs["privacy_usable"] in (0, 1)


def test_without_a_surrogate_it_is_hmc(quiet, caplog, monkeypatch):
    """Decided before anything is spent."""

    def refuse(*arguments, **keywords):
        raise dp.NoSurrogateError("cannot be differentiated.")

    monkeypatch.setattr("pymc_dp.sampling.DPSurrogate.__init__", refuse)
    with pm.Model():
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", np.random.default_rng(0).normal(size=300)))
        with caplog.at_level("WARNING", logger="pymc.dp"):
            idata = dp.sample(5, chains=1, epsilon=3.0, **quiet, **FAST)
    assert idata.attrs["privacy_step"] == "DPHMC"
    assert "nothing has been spent" in caplog.text


def test_a_partial_of_a_step_is_a_step_with_settings(quiet):
    def run(**keywords):
        with pm.Model():
            mu = pm.Normal("mu", 0, 1)
            pm.Normal("y", mu, 1, observed=pm.Data("Y", np.random.default_rng(0).normal(size=300)))
            return dp.sample(
                5, chains=1, epsilon=3.0, random_seed=1,
                noise_source=dp.InsecureSeededNoise(1), **keywords, **quiet, **FAST,
            )  # fmt: skip

    given = run(step=partial(dp.DPPenalty, clip=4.0, scale=0.3), scale=0.1)
    apart = run(step=dp.DPPenalty, clip=4.0, scale=0.1)
    assert given.attrs["privacy_settings"] == apart.attrs["privacy_settings"]
    np.testing.assert_array_equal(given.posterior["mu"], apart.posterior["mu"])
    for wrong in (partial(dict), partial(dp.DPPenalty, None), print):
        with pytest.raises(dp.PrivacyConfigurationError, match="or a partial"):
            run(step=wrong)


def panel(levels, rows=400):
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), shape=levels)
        who = rng.integers(levels, size=rows)
        pm.Normal("y", u[who], 1, observed=pm.Data("Y", rng.normal(size=rows)))
    return model


def test_an_effect_for_each_of_many_wants_to_know_whose_the_rows_are(quiet):
    """Of fewer than a hundred nothing could be learnt if they were people."""
    run = {"epsilon": 1.0, "chains": 1, "step": dp.DPPenalty, **quiet, **FAST}
    with pytest.raises(dp.PrivacyConfigurationError, match=r"'u', of 120 values.*`unit=0`"):
        dp.sample(5, model=panel(120), **run)
    for unit in (0, np.arange(400) // 4):
        assert dp.sample(5, model=panel(120), unit=unit, **run)
    assert dp.sample(5, model=panel(40), **run)
    ledger = dp.PrivacyLedger(epsilon=9.0, delta=1e-3)
    with pytest.raises(dp.PrivacyConfigurationError):
        dp.sample(5, model=panel(120), ledger=ledger, **run)
    assert ledger.spent() == 0


@pytest.mark.parametrize(
    ("unit", "first"),
    [
        (
            None,
            "one record of 'patient', 120 of them (substitute-one neighbours); a person with several",
        ),
        (0, "one record of 'patient', 120 of them (substitute-one neighbours)"),
        ("patient", "one patient, 120 of them (substitute-one neighbours)"),
        (np.arange(120) // 2, "all records with one identifier, 60 of them"),
    ],
)
def test_a_plan_says_first_what_is_protected(unit, first, logistic):
    step = dp.DPPenalty(epsilon=1.0, draws=5, chains=1, model=logistic(), unit=unit, **FAST)
    line = str(dp.plan(step)).splitlines()[2]
    assert line.startswith("Protects")
    assert first in line
    assert ("is not protected" in line) == (unit is None)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"epsilon": 1e9}, ["ε = 1e+09", "tells two versions of one record", "100 %"]),
        ({"epsilon": 1.0, "delta": 0.5}, ["δ = 0.5 is too large for 120 units"]),
        (
            {"epsilon": 1.0, "delta": 0.01, "neighbours": "add-or-remove"},
            ["for any data set of use"],
        ),
        ({"epsilon": 8.0}, []),
    ],
)
def test_a_promise_of_nothing_is_said_to_be_one(budget, words, logistic, quiet, caplog):
    with caplog.at_level("WARNING", "pymc.dp"):
        dp.sample(5, model=logistic(), chains=1, step=dp.DPPenalty, **budget, **quiet, **FAST)
    assert all(word in caplog.text for word in words)
    assert ("next to nothing" in caplog.text or "too large" in caplog.text) == bool(words)
    step = dp.DPPenalty(draws=5, model=logistic(), chains=1, **budget, **FAST)
    assert ("Caution" in dict(dp.plan(step).rows)) == bool(words)


def test_what_can_fail_without_data_fails_before_anything_is_spent(logistic, quiet):
    ledger = dp.PrivacyLedger(epsilon=5.0, delta=1e-4)

    def broken(*_, **__):
        raise OSError("no room")

    for name in ("pymc_dp.sampling.release", "pymc_dp.sampling.summary", "pymc.to_inference_data"):
        patch = pytest.MonkeyPatch()
        patch.setattr(name, broken)
        with pytest.raises(OSError, match="no room"):
            dp.sample(200, model=logistic(), epsilon=1.0, chains=2, ledger=ledger, **quiet, **FAST)
        patch.undo()
    with pytest.raises(TypeError):
        dp.sample(
            5,
            model=logistic(),
            epsilon=1.0,
            chains=2,
            ledger=ledger,
            cores="two",
            step=dp.DPPenalty,
        )
    with pytest.raises(Exception, match="nowhere"):
        dp.sample(
            5,
            model=logistic(),
            epsilon=1.0,
            chains=2,
            ledger=ledger,
            initvals={"nowhere": 0.0},
            **quiet,
            **FAST,
        )
    assert ledger.spent() == 0


def test_a_progress_bar_that_cannot_be_made_is_left_out(logistic, caplog, monkeypatch):
    """PyMC 6 paints it with a library that it does not require."""

    made = MCMCProgressBarManager.__init__

    def missing(self, *arguments, progressbar=True, **keywords):
        if progressbar:
            raise ModuleNotFoundError("No module named 'matplotlib'")
        made(self, *arguments, progressbar=progressbar, **keywords)

    monkeypatch.setattr(MCMCProgressBarManager, "__init__", missing)
    idata = dp.sample(
        5, model=logistic(), epsilon=1.0, chains=2, cores=1, step=dp.DPPenalty, **FAST
    )
    assert idata.posterior.sizes["draw"] == 5
    assert "No progress bar is shown: No module named 'matplotlib'" in caplog.text


def test_draws_that_are_there_are_handed_out_whatever_fails_beside_them(logistic, quiet, caplog):
    def callback(trace, draw):
        raise OSError("full")

    ledger = dp.PrivacyLedger(epsilon=5.0, delta=1e-4)
    idata = dp.sample(
        50,
        model=logistic(),
        epsilon=1.0,
        chains=2,
        callback=callback,
        ledger=ledger,
        **quiet,
        **FAST,
    )
    assert idata.posterior.sizes["draw"] == 50
    assert "OSError while draws were handed out" in caplog.text
