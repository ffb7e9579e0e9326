"""Small models whose likelihood is a sum over records, one builder each, and what tests do with them.

A builder takes ``data``, which turns a name and an array into what the model reads: ``pm.Data`` or
the array itself. `build` runs it by name.
"""

from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.record_graph import record_graph
from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.likelihood.roles import find_roles
from pymc_dp.likelihood.separability import check_separability

FAST = {"mode": "FAST_COMPILE"}
N, D = 60, 3
ZOO = {}
FEW = ("linear", "ordered", "several", "varying_intercepts")

NEEDS_DATA = {"normal_mixture", "censored", "panel", "categorical", "mixture", "zero_inflated"}
"""PyMC writes the number of records into these unless it comes from `pm.Data` (some on 6 only)."""


def in_zoo(builder):
    ZOO[builder.__name__] = builder
    return builder


def few_or(mark, *more):
    """The zoo to parametrize with: a few models always, the others under a mark."""
    return [
        name if name in (*FEW, *more) else pytest.param(name, marks=mark) for name in sorted(ZOO)
    ]


def build(name, shared=True, n=N):
    """One model of the zoo, with its data in ``pm.Data`` (`shared`) or written into the graph."""
    with pm.Model() as model:
        ZOO[name](pm.Data if shared else as_it_is, np.random.default_rng(7), n)
    return model


def as_it_is(name, values):
    return values


def graph_of(model, roles):
    return record_graph(ParameterSpace(model), roles)


def likelihood_of(model, roles, **keywords):
    return RecordLikelihood(graph_of(model, roles), roles, **keywords)


def compiled(model, unit=None, public=(), **keywords):
    """The model's record likelihood, not yet checked. Interpreted unless a mode is asked for."""
    keywords = {"compile_kwargs": FAST, **keywords}
    return likelihood_of(model, find_roles(model, unit, public), **keywords)


def checked(model, unit=None, public=(), **keywords):
    """What a private step does before it samples: every check, then the record likelihood."""
    likelihood = compiled(model, unit, public, **keywords)
    check_separability(ParameterSpace(model), likelihood)
    return likelihood


@cache
def zoo_likelihood(name, shared=True):
    """A model of the zoo and its checked likelihood; not to be changed."""
    model = build(name, shared)
    return model, checked(model)


def some_points(model, count=3):
    """The initial point and some around it, as PyMC has them and as one vector."""
    rng = np.random.default_rng(1)
    start = {k: np.asarray(v, dtype=float) for k, v in model.initial_point(0).items()}
    for k in range(count):
        point = {key: x + 0.3 * k * rng.normal(size=x.shape) for key, x in start.items()}
        yield point, np.concatenate([point[v.name].ravel() for v in model.value_vars])


def own_terms(model, axis=0):
    """PyMC's own log-likelihood of each record, as a function of a point."""
    logps = model.compile_logp(vars=model.observed_RVs, sum=False, **FAST)

    def terms(point):
        return sum(
            np.moveaxis(np.asarray(x), axis, 0).reshape(np.shape(x)[axis], -1).sum(axis=1)
            for x in logps(point)
        )

    return terms


# -- the models -------------------------------------------------------------------------------------


def predictor(data, rng, n):
    """Covariates times coefficients, and what the covariates truly explain."""
    X = rng.normal(size=(n, D))
    beta = pm.Normal("beta", 0.0, 1.0, shape=D)
    return data("X", X) @ beta, X @ np.array([0.5, -0.3, 0.2])


@in_zoo
def vector_mean(data, rng, n):
    mu = pm.Normal("mu", 0.0, 10.0, shape=D)
    pm.Normal("y", mu, 1.0, observed=data("Y", rng.normal(size=(n, D))))


@in_zoo
def linear(data, rng, n):
    eta, truth = predictor(data, rng, n)
    sigma = pm.HalfNormal("sigma", 2.0)
    pm.Normal("y", eta, sigma, observed=data("Y", truth + rng.normal(size=n)))


@in_zoo
def logistic(data, rng, n):
    eta, truth = predictor(data, rng, n)
    pm.Bernoulli("y", logit_p=eta, observed=data("Y", (truth + rng.logistic(size=n) > 0) * 1))


@in_zoo
def poisson(data, rng, n):
    eta, truth = predictor(data, rng, n)
    pm.Poisson("y", pt.exp(eta), observed=data("Y", rng.poisson(np.exp(truth))))


@in_zoo
def negative_binomial(data, rng, n):
    eta, _ = predictor(data, rng, n)
    alpha = pm.Exponential("alpha", 1.0)
    counts = rng.negative_binomial(3, 0.4, size=n)
    pm.NegativeBinomial("y", mu=pt.exp(eta), alpha=alpha, observed=data("Y", counts))


@in_zoo
def binomial_with_trials(data, rng, n):
    eta, _ = predictor(data, rng, n)
    trials = rng.integers(1, 9, size=n)
    hits = rng.binomial(trials, 0.4)
    pm.Binomial("y", n=data("trials", trials), logit_p=eta, observed=data("Y", hits))


@in_zoo
def student_t(data, rng, n):
    eta, truth = predictor(data, rng, n)
    nu = pm.Gamma("nu", 2.0, 0.1)
    sigma = pm.HalfNormal("sigma", 2.0)
    pm.StudentT("y", nu=nu, mu=eta, sigma=sigma, observed=data("Y", truth + rng.normal(size=n)))


@in_zoo
def mv_normal(data, rng, n):
    mu = pm.Normal("mu", 0.0, 10.0, shape=D)
    chol, _, _ = pm.LKJCholeskyCov(
        "chol", n=D, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=D), compute_corr=True
    )
    pm.MvNormal("y", mu, chol=chol, observed=data("Y", rng.normal(size=(n, D))))


@in_zoo
def ordered(data, rng, n):
    eta, truth = predictor(data, rng, n)
    cutpoints = pm.Normal(
        "cutpoints",
        np.array([-1.0, 0.0, 1.0]),
        2.0,
        transform=pm.distributions.transforms.ordered,
        initval=np.array([-1.0, 0.0, 1.0]),
    )
    grades = np.digitize(truth + rng.logistic(size=n), [-1.0, 0.0, 1.0])
    pm.OrderedLogistic(
        "y", eta=eta, cutpoints=cutpoints, compute_p=False, observed=data("Y", grades)
    )


@in_zoo
def categorical(data, rng, n):
    X = rng.normal(size=(n, D))
    beta = pm.Normal("beta", 0.0, 1.0, shape=(D, 4))
    pm.Categorical("y", logit_p=data("X", X) @ beta, observed=data("Y", rng.integers(4, size=n)))


@in_zoo
def multinomial(data, rng, n):
    p = pm.Dirichlet("p", np.ones(4))
    counts = rng.multinomial(9, [0.1, 0.2, 0.3, 0.4], size=n)
    pm.Multinomial("y", n=9, p=p, observed=data("Y", counts))


@in_zoo
def mixture(data, rng, n):
    w = pm.Dirichlet("w", np.ones(2))
    low = pm.Exponential("low", 1.0)
    alpha = pm.Exponential("alpha", 1.0)
    pm.Mixture(
        "y",
        w=w,
        comp_dists=[pm.Poisson.dist(low), pm.NegativeBinomial.dist(mu=7.0, alpha=alpha)],
        observed=data("Y", rng.poisson(np.where(rng.random(n) < 0.4, 1, 7))),
    )


@in_zoo
def normal_mixture(data, rng, n):
    w = pm.Dirichlet("w", np.ones(2))
    mu = pm.Normal("mu", np.array([-1.0, 1.0]), 3.0)
    sigma = pm.HalfNormal("sigma", 1.0, shape=2)
    y = np.where(rng.random(n) < 0.4, rng.normal(-2, 1, n), rng.normal(2, 0.5, n))
    pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=data("Y", y))


@in_zoo
def censored(data, rng, n):
    eta, truth = predictor(data, rng, n)
    latent = pm.Normal.dist(eta, pm.HalfNormal("sigma", 2.0))
    y = np.clip(truth + rng.normal(size=n), -1, 1)
    pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=data("Y", y))


@in_zoo
def truncated(data, rng, n):
    eta, truth = predictor(data, rng, n)
    latent = pm.Normal.dist(eta, pm.HalfNormal("sigma", 2.0))
    pm.Truncated("y", latent, lower=0.0, observed=data("Y", np.abs(truth + rng.normal(size=n))))


@in_zoo
def zero_inflated(data, rng, n):
    eta, truth = predictor(data, rng, n)
    psi = pm.Beta("psi", 1.0, 1.0)
    counts = rng.poisson(np.exp(truth)) * (rng.random(n) < 0.7)
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(eta), observed=data("Y", counts))


@in_zoo
def weibull(data, rng, n):
    eta, _ = predictor(data, rng, n)
    alpha = pm.Gamma("alpha", 2.0, 1.0)
    pm.Weibull(
        "y", alpha=alpha, beta=pt.exp(eta), observed=data("Y", rng.weibull(1.5, size=n) + 0.1)
    )


@in_zoo
def survival(data, rng, n):
    """PyMC's way to say that a death was observed: no limit."""
    eta, _ = predictor(data, rng, n)
    years = rng.weibull(1.5, size=n) + 0.1
    latent = pm.Weibull.dist(alpha=pm.Gamma("alpha", 2.0, 1.0), beta=pt.exp(eta))
    end = np.where(rng.random(n) < 0.6, np.inf, years)
    pm.Censored("y", latent, lower=None, upper=data("end", end), observed=data("Y", years))


@in_zoo
def softmax_with_zeros(data, rng, n):
    X = rng.normal(size=(n, D))
    beta = pm.Normal("beta", 0.0, 1.0, shape=(D, 2))
    eta = pt.concatenate([pt.zeros((n, 1)), data("X", X) @ beta], axis=1)
    p = pm.Deterministic("p", pm.math.softmax(eta, axis=1))
    pm.Categorical("y", p=p, observed=data("Y", rng.integers(3, size=n)))


@in_zoo
def hurdle(data, rng, n):
    eta, truth = predictor(data, rng, n)
    counts = rng.poisson(np.exp(truth)) * (rng.random(n) < 0.7)
    pm.HurdlePoisson("y", psi=pm.math.sigmoid(eta), mu=pt.exp(eta), observed=data("Y", counts))


@in_zoo
def truncated_counts(data, rng, n):
    eta, truth = predictor(data, rng, n)
    latent = pm.NegativeBinomial.dist(mu=pt.exp(eta), alpha=pm.Exponential("alpha", 1.0))
    pm.Truncated("y", latent, lower=1, observed=data("Y", 1 + rng.poisson(np.exp(truth))))


@in_zoo
def custom_logp(data, rng, n):
    def logp(value, mu, sigma):
        return -0.5 * ((value - mu) / sigma) ** 2 - pt.log(sigma)

    eta, truth = predictor(data, rng, n)
    sigma = pm.HalfNormal("sigma", 2.0)
    pm.CustomDist("y", eta, sigma, logp=logp, observed=data("Y", truth + rng.normal(size=n)))


@in_zoo
def custom_dist(data, rng, n):
    def dist(mu, sigma, size):
        return pm.math.exp(pm.Normal.dist(mu, sigma, size=size))

    eta, _ = predictor(data, rng, n)
    sigma = pm.HalfNormal("sigma", 2.0)
    pm.CustomDist("y", eta, sigma, dist=dist, observed=data("Y", np.exp(rng.normal(size=n))))


@in_zoo
def varying_intercepts(data, rng, n):
    group = rng.integers(5, size=n)
    tau = pm.HalfNormal("tau", 1.0)
    a = pm.Normal("a", pm.Normal("mu", 0.0, 5.0), tau, shape=5)
    sigma = pm.HalfNormal("sigma", 1.0)
    pm.Normal("y", a[data("group", group)], sigma, observed=data("Y", rng.normal(size=n)))


@in_zoo
def several(data, rng, n):
    eta, truth = predictor(data, rng, n)
    sigma = pm.HalfNormal("sigma", 2.0)
    pm.Normal("y", eta, sigma, observed=data("Y", truth + rng.normal(size=n)))
    pm.Bernoulli("z", logit_p=eta, observed=data("Z", rng.integers(2, size=n)))


@in_zoo
def chained(data, rng, n):
    """One observed variable is another's covariate."""
    a = pm.Normal("a", 0.0, 1.0, shape=2)
    y = pm.Normal("y", a[0], 1.0, observed=data("Y", rng.normal(size=n)))
    pm.Normal("z", a[1] * y, 1.0, observed=data("Z", rng.normal(size=n)))


@in_zoo
def panel(data, rng, n):
    """Each record is a series of its own."""
    rho = pm.Normal("rho", 0.0, 0.5)
    pm.AR(
        "y",
        rho=[rho],
        sigma=1.0,
        init_dist=pm.Normal.dist(0.0, 1.0),
        observed=data("Y", rng.normal(size=(n, 6))),
    )


@in_zoo
def cast_counts(data, rng, n):
    """Counts kept as floats: the observed value is a cast of the data."""
    rate = pm.Gamma("rate", 2.0, 1.0)
    pm.Poisson("y", rate, observed=data("Y", rng.poisson(3.0, size=n).astype(float)))


@in_zoo
def named_dims(data, rng, n):
    import pymc.dims as pmd
    from pytensor.xtensor import as_xtensor

    pm.modelcontext(None).add_coords({"person": range(n), "feature": range(D)})
    X = as_xtensor(data("X", rng.normal(size=(n, D))), dims=("person", "feature"))
    beta = pmd.Normal("beta", 0.0, 1.0, dims="feature")
    sigma = pmd.HalfNormal("sigma", 2.0)
    y = as_xtensor(data("Y", rng.normal(size=n)), dims=("person",))
    pmd.Normal("y", (X * beta).sum("feature"), sigma, observed=y, dims="person")
