"""Schedules without a flush: PipeDream and PipeMare."""

from __future__ import annotations

from dataclasses import replace

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.actions import Op, Schedule, recompute_segment
from pipemare_exp.pipeline.schedule.event_walk import Lane
from pipemare_exp.pipeline.schedule.orders.all_forwards_first import all_forwards_first
from pipemare_exp.pipeline.schedule.orders.in_rounds import in_rounds
from pipemare_exp.pipeline.schedule.orders.placing import check, columns, flushed, place


def pipedream(stages: int, microbatches: int, steps: int, slots: str = "duplex", start: int = 0) -> Schedule:
    """Never flushed; a backward reads the version its forward read (weight stashing).

    Narayanan et al., "PipeDream" (SOSP 2019). The same slots as `pipemare`; it differs in the versions read.
    `start`: the steps before it run flushed.
    """
    return replace(_asynchronous("pipedream", stages, microbatches, steps, slots, start, None, None), stashes=True)


def pipemare(
    stages: int,
    microbatches: int,
    steps: int,
    slots: str = "duplex",
    start: int = 0,
    segment: int | None = None,
    defer: int | None = None,
) -> Schedule:
    """Never flushed; forward and backward read what is current at their moment (arXiv 1910.05124).

    `start` = M: the steps before it run flushed, as GPipe's. `segment` = S: the asynchronous steps keep only
    the input of every segment of S stages; the stage at distance k from its segment's last one recomputes its
    activations 2k + 1 slots before its backward. Duplex slots only. `defer` = k: the backward of the asynchronous
    steps is split, and its weight gradient comes k input gradients later (`versions.deferred_delays` says what that
    does to the delays). Alternating slots only.
    """
    return _asynchronous("pipemare", stages, microbatches, steps, slots, start, segment, defer)


def _asynchronous(
    name: str,
    stages: int,
    microbatches: int,
    steps: int,
    slots: str,
    start: int,
    segment: int | None,
    defer: int | None,
) -> Schedule:
    check(stages, microbatches, steps, slots, start, segment)
    if defer is not None and slots != "alternating":
        raise UserError(
            f"defer={defer} with slots={slots!r}; a split backward needs alternating slots: a duplex slot holds a "
            "forward and a whole backward"
        )
    if defer is not None and defer < 0:
        raise UserError(f"defer={defer}; allowed: whole numbers from 0 on (0: the weight gradient follows at once)")
    placed = flushed(lambda s: all_forwards_first(s, microbatches), stages, stages, microbatches, start)
    first, count = start * microbatches, (steps - start) * microbatches
    lanes: list[Lane] = []
    for s in range(stages):
        if slots == "duplex":
            lanes += [[(op, s, first + k) for k in range(count)] for op in (Op.FORWARD, Op.BACKWARD)]
        else:
            lanes.append([(op, s, first + k) for op, s, k in in_rounds(s, stages, count, defer=defer)])
    placed |= place(lanes, stages, begin=1 + max(placed.values(), default=-1))
    if segment is not None:
        for s in range(stages):
            before = 2 * (recompute_segment(stages, segment, s)[-1] - s) + 1
            for g in range(first, first + count):
                placed[Op.RECOMPUTE, s, g] = placed[Op.BACKWARD, s, g] - before
    made = columns(stages, microbatches, placed)
    return Schedule(name, slots, stages, microbatches, steps, start, segment, made)
