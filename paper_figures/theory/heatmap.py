"""Linear regression with delayed gradients: final loss over (alpha, tau), and where Lemma 1 puts the edge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm

from paper_figures import style
from pipemare_exp.data import cpusmall
from pipemare_exp.theory import linear_regression
from pipemare_exp.theory.quadratic import lemma_1

DELAYS = tuple(range(0, 65, 2))
EDGE_DELAYS = (0, 1, 2, 4, 8, 16, 32, 64)
STEPS = 5000
WORST_SHOWN = 10.0


@style.styled
def draw(out_stem: Path, data_root: Path | None = None) -> list[Path]:
    """Heat map (worst losses and overflow in one colour), Lemma 1's curve and the measured edges on it.

    The CSV holds the map (`kind` loss) and the edges (`kind` edge, with the ratio to Lemma 1).
    """
    data = cpusmall.load(data_root)
    curvature = data.largest_curvature()
    top = 1.6 * lemma_1(0, curvature)
    alphas = np.geomspace(0.4 * lemma_1(max(DELAYS), curvature), top, 80)
    losses = linear_regression.final_losses(data, alphas, DELAYS, STEPS)
    edges = [linear_regression.measured_edge(data, tau, 1e-3 * top, top) for tau in EDGE_DELAYS]

    fig, axes = style.figure(height=2.9)
    shown = np.minimum(losses, WORST_SHOWN)
    mesh = axes.pcolormesh(
        alphas,
        DELAYS,
        shown,
        norm=LogNorm(losses.min(), WORST_SHOWN),
        cmap="viridis_r",
        shading="nearest",
        rasterized=True,
    )
    fine = np.linspace(0, max(DELAYS), 400)
    axes.plot(
        [lemma_1(tau, curvature) for tau in fine],
        fine,
        color="#d55e00",
        label=r"Lemma 1: $\alpha = "
        r"\frac{2}{\lambda}\sin\frac{\pi}{4\tau+2}$",
    )
    axes.plot(
        edges,
        EDGE_DELAYS,
        "o",
        color="white",
        markeredgecolor="black",
        markersize=4,
        label="measured edge",
        linestyle="none",
        clip_on=False,
        zorder=5,
    )
    axes.set_xscale("log")
    axes.set_xlim(alphas[0], alphas[-1])
    axes.set_ylim(0, max(DELAYS))
    axes.grid(False)
    axes.set_xlabel(r"step size $\alpha$")
    axes.set_ylabel(r"delay $\tau$ (steps)")
    axes.set_title(f"{data.name}, {data.features.shape[1]} features, {STEPS:,} steps")
    bar = fig.colorbar(mesh, ax=axes, extend="max")
    bar.set_label("final loss")
    style.legend_below(fig, axes, columns=2)
    table: list[dict[str, object]] = [
        {
            "kind": "loss",
            "data": data.name,
            "lambda": curvature,
            "tau": tau,
            "alpha": alpha,
            "loss": losses[row, column],
        }
        for row, tau in enumerate(DELAYS)
        for column, alpha in enumerate(alphas)
    ]
    table += [
        {
            "kind": "edge",
            "data": data.name,
            "lambda": curvature,
            "tau": tau,
            "alpha": edge,
            "lemma_1": lemma_1(tau, curvature),
            "ratio": edge / lemma_1(tau, curvature),
        }
        for tau, edge in zip(EDGE_DELAYS, edges, strict=True)
    ]
    return style.save(fig, out_stem, table)
