"""The command line: what it writes, what it says, and that nobody else can say anything."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pymc_dp as dp
from pymc_dp.compat import groups_of, read_netcdf, root_attrs

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[1] / "docs" / "command_line.md").read_text(encoding="utf-8")
PLANTED = "271828.18"
NOISY = f"""
import atexit, ctypes, logging, os, sys, warnings
import pymc as pm
import pymc_dp
from pytensor.printing import Print

print("{PLANTED} while it is read")
atexit.register(print, "{PLANTED} at the end")
logging.basicConfig(level=0, stream=sys.stderr)
sample = pymc_dp.sample


def of_no_use(*arguments, **keywords):
    result = sample(*arguments, **keywords)
    result.attrs["privacy_usable"] = 0
    return result


pymc_dp.sample = of_no_use  # whether they are is for the noise to say


def model(data):
    print(data.iloc[0], flush=True)
    print("{PLANTED} in a buffer", end="")
    warnings.warn(str(data.iloc[0]))
    logging.getLogger("pymc").warning(str(data.iloc[0]))
    os.system("echo {PLANTED}")
    ctypes.CDLL(None).puts(b"{PLANTED}")
    with pm.Model() as made:
        rate = pm.Normal("rate", 0, 1)
        x = pm.Data("x", data["x"], dims="row")
        pm.Normal("y", rate * Print("{PLANTED}")(x), 1, observed=data["y"], dims="row")
    return made
"""


def table(n=40):
    rng = np.random.default_rng(0)
    treated = rng.choice([-1.0, 1.0], size=n)
    made = pd.DataFrame({"treated": treated, "age": rng.uniform(0, 80, size=n)})
    made["ill"] = (rng.random(n) < 1 / (1 + np.exp(-0.4 - 0.3 * treated))).astype(int)
    made["patient"] = [f"p{i // 2}" for i in range(n)]
    return made


def start(*arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "pymc_dp.command_line", *map(str, arguments)],
        cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
        # A shell starts what runs in the background with Ctrl-C ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def ended(running):
    """What it has printed, once it has ended. It is not left behind: a later test would hear of it."""
    try:
        return running.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        raise


def command(*arguments, cwd):
    running = start(*arguments, cwd=cwd)
    out, err = ended(running)
    return subprocess.CompletedProcess(running.args, running.returncode, out, err)


@pytest.fixture
def place(tmp_path):
    """A folder with data.csv and a model.py that is never come to."""
    (tmp_path / "model.py").write_text("def model(data): ...\n")
    table().to_csv(tmp_path / "data.csv", index=False)
    return tmp_path


def test_the_page_does_what_it_says(place):
    (model,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (commands,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (place / "model.py").write_text(model)
    table(20_000).to_csv(place / "data.csv", index=False)
    opened, run = (command(*line.split()[1:], cwd=place) for line in commands.splitlines() if line)
    assert opened.returncode == 0
    assert "budget ε = 3 at δ = 1e-06 (substitute-one); reserved by 0 run(s)" in opened.stdout
    assert run.returncode == 0, run.stderr

    attrs = root_attrs(result := read_netcdf(place / "result.nc"))
    posterior = groups_of(result)["posterior"]
    assert attrs["privacy_units"] == 10_000  # of two rows each
    assert (attrs["privacy_epsilon"], attrs["privacy_delta"]) == (1.0, 1e-6)
    assert dp.PrivacyLedger(place / "trial.ledger").spent() == pytest.approx(1.0, abs=0.01)
    assert attrs["privacy_statement"] in run.stdout
    assert attrs["privacy_statement"] in run.stderr
    facts = json.loads((place / "report.json").read_text(encoding="utf-8"))
    assert facts["statement"] == attrs["privacy_statement"]
    assert facts["account"]["runs"] == 1
    entry = json.loads((place / "entry.json").read_text(encoding="utf-8"))["deployment"]
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0, "delta": 1e-6}
    assert "by this run alone" in entry["deployment_model"]["release_type_details"]

    draws = pd.read_csv(place / "draws.csv")
    assert list(draws)[:3] == [".chain", ".iteration", ".draw"]
    assert {"level", "effect[1]", "effect[2]"} == set(list(draws)[3:])
    assert draws[".draw"].tolist() == list(range(1, 1001))
    for chain, iteration, term in [(1, 1, 1), (1, 500, 2), (2, 3, 2)]:
        row = draws[(draws[".chain"] == chain) & (draws[".iteration"] == iteration)]
        stored = posterior["effect"].values[chain - 1, iteration - 1, term - 1]
        assert row[f"effect[{term}]"].item() == pytest.approx(stored)

    refused = command(
        "run", "model.py", "data.csv", "--epsilon", 2.9, "--unit", "patient", "--ledger", "trial.ledger",
        "--output", "second.nc", cwd=place,
    )  # fmt: skip
    assert refused.returncode == 4
    assert "would bring the account to" in refused.stderr
    assert not (place / "second.nc").exists()


def test_nobody_else_prints_and_useless_draws_have_their_own_code(place):
    (place / "model.py").write_text(NOISY)
    pd.DataFrame({"x": [float(PLANTED)] * 30, "y": [float(PLANTED)] * 30}).to_parquet(
        place / "data.parquet"
    )
    done = command("run", "model.py", "data.parquet", "--epsilon", 0.1, "--chains", 2, cwd=place)
    assert done.returncode == 6, done.stderr
    assert root_attrs(read_netcdf(place / "result.nc"))["privacy_usable"] == 0
    assert "differentially private" in done.stdout
    assert "Protects: " in done.stderr
    for text in (done.stdout, done.stderr):
        assert "271828" not in text
        assert "Sequential sampling" not in text  # PyMC is somebody else, too


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def model(data):\n\n    raise KeyError(str(data))\n", "line 3 (KeyError)"),
        ("def helper(data):\n    data['PLANTED']\n\n\ndef model(data):\n    helper(data)\n", "line 2"),
        ("import sys\ndef model(data):\n    sys.exit(str(data))\n", "line 3 (SystemExit)"),
        ("import pymc_dp\ndef model(data):\n    raise pymc_dp.PrivacyError(data)\n", "(PrivacyError)"),
        ("def model(data):\n    ) PLANTED\n", "line 2 (SyntaxError)"),
        ("MODEL = 'PLANTED'\n", "no function model(data)"),
        ("def model(data):\n    return str(data)\n", "It returned str"),
    ],
)  # fmt: skip
def test_an_error_in_the_model_shows_its_type_and_its_line(place, code, says):
    (place / "model.py").write_text(code.replace("PLANTED", PLANTED))
    (place / "data.csv").write_text(f"x,y\n{PLANTED},{PLANTED}\n")
    failed = command("run", "model.py", "data.csv", "--epsilon", 1, cwd=place)
    assert failed.returncode == 5
    assert says in failed.stderr
    assert "271828" not in failed.stderr + failed.stdout
    assert not (place / "result.nc").exists()


def test_an_error_that_is_nobodys_shows_its_type_only(place):
    (place / "model.py").write_text(
        "import pymc as pm\nimport pymc_dp\n\n\ndef fail(*_, **__):\n"
        f"    raise ValueError('{PLANTED}') from KeyError('{PLANTED}')\n\n\n"
        "def model(data):\n    pymc_dp.sample = fail\n    return pm.Model()\n"
    )
    failed = command("run", "model.py", "data.csv", "--epsilon", 1, cwd=place)
    assert failed.returncode == 1
    assert failed.stderr.startswith("ValueError. ")
    assert "271828" not in failed.stderr


def test_a_table_that_cannot_be_read_is_not_quoted(place):
    (place / "data.csv").write_text(f'x,y\n"{PLANTED}')
    failed = command("run", "model.py", "data.csv", "--epsilon", 1, cwd=place)
    assert failed.returncode == 5
    assert "(ParserError)" in failed.stderr
    assert "271828" not in failed.stderr


def test_refusals_are_told(place):
    (place / "model.py").write_text(
        "import pymc as pm\n\n\ndef model(data):\n    with pm.Model() as made:\n"
        "        pm.Normal('mu', 0, 1)\n    return made\n"
    )
    refused = command("run", "model.py", "data.csv", "--epsilon", 1, cwd=place)
    assert refused.returncode == 3
    assert refused.stderr.splitlines()[-1].startswith("UnsupportedModelError: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--output", "data.csv"), "--output ends in .nc"),
        (("--output", "paid.nc"), "is there already"),
        (("--report", "no/such/folder.html"), "cannot write"),
        (("--registry", "entry.yaml"), "--registry ends in .json"),
        (("--ledger", "typo.ledger"), "pymc-dp ledger typo.ledger"),
        (("--epsilon", "one"), "invalid float value"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_read(place, arguments, says):
    (place / "paid.nc").touch()
    (place / "model.py").write_text("raise AssertionError\n")
    failed = command("run", "model.py", "data.csv", "--epsilon", 1, *arguments, cwd=place)
    assert failed.returncode == 2
    assert says in failed.stderr


def test_ctrl_c_has_its_code_and_shows_nothing(place):
    (place / "model.py").write_text(
        "import pathlib, time\n\n\ndef model(data):\n    pathlib.Path('ready').touch()\n    time.sleep(100)\n"
    )
    running = start("run", "model.py", "data.csv", "--epsilon", 1, cwd=place)
    for _ in range(3000):
        if (place / "ready").exists():
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    out, err = ended(running)
    assert (running.returncode, out) == (130, "")
    assert err == "Interrupted: no result was written.\n"


@pytest.mark.slow
def test_a_bambi_model(place):
    (place / "model.py").write_text(
        "import bambi as bmb\n\n\ndef model(data):\n"
        "    normal = bmb.Prior('Normal', mu=0, sigma=1)\n"
        "    priors = {'Intercept': normal, 'common': normal}\n"
        "    return bmb.Model('ill ~ treated', data, family='bernoulli', priors=priors, center_predictors=False)\n"
    )
    table(5_000).to_feather(place / "data.feather")
    done = command(
        "run", "model.py", "data.feather", "--epsilon", 2, "--delta", 1e-6, "--neighbours", "add-or-remove",
        "--chains", 2, "--report", "page.html", cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    attrs = root_attrs(read_netcdf(place / "result.nc"))
    assert attrs["privacy_relation"] == "add-or-remove"
    assert "privacy_units" not in attrs
    for said in (done.stdout, done.stderr, (place / "page.html").read_text(encoding="utf-8")):
        assert not re.search(r"\b5,?000\b", said)
