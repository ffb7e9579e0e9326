"""Change one line of the package at a time, and see whether the tests that guard it notice.

Run: ``python benchmarks/mutants.py``; ``--only TEXT`` takes the mutants whose file or promise has the text
in it, and writes nothing. Each mutant gets a copy of the repository, in which its tests run until the first
failure. A mutant whose text is not found once in its file is an error: the table is to follow the code.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from _mutants import Mutant
from _mutants_checks import MUTANTS as CHECKS
from _mutants_core import MUTANTS as CORE
from _report import write_report

ROOT = Path(__file__).resolve().parent.parent
# Ten times the slowest of the tests named in the tables: who takes longer hangs.
SECONDS = 600
COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", "__pycache__", "_build", "dist", "build"
)

KILLED, SURVIVED, HANGS, BROKEN = "killed", "survived", "no end", "no test ran"
# What pytest's exit codes say; an import that fails is noticed too.
OUTCOMES = {0: SURVIVED, 1: KILLED, 2: KILLED}


def tried(mutant: Mutant, copy: Path) -> tuple[str, float, str]:
    """What became of the mutant in the copy, after how many seconds, and which test noticed."""
    source = copy / "pymc_dp" / mutant.file
    text = source.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file} has {text.count(mutant.old)} times: {mutant.old!r}")
    source.write_text(text.replace(mutant.old, mutant.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, *shlex.split(mutant.tests)],
            cwd=copy,
            env=environment,
            timeout=SECONDS,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return HANGS, SECONDS, ""
    finally:
        source.write_text(text)
    noticed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    by = noticed[0].split(" - ")[0].split(" ", 1)[1] if noticed else ""
    return OUTCOMES.get(done.returncode, BROKEN), time.perf_counter() - start, by


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    tables = {"core": CORE, "checks": CHECKS}
    mutants = [(name, m) for name, table in tables.items() for m in table]
    mutants = [(name, m) for name, m in mutants if chosen.only in m.file + m.breaks]

    with tempfile.TemporaryDirectory() as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for k in range(chosen.workers):
            free.put(Path(shutil.copytree(ROOT, Path(folder) / str(k), ignore=COPIED)))

        def row(named: tuple[str, Mutant]) -> list:
            name, mutant = named
            copy = free.get()
            try:
                outcome, seconds, by = tried(mutant, copy)
            finally:
                free.put(copy)
            if outcome == SURVIVED and mutant.equivalent:
                outcome = f"equivalent: {mutant.equivalent}"
            print(f"{seconds:5.0f} s  {outcome:9} {mutant.file}: {mutant.breaks}  {by}", flush=True)
            return [name, mutant.file, mutant.breaks, outcome, by]

        with ThreadPoolExecutor(chosen.workers) as pool:
            rows = list(pool.map(row, mutants))

    counts = {
        name: {o: sum(r[0] == name and r[3].split(":")[0] == o for r in rows) for o in outcomes}
        for name in tables
        if (outcomes := sorted({r[3].split(":")[0] for r in rows if r[0] == name}))
    }
    print(json.dumps(counts))
    if not chosen.only:
        write_report(
            "mutants",
            "Mutants: one line changed at a time",
            f"""Command: `python benchmarks/mutants.py`. In each row one place of one file is changed, so that
the promise named is broken, and the tests that guard it run until the first failure. *core* is sums,
sensitivities, noise, accounts, ledger, owners and curator; *checks* is what stands around them: origins,
units, refusals, the order of things before and after spending, and what a result says. A row may be
*equivalent*: nothing that leaves can tell the two apart, for the reason given. In all: {json.dumps(counts)}.""",
            ["table", "file", "promise", "outcome", "noticed by"],
            rows,
        )


if __name__ == "__main__":
    main()
