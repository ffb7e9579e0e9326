"""Models of Räisä (2021), Table 5.1, and of Räisä et al. (2021), with exact posteriors.

And how both judge a chain: by its MMD to the posterior (section 5.5 of the thesis).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_dp as dp
from pymc_dp.compat import groups_of


@dataclass(frozen=True)
class Problem:
    """A data set, its PyMC model and exact draws from the posterior, tempered by T."""

    model: pm.Model
    n: int
    truth: np.ndarray
    exact: Callable[[int, np.random.Generator], np.ndarray]
    names: list[str]
    tempering: float = 1.0


def banana(
    n: int,
    d: int,
    a: float,
    seed: int = 0,
    *,
    first_variances: tuple[float, float] = (20.0, 2.5),
    tempering: float = 1.0,
) -> Problem:
    """Banana for a > 0, axis-parallel Gaussian for a = 0; the variances after the first two are 1."""
    rng = np.random.default_rng(seed)
    variances = np.array([*first_variances] + [1.0] * (d - 2))
    truth = np.array([0.0, 3.0] + [0.0] * (d - 2))
    mean = truth.copy()
    mean[1] += a * truth[0] ** 2
    x = mean + np.sqrt(variances) * rng.standard_normal((n, d))
    prior_sd = np.sqrt(1000.0)
    with pm.Model() as model:
        first = pm.Normal("first", 0, prior_sd)
        second = pm.Normal("second", -a * first**2, prior_sd)
        parts = [first, second + a * first**2]
        if d > 2:
            rest = pm.Normal("rest", 0, prior_sd, shape=d - 2)
            parts.append(rest)
        mu = pt.concatenate([pt.atleast_1d(part) for part in parts])
        pm.Normal("x", mu, written(np.sqrt(variances)), observed=pm.Data("X", x))

    precision = tempering * n / variances + 1 / 1000
    center = tempering * n * x.mean(axis=0) / variances / precision

    def exact(size: int, rng: np.random.Generator) -> np.ndarray:
        z = center + rng.standard_normal((size, d)) / np.sqrt(precision)
        z[:, 1] -= a * z[:, 0] ** 2
        return z

    return Problem(model, n, truth, exact, [v.name for v in model.free_RVs], tempering)


def correlated_gaussian(n: int, seed: int = 0) -> Problem:
    """Two-dimensional Gaussian with correlation 0.999, prior standard deviation 100."""
    rng = np.random.default_rng(seed)
    covariance = np.array([[1.0, 0.999], [0.999, 1.0]])
    truth = np.array([0.0, 3.0])
    x = rng.multivariate_normal(truth, covariance, size=n)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 100, shape=2)
        # The bivariate normal as x1 and x2 given x1: the same term per record, without a solve.
        first, second = pm.Data("first", x[:, 0]), pm.Data("second", x[:, 1])
        pm.Normal("x1", theta[0], 1, observed=first)
        given = theta[1] + 0.999 * (first - theta[0])
        pm.Normal("x2", given, np.sqrt(1 - 0.999**2), observed=second)
    posterior = np.linalg.inv(n * np.linalg.inv(covariance) + np.eye(2) / 100**2)
    center = posterior @ (np.linalg.inv(covariance) @ x.sum(axis=0))

    def exact(size: int, rng: np.random.Generator) -> np.ndarray:
        return rng.multivariate_normal(center, posterior, size=size)

    return Problem(model, n, truth, exact, ["theta"])


def random_gaussian(n: int, d: int, clip: float, seed: int = 0) -> Problem:
    """Gaussian of Räisä, Koskela and Honkela (2021), section 4.1: prior standard deviation 100.

    The covariance has eigenvalues Gamma(1/2, 1) and, for eigenvectors, the orthonormalised columns of
    a uniform random matrix. It is drawn until at most a fifth of the records have a score longer than
    `clip`, which the paper says of its own draw and clip; how hard the model is depends on the smallest
    eigenvalue, which varies by orders of magnitude.
    """
    rng = np.random.default_rng(seed)
    while True:
        eigenvalues = rng.gamma(0.5, 1.0, size=d)
        scores = rng.standard_normal((10_000, d)) / np.sqrt(eigenvalues)
        if np.mean(np.linalg.norm(scores, axis=1) > clip) <= 0.2:
            break
    vectors = np.linalg.qr(rng.random((d, d)))[0]
    truth = np.array([0.0, 3.0] + [0.0] * (d - 2))
    # W whitens: x ~ N(θ, Σ) if and only if W x ~ N(W θ, I). The same ratios and gradients per record.
    whitener = (vectors / np.sqrt(eigenvalues)).T
    x = whitener @ truth + rng.standard_normal((n, d))
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 100, shape=d)
        pm.Normal("x", pt.dot(written(whitener), theta), 1, observed=pm.Data("X", x))
    posterior = np.linalg.inv(n * whitener.T @ whitener + np.eye(d) / 100**2)
    center = posterior @ (whitener.T @ x.sum(axis=0))

    def exact(size: int, rng: np.random.Generator) -> np.ndarray:
        return rng.multivariate_normal(center, posterior, size=size)

    return Problem(model, n, truth, exact, ["theta"])


def circle(n: int, seed: int = 0) -> Problem:
    """A ring: log-likelihood −1e-5 (θ₁² + θ₂² − r²)² for radii r ~ N(3, 1), flat prior."""
    rng = np.random.default_rng(seed)
    r = rng.normal(3, 1, size=n)

    def logp(r: pt.TensorVariable, theta: pt.TensorVariable) -> pt.TensorVariable:
        return -1e-5 * ((theta**2).sum() - r**2) ** 2

    with pm.Model() as model:
        theta = pm.Flat("theta", shape=2, initval=np.array([0.0, 1.0]))
        pm.CustomDist("r", theta, logp=logp, observed=pm.Data("R", r))

    # Uniform angle; s = θ₁² + θ₂² has density exp(−1e-5 Σ (s − r²)²): a normal one cut off at 0.
    center, sd = np.mean(r**2), 1 / np.sqrt(2e-5 * n)

    def exact(size: int, rng: np.random.Generator) -> np.ndarray:
        s = np.empty(0)
        while len(s) < size:
            more = rng.normal(center, sd, size=size)
            s = np.concatenate([s, more[more > 0]])
        angle = rng.uniform(0, 2 * np.pi, size=size)
        return np.sqrt(s[:size, None]) * np.column_stack([np.cos(angle), np.sin(angle)])

    return Problem(model, n, np.array([0.0, 3.0]), exact, ["theta"])


def written(values: np.ndarray) -> pt.TensorVariable:
    """Numbers of the model, one by one: an array could be somebody's data."""
    return pt.stack([written(row) if np.ndim(row) else row for row in values])


@dataclass(frozen=True)
class Run:
    """MMD of a run's last half, its rate of acceptance and CPU seconds it took to sample."""

    mmd: float
    accepted: float
    seconds: float


def run(step, problem: Problem, rng: np.random.Generator) -> Run:
    """Sample by `step` from starts near the truth; all its chains together are judged."""
    reference = problem.exact(1000, rng)
    spread = reference.std(axis=0).mean()
    draws, chains = step.guarantee.draws, step.guarantee.chains
    shapes = [problem.model[name].eval().shape for name in problem.names]
    initial = []
    for _ in range(chains):
        start = problem.truth + spread * rng.standard_normal(len(problem.truth))
        pieces = np.split(start, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
        initial.append(
            {
                name: piece.reshape(shape)
                for name, piece, shape in zip(problem.names, pieces, shapes, strict=True)
            }
        )
    began = time.process_time()
    idata = pm.sample(
        draws,
        tune=0,
        chains=chains,
        cores=1,
        step=step,
        model=problem.model,
        initvals=initial,
        random_seed=int(rng.integers(2**31)),
        progressbar=False,
        compute_convergence_checks=False,
    )
    seconds = time.process_time() - began
    posterior = groups_of(dp.release(idata))["posterior"]
    chain = np.concatenate(
        [posterior[name].values.reshape(chains, draws, -1) for name in problem.names], axis=-1
    )
    last_halves = chain[:, draws // 2 :].reshape(-1, chain.shape[-1])
    accepted = float(idata.sample_stats["accepted"].values.mean())
    return Run(dp.mmd(thinned(last_halves), reference, rng=rng), accepted, seconds)


def thinned(x: np.ndarray, most: int = 2000) -> np.ndarray:
    """At most so many rows, evenly spaced."""
    return x if len(x) <= most else x[np.linspace(0, len(x) - 1, most).astype(int)]
