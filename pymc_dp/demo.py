"""A private posterior of a real data set: home ownership in 1960.

Run ``make demo``, or ``python -m pymc_dp.demo`` where the ``examples`` extra is installed.

The data are 214,144 men of the 1960 census of the United States (causaldata's ``mortgages``;
Fetter, 2013): age, war service and home ownership. The private sampler sees the men; the analyst
sees draws, ε and δ. The non-private posterior is computed beside it for comparison only: showing
it is *not* covered by the guarantee.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

import pymc_dp as dp
from pymc_dp.compat import summary

COEFFICIENTS = ["intercept", "age", "veteran"]


def load() -> tuple[np.ndarray, np.ndarray]:
    """Covariates (persons × 3) and home ownership (persons)."""
    try:
        from causaldata import mortgages
    except ModuleNotFoundError:
        raise SystemExit(
            "The demo's data are in causaldata, which is not installed: "
            "pip install 'pymc-dp[examples]'"
        ) from None

    people = mortgages.load_pandas().data
    # Columns are scaled by public constants, never by the data's own mean or spread.
    # Quarters relative to the last Korea cohort; 27.5 is that cohort's age on census day.
    age = 27.5 - people["qob_minus_kw"].to_numpy(float) / 4
    columns = [np.ones(len(people)), (age - 31) / 10, 2.0 * people["vet_wwko"] - 1]
    return np.column_stack(columns), people["home_ownership"].to_numpy(np.int64)


def private_model(x: np.ndarray, owns: np.ndarray) -> pm.Model:
    """Logistic regression of home ownership, one record per man."""
    with pm.Model(coords={"coefficient": COEFFICIENTS}) as model:
        beta = pm.Normal("beta", 0, 1, dims="coefficient")
        X = pm.Data("X", x, dims=("person", "coefficient"))
        pm.Bernoulli("owns_home", logit_p=X @ beta, observed=pm.Data("y", owns), dims="person")
    return model


def non_private_posterior(x: np.ndarray, owns: np.ndarray, seed: int) -> Any:
    """Exact posterior, by NUTS on counts of identical men (the same likelihood, much smaller)."""
    kinds, inverse = np.unique(x, axis=0, return_inverse=True)
    men = np.bincount(inverse.ravel())
    owners = np.bincount(inverse.ravel(), weights=owns).astype(np.int64)
    with pm.Model(coords={"coefficient": COEFFICIENTS}):
        beta = pm.Normal("beta", 0, 1, dims="coefficient")
        pm.Binomial("owners", n=men, logit_p=kinds @ beta, observed=owners)
        return pm.sample(
            1000, tune=1000, chains=2, cores=2, random_seed=seed, progressbar=False, quiet=True
        )


def table(private: Any, exact: Any) -> pd.DataFrame:
    """Posterior means and standard deviations side by side, with diagnostics of the private run."""
    ours, theirs = summary(private, var_names=["beta"]), summary(exact, var_names=["beta"])
    columns = {
        "private mean": ours["mean"],
        "private sd": ours["sd"],
        "exact mean": theirs["mean"],
        "exact sd": theirs["sd"],
        "error / exact sd": (ours["mean"] - theirs["mean"]) / theirs["sd"],
        "R-hat": ours["r_hat"],
        "ESS": ours["ess_bulk"],
    }
    return pd.DataFrame({name: column.astype(float) for name, column in columns.items()})


def plot(private: Any, exact: Any, path: Path) -> None:
    """Save the two posteriors of every coefficient, one over the other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(COEFFICIENTS), figsize=(11, 3.4), layout="constrained")
    for name, axis in zip(COEFFICIENTS, axes, strict=True):
        both = [
            result.posterior["beta"].sel(coefficient=name).values.ravel()
            for result in (exact, private)
        ]
        bins = np.linspace(min(map(np.min, both)), max(map(np.max, both)), 40)
        axis.hist(both[0], bins, density=True, color="0.75", label="not private")
        axis.hist(both[1], bins, density=True, histtype="step", lw=2, color="C0", label="private")
        axis.set(title=name, yticks=[], xlabel="log odds")
        axis.locator_params(axis="x", nbins=4)
        axis.spines[["top", "left", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    epsilon, delta = private.attrs["privacy_epsilon"], private.attrs["privacy_delta"]
    figure.suptitle(f"Home ownership, 214,144 men, 1960: ε = {epsilon:g}, δ = {delta:.2g}")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Run the demo; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--draws", type=int, default=1000, help="per chain")
    parser.add_argument("--seed", type=int, default=1, help="public: never drives the noise")
    parser.add_argument("--output", type=Path, default=Path("pymc_dp_demo"))
    options = parser.parse_args(arguments)

    start = time.perf_counter()
    x, owns = load()
    print(f"{len(owns):,} men. Compiling and checking the model ...", flush=True)
    with private_model(x, owns):
        private = dp.sample(
            options.draws,
            chains=2,
            cores=2,
            epsilon=options.epsilon,
            unit="person",
            random_seed=options.seed,
        )
    print("\nThe non-private posterior, for comparison ...", flush=True)
    exact = non_private_posterior(x, owns, options.seed)

    print("\n" + table(private, exact).round(4).to_string())
    print("\n" + str(dp.privacy_report(private)))
    private.to_netcdf(f"{options.output}.nc", engine="h5netcdf")
    plot(private, exact, options.output.with_suffix(".png"))
    print(f"\nSaved the released draws in {options.output}.nc and a plot in {options.output}.png.")
    print(f"That took {time.perf_counter() - start:.0f} seconds.")


if __name__ == "__main__":
    main()
