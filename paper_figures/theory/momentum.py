"""Momentum and delay: the largest stable alpha over tau for several beta, under Lemma 3's bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paper_figures import style
from pipemare_exp.theory.quadratic import Recursion, lemma_1, lemma_3

DELAYS = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32)
MOMENTA = (0.0, 0.5, 0.9, 0.99)


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """Both axes logarithmic; beta = 0 lies on Lemma 1's curve, every other below Lemma 3's."""
    fig, axes = style.figure(height=2.7)
    table = []
    markers = "os^D"
    for beta, color, marker in zip(MOMENTA, style.palette(len(MOMENTA) + 1), markers, strict=False):
        edges = [Recursion(tau, momentum=beta).largest_stable_step() for tau in DELAYS]
        axes.plot(
            DELAYS,
            edges,
            color=color,
            marker=marker,
            linestyle="none" if beta == 0 else "solid",
            linewidth=0.9,
            label=rf"$\beta={beta:g}$",
        )
        table += [
            {
                "tau": tau,
                "beta": beta,
                "largest_stable_alpha": edge,
                "lemma_1": lemma_1(tau),
                "lemma_3": lemma_3(tau) if beta else None,
            }
            for tau, edge in zip(DELAYS, edges, strict=True)
        ]
    fine = np.geomspace(DELAYS[0], DELAYS[-1], 100)
    axes.plot(fine, [lemma_1(tau) for tau in fine], color="#222222", label=r"Lemma 1 ($\beta=0$)")
    axes.plot(fine, [lemma_3(tau) for tau in fine], color="#222222", linestyle=(0, (3, 2)), label="Lemma 3 (bound)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axes.minorticks_off()
    axes.set_xlabel(r"delay $\tau$ (steps)")
    axes.set_ylabel(r"largest stable $\alpha$, $\lambda=1$")
    style.legend_below(fig, axes, columns=3)
    return style.save(fig, out_stem, table)
