r"""Integrate a normal effect per person out of a likelihood, so that a person's log-likelihood is one number.

With records :math:`y_{jt}` of person j and an effect :math:`u_j \sim N(m, \tau^2)`, the new model has

.. math:: \ell_j(\theta) = \log \int N(u;\, m, \tau^2) \prod_t p(y_{jt} \mid u, \theta)\, du

in place of them: one record per person, and no :math:`u_j`. Its outcomes are drawn as the model has them: first :math:`u_j`, then records.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.logprob.basic import conditional_logp
from pytensor.graph.basic import Variable
from pytensor.raise_op import Assert
from pytensor.tensor.random.basic import NormalRV

from pymc_dp.checks import whole
from pymc_dp.compat import ancestors, graph_inputs, index_axes, io_toposort
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.likelihood.compilation import strip_checks
from pymc_dp.likelihood.nodes import data_nodes, quoting_nothing
from pymc_dp.likelihood.origins import lengths_of_leaves
from pymc_dp.likelihood.panel import Panel, panel_of
from pymc_dp.likelihood.record_graph import rebuild_observed, sum_observed
from pymc_dp.likelihood.roles import Roles
from pymc_dp.likelihood.rows import repeated, with_rows
from pymc_dp.likelihood.simulated import OWN_LAW, has_ends_of_records
from pymc_dp.likelihood.unit import DECLARED_UNIT, count_records, record_dims_of
from pymc_dp.likelihood.without import without
from pymc_dp.quadrature import log_expectation


class _Template(NamedTuple):
    """The likelihood of records and the effect's prior, as functions of symbolic rows and parameters.

    Parameters
    ----------
    terms : Variable, shape (records,)
    outcomes : list of Variable
        Whose log-likelihoods these are.
    mean, spread : Variable
        Of the prior.
    rows : list of Variable
        One for each of a panel's leaves, and one for its index.
    length : Variable
        Of them.
    effect : Variable
    parameters : list of Variable
        All others, in the model's order, and data that have no rows.
    names : list of str
        Of these.
    """

    terms: Variable
    outcomes: list[Variable]
    mean: Variable
    spread: Variable
    rows: list[Variable]
    length: Variable
    effect: Variable
    parameters: list[Variable]
    names: list[str]


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

    Outcomes of the new model are drawn by its own law, an effect for each person first: where there is one observed variable, none of its
    laws reads what came before, and bounds of censoring are not of each record. So information is that of the model's outcomes, and costs nothing if all
    else that the likelihood reads is `public`.

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
    law = _Law(panel, template, _outcome_of(model, panel), points)

    gone = [u, *model.observed_RVs, *(leaf.variable for leaf in panel.leaves)]
    integrated = without(model, gone + ([panel.person.variable] if panel.person else []))
    outcome = model.observed_RVs[0].name
    setattr(integrated, DECLARED_UNIT, person)  # all records of one are one now
    with integrated:
        for dim, length in zip((person, slot), panel.there.shape, strict=True):
            if dim not in integrated.dim_lengths:
                integrated.add_coord(dim, range(length))
        there, data = [], []
        if panel.person:
            there = [pm.Data(f"{outcome}_is_there", panel.there, dims=(person, slot))]
        for leaf in panel.leaves:
            axes = [person, *([slot] if leaf in panel.of_records else [])]
            axes += [f"{leaf.name}_axis_{k}" for k in range(1, leaf.values.ndim)]
            data.append(pm.Data(leaf.name, panel.values(leaf), dims=axes))
        observed = data.pop(law.outcome)
        rv = pm.CustomDist(
            outcome,
            *there,
            *data,
            *(integrated[name] for name in template.names),
            logp=law.logp,
            signature=law.signature,
            observed=observed,
            dims=integrated.named_vars_to_dims[observed.name],
            dist=law.drawn,
        )
    setattr(type(rv.owner.op), OWN_LAW, True)
    return integrated


def _outcome_of(model: pm.Model, panel: Panel) -> int:
    """Which of a panel's leaves the first observed variable was observed as."""
    first = model.observed_RVs[0]
    nodes = data_nodes([model.rvs_to_values[first]])
    places = [k for k, leaf in enumerate(panel.leaves) if leaf.variable in nodes]
    if len(places) != 1:
        raise UnsupportedModelError(
            f"What was observed of {first.name!r} is not an array of its own, with a row per record: it is "
            "the index of persons, perhaps."
        )
    return places[0]


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
    length = pt.lscalar("n")
    with quoting_nothing(f"The log-likelihood of {names} could not be derived ({{error}})."):
        rvs, values, parameters, rows = rebuild_observed(model, roles, length)
        densities = conditional_logp(dict(zip(rvs, values, strict=True)))
        # Outside a parameter's domain a record has density 0; PyMC would refuse all of them.
        terms = strip_checks(
            sum_observed([densities[v] for v in values], names, axes), records=set(rows)
        )
        known = {leaf.variable: row for leaf, row in zip(leaves, rows, strict=True)}
        known |= dict(zip(model.free_RVs, parameters, strict=True))
        mean, spread = with_rows(u.owner.op.dist_params(u.owner), known)
    k = list(model.free_RVs).index(u)
    # What is drawn is inside of a law, which reads nothing but what it is given.
    known = {v: pt.constant(int(v.eval()), dtype="int64") for v in model.dim_lengths.values()}
    terms, mean, spread, *laws = with_rows([terms, mean, spread, *rvs], known)
    if panel.person:
        terms, *laws = with_rows([terms, *laws], _read_by_person([terms, *laws], rows[-1]))
    # What nothing reads is the prior's own business, as a scale of groups' effects: a law that had it as an input would seem to read it.
    used = dict.fromkeys(ancestors([terms, mean, spread, *laws]))
    free = zip(parameters, model.free_RVs, strict=True)
    inputs = {v: rv.name for v, rv in free if v in used and rv is not u}
    inputs |= {v: v.name for v in used if v in model.data_vars}
    return _Template(
        terms, laws, mean, spread, rows, length, parameters[k], list(inputs), list(inputs.values())
    )


def _read_by_person(outputs: Sequence[Variable], person: Variable) -> dict[Variable, Variable]:
    """What is read by the index of persons, with what it is read from: in its place, as every row gets its person's values."""
    return {
        node.outputs[0]: node.inputs[0]
        for node in io_toposort(list(graph_inputs(outputs)), list(outputs))
        if index_axes(node) == [(1, 0)] and node.inputs[1:] == [person]
    }


class _Law(NamedTuple):
    """A person's outcomes, given what else the likelihood reads of their records, and all parameters but the effect.

    Parameters
    ----------
    panel : Panel
    template : _Template
    outcome : int
        Which of the panel's leaves these are.
    points : int
        Of the quadrature.
    """

    panel: Panel
    template: _Template
    outcome: int
    points: int

    @property
    def can_be_drawn(self) -> bool:
        """Whether there is one outcome, no law reads what came before it, and records bring no bounds along."""
        laws, rows = self.template.outcomes, self.template.rows
        read = ancestors(laws, blockers=lengths_of_leaves(laws))
        one = len(laws) == 1 and rows[self.outcome] not in read
        return one and not has_ends_of_records(laws, rows)

    @property
    def signature(self) -> str:
        """The axes of every input, and of outcomes, besides that of people."""
        panel = self.panel
        axes = [
            ["slot"] * (leaf in panel.of_records)
            + [f"a{k}_{i}" for i in range(1, leaf.values.ndim)]
            for k, leaf in enumerate(panel.leaves)
        ]
        of_outcome = axes.pop(self.outcome)
        axes += [
            [f"p{k}_{i}" for i in range(x.ndim)] for k, x in enumerate(self.template.parameters)
        ]
        inputs = [["slot"]] * (panel.person is not None) + axes
        return ",".join(f"({','.join(x)})" for x in inputs) + f"->({','.join(of_outcome)})"

    def logp(self, value: Variable, *given: Variable) -> Variable:
        """Log of the integral, shape (people,)."""
        there, data, shared = self._given(given, value)
        # Of `there` as long as it is read: of two arrays PyTensor asserts all over the graph that they are as long.
        people, slots = (value if there is None else there).shape[0], self.panel.there.shape[1]
        mean, spread = self._moments(people, data, shared)

        def log_f(z: Sequence[Variable]) -> Variable:
            """Of shape (people, points): a row of the records for every point of every person."""
            effects = mean[:, None] + spread[:, None] * z[0]
            shape = people, self.points, slots
            (terms,) = with_rows([self.template.terms], self._known(shape, data, shared, effects))
            terms = terms.reshape(shape)
            if there is not None:
                # Also where everybody has as many: whether they have would tell of one who has not.
                terms = pt.switch(there[:, None] > 0.5, terms, 0.0)
            return terms.sum(axis=2)

        return log_expectation(log_f, people, 1, self.points)

    def drawn(self, *given: Variable) -> Variable:
        """Outcomes, shape (people, ...): of effects that are drawn, and records given these."""
        *inputs, size = given
        people = 1 if rv_size_is_none(size) else size[0]  # PyMC asks for the number of axes first
        leaf = self.panel.leaves[self.outcome]
        slots = self.panel.there.shape[1]
        of_one = [slots] * (leaf in self.panel.of_records) + list(leaf.values.shape[1:])
        nothing = pt.zeros((people, *of_one), leaf.values.dtype)
        if not self.can_be_drawn:
            why = "A person's outcomes are not drawn: several variables, a law that reads the past, or bounds of each record"
            return Assert(why)(nothing, False)
        _, data, shared = self._given(inputs, nothing)  # of which laws read the length, at most
        u = pm.Normal.dist(*self._moments(people, data, shared))[:, None]
        (law,) = with_rows(self.template.outcomes, self._known((people, 1, slots), data, shared, u))
        return law.reshape(nothing.shape)

    def _given(
        self, given: Sequence[Any], value: Variable
    ) -> tuple[Variable | None, list[Any], dict[Variable, Variable]]:
        """Which records are there, data in the panel's order, and what parameters are."""
        there, *rest = given if self.panel.person else [None, *given]
        many = len(self.panel.leaves) - 1
        data = [*rest[: self.outcome], value, *rest[self.outcome : many]]
        return there, data, dict(zip(self.template.parameters, rest[many:], strict=True))

    def _moments(
        self, people: Variable | int, data: Sequence[Any], shared: Mapping[Variable, Variable]
    ) -> list[Variable]:
        """Mean and spread of every person's effect, shape (people,)."""
        of_rows = zip(self.template.rows, data, strict=False)
        of_people = list(of_rows)[len(self.panel.of_records) :]
        found = with_rows([self.template.mean, self.template.spread], {**shared, **dict(of_people)})
        return [pt.broadcast_to(v, (people,)) for v in found]

    def _known(
        self, shape: tuple[Variable | int, ...], data: Sequence[Any], shared: Mapping[Variable, Variable],
        effects: Variable,
    ) -> dict[Variable, Variable]:  # fmt: skip
        """Rows of a shape (people, points, slots): records as often as there are effects of theirs, shape (people, points).

        What is of people is repeated too, and looked up by nobody: derivatives of an index are slow to compile and to compute.
        """
        panel, rows = self.panel, self.template.rows
        known = {**shared, self.template.effect: repeated(effects, shape, 2)}
        known[self.template.length] = math.prod(shape)
        for row, leaf, values in zip(rows, panel.leaves, data, strict=False):
            new = [1] if leaf in panel.of_records else [1, 2]
            known[row] = repeated(values, shape, *new)
        if panel.person is not None:
            known[rows[-1]] = pt.arange(math.prod(shape)).astype(rows[-1].type.dtype)
        return known
