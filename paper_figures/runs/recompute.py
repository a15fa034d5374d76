"""Does recomputation cost quality? Best metric over segment size, beside the activations saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.axes_of_studies import AXES
from paper_figures.runs.curves import draw_means, metric_label
from paper_figures.runs.groups import mean_best, metric_of
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import costs

LEAST_SPAN = 5.0  # of the metric's points


def missing(rows: Sequence[RunRow], axis: str) -> list[str]:
    """Runs without recomputation and runs with it, of one method."""
    value = AXES[axis].value
    plain = {row.method for row in rows if value(row) is None and not row.synchronous}
    cut = {row.method for row in rows if value(row) is not None}
    return [] if plain & cut else ["runs of one method with and without recomputation"]


def numbers(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """One dict a method and S (None: no recomputation): best metric, and activations held by the model."""
    table = []
    labels = {row.method for row in rows if row.segment is not None}
    for label in style.in_order(labels):
        group = [row for row in rows if row.method == label]
        for segment in sorted({row.segment for row in group}, key=lambda one: (one is not None, one)):
            here = [row for row in group if row.segment == segment]
            best = mean_best(here)
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
def draw(runs: Sequence[RunRow], task: str, out_stem: Path, axis: str) -> list[Path]:
    """Left: best metric over S. Right: activations held over S. `none` is the first place of both."""
    rows = select.for_drawing(runs, task, AXES[axis].study, AXES[axis].keys)
    table, metric = numbers(rows), metric_of(rows)
    if not table:
        raise UserError(f"no run of task {task} recomputes; make some with `pipemare sweep recompute_{task}`")
    segments = sorted({one["segment"] for one in table}, key=lambda one: (one is not None, one))
    place = {segment: index for index, segment in enumerate(segments)}
    fig, (left, right) = style.figure(1, 2, width=style.PAGE_INCHES, height=2.6)
    for label in style.in_order(one["method"] for one in table):
        points = [one for one in table if one["method"] == label]
        places = [place[one["segment"]] for one in points]
        draw_means(left, metric, label, places, points)
        right.plot(places, [one["activations"] for one in points], **{**style.line_style(label), "label": None})
    for axes in (left, right):
        axes.set_xticks(range(len(segments)), ["none" if one is None else str(one) for one in segments])
        axes.set_xlabel("segment size S")
    (low, high), least = left.get_ylim(), LEAST_SPAN * metric.point
    if high - low < least:  # a difference of a tenth of a point should not fill the picture
        left.set_ylim((low + high - least) / 2, (low + high + least) / 2)
    left.set_ylabel(f"best {metric_label(rows)}")
    right.set_ylabel("activations held (model)")
    right.set_ylim(bottom=0)
    fig.suptitle(f"{task}, P = {table[0]['stages']}, N = {table[0]['microbatches']}", fontsize=8)
    style.legend_below(fig, left, columns=3)
    return style.save(fig, out_stem, select.labelled(rows, table))
