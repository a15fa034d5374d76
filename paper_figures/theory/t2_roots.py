"""Largest |root| over alpha, with and without T2: how much of the stable range does T2 give back?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paper_figures import style
from pipemare_exp.theory.quadratic import DEFAULT_DECAY, Recursion, gamma_of

CASES = ((10, 6, 5.0), (40, 10, 5.0), (10, 0, 5.0))


def recursions(forward: int, backward: int, sensitivity: float, decay: float = DEFAULT_DECAY) -> dict[str, Recursion]:
    """The same problem without T2, with it, and with T2 whose delta is read tau_b steps late."""
    gamma = gamma_of(decay, forward - backward)
    return {
        "without T2": Recursion(forward, backward, sensitivity=sensitivity),
        "with T2": Recursion(forward, backward, sensitivity=sensitivity, gamma=gamma),
        "with T2, delta late": Recursion(forward, backward, sensitivity=sensitivity, gamma=gamma, delta_late=True),
    }


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """One panel a case (tau_f, tau_b, Delta), lambda = 1, D = e^-2; dots where stability ends."""
    fig, panels = style.figure(1, len(CASES), width=style.PAGE_INCHES, height=2.3, sharey=True)
    looks = {"without T2": style.LOOKS["async"], "with T2": style.LOOKS["t2"]}
    table = []
    for axes, case in zip(panels, CASES, strict=True):
        variants = {name: one for name, one in recursions(*case).items() if name in looks}
        edges = {name: one.largest_stable_step() for name, one in variants.items()}
        alphas = np.linspace(0, 1.4 * max(edges.values()), 281)
        for name, one in variants.items():
            roots = one.largest_root(alphas)
            axes.plot(alphas, roots, color=looks[name].color, linestyle=looks[name].dash, label=name)
            axes.plot(edges[name], 1.0, looks[name].marker, color=looks[name].color, clip_on=False)
            table += [
                {
                    "tau_f": case[0],
                    "tau_b": case[1],
                    "Delta": case[2],
                    "variant": name,
                    "alpha": alpha,
                    "largest_root": root,
                    "largest_stable_alpha": edges[name],
                }
                for alpha, root in zip(alphas, roots, strict=True)
            ]
        axes.axhline(1.0, color="#444444", linewidth=0.6)
        axes.set_title(rf"$\tau_f={case[0]}$, $\tau_b={case[1]}$, $\Delta={case[2]:g}$")
        axes.set_xlabel(r"step size $\alpha$")
        axes.set_xlim(0, alphas[-1])
    panels[0].set_ylim(0.92, 1.12)
    panels[0].set_ylabel(r"largest $|z|$ (stable up to 1)")
    style.legend_below(fig, panels[0], columns=2)
    return style.save(fig, out_stem, table)
