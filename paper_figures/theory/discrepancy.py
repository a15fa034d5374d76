"""Discrepancy of forward and backward weights makes a step size diverge that the delay alone allows."""

from __future__ import annotations

from pathlib import Path

from paper_figures import style
from pipemare_exp.theory.quadratic import Recursion, lemma_1

ALPHA, FORWARD, BACKWARD, SENSITIVITIES, STEPS = 0.12, 10, 6, (0.0, 3.0, 5.0), 200


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """Loss over steps for several sensitivities Delta at one step size below Lemma 1's edge."""
    fig, axes = style.figure(height=2.4)
    table = []
    dashes = ("solid", (0, (4, 1.5)), (0, (1, 1)))
    for sensitivity, color, dash in zip(SENSITIVITIES, style.palette(4), dashes, strict=False):
        recursion = Recursion(FORWARD, BACKWARD, sensitivity=sensitivity)
        losses = 0.5 * recursion.simulate([ALPHA], STEPS)[:, 0] ** 2
        edge = recursion.largest_stable_step()
        axes.plot(
            losses,
            color=color,
            linestyle=dash,
            label=rf"$\Delta={sensitivity:g}$, stable up to $\alpha={edge:.3f}$",
        )
        table += [
            {
                "Delta": sensitivity,
                "tau_f": FORWARD,
                "tau_b": BACKWARD,
                "alpha": ALPHA,
                "step": t,
                "loss": value,
            }
            for t, value in enumerate(losses)
        ]
    axes.set_yscale("log")
    axes.set_ylim(1e-6, 1e6)
    axes.set_xlim(0, STEPS)
    axes.set_xlabel("step t")
    axes.set_ylabel(r"$f(w_t) = w_t^2/2$")
    axes.set_title(
        rf"$\lambda=1$, $\tau_f={FORWARD}$, $\tau_b={BACKWARD}$, $\alpha={ALPHA}$ "
        rf"(Lemma 1: {lemma_1(FORWARD):.3f})"
    )
    style.legend_below(fig, axes, columns=1)
    return style.save(fig, out_stem, table)
