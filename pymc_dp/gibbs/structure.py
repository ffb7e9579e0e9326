"""What a model says about latent records and the statistics released of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pymc as pm
from pymc.util import get_value_vars_from_user_vars
from pytensor.tensor.shape import Shape, Shape_i

from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.statistics import RecordSum


class Release(NamedTuple):
    """An observed variable around one sum over records."""

    variable: Any
    total: Any

    @property
    def statistic(self) -> Any:
        """The per-record statistic t, shape (n, ...)."""
        return self.total.owner.inputs[0]

    @property
    def law(self) -> Any:
        """The noise, if it is of one of the package's mechanisms."""
        return self.total.owner.op.law


class Structure(NamedTuple):
    """Latent records x, parameters θ and releases of a model.

    Attributes
    ----------
    latents : list
        Latent variables in the model's order, so that each comes after those it depends on.
    parameters : list
        All other free variables.
    releases : list of Release
        In the model's order.
    centered : bool
        Whether the releases depend on θ through the latents only. If not, x is a function of θ and
        of the latents, and θ given the latents depends on the released values.
    """

    latents: list[Any]
    parameters: list[Any]
    releases: list[Release]
    centered: bool


def find_structure(model: pm.Model, vars: Sequence[Any]) -> Structure:
    """Sort a model's variables into latents, parameters and releases.

    Parameters
    ----------
    model : Model
    vars : sequence
        The latent variables, as the user named them.

    Raises
    ------
    UnsupportedModelError
        If the released statistics are not sums over the records of these latents, or something
        else depends on the latents.
    """
    try:
        chosen = {v.name for v in get_value_vars_from_user_vars(list(vars), model)}
    except ValueError as error:
        raise UnsupportedModelError(
            f"The latent records must be free variables of the model. {error}"
        ) from error
    latents = [rv for rv in model.free_RVs if model.rvs_to_values[rv].name in chosen]
    parameters = [rv for rv in model.free_RVs if rv not in latents]
    for rv in latents:
        if rv.ndim - getattr(rv.owner.op, "ndim_supp", 0) < 1:
            raise UnsupportedModelError(
                f"Axis 0 of the latent variable {rv.name!r} must be the records, independent of each "
                "other given the parameters. Give it a shape (n, ...)."
            )
    for rv in parameters:
        if depends(rv, latents):
            raise UnsupportedModelError(
                f"{rv.name!r} depends on the latent records but is not among the variables of the "
                "step. If it is a variable per record, add it to them."
            )
    for potential in model.potentials:
        if depends(potential, latents):
            raise UnsupportedModelError(
                f"The Potential {potential.name!r} depends on the latent records. Write it as a "
                "distribution of the records, or as an observed statistic of `statistics.record_sum(...)`."
            )
    releases = [_release_of(rv, latents) for rv in model.observed_RVs if depends(rv, latents)]
    if not releases:
        names = [rv.name for rv in latents]
        raise UnsupportedModelError(
            f"No released statistic depends on the latent variables {names}. Observe one through a "
            "`LaplaceMechanism`, a `GaussianMechanism` or one of the discrete mechanisms."
        )
    for release in releases:
        _check_noise(release, latents, parameters)
    _check_number_of_records(latents, releases)
    centered = not any(
        p in _reached([release.statistic], stop=latents) for release in releases for p in parameters
    )
    return Structure(latents, parameters, releases, centered)


def _release_of(rv: Any, latents: list[Any]) -> Release:
    """The one sum over records between the latents and an observed variable."""
    totals = [v for v in _reached([rv]) if v.owner is not None and _is_record_sum(v)]
    totals = [total for total in totals if depends(total, latents)]
    around = _reached([rv], stop=totals)
    if any(latent in around for latent in latents):
        raise UnsupportedModelError(
            f"The observed variable {rv.name!r} depends on the latent records otherwise than through "
            "a sum over records. Its statistic must be a sum of one term per record: give the "
            "mechanism the terms, shape (n, ...). An observed variable per record cannot be "
            "combined with latent records; for randomised response see `RandomizedResponse`."
        )
    if len(totals) != 1:
        raise UnsupportedModelError(
            f"The observed variable {rv.name!r} depends on {len(totals)} sums over records. Stack "
            "the statistics and take one sum."
        )
    return Release(rv, totals[0])


def _check_noise(release: Release, latents: list[Any], parameters: list[Any]) -> None:
    """The noise must be known: a release's law is public."""
    around = _reached([release.variable], stop=[release.total])
    unknown = [p.name for p in parameters if p in around]
    if unknown:
        raise UnsupportedModelError(
            f"The noise of {release.variable.name!r} depends on {unknown}. The noise of a release is "
            "public: give it as a number."
        )


def _check_number_of_records(latents: list[Any], releases: list[Release]) -> None:
    """Axis 0 must have the same length everywhere, as far as it is known already."""
    lengths = {f"latent {rv.name!r}": rv.type.shape[0] for rv in latents}
    lengths |= {f"statistic of {r.variable.name!r}": r.statistic.type.shape[0] for r in releases}
    known = {what: n for what, n in lengths.items() if n is not None}
    if len(set(known.values())) > 1:
        found = ", ".join(f"{what}: {n}" for what, n in known.items())
        raise UnsupportedModelError(
            f"Latent variables and released statistics must have the same number of records along "
            f"axis 0. Found {found}."
        )


def _is_record_sum(variable: Any) -> bool:
    return isinstance(variable.owner.op, RecordSum)


def depends(variable: Any, on: list[Any]) -> bool:
    """Whether a variable's value, and not only its shape, depends on any of `on`."""
    return not _reached([variable]).isdisjoint(on)


def _reached(variables: list[Any], stop: Sequence[Any] = ()) -> set[Any]:
    """Ancestors by value, not looking behind `stop`. A shape is no dependence on values."""
    ends = set(stop)
    reached: set[Any] = set()
    waiting = list(variables)
    while waiting:
        v = waiting.pop()
        if v in reached:
            continue
        reached.add(v)
        if v.owner is None or v in ends or isinstance(v.owner.op, Shape | Shape_i):
            continue
        waiting.extend(v.owner.inputs)
    return reached
