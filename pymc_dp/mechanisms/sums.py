r"""A noisy sum over n records as one observed variable, the records integrated out.

By the central limit theorem the sum is normal, with n times the mean and covariance of one
record's statistic (:mod:`~pymc_dp.mechanisms.normal_sum`), which are sums over points
(:mod:`~pymc_dp.mechanisms.records`), put right at one parameter
(:mod:`~pymc_dp.mechanisms.reference`).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import equal_computations
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorConstant

from pymc_dp.checks import whole
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.distributions import draw_noise
from pymc_dp.mechanisms.holding import held
from pymc_dp.mechanisms.law import NoiseLaw
from pymc_dp.mechanisms.normal_sum import NoisySum
from pymc_dp.mechanisms.record_checks import check_areas, check_statistic
from pymc_dp.mechanisms.records import (
    FEW_POINTS,
    FEW_RECORDS,
    Record,
    random_variables,
    record_of,
    static_shape,
)
from pymc_dp.mechanisms.reference import (
    Correction,
    RecordMoments,
    Reference,
    find_reference,
    nothing_to_correct,
    warn_of_start,
)


@dataclass(frozen=True, eq=False)
class Entry:
    """What one mechanism has released.

    Parameters
    ----------
    name : str
        Of the observed variable.
    statistic : TensorVariable, shape (*areas, m)
        Of one record.
    v, b : ndarray, shape (m,)
        Variances of normal noise and scales of Laplace noise, 0 where there is none.
    """

    name: str
    statistic: Any
    v: NDArray[np.float64]
    b: NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class SumRelease:
    """Sums released of the same records: one mechanism's and all that came before.

    Parameters
    ----------
    record : Record
        With the statistics of all entries side by side.
    n : TensorVariable, shape areas
        Number of records.
    entries : tuple of Entry
        The last is the mechanism's own.
    latents : tuple of str
        Variables that stand for Laplace noise.
    points : int
        Per area.
    law : NoiseLaw
        Of the mechanism's own noise.
    reference : Reference or None
        Where the points are put right; None if they make no error.
    correction : tuple of ndarray
        Shift and factor of the points, shapes ``(*areas, m)`` and ``(*areas, m, m)``.
    """

    record: Record
    n: Any
    entries: tuple[Entry, ...]
    latents: tuple[str, ...]
    points: int
    law: NoiseLaw
    reference: Reference | None
    correction: Correction

    def correction_of(self, noise: NDArray[np.float64]) -> Correction:
        """Shift and factor of other points, shapes (areas, m) and (areas, m, m)."""
        if self.reference is None:
            return nothing_to_correct((math.prod(self.record.areas),), len(self.v))
        return self.reference.correction(noise)

    @property
    def v(self) -> NDArray[np.float64]:
        """Variances of normal noise."""
        return np.concatenate([entry.v for entry in self.entries])

    @property
    def b(self) -> NDArray[np.float64]:
        """Scales of Laplace noise."""
        return np.concatenate([entry.b for entry in self.entries])


class NoisySumRV(RandomVariable):
    """Entries of a noisy sum, given those that were released before of the same records."""

    name = "noisy_sum"
    _print_name = ("NoisySum", "\\operatorname{NoisySum}")
    __props__ = (*RandomVariable.__props__, "release")

    def __init__(self, release: SumRelease, **kwargs: Any):
        self.release = release
        super().__init__(**kwargs)

    def rng_fn(
        self, rng: Any, X: Any, w: Any, n: Any, earlier: Any, _: Any, like: Any, size: Any
    ) -> Any:
        """A normal sum, a regression on the earlier entries if there are any, and the noise."""
        law, v, b = self.release.law, self.release.v, self.release.b
        e = earlier.shape[-1]
        shift, F = self.release.correction
        mean = np.einsum("...k,...km->...m", w, X)
        centred = X - mean[..., None, :]
        mean = n[..., None] * (mean + shift)
        V = F @ np.einsum("...k,...ki,...kj->...ij", w, centred, centred) @ F.swapaxes(-1, -2)
        V = n[..., None, None] * V
        C = V + np.diag(v + 2 * b**2)
        gain = np.linalg.solve(C[..., :e, :e], V[..., :e, e:]).swapaxes(-1, -2)
        mean_own = mean[..., e:] + (gain @ (earlier - mean[..., :e])[..., None])[..., 0]
        values, vectors = np.linalg.eigh(V[..., e:, e:] - gain @ V[..., :e, e:])
        z = np.sqrt(np.maximum(values, 0)) * rng.standard_normal(mean_own.shape)
        total = mean_own + (vectors @ z[..., None])[..., 0]
        total = (np.rint(total) if law.discrete else total).reshape(n.shape + like.shape[n.ndim :])
        noise = draw_noise(rng, law.family, law.discrete, law.scale, total.shape)
        return np.asarray(total + noise).astype(self.dtype)


@_logprob.register(NoisySumRV)
def _(op: NoisySumRV, values: Any, rng: Any, size: Any, *parameters: Any, **kwargs: Any) -> Any:
    X, w, n, earlier, z, _ = parameters
    return log_density(op.release, X, w, n, earlier, z, held(values[0]))


def log_density(
    release: SumRelease, X: Any, w: Any, n: Any, earlier: Any, z: Any, value: Any
) -> Any:
    """Of a mechanism's own entries, given those that were released before, for every area."""
    value = value.reshape((*(value.shape[i] for i in range(n.ndim)), -1))
    logp = _of_entries(
        release, len(release.v), X, w, n, pt.concatenate([earlier, value], axis=-1), z
    )
    e = len(release.v) - len(release.entries[-1].v)
    return logp - _of_entries(release, e, X, w, n, earlier, z) if e else logp


def _of_entries(release: SumRelease, count: int, X: Any, w: Any, n: Any, s: Any, z: Any) -> Any:
    """:class:`NoisySum` of the first entries, with any number of axes of areas."""
    v, b = release.v[:count], release.b[:count]
    shift, factor = (held(x) for x in release.correction)
    z = z[..., : latent_size(b)]
    of_areas = X[..., :count], w, s, z, shift[..., :count], factor[..., :count, :count]
    X, w, s, z, shift, factor = (_flat(x, n.ndim) for x in of_areas)
    v, b = held(v, b)
    return NoisySum()(X, w, n.ravel(), v, b, s, z, shift, factor)[0].reshape(n.shape)


def _flat(x: Any, axes: int) -> Any:
    """With one axis of areas."""
    if axes < 2:
        return x if axes else x[None]
    return x.reshape((math.prod(x.shape[:axes]), *(x.shape[i] for i in range(axes, x.ndim))))


def moments_graph(release: SumRelease, model: pm.Model, noise: Any) -> list[Any]:
    """What :class:`NoisySum` takes at other points, as functions of the model's variables.

    Returns
    -------
    list of TensorVariable
        X, w, n, s and z with one axis of areas.
    """
    X, w = release.record.at(noise)
    n = release.n
    areas = n.ravel().shape[0]
    s = [model.rvs_to_values[model[entry.name]] for entry in release.entries]
    s = pt.concatenate([x.reshape((areas, -1)) for x in s], axis=-1)
    z = [model[name].reshape((areas, -1)) for name in release.latents]
    z = pt.concatenate(z, axis=-1) if z else pt.zeros((areas, 0))
    return [x.astype("float64") for x in (_flat(X, n.ndim), _flat(w, n.ndim), n.ravel(), s, z)]


def observe_sum(
    name: str,
    statistic: Any,
    *,
    n: Any,
    points: int | None,
    law: NoiseLaw,
    observed: Any,
    dims: Any,
    bounds: Any = None,
) -> Any:
    """Add the observed variable to the model whose context this is.

    Parameters
    ----------
    name : str
    statistic : TensorVariable, shape ``(*areas, ...)``
        Of one record.
    n : tensor_like, shape areas
        Number of records.
    points : int or None
        Points per area; by default few, which suffice once they are put right.
    law : NoiseLaw
        Of the noise, whose scale may be 0.
    observed : array or shared variable, shape ``(*areas, ...)``
    dims
        As in PyMC.
    bounds : tuple, optional
        Of the statistic as it was released.

    Raises
    ------
    PrivacyConfigurationError
        If shapes do not match, or the statistic leaves the bounds of what was released.
    UnsupportedModelError
        If the statistic is not one of a record that can be summed over.
    """
    model = pm.modelcontext(None)
    n = pt.as_tensor(n)
    people = n.data if isinstance(n, TensorConstant) else None
    few = people is not None and people.max(initial=0) <= FEW_RECORDS
    n = n.astype("float64")
    areas, shape = static_shape(n), static_shape(statistic)
    if shape[: len(areas)] != areas:
        raise PrivacyConfigurationError(
            f"{name!r}: `n` has shape {areas} and the statistic shape {shape}. The statistic of one "
            "record of every area comes first by area: its shape must begin with that of `n`."
        )
    core = shape[len(areas) :]
    v, b = variances(law, core)
    own = Entry(name, statistic.reshape((*areas, -1)).astype("float64"), v, b)
    before = _same_records(model, own, n)
    entries = (*(before.entries if before else ()), own)
    stacked = pt.concatenate([entry.statistic for entry in entries], axis=-1)
    record = record_of(name, stacked, areas, model)
    check_areas(name, record, model)
    check_statistic(name, record, model, people, len(v), law, bounds)
    points = whole("points", FEW_POINTS if points is None else points, 8)
    latents = before.latents if before else ()
    right = nothing_to_correct(areas, len(v) + sum(len(entry.v) for entry in entries[:-1]))
    release = SumRelease(record, n, entries, latents, points, law, None, right)
    z = [model[latent] for latent in latents]
    missing = latent_size(release.b) - sum(static_shape(x)[-1] for x in z)
    if missing:
        z.append(pm.Normal(f"{name}_latent", 0, 1, shape=(*areas, missing)))
        release = replace(release, latents=(*latents, f"{name}_latent"))
    noise = record.points(points)
    X, w = record.at(noise)
    nothing = pt.zeros((*areas, 0))
    earlier = [model[entry.name].reshape((*areas, -1)) for entry in entries[:-1]]
    given = (
        X,
        w,
        held(n),
        pt.concatenate(earlier, axis=-1).astype("float64") if earlier else nothing,
        pt.concatenate(z, axis=-1) if z else nothing,
    )
    if record.dimensions:
        moments = RecordMoments(record, model)
        still = moments.still_at_start()
        if still.any() or not few:
            smooth, seen = _with_normal_noise(release), pt.as_tensor(observed)

            def density(shift: Any, factor: Any) -> Any:
                axes = (*areas, -1), (*areas, *right[1].shape[-2:])
                correction = shift.reshape(axes[0]), factor.reshape(axes[1])
                return log_density(replace(smooth, correction=correction), *given, seen)

            none = release.correction_of(noise)
            reference = find_reference(moments, noise, n, model, density, none)
            shift, factor = reference.correction(noise)
            correction = shift.reshape(right[0].shape), factor.reshape(right[1].shape)
            release = replace(release, reference=reference, correction=correction)
            warn_of_start(name, still, reference)
    op = NoisySumRV(
        release, signature=_signature(len(core)), dtype="int64" if law.discrete else "float64"
    )
    parameters = [*given, np.zeros(core)]  # the shape of the last counts
    rng = pytensor.shared(np.random.default_rng(), name=f"{name}_rng")
    variable = op.make_node(rng, None, *map(pt.as_tensor, parameters)).outputs[1]
    return model.register_rv(variable, name, observed=observed, dims=dims)


def _with_normal_noise(release: SumRelease) -> SumRelease:
    """With Laplace noise replaced by normal noise of its variance: smooth, and without latents."""
    entries = tuple(
        replace(entry, v=entry.v + 2 * entry.b**2, b=0 * entry.b) for entry in release.entries
    )
    return replace(release, entries=entries)


def variances(
    law: NoiseLaw, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variances of normal noise and scales of Laplace noise, flat, the others being 0.

    Discrete noise is taken as continuous noise of the same variance.
    """
    scale = np.broadcast_to(law.scale, shape).ravel()
    nothing = np.zeros(scale.shape)
    if law.family == "gaussian":
        return scale**2, nothing
    if law.discrete:
        with np.errstate(divide="ignore"):
            scale = 0.5 / np.sinh(0.5 / scale)
    return nothing, scale


def latent_size(b: NDArray[np.float64]) -> int:
    """Number of latent variables that Laplace noise needs: none for a single entry."""
    return int((b > 0).sum()) if len(b) > 1 else 0


def sum_releases(model: pm.Model) -> list[SumRelease]:
    """The releases of a model that are no part of another."""
    found = [
        rv.owner.op.release for rv in model.observed_RVs if isinstance(rv.owner.op, NoisySumRV)
    ]
    stacked = {entry.name for release in found for entry in release.entries[:-1]}
    return [release for release in found if release.entries[-1].name not in stacked]


def _same_records(model: pm.Model, own: Entry, n: Any) -> SumRelease | None:
    """Releases so far that share a variable of the record with this statistic."""
    named = set(model.basic_RVs)
    mine = set(random_variables(own.statistic, named))
    found = [
        release
        for release in sum_releases(model)
        if mine & set(random_variables(release.record.statistic, named))
    ]
    if len(found) > 1:
        raise PrivacyConfigurationError(
            f"{own.name!r}: its record shares variables with several releases that share none with each "
            f"other ({', '.join(r.entries[-1].name for r in found)}). Release all after this one, or "
            "stack their statistics."
        )
    if found and not equal_computations([n], [found[0].n]):
        raise PrivacyConfigurationError(
            f"{own.name!r}: the same records as in {found[0].entries[-1].name!r} must have the same `n`. "
            "For other people, make new variables."
        )
    return found[0] if found else None


def _signature(ndim: int) -> str:
    core = ",".join(f"d{i}" for i in range(ndim))
    return f"(k,m),(k),(),(e),(q),({core})->({core})"
