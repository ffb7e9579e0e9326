"""Log-density of all that was published of counts, these summed out exactly."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.multivariate import DirichletMultinomialRV
from pytensor.graph.replace import vectorize_graph
from pytensor.scalar.basic import Exp
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random import basic as rv

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.count_pieces import no_pieces, pieces_of
from pymc_dp.mechanisms.count_sums import AnyCountSum, CountSum
from pymc_dp.mechanisms.distributions import log_noise
from pymc_dp.mechanisms.holding import held, is_held
from pymc_dp.mechanisms.law import NoiseLaw
from pymc_dp.mechanisms.publication import Publication
from pymc_dp.mechanisms.table_sums import TableSum

# Noise beyond so many scales has less than 1e-16 of its mass, even weighed by e^(scale^2/8).
_WIDTH = {"gaussian": 12, "laplace": 40}
# Of Poisson, binomial and multinomial counts, where terms cost memory but not time: exact to 1e-16
# even where the law of the count and the noise are at odds by 11 standard deviations.
_WIDE = {"gaussian": 20, "laplace": 60}
# Of logarithms of rates and odds: beyond, e^-700, is nothing in double precision.
_CERTAIN = 700.0


@dataclass(frozen=True, eq=False, repr=False)
class CountRelease:
    """One publication of a count, of a table, or of the sums over its last axis.

    Parameters
    ----------
    name : str
        Of the observed variable.
    law : NoiseLaw
    scale : ndarray
        Of the noise, of the shape of what was published; 0 where there is none.
    published : Publication
    margin : bool
        Whether it is of sums over the last axis.
    """

    name: str
    law: NoiseLaw
    scale: NDArray[np.float64]
    published: Publication
    margin: bool

    def log_probability(self, value: Any, k: Any) -> Any:
        """Of what was published, for counts k along one more axis."""
        a, b = self.published.interval(value, self.law.discrete)
        return log_noise(
            self.law.family,
            self.law.discrete,
            self.scale[..., None],
            a[..., None] - k,
            b[..., None] - k,
            self.published.plain,
        )

    @property
    def rough(self) -> NDArray[np.float64]:
        """See :func:`~pymc_dp.mechanisms.count_sums.terms`: intervals' ends are as smooth as the noise."""
        if self.law.family == "laplace":
            return np.full(self.scale.shape, np.inf)
        with np.errstate(divide="ignore"):
            rough = 1 / self.scale**2
        return np.where(self.published.plain & (self.scale > 0), 0.0, rough)


class Table(NamedTuple):
    """Log-probabilities of all that was published of a cell, for all counts that are possible.

    Attributes
    ----------
    k : TensorVariable, shape (*cells, width)
        Counts.
    log_g : TensorVariable, shape (*cells, width)
        Their log-probabilities.
    count : TensorVariable, shape cells
        How many of the counts are meant.
    rough : ndarray, shape cells
        See :func:`~pymc_dp.mechanisms.count_sums.terms`.
    above : TensorVariable of bool, shape cells
        Whether all larger counts are as possible as the largest.
    last : TensorVariable, shape cells
        The largest count.
    """

    k: Any
    log_g: Any
    count: Any
    rough: Any
    above: Any
    last: Any


def summed_out(total: Any, releases: Any, values: list[Any]) -> tuple[Any, Any]:
    """Log-density of all that was published of counts, and the means of the confidential ones given these.

    Parameters
    ----------
    total : TensorVariable
        Random variable: the counts.
    releases : sequence of CountRelease
    values : list of TensorVariable
        What was published.

    Returns
    -------
    tuple of TensorVariable
        Both of the shape of `total`; the first without the cells if they are not independent.
    """
    pairs = list(zip(releases, values, strict=True))
    if tied(total, releases):
        return _of_tables(total, pairs)
    law = _law(total)
    return _of_any(total, pairs) if law is None else _of_cells(total, law, pairs)


def _log_g(pairs: list[Any], k: Any) -> Any:
    """Log-probability of all that was published, for counts k along one more axis."""
    return sum(release.log_probability(value, k) for release, value in pairs)


def tied(total: Any, releases: Any) -> bool:
    """Whether cells are not independent given what was published."""
    return is_table(total.owner.op) or any(release.margin for release in releases)


def is_table(op: Any) -> bool:
    """Whether cells are one variable with a public total."""
    return isinstance(op, rv.MultinomialRV | DirichletMultinomialRV)


class _Law(NamedTuple):
    r"""A Poisson or binomial count: :math:`\exp(k \eta + h(k) - A)`, k at most `largest`; and its mean parameter.

    `natural` is η where the model has it: there is no need to go to the mean parameter and back.
    """

    eta: Any
    largest: Any
    A: Any
    p: Any
    natural: Any


def _law(total: Any) -> _Law | None:
    op = total.owner.op
    parameters = [x.astype("float64") for x in op.dist_params(total.owner)] if _is_law(op) else []
    if isinstance(op, rv.PoissonRV):
        (rate,) = parameters
        return _Law(_log(rate), pt.constant(np.inf), rate, rate, _before(rate, Exp))
    if isinstance(op, rv.BinomialRV):
        size, p = parameters
        eta = _log(p) - _log(1 - p)
        return _Law(eta, size, held(size) * pt.softplus(eta), p, _before(p, Sigmoid))
    return None


def _before(x: Any, function: type) -> Any:
    """What this function was taken of, if x is its value."""
    op = getattr(x.owner, "op", None)
    is_value = isinstance(op, Elemwise) and isinstance(op.scalar_op, function)
    return x.owner.inputs[0].astype("float64") if is_value else None


def widths_of(op: Any) -> dict[str, int]:
    """Scales of noise that are summed over, for counts of this law."""
    return _WIDE if _is_law(op) or isinstance(op, rv.MultinomialRV) else _WIDTH


def _is_law(op: Any) -> bool:
    return isinstance(op, rv.PoissonRV | rv.BinomialRV)


def _log(x: Any) -> Any:
    """Logarithm, finite and with the derivative 0 where x is 0: a structural zero is no parameter."""
    return pt.switch(x > 0, pt.maximum(pt.log(pt.switch(x > 0, x, 1.0)), -_CERTAIN), -_CERTAIN)


def _table(pairs: list[Any], largest: Any, shape: tuple[int, ...], wide: Any) -> Table:
    """Of counts of this shape that are at most `largest`."""
    low, high = pt.zeros(shape), pt.broadcast_to(largest, shape).astype("float64")
    largest, above, informed = high, pt.isinf(high), pt.zeros(shape)
    room, rough = np.full(shape, np.inf), np.zeros(shape)
    for release, value in pairs:
        a, b = release.published.interval(value, release.law.discrete)
        half = np.ceil(wide[release.law.family] * release.scale) + (release.scale > 0)
        low, high = pt.maximum(low, pt.ceil(a) - half), pt.minimum(high, pt.floor(b) + half)
        above, informed = above & pt.isinf(b), pt.maximum(informed, pt.ceil(a) + half)
        room, rough = np.minimum(room, 2 * half), rough + release.rough
    high = pt.switch(pt.isinf(high), pt.maximum(informed, low), high)
    # At odds with each other, or with the largest count: what is between, and as much as the noise allows.
    low, high = pt.minimum(low, high), pt.maximum(low, high)
    low = pt.clip(low, 0, pt.maximum(largest - room, 0))
    high = pt.minimum(pt.maximum(high, low + room), largest)
    width = _width(high - low, pairs, room)
    k = low[..., None] + np.arange(width)
    log_g = _log_g(pairs, k)
    k, log_g, count, above, high = held(k, log_g, high - low + 1, above, high)
    return Table(k, log_g, count, rough, above, high)


def _width(extent: Any, pairs: list[Any], room: NDArray[np.float64]) -> int:
    """How many counts a table has at most."""
    extent = held(extent)
    if is_held(extent):
        return int(extent.get_value().max()) + 1
    if all(release.published.plain for release, _ in pairs):
        return int(room.max()) + 1
    raise PrivacyConfigurationError(
        f"{pairs[-1][0].name!r}: what was rounded, cut off or suppressed needs known populations, and numbers as "
        "`observed`, not a `pm.Data`."
    )


def _log_counts(total: Any, law: _Law, k: Any) -> Any:
    """h(k)."""
    h = -pt.gammaln(k + 1)
    if isinstance(total.owner.op, rv.BinomialRV):
        n = law.largest[..., None]
        h = h + pt.gammaln(n + 1) - pt.gammaln(pt.maximum(n - k, 0) + 1)
    return h


def _ratios(c: Any) -> Any:
    """Of neighbouring terms."""
    return pt.concatenate([pt.ones_like(c[..., :1]), pt.exp(c[..., 1:] - c[..., :-1])], axis=-1)


def _of_cells(total: Any, law: _Law, pairs: list[Any]) -> tuple[Any, Any]:
    """Log-densities and means of Poisson or binomial counts."""
    shape = pairs[0][0].scale.shape
    table = _table(pairs, law.largest, shape, _WIDE)
    c = table.log_g + _log_counts(total, law, table.k)
    size = pt.broadcast_to(law.largest, shape)
    width = table.k.type.shape[-1]
    wide = [x.reshape((-1, width)) for x in (c, _ratios(c), table.log_g)]
    flat = [x.ravel() for x in (size, table.k[..., 0], table.count, pt.as_tensor(table.rough))]
    tensors = [flat[0], *wide[:2], *flat[1:], wide[2]]
    *known, log_g = held(*(x.astype("float64") for x in tensors))
    pieces = no_pieces(table.rough.size)
    if is_held(log_g):
        pieces = pieces_of([x.get_value() for x in known], log_g.get_value())
    natural = law.natural is not None
    x = law.natural if natural else law.p
    log_density, slope = CountSum(natural)(
        pt.broadcast_to(x, shape).ravel(), *known, *held(*pieces)
    )
    # The derivative of A by its natural parameter is the mean without what was published.
    p = pt.broadcast_to(law.p, shape)
    bounded = isinstance(total.owner.op, rv.BinomialRV)
    variance = p * (1 - p) if bounded else p
    mean = (law.largest * p if bounded else p) + slope.reshape(shape) * (1 if natural else variance)
    # All that is left of a structural zero (whose derivative is taken as 0, as it is no parameter), or of certainty.
    log_density = log_density.reshape(shape)
    certain = [(-np.inf if natural else 0.0, pt.zeros(shape))]
    if bounded:
        certain += [(np.inf if natural else 1.0, pt.broadcast_to(law.largest, shape))]
    for at, count in certain:
        alone = held(_log_g(pairs, count[..., None])[..., 0])
        log_density = pt.switch(pt.eq(x, at), alone, log_density)
    return _with_larger(total, table, log_density), mean


def _with_larger(total: Any, table: Table, log_density: Any) -> Any:
    """With all counts that are larger than those of the table, if there are."""
    above = table.above
    if is_held(above) and not above.get_value().any():
        return log_density
    last = table.last.astype(total.dtype)
    log_rest = pt.log1mexp(pt.minimum(pm.logcdf(total, last), -1e-300))
    return pt.switch(above, pt.logaddexp(log_density, log_rest), log_density)


def _of_any(total: Any, pairs: list[Any]) -> tuple[Any, Any]:
    """Log-density and mean of counts of any law, from its log-mass at all that are possible."""
    shape = pairs[0][0].scale.shape
    largest = pt.constant(np.inf)
    if isinstance(total.owner.op, rv.BetaBinomialRV):  # its log-mass is not a number beyond
        largest = total.owner.op.dist_params(total.owner)[0].astype("float64")
    table = _table(pairs, largest, shape, _WIDTH)
    c = _log_mass(total, table, largest)
    width = table.k.type.shape[-1]
    log_density, mean = AnyCountSum()(table.k.reshape((-1, width)), c.reshape((-1, width)))
    log_density = _with_larger(total, table, log_density.reshape(shape))
    return log_density, mean.reshape(shape)


def _log_mass(total: Any, table: Table, largest: Any) -> Any:
    """Logs of the terms of counts of any law."""
    meant = np.arange(table.k.type.shape[-1]) < table.count[..., None]
    counts = pt.minimum(table.k, largest[..., None])
    x = total.type()
    counts = pt.moveaxis(counts, -1, 0).astype(x.dtype)
    (log_mass,) = vectorize_graph([pm.logp(total, x)], {x: counts})
    return pt.switch(meant, pt.moveaxis(log_mass, 0, -1) + table.log_g, -np.inf)


def _of_tables(total: Any, pairs: list[Any]) -> tuple[Any, Any]:
    """Log-density and means of cells that are tied by their sum: a public total, or published margins."""
    op, shape = total.owner.op, pairs[0][0].scale.shape
    of_cells = [pair for pair in pairs if not pair[0].margin]
    of_sums = [pair for pair in pairs if pair[0].margin]
    largest, rest, target = pt.constant(np.inf), pt.zeros(()), pt.zeros(shape[:-1])
    law = _law(total)
    sums = None
    if is_table(op):
        size, a = (x.astype("float64") for x in op.dist_params(total.owner))
        largest = pt.broadcast_to(size, shape[:-1])[..., None]
        size = target = held(largest[..., 0])
    else:
        if law is not None:
            largest = law.largest
        every = pt.broadcast_to(largest, shape)
        sums = _table(of_sums, every.sum(axis=-1), shape[:-1], _WIDE)
        if is_held(sums.above) and sums.above.get_value().any():
            raise PrivacyConfigurationError(
                f"{pairs[-1][0].name!r}: a margin that is missing or cut off above does not bound counts that have no "
                "largest value. Leave it out, or model the counts as binomial."
            )
        every = pt.minimum(every, sums.last[..., None])
        largest = every
    table = _table(of_cells, largest, shape, _WIDE)
    widths = [table.k.type.shape[-1]]
    peaked = law is not None or isinstance(op, rv.MultinomialRV)
    eta: Any = pt.zeros(shape)
    start = held(table.k[..., 0])
    if law is not None:
        c, eta, rest = table.log_g + _log_counts(total, law, table.k), law.eta, -law.A
        rest = pt.broadcast_to(rest, shape).sum(axis=-1)
    elif isinstance(op, rv.MultinomialRV):
        c = table.log_g - pt.gammaln(table.k + 1)
        # Counts near their means from the start: the power of N is taken back.
        log_size = pt.log(pt.maximum(size, 1))
        eta = _log(a) + log_size[..., None]
        rest = pt.gammaln(size + 1) - size * log_size
    elif is_table(op):
        k, a = table.k, a[..., None]
        meant = np.arange(k.type.shape[-1]) < table.count[..., None]
        c = pt.switch(
            meant, pt.gammaln(k + a) - pt.gammaln(a) - pt.gammaln(k + 1) + table.log_g, -np.inf
        )
        whole = a[..., 0].sum(axis=-1)
        rest = pt.gammaln(size + 1) + pt.gammaln(whole) - pt.gammaln(size + whole)
    else:
        c = _log_mass(total, table, pt.constant(np.inf))
    eta = pt.broadcast_to(eta, shape)
    rest = rest + (start * eta).sum(axis=-1)
    count, rough = table.count, pt.as_tensor(table.rough)
    if sums is not None:
        # One more cell, of the counts -K.
        k = sums.last[..., None] - np.arange(sums.k.type.shape[-1])
        log_g = _log_g(of_sums, k)
        widths = [*widths, k.type.shape[-1]]
        c = _side_by_side(c, log_g, shape, widths)
        start, count, rough, eta = (
            pt.concatenate([x, y[..., None]], axis=-1)
            for x, y in ((start, -sums.last), (count, sums.count),
                         (rough, pt.as_tensor(sums.rough)), (eta, pt.zeros(shape[:-1])))
        )  # fmt: skip
    ratio = _ratios(c) if peaked else pt.zeros_like(c[..., :1])
    if peaked:
        c, ratio = held(c, ratio)
    start, count, rough = held(start, count, rough)
    cells, width = shape[-1] + (sums is not None), max(widths)
    log_sum, mean, _ = TableSum(peaked)(
        eta.reshape((-1, cells)),
        c.reshape((-1, cells, width)),
        ratio.reshape((-1, cells, width if peaked else 1)),
        *(x.reshape((-1, cells)) for x in (start, count, rough)),
        target.ravel(),
    )
    mean = mean.reshape((*shape[:-1], cells))[..., : shape[-1]]
    return log_sum.reshape(shape[:-1]) + rest, mean


def _side_by_side(c: Any, more: Any, shape: tuple[int, ...], widths: list[int]) -> Any:
    """Cells' terms and one more cell's, of the same width; what is filled up is not read, or impossible."""
    filled = []
    for x, cells, width in zip((c, more[..., None, :]), (shape[-1], 1), widths, strict=True):
        rest = pt.full((*shape[:-1], cells, max(widths) - width), -np.inf)
        filled.append(pt.concatenate([x, rest], axis=-1))
    return pt.concatenate(filled, axis=-2)
