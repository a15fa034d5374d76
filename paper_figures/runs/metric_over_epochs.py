"""Metric over epochs per method, from logged runs: how fast and how far does each method learn?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.curves import draw_curves, mark_diverged, metric_label, seeds_text
from pipemare_exp.analysis.row import RunRow


def missing(rows: Sequence[RunRow]) -> list[str]:
    """The methods of the end-to-end comparison of which `rows` hold no run."""
    return select.lacking(rows, select.END_TO_END)


@style.styled
def draw(runs: Sequence[RunRow], task: str, out_stem: Path) -> list[Path]:
    """Draws every method that `runs` (of one scale and setting) hold for `task`.

    Mean and 95 % interval over seeds; a cross marks where a diverged run ended. Runs that have not ended
    are left out. Returns the paths of the SVG, the PNG and the CSV; no run that ended is a `UserError`.
    """
    rows = select.for_drawing(runs, task, "end_to_end")
    fig, axes = style.figure(width=style.COLUMN_INCHES, height=3.0)
    table = draw_curves(axes, rows, place=lambda row, one: one["epoch"])
    diverged = sum(row.outcome == "diverged" for row in rows)
    if diverged:
        mark_diverged(axes)
    axes.set_xlabel("epochs")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(metric_label(rows))
    axes.set_xlim(0, 1.02 * max(row.epochs or one["epoch"] for row in rows for one in (row.evals or [{"epoch": 1}])))
    style.legend_below(fig, axes, columns=2)
    axes.set_title(f"{task}, {seeds_text(rows)}")
    return style.save(fig, out_stem, select.labelled(rows, table))
