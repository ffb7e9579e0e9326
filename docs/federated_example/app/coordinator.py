"""What the coordinator runs. Flower calls this a ServerApp, and insists on a ClientApp beside it."""

import sys
from pathlib import Path

import pymc as pm
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from pymc_dp.federated import find_surrogate
from pymc_dp.federated.flower import FlowerOwners

app = ServerApp()
nobody = ClientApp()  # owners run `serve` instead, which never fetches this file


@app.main()
def main(grid, context):
    """Ask all owners, then sample at no further cost."""
    folder = Path(context.run_config["folder"])
    sys.path.insert(0, str(folder))
    from hospital import prior

    model = prior()
    ask = FlowerOwners(grid, context.run_config["owners"])
    surrogate = find_surrogate(ask, model, on_progress=print)
    idata = pm.sample(1000, model=surrogate.model(model), cores=1, progressbar=False, random_seed=0)
    idata.to_netcdf(str(folder / "posterior.part"))
    (folder / "posterior.part").rename(folder / "posterior.nc")
