r"""Integrate a normal effect per person out of a likelihood, so that a person's log-likelihood is one number.

With records :math:`y_{jt}` of person j and an effect :math:`u_j \sim N(m, \tau^2)`, the new model has

.. math:: \ell_j(\theta) = \log \int N(u;\, m, \tau^2) \prod_t p(y_{jt} \mid u, \theta)\, du

in place of them: one record per person, and no :math:`u_j`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.basic import conditional_logp
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import NormalRV

from pymc_dp.checks import whole
from pymc_dp.compat import ancestors
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.likelihood.compilation import strip_checks
from pymc_dp.likelihood.nodes import quoting_nothing
from pymc_dp.likelihood.panel import Panel, panel_of
from pymc_dp.likelihood.record_graph import rebuild_observed, sum_observed
from pymc_dp.likelihood.roles import Roles
from pymc_dp.likelihood.rows import with_rows
from pymc_dp.likelihood.unit import DECLARED_UNIT, count_records, record_dims_of
from pymc_dp.likelihood.without import without
from pymc_dp.quadrature import log_expectation


class _Template(NamedTuple):
    """The likelihood of records and the effect's prior, as functions of symbolic rows and parameters.

    Parameters
    ----------
    terms : Variable, shape (records,)
    mean, spread : Variable
        Of the prior.
    rows : list of Variable
        One for each of a panel's leaves, and one for its index.
    effect : Variable
    parameters : list of Variable
        All others, in the model's order.
    """

    terms: Variable
    mean: Variable
    spread: Variable
    rows: list[Variable]
    effect: Variable
    parameters: list[Variable]


@refuses_from_outside
def integrate_out(model: pm.Model, effect: str, *, points: int = 15) -> pm.Model:
    r"""Integrate a normal effect per person out of the likelihood; a person is then one record.

    A draw of a person's effect would be a release about that person, and a model of thousands of them drowns in
    noise. The model that is returned has none of them, and the same posterior of all other parameters. It can be
    given to :func:`pymc_dp.sample`, to ``pm.sample``, or to anything else. What is protected is a person, with
    all of their records.

    Parameters
    ----------
    model : Model
        With a free variable ``pm.Normal(effect, mu, sigma)`` of one value per person. The observed variables read it
        by an index, ``u[person]``, or row by row, if each of their rows is a person. `mu` and `sigma` may be
        parameters, and depend on data of persons; ``mu + tau * z`` with a standard normal ``z`` is as good. Stays as
        it is.
    effect : str
        Name of that variable, or of a dimension that only one free variable has.
    points : int
        Of the quadrature, at least 5. By default enough for persons whose records say where their effect is to a
        twentieth of its prior's standard deviation.

    Returns
    -------
    Model
        Without the effect, and without Deterministics of it or of data. Records are ``pm.Data`` of shape (people,
        most records of one, ...), and the observed variable says which of them are there.

    Raises
    ------
    UnsupportedModelError
        If the effect is not normal, or the likelihood does not split by persons.
    PrivacyConfigurationError
        If there is no such variable.

    Notes
    -----
    Evenly spaced points, around the mean of the person's integrand and as wide as it is: see
    :func:`~pymc_dp.quadrature.log_expectation`.

    Nothing is released, and nothing is charged: it is a change of the model. The largest number of records of one
    person becomes a size in it, and is public.

    Examples
    --------
    >>> with pm.Model(coords={"person": people}) as panel:             # doctest: +SKIP
    ...     u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="person")
    ...     b = pm.Normal("b", 0, 1)
    ...     pm.Normal("y", u[person] + b * x, 1, observed=y)
    >>> idata = sample(integrate_out(panel, "u"), epsilon=1)           # doctest: +SKIP
    """
    points = whole("points", points, 5)
    u = _effect_named(model, effect)
    _refuse_dependents(model, u)
    panel = panel_of(model, u)
    template = _template(model, u, panel)
    person = (model.named_vars_to_dims.get(u.name) or ("person",))[0]
    slot = f"record_of_{person}"
    others = [rv for rv in model.free_RVs if rv is not u]
    dims = [leaf.values.ndim - 1 + (leaf in panel.of_records) for leaf in panel.leaves]
    dims += [rv.ndim for rv in others]

    def logp(there: Variable, *given: Variable) -> Variable:
        # A parameter that all share has been given an axis of length 1 for people.
        shared = [x[0] if x.ndim > k else x for x, k in zip(given[1:], dims, strict=True)]
        of_people = list(given[1 : 1 + len(panel.leaves)])
        return _log_integral(panel, template, there, of_people, shared[len(of_people) :], points)

    gone = [u, *model.observed_RVs, *(leaf.variable for leaf in panel.leaves)]
    integrated = without(model, gone + ([panel.person.variable] if panel.person else []))
    outcome = model.observed_RVs[0].name
    setattr(integrated, DECLARED_UNIT, person)  # all records of one are one now
    with integrated:
        for dim, length in zip((person, slot), panel.there.shape, strict=True):
            if dim not in integrated.dim_lengths:
                integrated.add_coord(dim, range(length))
        there = pm.Data(f"{outcome}_is_there", panel.there, dims=(person, slot))
        data = []
        for leaf in panel.leaves:
            axes = [person, *([slot] if leaf in panel.of_records else [])]
            axes += [f"{leaf.name}_axis_{k}" for k in range(1, leaf.values.ndim)]
            data.append(pm.Data(leaf.name, panel.values(leaf), dims=axes))
        pm.CustomDist(
            outcome,
            there,
            *data,
            *(integrated[rv.name] for rv in others),
            logp=logp,
            signature=_signature(panel, dims),
            observed=there,
            dims=(person, slot),
        )
    return integrated


def _effect_named(model: pm.Model, name: str) -> Variable:
    having = [
        rv
        for rv in model.free_RVs
        if rv.name == name or name in model.named_vars_to_dims.get(rv.name, ())
    ]
    exact = [rv for rv in having if rv.name == name]
    if len(exact or having) != 1:
        raise PrivacyConfigurationError(
            f"`integrate_out` takes the name of one free variable. {name!r} is "
            + (f"a dimension of {[rv.name for rv in having]}." if having else "none of ")
            + (
                ""
                if having
                else f"{[rv.name for rv in model.free_RVs]}, nor a dimension of theirs."
            )
        )
    (u,) = exact or having
    if not isinstance(u.owner.op, NormalRV) or u.ndim != 1 or model.rvs_to_transforms[u]:
        raise UnsupportedModelError(
            f"{u.name!r} is not normal with one value per person, so it cannot be integrated out. Write it as "
            f"`pm.Normal({u.name!r}, mu, sigma, dims='person')`."
        )
    return u


def _refuse_dependents(model: pm.Model, u: Variable) -> None:
    """The effect may reach the observed variables and nothing else that is a part of the density."""
    if model.potentials:
        raise UnsupportedModelError("`integrate_out` takes models without a `pm.Potential`.")
    for rv in model.free_RVs:
        if rv is not u and u in ancestors(
            [rv], blockers=[x for x in model.free_RVs if x is not rv]
        ):
            raise UnsupportedModelError(
                f"The prior of {rv.name!r} depends on {u.name!r}, so the integral is not one person's."
            )
    for rv in model.observed_RVs:
        if u not in ancestors([rv], blockers=model.free_RVs):
            raise UnsupportedModelError(
                f"The observed variable {rv.name!r} does not depend on {u.name!r}, so its records are not a "
                "person's. Sample it in a model of its own, on one ledger."
            )


def _template(model: pm.Model, u: Variable, panel: Panel) -> _Template:
    names = [rv.name for rv in model.observed_RVs]
    leaves = [*panel.leaves, *([panel.person] if panel.person else [])]
    axes = [0] * len(names)
    n = count_records(model, axes)
    roles = Roles(
        n_records=n,
        unit="",
        unit_of_record=None,
        n_units=n,
        record_dims=record_dims_of(model, axes, None),
        record_data=tuple(leaves),
        observed_axes=tuple(axes),
        public_data=(),
    )
    with quoting_nothing(f"The log-likelihood of {names} could not be derived ({{error}})."):
        rvs, values, parameters, rows = rebuild_observed(model, roles)
        densities = conditional_logp(dict(zip(rvs, values, strict=True)))
        # Outside a parameter's domain a record has density 0; PyMC would refuse all of them.
        terms = strip_checks(
            sum_observed([densities[v] for v in values], names, axes), records=set(rows)
        )
        known = {leaf.variable: row for leaf, row in zip(leaves, rows, strict=True)}
        known |= dict(zip(model.free_RVs, parameters, strict=True))
        mean, spread = with_rows(u.owner.op.dist_params(u.owner), known)
    k = list(model.free_RVs).index(u)
    others = [*parameters[:k], *parameters[k + 1 :]]
    return _Template(terms, mean, spread, rows, parameters[k], others)


def _log_integral(
    panel: Panel,
    template: _Template,
    there: Variable,
    data: Sequence[Variable],
    parameters: Sequence[Variable],
    points: int,
) -> Variable:
    """Log of the integral, shape (people,)."""
    people, slots = there.shape[0], panel.there.shape[1]
    shared = dict(zip(template.parameters, parameters, strict=True))
    of_people = list(zip(template.rows, data, strict=False))[len(panel.of_records) :]
    moments = with_rows([template.mean, template.spread], {**shared, **dict(of_people)})
    mean, spread = (pt.broadcast_to(v, (people,))[:, None] for v in moments)

    def log_f(z: Sequence[Variable]) -> Variable:
        """Of shape (people, points): a row of the records for every point of every person."""
        points = z[0].shape[1]
        known = {**shared, template.effect: (mean + spread * z[0]).ravel()}
        for k, (row, leaf, values) in enumerate(
            zip(template.rows, panel.leaves, data, strict=False)
        ):
            rest = ([slots] if k < len(panel.of_records) else []) + list(leaf.values.shape[1:])
            each = pt.broadcast_to(values[:, None], (people, points, *rest))
            known[row] = each.reshape((-1, *leaf.values.shape[1:]))
        if panel.person is not None:
            who = pt.broadcast_to(pt.arange(people * points)[:, None], (people * points, slots))
            known[template.rows[-1]] = who.ravel().astype(template.rows[-1].type.dtype)
        (terms,) = with_rows([template.terms], known)
        terms = terms.reshape((people, points, slots))
        # Also where everybody has as many: whether they have would tell of one who has not.
        terms = pt.switch(there[:, None] > 0.5, terms, 0.0)
        return terms.sum(axis=2)

    return log_expectation(log_f, people, 1, points)


def _signature(panel: Panel, dims: Sequence[int]) -> str:
    """Of the observed variable: the axes of every input besides that of people."""
    inputs = ["(slot)"]
    for k, ndim in enumerate(dims):
        slot = k < len(panel.of_records)
        inputs.append(f"({','.join(['slot'] * slot + [f'a{k}_{i}' for i in range(ndim - slot)])})")
    return ",".join(inputs) + "->(slot)"
