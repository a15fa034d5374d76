"""Recomputation's memory table: activations held for several segment sizes, and estimates kept for T2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paper_figures import tables
from pipemare_exp.pipeline.schedule import costs

MODELS = (
    ("ResNet-20", 43),
    ("ResNet-50", 107),
    ("Transformer, untied", 93),
    ("Transformer, one embedding", 91),
)
MICROBATCHES = 8
COLUMNS = [
    ("model", "model"),
    ("P", "P"),
    ("S", "segment S"),
    ("activations", "activations held"),
    ("share", "share of no recomputation"),
    ("ring", "estimates kept for T2 (N = 8)"),
]


def numbers() -> list[dict[str, Any]]:
    """One dict a model and S (none, 2, 4, sqrt(P)); activations in microbatch-at-one-stage units."""
    rows = []
    for model, stages in MODELS:
        none = costs.Costs().activations(stages, MICROBATCHES)
        rows.append({"model": model, "P": stages, "S": None, "activations": none, "share": 1.0, "ring": 0})
        for segment in (2, 4, costs.sqrt_segment(stages)):
            held = costs.activations_recomputed(stages, segment)
            rows.append(
                {
                    "model": model,
                    "P": stages,
                    "S": segment,
                    "activations": held,
                    "share": held / none,
                    "ring": costs.recompute_ring(segment, MICROBATCHES),
                }
            )
    return rows


def draw(out_stem: Path) -> list[Path]:
    """Counted by the model (steady state, duplex slots), not measured."""
    table = numbers()
    shown = [
        {
            **row,
            "S": "none"
            if row["S"] is None
            else f"√P = {row['S']}"
            if row["S"] == costs.sqrt_segment(row["P"])
            else row["S"],
            "activations": f"{row['activations']:,}",
            "share": f"{100 * row['share']:.1f} %",
        }
        for row in table
    ]
    notes = [
        "Counted at the end of a slot in steady state, in microbatch-at-one-stage units: P² without "
        "recomputation, P S + P²/S - P with segments where S divides P (the segment at the loss is shorter where "
        "it does not).",
        "Estimates kept: ⌈(2S-1)/N⌉ at a segment's first stage.",
    ]
    return tables.save(out_stem, "Activations held with and without recomputation", COLUMNS, shown, notes, table)
