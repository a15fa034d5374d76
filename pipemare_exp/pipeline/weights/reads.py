"""What a pass reads: a version of a stage's weights, or an estimate made from it."""

from __future__ import annotations

from typing import NamedTuple


class Read(NamedTuple):
    """The weights that one pass of one microbatch reads at one stage.

    `version` is the number of updates the weights have seen. With a `buffer`, the weights read are
    `w_version + coef * buffer`, where `buffer` names one of the method's per-stage buffers of the weights' size
    (T2 reads the current version with `coef = -d` and the buffer `delta`). With a `ring`, `w_version` is taken from
    the method's ring of that name instead of the weights' history.
    """

    version: int
    coef: float = 0.0
    buffer: str | None = None
    ring: str | None = None
