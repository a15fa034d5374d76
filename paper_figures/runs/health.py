"""Gradient norm and longest delay over the updates of logged runs: when, and how, does a training become unwell?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.curves import mark_diverged, seeds_text
from paper_figures.runs.groups import by_method
from pipemare_exp.analysis.row import RunRow


def missing(rows: Sequence[RunRow]) -> list[str]:
    """The methods of the end-to-end comparison of which `rows` hold no run that logged its health."""
    return select.lacking([row for row in rows if _logged(row)], select.END_TO_END)


def _logged(row: RunRow) -> list[dict[str, Any]]:
    return [one for one in row.health if one["grad_norm"] is not None]


@style.styled
def draw(runs: Sequence[RunRow], task: str, out_stem: Path) -> list[Path]:
    """Draws a line for every run that logged its health: the norm of the last gradient before each evaluation, before
    clipping, and the longest delay in that step. A cross marks the last norm of a diverged run.

    Returns the paths of the SVG, the PNG and the CSV; no run that ended is a `UserError`.
    """
    rows = select.for_drawing(runs, task, "end_to_end")
    fig, (norms, delays) = style.figure(1, 2, width=style.PAGE_INCHES, height=2.6)
    table = []
    for label, group in by_method([row for row in rows if _logged(row)]):
        for index, row in enumerate(sorted(group, key=lambda row: row.seed)):
            look = {**style.line_style(label), "marker": "", "linewidth": 0.9}
            if index:
                del look["label"]  # one entry a method
            logged = _logged(row)
            steps = [one["step"] for one in logged]
            norms.plot(steps, [one["grad_norm"] for one in logged], **look)
            delays.plot(steps, [one["max_delay"] for one in logged], **look)
            if row.outcome == "diverged":
                end = logged[-1]
                norms.plot(end["step"], end["grad_norm"], "X", color=look["color"], markersize=6, linestyle="none")
            table += [{"method": label, "seed": row.seed, "outcome": row.outcome, **one} for one in logged]
    if any(row.outcome == "diverged" for row in rows):
        mark_diverged(norms)
    norms.set_yscale("log")
    norms.set_ylabel("norm of the gradient")
    delays.set_ylabel("longest delay (steps)")
    for axes in (norms, delays):
        axes.set_xlabel("updates")
        axes.set_xlim(left=0)
    style.legend_below(fig, norms, columns=4)
    fig.suptitle(f"{task}, {seeds_text(rows)}", fontsize=8)
    return style.save(fig, out_stem, select.labelled(rows, table))
