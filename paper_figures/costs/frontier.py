"""Throughput against memory of every schedule, walked: what is left of asynchrony's gain beside schedules of today?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from paper_figures import style
from pipemare_exp import methods
from pipemare_exp.pipeline.schedule.actions import SLOT_KINDS
from pipemare_exp.pipeline.schedule.comparison import SYNCHRONOUS, compare

STAGES = (8, 16, 107)
RATIOS = ((1, 4), (1, 1), (4, 1))
"""N over P, as fractions; N is rounded down."""
ASYNCHRONOUS = {"pipedream": "PipeDream", "pipemare": "PipeMare with T2"}
MARKERS = dict(zip(SYNCHRONOUS, "os^v<>D", strict=True))
SIZES = dict(zip(SYNCHRONOUS, (70, 48, 40, 52, 36, 20, 14), strict=True))
"""Those drawn later are smaller: several schedules can stand at one place."""


def numbers() -> list[dict[str, Any]]:
    """One dict a schedule, P and N: throughput over an ideal pipeline, activations, weights, delay; or why not.

    `activations_minibatches` is the peak on the fullest device over the N microbatches that GPipe holds there.
    Operations take equally long (F = I = W) and messages nothing.
    """
    declared = {name: (title, methods.costs()[name]) for name, title in ASYNCHRONOUS.items()}
    rows: list[dict[str, Any]] = []
    for stages in STAGES:
        for above, below in RATIOS:
            count = stages * above // below
            for slots in SLOT_KINDS:
                for row in compare(stages, count, declared, slots, synchronous=slots == SLOT_KINDS[0]):
                    late = row.name in ASYNCHRONOUS
                    rows.append(
                        {
                            "P": stages,
                            "N": count,
                            "schedule": row.name,
                            "slots": slots if late else "",
                            "throughput": row.utilization,
                            "activations_fullest": row.fullest,
                            "activations_minibatches": None if row.fullest is None else row.fullest / count,
                            "activations_mean": None if row.activations is None else row.activations / stages,
                            "weights_W": row.weights,
                            "delay_first": None if row.delay is None else row.delay[0],
                            "delay_mean": None if row.delay is None else row.delay[1],
                            "why_not": row.why_not,
                        }
                    )
    return rows


def _panel(axes: Axes, rows: list[dict[str, Any]]) -> None:
    colors = dict(zip(SYNCHRONOUS, style.palette(len(SYNCHRONOUS)), strict=True))
    for row in rows:
        name, x, y = row["schedule"], row["activations_minibatches"], row["throughput"]
        if x is None:
            continue
        if name in SYNCHRONOUS:
            title = SYNCHRONOUS[name][0]
            axes.scatter(
                [x], [y], s=SIZES[name], color=colors[name], marker=MARKERS[name], label=title, linewidths=0, zorder=3
            )
            continue
        one = style.look("pipedream" if name == "pipedream" else "t1+t2+t3")
        title = ASYNCHRONOUS[name]
        # Area for the weights: both stand at one place, since they differ in what they keep and not in when they run.
        axes.scatter(
            [x], [y], s=22 * row["weights_W"], facecolors="none", edgecolors=one.color,
            marker="s" if name == "pipedream" else "o", label=title if row["slots"] == SLOT_KINDS[0] else None,
            linewidths=1.1, zorder=2,
        )  # fmt: skip
        if name == "pipemare":
            text = f"{row['slots'][:3]}.\nτ {row['delay_first']:.2g}"
            axes.annotate(text, (x, y), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=5.5)


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """Rows: P = 8, 16, 107; columns: N = P/4, P, 4P.

    Hollow marks are asynchronous, in alternating and in duplex slots; their area is the weights held, τ the delay of
    the first stage.
    """
    table = numbers()
    fig, grid = style.figure(len(STAGES), len(RATIOS), width=style.PAGE_INCHES, height=6.0, sharey=True)
    for stages, line in zip(STAGES, grid, strict=True):
        for (above, below), axes in zip(RATIOS, line, strict=True):
            count = stages * above // below
            _panel(axes, [row for row in table if (row["P"], row["N"]) == (stages, count)])
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlim(0.18, 12)
            axes.set_ylim(0, 1.4)
            axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
            axes.set_title(f"P = {stages}, N = {count}")
    for axes in grid[-1]:
        axes.set_xlabel("activations on the fullest device\n(minibatches; GPipe 1)")
    for line in grid:
        line[0].set_ylabel("throughput over ideal")
    style.legend_below(fig, grid[0][-1], columns=5)
    return style.save(fig, out_stem, table)
