"""Does recomputation cost quality? Best metric over segment size, beside the activations saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.axes_of_studies import AXES
from paper_figures.runs.curves import error_bars, metric_label
from pipemare_exp.analysis.rows import RunRow
from pipemare_exp.analysis.statistics import mean_with_interval
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import costs

AXIS = AXES["segment"]
LEAST_SPAN = 5.0  # points of the metric


def missing(rows: Sequence[RunRow]) -> list[str]:
    """Runs without recomputation and runs with it, of one method."""
    plain = {row.method for row in rows if row.segment is None and not row.synchronous}
    cut = {row.method for row in rows if row.segment is not None}
    return [] if plain & cut else ["runs of one method with and without recomputation"]


def numbers(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """One dict a method and S (None: no recomputation): best metric, and activations held by the model."""
    table = []
    labels = {row.method for row in rows if row.segment is not None}
    for label in style.in_order(labels):
        group = [row for row in rows if row.method == label]
        for segment in sorted({row.segment for row in group}, key=lambda one: (one is not None, one)):
            here = [row for row in group if row.segment == segment]
            best = mean_with_interval([row.best for row in here if row.outcome == "finished" and row.best is not None])
            stages, count = here[0].stages or 1, here[0].microbatches or 1
            held = (
                costs.Costs().activations(stages, count)
                if segment is None
                else costs.activations_recomputed(stages, segment)
            )
            table.append(
                {
                    "method": label,
                    "stages": stages,
                    "microbatches": count,
                    "segment": segment,
                    "best_mean": best.mean,
                    "best_half_width": best.half_width,
                    "n": best.n,
                    "diverged": sum(row.outcome == "diverged" for row in here),
                    "activations": held,
                }
            )
    return table


@style.styled
def draw(runs: Sequence[Any], task: str, out_stem: Path) -> list[Path]:
    """Left: best metric over S. Right: activations held over S. `none` is the first place of both."""
    rows = select.for_drawing(runs, task, "recompute", AXIS.keys)
    table = numbers(rows)
    if not table:
        raise UserError(f"no run of task {task} recomputes; make some with `pipemare sweep recompute_{task}`")
    segments = sorted({one["segment"] for one in table}, key=lambda one: (one is not None, one))
    place = {segment: index for index, segment in enumerate(segments)}
    fig, (left, right) = style.figure(1, 2, width=style.PAGE_INCHES, height=2.6)
    for label in style.in_order(one["method"] for one in table):
        points = [one for one in table if one["method"] == label]
        shown = [one for one in points if one["best_mean"] is not None]
        look = style.line_style(label)
        bars = [error_bars(one["best_mean"], one["best_half_width"]) for one in shown]
        left.errorbar(
            [place[one["segment"]] for one in shown],
            [one["best_mean"] for one in shown],
            yerr=list(zip(*bars, strict=True)) if bars else None,
            capsize=2,
            elinewidth=0.8,
            **look,
        )
        right.plot(
            [place[one["segment"]] for one in points],
            [one["activations"] for one in points],
            **{**look, "label": None},
        )
    for axes in (left, right):
        axes.set_xticks(range(len(segments)), ["none" if one is None else str(one) for one in segments])
        axes.set_xlabel("segment size S")
    low, high = left.get_ylim()
    if high - low < LEAST_SPAN:  # a difference of a tenth of a point should not fill the picture
        left.set_ylim((low + high - LEAST_SPAN) / 2, (low + high + LEAST_SPAN) / 2)
    left.set_ylabel(f"best {metric_label(rows)}")
    right.set_ylabel("activations held (model)")
    right.set_ylim(bottom=0)
    fig.suptitle(f"{task}, P = {table[0]['stages']}, N = {table[0]['microbatches']}", fontsize=8)
    style.legend_below(fig, left, columns=3)
    return style.save(fig, out_stem, [{"task": task, "scale": rows[0].scale, **one} for one in table])
