"""What each stage does when: the methods' schedules, coloured by the weight version that is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from paper_figures import style
from pipemare_exp.pipeline.schedule import orders as schedules
from pipemare_exp.pipeline.schedule.actions import Op, Schedule
from pipemare_exp.pipeline.schedule.versions import walk

STAGES, MICROBATCHES, SHOWN = 4, 4, 36
# A colour a version, dark and light in turn, so that neighbours differ in grey too.
COLORS = ("#1f4e79", "#f3c77a", "#3f8f82", "#efe9bd", "#7d5ba6")


def panels() -> list[tuple[str, Schedule]]:
    """(title, schedule) from top to bottom; each long enough to fill the slots that are shown."""
    size, steps = (STAGES, MICROBATCHES), 6
    return [
        ("GPipe", schedules.gpipe(*size, steps)),
        (
            "PipeDream, alternating slots: a backward reads what its forward read",
            schedules.pipedream(*size, steps, "alternating"),
        ),
        (
            "PipeMare, alternating slots: a backward reads what is current",
            schedules.pipemare(*size, steps, "alternating"),
        ),
        (
            "PipeMare, duplex slots (a slot, two operations long, holds a forward and a backward)",
            schedules.pipemare(*size, steps, "duplex"),
        ),
        (
            "PipeMare after one synchronous step (T3), alternating slots",
            schedules.pipemare(*size, steps, "alternating", start=1),
        ),
    ]


def cells(title: str, schedule: Schedule) -> list[dict[str, Any]]:
    """One dict a forward or backward: panel, stage, slot, op, microbatch and the weight version it reads."""
    read = walk(schedule)
    rows = []
    for stage, action in schedule.actions():
        if action.op not in (Op.FORWARD, Op.BACKWARD):
            continue
        step, n = action.step, action.microbatch % schedule.microbatches
        versions = read.forward if action.op is Op.FORWARD else read.backward
        rows.append(
            {
                "panel": title,
                "stage": stage,
                "slot": action.slot,
                "op": str(action.op),
                "microbatch": action.microbatch,
                "step": step,
                "version": versions[stage][step][n],
            }
        )
    return rows


def _draw(axes: Axes, schedule: Schedule, rows: list[dict[str, Any]]) -> None:
    duplex = schedule.slots == "duplex"
    width = 2 if duplex else 1
    for row in rows:
        left = row["slot"] * width
        if left + width > SHOWN:
            continue
        backward = row["op"] == "B"
        light = row["version"] % len(COLORS) in (1, 3)
        height = 0.5 if duplex else 1.0
        bottom = row["stage"] + (0.5 if duplex and backward else 0.0)
        axes.add_patch(
            Rectangle(
                (left, bottom),
                width,
                height,
                facecolor=COLORS[row["version"] % len(COLORS)],
                edgecolor="white",
                linewidth=0.6,
            )
        )
        if backward:
            axes.add_patch(
                Rectangle(
                    (left, bottom),
                    width,
                    height,
                    fill=False,
                    hatch="/////",
                    linewidth=0.0,
                    edgecolor="#555555" if light else "white",
                    alpha=0.3 if light else 0.4,
                )
            )
        text = axes.text(
            left + width / 2,
            bottom + height / 2,
            f"{row['op']}{row['microbatch']}",
            ha="center",
            va="center",
            fontsize=4.6 if duplex else 5.2,
            color="black" if light else "white",
        )
        text.set_in_layout(False)  # it lies inside its cell: asking hundreds of texts for their size takes seconds
    for stage, action in schedule.actions():
        right = (action.slot + 1) * width
        if action.op is Op.UPDATE and right <= SHOWN:
            axes.plot([right, right], [stage, stage + 1], color="#d7301f", linewidth=1.6, solid_capstyle="butt")
    axes.set_xlim(0, SHOWN)
    axes.set_ylim(schedule.stages, 0)
    axes.set_yticks([stage + 0.5 for stage in range(schedule.stages)], [f"stage {s}" for s in range(schedule.stages)])
    axes.set_xticks(range(0, SHOWN + 1, 4))
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """One panel a method, P = 4, N = 4; the CSV lists every forward and backward of the slots shown."""
    chosen = panels()
    fig, grid = style.figure(len(chosen), 1, width=style.PAGE_INCHES, height=6.2, sharex=True)
    table = []
    for axes, (title, schedule) in zip(grid, chosen, strict=True):
        rows = cells(title, schedule)
        _draw(axes, schedule, rows)
        axes.set_title(title, loc="left", fontsize=7)
        width = 2 if schedule.slots == "duplex" else 1
        table += [row for row in rows if (row["slot"] + 1) * width <= SHOWN]
    grid[-1].set_xlabel("time (operations)")
    highest = max(row["version"] for row in table)
    handles = [Rectangle((0, 0), 1, 1, facecolor=COLORS[k % len(COLORS)]) for k in range(highest + 1)]
    handles.append(Rectangle((0, 0), 1, 1, facecolor="#888888", hatch="/////", edgecolor="white"))
    handles.append(Rectangle((0, 0), 0.1, 1, facecolor="#d7301f"))
    fig.legend(
        handles,
        [f"reads version {k}" for k in range(highest + 1)] + ["backward", "update"],
        loc="outside lower center",
        ncols=highest + 3,
        handlelength=1.4,
        columnspacing=1.0,
    )
    return style.save(fig, out_stem, table)
