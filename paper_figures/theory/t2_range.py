"""The stable range as a function of D, T2's decay over the discrepancy: why D = e^-2 is a good default."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paper_figures import style
from paper_figures.theory.t2_roots import CASES
from pipemare_exp.theory.quadratic import DEFAULT_DECAY, Recursion, gamma_of

DECAYS = np.concatenate([np.geomspace(1e-4, 0.05, 12)[:-1], np.linspace(0.05, 0.95, 25)])


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """Largest stable alpha with T2, in multiples of the one without, over D; lambda = 1."""
    fig, axes = style.figure(height=2.7)
    dashes = ("solid", (0, (4, 1.5)), (0, (1, 1)))
    table = []
    for (forward, backward, sensitivity), color, dash in zip(CASES, style.palette(4), dashes, strict=False):
        plain = Recursion(forward, backward, sensitivity=sensitivity).largest_stable_step(1e-5)
        edges = [
            Recursion(
                forward, backward, sensitivity=sensitivity, gamma=gamma_of(float(decay), forward - backward)
            ).largest_stable_step(1e-5)
            for decay in DECAYS
        ]
        axes.plot(
            DECAYS,
            np.array(edges) / plain,
            color=color,
            linestyle=dash,
            label=rf"$\tau_f={forward}$, $\tau_b={backward}$, $\Delta={sensitivity:g}$",
        )
        table += [
            {
                "tau_f": forward,
                "tau_b": backward,
                "Delta": sensitivity,
                "D": decay,
                "largest_stable_alpha": edge,
                "without_T2": plain,
                "ratio": edge / plain,
            }
            for decay, edge in zip(DECAYS, edges, strict=True)
        ]
    axes.axvline(DEFAULT_DECAY, color="#444444", linewidth=0.7, linestyle=(0, (2, 2)))
    axes.annotate(
        r"$D=e^{-2}$",
        (DEFAULT_DECAY, 1.0),
        xytext=(4, 2),
        textcoords="offset points",
        xycoords=("data", "axes fraction"),
        va="bottom",
        annotation_clip=False,
        fontsize=7,
    )
    axes.axhline(1.0, color="#444444", linewidth=0.6)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(r"$D = \gamma^{\tau_f-\tau_b}$")
    axes.set_ylabel(r"stable range, times without T2")
    style.legend_below(fig, axes, columns=1)
    return style.save(fig, out_stem, table)
