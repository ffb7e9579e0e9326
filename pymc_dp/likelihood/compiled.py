"""A model as private algorithms see it: what is private in it, and compiled functions, each made once."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pymc as pm
import pytensor
from numpy.typing import ArrayLike

from pymc_dp.checks import whole
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.likelihood.compilation import compiling
from pymc_dp.likelihood.cut import Cut, find_cut
from pymc_dp.likelihood.formulas import pymc_model, refuse_built
from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.local import LocalGradients, with_slopes_in_tables
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.likelihood.reading import Reading
from pymc_dp.likelihood.record_graph import RecordGraph, record_graph
from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.likelihood.roles import find_roles
from pymc_dp.likelihood.separability import check_separability
from pymc_dp.likelihood.simulated import SimulatedScores
from pymc_dp.progress import doing


class CompiledModel:
    """A model that is compiled once, for any number of private steps, plans and budgets.

    What is private in it is found out at once; each function is derived and compiled when it is first asked
    for, the log-likelihood with the checks that all guarantees rest on. Made by
    :func:`pymc_dp.compile`, and accepted as ``model=`` wherever a PyMC model is.

    Parameters
    ----------
    model : Model or bambi.Model, optional
        Default: the one whose context this is called in. Of one of bambi's, the PyMC model is taken.
    unit : str, int or array, optional
        Unit of privacy: the records' dimension, their axis, or an identifier per record when a person
        owns several. Default: each record.
    public : sequence of str
        ``pm.Data`` nodes of the likelihood that hold nothing private.
    chunk_size : int, optional
        Records evaluated at once.
    compile_kwargs : mapping, optional
        Passed to PyTensor.

    Attributes
    ----------
    model : Model
    roles : Roles
        What is private, what is public, and what a unit is.
    parameters : ParameterSpace
        θ.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands.
    PrivacyConfigurationError
        If a setting is out of its range.
    """

    @refuses_from_outside
    def __init__(
        self,
        model: pm.Model | None = None,
        *,
        unit: str | int | ArrayLike | None = None,
        public: Sequence[str] = (),
        chunk_size: int | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        if pytensor.config.floatX != "float64":
            raise PrivacyConfigurationError(
                f"PyTensor's floatX is {pytensor.config.floatX!r}; sensitivities are proved for "
                "float64. Set `pytensor.config.floatX = 'float64'` before building the model."
            )
        if chunk_size is not None:
            chunk_size = whole("chunk_size", chunk_size, 1)
        self.model = pm.modelcontext(pymc_model(model))
        refuse_built(self.model)
        with compiling():
            self.roles = find_roles(self.model, unit, public)
            self.parameters = ParameterSpace(self.model)
        self._unit, self._public = unit, tuple(public)
        self._chunk_size, self._compile_kwargs = chunk_size, compile_kwargs
        self._deterministics = {det.name for det in self.model.deterministics}
        self._data = {v.name: v.get_value(borrow=True) for v in self.model.data_vars}

    def __repr__(self) -> str:
        return f"CompiledModel({self.parameters.d} parameters; unit: {self.roles.unit})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            k: v for k, v in self.__dict__.items() if k not in ("_graph", "read", "reading", "cut")
        }

    @property
    def d(self) -> int:
        """Number of unconstrained parameters."""
        return self.parameters.d

    @property
    def settings(self) -> dict[str, Any]:
        """What it was made with beside the model, to make another one alike."""
        return {
            "unit": self._unit, "public": self._public, "chunk_size": self._chunk_size,
            "compile_kwargs": self._compile_kwargs,
        }  # fmt: skip

    @cached_property
    def _graph(self) -> RecordGraph:
        return record_graph(self.parameters, self.roles)

    @cached_property
    @refuses_from_outside
    @compiling()
    def likelihood(self) -> RecordLikelihood:
        """Log-likelihood of every unit, checked to be a function of its own records."""
        with doing("Compiling the log-likelihood"):
            likelihood = RecordLikelihood(
                self._graph,
                self.roles,
                chunk_size=self._chunk_size,
                compile_kwargs=self._compile_kwargs,
            )
        with doing("Checking that records are independent"):
            check_separability(self.parameters, likelihood)
        return likelihood

    @cached_property
    @compiling()
    def log_public(self) -> PublicLogDensity:
        """Everything in the log-density that is not likelihood."""
        with doing("Compiling the prior"):
            return PublicLogDensity(self.parameters, self._compile_kwargs)

    @cached_property
    @refuses_from_outside
    @compiling()
    def gradients(self) -> UnitGradients:
        """Gradient of every unit's log-likelihood."""
        likelihood = self.likelihood
        with doing("Compiling the gradients"):
            return UnitGradients(self._graph, likelihood, compile_kwargs=self._compile_kwargs)

    @cached_property
    def simulated(self) -> SimulatedScores | None:
        """Scores at outcomes of the model's; None if these cannot be drawn."""
        return self._simulated(self.gradients)

    @cached_property
    def local_simulated(self) -> SimulatedScores | None:
        """The same in what every unit sees of θ; None also if there is no :attr:`cut`."""
        return None if self.local is None else self._simulated(self.local)

    @refuses_from_outside
    @compiling()
    def _simulated(self, gradients: UnitGradients | LocalGradients) -> SimulatedScores | None:
        settings = self.parameters, self.likelihood, gradients, self._compile_kwargs
        with doing("Compiling the model's outcomes"):
            try:
                return SimulatedScores(*settings)
            except Exception:  # noqa: BLE001  a law without draws fails in many ways; of public shapes and made-up rows
                return None

    @cached_property
    def read(self) -> Cut | None:
        """What all records together read of θ; None if that cannot be cut off."""
        return find_cut(self._graph)

    @cached_property
    @compiling()
    def reading(self) -> Reading | None:
        """The same as a function of θ."""
        cut = self.read
        return cut and Reading(cut.graph.theta, cut.psi, self.parameters.start)

    @cached_property
    def cut(self) -> Cut | None:
        """What every record sees of θ, if it is a row of each of some tables; None if it is not.

        Or if a unit has several records, which may see several rows.
        """
        cut = self.read
        if cut is None or not cut.tables or self.roles.unit_of_record is not None:
            return None
        try:
            return with_slopes_in_tables(cut, self.likelihood, self.parameters.start)
        except UnsupportedModelError:  # without derivatives: whoever asks for them is told
            return cut

    @cached_property
    @refuses_from_outside
    @compiling()
    def local(self) -> LocalGradients | None:
        """Gradient of every unit's log-likelihood in what it sees of θ, by :attr:`cut`."""
        likelihood = self.likelihood
        if self.cut is None:
            return None
        with doing("Compiling the gradients in groups"):
            return LocalGradients(self.cut, likelihood, compile_kwargs=self._compile_kwargs)

    def check_unchanged(self) -> None:
        """Refuse a model that is no longer the one that was looked at."""
        added = {det.name for det in self.model.deterministics} - self._deterministics
        if added:
            raise UnsupportedModelError(
                f"The Deterministics {sorted(added)} were added after the step was built, so they "
                "have not been checked for private data. Build the step again, from the model if it was "
                "compiled before."
            )
        changed = [
            v.name
            for v in self.model.data_vars
            # By identity, as whether two arrays are equal would tell of their values.
            if v.get_value(borrow=True) is not self._data.get(v.name)
        ]
        if changed:
            raise PrivacyConfigurationError(
                f"The data {changed} were replaced after the step was built, so the checks do not "
                "hold for them. Build the step again, from the model if it was compiled before."
            )


@refuses_from_outside
def compile(
    model: pm.Model | CompiledModel | None = None,
    *,
    unit: str | int | ArrayLike | None = None,
    public: Sequence[str] = (),
    chunk_size: int | None = None,
    compile_kwargs: Mapping[str, Any] | None = None,
) -> CompiledModel:
    """Prepare a model for private sampling, once for any number of steps, plans and budgets.

    Reads no data but for checks, and costs nothing. What is compiled is compiled when it is first needed.

    Parameters
    ----------
    model, unit, public, chunk_size, compile_kwargs
        As in :class:`CompiledModel`. One that is compiled already is returned, if it is given alone.

    Returns
    -------
    CompiledModel
        To be passed as ``model=`` to steps, to :func:`pymc_dp.sample` and to owners.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands.
    PrivacyConfigurationError
        If a setting is out of its range, or if the model has been changed since it was compiled.

    Examples
    --------
    >>> compiled = compile(model, unit="patient")                      # doctest: +SKIP
    >>> for epsilon in (0.5, 1.0, 2.0):                                # doctest: +SKIP
    ...     print(plan(DPHMC(epsilon=epsilon, draws=500, chains=2, model=compiled)))
    """
    if not isinstance(model, CompiledModel):
        return CompiledModel(
            model, unit=unit, public=public, chunk_size=chunk_size, compile_kwargs=compile_kwargs
        )
    given = {"unit": unit, "chunk_size": chunk_size, "compile_kwargs": compile_kwargs}
    again = [name for name, value in given.items() if value is not None]
    again += ["public"] if len(public) else []
    if again:
        raise PrivacyConfigurationError(
            f"The model is compiled already, so {', '.join(f'`{name}`' for name in again)} cannot be changed. "
            "Give it to `pymc_dp.compile`."
        )
    model.check_unchanged()
    return model
