"""Activations held with and without recomputation, by the model: over segment size and over stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paper_figures import style
from pipemare_exp.pipeline.schedule import costs

SEGMENT_STAGES = (43, 107)
STAGES = (4, 9, 16, 25, 36, 49, 64, 81, 100, 121, 144)


def numbers() -> list[dict[str, Any]]:
    """Counts in microbatch-at-one-stage units: over S at P = 43 and 107, over P with S = none and sqrt(P)."""
    rows: list[dict[str, Any]] = [
        {
            "over": "S",
            "stages": stages,
            "segment": segment,
            "activations": costs.activations_recomputed(stages, segment),
        }
        for stages in SEGMENT_STAGES
        for segment in range(1, stages + 1)
    ]
    for stages in STAGES:
        segment = costs.sqrt_segment(stages)
        rows.append(
            {
                "over": "P",
                "stages": stages,
                "segment": None,
                "activations": costs.Costs().activations(stages, 1),
            }
        )
        rows.append(
            {
                "over": "P",
                "stages": stages,
                "segment": segment,
                "activations": costs.activations_recomputed(stages, segment),
            }
        )
    return rows


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """Left: share of P^2 over S / P. Right: counts over P, logarithmic."""
    table = numbers()
    fig, (left, right) = style.figure(1, 2, width=style.PAGE_INCHES, height=2.4)
    for stages, color, dash in zip(SEGMENT_STAGES, style.palette(3), ("solid", (0, (4, 1.5))), strict=False):
        rows = [row for row in table if row["over"] == "S" and row["stages"] == stages]
        left.plot(
            [row["segment"] for row in rows],
            [row["activations"] / stages**2 for row in rows],
            color=color,
            linestyle=dash,
            label=f"P = {stages}",
        )
        best = costs.sqrt_segment(stages)
        left.plot([best], [costs.activations_recomputed(stages, best) / stages**2], "o", color=color)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter("{x:.0f}")
    left.set_ylim(0, 1.05)
    left.set_xlabel("segment size S (dots: S = √P, rounded)")
    left.set_ylabel("activations, share of P²")
    left.legend(loc="lower right")
    for segment, label, name in ((False, "gpipe", "none: P²"), (True, "t1+t2+t3", "S = √P")):
        rows = [row for row in table if row["over"] == "P" and (row["segment"] is not None) == segment]
        one = style.look(label)
        right.plot(
            [row["stages"] for row in rows],
            [row["activations"] for row in rows],
            color=one.color,
            marker=one.marker,
            label=name,
        )
    right.set_yscale("log")
    right.set_xlabel("stages P")
    right.set_ylabel("activations held")
    right.legend(loc="lower right")
    return style.save(fig, out_stem, table)
