"""Everything this package raises on purpose.

Messages never contain a data value: an exception is an output like any other. They name the
variable and say what to do.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class PrivacyError(Exception):
    """Base class of every error of this package."""


class UnsupportedModelError(PrivacyError):
    """The model cannot be sampled privately as it stands.

    The message names the variable and says whether something can take its place.
    """


class NoSurrogateError(UnsupportedModelError):
    """A surrogate cannot be built for the model, as its likelihood cannot be differentiated; other steps can sample it."""


class PrivacyConfigurationError(PrivacyError, ValueError):
    """A privacy setting is missing, contradictory or out of its range."""


class PrivacyBudgetExceeded(PrivacyError):
    """The release would cost more than what is left; no data were read for it."""


class ShardError(PrivacyError):
    """The workers could not sum the shards; nothing was released of the iteration they failed in."""


class LedgerError(PrivacyError):
    """The ledger file cannot be used: damaged, not writable, or of a newer version."""


def refuses_from_outside(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let refusals leave `function` without the frames that they were raised in.

    Frames hold arrays of records as local variables, which error reporters and notebooks print.
    """

    @wraps(function)
    def outermost(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except PrivacyError as error:
            refusal = error.with_traceback(None)
        # Identifiers of units are among the arguments.
        del args, kwargs
        refusal.__cause__ = refusal.__context__ = None
        raise refusal

    return outermost
