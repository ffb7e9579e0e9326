"""Peak memory of building and running DPPenalty, as a ratio to the data's own size.

Run: ``python benchmarks/penalty_memory.py``. The data's own size is that of X and y; the peak is
the growth of the process's high-water mark from before the model is built (Linux only).
"""

import gc

import numpy as np
import pymc as pm
from _models import logistic
from _report import write_report

import pymc_dp as dp


def status(field: str) -> float:
    """A field of /proc/self/status, in MiB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def run(n: int, d: int, chunk_size: int | None) -> tuple[float, float]:
    """Size of the data and growth of peak memory, in MiB."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    y = rng.integers(0, 2, size=n)
    gc.collect()
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = status("VmRSS")
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=d)
        pm.Bernoulli("y", logit_p=pm.Data("X", x) @ beta, observed=pm.Data("Y", y))
    step = dp.DPPenalty(
        noise_multiplier=100.0, chains=1, draws=20, clip=4.0, chunk_size=chunk_size, model=model
    )
    step.stop_tuning()
    point = model.initial_point()
    for _ in range(20):
        point, _ = step.step(point)
    return (x.nbytes + y.nbytes) / 2**20, status("VmHWM") - before


def main() -> None:
    # Compiling once first keeps the compiler's own memory out of the comparison.
    warm = logistic(1000, 10)
    dp.DPPenalty(noise_multiplier=1.0, chains=1, draws=1, model=warm)
    rows = []
    for n, chunk_size in [(1_000_000, None), (1_000_000, 1_000_000), (3_000_000, None)]:
        size, peak = run(n, 10, chunk_size)
        label = "default" if chunk_size is None else "off (one chunk)"
        rows.append([n, label, size, peak, peak / size])
        gc.collect()
    write_report(
        "penalty_memory",
        "Memory of DPPenalty",
        "Logistic regression, d = 10: growth of peak memory over building the model (PyMC keeps a "
        "copy of the data), building the step with its separability checks, and 20 iterations; "
        f"the caller's own arrays are not counted. At n = 1,000,000 with chunking on it is "
        f"**{rows[0][4]:.2f}** times the data (target: under 3).",
        ["n", "chunking", "data, MiB", "peak growth, MiB", "ratio"],
        rows,
    )


if __name__ == "__main__":
    main()
