"""What do T1, T2 and T3 each contribute? Metric over epochs and best metric of every combination."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.curves import draw_cross, draw_curves, error_bars, mark_diverged, metric_label, seeds_text
from paper_figures.runs.groups import best_by_seed, by_method, mean_best, metric_of
from pipemare_exp.analysis.row import RunRow

LABELS = ("async", "t1", "t2", "t1+t2", "t1+t2+t3")


def missing(rows: Sequence[RunRow]) -> list[str]:
    """The combinations of which `rows` hold no run."""
    return select.lacking(rows, LABELS)


def _draw_best(axes: Axes, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """A dot a seed, the mean with its interval; a cross at the metric's worse end for diverged runs."""
    table = []
    metric, groups = metric_of(rows), by_method(rows)[::-1]
    for place, (label, group) in enumerate(groups):
        one = style.look(label)
        best, estimate = list(best_by_seed(group).values()), mean_best(group)
        if estimate.mean is not None:
            axes.errorbar(
                [estimate.mean],
                [place],
                xerr=[[end] for end in error_bars(metric, estimate.mean, estimate.half_width)],
                color=one.color,
                marker=one.marker,
                markersize=5,
                capsize=2,
                zorder=4,
            )
        if len(best) > 1:
            axes.plot(best, [place - 0.22] * len(best), "|", color=one.color, markersize=5)
        for row in group:
            if row.outcome == "diverged":
                draw_cross(axes, metric, None, place, one.color)
            table.append(
                {
                    "panel": "best",
                    "method": label,
                    "seed": row.seed,
                    "outcome": row.outcome,
                    "best": row.best,
                    "group_mean": estimate.mean,
                    "group_half_width": estimate.half_width,
                }
            )
    axes.set_yticks(range(len(groups)), [style.look(label).name for label, _ in groups])
    axes.set_ylim(-0.6, len(groups) - 0.4)
    axes.tick_params(axis="y", length=0)
    return table


@style.styled
def draw(runs: Sequence[RunRow], task: str, out_stem: Path) -> list[Path]:
    """Left: curves, as `metric_over_epochs`. Right: best metric of every run."""
    rows = select.for_drawing(runs, task, "ablation")
    fig, (left, right) = style.figure(1, 2, width=style.PAGE_INCHES, height=3.0)
    table = [{"panel": "curve", **one} for one in draw_curves(left, rows, place=lambda row, one: one["epoch"])]
    left.set_xlabel("epochs")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_xlim(left=0)
    left.set_ylabel(metric_label(rows))
    table += _draw_best(right, rows)
    right.set_xlabel(f"best {metric_label(rows)}")
    if any(row.outcome == "diverged" for row in rows):
        mark_diverged(left)
    fig.suptitle(f"{task}, {seeds_text(rows)}", fontsize=8)
    style.legend_below(fig, left, columns=4)
    return style.save(fig, out_stem, select.labelled(rows, table))
