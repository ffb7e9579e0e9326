"""CPU time of one DPAnchored iteration beside one of DPPenalty, and of building the anchor.

python benchmarks/anchored_cost.py
"""

import logging
import os
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from _models import logistic
from _report import write_report
from _thesis import banana

import pymc_dp as dp
from pymc_dp.compat import CHAIN_START

MODELS = {
    "Gaussian, d = 2": lambda: banana(100_000, 2, 0.0).model,
    "logistic, d = 5": lambda: logistic(100_000, 5),
    "logistic, d = 20": lambda: logistic(100_000, 20),
}
BLOCK, BLOCKS, EPSILON = 50, 12, 2.0


def started(step):
    lengths = (0, step.iterations) if CHAIN_START == "setup_chain" else ()
    getattr(step, CHAIN_START)(np.random.default_rng(1), *lengths)
    step.stop_tuning()
    return step, step.model.initial_point()


def block(step, point):
    """CPU milliseconds per iteration of one block, and where it ends."""
    start = time.process_time()
    for _ in range(BLOCK):
        point, _ = step.step(point)
    return 1e3 * (time.process_time() - start) / BLOCK, point


def main():
    logging.getLogger("pymc").setLevel(logging.ERROR)
    rows = []
    for name, build in MODELS.items():
        model, draws = build(), BLOCK * (BLOCKS + 1)
        start = time.process_time()
        anchored = dp.DPAnchored(chains=1, draws=draws, epsilon=EPSILON, model=model)
        compiled = time.process_time()
        anchored.build_anchor()
        ready = time.process_time()
        chains = [
            started(anchored),
            started(dp.DPPenalty(chains=1, draws=draws, epsilon=EPSILON, model=model)),
        ]
        times = [[], []]
        for _ in range(BLOCKS + 1):
            for k, (step, point) in enumerate(chains):
                spent, point = block(step, point)
                chains[k] = step, point
                times[k].append(spent)
        ours, theirs = (np.array(t[1:]) for t in times)
        rows.append([
            name, float(np.median(theirs)), float(np.median(ours)),
            float(np.median(ours / theirs)), anchored.anchor.order,
            compiled - start, ready - compiled,
        ])  # fmt: skip
    write_report(
        "anchored_cost",
        "Cost of DPAnchored beside DPPenalty",
        f"n = 100,000, ε = {EPSILON:g}, one thread. CPU milliseconds per iteration, median of {BLOCKS} "
        f"blocks of {BLOCK}, the two samplers in turn in one process; the ratio is that of blocks side by "
        "side. *Compiled* and *anchor*: CPU seconds until the step is built, and for its private anchor. "
        "Hessians are kept at d = 2 and 5, and not at d = 20 (more than 64 MiB).",
        ["model", "DPPenalty ms", "DPAnchored ms", "ratio", "order", "compiled s", "anchor s"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
