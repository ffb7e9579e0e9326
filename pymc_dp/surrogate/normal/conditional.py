r"""Draws of a law of what the likelihood reads, times the exact prior: what is normal given the rest is drawn given the rest.

With h the rest of θ and ε standard normal given it, :math:`\psi = A(h) + G(h)\, \varepsilon`. So the law
:math:`e^{k^\top u - u^\top K u / 2}` of :math:`u = \psi - \psi_0`, times the prior, is that of h,

.. math:: \log p(h) + k^\top a - \tfrac12 a^\top K a + \tfrac12 l^\top P^{-1} l - \tfrac12 \log\det P, \qquad
    P = 1 + G^\top K G, \quad l = G^\top (k - K a), \quad a = A(h) - \psi_0,

and :math:`\varepsilon \sim N(P^{-1} l, P^{-1})` given h. However strong the data, there is no funnel, and no ridge of ``z * tau``.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.multivariate import ZeroSumNormalRV
from pymc.distributions.transforms import ZeroSumTransform
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace, vectorize_graph
from pytensor.tensor.random.basic import (
    CauchyRV,
    LogisticRV,
    MvNormalRV,
    NormalRV,
    StudentTRV,
)

from pymc_dp.compat import ancestors, lower_named_dims
from pymc_dp.likelihood.compilation import interpreted
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.linalg import Vector, inverse_root, positive, symmetric
from pymc_dp.surrogate.normal.draws import draws_of, highest
from pymc_dp.surrogate.normal.fit import improbable
from pymc_dp.surrogate.normal.law import Law, Posterior
from pymc_dp.surrogate.normal.model import NormalSurrogate
from pymc_dp.surrogate.normal.read_part import ReadPart

_STEP = 1e-4
"""Of a numerical second derivative."""
_SEEN = 0.5
"""Of an entry's information, what noise leaves if it is not drowned. With half and twice as much coefficients under a horseshoe are the same
(`benchmarks/many_parameters.py constants`), of which noise drowns none: what it does to those that are drowned is not measured."""
_APART = 1e-6
"""Of prior variances, what is added to them: numbers of which one follows from the others have no precision together."""
_SCALES = 100
"""Draws of scales, by the least of which it is decided what is centred. With 10 and 1,000, of 40 t coefficients as many of 2,000 draws are effective (1,155 to 1,416 at ε = .3,
1,806 to 1,863 at 1). With the scale where h is most probable in their place the logarithm of one that two effects with an unknown mean tell of has an sd of .94 and 1.02,
exact 1.15 (`tests/steps/test_read_part.py`)."""
_LOCATION_SCALE = {StudentTRV: 1, CauchyRV: 0, LogisticRV: 0}
"""Smooth laws of a location and a scale, and which of their parameters is the location; the scale follows. With Laplace's, whose mode is a kink that has
no curvature, 8 of 2,000 draws of 40 coefficients are effective where none is centred, and 1,300 as they are."""


class _Split(NamedTuple):
    """θ, made of the rest and of ε, the sum of the logarithms of what both are scaled by, and scales of the entries of θ that may be centred in part, 1 of others."""

    rest: Variable
    noise: Variable
    theta: Variable
    log_scale: Variable
    scales: Variable


class ConditionalLaw:
    """The law of ψ(θ) as one of what is not normal given the rest. Compiled once, for any numbers.

    Parameters
    ----------
    compiled : CompiledModel
        Whose prior it is.
    part : ReadPart
        Whose ψ it is.
    """

    def __init__(self, compiled: CompiledModel, part: ReadPart):
        self._compiled, self._part = compiled, part
        parameters, model = compiled.parameters, compiled.model
        theta, whole = part.reading.theta, part.reading.psi
        density = model.logp(vars=[*model.free_RVs, *model.potentials], sum=True)
        (density,), at = parameters.join([density])
        density = lower_named_dims(density)
        self._centred = pytensor.shared(np.zeros(compiled.d), "centred", shape=(compiled.d,))

        def of(split: _Split) -> list[Variable]:
            there = {theta: split.theta, at: split.theta}
            return clone_replace([whole, density], there, rebuild_strict=False)

        normal: list[Variable] = []
        candidates = [rv for rv in model.free_RVs if _is_normal(model, rv)]
        for some in ([candidates], [[rv] for rv in candidates]):
            for more in some:
                split = _split(parameters, [*normal, *more], self._centred)
                if _is_normal_given_rest(split, *of(split)):
                    normal = [*normal, *more]
            if normal:
                break
        self._split = split = _split(parameters, normal, self._centred)
        psi_at, density = of(split)
        n, q = psi_at.type.shape[0], split.noise.type.shape[0]
        numbers = {"K": np.zeros((n, n)), "k": np.zeros(n), "centre": np.zeros(n)}
        self._law = {
            name: pytensor.shared(x, name=name, shape=x.shape) for name, x in numbers.items()
        }
        K, k = self._law["K"], self._law["k"]
        without = {split.noise: pt.zeros(q)}
        A, density, log_scale, theta_at, scales = clone_replace(
            [psi_at, density, split.log_scale, split.theta, split.scales],
            without,
            rebuild_strict=False,
        )
        a = A - self._law["centre"]
        value = density + log_scale + pt.dot(k, a) - pt.dot(a, K @ a) / 2
        zeta = pt.vector("zeta", shape=(q,))
        if q:
            G = (vectorize_graph(psi_at, {split.noise: pt.eye(q)}) - A).T
            L = pt.linalg.cholesky(pt.eye(q) + G.T @ (K @ G))
            y = pt.linalg.solve_triangular(L, G.T @ (k - K @ a), lower=True)
            value += pt.dot(y, y) / 2 - pt.sum(pt.log(pt.diag(L)))
            noise = pt.linalg.solve_triangular(L.T, y + zeta, lower=False)
            theta_at, psi_at = clone_replace(
                [split.theta, psi_at], {split.noise: noise}, rebuild_strict=False
            )
            spread = G @ G.T
        else:
            spread = pt.zeros((n, n))
        self._value = value
        (own,) = clone_replace([value])  # rewriting changes the graph
        own = rewrite_pregrad(own)
        slope = pytensor.grad(own, split.rest, disconnected_inputs="ignore")
        settings: Any = {"mode": interpreted(), "on_unused_input": "ignore"}
        self._density = pm.compile([split.rest], [own, slope], **settings)
        self._at = pm.compile([split.rest, zeta], [theta_at, psi_at, spread, scales], **settings)
        names = [model.rvs_to_values[rv].name for rv in normal]
        places = parameters.point(np.arange(parameters.d))
        self._rest = np.concatenate([
            np.zeros(0, np.int64), *(at.ravel() for name, at in places.items() if name not in names)
        ])  # fmt: skip
        scaled = np.zeros(compiled.d, dtype=bool)
        for rv in model.free_RVs:
            scaled[places[model.rvs_to_values[rv].name]] = _is_scaled(model, rv)
        self._scaled = np.flatnonzero(scaled[self._rest])
        self._start = self._centre = np.where(scaled, 0.0, parameters.start)[self._rest]
        self._root = np.eye(len(self._rest))
        self._q, self._normal = q, normal

    @property
    def covers_funnels(self) -> bool:
        """Whether all that the likelihood reads, and whose prior has parameters of its own, is normal given them, or of their location and scale: so that the density of the rest has a mode."""
        model = self._compiled.model
        read = set(ancestors(model.observed_RVs, blockers=model.free_RVs))
        scaled = [v for v in model.free_RVs if _is_scaled(model, v)]
        left = [v for v in model.free_RVs if v in read and v not in [*self._normal, *scaled]]
        given = {x for v in left for x in ancestors(v.owner.inputs)}
        return bool(self._normal or scaled) and not given.intersection(model.free_RVs)

    def judged(self, found: NormalSurrogate) -> NormalSurrogate:
        """Take the law that was found, and judge it by the prior that it makes of hyperparameters: a search takes one for all of them.

        Where h is most probable is found for that, and about there it is drawn.
        """
        law, of_all = found.posterior.law, self._part.prior
        theta, psi, covariance = self._mode_of(law)
        variances, given = -np.diag(np.linalg.inv(of_all.hessian(psi))), np.diag(covariance)
        # What h determines has any value that all of the prior has.
        Λ = np.linalg.inv(covariance + np.diag(np.where(given > 0, _APART * given, variances)))
        # Of an entry that its prior would hold without noise, too, more was learnt than the prior has left.
        seen = np.diag(law.K) > _SEEN * np.diag(law.J)
        before = np.where(seen | (given == 0), variances, given)
        posterior = Posterior(law, psi, law.K + Λ, law.J + Λ, Λ, before)
        nats = improbable(self._compiled.log_public, self._compiled.parameters.start, theta)
        of_psi = np.where(self._part.reading.derivative(theta) != 0, nats, -np.inf).max(axis=1)
        return replace(found, posterior=posterior, improbable=of_psi)

    def _mode_of(self, law: Law) -> tuple[Vector, Vector, Vector]:
        """θ and ψ where h is most probable, and the prior's covariance of ψ given it."""
        for name, value in self._law.items():
            value.set_value(getattr(law, name))
        self._centred.set_value(np.zeros(self._compiled.d))
        self._centre = highest(self._density, self._start)
        self._root = inverse_root(positive(self._hessian(), 1.0))
        if len(self._scaled):
            self._centre = self._partly_centred(law)
            self._root = inverse_root(positive(self._hessian(), 1.0))
        theta, psi, covariance, _ = self._at(self._centre, np.zeros(self._q))
        return theta, psi, covariance

    def _partly_centred(self, law: Law) -> Vector:
        """The same h, where entries of a location-scale law are centred as far as the law knows them (Papaspiliopoulos, Roberts and Sköld, 2007), however small their scale may be.

        Not the density's mode in these coordinates: it may have none.
        """
        places, none = self._rest[self._scaled], np.zeros(self._q)
        theta, psi, spread, scales = self._at(self._centre, none)
        x = np.random.default_rng(0).standard_normal((_SCALES, len(self._centre)))
        least = np.min([self._at(h, none)[3] for h in self._centre + x @ self._root], axis=0)
        D = self._part.reading.derivative(theta)[:, places]
        # With what is normal given h integrated out: of an effect whose mean is free the law knows less.
        K = np.linalg.solve(np.eye(len(psi)) + law.K @ spread, law.K)
        known = least[places] ** 2 * np.sum(D * (K @ D), axis=0)
        centred, h = np.zeros(len(theta)), self._centre.copy()
        centred[places] = c = known / (1 + known)
        h[self._scaled] *= scales[places] ** c
        self._centred.set_value(centred)
        return h

    def _hessian(self) -> Vector:
        steps = _STEP * np.eye(len(self._centre))
        H = [self._density(self._centre - e)[1] - self._density(self._centre + e)[1] for e in steps]
        return symmetric(np.reshape(H, (len(steps),) * 2) / (2 * _STEP))

    def sample(self, draws: int, chains: int, seed: int, nuts_sampler: str = "pymc") -> Vector:
        """Draws of θ, shape (chains, draws, d): of h by NUTS, as :func:`draws_of` takes it, and of what is normal given it exactly."""
        if not len(self._rest):
            return self.approximated(draws, chains, seed)
        centre, root = (pytensor.shared(x, shape=x.shape) for x in (self._centre, self._root))

        def log_density(x: Variable) -> Any:
            (value,) = graph_replace([self._value], {self._split.rest: centre + root @ x})
            return value

        return self._thetas(
            draws_of(log_density, np.zeros(len(self._rest)), draws, chains, seed, nuts_sampler),
            seed,
        )

    def approximated(self, draws: int, chains: int, seed: int) -> Vector:
        """The same at once, as if h were normal about its mode."""
        rng = np.random.default_rng(seed)
        return self._thetas(rng.standard_normal((chains, draws, len(self._rest))), seed)

    def _thetas(self, x: Vector, seed: int) -> Vector:
        zetas = np.random.default_rng([seed, 1]).standard_normal((*x.shape[:2], self._q))
        rest = self._centre + x @ self._root
        found = [
            [self._at(h, zeta)[0] for h, zeta in zip(*each, strict=True)]
            for each in zip(rest, zetas, strict=True)
        ]
        return np.array(found)


def _is_normal(model: pm.Model, rv: Variable) -> bool:
    op, transform = rv.owner.op, model.rvs_to_transforms[rv]
    if isinstance(op, ZeroSumNormalRV):  # its values, one fewer, are independent
        return isinstance(transform, ZeroSumTransform)
    one_covariance = isinstance(op, MvNormalRV) and op.dist_params(rv.owner)[1].type.ndim == 2
    return transform is None and (isinstance(op, NormalRV) or one_covariance)


def _is_scaled(model: pm.Model, rv: Variable) -> bool:
    return model.rvs_to_transforms[rv] is None and type(rv.owner.op) in _LOCATION_SCALE


def _is_normal_given_rest(split: _Split, psi: Variable, density: Variable) -> bool:
    """Whether ψ is affine in ε, and ε standard normal: looked at in some places."""
    rng = np.random.default_rng(0)
    d, q = (v.type.shape[0] for v in (split.rest, split.noise))
    inputs, outputs = [split.rest, split.noise], [psi, density + split.log_scale]
    f = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    none, (e, g) = np.zeros(q), rng.normal(size=(2, q))
    for _ in range(2):
        h = rng.normal(size=d)
        (zero, here), (first, there), (second, _), (both, _) = (
            f(h, x) for x in (none, e, g, e + g)
        )
        affine = np.allclose(first + second - zero, both, rtol=1e-7, atol=1e-9)
        if not (affine and np.isclose(here - e @ e / 2, there, rtol=1e-9, atol=1e-7)):
            return False
    return True


def _split(parameters: ParameterSpace, normal: Sequence[Variable], centred: Variable) -> _Split:
    """θ with these variables as what makes them standard normal, in the model's order: laws may depend on earlier ones.

    Others of a location-scale law are :math:`m + s^{1 - c} x`, `centred` being c, of every entry of θ. Their location m is not centred by: given x their density is
    one of x and s alone then, and what is normal in m stays so.
    """
    model, values, log_scale = parameters.model, {}, pt.zeros(())
    scales, places = pt.ones(parameters.d), parameters.point(np.arange(parameters.d))
    names = {model.rvs_to_values[rv].name for rv in normal}
    sizes = {name: math.prod(shape) for name, shape in parameters.shapes.items()}
    q = sum(sizes[name] for name in names)
    rest, noise = pt.vector("rest", shape=(parameters.d - q,)), pt.vector("noise", shape=(q,))
    parts, starts = {}, {"rest": 0, "noise": 0}
    for value in model.value_vars:
        of, whole = ("noise", noise) if value.name in names else ("rest", rest)
        start, shape = starts[of], parameters.shapes[value.name]
        starts[of] += sizes[value.name]
        parts[value.name] = whole[start : starts[of]].reshape(shape)
    made = [
        rv
        for rv in model.free_RVs
        if model.rvs_to_values[rv].name in names or _is_scaled(model, rv)
    ]
    for rv in model.free_RVs:
        if rv not in made:
            value = model.rvs_to_values[rv]
            values[value] = value.type.filter_variable(parts[value.name].astype(value.type.dtype))
    for rv in made:
        value, op = model.rvs_to_values[rv], rv.owner.op
        part, shape = parts[value.name], parameters.shapes[value.name]
        law = model.replace_rvs_by_values(list(op.dist_params(rv.owner)))
        first, spread = clone_replace(
            [lower_named_dims(v) for v in law[_LOCATION_SCALE.get(type(op), 0) :]],
            values,
            rebuild_strict=False,
        )
        if isinstance(op, ZeroSumNormalRV):
            found, scale = first * part, pt.broadcast_to(first, shape)
        elif isinstance(op, MvNormalRV):
            root = pt.linalg.cholesky(spread)
            found, scale = first + part @ root.T, pt.broadcast_to(pt.diag(root), shape)
        elif value.name in names:
            found, scale = first + spread * part, pt.broadcast_to(spread, shape)
        else:
            left = 1 - centred[places[value.name]]
            scale = spread**left
            found = first + scale * part
            scales = pt.set_subtensor(scales[places[value.name]], spread)
        values[value] = value.type.filter_variable(found.reshape(shape))
        log_scale += pt.sum(pt.log(scale))
    theta = pt.concatenate([values[v].astype("float64").ravel() for v in model.value_vars])
    return _Split(rest, noise, pt.specify_shape(theta, (parameters.d,)), log_scale, scales)
