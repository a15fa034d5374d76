"""How much does the best metric depend on one setting: D, K, T3's length, learning rate, stages?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.axes_of_studies import AXES, Axis, varied
from paper_figures.runs.curves import draw_cross, error_bars, mark_diverged, metric_label, seeds_text
from pipemare_exp import methods
from pipemare_exp.analysis.rows import RunRow
from pipemare_exp.analysis.statistics import mean_with_interval
from pipemare_exp.errors import UserError


def missing(rows: Sequence[RunRow], axis: str) -> list[str]:
    """What is missing: runs of one method at two or more values of the axis."""
    return [] if varied(rows, AXES[axis]) else [f"two values of {AXES[axis].keys[0]} for one method"]


def numbers(rows: Sequence[RunRow], axis: Axis) -> list[dict[str, Any]]:
    """One dict a method and value: mean best metric of finished runs, half width, n, how many diverged."""
    table = []
    for label in style.in_order(varied(rows, axis)):
        group = [row for row in rows if row.method == label and axis.value(row) is not None]
        for value in sorted({axis.value(row) for row in group}):  # type: ignore[type-var]
            here = [row for row in group if axis.value(row) == value]
            best = mean_with_interval([row.best for row in here if row.outcome == "finished" and row.best is not None])
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


def draw_points(axes: Axes, table: Sequence[dict[str, Any]]) -> bool:
    """A line a method through its means; crosses on the floor for diverged runs. Returns whether any were."""
    floor = min((one["best_mean"] for one in table if one["best_mean"] is not None), default=0.0)
    crosses = False
    for label in style.in_order(one["method"] for one in table):
        points = [one for one in table if one["method"] == label]
        shown = [one for one in points if one["best_mean"] is not None]
        look = style.line_style(label)
        bars = [error_bars(one["best_mean"], one["best_half_width"]) for one in shown]
        axes.errorbar(
            [one["value"] for one in shown],
            [one["best_mean"] for one in shown],
            yerr=list(zip(*bars, strict=True)) if bars else None,
            capsize=2,
            elinewidth=0.8,
            **look,
        )
        lost = [one["value"] for one in points if one["diverged"]]
        for value in lost:
            draw_cross(axes, value, max(floor - 4.0, 0.0), look["color"])
        crosses |= bool(lost)
    return crosses


@style.styled
def draw(runs: Sequence[Any], task: str, out_stem: Path, axis: str) -> list[Path]:
    """Best metric over the axis, a line a method that was run at two values or more; crosses: diverged."""
    one = AXES[axis]
    rows = select.for_drawing(runs, task, one.study, one.keys)
    table = numbers(rows, one)
    if not table:
        raise UserError(f"no method of task {task} was run at two values of {one.keys[0]}")
    fig, axes = style.figure(height=2.7)
    if draw_points(axes, table):
        mark_diverged(axes, "a seed diverged")
    reference = mean_with_interval(
        [row.best for row in rows if row.synchronous and row.outcome == "finished" and row.best is not None]
    )
    if reference.mean is not None and not any(map(methods.synchronous, varied(rows, one))):
        axes.axhline(reference.mean, color=style.look("gpipe").color, linewidth=0.8, label="GPipe (synchronous)")
    if one.log:
        axes.set_xscale("log")
        values = sorted({entry["value"] for entry in table})
        axes.set_xticks(values, [f"{value:g}" for value in values], rotation=45 if len(values) > 6 else 0)
        axes.minorticks_off()
    axes.set_xlabel(one.label)
    axes.set_ylabel(f"best {metric_label(rows)}")
    axes.set_title(f"{task}, {seeds_text(rows)}")
    style.legend_below(fig, axes, columns=2)
    return style.save(fig, out_stem, [{"task": task, "scale": rows[0].scale, **entry} for entry in table])
