"""Weight and optimizer memory by the model, over stages and microbatches: what does stashing cost?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paper_figures import style
from paper_figures.costs.sizes import over_sizes
from pipemare_exp import methods
from pipemare_exp.pipeline.schedule import costs

STAGES = (1, 16, 32, 48, 64, 80, 107, 128, 160, 192, 214)
MICROBATCHES = (4, 8, 16, 32, 64, 128, 256)
FIXED_STAGES, FIXED_MICROBATCHES = 107, 32
NAMES = {
    "gpipe": ("GPipe", "gpipe"),
    "pipedream": ("PipeDream", "pipedream"),
    "pipemare_no_t2": ("PipeMare without T2 (as GPipe)", "t1"),
    "pipemare": ("PipeMare with T2", "t1+t2+t3"),
}


def weight_memory(declared: costs.Costs, stages: int, microbatches: int, optimizer: str = "sgd_momentum") -> float:
    """Weights, optimizer state, uniform stash and T2's delta, in W; no gradients, no activations."""
    parts = declared.memory(stages, microbatches, optimizer)
    return parts.weights + parts.optimizer + parts.stash_uniform + parts.buffers


def numbers() -> list[dict[str, Any]]:
    """Memory over P (N = 32) and over N (P = 107), SGD with momentum, stages of equal size."""
    return [
        {**one, "method": method, "memory_W": weight_memory(declared, one["stages"], one["microbatches"])}
        for method, declared in ((name, methods.costs()[name]) for name in NAMES)
        for one in over_sizes(STAGES, MICROBATCHES, FIXED_STAGES, [FIXED_MICROBATCHES])
    ]


@style.styled
def draw(out_stem: Path) -> list[Path]:
    """Left: over P at N = 32. Right: over N at P = 107."""
    table = numbers()
    fig, panels = style.figure(1, 2, width=style.PAGE_INCHES, height=2.5, sharey=True)
    for axes, over, x in zip(panels, "PN", ("stages", "microbatches"), strict=True):
        for method, (name, label) in NAMES.items():
            rows = [row for row in table if row["over"] == over and row["method"] == method]
            one = style.look(label)
            # GPipe and PipeMare without T2 need the same: the wide line stays visible under the dashed one.
            axes.plot(
                [row[x] for row in rows],
                [row["memory_W"] for row in rows],
                color=one.color,
                marker=one.marker,
                linestyle=one.dash,
                label=name,
                linewidth=2.6 if method == "gpipe" else 1.3,
            )
    left, right = panels
    left.set_xlabel("stages P")
    left.set_title(f"N = {FIXED_MICROBATCHES}")
    left.set_xlim(0, STAGES[-1])
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:.0f}")
    right.set_xlabel("microbatches N")
    right.set_title(f"P = {FIXED_STAGES}")
    left.set_ylabel("weights and optimizer (W)")
    left.set_yscale("log", base=2)
    left.set_ylim(1, 40)
    left.yaxis.set_major_formatter("{x:.0f}")
    style.legend_below(fig, left, columns=4)
    return style.save(fig, out_stem, table)
