"""The quadratic's theory against computations written here: matrices, loops and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.theory.quadratic import (
    DEFAULT_DECAY,
    Recursion,
    gamma_of,
    lemma_1,
    lemma_2,
    lemma_3,
)

VARIANTS = [
    Recursion(0),
    Recursion(7, curvature=2.5),
    Recursion(10, 6, sensitivity=5.0),
    Recursion(9, 0, sensitivity=0.7, curvature=0.3),
    Recursion(6, 2, sensitivity=3.0, gamma=0.6),
    Recursion(6, 2, sensitivity=3.0, gamma=0.6, delta_late=True),
    Recursion(5, momentum=0.9),
    Recursion(4, 1, sensitivity=2.0, momentum=0.5, gamma=0.4),
]


def naive(one: Recursion, alpha: float, steps: int) -> list[float]:
    """The recursion with dictionaries of times, as the module's docstring writes it."""
    forward, backward = one.delay_forward, one.delay_backward
    late = backward if one.delta_late else 0
    w = dict.fromkeys(range(-forward - 1, 1), 1.0)
    delta = dict.fromkeys(range(-forward - 1, 1), 0.0)
    for t in range(steps):
        u = w[t - backward]
        if one.gamma is not None:
            u -= (forward - backward) * delta[t - late]
        gradient = (one.curvature + one.sensitivity) * w[t - forward] - one.sensitivity * u
        w[t + 1] = w[t] + one.momentum * (w[t] - w[t - 1]) - alpha * gradient
        gamma = 0.0 if one.gamma is None else one.gamma
        delta[t + 1] = gamma * delta[t] + (1 - gamma) * (w[t + 1] - w[t])
    return [w[t] for t in range(steps + 1)]


def transition(one: Recursion, alpha: float) -> np.ndarray:
    """The matrix that maps (w_t, .., w_{t-k}, delta_t, .., delta_{t-k}) to the next one, row by row."""
    k = one.delay_forward + 1
    late = one.delay_backward if one.delta_late else 0
    size = 2 * (k + 1)
    matrix = np.zeros((size, size))
    w, delta = matrix[0], matrix[k + 1]
    w[0] += 1 + one.momentum
    w[1] -= one.momentum
    w[one.delay_forward] -= alpha * (one.curvature + one.sensitivity)
    w[one.delay_backward] += alpha * one.sensitivity
    if one.gamma is not None:
        gap = one.delay_forward - one.delay_backward
        w[k + 1 + late] -= alpha * one.sensitivity * gap
        delta[:] = (1 - one.gamma) * w
        delta[0] -= 1 - one.gamma
        delta[k + 1] += one.gamma
    for i in range(1, k + 1):
        matrix[i, i - 1] = 1
        matrix[k + 1 + i, k + i] = 1
    return matrix


@pytest.mark.parametrize("one", VARIANTS)
def test_simulation_is_the_recursion(one):
    alphas = [0.01, 0.05]
    weights = one.simulate(alphas, 60)
    assert weights.shape == (61, 2)
    for column, alpha in enumerate(alphas):
        np.testing.assert_allclose(weights[:, column], naive(one, alpha, 60), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("one", VARIANTS)
def test_largest_root_is_the_largest_eigenvalue_of_the_recursion(one):
    alphas = np.linspace(0.003, 0.4, 12)
    expected = [np.abs(np.linalg.eigvals(transition(one, alpha))).max() for alpha in alphas]
    np.testing.assert_allclose(one.largest_root(alphas), expected, rtol=1e-7)


@pytest.mark.parametrize("one", VARIANTS)
def test_simulation_shrinks_below_the_edge_and_grows_above(one):
    edge = one.largest_stable_step()
    weights = np.abs(one.simulate([0.97 * edge, 1.03 * edge], 4000))
    # The envelope over a window longer than any oscillation, early and late.
    early, late = weights[800:1600].max(axis=0), weights[3200:4000].max(axis=0)
    assert late[0] < early[0]
    assert late[1] > early[1]


@pytest.mark.parametrize("tau", [0, 1, 2, 5, 13, 40])
@pytest.mark.parametrize("curvature", [1.0, 3.0])
def test_lemma_1_is_the_measured_edge(tau, curvature):
    edge = Recursion(tau, curvature=curvature).largest_stable_step()
    assert edge == pytest.approx(lemma_1(tau, curvature), rel=1e-5)
    assert lemma_1(tau, curvature) == pytest.approx(2 / curvature * math.sin(math.pi / (4 * tau + 2)))


@pytest.mark.parametrize("one", VARIANTS[2:6])
def test_edge_is_where_a_root_first_meets_the_unit_circle(one):
    """On the circle alpha = -base/slope must be real: the smallest positive such alpha is the edge."""
    base, slope = one.base_and_slope()
    angles = np.linspace(1e-4, math.pi, 400_001)
    z = np.exp(1j * angles)
    alpha = -np.polynomial.polynomial.polyval(z, base) / np.polynomial.polynomial.polyval(z, slope)
    crossing = np.flatnonzero(np.diff(np.sign(alpha.imag)) != 0)
    found = [alpha[i].real for i in crossing if alpha[i].real > 1e-6 and abs(alpha[i].imag) < 0.01]
    assert one.largest_stable_step() == pytest.approx(min(found), rel=1e-3)


@pytest.mark.parametrize(
    ("case", "without", "with_t2", "late"),
    [
        ((10, 6, 5.0), 0.0381, 0.106, 0.116),
        ((40, 10, 5.0), 0.0057, 0.0377, 0.0181),
        ((10, 0, 5.0), 0.0176, 0.0971, 0.0971),
    ],
)
def test_t2_table(case, without, with_t2, late):
    forward, backward, sensitivity = case
    gamma = gamma_of(DEFAULT_DECAY, forward - backward)
    edges = [
        Recursion(forward, backward, sensitivity=sensitivity),
        Recursion(forward, backward, sensitivity=sensitivity, gamma=gamma),
        Recursion(forward, backward, sensitivity=sensitivity, gamma=gamma, delta_late=True),
    ]
    found = [one.largest_stable_step() for one in edges]
    assert [float(f"{value:.2g}") for value in found] == [float(f"{value:.2g}") for value in (without, with_t2, late)]
    assert found == pytest.approx([without, with_t2, late], rel=0.01)


@pytest.mark.parametrize("forward", [2, 5, 12])
@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("sensitivity", [0.01, 1.0, 20.0])
def test_lemma_2_bounds_the_edge(forward, backward, sensitivity):
    bound = lemma_2(forward, backward, sensitivity)
    gap = forward - backward
    assert bound == min(2 / (sensitivity * gap), 2 * math.sin(math.pi / (4 * forward + 2)))
    edge = Recursion(forward, backward, sensitivity=sensitivity).largest_stable_step()
    assert edge <= bound * (1 + 1e-6)
    # and what Lemma 2 says: an unstable step size lies at or below the bound
    assert not Recursion(forward, backward, sensitivity=sensitivity).stable(np.linspace(edge, bound, 200)).all()


@pytest.mark.parametrize("tau", [0, 1, 4, 20])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9, 0.99])
def test_lemma_3_bounds_the_edge(tau, beta):
    bound = lemma_3(tau)
    assert bound == pytest.approx(4 * math.sin(math.pi / (4 * tau + 2)))
    assert Recursion(tau, momentum=beta).largest_stable_step() < bound


def test_without_delay_the_edges_are_the_known_ones():
    assert Recursion(0).largest_stable_step() == pytest.approx(2.0, rel=1e-5)
    assert Recursion(0, momentum=0.5).largest_stable_step() == pytest.approx(2 * 1.5, rel=1e-5)


def test_a_discrepancy_of_zero_changes_nothing():
    same = Recursion(8, 8, sensitivity=4.0)
    assert same.largest_stable_step() == pytest.approx(Recursion(8).largest_stable_step(), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"delay_forward": -1}, "tau_f = -1"),
        ({"delay_forward": 3, "delay_backward": 4}, "tau_b = 4"),
        ({"delay_forward": 2.5}, "integers"),
        ({"delay_forward": 1, "curvature": 0.0}, "curvature 0.0"),
        ({"delay_forward": 1, "momentum": 1.0}, "momentum 1.0"),
        ({"delay_forward": 1, "gamma": 1.0}, "gamma 1.0"),
    ],
)
def test_refused_values_are_named(arguments, words):
    with pytest.raises(UserError, match=words):
        Recursion(**arguments)


def test_refused_decays_and_lemma_2_without_discrepancy():
    with pytest.raises(UserError, match="D = 1.5"):
        gamma_of(1.5, 4)
    with pytest.raises(UserError, match="discrepancy 0"):
        gamma_of(0.5, 0)
    with pytest.raises(UserError, match="Lemma 2"):
        lemma_2(4, 4, 1.0)


def test_gamma_leaves_the_share_d_after_the_gap():
    assert gamma_of(0.3, 7) ** 7 == pytest.approx(0.3)
