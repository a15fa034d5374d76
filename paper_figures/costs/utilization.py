"""Pipeline utilization by the model, over stages and microbatches: what does a flush cost?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from paper_figures import style
from paper_figures.costs.sizes import over_sizes
from pipemare_exp import methods
from pipemare_exp.pipeline.schedule import costs

STAGES = (1, 2, 4, 8, 16, 32, 64, 107, 128, 256)
MICROBATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIXED_STAGES, FIXED_MICROBATCHES = 107, (8, 32)


def numbers() -> list[dict[str, Any]]:
    """Utilization and the ratio (N+P-1)/N of GPipe and of the asynchronous methods, over P and over N."""
    return [
        {
            **one,
            "method": method,
            "utilization": methods.costs()[method].utilization(one["stages"], one["microbatches"]),
            "gpipe_ratio": costs.gpipe_ratio(one["stages"], one["microbatches"]),
        }
        for one in over_sizes(STAGES, MICROBATCHES, FIXED_STAGES, FIXED_MICROBATCHES)
        for method in ("gpipe", "pipemare")
    ]


def _line(axes: Axes, rows: Sequence[dict[str, Any]], x: str, label: str, **look: Any) -> None:
    axes.plot([row[x] for row in rows], [row["utilization"] for row in rows], label=label, **look)


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """Left: over P at N = 8 and 32. Right: over N at P = 107 (ResNet-50). Asynchronous methods stay at 1."""
    table = numbers()
    fig, (left, right) = style.figure(1, 2, width=style.PAGE_INCHES, height=2.5, sharey=True)
    gpipe, ours = style.LOOKS["gpipe"], style.LOOKS["t1+t2+t3"]
    for count, dash in zip(FIXED_MICROBATCHES, ((0, (4, 1.5)), "solid"), strict=True):
        rows = [
            row for row in table if row["over"] == "P" and row["microbatches"] == count and row["method"] == "gpipe"
        ]
        _line(
            left,
            rows,
            "stages",
            f"GPipe, N = {count}",
            color=gpipe.color,
            marker=gpipe.marker,
            linestyle=dash,
        )
    flat = [row for row in table if row["over"] == "P" and row["method"] == "pipemare"][: len(STAGES)]
    _line(left, flat, "stages", "PipeDream, PipeMare", color=ours.color, marker=ours.marker, linestyle=ours.dash)
    over = [row for row in table if row["over"] == "N"]
    _line(
        right,
        [row for row in over if row["method"] == "gpipe"],
        "microbatches",
        "GPipe",
        color=gpipe.color,
        marker=gpipe.marker,
        linestyle=gpipe.dash,
    )
    _line(
        right,
        [row for row in over if row["method"] == "pipemare"],
        "microbatches",
        "PipeDream, PipeMare",
        color=ours.color,
        marker=ours.marker,
        linestyle=ours.dash,
    )
    for count in FIXED_MICROBATCHES:
        value = methods.costs()["gpipe"].utilization(FIXED_STAGES, count)
        right.annotate(
            f"{costs.gpipe_ratio(FIXED_STAGES, count):.2f}x",
            (count, value),
            xytext=(-6, 6),
            ha="right",
            textcoords="offset points",
            fontsize=7,
        )
    for axes, label in ((left, "stages P"), (right, "microbatches N")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_xlabel(label)
        axes.set_ylim(0, 1.05)
    left.set_ylabel("utilization")
    right.set_title(f"P = {FIXED_STAGES}; (N+P-1)/N beside the points")
    style.legend_below(fig, left, columns=3)
    return style.save(fig, out_stem, table)
