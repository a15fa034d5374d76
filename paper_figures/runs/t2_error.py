"""Is T2's estimate better than none? Its distance from the forward's weights over that of w_t, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper_figures import style
from paper_figures.runs import looks, select
from paper_figures.runs.curves import seeds_text
from pipemare_exp.analysis.row import RunRow


def _estimating(rows: Sequence[RunRow]) -> list[RunRow]:
    return [row for row in looks.diagnosed(rows) if row.decay is not None]


def missing(rows: Sequence[RunRow]) -> list[str]:
    """Diagnosed runs with T2, if there are none."""
    return [] if _estimating(rows) else [f"{looks.DIAGNOSED} of a method with T2"]


@style.styled
def draw(runs: Sequence[RunRow], task: str, out_stem: Path) -> list[Path]:
    """A line for each stage over the updates, mean over seeds; one panel for each method with T2. Below the line at 1
    the estimate is nearer to what the forward read than w_t is.

    Returns the paths of the SVG, the PNG and the CSV; no run that ended is a `UserError`.
    """
    rows = _estimating(select.for_drawing(runs, task, "staleness"))
    table = looks.numbers(rows, "t2_error")
    labels = style.in_order(one["method"] for one in table)
    size = {"width": style.PAGE_INCHES, "height": 0.6 + 1.8 * len(labels)}
    fig, panels = style.figure(len(labels), 1, **size, sharex=True, squeeze=False)
    colors = style.palette(1 + max(one["stage"] for one in table))
    for axes, label in zip(panels[:, 0], labels, strict=True):
        steps, stages, values = looks.grid([one for one in table if one["method"] == label], "t2_error")
        for stage, line in zip(stages, values, strict=True):
            name = {"label": f"stage {stage}"} if stage in (stages[0], stages[len(stages) // 2], stages[-1]) else {}
            axes.plot(steps, line, color=colors[stage], linewidth=0.8, **name)
        axes.axhline(1.0, color="#d55e00", linewidth=1.0, linestyle=(0, (4, 2)), label="no estimate")
        axes.set_ylabel("error, over none's")
        axes.set_ylim(bottom=0)
        axes.set_title(style.look(label).name)
    panels[-1, 0].set_xlabel("updates")
    style.legend_below(fig, panels[0, 0], columns=4)
    fig.suptitle(f"{task}, {seeds_text(rows)}", fontsize=8)
    return style.save(fig, out_stem, select.labelled(rows, table))
