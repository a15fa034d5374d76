"""Which pipelines are the cost model's curves over? Over P at some N, and over N at some P."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def over_sizes(
    stages: Sequence[int], microbatches: Sequence[int], fixed_stages: int, fixed_microbatches: Sequence[int]
) -> list[dict[str, Any]]:
    """{over, stages, microbatches} of each point: over "P" at each of `fixed_microbatches`, then over "N"."""
    points = [("P", size, count) for count in fixed_microbatches for size in stages]
    points += [("N", fixed_stages, count) for count in microbatches]
    return [{"over": over, "stages": size, "microbatches": count} for over, size, count in points]
