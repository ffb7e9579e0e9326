"""What the page on DPAnchored says in numbers is what the code does."""

import math
from pathlib import Path

import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.anchor import build, model, search
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.steps import anchored

PAGE = " ".join(
    (Path(__file__).resolve().parents[2] / "docs/anchored.md").read_text(encoding="utf-8").split()
)


@pytest.mark.parametrize(
    "said",
    [
        f"At most {build._MODE:g}: {build._FIRST_STEP:g} for the first step, {build._LAST_STEP:g} for the "
        f"last, between {build._SMALLEST_STEP:g} and {build._LARGEST_STEP:g} for each other",
        f"W P^{{-1/2}}$. ({build._CURVATURE:g}, and {build._HISTOGRAM:g} for its histogram)",
        f"of $|g_i|$ ({build._GRADIENT_SIZES:g}), of $|H_i|_F$ and of residuals, see step 7 "
        f"({build._HISTOGRAM:g} each)",
        f"1.05 times the {100 * build._HESSIANS_KEPT:g} % quantile",
        rf"2 C_H z \sqrt{{2d}} \le {build._LARGEST_HESSIAN_NOISE:g}",
        f"{100 * (1 - build._HESSIAN_OF_REST):g} % of what is left at order 2",
        f"{build._SEARCH_HISTOGRAM:g} for each of the histograms",
        f"{build._SETTLED:g} times what the step before had made 1",
        f"s_g^2 + s_c^2 + {build._HARMLESS:g}^2)",
        f"`distance_to_mode` above ${search.QUADRATIC:g} \\sqrt n",
        f"and than ${search.QUADRATIC:g} \\sqrt n$",
        f"its own noise $s_c$ ({build._CHECK:g})",
        f"above $1 + {anchored._SURPRISE_WARNING:g}/\\sqrt{{2d}}$",
        f"above $1 + {anchored._SURPRISE_REFUSAL:g}/\\sqrt{{2d}}$",
        f"less noise than $\\sigma_1 = {build._LEAST_SIGMA:g}$",
        f"surely above {100 * build._TOLERATED:g} %, $c$ is widened to $\\sigma_1 = "
        f"{build._LARGEST_SIGMA:g}$",
        f"counted with noise ({build._CLIPPED / 2:g})",
        f"autoregressive (probability {anchored._KERNELS[0]:g})",
        f"random walk ({anchored._KERNELS[1]:g})",
        f"a short one ({anchored._KERNELS[2]:g}): {anchored._SHORT:g} times",
        f"in {100 * anchored._SHORT_AUTOREGRESSIVE:g} % of cases, ${anchored._SHORT:g}",
        rf"R = {1.05 * anchored._RADIUS:g} \sqrt{{d + |m_h|^2}}",
        f"surely (by two standard deviations) above {100 * anchored._CLIPPED_WARNING:g} %",
        f"surely above {100 * anchored._CLIPPED_REFUSAL:g} %",
        f"{model._KEPT_BYTES // 2**20} MiB",
    ],
)
def test_constants(said):
    assert said in PAGE


def test_the_largest_number_of_parameters():
    largest = (math.isqrt(8 * MAX_DIMENSION + 1) - 1) // 2
    assert f"more than {largest} parameters" in PAGE
    with pm.Model() as too_many:
        b = pm.Normal("b", 0, 1, shape=largest + 1)
        pm.Normal("y", b.sum(), 1, observed=pm.Data("Y", [0.0, 1.0, 2.0]))
    with pytest.raises(dp.NoAnchorError):
        dp.DPAnchored(chains=1, draws=5, epsilon=1.0, model=too_many)
