"""Kernels that are compiled once and called by their names.

Numba compiles a function again, machine code and all, with every function that calls it, and PyTensor nests three of
these: the kernel of released sums took 42 seconds to its first log-density, 9 if it is called by name.

Code that calls a name ends the process if nothing has this name. So what calls a kernel goes through
:meth:`Kernel.ready`, whether it is compiled now or comes from a cache, and a name that comes out of a pickle does.
"""

import inspect
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any
from zlib import crc32

import llvmlite.binding
import numba
from numba import types
from numba.extending import models, register_model


class _Name(types.ExternalFunction):
    """What Numba knows of a kernel: its name and its signature."""

    def __init__(self, kernel: "Kernel", symbol: str, signature: Any):
        super().__init__(symbol, signature)
        self.kernel = kernel

    def __reduce__(self) -> Any:
        function = self.kernel.function
        return _ready, (function.__module__, function.__name__)


register_model(_Name)(models.OpaqueModel)  # as that of its base


def _ready(module: str, function: str) -> Any:
    __import__(module)
    kernels = (x for x in vars(sys.modules[module]).values() if isinstance(x, Kernel))
    kernel = next(x for x in kernels if x.function.__name__ == function)
    return kernel.ready(kernel.name)


class Kernel:
    """A function of pointers to double-precision arrays, C-contiguous, and of whole numbers.

    Parameters
    ----------
    function : callable
        For Numba, at the top of its module. Takes arrays, as pointers, then whole numbers; writes to the last of the
        arrays; no result.
    arrays, numbers : int
        How many it takes.

    Attributes
    ----------
    name : ExternalFunction
        For functions that Numba compiles; as a global variable of their module, which is what Numba reads.
    version : int
        Of the module's source: PyTensor keeps on disk what was compiled with it, and looks at nothing else.
    """

    def __init__(self, function: Callable[..., None], arrays: int, numbers: int):
        self.function = function
        self.version = crc32(inspect.getsource(sys.modules[function.__module__]).encode())
        pointers = [types.CPointer(types.float64)] * arrays
        signature = types.void(*pointers, *[types.int64] * numbers)
        self.name = _Name(self, f"pymc_dp_{function.__name__}_{self.version:x}", signature)

    @cached_property
    def _compiled(self) -> Any:
        # A product and a sum in one instruction: a third less for polynomials.
        options = {"cache": True, "error_model": "numpy", "fastmath": {"contract"}}
        compiled = numba.cfunc(self.name.sig, **options)(self.function)
        llvmlite.binding.add_symbol(self.name.symbol, compiled.address)
        return compiled

    def ready(self, caller: Any) -> Any:
        """What calls the kernel by its name, once something has this name."""
        _ = self._compiled
        return caller


@numba.njit(cache=True)
def contiguous(x):  # type: ignore[no-untyped-def]
    """Itself, or a copy if it is not."""
    step = x.itemsize
    for axis in range(x.ndim - 1, -1, -1):
        if x.shape[axis] != 1 and x.strides[axis] != step:
            return x.copy()
        step *= x.shape[axis]
    return x
