"""Table 1: delays, utilization and memory of the methods, in symbols and for the paper's stage counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paper_figures import tables
from paper_figures.costs.memory import weight_memory
from pipemare_exp import methods
from pipemare_exp.analysis import published
from pipemare_exp.pipeline.schedule import costs
from pipemare_exp.pipeline.schedule.versions import mean_delays

MODELS = (
    ("ResNet-50", 107, "sgd_momentum"),
    ("Transformer, untied", 93, "adamw"),
    ("Transformer, one embedding", 91, "adamw"),
)
MICROBATCHES = (8, 32)
METHODS = {
    "gpipe": "GPipe",
    "pipedream": "PipeDream",
    "pipemare_no_t2": "PipeMare without T2",
    "pipemare": "PipeMare",
}
SYMBOLS = {
    "gpipe": ("0", "0", "N/(N+P-1)", "W + S"),
    "pipedream": ("(2(P-i)+1)/N", "(2(P-i)+1)/N", "1", "W·(1 + P/N) + S"),
    "pipemare_no_t2": ("(2(P-i)+1)/N", "0", "1", "W + S"),
    "pipemare": ("(2(P-i)+1)/N", "0", "1", "2 W + S"),
}
COLUMNS = [
    ("model", "model"),
    ("P", "P"),
    ("N", "N"),
    ("method", "method"),
    ("tau_fwd", "τ forward (first stage, mean)"),
    ("tau_bkwd", "τ backward (first stage, mean)"),
    ("utilization", "utilization"),
    ("throughput", "throughput over GPipe"),
    ("memory", "weights + optimizer (W)"),
    ("published", "published"),
]


def numbers() -> list[dict[str, Any]]:
    """One dict a model, N and method: delays in steps, utilization, throughput over GPipe, memory in W."""
    rows = []
    for model, stages, optimizer in MODELS:
        for count in MICROBATCHES:
            delays = mean_delays(stages, count)
            for method in METHODS:
                declared = methods.costs()[method]
                forward = [0.0] if declared.flushed else delays
                backward = delays if declared.stash else [0.0]
                ratio = costs.gpipe_ratio(stages, count)
                rows.append(
                    {
                        "model": model,
                        "P": stages,
                        "N": count,
                        "method": method,
                        "optimizer": optimizer,
                        "tau_fwd_first": forward[0],
                        "tau_fwd_mean": sum(forward) / len(forward),
                        "tau_bkwd_first": backward[0],
                        "tau_bkwd_mean": sum(backward) / len(backward),
                        "utilization": declared.utilization(stages, count),
                        "throughput_over_gpipe": 1.0 if declared.flushed else ratio,
                        "memory_W": weight_memory(declared, stages, count, optimizer),
                        "memory_over_pipemare_no_t2": weight_memory(declared, stages, count, optimizer)
                        / weight_memory(methods.costs()["pipemare_no_t2"], stages, count, optimizer),
                    }
                )
    return rows


def _published(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Published numbers for this P and N: the ratio beside PipeMare, the memory beside PipeDream."""
    place = {"stages": row["P"], "microbatches": row["N"]}
    if row["method"] == "pipemare":
        return published.numbers("utilization_ratio", **place)
    return published.numbers("memory_ratio", **place) if row["method"] == "pipedream" else []


def draw(out_stem: Path) -> list[Path]:
    """The symbols first, then the numbers for 107, 93 and 91 stages at N = 8 and 32."""
    table = numbers()
    shown = [
        dict(
            zip(
                ("model", "P", "N", "method", "tau_fwd", "tau_bkwd", "utilization", "throughput", "memory"),
                (
                    "symbols",
                    "P",
                    "N",
                    METHODS[method],
                    forward,
                    backward,
                    used,
                    "1" if methods.costs()[method].flushed else "(N+P-1)/N",
                    memory,
                ),
                strict=True,
            )
        )
        for method, (forward, backward, used, memory) in SYMBOLS.items()
    ]
    entries = []
    for row in table:
        found = _published(row)
        entries += found
        kind = "throughput" if row["method"] == "pipemare" else "memory over PipeMare without T2"
        shown.append(
            {
                "model": row["model"],
                "P": row["P"],
                "N": row["N"],
                "method": METHODS[row["method"]],
                "tau_fwd": f"{row['tau_fwd_first']:.2f}, {row['tau_fwd_mean']:.2f}",
                "tau_bkwd": f"{row['tau_bkwd_first']:.2f}, {row['tau_bkwd_mean']:.2f}",
                "utilization": f"{row['utilization']:.3f}",
                "throughput": f"{row['throughput_over_gpipe']:.2f}×",
                "memory": f"{row['memory_W']:.2f}",
                "published": "; ".join(f"{kind} {published.shown(one)}" for one in found) or "–",
            }
        )
    notes = [
        "By the cost model, not measured; delays in optimizer steps, stage i = 1..P in forward order.",
        "W: size of all weights; S: optimizer state (momentum W, AdamW 2 W); stages of equal size, duplex "
        "slots; no gradients, no activations.",
        "PipeDream over PipeMare without T2 at P = 107, N = 32: "
        f"{costs.memory_ratio(107, 32):.2f}; with T2: {costs.memory_ratio(107, 32, t2=True):.2f}.",
        *published.sources_note(entries),
    ]
    return tables.save(
        out_stem,
        "Delays, utilization and memory of pipeline-parallel training",
        COLUMNS,
        shown,
        notes,
        numbers=table,
    )
