"""The law of Hogwild!-style delays: sampling and its closed-form mean, against scipy and numerical integration."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from pipemare_exp.methods.hogwild import mean_delay, rounded_mean, truncated_exponential, truncated_mean

#: scale mu and bound d_max: short and long truncation, and far from it on either side
LAWS = [(1.0, 3), (0.25, 1), (6.7, 20), (2.0, 40), (50.0, 4), (0.03, 30)]


def law(scale, limit):
    return stats.truncexpon(b=limit / scale, scale=scale)


def moment(scale, limit, power):
    """E[x^power] by integrating the density e^{-x/mu} / (mu (1 - e^{-d_max/mu})) over [0, d_max]."""
    end = min(limit, 60 * scale)  # beyond there is nothing
    area, _ = integrate.quad(lambda x: x**power * math.exp(-x / scale), 0, end, points=[min(scale, end / 2)], epsabs=0)
    return area / (scale * -math.expm1(-limit / scale))


def drawn(scale, limit, count, seed=0):
    uniform = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    pair = (torch.tensor(float(value), dtype=torch.float64) for value in (scale, limit))
    return truncated_exponential(uniform, *pair).numpy()


@pytest.mark.parametrize("scale, limit", LAWS)
def test_it_is_the_inverse_of_the_distribution_function(scale, limit):
    uniform = torch.linspace(0, 1, 2001, dtype=torch.float64)
    uniform[-1] = 1 - 2**-53  # the largest that torch.rand gives
    pair = (torch.tensor(float(value), dtype=torch.float64) for value in (scale, limit))
    x = truncated_exponential(uniform, *pair)
    assert float(x[0]) == 0 and (x.diff() > 0).all() and float(x[-1]) <= limit * (1 + 1e-12)
    x, uniform = x.numpy(), uniform.numpy()
    # By scipy's own inverse, and forwards: F(x) = (1 - e^{-x/mu}) / (1 - e^{-d_max/mu}).
    np.testing.assert_allclose(x[:-1], law(scale, limit).ppf(uniform[:-1]), rtol=1e-10, atol=1e-12 * scale)
    np.testing.assert_allclose(np.expm1(-x / scale) / math.expm1(-limit / scale), uniform, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale, limit", LAWS)
def test_moments_bounds_and_kolmogorov_smirnov(scale, limit):
    count = 20_000
    x, exact = drawn(scale, limit, count), law(scale, limit)
    assert x.min() >= 0 and x.max() <= limit
    for power in (1, 2, 3):
        mean, square = (moment(scale, limit, power * k) for k in (1, 2))
        assert abs((x**power).mean() - mean) < 4 * math.sqrt((square - mean**2) / count)
    assert stats.kstest(x, exact.cdf).pvalue > 0.01


def test_kolmogorov_smirnov_tells_other_laws_apart():
    """Clipped at the bound instead of truncated, or with another scale: noticed at this number of draws."""
    draw = np.random.default_rng(0)
    clipped = np.minimum(draw.exponential(2.0, 20_000), 6)
    assert stats.kstest(clipped, law(2.0, 6).cdf).pvalue < 1e-6
    assert stats.kstest(drawn(2.2, 6, 20_000), law(2.0, 6).cdf).pvalue < 1e-6


def test_elementwise_and_zero_where_the_bound_is():
    scale = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    limit = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)
    x = truncated_exponential(torch.full((4, 3), 0.7, dtype=torch.float64), scale, limit)
    assert x.shape == (4, 3) and (x[:, 1:] == 0).all() and (x[:, 0] > 0).all()


@pytest.mark.parametrize("scale, limit", [*LAWS, (0.03125, 50), (1e-4, 1), (1e4, 3)])
def test_closed_form_of_the_mean(scale, limit):
    """mu - d_max / (e^{d_max/mu} - 1), by integration, by scipy, and as the mean of draws."""
    got = truncated_mean(scale, limit)
    assert got == pytest.approx(moment(scale, limit, 1), rel=1e-8)
    assert got == pytest.approx(float(law(scale, limit).mean()), rel=1e-6)
    x = drawn(scale, limit, 20_000)
    assert abs(x.mean() - got) < 4 * x.std() / math.sqrt(len(x))
    assert 0 < got < min(scale * (1 + 1e-9), limit)


def test_mean_without_a_delay():
    assert truncated_mean(0.0, 0) == truncated_mean(2.0, 0) == 0.0


@pytest.mark.parametrize("scale, limit", [*LAWS, (0.1, 1), (0.5, 2), (1e-4, 1), (1e4, 3)])
def test_mean_after_rounding(scale, limit):
    """sum over k of k (F(k + 1/2) - F(k - 1/2)), and as the mean of rounded draws."""
    edges = np.clip(np.arange(limit + 2) - 0.5, 0, limit)
    exact = float((np.arange(limit + 1) * np.diff(law(scale, limit).cdf(edges))).sum())
    assert rounded_mean(scale, limit) == pytest.approx(exact, rel=1e-6, abs=1e-12)
    x = np.rint(drawn(scale, limit, 20_000))
    assert abs(x.mean() - exact) <= 4 * x.std() / math.sqrt(len(x)) + 1e-3


def test_rounding_shortens_short_delays():
    assert (truncated_mean(0.1, 1), rounded_mean(0.1, 1)) == pytest.approx((0.1, 0.0067), abs=1e-3)
    assert (truncated_mean(0.5, 2), rounded_mean(0.5, 2)) == pytest.approx((0.463, 0.39), abs=5e-3)
    assert mean_delay(0.1, 1, "stochastic") == truncated_mean(0.1, 1) and mean_delay(0.1, 1) == rounded_mean(0.1, 1)
