"""CPU time from a model to a step that can sample, beside what PyMC needs to compile for NUTS.

Run: ``python benchmarks/first_draw.py``. Each side is measured in processes of its own, first with empty
caches of compiled code (*cold*) and then again with what those left (*warm*).
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from _report import write_report

N = 60_000


def regions():
    """Poisson regression with 12 regions, 8 coefficients and a level."""
    import pymc as pm

    rng = np.random.default_rng(0)
    x, where = rng.normal(size=(N, 8)), rng.integers(12, size=N)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 1, shape=12)
        slopes = pm.Normal("slopes", 0, 1, shape=8)
        spread, level = pm.HalfNormal("spread", 1), pm.Normal("level", 0, 1)
        log_rate = level + spread * effect[pm.Data("where", where)] + pm.Data("x", x) @ slopes
        pm.Poisson("y", pm.math.exp(log_rate), observed=pm.Data("Y", rng.poisson(1, size=N)))
    return model


def ordered():
    """Ordered logit with four levels, 6,366 rows."""
    import pymc as pm

    rng, n = np.random.default_rng(1), 6_366
    x = rng.normal(size=(n, 4))
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0, 1, shape=4)
        cuts = pm.Normal(
            "cuts", 0, 2, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1]
        )
        pm.OrderedLogistic(
            "y", eta=pm.Data("x", x) @ slopes, cutpoints=cuts, compute_p=False,
            observed=pm.Data("Y", rng.integers(4, size=n)),
        )  # fmt: skip
    return model


def logistic():
    """Logistic regression with five coefficients."""
    import pymc as pm

    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(N, 5)), rng.integers(2, size=N)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0, 1, shape=5)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ slopes, observed=pm.Data("Y", y))
    return model


MODELS = {"Poisson, 12 regions": regions, "ordered logit": ordered, "logistic": logistic}


def for_nuts(model):
    """What ``pm.NUTS`` compiles: log-density and gradient; and the point it starts from."""
    from pymc.blocking import DictToArrayBijection

    start = DictToArrayBijection.map(model.initial_point())
    function = model.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    function._pytensor_function(start.data)
    return []


def for_us(model):
    """A step, and another one with another budget."""
    import pymc_dp as dp

    compiled = dp.compile(model)
    step = dp.DPSurrogate(epsilon=1.0, draws=500, chains=2, model=compiled)
    theta = compiled.parameters.start
    # Functions of the prior are compiled when the surrogate needs them.
    step.log_public.gradient(theta), step.log_public.hessian(theta)
    began = time.process_time()
    dp.plan(dp.DPSurrogate(epsilon=2.0, draws=500, chains=2, model=compiled))
    return [time.process_time() - began]


def measure(what: str, name: str, caches: str) -> list[float]:
    flags = f"base_compiledir={caches}," + os.environ.get("PYTENSOR_FLAGS", "")
    environment = {**os.environ, "PYTENSOR_FLAGS": flags, "NUMBA_CACHE_DIR": f"{caches}/numba"}
    command = [sys.executable, __file__, what, name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    rows = []
    for name in MODELS:
        times = {}
        for what in ("for_nuts", "for_us"):
            with tempfile.TemporaryDirectory() as caches:
                times[what] = [measure(what, name, caches) for _ in range(2)]
        (cold, warm), (our_cold, our_warm) = times["for_nuts"], times["for_us"]
        rows.append(
            [
                name,
                cold[0],
                our_cold[0],
                our_cold[0] / cold[0],
                warm[0],
                our_warm[0],
                our_warm[0] / warm[0],
                our_warm[1],
            ]
        )  # fmt: skip
        print(*rows[-1], flush=True)
    write_report(
        "first_draw",
        "Time to a step that can sample",
        f"CPU seconds to make `DPSurrogate` from a model (checks, log-likelihood, gradients, Hessians, prior), "
        f"beside what PyMC needs for the log-density and gradient of the same model, as NUTS does. {N:,} rows "
        "(ordered logit: 6,366). *Cold*: with empty caches of compiled code; *warm*: run again. Children's "
        "time, such as a C compiler's, is counted. *Second step*: with another budget, of the same "
        "`dp.compile`d model, plan included.\n\nThe target is a ratio of at most 2, and 0.2 s for a second step.",
        ["model", "PyMC, cold", "ours, cold", "ratio", "PyMC, warm", "ours, warm", "ratio", "second step"],
        rows,
    )  # fmt: skip


def one(what: str, name: str) -> None:
    import pymc_dp  # noqa: F401  imports are not what is measured

    model = MODELS[name]()
    before = os.times()
    more = globals()[what](model)
    after = os.times()
    spent = sum(after[:4]) - sum(before[:4])
    print(json.dumps([spent - sum(more), *more]))


if __name__ == "__main__":
    one(*sys.argv[1:]) if sys.argv[1:] else main()
