"""Owners through Flower, in processes of their own: the documentation's example, and who tries to misuse it."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import pymc_dp as dp
from pymc_dp.compat import groups_of, read_netcdf
from pymc_dp.federated import Owner

pytest.importorskip("flwr")

pytestmark = [pytest.mark.process, pytest.mark.slow]

EXAMPLE = Path(__file__).resolve().parents[1] / "docs" / "federated_example"

# A coordinator that asks what it should, and then what it should not.
PROBE = """
import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
from flwr.clientapp import ClientApp

from pymc_dp.exceptions import PrivacyError
from pymc_dp.federated.flower import FlowerOwners

app = ServerApp()
nobody = ClientApp()


@app.main()
def main(grid, context):
    ask = FlowerOwners(grid, 3)
    at = {"theta": np.zeros(3), "W": np.eye(3), "share": np.array(0.01)}
    seen = {"answers": [], "refusals": []}
    for kind, request in [("offer", {}), ("gradient_sizes", at | {"bins_per_octave": np.ones(())}), ("score", at | {"bound": np.ones(())})]:
        for answer in ask(kind, request):
            seen["answers"].append({name: value.tolist() for name, value in answer.items()})
    numbers = MetricRecord(
        {"theta": [0.0] * 3, "W": [0.0] * 9, "W.rows": 3, "share": 0.01, "bound": 1.0}
    )
    code = ConfigRecord({"code": b"raise SystemExit"})
    arrays = ArrayRecord([np.zeros(3)])
    for kind, content in [
        ("query.score", {"numbers": code}),
        ("query.score", {"numbers": numbers, "code": code}),
        ("query.score", {"numbers": arrays}),
        ("query.score", {"numbers": MetricRecord({"theta": 0.0, "theta.rows": 2})}),
        ("query.score", {"numbers": MetricRecord({"theta": [], "theta.rows": 2**62})}),
        ("query.score", {}),
        ("query.code", {"numbers": numbers}),
        ("query", {"numbers": numbers}),
        ("train", {"numbers": numbers}),
        ("evaluate.score", {"numbers": numbers}),
    ]:
        sent = [Message(RecordDict(content), node, kind) for node in grid.get_node_ids()]
        for reply in grid.send_and_receive(sent, timeout=60):
            (name, record), = reply.content.items()
            seen["refusals"].append([kind, name, dict(record)])
    try:
        ask("score", at)
    except PrivacyError as refusal:
        seen["raised"] = str(refusal)
    seen["owners"] = len(list(grid.get_node_ids()))
    Path(context.run_config["folder"], "seen.json").write_text(json.dumps(seen))
"""


STRANGER = """
import sys
from pymc_dp.federated.flower import serve
serve(None, sys.argv[1], root_certificates="ca.pem", private_key="stranger")
"""


class NoNoise(dp.InsecureSeededNoise):
    def discrete_gaussian(self, scale, size, at=()):
        return np.zeros(size, dtype=np.int64)


def module(name):
    spec = importlib.util.spec_from_file_location(
        f"federated_example_{name}", EXAMPLE / f"{name}.py"
    )
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which the probe, a stranger and the example have run, in this order."""
    run, folder = module("run"), tmp_path_factory.mktemp("federated")
    app = folder / "probe"
    app.mkdir()
    (app / "coordinator.py").write_text(PROBE)
    (app / "pyproject.toml").write_text((EXAMPLE / "app" / "pyproject.toml").read_text())
    with run.Network(folder / "network") as network:
        run.start_owners(network)
        network.key("stranger", register=False)
        stranger = network.start("stranger", sys.executable, "-c", STRANGER, network.address)
        printed = run.coordinate(network, app)
        assert (network.folder / "seen.json").exists(), printed
        printed = run.coordinate(network)
        assert (network.folder / "posterior.nc").exists(), printed
        network.wait_for(lambda: stranger.poll() is not None, 120, "the stranger to give up")
        assert stranger.returncode not in (0, None)
    return network.folder


def journal(folder, k):
    return [json.loads(line) for line in (folder / f"owner{k}.jsonl").read_text().splitlines()]


def numbers(thing):
    return np.concatenate([np.ravel(value) for value in thing.values()])


def test_a_stranger_is_refused(finished):
    assert "Failed to initialize the connection" in (finished / "stranger.log").read_text()
    assert json.loads((finished / "seen.json").read_text())["owners"] == 3


def test_messages_other_than_numbers_are_refused(finished):
    seen = json.loads((finished / "seen.json").read_text())
    assert len(seen["refusals"]) == 10 * 3
    for kind, name, record in seen["refusals"]:
        assert name == "refusal", kind
        assert set(record) == {"refusal"}
    texts = {record["refusal"].split(":")[0] for _, _, record in seen["refusals"]}
    assert "A message holds numbers, and nothing else." in texts
    assert "This owner answers queries only." in texts
    assert "A matrix consists of rows." in texts
    assert "An owner refuses: A 'score' request consists of" in seen["raised"]


def test_the_journals_hold_all_that_was_received(finished):
    seen = json.loads((finished / "seen.json").read_text())["answers"]
    offers, sizes, terms = seen[:3], seen[3:6], seen[6:]
    assert [offer["units"] for offer in offers] == [3000.0] * 3
    written = [journal(finished, k) for k in range(3)]
    for received, line in ((sizes, 0), (terms, 1)):
        for one in received:  # the order of owners is Flower's
            assert one in [lines[line]["answer"] for lines in written]
    for lines in written:
        kinds = [line["kind"] for line in lines]
        assert kinds[:2] == ["gradient_sizes", "score"]  # the probe's
        queries = ["gradient_sizes", "score", "information_sizes", "information"]
        # For each parameter its units, and then the same four again and again.
        assert kinds[2:] == 3 * ["gradient_sizes"] + (len(kinds) - 5) // 4 * queries
        assert sum(line["request"]["share"] for line in lines) == pytest.approx(1.0)


def test_no_message_holds_an_exact_value(finished):
    hospital = module("hospital")
    twin = Owner(
        model=hospital.with_records(*hospital.records(1)), epsilon=4.0, noise_source=NoNoise(0),
        compile_kwargs={"mode": "FAST_COMPILE"},
    )  # fmt: skip
    for line in journal(finished, 1):
        request = {name: np.array(value) for name, value in line["request"].items()}
        exact, sent = numbers(twin.answer(line["kind"], request)), numbers(line["answer"])
        assert sent.shape == exact.shape
        assert not np.isin(sent, exact).any()


def test_each_ledger_has_the_whole_cost_and_no_more(finished):
    for k in range(3):
        ledger = dp.PrivacyLedger(finished / f"owner{k}.ledger")
        assert 3.99 < ledger.spent() <= 4.0


def test_the_result_is_the_pooled_posterior(finished):
    """Within what the noise of three owners at ε = 4 does."""
    hospital = module("hospital")
    X, _ = (np.concatenate(parts) for parts in zip(*map(hospital.records, range(3)), strict=True))
    draws = groups_of(read_netcdf(finished / "posterior.nc"))["posterior"]["beta"].values
    truth = np.array([-0.5, 0.8, -0.6])
    p = 1 / (1 + np.exp(-X @ truth))
    sds = np.sqrt(np.diag(np.linalg.inv((X * (p * (1 - p))[:, None]).T @ X)))
    off = (draws.mean(axis=(0, 1)) - truth) / draws.std(axis=(0, 1))
    assert np.abs(off).max() < 4.5
    assert (draws.std(axis=(0, 1)) / sds).max() < 3
