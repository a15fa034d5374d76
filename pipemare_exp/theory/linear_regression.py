"""Delayed gradient descent on a linear regression, over a whole grid of delays and step sizes at once.

f(w) = |X w - y|^2 / (2 rows), w_{t+1} = w_t - alpha grad f(w_{t - tau}), w_0 = 0, tau an integer and the
same for the whole minibatch (N = 1), which is the whole data set: what limits the step is then the delay
alone, not the noise of sampling. Along each eigenvector of the Hessian this is the quadratic of
`quadratic.py`, so the largest eigenvalue sets the edge of stability: Lemma 1 with lambda = it. The
simulation here knows neither: it runs the recursion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipemare_exp.data.cpusmall import RegressionData


def _run(data: RegressionData, alphas: np.ndarray, delay: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Final weights [alphas, columns] and the length of the longest step in each quarter [4, alphas]."""
    hessian = data.hessian()
    slope = data.features.T @ data.target / len(data.target)
    ring = np.zeros((delay + 1, alphas.size, slope.size))
    longest = np.zeros((4, alphas.size))
    weights = np.zeros((alphas.size, slope.size))
    column = alphas[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(steps):
            # The place t mod (tau + 1) still holds w_{t - tau - 1}; after this line it holds w_t, and the
            # next place holds w_{t - tau} (w_0 = 0 during the fill).
            ring[t % (delay + 1)] = weights
            step = column * (ring[(t + 1) % (delay + 1)] @ hessian - slope)
            weights = weights - step
            quarter = min(4 * t // steps, 3)
            length = np.abs(step).max(axis=1)
            longest[quarter] = np.fmax(longest[quarter], np.where(np.isnan(length), np.inf, length))
    return weights, longest


def loss(data: RegressionData, weights: np.ndarray) -> np.ndarray:
    """f at every row of `weights` [.., columns]; inf where it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        residual = weights @ data.features.T - data.target
        value = 0.5 * (residual**2).mean(axis=-1)
    return np.where(np.isfinite(value), value, np.inf)


def final_losses(
    data: RegressionData, alphas: Sequence[float] | np.ndarray, delays: Sequence[int], steps: int
) -> np.ndarray:
    """f after `steps` updates from w = 0, shape [delays, alphas]; inf where it overflows."""
    grid = np.asarray(alphas, dtype=np.float64)
    return np.stack([loss(data, _run(data, grid, delay, steps)[0]) for delay in delays])


def grows(data: RegressionData, alphas: Sequence[float] | np.ndarray, delay: int, steps: int) -> np.ndarray:
    """Whether steps are longer in the last quarter of the run than in the second (the first is transient).

    A stable run's steps shrink along every eigenvector; an unstable one's grow along one of them and end up
    on top.
    """
    _, longest = _run(data, np.asarray(alphas, dtype=np.float64), delay, steps)
    return ~(longest[3] <= longest[1])


def measured_edge(data: RegressionData, delay: int, low: float, high: float, precision: float = 0.005) -> float:
    """The largest step size in (low, high) before the first that grows, to a relative `precision`.

    Runs last 400 (tau + 1) steps: 1 % beyond the edge the distance grows by a factor of about e^(0.005 /
    tau) a step. Raises ValueError where `low` grows already or nothing up to `high` does: the range does
    not hold the edge.
    """
    steps = 400 * (delay + 1)
    while high / low > 1 + precision:
        grid = np.geomspace(low, high, 12)
        unstable = grows(data, grid, delay, steps)
        if unstable[0] or not unstable.any():
            raise ValueError(f"no edge between step sizes {low:g} and {high:g} at delay {delay}")
        first = int(np.argmax(unstable))
        low, high = float(grid[first - 1]), float(grid[first])
    return (low * high) ** 0.5
