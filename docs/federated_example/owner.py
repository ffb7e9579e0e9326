"""One hospital: `python owner.py NUMBER SUPERLINK`, in a folder with ca.pem and ownerNUMBER."""

import logging
import sys

from hospital import records, with_records

from pymc_dp import PrivacyLedger
from pymc_dp.federated import Owner
from pymc_dp.federated.flower import serve

logging.basicConfig(level=logging.WARNING)
k, superlink = int(sys.argv[1]), sys.argv[2]
owner = Owner(
    model=with_records(*records(k)),
    epsilon=4.0,
    ledger=PrivacyLedger(f"owner{k}.ledger", epsilon=4.0, delta=3e-5),
    journal=f"owner{k}.jsonl",
)
print(owner.statement, flush=True)
serve(owner, superlink, root_certificates="ca.pem", private_key=f"owner{k}")
