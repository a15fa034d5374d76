"""How sure is a mean over a few seeds? Intervals and paired differences.

Two 95 % intervals are offered. Student's t is the default wherever runs are compared: with the two to five
seeds of a usual study it keeps its level if the metric is roughly normal over seeds, which resampling so few
values cannot do (a percentile bootstrap of three values covers about three times in four). The bootstrap
makes no assumption about shape and is the better one from about ten seeds on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipemare_exp.metrics import Metric

CONFIDENCE = 0.95
RESAMPLES = 9999


@dataclass(frozen=True)
class Estimate:
    """A mean of n values and the half width of its 95 % interval (None where n < 2 gives none)."""

    n: int
    mean: float | None
    half_width: float | None


def shown(mean: float | None, half_width: float | None = None, digits: int = 1, sign: str = "", none: str = "–") -> str:
    """`97.3 ± 0.4`, `97.3` without an interval, `none` without a mean; `sign` "+" shows the sign of a difference."""
    if mean is None:
        return none
    return f"{mean:{sign}.{digits}f}" + ("" if half_width is None else f" ± {half_width:.{digits}f}")


def mean_with_interval(values: Sequence[float], confidence: float = CONFIDENCE, *, interval: str = "t") -> Estimate:
    """Mean and interval: "t", half width t_{n-1} s / sqrt(n) with s the sample's standard deviation; or
    "bootstrap", half the width of the BCa interval.

    No value gives (0, None, None); one value has no interval. All values must be finite: a diverged run has
    no final metric, and is counted, not averaged.
    """
    if interval not in ("t", "bootstrap"):
        raise ValueError(f'interval "{interval}"; allowed: t, bootstrap')
    data = np.asarray(list(values), dtype=np.float64)
    if not np.isfinite(data).all():
        raise ValueError("a mean over runs needs finite values; leave diverged runs out and count them")
    if data.size == 0:
        return Estimate(0, None, None)
    mean = float(data.mean())
    if data.size == 1:
        return Estimate(1, mean, None)
    if interval == "bootstrap":
        ends = bootstrap_interval(data, confidence=confidence)
        return Estimate(data.size, mean, None if ends is None else (ends[1] - ends[0]) / 2)
    from scipy.stats import t  # half a second to import: only those who ask for an interval pay it

    quantile = float(t.ppf(0.5 + confidence / 2, data.size - 1))
    return Estimate(data.size, mean, quantile * float(data.std(ddof=1)) / math.sqrt(data.size))


def bootstrap_interval(
    values: Sequence[float] | np.ndarray,
    statistic: Callable[..., np.ndarray] = np.mean,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
    method: str = "bca",
) -> tuple[float, float] | None:
    """Seeded bootstrap interval (low, high) of `statistic`, which takes (array, axis=).

    `method` is "percentile" or "bca" (bias corrected and accelerated; Efron 1987). Fewer than two values have
    no interval (None); equal values have one of width zero. The same values and seed give the same interval.
    """
    if method not in ("percentile", "bca"):
        raise ValueError(f'bootstrap method "{method}"; allowed: percentile, bca')
    data = np.asarray(list(values), dtype=np.float64)
    if data.size < 2:
        return None
    if np.ptp(data) == 0:
        return float(data[0]), float(data[0])
    rng = np.random.default_rng(seed)
    draws = statistic(data[rng.integers(0, data.size, (resamples, data.size))], axis=-1)
    tail = (1 - confidence) / 2
    levels = (tail, 1 - tail)
    if method == "bca":
        levels = _bca_levels(data, draws, statistic, levels)
    low, high = np.quantile(draws, levels)
    return float(low), float(high)


def _bca_levels(
    data: np.ndarray, draws: np.ndarray, statistic: Callable[..., np.ndarray], levels: tuple[float, float]
) -> tuple[float, float]:
    """The percentile levels moved by the bias z0 of the draws and the acceleration of the jackknife."""
    from scipy.special import ndtr, ndtri

    observed = statistic(data, axis=-1)
    # Ties count half, as in scipy: with few values many resamples equal the observed statistic.
    below = ((draws < observed).sum() + (draws <= observed).sum()) / (2 * draws.size)
    # A bias of 0 or 1 would send the levels to infinity; keep it off by half a draw.
    z0 = ndtri(min(max(below, 0.5 / draws.size), 1 - 0.5 / draws.size))
    jackknife = np.array([statistic(np.delete(data, i), axis=-1) for i in range(data.size)])
    away = jackknife.mean() - jackknife
    spread = (away**2).sum() ** 1.5
    acceleration = (away**3).sum() / (6 * spread) if spread > 0 else 0.0

    def moved(level: float) -> float:
        z = z0 + ndtri(level)
        return float(ndtr(z0 + z / (1 - acceleration * z)))

    return moved(levels[0]), moved(levels[1])


def paired_difference(
    treatment: Mapping[int, float], reference: Mapping[int, float], *, interval: str = "t"
) -> Estimate:
    """Mean of treatment - reference over the seeds that both have, with the interval of the differences.

    Pairing by seed removes what both runs share (initial weights, order of the data), so the interval is that
    of the differences and not of two independent means.
    """
    seeds = sorted(treatment.keys() & reference.keys())
    return mean_with_interval([treatment[seed] - reference[seed] for seed in seeds], interval=interval)


def verdict(difference: Estimate, metric: Metric) -> str:
    """What the paired difference of a metric allows one to say, in words.

    One pair has no interval, so nothing is said of it; an interval that holds zero shows no difference.
    """
    if difference.mean is None:
        return "no seed in common"
    if difference.half_width is None:
        return "one seed: no interval"
    if abs(difference.mean) <= difference.half_width:
        return "no difference shown"
    word = "better" if metric.better(difference.mean, than=0.0) else "worse"
    return f"{word} by {shown(abs(difference.mean), difference.half_width, metric.digits)}"
