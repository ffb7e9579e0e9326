"""The command line, for R, Stata and schedulers: ``pymc-dp run model.py data.parquet --epsilon 1``.

``model.py`` and what it imports see the data and may print them, and so may PyMC, PyTensor and pandas in
an error or a warning. So nothing reaches the terminal but what this package says itself: both standard
streams lead nowhere for everybody else, and of an error that is not the package's own there is
the type, and the line of ``model.py`` if it came from there. That there was such an error can depend on
data, like any error of a function of the user's.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pymc as pm

import pymc_dp as dp
from pymc_dp.compat import groups_of, root_attrs
from pymc_dp.interrupts import deferred
from pymc_dp.likelihood.formulas import is_formula

# Exit codes. argparse has 2 for arguments that cannot be used, and shells 130 for an interrupt.
_FAILED, _REFUSED, _BUDGET, _INPUT, _NOT_USABLE, _INTERRUPTED = 1, 3, 4, 5, 6, 130
_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": pd.read_parquet,
    ".feather": pd.read_feather,
    ".csv": pd.read_csv,
}
_CODES = """\
exit codes: 0 the result is written; 6 it is written, and says that its draws are of no use; 2 arguments that cannot be
used; 3 refused, with the reason; 4 the run does not fit the ledger; 5 the data file or model.py failed; 1 anything else;
130 interrupted. Files are there with 0 and 6 only."""


class _InputError(Exception):
    """The data file or the model's file failed; the message tells no value."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; see ``--help``. For the rest of the process nobody else can print.

    Parameters
    ----------
    arguments : list of str, optional
        Default: those of the process.

    Returns
    -------
    int
        The exit code.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "run":
        _check_paths(parser, options)
    out, err = _keep_streams()
    try:
        return _run(options, out, err) if options.command == "run" else _ledger(options, out)
    except _InputError as error:
        message, code = str(error), _INPUT
    except dp.PrivacyBudgetExceeded as error:
        message, code = str(error), _BUDGET
    except dp.PrivacyError as error:
        message, code = f"{type(error).__name__}: {error}", _REFUSED
    except KeyboardInterrupt:
        message, code = "Interrupted: no result was written.", _INTERRUPTED
    except BaseException as error:
        message, code = (
            f"{type(error).__name__}. The message may quote data and is not shown. What has been charged stays in the "
            "ledger; a result that is there may not be whole.",
            _FAILED,
        )
    print(message, file=err)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pymc-dp", description="Private posteriors from the command line."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {dp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="draw from a model's private posterior", epilog=_CODES)
    run.add_argument("model", type=Path, help="Python file with a function model(data)")
    run.add_argument("data", type=Path, help="table of the data: .parquet, .feather or .csv")
    run.add_argument("--epsilon", type=float, required=True, help="of the whole run")
    run.add_argument("--delta", type=float, help="default: the ledger's, or 0.1 / units")
    run.add_argument("--unit", help="column that says whose a row is, or the records' dimension")
    run.add_argument("--neighbours", help="substitute-one (default) or add-or-remove")
    run.add_argument("--draws", type=int, default=1000, help="per chain (default: 1000)")
    run.add_argument("--chains", type=int, default=4, help="default: 4")
    run.add_argument("--family", help="of DPSurrogate, the sampler; default: the model decides")
    run.add_argument("--ledger", type=Path, help="account that is charged; see `pymc-dp ledger`")
    run.add_argument("--output", type=Path, default=Path("result.nc"), help="default: result.nc")
    run.add_argument("--csv", type=Path, help="the draws as a table, one column per number")
    run.add_argument("--report", type=Path, help="privacy report: .html, .json or .txt")
    run.add_argument("--registry", type=Path, help="draft for the deployments' registry: .json")
    ledger = commands.add_parser("ledger", help="open an account of a data set, or read it")
    ledger.add_argument("file", type=Path)
    ledger.add_argument("--epsilon", type=float, help="total budget, of a new account")
    ledger.add_argument("--delta", type=float, help="of a new account")
    ledger.add_argument("--neighbours", help="of a new account")
    return parser


def _check_paths(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse files that cannot be read or written while nothing has been spent."""
    for file in (options.model, options.data):
        if not file.is_file():
            parser.error(f"there is no file {file}")
    if options.data.suffix.lower() not in _READERS:
        parser.error(f"the data are in a file ending in {', '.join(_READERS)}")
    if options.ledger is not None and not options.ledger.is_file():
        parser.error(
            f"there is no ledger {options.ledger}: "
            f"`pymc-dp ledger {options.ledger} --epsilon 3 --delta 1e-6` opens one"
        )
    endings = {
        "output": (".nc",),
        "csv": (".csv",),
        "report": (".html", ".json", ".txt"),
        "registry": (".json",),
    }
    for name, allowed in endings.items():
        file = getattr(options, name)
        if file is None:
            continue
        if file.suffix.lower() not in allowed:
            parser.error(f"--{name} ends in {' or '.join(allowed)}")
        if file.exists():
            parser.error(f"--{name}: {file} is there already, and what is in it was paid for")
        if not os.access(file.parent, os.W_OK):
            parser.error(f"--{name}: cannot write in {file.parent}")


def _keep_streams() -> tuple[IO[str], IO[str]]:
    """Our own ways to the two standard streams, which lead nowhere for all others from now on.

    Also for compiled code and for processes that are started. It is not undone: what others have
    printed may still wait in a buffer.
    """
    kept = [
        open(  # noqa: SIM115
            os.dup(number), "w", encoding=stream.encoding, errors="backslashreplace", buffering=1
        )
        for number, stream in ((1, sys.stdout), (2, sys.stderr))
    ]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    return kept[0], kept[1]


def _run(options: argparse.Namespace, out: IO[str], err: IO[str]) -> int:
    data = _read(options.data)
    model = _model(options.model, data)
    given = {name: getattr(options, name) for name in ("delta", "neighbours", "family")}
    keywords = {name: value for name, value in given.items() if value is not None}
    if options.unit is not None:
        keywords["unit"] = _unit(options.unit, data)
    ledger = None if options.ledger is None else dp.PrivacyLedger(options.ledger)
    log = logging.getLogger("pymc.dp")
    log.addHandler(logging.StreamHandler(err))
    result = dp.sample(
        options.draws, chains=options.chains, epsilon=options.epsilon, ledger=ledger, model=model,
        progressbar=False, **keywords,
    )  # fmt: skip
    with deferred(lambda: None):  # it is paid for
        result.to_netcdf(str(options.output), engine="h5netcdf")
        if options.csv is not None:
            _draws_as_table(groups_of(result)["posterior"]).to_csv(options.csv, index=False)
        report = dp.privacy_report(result, ledger=ledger)
        if options.report is not None:
            report.save(options.report)
        if options.registry is not None:
            options.registry.write_text(report.to_registry() + "\n", encoding="utf-8")
        print(report, file=out)
    return 0 if root_attrs(result).get("privacy_usable", 1) == 1 else _NOT_USABLE


def _ledger(options: argparse.Namespace, out: IO[str]) -> int:
    account = dp.PrivacyLedger(
        options.file, epsilon=options.epsilon, delta=options.delta, neighbours=options.neighbours
    )
    print(
        f"{options.file}: budget ε = {account.epsilon:g} at δ = {account.delta:g} ({account.neighbours}); reserved by "
        f"{len(account.runs())} run(s): {account.spent():.4g}; another run may have {account.remaining():.4g}.",
        file=out,
    )
    return 0


def _read(file: Path) -> pd.DataFrame:
    try:
        return _READERS[file.suffix.lower()](file)
    except ImportError:
        raise _InputError(
            f"{file.suffix} files need pyarrow: pip install 'pymc-dp[command-line]'"
        ) from None
    except Exception as error:
        raise _InputError(
            f"{file} cannot be read as a table ({type(error).__name__}). The message may quote data and is not shown."
        ) from None


def _model(file: Path, data: pd.DataFrame) -> Any:
    """What the function ``model`` of a file makes of the data."""
    sys.path.insert(0, str(file.resolve().parent))
    try:
        names: dict[str, Any] = {"__name__": "model", "__file__": str(file)}
        exec(compile(file.read_bytes(), str(file), "exec"), names)
        if not callable(names.get("model")):
            raise _InputError(f"{file} has no function model(data).")
        made = names["model"](data)
    except (KeyboardInterrupt, _InputError):
        raise
    except BaseException as error:
        line = _line(error, str(file))
        where = f" in line {line}" if line else ""
        raise _InputError(
            f"{file} failed{where} ({type(error).__name__}). The message may quote data and is not shown: call "
            "model(data) in Python to see it."
        ) from None
    if not isinstance(made, pm.Model) and not is_formula(made):
        raise _InputError(
            f"model(data) in {file} returns a PyMC or bambi model. It returned {type(made).__name__}."
        )
    return made


def _line(error: BaseException, file: str) -> int | None:
    """The innermost line of a file that an error came through."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    found, place = None, error.__traceback__
    while place is not None:
        if place.tb_frame.f_code.co_filename == file:
            found = place.tb_lineno
        place = place.tb_next
    return found


def _unit(given: str, data: pd.DataFrame) -> Any:
    """Identifiers, if the table has such a column: never a weaker promise than the dimension of that name."""
    if given in data.columns:
        return np.array([str(x) for x in data[given]])
    return int(given) if given.isdecimal() else given


def _draws_as_table(posterior: Any) -> pd.DataFrame:
    """Draws as R's posterior package has them: ``.chain``, ``.iteration``, ``.draw``, and ``beta[1]``, ``beta[2]``."""
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    columns: dict[str, Any] = {
        ".chain": np.repeat(np.arange(chains) + 1, draws),
        ".iteration": np.tile(np.arange(draws) + 1, chains),
        ".draw": np.arange(chains * draws) + 1,
    }
    for name, variable in posterior.data_vars.items():
        values = variable.transpose("chain", "draw", ...).values
        for index in np.ndindex(values.shape[2:]):
            place = f"[{','.join(str(i + 1) for i in index)}]" if index else ""
            columns[f"{name}{place}"] = values[(slice(None), slice(None), *index)].ravel()
    return pd.DataFrame(columns)


if __name__ == "__main__":
    sys.exit(main())
