"""Which schedules there are: GPipe, synchronous 1F1B, PipeDream and PipeMare, for any P, N and number of steps.

GPipe, P = 3 stages, N = 2 microbatches a step, two steps. F3 is the forward of microbatch 3, B3 its backward, * an
update at the end of the slot, . an idle slot:

    slot    0  1  2  3  4  5   6   7   8  9  10 11 12 13  14  15
    stage 0 F0 F1 .  .  .  .   B0  B1* F2 F3 .  .  .  .   B2  B3*
    stage 1 .  F0 F1 .  .  B0  B1* .   .  F2 F3 .  .  B2  B3* .
    stage 2 .  .  F0 F1 B0 B1* .   .   .  .  F2 F3 B2 B3* .   .

PipeMare in duplex slots, P = 3, N = 2, four steps. A slot holds a forward and a backward (F6/B1). Nothing is flushed:
in slot 6 stage 0 runs F6, of step 3, and makes its first update only at the end of that slot, so F6 reads version 0:

    slot    0  1  2  3     4      5      6      7      8      9     10  11  12
    stage 0 F0 F1 F2 F3    F4     F5/B0  F6/B1* F7/B2  B3*    B4    B5* B6  B7*
    stage 1 .  F0 F1 F2    F3/B0  F4/B1* F5/B2  F6/B3* F7/B4  B5*   B6  B7* .
    stage 2 .  .  F0 F1/B0 F2/B1* F3/B2  F4/B3* F5/B4  F6/B5* F7/B6 B7* .   .

A generator only says in which order a stage runs its operations: in one lane for alternating slots (one operation a
slot), in two for duplex slots (a lane of forwards and a lane of backwards). `_place` then gives every operation the
earliest slot that its dependencies allow.

With stages counted from 0, this is the result. Duplex slots: the forward of microbatch g at stage s runs in slot g + s,
its backward L_s = 2(P - 1 - s) + 1 slots later, in slot g + 2P - 1 - s. Alternating slots: between the two lie
L_s = P - 1 - s backwards of other microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.actions import (
    ORDER_IN_SLOT,
    Action,
    Op,
    Schedule,
    check_slots,
    recompute_segment,
)

Operation = tuple[Op, int]
Lanes = list[list[Operation]]
"""One stage's operations in order: one list for alternating slots, two for duplex slots."""


def gpipe(stages: int, microbatches: int, steps: int) -> Schedule:
    """All forwards of a minibatch, then all its backwards, then the update; 2(N + P - 1) slots a minibatch.

    Huang et al., "GPipe" (arXiv 1811.06965). Backwards run in the order n = 0..N-1, as in every schedule
    here, so that sums of gradients are formed in one order. Alternating slots.
    """
    return _synchronous("gpipe", _all_forwards_first, stages, microbatches, steps)


def one_f_one_b(stages: int, microbatches: int, steps: int) -> Schedule:
    """Synchronous 1F1B: P - s forwards at stage s, then backward and forward in turn; flushed after each
    minibatch.

    As long as GPipe, with at most min(P - s, N) microbatches in flight (Narayanan et al., "PipeDream-Flush",
    arXiv 2006.09503). Alternating slots.
    """
    return _synchronous("1f1b", _one_forward_one_backward, stages, microbatches, steps)


def pipedream(stages: int, microbatches: int, steps: int, slots: str = "duplex", start: int = 0) -> Schedule:
    """Never flushed; a backward reads the version its forward read (weight stashing).

    Narayanan et al., "PipeDream" (SOSP 2019). The same slots as `pipemare`; it differs in the versions read.
    `start`: the steps before it run flushed.
    """
    return replace(_asynchronous("pipedream", stages, microbatches, steps, slots, start, None), stashes=True)


def pipemare(
    stages: int,
    microbatches: int,
    steps: int,
    slots: str = "duplex",
    start: int = 0,
    segment: int | None = None,
) -> Schedule:
    """Never flushed; forward and backward read what is current at their moment (arXiv 1910.05124).

    `start` = M: the steps before it run flushed, as GPipe's. `segment` = S: the asynchronous steps keep only
    the input of every segment of S stages; the stage at distance k from its segment's last one recomputes its
    activations 2k + 1 slots before its backward. Duplex slots only.
    """
    return _asynchronous("pipemare", stages, microbatches, steps, slots, start, segment)


def _check(stages: int, microbatches: int, steps: int, slots: str, start: int, segment: int | None) -> None:
    for name, value in (("stages", stages), ("microbatches", microbatches), ("steps", steps)):
        if value < 1:
            raise UserError(f"{name}={value}; a schedule needs at least 1")
    check_slots(slots)
    if not 0 <= start <= steps:
        raise UserError(f"start={start} with steps={steps}; the flushed steps must be 0 to {steps} of them")
    if segment is None:
        return
    if slots != "duplex":
        raise UserError(
            f"segment={segment} with slots={slots!r}; recomputation needs duplex slots: where a slot holds "
            "one operation, it would take the slots of forwards and backwards and so change every delay"
        )
    if not 1 <= segment <= stages:
        raise UserError(f"segment={segment} with stages={stages}; a segment has 1 to {stages} stages")


Slots = dict[tuple[Op, int, int], int]
"""(operation, stage, microbatch) -> slot"""


def _all_forwards_first(stage: int, stages: int, indices: range) -> Lanes:
    return [[(Op.FORWARD, g) for g in indices] + [(Op.BACKWARD, g) for g in indices]]


def _one_forward_one_backward(stage: int, stages: int, indices: range) -> Lanes:
    ahead = min(stages - stage, len(indices))
    lane = [(Op.FORWARD, g) for g in indices[:ahead]]
    for backward, forward in zip(indices, indices[ahead:], strict=False):
        lane += [(Op.BACKWARD, backward), (Op.FORWARD, forward)]
    return [lane + [(Op.BACKWARD, g) for g in indices[len(indices) - ahead :]]]


def _forwards_beside_backwards(stage: int, stages: int, indices: range) -> Lanes:
    return [[(Op.FORWARD, g) for g in indices], [(Op.BACKWARD, g) for g in indices]]


def _flushed(order: Callable[[int, int, range], Lanes], stages: int, microbatches: int, steps: int) -> Slots:
    """Minibatch after minibatch in the given order: a stage's next forward waits for its last backward."""
    minibatches = [range(t * microbatches, (t + 1) * microbatches) for t in range(steps)]
    lanes = [[[op for batch in minibatches for op in order(s, stages, batch)[0]]] for s in range(stages)]
    return _place(lanes, 0)


def _synchronous(
    name: str, order: Callable[[int, int, range], Lanes], stages: int, microbatches: int, steps: int
) -> Schedule:
    _check(stages, microbatches, steps, "alternating", steps, None)
    columns = _columns(stages, microbatches, _flushed(order, stages, microbatches, steps))
    return Schedule(name, "alternating", stages, microbatches, steps, steps, None, columns)


def _asynchronous(
    name: str, stages: int, microbatches: int, steps: int, slots: str, start: int, segment: int | None
) -> Schedule:
    _check(stages, microbatches, steps, slots, start, segment)
    placed = _flushed(_all_forwards_first, stages, microbatches, start)
    order = _forwards_beside_backwards if slots == "duplex" else _one_forward_one_backward
    indices = range(start * microbatches, steps * microbatches)
    begin = 1 + max(placed.values(), default=-1)
    placed |= _place([order(s, stages, indices) for s in range(stages)], begin)
    if segment is not None:
        for s in range(stages):
            before = 2 * (recompute_segment(stages, segment, s)[-1] - s) + 1
            for g in indices:
                placed[Op.RECOMPUTE, s, g] = placed[Op.BACKWARD, s, g] - before
    columns = _columns(stages, microbatches, placed)
    return Schedule(name, slots, stages, microbatches, steps, start, segment, columns)


def _place(lanes: Sequence[Lanes], begin: int) -> Slots:
    """The earliest slot, from `begin` on, of every operation of `lanes[stage]`.

    A lane runs one operation a slot, in order. The forward of g waits for the one at the stage before, its
    backward for the one at the stage after, or at the last stage for its forward: each in an earlier slot.
    """
    stages = len(lanes)
    placed: Slots = {}
    free = [[begin] * len(lane) for lane in lanes]
    following = [[0] * len(lane) for lane in lanes]
    remaining = sum(len(lane) for per_stage in lanes for lane in per_stage)
    while remaining:
        before = remaining
        # One sweep down and one up again carries a microbatch through the whole pipeline.
        for s in (*range(stages), *reversed(range(stages))):
            for k, lane in enumerate(lanes[s]):
                while following[s][k] < len(lane):
                    op, g = lane[following[s][k]]
                    needs = _needs(op, s, g, stages)
                    if needs is not None and needs not in placed:
                        break
                    slot = max(free[s][k], placed[needs] + 1 if needs is not None else begin)
                    placed[op, s, g] = slot
                    free[s][k] = slot + 1
                    following[s][k] += 1
                    remaining -= 1
        if remaining == before:
            raise RuntimeError(f"the orders of {stages} stages wait for each other; {remaining} operations left")
    return placed


def _needs(op: Op, stage: int, g: int, stages: int) -> tuple[Op, int, int] | None:
    """The operation whose result `op` of microbatch g at `stage` takes in; None for what reads the data."""
    if op is Op.FORWARD:
        return (Op.FORWARD, stage - 1, g) if stage else None
    return (Op.BACKWARD, stage + 1, g) if stage < stages - 1 else (Op.FORWARD, stage, g)


def _columns(stages: int, microbatches: int, placed: Slots) -> tuple[tuple[Action, ...], ...]:
    """Adds the updates, in the slot of a minibatch's last backward, and sorts each stage's actions."""
    columns: list[list[Action]] = [[] for _ in range(stages)]
    for (op, stage, g), slot in placed.items():
        step = g // microbatches
        columns[stage].append(Action(op, step, g, slot))
        if op is Op.BACKWARD and (g + 1) % microbatches == 0:
            columns[stage].append(Action(Op.UPDATE, step, g, slot))
    return tuple(tuple(sorted(column, key=lambda a: (a.slot, ORDER_IN_SLOT[a.op]))) for column in columns)
