"""Intervals against scipy's own, coverage by simulation, and the words that they allow."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from pipemare_exp import metrics
from pipemare_exp.analysis.statistics import (
    Estimate,
    bootstrap_interval,
    mean_with_interval,
    paired_difference,
    shown,
    verdict,
)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_t_interval_equals_scipys(n):
    values = np.random.default_rng(n).normal(97, 2, n)
    got = mean_with_interval(values)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert got.n == n
    assert got.mean == pytest.approx(values.mean())
    assert (got.mean - got.half_width, got.mean + got.half_width) == pytest.approx((low, high))


def test_few_values():
    assert mean_with_interval([]) == Estimate(0, None, None)
    assert mean_with_interval([98.5]) == Estimate(1, 98.5, None)
    with pytest.raises(ValueError, match="finite"):
        mean_with_interval([98.0, float("nan")])
    with pytest.raises(ValueError, match="t, bootstrap"):
        mean_with_interval([98.0, 99.0], interval="normal")


def test_the_bootstraps_half_width_is_half_its_interval():
    values = np.random.default_rng(11).normal(97, 2, 15)
    low, high = bootstrap_interval(values)
    got = mean_with_interval(values, interval="bootstrap")
    assert got.mean == pytest.approx(values.mean())
    assert got.half_width == pytest.approx((high - low) / 2)


def test_t_interval_covers_the_mean_95_times_in_100_with_three_seeds():
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(4000):
        got = mean_with_interval(rng.normal(0, 1, 3))
        hits += abs(got.mean) <= got.half_width
    assert 0.94 < hits / 4000 < 0.96


@pytest.mark.parametrize("method", ["percentile", "bca"])
@pytest.mark.parametrize("statistic", [np.mean, np.median])
def test_bootstrap_agrees_with_scipy(method, statistic):
    values = np.random.default_rng(3).gamma(2.0, 1.5, 30)  # skewed: BCa and percentile differ here
    got = bootstrap_interval(values, statistic, method=method, resamples=60_000, seed=1)
    other = stats.bootstrap(
        (values,), statistic, method=method, n_resamples=60_000, rng=np.random.default_rng(2)
    ).confidence_interval
    width = other.high - other.low
    assert got == pytest.approx((other.low, other.high), abs=0.03 * width)


def test_bca_differs_from_percentile_on_skewed_values():
    values = np.random.default_rng(3).gamma(1.0, 1.5, 12)
    low, high = bootstrap_interval(values, method="percentile")
    low_bca, high_bca = bootstrap_interval(values, method="bca")
    assert low_bca > low and high_bca > high  # moved towards the long tail


def test_bootstrap_is_seeded_and_handles_few_or_equal_values():
    values = np.random.default_rng(0).normal(0, 1, 12)
    assert bootstrap_interval(values, seed=5) == bootstrap_interval(values, seed=5)
    assert bootstrap_interval(values, seed=5) != bootstrap_interval(values, seed=6)
    assert bootstrap_interval([3.0]) is None
    assert bootstrap_interval([3.0, 3.0]) == (3.0, 3.0)
    with pytest.raises(ValueError, match="percentile, bca"):
        bootstrap_interval(values, method="student")


def test_paired_difference_uses_common_seeds_only():
    sync = {0: 99.0, 1: 98.0, 2: 99.5}
    ours = {1: 97.0, 2: 98.7, 9: 10.0}
    got = paired_difference(ours, sync)
    paired = stats.ttest_rel([97.0, 98.7], [98.0, 99.5]).confidence_interval(0.95)
    assert got.n == 2
    assert got.mean == pytest.approx(-0.9)
    assert (got.mean - got.half_width, got.mean + got.half_width) == pytest.approx((paired.low, paired.high))


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(0, None, None), "no seed in common"),
        (Estimate(1, -1.25, None), "one seed: no interval"),
        (Estimate(3, -0.3, 0.5), "no difference shown"),
        (Estimate(3, -1.2, 0.4), "worse by 1.2 ± 0.4"),
        (Estimate(3, 0.8, 0.4), "better by 0.8 ± 0.4"),
        (Estimate(2, 0.0, 0.0), "no difference shown"),
    ],
)
def test_verdict_says_only_what_the_numbers_allow(estimate, words):
    assert verdict(estimate, metrics.of("accuracy")).startswith(words)
    other_way = words.replace("worse", "x").replace("better", "worse").replace("x", "better")
    assert verdict(estimate, replace(metrics.of("accuracy"), higher_is_better=False)).startswith(other_way)


def test_every_mean_is_written_the_same_way():
    assert shown(97.345, 0.44) == "97.3 ± 0.4" and shown(97.345) == "97.3" and shown(None) == "–"
    assert shown(1.2345, 0.01, digits=3, sign="+") == "+1.234 ± 0.010" and shown(None, none="-") == "-"
