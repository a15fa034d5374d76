"""Delayed SGD on f(w) = lambda w^2 / 2: its recursion, its polynomial and its largest stable step.

Symbols: alpha step size; lambda curvature; tau_f, tau_b delays in steps of the weights that forward and
backward read; Delta sensitivity of the gradient to their discrepancy; beta momentum; gamma the decay of
T2's average delta. All of the variants are one recursion:

    u_t     = w_{t - tau_b} - (tau_f - tau_b) delta_{t - l}     (delta with T2 only; l = 0 or tau_b)
    g_t     = (lambda + Delta) w_{t - tau_f} - Delta u_t
    w_{t+1} = w_t + beta (w_t - w_{t-1}) - alpha g_t
    delta_{t+1} = gamma delta_t + (1 - gamma) (w_{t+1} - w_t)

It is linear, so it is stable iff every root z of its characteristic polynomial has |z| <= 1 (double roots
on the circle apart). The polynomial is affine in alpha: base(z) + alpha slope(z). Section numbers and
lemmas: PipeMare, arXiv 1910.05124.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import polynomial as poly

from pipemare_exp.errors import UserError

# A root is taken to be outside the unit circle beyond this: np.linalg.eigvals is good to about 1e-13 for
# simple roots of these degrees, and z = 1 is a root for alpha = 0.
ROOT_TOLERANCE = 1e-9
DEFAULT_DECAY = math.exp(-2.0)


@dataclass(frozen=True)
class Recursion:
    """One variant of delayed SGD on the quadratic.

    `delay_backward` None: it equals `delay_forward` (no discrepancy). `gamma` None: no T2. `delta_late`:
    T2's delta, too, is read tau_b steps late. Raises `UserError` for delays that are no integers >= 0 or a
    backward that is more delayed than its forward.
    """

    delay_forward: int
    delay_backward: int | None = None
    curvature: float = 1.0
    sensitivity: float = 0.0
    momentum: float = 0.0
    gamma: float | None = None
    delta_late: bool = False

    def __post_init__(self) -> None:
        if self.delay_backward is None:
            object.__setattr__(self, "delay_backward", self.delay_forward)
        forward, backward = self.delay_forward, self.delay_backward
        if not (isinstance(forward, int) and isinstance(backward, int) and 0 <= backward <= forward):
            raise UserError(f"delays tau_f = {forward}, tau_b = {backward}; allowed: integers with 0 <= tau_b <= tau_f")
        if self.curvature <= 0:
            raise UserError(f"curvature {self.curvature}; it must be above 0, else nothing is stable")
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum {self.momentum}; allowed: 0 <= momentum < 1")
        if self.gamma is not None and not 0 <= self.gamma < 1:
            raise UserError(f"gamma {self.gamma}; allowed: 0 <= gamma < 1")

    @property
    def gap(self) -> int:
        """tau_f - tau_b, the discrepancy in steps."""
        return self.delay_forward - self._late

    @property
    def _late(self) -> int:
        return self.delay_forward if self.delay_backward is None else self.delay_backward

    def base_and_slope(self) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (lowest power first) of base and slope in base(z) + alpha slope(z).

        Without T2 and momentum that is z^tau_f (z - 1) + alpha (lambda + Delta) - alpha Delta z^(tau_f -
        tau_b); with T2 both parts are multiplied by (z - gamma) and the slope gains Delta (tau_f - tau_b)
        (1 - gamma) (z - 1) z^tau_f, times z^-tau_b where delta is late; with momentum the base is
        multiplied by (z - beta) and the slope by z.
        """
        base = poly.polymul(_power(self.delay_forward), [-1.0, 1.0])
        slope = poly.polysub([self.curvature + self.sensitivity], self.sensitivity * _power(self.gap))
        if self.gamma is not None:
            base = poly.polymul(base, [-self.gamma, 1.0])
            correction = (
                self.sensitivity
                * self.gap
                * (1 - self.gamma)
                * poly.polymul([-1.0, 1.0], _power(self.gap if self.delta_late else self.delay_forward))
            )
            slope = poly.polyadd(poly.polymul(slope, [-self.gamma, 1.0]), correction)
        if self.momentum:
            base = poly.polymul(base, [-self.momentum, 1.0])
            slope = poly.polymul(slope, [0.0, 1.0])
        return base, slope

    def polynomial(self, alpha: float) -> np.ndarray:
        """Coefficients of the characteristic polynomial at step size `alpha`, lowest power first."""
        base, slope = self.base_and_slope()
        return poly.polyadd(base, alpha * slope)

    def largest_root(self, alphas: np.ndarray | Sequence[float] | float) -> np.ndarray:
        """|z| of the largest root at every step size: the factor per step by which the slowest mode grows."""
        alphas = np.asarray(alphas, dtype=np.float64)
        base, slope = self.base_and_slope()
        degree = len(base) - 1
        coefficients = np.zeros((alphas.size, degree))
        coefficients += base[:degree]
        coefficients[:, : min(len(slope), degree)] += alphas.reshape(-1, 1) * slope[:degree]
        lead = np.full(alphas.size, base[degree])
        if len(slope) > degree:
            lead = lead + alphas.ravel() * slope[degree]
        companion = np.zeros((alphas.size, degree, degree))
        companion[:, 1:, :-1] = np.eye(degree - 1)
        companion[:, :, -1] = -coefficients / lead[:, None]
        return np.abs(np.linalg.eigvals(companion)).max(axis=-1).reshape(alphas.shape)

    def stable(self, alphas: np.ndarray | Sequence[float] | float) -> np.ndarray:
        """Whether no root lies outside the unit circle."""
        return self.largest_root(alphas) <= 1 + ROOT_TOLERANCE

    def simulate(self, alphas: np.ndarray | Sequence[float], steps: int, start: float = 1.0) -> np.ndarray:
        """Weights w_0 .. w_steps for every step size: shape [steps + 1, *alphas.shape].

        Before step 0 the weight had always been `start`. Weights that overflow become inf or nan and stay so.
        """
        alphas = np.asarray(alphas, dtype=np.float64)
        late = self._late if self.delta_late else 0
        weights = np.full((steps + 1, *alphas.shape), float(start))
        deltas = np.zeros((steps + 1, *alphas.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            for t in range(steps):
                old = weights[max(t - self.delay_forward, 0)]
                backward = weights[max(t - self._late, 0)]
                if self.gamma is not None:
                    backward = backward - self.gap * deltas[max(t - late, 0)]
                gradient = (self.curvature + self.sensitivity) * old - self.sensitivity * backward
                velocity = self.momentum * (weights[t] - weights[max(t - 1, 0)])
                weights[t + 1] = weights[t] + velocity - alphas * gradient
                if self.gamma is not None:
                    deltas[t + 1] = self.gamma * deltas[t] + (1 - self.gamma) * (weights[t + 1] - weights[t])
        return weights

    def largest_stable_step(self, precision: float = 1e-6, points: int = 256) -> float:
        """The step size of the first instability: every alpha in (0, it] is stable, those just above are not.

        The range up to 4 / lambda (the largest of the lemmas' bounds) is scanned from below on a grid that
        refines around the first unstable point until it is known to the relative `precision`; 4 / lambda if
        all is stable.
        """
        low, high = 0.0, 4.0 / self.curvature
        # Small edges need small steps: Lemma 1 and the discrepancy bound set the scale of the first scan.
        scale = lemma_1(self.delay_forward, self.curvature)
        if self.sensitivity > 0 and self.gap:
            scale = min(
                scale,
                1.0 / (self.sensitivity * self.gap),
                scale * self.curvature / (self.curvature + self.sensitivity),
            )
        grid = np.concatenate([np.linspace(0, scale, points)[1:], np.geomspace(scale, high, points)[1:]])
        while high - low > precision * high:
            first = self._first_unstable(grid)
            if first is None:
                return float(grid[-1])
            low, high = (float(grid[first - 1]) if first else low), float(grid[first])
            grid = np.linspace(low, high, 18)[1:]
        return low

    def _first_unstable(self, alphas: np.ndarray, at_once: int = 64) -> int | None:
        """Index of the first unstable step size of a rising grid, found in chunks; None if there is none."""
        for begin in range(0, len(alphas), at_once):
            stable = self.stable(alphas[begin : begin + at_once])
            if not stable.all():
                return begin + int(np.argmin(stable))
        return None


def _power(exponent: int) -> np.ndarray:
    return np.eye(1, exponent + 1, exponent)[0]


def gamma_of(decay: float, gap: float) -> float:
    """gamma = D^(1/d): delta's decay per step, of which a share D is left after d = tau_f - tau_b steps."""
    if not 0 < decay < 1 or gap <= 0:
        raise UserError(f"D = {decay}, discrepancy {gap}; allowed: 0 < D < 1 and a discrepancy above 0")
    return decay ** (1.0 / gap)


def lemma_1(delay: float, curvature: float = 1.0) -> float:
    """Lemma 1, exact, weights tau steps late: stable iff 0 <= alpha <= (2/lambda) sin(pi / (4 tau + 2))."""
    return 2.0 / curvature * math.sin(math.pi / (4 * delay + 2))


def lemma_2(delay_forward: float, delay_backward: float, sensitivity: float, curvature: float = 1.0) -> float:
    """Lemma 2: an unstable alpha lies at or below this, where Delta > 0.

    min(2 / (Delta (tau_f - tau_b)), (2 / lambda) sin(pi / (4 tau_f + 2)))
    """
    gap = delay_forward - delay_backward
    if sensitivity <= 0 or gap <= 0:
        raise UserError(f"Delta = {sensitivity}, tau_f - tau_b = {gap}; Lemma 2 needs both above 0")
    return min(2.0 / (sensitivity * gap), lemma_1(delay_forward, curvature))


def lemma_3(delay: float, curvature: float = 1.0) -> float:
    """Lemma 3, for any momentum in (0, 1): some alpha <= (4 / lambda) sin(pi / (4 tau + 2)) is unstable."""
    return 2.0 * lemma_1(delay, curvature)
