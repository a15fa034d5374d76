"""Metric over modelled time per method: how soon is a quality reached, once steps cost what they cost?

The unit is one asynchronous step: a synchronous or warm-up step costs (N+P-1)/N of it, any other one 1.
This is the model of costs.py, never a measurement: the emulator's own seconds say nothing about a
pipeline's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.curves import draw_curves, mark_diverged, metric_label
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import costs


def missing(rows: Sequence[RunRow]) -> list[str]:
    """The methods of the end-to-end comparison of which `rows` hold no run."""
    return select.lacking(rows, select.END_TO_END)


def modelled_time(row: RunRow, step: int) -> float:
    """Modelled time of a run's first `step` steps, in asynchronous steps of its P and N."""
    if row.stages is None or row.microbatches is None:
        raise UserError(f"run {row.name} does not say its stages and microbatches; its modelled time is unknown")
    flushed = step if row.synchronous else min(step, row.warmup_steps or 0)
    return costs.modelled_time(row.stages, row.microbatches, step, flushed)


@style.styled
def draw(runs: Sequence[RunRow], task: str, out_stem: Path) -> list[Path]:
    """As `metric_over_epochs.draw`, over modelled time in asynchronous steps."""
    rows = select.for_drawing(runs, task, "end_to_end")
    fig, axes = style.figure(height=3.0)
    table = draw_curves(axes, rows, place=lambda row, one: modelled_time(row, one["step"]))
    axes.set_xlabel("modelled time (asynchronous steps)")
    axes.set_ylabel(metric_label(rows))
    axes.set_xlim(left=0)
    if any(row.outcome == "diverged" for row in rows):
        mark_diverged(axes)
    sizes = sorted({(row.stages, row.microbatches) for row in rows})
    axes.set_title(f"{task}, " + "; ".join(f"P = {stages}, N = {count}" for stages, count in sizes))
    style.legend_below(fig, axes, columns=2)
    return style.save(fig, out_stem, select.labelled(rows, table))
