"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pymc-dp")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
