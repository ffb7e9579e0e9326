"""Pictures of what the data have said, and of what a model misses. They need Matplotlib."""

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV

from pymc_dp.assessment.checking import PredictionChecks
from pymc_dp.compat import fast_draws, groups_of
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.report.plots import GREY, axes, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INTERVAL = 0.05, 0.95
_PRIOR_DRAWS = 2000
_MOST_LABELS = 60
_ROW = 0.28  # inches


def plot_checks(checks: PredictionChecks, *, ax: "Axes | None" = None) -> "Axes":
    """Observed statistics beside those of the replicated data sets, in standard deviations of these.

    Parameters
    ----------
    checks : PredictionChecks
        From :func:`~pymc_dp.check_predictions`.
    ax : matplotlib Axes, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    PrivacyConfigurationError
        If `checks` is something else.
    """
    if not isinstance(checks, PredictionChecks):
        raise PrivacyConfigurationError(
            "`checks` must be what `pymc_dp.check_predictions(...)` has released. Found "
            f"{type(checks).__name__}."
        )
    many = len(checks.names)
    ax = axes(ax, (7.0, 1.2 + 0.5 * many))
    places = np.arange(many)[::-1]
    sd = checks.sd[:, None]
    replicated = (checks.replicated - checks.mean[:, None]) / sd
    observed = (checks.observed - checks.mean) / sd[:, 0]
    ax.axvspan(-1.645, 1.645, color=GREY, alpha=0.15, linewidth=0)
    ax.plot(
        replicated.T, np.broadcast_to(places, replicated.T.shape), "o", color=GREY, markersize=4,
        alpha=0.7, label=["replicated"] + ["_"] * (many - 1),
    )  # fmt: skip
    ax.plot(observed, places, "D", color="C0", markersize=7, label="observed")
    ax.errorbar(
        observed, places, xerr=checks.noise_sd / sd[:, 0], fmt="none", color="C0", linewidth=1.5
    )
    for x, y, p in zip(observed, places, checks.p, strict=True):
        ax.annotate(f"p = {p:.3f}", (x, y), (0, 8), textcoords="offset points", ha="center")
    ax.set(
        yticks=places,
        yticklabels=checks.names,
        ylim=(-0.6, many - 0.3),
        xlabel="difference from the replicated mean,\nin standard deviations (noise included)",
    )
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return ax


def plot_prior_posterior(
    idata: Any,
    model: pm.Model | CompiledModel,
    *,
    var_names: Sequence[str] | None = None,
    random_seed: int = 0,
) -> NDArray[Any]:
    """What the data have said: 90 % intervals of prior and posterior, for every entry of every free variable.

    Costs nothing: it is made of released draws and of the prior, from which draws are made anew. A panel for each
    variable, in its own units, wide enough for the posterior; priors that reach further are cut off. The
    number at the right is the posterior's standard deviation in percent of the prior's: near 100, private data have
    said nothing, or nothing that could be heard through the noise.

    Parameters
    ----------
    idata : InferenceData or DataTree
        Draws with a group ``posterior``, such as those of ``pymc_dp.sample``.
    model : Model or CompiledModel
        The one that was sampled. Nothing but its priors is used.
    var_names : list of str, optional
        Default: all free variables.
    random_seed : int
        Of the prior's draws.

    Returns
    -------
    ndarray of matplotlib Axes, shape (variables,)

    Raises
    ------
    PrivacyConfigurationError
        If a name is not that of a free variable, or `idata` has no draws of it.
    """
    plt = pyplot()
    model = model.model if isinstance(model, CompiledModel) else model
    posterior = groups_of(idata)["posterior"]
    free = [rv.name for rv in model.free_RVs]
    names = free if var_names is None else list(var_names)
    unknown = [name for name in names if name not in free or name not in posterior]
    if unknown or not names:
        raise PrivacyConfigurationError(
            f"{unknown or 'The names'} are no free variables of the model with draws in `idata`. "
            f"Free variables are {free}."
        )
    prior = _prior_draws(model, names, random_seed)
    found = {
        name: (_columns(posterior[name].values, 2), prior.get(name), _labels(posterior[name]))
        for name in names
    }
    rows = [max(columns.shape[1], 1) for columns, *_ in found.values()]
    heights = [0.55 + _ROW * min(k, _MOST_LABELS) for k in rows]
    figure, panels = plt.subplots(
        len(names), 1, figsize=(7.0, sum(heights) + 0.3), layout="constrained", squeeze=False,
        height_ratios=heights,
    )  # fmt: skip
    for (name, (drawn, before, labels)), ax in zip(found.items(), panels[:, 0], strict=True):
        _panel(axes(ax, (0, 0)), name, drawn, before, labels)
    keys = {
        label: handle
        for ax in panels[:, 0]
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        keys.values(), keys.keys(), loc="outside upper right", ncols=2, frameon=False,
        title="right: posterior sd, of the prior's", title_fontsize="small",
    )  # fmt: skip
    return np.asarray(panels[:, 0])


def _panel(
    ax: "Axes",
    name: str,
    drawn: NDArray[np.float64],
    before: NDArray[np.float64] | None,
    labels: Sequence[str],
) -> None:
    """Intervals of all entries of a variable, the first on top."""
    k = drawn.shape[1]
    y = np.arange(k)[::-1]
    low, high = np.quantile(drawn, _INTERVAL, axis=0)
    thick = k <= _MOST_LABELS
    reach = max(float(high.max() - low.min()), 1e-300)
    left, right = float(low.min()) - 0.6 * reach, float(high.max()) + 0.6 * reach
    if before is not None:
        ends = np.quantile(before, _INTERVAL, axis=0)
        left = max(left, min(float(ends[0].min()), float(low.min()) - 0.05 * reach))
        right = min(right, max(float(ends[1].max()), float(high.max()) + 0.05 * reach))
        ax.hlines(y, *ends, color=GREY, alpha=0.35, linewidth=9 if thick else 2, label="prior")
        for place, sd, sd_before in zip(y, drawn.std(axis=0), before.std(axis=0), strict=True):
            if thick:
                said = f"{100 * sd / sd_before:.2g} %" if sd < 0.995 * sd_before else "100 %"
                ax.annotate(
                    said, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8
                )
    ax.hlines(y, low, high, color="C0", linewidth=2.5 if thick else 1, label="private posterior")
    ax.plot(drawn.mean(axis=0), y, "o", color="C0", markersize=5 if thick else 2)
    edge = 0.03 * (right - left)
    ax.set(yticks=y if thick else [], xlim=(left - edge, right + edge), ylim=(-0.7, k - 0.3))
    if labels != [""]:
        ax.set_title(name, fontsize="medium", loc="left")
    if thick:
        ax.set_yticklabels(labels if labels != [""] else [name])


def _prior_draws(model: pm.Model, names: Sequence[str], seed: int) -> dict[str, NDArray[Any]]:
    """Of those variables that can be drawn: a flat prior cannot."""
    known = [name for name in names if not isinstance(model[name].owner.op, FlatRV | HalfFlatRV)]
    settings = {"draws": _PRIOR_DRAWS, "random_seed": seed, **fast_draws(model.free_RVs)}
    # A flat prior may have descendants.
    try:
        values = pm.draw([model[name] for name in known], **settings) if known else []
    except NotImplementedError:
        return {}
    return {name: _columns(np.asarray(value), 1) for name, value in zip(known, values, strict=True)}


def _columns(values: NDArray[Any], leading: int) -> NDArray[np.float64]:
    """Draws by rows, entries by columns."""
    return np.asarray(values, float).reshape(math.prod(values.shape[:leading]), -1)


def _labels(draws: Any) -> list[str]:
    """Of the entries of a variable, in order."""
    dims = [dim for dim in draws.dims if dim not in ("chain", "draw")]
    return [", ".join(map(str, place)) for place in product(*(draws[dim].values for dim in dims))]
