"""Does T1 help where delays are random? Best metric of Hogwild!-style training over the mean delay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import style
from paper_figures.runs import select
from paper_figures.runs.axes_of_studies import AXES
from paper_figures.runs.curves import mark_diverged, metric_label, seeds_text
from paper_figures.runs.sensitivity import draw_points, numbers
from pipemare_exp.analysis.rows import RunRow
from pipemare_exp.analysis.statistics import mean_with_interval
from pipemare_exp.errors import UserError

AXIS = AXES["delay_scale"]
LABELS = ("hogwild", "hogwild+t1")


def missing(rows: Sequence[RunRow]) -> list[str]:
    """Hogwild!-style runs without and with T1, at two mean delays or more."""
    lacks = select.lacking(rows, LABELS)
    return lacks or ([] if numbers(rows, AXIS) else [f"two values of {AXIS.keys[0]}"])


@style.styled
def draw(runs: Sequence[Any], task: str, out_stem: Path) -> list[Path]:
    """One line each without and with T1; the synchronous runs' mean as a level line where there are some."""
    rows = select.for_drawing(runs, task, "hogwild", AXIS.keys)
    table = numbers([row for row in rows if row.method in LABELS], AXIS)
    if not table:
        raise UserError(
            f"no Hogwild!-style runs of task {task} at two mean delays; make them with `pipemare sweep hogwild_{task}`"
        )
    fig, axes = style.figure(height=2.7)
    if draw_points(axes, table):
        mark_diverged(axes, "a seed diverged")
    reference = mean_with_interval(
        [row.best for row in rows if row.synchronous and row.outcome == "finished" and row.best is not None]
    )
    if reference.mean is not None:
        axes.axhline(reference.mean, color=style.look("gpipe").color, linewidth=0.8, label="GPipe (synchronous)")
    axes.set_xscale("log")
    values = sorted({one["value"] for one in table})
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(AXIS.label)
    axes.set_ylabel(f"best {metric_label(rows)}")
    axes.set_title(f"{task}, {seeds_text(rows)}")
    style.legend_below(fig, axes, columns=2)
    return style.save(fig, out_stem, [{"task": task, "scale": rows[0].scale, **one} for one in table])
