"""How much does the best metric depend on one setting: D, K, T3's length, learning rate, stages?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.axes_of_studies import AXES, Axis, varied
from paper_figures.runs.curves import draw_cross, draw_means, mark_diverged, metric_label, seeds_text
from paper_figures.runs.groups import mean_best, metric_of
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.errors import UserError
from pipemare_exp.metrics import Metric


def missing(rows: Sequence[RunRow], axis: str) -> list[str]:
    """The methods that the axis asks for and of which there is no run; else runs of one method at two values of it."""
    if lacks := select.lacking(rows, AXES[axis].methods):
        return lacks
    return [] if varied(rows, AXES[axis]) else [f"two values of {AXES[axis].keys[0]} for one method"]


def numbers(rows: Sequence[RunRow], axis: Axis) -> list[dict[str, Any]]:
    """One dict a method and value: mean best metric of finished runs, half width, n, how many diverged."""
    table = []
    for label in style.in_order(varied(rows, axis)):
        group = [row for row in rows if row.method == label and axis.value(row) is not None]
        for value in sorted({axis.value(row) for row in group}):  # type: ignore[type-var]
            here = [row for row in group if axis.value(row) == value]
            best = mean_best(here)
            table.append(
                {
                    "method": label,
                    "axis": axis.field,
                    "value": value,
                    "best_mean": best.mean,
                    "best_half_width": best.half_width,
                    "n": best.n,
                    "diverged": sum(row.outcome == "diverged" for row in here),
                }
            )
    return table


def draw_points(axes: Axes, metric: Metric, table: Sequence[dict[str, Any]]) -> bool:
    """A line a method through its means; crosses beyond the worst one for diverged runs. Returns whether any were."""
    means = [one["best_mean"] for one in table if one["best_mean"] is not None]
    beyond = metric.clipped(metric.worsened(metric.worst(means or [0.0]), by=4.0 * metric.point))
    crosses = False
    for label in style.in_order(one["method"] for one in table):
        points = [one for one in table if one["method"] == label]
        draw_means(axes, metric, label, [one["value"] for one in points], points)
        lost = [one["value"] for one in points if one["diverged"]]
        for value in lost:
            draw_cross(axes, metric, value, beyond, style.look(label).color)
        crosses |= bool(lost)
    return crosses


@style.styled
def draw(runs: Sequence[RunRow], task: str, out_stem: Path, axis: str) -> list[Path]:
    """Best metric over the axis, a line a method that was run at two values or more; crosses: diverged.

    A level line is the synchronous runs' mean, where they are not on the axis themselves.
    """
    one = AXES[axis]
    rows = select.for_drawing(runs, task, one.study, one.keys)
    table, metric = numbers(rows, one), metric_of(rows)
    if not table:
        raise UserError(
            f"no method of task {task} was run at two values of {one.keys[0]}; make such runs with "
            f"`pipemare sweep {one.study}_{task}`"
        )
    fig, axes = style.figure(height=2.7)
    if draw_points(axes, metric, table):
        mark_diverged(axes, "a seed diverged")
    synchronous = [row for row in rows if row.synchronous]
    reference = mean_best(synchronous)
    if reference.mean is not None and synchronous[0].method not in varied(rows, one):
        look = style.look(synchronous[0].method)
        axes.axhline(reference.mean, color=look.color, linewidth=0.8, label=look.name)
    if one.log:
        axes.set_xscale("log")
        values = sorted({entry["value"] for entry in table})
        axes.set_xticks(values, [f"{value:g}" for value in values], rotation=45 if len(values) > 6 else 0)
        axes.minorticks_off()
    axes.set_xlabel(one.label)
    axes.set_ylabel(f"best {metric_label(rows)}")
    axes.set_title(f"{task}, {seeds_text(rows)}")
    style.legend_below(fig, axes, columns=2)
    return style.save(fig, out_stem, select.labelled(rows, table))
