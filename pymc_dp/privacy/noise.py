"""Where noise, and the choice of secret samples, comes from.

:class:`SecureNoise` is the only source a guarantee can rest on. :class:`InsecureSeededNoise` has
the same interface and is reproducible; results made with it carry no guarantee and say so.
Neither is ever driven by the ``random_seed`` of ``pm.sample``.
"""

import os
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.l2_noise import l2_noise


class NoiseSource(Protocol):
    """Source of discrete Gaussian and Laplace noise, of that of the ℓ2 mechanism, and of secret uniform bits.

    Attributes
    ----------
    name, pure_name : str
        What the metadata of a result call it; with a pure ε.
    secure : bool
        Whether a privacy guarantee can rest on it.
    """

    name: str
    pure_name: str
    secure: bool

    def discrete_gaussian(self, scale: float, size: int, at: tuple[int, ...]) -> NDArray[np.int64]:
        r"""Draw `size` independent integers with mass :math:`\propto e^{-k^2/2\,scale^2}`.

        `at` is the public address of the release (chain, iteration, release within it); only a
        reproducible source has a use for it.
        """
        ...

    def discrete_laplace(self, scale: float, size: int, at: tuple[int, ...]) -> NDArray[np.int64]:
        r"""Draw `size` independent integers with mass :math:`\propto e^{-|k|/scale}`.

        `at` is as in :meth:`discrete_gaussian`.
        """
        ...

    def l2(self, scale: float, size: int, at: tuple[int, ...]) -> NDArray[np.int64]:
        r"""Draw `size` integers, those next to a vector with density :math:`\propto e^{-\lVert x \rVert_2 / scale}`.

        `at` is as in :meth:`discrete_gaussian`.
        """
        ...

    def words(self, size: int, at: tuple[int, ...]) -> NDArray[np.uint64]:
        """Draw `size` words of 64 uniform bits, to choose a secret sample with.

        `at` is as in :meth:`discrete_gaussian`; words never share randomness with noise.
        """
        ...


class SecureNoise:
    """Exact discrete noise, fed by the system's CSPRNG: Gaussian from OpenDP's sampler, that of the ℓ2 mechanism from ours.

    Exactly distributed on the integers, without floating point (Canonne, Kamath and Steinke,
    *The Discrete Gaussian for Differential Privacy*, 2020; :func:`~pymc_dp.privacy.l2_noise.l2_noise`). Safe across
    forked processes.
    """

    name = "opendp discrete gaussian"
    pure_name = "exact ℓ2 mechanism, opendp discrete laplace"
    secure = True

    def discrete_gaussian(
        self, scale: float, size: int, at: tuple[int, ...] = ()
    ) -> NDArray[np.int64]:
        """See :meth:`NoiseSource.discrete_gaussian`; `at` is not used."""
        return np.asarray(_measurement(scale)([0] * size), dtype=np.int64)

    def discrete_laplace(
        self, scale: float, size: int, at: tuple[int, ...] = ()
    ) -> NDArray[np.int64]:
        """See :meth:`NoiseSource.discrete_laplace`; `at` is not used."""
        return np.asarray(_measurement(scale, "laplace")([0] * size), dtype=np.int64)

    def l2(self, scale: float, size: int, at: tuple[int, ...] = ()) -> NDArray[np.int64]:
        """See :meth:`NoiseSource.l2`; `at` is not used."""
        return l2_noise(scale, size, self.words)

    def words(self, size: int, at: tuple[int, ...] = ()) -> NDArray[np.uint64]:
        """See :meth:`NoiseSource.words`; from the system's CSPRNG, `at` is not used."""
        return np.frombuffer(os.urandom(8 * size), dtype=np.uint64)


@lru_cache(maxsize=64)
def _measurement(scale: float, family: str = "gaussian") -> Any:
    """OpenDP's discrete Gaussian or Laplace mechanism on vectors; building it costs as much as a draw."""
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    vectors = opendp.vector_domain(opendp.atom_domain(T="i64"))
    if family == "laplace":
        return opendp.m.make_laplace(vectors, opendp.l1_distance(T="i64"), scale=scale)
    return opendp.m.make_gaussian(vectors, opendp.l2_distance(T="f64"), scale=scale)


# Sets the seeds of samples apart from those of noise.
_SAMPLING = 1


class InsecureSeededNoise:
    """Reproducible rounded noise, for tests and debugging only.

    A result made with it has ``privacy_valid`` false and an infinite ε.

    Parameters
    ----------
    seed : int
        Fixes every draw: the same seed and the same release address give the same noise. Chains in
        parallel race for their slots, so a run is reproducible with ``cores=1``.
    """

    name = pure_name = "insecure seeded"
    secure = False

    def __init__(self, seed: int):
        self.seed = seed

    def discrete_gaussian(
        self, scale: float, size: int, at: tuple[int, ...] = ()
    ) -> NDArray[np.int64]:
        """See :meth:`NoiseSource.discrete_gaussian`."""
        return np.rint(scale * self._rng(*at).standard_normal(size)).astype(np.int64)

    def discrete_laplace(
        self, scale: float, size: int, at: tuple[int, ...] = ()
    ) -> NDArray[np.int64]:
        """See :meth:`NoiseSource.discrete_laplace`."""
        rng = np.random.default_rng([self.seed, *at])
        return np.rint(rng.laplace(0, scale, size)).astype(np.int64)

    def l2(self, scale: float, size: int, at: tuple[int, ...] = ()) -> NDArray[np.int64]:
        """See :meth:`NoiseSource.l2`."""
        rng = self._rng(*at)
        direction = rng.standard_normal(size)
        length = scale * rng.gamma(size) / np.linalg.norm(direction)
        return np.rint(length * direction).astype(np.int64)

    def words(self, size: int, at: tuple[int, ...] = ()) -> NDArray[np.uint64]:
        """See :meth:`NoiseSource.words`."""
        return self._rng(*at, _SAMPLING).integers(2**64, size=size, dtype=np.uint64)

    def _rng(self, *at: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *at])
