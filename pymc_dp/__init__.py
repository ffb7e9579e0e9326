"""Differentially private Bayesian inference with PyMC."""

import lazy_loader

# Public names are those of `__init__.pyi`, and their modules are imported when a name is first used: importing all takes
# longer than importing PyMC.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
