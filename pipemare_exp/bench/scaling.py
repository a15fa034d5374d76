"""`bench emulator --scaling`: how the cost of emulation grows with stages, microbatches and the size of the model."""

from __future__ import annotations

from typing import Any

from pipemare_exp.bench import emulator

MODEL = "resnet50"
WIDTH = 16  # a quarter of the usual: 6 MB of weights, and steps of less than a second
BATCH = 32

STAGES = (7, 14, 27, 54, 107)
MICROBATCHES = (1, 2, 4, 8, 16, 32)
WIDTHS = (8, 16, 32, 64)


def scaling(method: str, pairs: int, threads: int, clock: str) -> list[dict[str, Any]]:
    """Rows as of `emulator.compare`, of the method only, with `varied` (stages, microbatches or width) and `width`.

    One of the three is varied, the others are at 107 stages, 8 microbatches and a quarter of the width.
    """
    points = [("stages", stages, 8, WIDTH) for stages in STAGES]
    points += [("microbatches", STAGES[-1], microbatches, WIDTH) for microbatches in MICROBATCHES]
    points += [("width", STAGES[-1], 8, width) for width in WIDTHS]
    rows: list[dict[str, Any]] = []
    for varied, stages, microbatches, width in points:
        found = emulator.compare(
            MODEL, [method], microbatches, batch=BATCH, pairs=pairs, threads=threads, stages=stages, width=width,
            memory=False, clock=clock,
        )[1]  # fmt: skip
        rows.append({"varied": varied, "width": width, **found})
    return rows
