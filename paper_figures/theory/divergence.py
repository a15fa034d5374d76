"""Delay alone makes SGD diverge: f(w) = w^2 / 2, alpha = 0.2, weights read tau = 0, 5, 10 steps late."""

from __future__ import annotations

from pathlib import Path

from paper_figures import style
from pipemare_exp.theory.quadratic import Recursion, lemma_1

ALPHA, DELAYS, STEPS = 0.2, (0, 5, 10), 100


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """Loss over steps, one curve a delay, on a logarithmic axis."""
    fig, axes = style.figure(height=2.4)
    table = []
    for delay, color, dash in zip(DELAYS, style.palette(4), ("solid", (0, (4, 1.5)), (0, (1, 1))), strict=False):
        losses = 0.5 * Recursion(delay).simulate([ALPHA], STEPS)[:, 0] ** 2
        edge = lemma_1(delay)
        axes.plot(losses, color=color, linestyle=dash, label=rf"$\tau={delay}$, stable up to $\alpha={edge:.2f}$")
        table += [{"tau": delay, "alpha": ALPHA, "step": t, "loss": value} for t, value in enumerate(losses)]
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 1e4)
    axes.set_xlim(0, STEPS)
    axes.set_xlabel("step t")
    axes.set_ylabel(r"$f(w_t) = w_t^2/2$")
    axes.set_title(rf"delayed SGD, $\lambda=1$, $\alpha={ALPHA}$")
    style.legend_below(fig, axes, columns=1)
    return style.save(fig, out_stem, table)
