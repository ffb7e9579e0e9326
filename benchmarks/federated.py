"""Owners who do not trust each other: round trips, N noises, the pooled posterior, rare covariates.

Run: ``python benchmarks/federated.py`` (needs the ``federated`` extra). About ten minutes.
"""

import importlib.util
import json
import logging
import math
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pymc as pm
from _report import write_report

import pymc_dp as dp
from pymc_dp.compat import summary
from pymc_dp.experimental import FederatedPenalty
from pymc_dp.federated import Owner, find_surrogate

EXAMPLE = Path(__file__).resolve().parent.parent / "docs" / "federated_example"
D, DELTA = 5, 1e-6

# -- round trips ------------------------------------------------------------------------------------

OWNER = """
import sys
from hospital import records, with_records
from pymc_dp.federated import Owner
from pymc_dp.federated.flower import serve

k, superlink = sys.argv[1:3]
owner = Owner(model=with_records(*records(int(k))), epsilon=4.0, ratios=100, ratio_share=1)
serve(owner, superlink, root_certificates="ca.pem", private_key=f"owner{k}")
"""

COORDINATOR = """
import json, time
from pathlib import Path
import numpy as np
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from pymc_dp.federated.flower import FlowerOwners

app = ServerApp()
nobody = ClientApp()

@app.main()
def main(grid, context):
    ask = FlowerOwners(grid, 3)
    ask("offer", {})
    request = {"theta": np.zeros(3), "proposal": np.full(3, 0.01), "bound": np.array(0.01)}
    seconds = {}
    for kind, asked, count in [("offer", {}, 30), ("ratio", request, 100)]:
        start = time.perf_counter()
        for _ in range(count):
            ask(kind, asked)
        seconds[kind] = (time.perf_counter() - start) / count
    Path(context.run_config["folder"], "seconds.part").write_text(json.dumps(seconds))
    Path(context.run_config["folder"], "seconds.part").rename(
        Path(context.run_config["folder"], "seconds.json"))
"""


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def through_flower() -> dict[str, float]:
    """Seconds per round trip to three owners in processes of their own, by kind."""
    run, folder = example("run"), Path(tempfile.mkdtemp())
    app = folder / "app"
    app.mkdir()
    (app / "coordinator.py").write_text(COORDINATOR)
    (app / "pyproject.toml").write_text((EXAMPLE / "app" / "pyproject.toml").read_text())
    with run.Network(folder / "network") as network:
        (network.folder / "hospital.py").write_text((EXAMPLE / "hospital.py").read_text())
        (network.folder / "timed.py").write_text(OWNER)
        for k in range(3):
            network.key(f"owner{k}")
            network.start(f"owner{k}", sys.executable, "timed.py", k, network.address)
        printed = run.coordinate(network, app)
        results = network.folder / "seconds.json"
        if not results.exists():
            raise RuntimeError(printed)
        return json.loads(results.read_text())


def in_process() -> dict[str, float]:
    hospital = example("hospital")
    owners = [
        Owner(
            model=hospital.with_records(*hospital.records(k)),
            epsilon=4.0,
            ratios=1000,
            ratio_share=1,
        )
        for k in range(3)
    ]
    request = {"theta": np.zeros(3), "proposal": np.full(3, 0.01), "bound": np.array(0.01)}
    seconds = {}
    for kind, asked in [("offer", {}), ("ratio", request)]:
        start = time.perf_counter()
        for _ in range(1000):
            for owner in owners:
                owner.answer(kind, asked)
        seconds[kind] = (time.perf_counter() - start) / 1000
    return seconds


def round_trips() -> None:
    rows = []
    for name, seconds in [("one process", in_process()), ("Flower, TLS, keys", through_flower())]:
        per_second = 1 / seconds["ratio"]
        rows.append(
            [name, 1 / seconds["offer"], per_second, 4000 / per_second / 60, 37 / per_second]
        )
    write_report(
        "federated_round_trips",
        "Round trips to three owners",
        "Three owners of 3,000 records and three parameters, all asked and waited for, on one computer with 2 "
        "cores, which other programs used too. An offer reads no data; a ratio is one iteration of a chain. The "
        "last columns are that rate's time for 4,000 iterations, and for the 37 exchanges of most surrogates (an "
        "offer, four to six per step towards the mode, and some twenty for the queries near it).",
        ["owners are in", "offers / s", "ratios / s", "4,000 iterations, min", "surrogate, s"],
        rows,
    )


# -- data -------------------------------------------------------------------------------------------


def prior() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("beta", 0, 2, shape=D)
    return model


def model_of(x: np.ndarray, y: np.ndarray) -> pm.Model:
    model = prior()
    with model:
        pm.Bernoulli("y", logit_p=pm.Data("X", x) @ model["beta"], observed=pm.Data("Y", y))
    return model


def records(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D))
    x[:, 0] = 1
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ np.linspace(-0.8, 0.8, D)))).astype(np.int64)


def mode_and_covariance(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mode = np.zeros(D)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ mode))
        P = (x * (p * (1 - p))[:, None]).T @ x + np.eye(D) / 4
        mode = mode + np.linalg.solve(P, x.T @ (y - p) - mode / 4)
    return mode, np.linalg.inv(P)


# -- the cost of N noises ---------------------------------------------------------------------------


def noises(n: int = 30_000, epsilon: float = 2.0, repetitions: int = 6) -> None:
    x, y = records(n)
    mode, covariance = mode_and_covariance(x, y)
    sds, rows = np.sqrt(np.diag(covariance)), []
    for N in (1, 3, 10):
        shifts, widths, offs = [], [], []
        parts = [(x[k::N], y[k::N]) for k in range(N)]
        for _ in range(repetitions):
            owners = [Owner(epsilon=epsilon, delta=DELTA, model=model_of(*part)) for part in parts]
            found = find_surrogate(
                lambda kind, request, owners=owners: [o.answer(kind, request) for o in owners],
                prior(),
            )
            shifts.append(found.diagnostics.privacy_shift)
            widths.append(np.mean(np.linalg.norm(found.root, axis=1) / sds))
            offs.append(np.mean(((found.center - mode) / sds) ** 2))
        rows.append(
            [f"{N} owner(s)", *_cost(rows, shifts), np.mean(widths), math.sqrt(np.mean(offs))]
        )
        rows[-1].insert(3, math.sqrt(N))
    shifts = []
    for _ in range(repetitions):
        step = dp.DPSurrogate(
            epsilon=epsilon, delta=DELTA, draws=10, chains=1, model=model_of(x, y)
        )
        shifts.append(step.release().privacy_shift)
    rows.append(["one curator", *_cost(rows, shifts), "-", "-", "-"])
    write_report(
        "federated_noises",
        "The cost of N noises",
        f"Logistic regression, n = {n:,} records in all, {D} parameters, divided evenly among N owners, each "
        f"with (ε, δ) = ({epsilon:g}, {DELTA:g}); means of {repetitions} runs. Privacy shift: how far noise "
        "moves the posterior, in its standard deviations per parameter. Error: root mean square distance of "
        "the surrogate's center from the exact mode, the same units. Width: posterior standard deviation, noise "
        "included / exact one. For comparison one trusted curator with all records.",
        ["", "privacy shift", "shift / one owner's", "theory √N", "width", "error"],
        rows,
    )


def _cost(rows: list[list], shifts: list[float]) -> list:
    shift = float(np.mean(shifts))
    return [shift, shift / rows[0][1] if rows else 1.0]


# -- the pooled posterior ---------------------------------------------------------------------------


def mcse_of(idata) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draws = idata["posterior"]["beta"].values
    ess = np.array([float(x) for x in summary(idata, kind="diagnostics")["ess_bulk"]])
    sd = draws.std(axis=(0, 1))
    return draws.mean(axis=(0, 1)), sd, sd / np.sqrt(ess)


def posterior(n: int = 9000) -> None:
    x, y = records(n, seed=1)
    settings = {"cores": 1, "progressbar": False, "random_seed": 2}
    mean, sd, se = mcse_of(pm.sample(4000, tune=1000, chains=2, model=model_of(x, y), **settings))
    rows = []

    def compare(name: str, epsilon: float, idata, shift: float | str) -> None:
        m, s, e = mcse_of(idata)
        rows.append(
            [name, epsilon, shift, float(np.max(np.abs(m - mean) / np.hypot(e, se))),
             float(np.max(np.abs(m - mean) / sd)), float(np.min(s / sd)), float(np.max(s / sd))]
        )  # fmt: skip

    iterations = 10_000
    for epsilon, ratios in [(10_000.0, iterations), (4.0, 0)]:
        owners = [
            Owner(epsilon=epsilon, delta=DELTA, ratios=ratios, model=model_of(x[k::3], y[k::3]))
            for k in range(3)
        ]

        def ask(kind, request, owners=owners):
            return [owner.answer(kind, request) for owner in owners]

        found = find_surrogate(ask, prior())
        draws = pm.sample(4000, tune=1000, chains=2, model=found.model(prior()), **settings)
        compare("surrogate", epsilon, draws, found.diagnostics.privacy_shift)
        if ratios:
            model = prior()
            step = FederatedPenalty(ask, clip=found.clip, root=found.root, model=model)
            start = {"beta": found.center}
            draws = pm.sample(
                iterations, tune=0, chains=1, step=step, model=model, initvals=start, **settings
            )
            compare("FederatedPenalty", epsilon, draws, "-")
    write_report(
        "federated_posterior",
        "Three owners against all records in one place",
        f"Logistic regression, n = {n:,} records in all, {D} parameters, three owners in one process. Reference: "
        f"NUTS on all records. The surrogate is sampled with NUTS (2 × 4,000 draws); FederatedPenalty ran "
        f"{iterations:,} iterations. Differences of posterior means, largest over parameters: in Monte Carlo "
        "standard errors (of both samples together), and in posterior standard deviations.",
        [
            "",
            "ε",
            "privacy shift",
            "difference, MCSE",
            "difference, sd",
            "least sd ratio",
            "largest",
        ],
        rows,
    )


# -- few records that alone tell about a parameter --------------------------------------------------


def rare(n: int = 18_000, repetitions: int = 8) -> None:
    rows = []
    few = [(0.005, e, i) for e in (1000.0, 50.0, 20.0, 4.0) for i in (-0.8, 0.8)]
    for share, epsilon, intercept in [*few, (0.05, 20.0, 0.8), (0.05, 4.0, 0.8)]:
        x, _ = records(n, seed=3)
        rng = np.random.default_rng(4)
        x[:, -1] = rng.random(n) < share
        beta = np.array([intercept, -0.4, 0.0, 0.4, 0.8])
        y = (rng.random(n) < 1 / (1 + np.exp(-x @ beta))).astype(np.int64)
        mode, covariance = mode_and_covariance(x, y)
        parts = [dp.compile(model_of(x[k::3], y[k::3])) for k in range(3)]
        found = []
        for _ in range(repetitions):
            owners = [Owner(epsilon=epsilon, delta=DELTA, model=part) for part in parts]
            found.append(
                find_surrogate(
                    lambda kind, request, owners=owners: [o.answer(kind, request) for o in owners],
                    prior(),
                )
            )
        own = np.array([np.linalg.norm(each.root, axis=1) for each in found])
        z = np.abs([each.center - mode for each in found]) / own
        prior_s = np.array(["beta[4]" in each.diagnostics.prior_dominated for each in found])
        silent = np.array([each.diagnostics.usable for each in found]) & ~prior_s
        rows.append(
            [
                int(x[:, -1].sum()),
                intercept,
                epsilon,
                int(prior_s.sum()),
                sum(not each.diagnostics.usable for each in found),
                float(np.median(own[:, -1])) / math.sqrt(covariance[-1, -1]),
                float(z[silent, -1].max()) if silent.any() else "-",
                float(z[:, -1].max()),
                float(z[:, :-1].max()),
            ]
        )
    write_report(
        "federated_rare",
        "A covariate that is 1 for few records",
        f"Logistic regression, n = {n:,} records in all, {D} parameters, three owners, {repetitions} runs each. The "
        "coefficient of that covariate is 0.8, with a prior sd of 2. How often it was said to be the prior's, and how "
        "often the whole surrogate to be of no use; its width, median, relative to the exact one; and how far the "
        "surrogate's center was from the exact mode, at most, in standard deviations that the surrogate itself reports: that coefficient "
        "where nothing was said, in all runs, and the others in all runs.",
        [
            "ones",
            "intercept",
            "ε",
            "the prior's",
            "no use",
            "its width",
            "off by, nothing said",
            "off by",
            "others off by",
        ],
        rows,
    )


def main() -> None:
    logging.getLogger("pymc").setLevel(logging.ERROR)
    posterior()
    noises()
    rare()
    round_trips()


if __name__ == "__main__":
    main()
