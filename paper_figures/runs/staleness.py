"""How stale are the weights that forwards read, stage by stage and over time? From runs with diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm

from paper_figures import style
from paper_figures.runs import looks, select
from paper_figures.runs.curves import seeds_text
from pipemare_exp.analysis.row import RunRow


def missing(rows: Sequence[RunRow]) -> list[str]:
    """Diagnosed runs of an asynchronous method, if there are none."""
    return [] if looks.diagnosed(rows) else [looks.DIAGNOSED]


@style.styled
def draw(runs: Sequence[RunRow], task: str, out_stem: Path) -> list[Path]:
    """Heat maps of ||w_t - w_fwd|| / ||w_t||, one for each method: stage over update, mean over seeds. They share one
    colour scale, and are white where there is no number, or 0.

    Returns the paths of the SVG, the PNG and the CSV; no run that ended is a `UserError`.
    """
    rows = looks.diagnosed(select.for_drawing(runs, task, "staleness"))
    table = looks.numbers(rows, "staleness")
    labels = style.in_order(one["method"] for one in table)
    known = [one["staleness"] for one in table if one["staleness"]] or [1.0]
    scale = LogNorm(min(known), max(max(known), min(known) * 1.01))
    size = {"width": style.PAGE_INCHES, "height": 0.6 + 1.5 * len(labels)}
    fig, panels = style.figure(len(labels), 1, **size, sharex=True, squeeze=False)
    for axes, label in zip(panels[:, 0], labels, strict=True):
        steps, stages, values = looks.grid([one for one in table if one["method"] == label], "staleness")
        shown = np.ma.masked_invalid(np.array(values))
        mesh = axes.pcolormesh(
            steps, stages, np.ma.masked_less_equal(shown, 0), norm=scale, shading="nearest", rasterized=True
        )
        axes.grid(False)
        axes.set_ylabel("stage")
        axes.set_title(style.look(label).name)
    panels[-1, 0].set_xlabel("updates")
    fig.colorbar(mesh, ax=panels[:, 0]).set_label(r"$\|w_t - w_{fwd}\| / \|w_t\|$")
    fig.suptitle(f"{task}, {seeds_text(rows)}", fontsize=8)
    return style.save(fig, out_stem, select.labelled(rows, table))
