"""A test of 24 items and 5,000 persons, two parameters each item: persons integrated out, or as groups; errors beside one release's, coverage, time.

python benchmarks/item_response.py --workers 2
python benchmarks/item_response.py --replications 1 --epsilons 3 --seed 7     # writes no page
"""

import argparse
import logging
import multiprocessing
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import pymc as pm
from _regressions import Exact
from _report import write_report
from ordinary_models import shift_of
from surrogate_limit import noise_of, normal

import pymc_dp as dp
from pymc_dp.compat import groups_of

logging.getLogger("pymc").setLevel(logging.ERROR)  # here, as processes of their own import it, too
warnings.simplefilter("ignore")

PEOPLE, ITEMS, DRAWS = 5_000, 24, 1_000
WAYS = {
    "rows of answers, persons integrated out": "a person",
    "answers by an index, persons integrated out": "a person",
    "answers by an index, persons as groups": "an answer",
}
COLUMNS = [
    "written as", "a unit is", "ε", "runs", "usable", "error: discriminations", "difficulties", "limit", "error / limit", "privacy shift",
    "covered: discriminations", "difficulties", "persons", "CPU s",
]  # fmt: skip


def drawn(rng):
    """Parameters from the prior, and everybody's answers."""
    truth = {"a": np.exp(0.5 * rng.normal(size=ITEMS)), "b": rng.normal(size=ITEMS), "ability": rng.normal(size=PEOPLE)}  # fmt: skip
    p = 1 / (1 + np.exp(-truth["a"] * (truth["ability"][:, None] - truth["b"])))
    return truth, (rng.random(p.shape) < p).astype(np.int64)


def written(way, answers):
    """The model, and what is to be said of it beside ε."""
    person, item = np.indices(answers.shape).reshape(2, -1)
    with pm.Model(coords={"person": range(PEOPLE), "item": range(ITEMS)}) as model:
        ability = pm.Normal("ability", 0, 1, dims="person")
        a, b = pm.LogNormal("a", 0, 0.5, dims="item"), pm.Normal("b", 0, 1, dims="item")
        if way.startswith("rows"):
            logit, observed, dims = a * (ability[:, None] - b), answers, ("person", "item")
        else:
            logit, observed, dims = a[item] * (ability[person] - b[item]), answers.ravel(), None
        pm.Bernoulli("right", logit_p=logit, observed=observed, dims=dims)
    return (model, {"unit": 0}) if "groups" in way else (dp.integrate_out(model, "ability"), {})


def replication(part):
    """Of one data set: every way, at every ε."""
    number, seed, epsilons = part
    truth, answers = drawn(np.random.default_rng([seed, number]))
    step = normal(1.0, written(next(iter(WAYS)), answers)[0], {})
    space = step.compiled.parameters
    places = {
        name.removesuffix("_log__"): np.ravel(at).astype(int)
        for name, at in space.point(np.arange(space.d, dtype=float)).items()
    }
    start = np.zeros(space.d)
    start[places["a"]], start[places["b"]] = np.log(truth["a"]), truth["b"]
    exact = Exact(step, start)
    found = []
    for epsilon in epsilons:
        step = normal(epsilon, step.compiled, {})
        limit = exact.limit(noise_of(step), number)
        for way in WAYS:
            start = time.process_time()
            model, keywords = written(way, answers)
            result = dp.sample(DRAWS, model=model, epsilon=epsilon, chains=2, cores=1, progressbar=False, **keywords)  # fmt: skip
            seconds, posterior = time.process_time() - start, groups_of(result)["posterior"]
            errors, covered = {}, {}
            for name, true in truth.items():
                if name not in posterior:
                    continue
                draws = posterior[name].values.reshape(-1, len(true))
                draws, true = (np.log(draws), np.log(true)) if name == "a" else (draws, true)
                low, high = np.quantile(draws, [0.05, 0.95], axis=0)
                covered[name] = float(np.mean((low <= true) & (true <= high)))
                if name in places:
                    at = places[name]
                    off = (draws.mean(axis=0) - exact.mode[at]) / exact.sds[at]
                    errors[name] = float(np.mean(off**2))
            usable = int(result.attrs.get("privacy_usable", 1))
            found.append((way, epsilon, usable, errors, limit, shift_of(result), covered, seconds))
            print(*found[-1], flush=True)
    return found


def row_of(way, epsilon, found):
    """Root mean squares of errors, and means or medians of the others."""
    _, _, usable, errors, limits, shifts, covered, seconds = zip(*found, strict=True)
    a, b = (np.sqrt(np.mean([e[name] for e in errors])) for name in "ab")
    limit, both = np.sqrt(np.mean(np.square(limits))), np.sqrt((a**2 + b**2) / 2)
    beside = [limit, both / limit] if WAYS[way] == "a person" else ["", ""]
    of = [
        np.mean([c[n] for c in covered]) if n in covered[0] else "" for n in ("a", "b", "ability")
    ]
    numbers = [a, b, *beside, np.median(shifts) if all(usable) else "", *of, np.median(seconds)]
    return [
        way, WAYS[way], epsilon, len(found), sum(usable), *(x if x == "" else round(float(x), 3) for x in numbers),
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--replications", type=int, default=3)
    parser.add_argument("--seed", type=int, default=2071)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    parts = [(k, asked.seed, asked.epsilons) for k in range(asked.replications)]
    with ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        found = [one for some in pool.map(replication, parts) for one in some]
    rows = [
        row_of(way, epsilon, [one for one in found if one[:2] == (way, epsilon)])
        for way in WAYS
        for epsilon in asked.epsilons
    ]
    for row in rows:
        print(row)
    if (asked.replications, asked.epsilons) == (3, [1.0, 3.0]):
        write_report("item_response", TITLE, TEXT, COLUMNS, rows)


TITLE = "A test of many items"
TEXT = f"""
The two-parameter model of {ITEMS} items and {PEOPLE:,} persons, logit P(right) = a (ability − b), with a ~ LogNormal(0, 0.5²), b ~ N(0, 1), abilities
N(0, 1), all drawn from these; as galleries write it, with `dp.sample(model, epsilon=...)` and nothing else set, but for `unit=0` where a unit is an answer.
δ = 0.1 / units, substitute-one neighbours. *Rows of answers* are an array with a row for every person, of whom nothing but answers is private then; with *an
index* the item of every answer is, too. *Error*: root mean square of posterior means' distances from the mode without privacy, in its sds, of
log a and of b. *Limit*: the same after one Gaussian release of the whole budget at that mode, as in
[the table of easy models](surrogate_limit_20000_pymc6.md). Coverage is of the truth in 90 % intervals. CPU seconds are from the model's first line to draws,
compilation included.

`python benchmarks/item_response.py --workers 2`
"""

if __name__ == "__main__":
    main()
